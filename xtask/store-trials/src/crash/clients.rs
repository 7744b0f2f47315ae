//! Clients of the socket: what was acknowledged is there afterwards, what was not is there or not.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xen::{DomId, Errno, EvtchnPort, Gfn};
use xenstore::client::{Client, ClientError, Nodes, Transport};
use xenstore::{Access, Permission};

use super::Scene;

/// No daemon for so long is an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// A letter is removed so many letters later.
const LIFETIME: u64 = 8;

/// A connection that ends with the daemon.
pub(super) struct Socket(UnixStream);

impl Transport for Socket {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.0.write_all(bytes).map_err(|error| Errno(error.raw_os_error().unwrap_or(5)))
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        self.0.read(into).map_err(|error| Errno(error.raw_os_error().unwrap_or(5)))
    }
}

fn connect(scene: &Scene) -> Result<Client<Socket>> {
    let path = scene.host.path().join("socket");
    let began = Instant::now();
    loop {
        match UnixStream::connect(&path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(Client::new(Socket(stream)));
            }
            Err(error) if began.elapsed() > PATIENCE => {
                return Err(error).context("no daemon listens");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The result, or `None` if the daemon ended meanwhile.
fn unless_closed<T>(scene: &Scene, result: Result<T, ClientError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(ClientError::Transport(errno)) if errno == Errno::EAGAIN => {
            bail!("no answer in {PATIENCE:?}")
        }
        Err(ClientError::Transport(_) | ClientError::Closed) => {
            scene.closed.fetch_add(1, Ordering::Relaxed);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Does it until it is done: for what may be done twice.
fn persist<T>(
    scene: &Scene,
    mut what: impl FnMut(&mut Client<Socket>) -> Result<T, ClientError>,
) -> Result<T> {
    loop {
        let mut client = connect(scene)?;
        if let Some(value) = unless_closed(scene, what(&mut client))? {
            return Ok(value);
        }
    }
}

pub(super) fn fill(scene: &Scene, nodes: u32) -> Result<()> {
    persist(scene, |client| {
        (0..nodes).try_for_each(|i| {
            client.write(&format!("/filling/{}/{i}", i / 100), b"0123456789abcdef")
        })
    })
}

pub(super) fn introduce(scene: &Scene, domid: u16) -> Result<()> {
    persist(scene, |client| {
        let home = format!("/local/domain/{domid}");
        if !client.is_introduced(DomId(domid))? {
            client.introduce(DomId(domid), Gfn(1), EvtchnPort(1))?;
        }
        client.mkdir(&home)?;
        client.set_perms(&home, &[Permission::new(Access::None, DomId(domid))])
    })
}

pub(super) fn wait_until_gone(scene: &Scene, domid: u16) -> Result<()> {
    let began = Instant::now();
    loop {
        let (known, home) = persist(scene, |client| {
            let known = client.is_introduced(DomId(domid))?;
            Ok((known, client.read_optional(&format!("/local/domain/{domid}"))?))
        })?;
        if !known {
            ensure!(home.is_none(), "the nodes of a dead domain are there");
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "the end of domain {domid} was not reported");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a guest is told about nodes that others write in its home.
#[derive(Default)]
pub(super) struct Mail {
    letters: Mutex<BTreeMap<String, Letter>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Letter {
    attempts: u32,
    is_acknowledged: bool,
    received: u32,
}

impl Mail {
    fn count(&self, path: &str, change: impl FnOnce(&mut Letter)) {
        let mut letters = self.letters.lock().expect("not poisoned");
        change(letters.entry(path.to_owned()).or_default());
    }

    pub(super) fn receive(&self, path: &str) {
        self.count(path, |letter| letter.received += 1);
    }

    /// Each change was told once, of two that waited together the second may be left out.
    fn check(&self) -> Result<()> {
        for (path, letter) in &*self.letters.lock().expect("not poisoned") {
            // The first event of the watch itself.
            if path == "mail" {
                continue;
            }
            let least = u32::from(letter.is_acknowledged);
            let fits = (least..=letter.attempts).contains(&letter.received);
            ensure!(fits, "{path}: {letter:?}");
        }
        Ok(())
    }
}

/// A client that commits and sends letters until the end.
pub(super) fn work(scene: &Scene, number: u16, mail: &[Mail]) -> Result<()> {
    let area = format!("/area/{number}");
    let (mut acknowledged, mut attempted) = (0_u64, 0_u64);
    while !scene.is_over() {
        let mut client = connect(scene)?;
        let Some((one, two)) = unless_closed(scene, look(&mut client, &area))? else { continue };
        ensure!(one == two, "half a transaction: {one} and {two}");
        let known = [acknowledged, attempted];
        ensure!(known.contains(&one), "{area} is {one}, which was one of {known:?}");
        acknowledged = one;
        while !scene.is_over() {
            attempted = acknowledged + 1;
            if unless_closed(scene, change(&mut client, &area, attempted))?.is_none() {
                break;
            }
            acknowledged = attempted;
            let sent = send_letters(&mut client, number, acknowledged, mail);
            if unless_closed(scene, sent)?.is_none() {
                break;
            }
            scene.requests.fetch_add(8, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn look(client: &mut Client<Socket>, area: &str) -> Result<(u64, u64), ClientError> {
    let mut number = |name: &str| {
        let value = client.read_optional(&format!("{area}/{name}"))?.unwrap_or_default();
        Ok::<_, ClientError>(String::from_utf8_lossy(&value).parse().unwrap_or(0))
    };
    Ok((number("one")?, number("two")?))
}

fn change(client: &mut Client<Socket>, area: &str, number: u64) -> Result<(), ClientError> {
    let text = number.to_string();
    client.transaction(|transaction| {
        transaction.write(&format!("{area}/one"), text.as_bytes())?;
        transaction.write(&format!("{area}/two"), text.as_bytes())?;
        Ok(())
    })
}

/// Writes one letter and removes those that are old, one of which may be left from before a kill.
fn send_letters(
    client: &mut Client<Socket>,
    number: u16,
    sequence: u64,
    mail: &[Mail],
) -> Result<(), ClientError> {
    let guests = mail.len() as u64;
    let letter = |sequence: u64| {
        let guest = usize::try_from((u64::from(number) * 7 + sequence) % guests).unwrap_or(0);
        (guest, format!("mail/{number}-{sequence}"))
    };
    let removed = (LIFETIME..LIFETIME + 3).filter_map(|age| sequence.checked_sub(age));
    for (sequence, removes) in [(sequence, false)].into_iter().chain(removed.map(|s| (s, true))) {
        let (guest, path) = letter(sequence);
        let whole = format!("/local/domain/{}/{path}", guest + 1);
        mail[guest].count(&path, |letter| letter.attempts += 1);
        if removes {
            // Nothing may be there.
            client.rm(&whole)?;
        } else {
            client.write(&whole, b"letter")?;
            mail[guest].count(&path, |letter| letter.is_acknowledged = true);
        }
    }
    Ok(())
}

/// What the daemon says of itself in the end, and whether all letters were told of.
pub(super) fn check_end(scene: &Scene, mail: &[Mail]) -> Result<()> {
    let found = persist(scene, |client| client.control(&["check"]))?;
    ensure!(found == "OK" || found.is_empty(), "the daemon's own check: {found}");
    for (index, mail) in mail.iter().enumerate() {
        mail.check().with_context(|| format!("domain {}", index + 1))?;
    }
    Ok(())
}
