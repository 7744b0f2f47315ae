//! The networks of this host: interfaces by route netlink, filters by nft(8), Open vSwitch by its database's socket.

use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use storage::HostError;
use toolstack::around::HostLink;
use toolstack::host::Link;
use toolstack::network::{FilterChange, LinkUse, Networks, Prefix};
use xen_linux::{Links, Route};

use crate::host::{refusal, refused};

/// Timeout for an interface to appear.
const LINK_WAIT: Duration = Duration::from_secs(10);
/// The MAC address of the host's ends: the highest that there is, as Xen's scripts and netback have it.
const OF_NO_BRIDGE: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];
/// Where Debian and others have it.
const NFT: [&str; 2] = ["/usr/sbin/nft", "/sbin/nft"];
const NFT_SECONDS: u64 = 30;
/// Where the packages of Open vSwitch have their sockets.
const OVSDB: [&str; 2] = ["/run/openvswitch/db.sock", "/usr/local/var/run/openvswitch/db.sock"];
const OVSDB_TIME: Duration = Duration::from_secs(30);
/// Far more than any answer to us has.
const ANSWER_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct LinuxNetworks {
    pub(crate) links: Links,
}

impl LinuxNetworks {
    pub(crate) fn open() -> Result<Self, xen_linux::HostError> {
        Ok(Self { links: Links::open()? })
    }
}

fn told(error: &xen_linux::HostError) -> HostError {
    HostError::Refused(error.to_string())
}

fn nft() -> Result<&'static str, HostError> {
    NFT.into_iter().find(|path| Path::new(path).exists()).ok_or(HostError::Missing)
}

impl Networks for LinuxNetworks {
    fn name_link(&mut self, link: &Link) -> Result<(), HostError> {
        let told = |error| told(&error);
        let name = link.rename.as_ref().unwrap_or(&link.name);
        let there = self.links.find(name).map_err(told)?;
        // An interface renamed before has its original name as alias.
        let is_renamed = |it: &xen_linux::Link| it.alias.as_deref() == Some(&link.name);
        let mut found = there.filter(is_renamed);
        if found.is_none() {
            // netback sets InitWait shortly before it has created its interface.
            found = Some(self.links.wait_for(&link.name, LINK_WAIT).map_err(told)?);
            if *name != link.name {
                self.links.rename(&link.name, name).map_err(told)?;
            }
        }
        // That of QEMU's interfaces is random, and a bridge takes the lowest of its ports for its own, with all the host's
        // addresses on it.
        if found.is_some_and(|it| it.address != Some(OF_NO_BRIDGE)) {
            self.links.set_mac(name, OF_NO_BRIDGE).map_err(told)?;
        }
        Ok(())
    }

    fn raise_link(&mut self, name: &str, with: &LinkUse) -> Result<u32, HostError> {
        let told = |error| told(&error);
        if let Some(bytes) = with.mtu {
            self.links.set_mtu(name, bytes).map_err(told)?;
        }
        // Down first: the routes of an earlier try go with that.
        self.links.lower(name).map_err(told)?;
        let link = self.links.raise(name, with.address.is_some()).map_err(told)?;
        if let Some(address) = with.address {
            self.links.add_address(name, address).map_err(told)?;
        }
        for Prefix { address, bits } in &with.routes {
            let from = with.address.filter(|_| address.is_ipv4());
            let route = Route { destination: *address, bits: *bits, from, metric: with.metric };
            self.links.add_route(name, &route).map_err(told)?;
        }
        Ok(link.mtu)
    }

    fn address_of(&mut self, link: &str) -> Result<Option<Ipv4Addr>, HostError> {
        self.links.address_of(link).map_err(|error| refused(&error))
    }

    fn check_filter(&mut self) -> Result<(), HostError> {
        nft().map(drop)
    }

    fn filter(&mut self, change: &FilterChange) -> Result<(), HostError> {
        let program = nft()?;
        let mut command = std::process::Command::new(program);
        command.args(["-f", "-"]);
        let text = change.to_nft();
        let ended =
            storage_host::run_with_input(program, &mut command, text.as_bytes(), NFT_SECONDS)?;
        match ended.status {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                let first = ended.words.lines().next().unwrap_or_default();
                let ending = storage_host::ending(status);
                Err(HostError::Refused(format!("nft {ending}: {first}")))
            }
            None => Err(HostError::Refused(format!("nft did not end within {NFT_SECONDS} s"))),
        }
    }

    fn links(&mut self) -> Result<Vec<HostLink>, HostError> {
        crate::links::all(Path::new(crate::links::FOLDER)).map_err(|error| refusal(&error))
    }

    fn ovsdb(&mut self, request: &str) -> Result<String, HostError> {
        let path = OVSDB.into_iter().find(|path| Path::new(path).exists());
        exchange(path.ok_or(HostError::Missing)?, request)
    }
}

/// Sends a request and returns the first whole value of JSON that comes.
fn exchange(path: &str, request: &str) -> Result<String, HostError> {
    let told = |error: std::io::Error| HostError::Refused(format!("{path}: {error}"));
    // Nobody listens at the socket of a server that has ended.
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => HostError::Missing,
        _ => refusal(&error),
    })?;
    stream.set_read_timeout(Some(OVSDB_TIME)).map_err(told)?;
    stream.set_write_timeout(Some(OVSDB_TIME)).map_err(told)?;
    stream.write_all(request.as_bytes()).map_err(told)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !is_whole(&answer) {
        let read = match stream.read(&mut buffer) {
            Ok(0) => return Err(HostError::Refused(format!("{path}: closed without an answer"))),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.map_err(told)?,
        };
        answer.extend_from_slice(&buffer[..read]);
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(HostError::Refused(format!("{path}: an answer without end")));
        }
    }
    String::from_utf8(answer).map_err(|error| HostError::Refused(format!("{path}: {error}")))
}

/// Whether this is one object of JSON: nothing follows it, as we ask for one thing only.
fn is_whole(bytes: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth == 0 && !in_string && bytes.contains(&b'}')
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_answer_in_pieces_is_read_to_its_end() {
        let path = std::env::temp_dir().join(format!("xylemd-ovsdb-{}", std::process::id()));
        let _earlier = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 7];
            stream.read_exact(&mut request).unwrap();
            for piece in ["{\"a\":\"}", "\\\"", "\",\"b\":{}", "}"] {
                stream.write_all(piece.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            request
        });
        let answer = exchange(path.to_str().unwrap(), "{\"q\":1}").unwrap();
        assert_eq!(answer, "{\"a\":\"}\\\"\",\"b\":{}}");
        assert_eq!(&server.join().unwrap(), b"{\"q\":1}");
        // Nobody listens there any more, once no child that another test has just forked has the listener as well.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while exchange(path.to_str().unwrap(), "{}") != Err(HostError::Missing) {
            assert!(std::time::Instant::now() < deadline, "somebody still listens");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(exchange(path.to_str().unwrap(), "{}"), Err(HostError::Missing));
    }
}
