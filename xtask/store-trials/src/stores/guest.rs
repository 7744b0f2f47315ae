//! A guest that asks over its ring, on a host made of files.

use anyhow::{Context, Result};
use file_host::State;
use xenstore::client::Transport;
use xenstore::ring::RING_BYTES;
use xenstore::wire;

use super::message::{Answer, Event, Inbox, Message};

#[derive(Debug)]
pub struct Guest {
    guest: file_host::Guest,
    inbox: Inbox,
    last_request: u32,
}

impl Guest {
    pub(super) fn new(guest: file_host::Guest) -> Self {
        Self { guest, inbox: Inbox::default(), last_request: 0 }
    }

    /// Sends a request and waits for its reply. Any type may be sent, also unknown ones.
    ///
    /// # Errors
    /// The ring is not served any more, or the server is stuck.
    pub fn call_raw(&mut self, code: u32, transaction: u32, payload: &[u8]) -> Result<Answer> {
        self.last_request += 1;
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, code, self.last_request, transaction, &[payload]);
        let domid = self.guest.domid();
        let broken = |errno| anyhow::anyhow!("domain {domid} gets no reply on its ring: {errno:?}");
        self.guest.send(&bytes).map_err(broken)?;
        loop {
            if let Some(answer) = self.inbox.next_reply(self.last_request)? {
                return Ok(answer);
            }
            let guest = &mut self.guest;
            let mut result = Ok(());
            self.inbox.fill(RING_BYTES, |into| match guest.recv(into) {
                Ok(length) => Ok(length),
                Err(errno) => {
                    result = Err(broken(errno));
                    Ok(0)
                }
            })?;
            result?;
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let domid = self.guest.domid();
        let sent = self.guest.send(bytes);
        sent.map_err(|errno| anyhow::anyhow!("domain {domid} cannot send: {errno:?}"))
    }

    /// Waits for bytes; messages are then taken with [`next_message`](Self::next_message).
    pub fn receive(&mut self) -> Result<()> {
        let guest = &mut self.guest;
        let error = |errno: xen::Errno| std::io::Error::from_raw_os_error(errno.0);
        let domid = guest.domid();
        self.inbox
            .fill(RING_BYTES, |into| guest.recv(into).map_err(error))
            .with_context(|| format!("domain {domid} gets nothing on its ring"))?;
        Ok(())
    }

    pub fn next_message(&mut self) -> Result<Option<Message<'_>>> {
        self.inbox.next_message()
    }

    /// Events that came before the last reply.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.inbox.take_events()
    }

    /// Changes what the domain does; the server is told by [`Daemon::raise`](super::Daemon::raise).
    ///
    /// # Errors
    /// The domain is gone.
    pub fn set_state(&self, state: State) -> Result<()> {
        self.guest.set_state(state).context("a domain's file cannot be written")
    }

    /// Ends the domain; the server is told by [`Daemon::raise`](super::Daemon::raise).
    ///
    /// # Errors
    /// It was ended before.
    pub fn destroy(&self) -> Result<()> {
        self.guest.destroy().context("a domain's files cannot be removed")
    }
}
