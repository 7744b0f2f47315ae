//! [`HostFolder`]: the files of a host, as listed in the crate's documentation.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use xen::{DomId, EvtchnPort, PAGE_BYTES};

use crate::Page;

/// The port that fires when a domain stopped or died.
pub const EXCEPTION_PORT: EvtchnPort = EvtchnPort(1);
/// First port of domains.
const DOMAIN_PORTS: u32 = 1000;
/// Content of a datagram, instead of a domid, when a domain stopped or died.
const EXCEPTION: u32 = u32::MAX;
/// First unique id of domains whose file has none.
const UNIQUE_IDS: u64 = 1_000_000;

/// The daemon's end of a domain's event channel.
#[must_use]
pub fn port_of_domain(domid: DomId) -> EvtchnPort {
    EvtchnPort(DOMAIN_PORTS + u32::from(domid.0))
}

/// The domain whose event channel this is.
#[must_use]
pub fn domain_of_port(port: EvtchnPort) -> Option<DomId> {
    port.0.checked_sub(DOMAIN_PORTS).and_then(|id| u16::try_from(id).ok()).map(DomId)
}

/// State of a domain in its file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    Running,
    Shutdown,
    Dying,
}

/// A domain as its file describes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DomainFile {
    pub state: State,
    /// Never reused, unlike the domid.
    pub unique_id: u64,
}

/// A folder that represents a host.
#[derive(Clone, Debug)]
pub struct HostFolder {
    path: PathBuf,
}

impl HostFolder {
    /// Creates the folder and domain 0's files, unless they exist.
    ///
    /// # Errors
    /// The folder or a file cannot be created; the message names it.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = Self { path: path.into() };
        fs::create_dir_all(&folder.path).map_err(|error| named(&folder.path, &error))?;
        folder.make_ring(DomId::DOM0)?;
        let port = folder.path.join("port.0");
        if !port.exists() {
            fs::write(&port, b"1").map_err(|error| named(&port, &error))?;
        }
        Ok(folder)
    }

    /// A host that another process has opened; nothing is created or changed.
    #[must_use]
    pub fn existing(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The ring page's file of a domain.
    #[must_use]
    pub fn ring(&self, domid: DomId) -> PathBuf {
        self.path.join(format!("ring.{domid}"))
    }

    /// The file that exists as long as the domain does.
    #[must_use]
    pub fn domain(&self, domid: DomId) -> PathBuf {
        self.path.join(format!("dom.{domid}"))
    }

    /// A guest's event socket.
    #[must_use]
    pub fn guest_events(&self, domid: DomId) -> PathBuf {
        self.path.join(format!("evt.{domid}"))
    }

    /// The daemon's event socket.
    #[must_use]
    pub fn daemon_events(&self) -> PathBuf {
        self.path.join("evtchn")
    }

    // Domains

    /// Writes a domain's file. Call [`raise_exception`](Self::raise_exception) once all changes are
    /// made.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_domain(&self, domid: DomId, file: DomainFile) -> io::Result<()> {
        let letter = match file.state {
            State::Running => 'r',
            State::Shutdown => 's',
            State::Dying => 'd',
        };
        // Atomically: the daemon may read at any time.
        let whole = self.path.join(format!("new.{domid}"));
        fs::write(&whole, format!("{letter}:{}", file.unique_id))?;
        open_to_all(&whole)?;
        fs::rename(whole, self.domain(domid))
    }

    /// Removes the domain and its ring page.
    ///
    /// # Errors
    /// There is no such domain.
    pub fn remove_domain(&self, domid: DomId) -> io::Result<()> {
        fs::remove_file(self.domain(domid))?;
        fs::remove_file(self.ring(domid))
    }

    /// Reads the domain's file; `None` if there is no such domain.
    #[must_use]
    pub fn find_domain(&self, domid: DomId) -> Option<DomainFile> {
        let text = match fs::read(self.domain(domid)) {
            Ok(text) => text,
            Err(_) if domid == DomId::DOM0 => Vec::new(),
            Err(_) => return None,
        };
        Some(decode(domid, &text))
    }

    /// All domains, unordered.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn domains(&self) -> io::Result<Vec<(DomId, DomainFile)>> {
        let mut found = Vec::new();
        if let Some(file) = self.find_domain(DomId::DOM0) {
            found.push((DomId::DOM0, file));
        }
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("dom."));
            let domid = number.and_then(|number| number.parse().ok()).map(DomId);
            let Some(domid) = domid.filter(|domid| domid.is_ordinary() && *domid != DomId::DOM0)
            else {
                continue;
            };
            // It may have been removed since the folder was read.
            if let Some(file) = self.find_domain(domid) {
                found.push((domid, file));
            }
        }
        Ok(found)
    }

    // Rings

    /// Creates a zeroed ring page file, unless it exists.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn make_ring(&self, domid: DomId) -> io::Result<()> {
        let path = self.ring(domid);
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .and_then(|file| file.set_len(PAGE_BYTES as u64))
            .and_then(|()| open_to_all(&path))
            .map_err(|error| named(&path, &error))
    }

    /// Maps a domain's ring page.
    ///
    /// # Errors
    /// There is no such page, or it has the wrong size.
    pub fn map_ring(&self, domid: DomId) -> io::Result<Page> {
        Page::map(&self.ring(domid))
    }

    // Events

    /// Binds the daemon's socket; a stale one is replaced.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn bind_daemon_events(&self) -> io::Result<UnixDatagram> {
        bind(&self.daemon_events())
    }

    /// Binds a guest's socket.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn bind_guest_events(&self, domid: DomId) -> io::Result<UnixDatagram> {
        bind(&self.guest_events(domid))
    }

    /// The port of a datagram at the daemon's socket.
    #[must_use]
    pub fn port_of_datagram(datagram: &[u8]) -> Option<EvtchnPort> {
        let word = u32::from_ne_bytes(datagram.try_into().ok()?);
        if word == EXCEPTION {
            return Some(EXCEPTION_PORT);
        }
        u16::try_from(word).ok().map(|domid| port_of_domain(DomId(domid)))
    }

    /// The datagram by which a guest signals its ring.
    #[must_use]
    pub fn datagram_of_domain(domid: DomId) -> [u8; 4] {
        u32::from(domid.0).to_ne_bytes()
    }

    /// Notifies the daemon that some domain changed.
    ///
    /// # Errors
    /// There is no daemon.
    pub fn raise_exception(&self) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.send_to(&EXCEPTION.to_ne_bytes(), self.daemon_events()).map(drop)
    }
}

fn decode(domid: DomId, text: &[u8]) -> DomainFile {
    let state = match text.first() {
        Some(b's') => State::Shutdown,
        Some(b'd') => State::Dying,
        _ => State::Running,
    };
    let digits = text.get(2..).filter(|_| text[1] == b':').unwrap_or_default();
    let digits = std::str::from_utf8(digits).unwrap_or_default().trim_end();
    let unique_id = digits.parse().unwrap_or(UNIQUE_IDS + u64::from(domid.0));
    DomainFile { state, unique_id }
}

fn bind(path: &Path) -> io::Result<UnixDatagram> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(path, &error)),
        _ => {}
    }
    let socket = UnixDatagram::bind(path).map_err(|error| named(path, &error))?;
    open_to_all(path)?;
    Ok(socket)
}

/// A daemon that has dropped root still reaches its guests.
fn open_to_all(path: &Path) -> io::Result<()> {
    const MODE: u32 = 0o666;
    let change = |metadata: fs::Metadata| {
        if metadata.permissions().mode() & 0o777 == MODE {
            // It may belong to root, and we may be a user who may not change it.
            return Ok(());
        }
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))
    };
    fs::metadata(path).and_then(change).map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domains_file_may_say_nothing_more_than_that_it_exists() {
        let known = |text: &str| decode(DomId(7), text.as_bytes());
        let file = |state, unique_id| DomainFile { state, unique_id };
        assert_eq!(known(""), file(State::Running, 1_000_007));
        assert_eq!(known("r"), file(State::Running, 1_000_007));
        assert_eq!(known("s"), file(State::Shutdown, 1_000_007));
        assert_eq!(known("d:"), file(State::Dying, 1_000_007));
        assert_eq!(known("s:42"), file(State::Shutdown, 42));
        assert_eq!(known("r:42\n"), file(State::Running, 42));
        assert_eq!(known("r:many"), file(State::Running, 1_000_007));
    }

    #[test]
    fn datagrams_and_ports_name_the_same_domain() {
        for domid in [DomId(0), DomId(1), DomId(u16::MAX)] {
            let port = HostFolder::port_of_datagram(&HostFolder::datagram_of_domain(domid));
            assert_eq!(port, Some(port_of_domain(domid)));
            assert_eq!(port.and_then(domain_of_port), Some(domid));
        }
        assert_eq!(HostFolder::port_of_datagram(&[0xff; 4]), Some(EXCEPTION_PORT));
        for noise in [&[][..], &[1], &[0, 0, 1, 0], &[0; 5]] {
            assert_eq!(HostFolder::port_of_datagram(noise), None, "{noise:?}");
        }
        assert_eq!(domain_of_port(EXCEPTION_PORT), None);
    }
}
