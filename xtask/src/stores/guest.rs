//! A guest made of files: its ring page is a file that the server maps, its event channel a datagram
//! socket. `lab/xsfake.c` says how.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use xenstore::ring::{ClientRing, RING_BYTES, RingPage};
use xenstore::wire;

use super::message::{Answer, Event, Inbox};

/// A server that does not notify for so long is looked at again, and given up after some times.
const PATIENCE: Duration = Duration::from_millis(500);
const LOOKS_MAX: u32 = 20;

/// The page, read and written by system calls: each is one access, and in order.
#[derive(Debug)]
struct Page(File);

/// What a page's accesses panic with: the file is ours and as long as a page.
const PAGE_IS_THERE: &str = "a ring page of 4096 bytes";

impl RingPage for Page {
    fn load_u32(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.read(offset, &mut word);
        u32::from_ne_bytes(word)
    }

    fn store_u32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_ne_bytes());
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read_exact_at(into, offset as u64).expect(PAGE_IS_THERE);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write_all_at(bytes, offset as u64).expect(PAGE_IS_THERE);
    }
}

#[derive(Debug)]
pub(crate) struct Guest {
    domid: u16,
    ring: ClientRing<Page>,
    channel: UnixDatagram,
    server: PathBuf,
    inbox: Inbox,
    last_request: u32,
}

impl Guest {
    /// Makes the page and the event channel of a domain in `folder`, before it is introduced.
    ///
    /// # Errors
    /// The files cannot be made.
    pub(crate) fn create(folder: &Path, domid: u16) -> Result<Self> {
        let page = folder.join(format!("ring.{domid}"));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&page)
            .with_context(|| format!("cannot make {}", page.display()))?;
        file.set_len(4096)?;
        let channel = folder.join(format!("evt.{domid}"));
        let _absent = std::fs::remove_file(&channel);
        let channel = UnixDatagram::bind(&channel)?;
        channel.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            domid,
            ring: ClientRing::new(Page(file)),
            channel,
            server: folder.join("evtchn"),
            inbox: Inbox::default(),
            last_request: 0,
        })
    }

    fn notify(&self) -> Result<()> {
        let domid = u32::from(self.domid).to_ne_bytes();
        self.channel.send_to(&domid, &self.server).context("the server has no event channel")?;
        Ok(())
    }

    /// Sends a request and waits for its reply. Any type may be sent, also unknown ones.
    ///
    /// # Errors
    /// The ring is not served any more, or the server is stuck.
    pub(crate) fn call_raw(
        &mut self,
        code: u32,
        transaction: u32,
        payload: &[u8],
    ) -> Result<Answer> {
        self.last_request += 1;
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, code, self.last_request, transaction, &[payload]);
        let mut rest = &bytes[..];
        let mut looks = 0;
        loop {
            let put = self.ring.put_requests(rest)?;
            rest = &rest[put..];
            let taken = self.take()?;
            if put > 0 || taken > 0 {
                self.notify()?;
                looks = 0;
            }
            if let Some(answer) = self.inbox.next_reply(self.last_request)? {
                return Ok(answer);
            }
            if put == 0 && taken == 0 {
                looks += 1;
                if looks > LOOKS_MAX {
                    bail!(
                        "domain {}: no reply on its ring (error {})",
                        self.domid,
                        self.ring.error()
                    );
                }
                // Whether a byte came or time passed: look again.
                let _waited = self.channel.recv(&mut [0; 8]);
            }
        }
    }

    fn take(&mut self) -> Result<usize> {
        let ring = &self.ring;
        let mut broken = None;
        let taken = self.inbox.fill(RING_BYTES, |into| {
            Ok(ring.take_replies(into).unwrap_or_else(|error| {
                broken = Some(error);
                0
            }))
        })?;
        broken.map_or(Ok(taken), |error| Err(error.into()))
    }

    /// Events that came before the last reply.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        self.inbox.take_events()
    }
}
