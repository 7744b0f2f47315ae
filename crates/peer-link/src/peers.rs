//! The file of peers: a line each, to be read and edited by people too.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::fingerprint::Fingerprint;
use crate::{PORT, files};

const BYTES_MAX: u64 = 256 << 10;
const NAME_BYTES_MAX: usize = 64;
const HOST_BYTES_MAX: usize = 253;

/// What a new file begins with.
const HEADING: &str = "\
# Hosts that may move VMs here, and to which VMs of this host may move. 'xy peer' changes this file; it may be
# edited, too. What 'xy peer key' says on a host is its key.
# name  address:port  key
";

/// Where a peer listens.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Address {
    /// An address, or a name that this host can resolve.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let text: String = text.chars().take(HOST_BYTES_MAX).collect();
            format!("'{text}' is no address: HOST, HOST:PORT, or [IPV6]:PORT")
        };
        if text.parse::<IpAddr>().is_ok() {
            return Ok(Self { host: text.to_owned(), port: PORT });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (text, PORT),
        };
        let is_name = |host: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.bytes().all(allowed)
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(host) if matches!(host.parse(), Ok(IpAddr::V6(_))) => host,
            None if is_name(host) => host,
            _ => return Err(wrong()),
        };
        if port == 0 { Err(wrong()) } else { Ok(Self { host: host.to_owned(), port }) }
    }
}

/// Another host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Peer {
    pub name: String,
    pub address: Address,
    pub key: Fingerprint,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.address, self.key)
    }
}

impl Peer {
    /// Reads the three words.
    ///
    /// # Errors
    /// Says which is wrong.
    pub fn parse(name: &str, address: &str, key: &str) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let starts_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !starts_well || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
            let name: String = name.chars().take(NAME_BYTES_MAX).collect();
            return Err(format!(
                "'{name}' is no name of a peer: at most {NAME_BYTES_MAX} letters, digits, '-', '.' and '_'"
            ));
        }
        let key = key.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { name: name.to_owned(), address: address.parse()?, key })
    }
}

/// A line of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Line {
    /// A comment, or nothing.
    Other(String),
    Peer(Peer),
}

/// All peers of this host. No two have the same name or key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Peers(Vec<Line>);

/// Why the peers are unknown, or cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    #[error("cannot read {path}: {why}", path = .0.display(), why = .1)]
    Read(PathBuf, io::Error),
    #[error("{path}:{line}: {why}", path = .path.display())]
    Wrong { path: PathBuf, line: usize, why: String },
    #[error("cannot write {path}: {why}", path = .0.display(), why = .1)]
    Write(PathBuf, io::Error),
    /// The change makes no sense.
    #[error("{0}")]
    Change(String),
}

impl Peers {
    /// Reads a text; the error has the number of a wrong line.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut peers = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = peers.parse_line(line).map_err(|why| (at + 1, why))?;
            peers.0.push(line);
        }
        Ok(peers)
    }

    fn parse_line(&self, line: &str) -> Result<Line, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => Ok(Line::Other(line.to_owned())),
            [word, ..] if word.starts_with('#') => Ok(Line::Other(line.to_owned())),
            [name, address, key] => {
                let peer = Peer::parse(name, address, key)?;
                self.check_new(&peer)?;
                Ok(Line::Peer(peer))
            }
            _ => Err("a line is a name, an address and a key".to_owned()),
        }
    }

    /// Two hosts with one key could not be told apart.
    fn check_new(&self, peer: &Peer) -> Result<(), String> {
        let Peer { name, key, .. } = peer;
        if self.by_name(name).is_some() {
            return Err(format!("there is a peer {name} already"));
        }
        match self.by_key(*key) {
            Some(other) => Err(format!("{name} would have the key of {}", other.name)),
            None => Ok(()),
        }
    }

    /// Reads the file; without one there are no peers.
    ///
    /// # Errors
    /// [`PeersError::Wrong`] if a line is: then nobody is a peer, until it is corrected.
    pub fn load(path: &Path) -> Result<Self, PeersError> {
        let text = match files::open(path).and_then(|file| files::read(file, BYTES_MAX)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => HEADING.to_owned(),
            Err(error) => return Err(PeersError::Read(path.to_owned(), error)),
        };
        Self::parse(&text).map_err(|(line, why)| PeersError::Wrong {
            path: path.to_owned(),
            line,
            why,
        })
    }

    /// Changes the file, in one step.
    fn change(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), PeersError> {
        let write = |error| PeersError::Write(path.to_owned(), error);
        files::make_folder(path).map_err(write)?;
        let _lock = files::lock(path).map_err(write)?;
        let mut peers = Self::load(path)?;
        change(&mut peers).map_err(PeersError::Change)?;
        files::replace(path, &peers.to_string()).map_err(write)
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// The name or the key is taken, or the file cannot be read or written.
    pub fn add(path: &Path, peer: Peer) -> Result<(), PeersError> {
        Self::change(path, |peers| {
            peers.check_new(&peer).map_err(|why| format!("{why}; see 'xy peer list'"))?;
            peers.0.push(Line::Peer(peer));
            Ok(())
        })
    }

    /// Removes the peer of that name. Comments stay.
    ///
    /// # Errors
    /// There is none, or the file cannot be read or written.
    pub fn remove(path: &Path, name: &str) -> Result<(), PeersError> {
        Self::change(path, |peers| {
            let is_it = |line: &Line| matches!(line, Line::Peer(peer) if peer.name == name);
            let at = peers.0.iter().position(is_it).ok_or_else(|| unknown(name))?;
            peers.0.remove(at);
            Ok(())
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter().filter_map(|line| match line {
            Line::Peer(peer) => Some(peer),
            Line::Other(_) => None,
        })
    }

    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Peer> {
        self.iter().find(|peer| peer.name == name)
    }

    /// # Errors
    /// Says that there is none, and what to do.
    pub fn named(&self, name: &str) -> Result<&Peer, String> {
        self.by_name(name).ok_or_else(|| unknown(name))
    }

    #[must_use]
    pub fn by_key(&self, key: Fingerprint) -> Option<&Peer> {
        self.iter().find(|peer| peer.key == key)
    }

    /// The addresses from which peers are expected to call, as far as they are given as numbers.
    pub(crate) fn addresses(&self) -> BTreeSet<IpAddr> {
        self.iter().filter_map(|peer| peer.address.host.parse().ok()).collect()
    }
}

fn unknown(name: &str) -> String {
    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
    format!("there is no peer '{name}'; 'xy peer add' makes one known")
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| match line {
            Line::Other(text) => writeln!(f, "{text}"),
            Line::Peer(peer) => writeln!(f, "{peer}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const A: &str = "aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa";
    const B: &str = "bbbb-bbbb-bbbb-bbbb-bbbb-bbbb-bbbb-bbbb";

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = format!("peer-link-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("peers")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn an_address_may_have_a_port() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7:8003"),
            ("192.0.2.7:1", "192.0.2.7:1"),
            ("host-b.example", "host-b.example:8003"),
            ("host:65535", "host:65535"),
            ("2001:db8::1", "[2001:db8::1]:8003"),
            ("[2001:db8::1]:9", "[2001:db8::1]:9"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
            assert_eq!(expected.parse(), Ok(address));
        }
        for bad in [
            "",
            ":",
            ":1",
            "host:",
            "host:0",
            "host:65536",
            "[host]:1",
            "[::1]",
            "a b",
            "ä",
            "[::1]x:1",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_changed_file_keeps_its_comments_and_order() {
        let folder = Folder::new("changes");
        let path = folder.file();
        assert_eq!(Peers::load(&path).unwrap().iter().count(), 0);
        Peers::add(&path, Peer::parse("b", "192.0.2.2", B).unwrap()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}\n# the old one\na  a.example:1\t{A}\n")).unwrap();
        Peers::remove(&path, "b").unwrap();
        Peers::add(&path, Peer::parse("c", "::1", B).unwrap()).unwrap();
        expect![[r"
            # Hosts that may move VMs here, and to which VMs of this host may move. 'xy peer' changes this file; it may be
            # edited, too. What 'xy peer key' says on a host is its key.
            # name  address:port  key

            # the old one
            a a.example:1 aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa
            c [::1]:8003 bbbb-bbbb-bbbb-bbbb-bbbb-bbbb-bbbb-bbbb
        "]]
        .assert_eq(&std::fs::read_to_string(&path).unwrap());
        let peers = Peers::load(&path).unwrap();
        assert_eq!(peers.by_key(A.parse().unwrap()).unwrap().name, "a");
        assert_eq!(peers.addresses().len(), 1);
        for (name, address, key) in [("a", "x", B), ("d", "x", A)] {
            let refused = Peers::add(&path, Peer::parse(name, address, key).unwrap());
            assert!(matches!(refused, Err(PeersError::Change(_))), "{refused:?}");
        }
        expect!["there is no peer 'b'; 'xy peer add' makes one known"]
            .assert_eq(&Peers::remove(&path, "b").unwrap_err().to_string());
    }

    #[test]
    fn a_wrong_line_is_refused_with_its_number_and_the_file_stays_as_it_is() {
        let folder = Folder::new("wrong");
        let path = folder.file();
        let mut told = String::new();
        for line in [
            "b".to_owned(),
            format!("b 192.0.2.2 {B} x"),
            format!("b 192.0.2.2:x {B}"),
            "b 192.0.2.2 bbbb".to_owned(),
            format!("-b 192.0.2.2 {B}"),
            format!("{} 192.0.2.2 {B}", "b".repeat(65)),
            format!("a 192.0.2.2 {B}"),
            format!("b 192.0.2.2 {A}"),
        ] {
            let text = format!("# peers\na 192.0.2.1 {A}\n{line}\n");
            std::fs::write(&path, &text).unwrap();
            let why = Peers::load(&path).unwrap_err().to_string();
            told += &why.replace(&*folder.0.to_string_lossy(), "");
            told += "\n";
            let peer = Peer::parse("c", "x", "cccc-cccc-cccc-cccc-cccc-cccc-cccc-cccc").unwrap();
            assert!(matches!(Peers::add(&path, peer), Err(PeersError::Wrong { line: 3, .. })));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        expect![[r#"
            /peers:3: a line is a name, an address and a key
            /peers:3: a line is a name, an address and a key
            /peers:3: '192.0.2.2:x' is no address: HOST, HOST:PORT, or [IPV6]:PORT
            /peers:3: 'bbbb' is no key: one is eight groups of four letters and digits, as 'xy peer key' prints it
            /peers:3: '-b' is no name of a peer: at most 64 letters, digits, '-', '.' and '_'
            /peers:3: 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb' is no name of a peer: at most 64 letters, digits, '-', '.' and '_'
            /peers:3: there is a peer a already
            /peers:3: b would have the key of a
        "#]].assert_eq(&told);
        std::fs::write(&path, [0xff]).unwrap();
        assert!(Peers::load(&path).unwrap_err().to_string().ends_with("it is no text in UTF-8"));
        std::fs::write(&path, "#".repeat((256 << 10) + 1)).unwrap();
        assert!(Peers::load(&path).unwrap_err().to_string().ends_with("larger than 256 KiB"));
    }

    #[test]
    fn of_changes_at_the_same_time_none_is_lost() {
        let folder = Folder::new("together");
        let path = folder.file();
        let adders: Vec<_> = (0..8_u8)
            .map(|number| {
                let path = path.clone();
                std::thread::spawn(move || {
                    let key = Fingerprint::of(&[number]).to_string();
                    let peer = Peer::parse(&format!("host{number}"), "x", &key).unwrap();
                    Peers::add(&path, peer).unwrap();
                })
            })
            .collect();
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        assert_eq!(Peers::load(&path).unwrap().iter().count(), 8);
    }
}
