//! The interfaces of this host, as `/sys/class/net` has them.
//!
//! It is read every few seconds while somebody follows, with an interface for each of a thousand VMs: of these no more is
//! read than their names, or, if they have other ones, what device they belong to.

use std::fs;
use std::io;
use std::path::Path;

use toolstack::around::{HostLink, is_of_domain};

pub(crate) const FOLDER: &str = "/sys/class/net";
/// Somebody who makes interfaces without end does not keep us from other work.
const LINKS_MAX: usize = 4096;

/// All of them, without the ends of domains'.
pub(crate) fn all(folder: &Path) -> io::Result<Vec<HostLink>> {
    let mut links = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|it| !is_of_domain(it)) else { continue };
        links.extend(link(&folder.join(name), name));
        if links.len() == LINKS_MAX {
            break;
        }
    }
    links.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(links)
}

/// One; `None` of the end of a domain's, and of what is gone meanwhile.
fn link(path: &Path, name: &str) -> Option<HostLink> {
    let target = |of: &str| {
        let target = fs::read_link(path.join(of)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    };
    // A backend's device is called `vif-DOMID-DEVID`, whatever the name of its interface.
    if target("device").is_some_and(|it| it.starts_with("vif-")) {
        return None;
    }
    let number = |of: &str| {
        let text = fs::read_to_string(path.join(of)).ok()?;
        let text = text.trim();
        text.strip_prefix("0x")
            .map_or_else(|| text.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok())
    };
    /// `IFF_UP` of netdevice(7).
    const UP: u32 = 1;
    let flags = number("flags")?;
    Some(HostLink {
        name: name.to_owned(),
        is_bridge: path.join("bridge").is_dir(),
        master: target("master"),
        mtu: number("mtu"),
        is_up: flags & UP != 0,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn interfaces_are_read_with_what_they_are_ports_of() {
        let folder = std::env::temp_dir().join(format!("xylemd-links-{}", std::process::id()));
        let _earlier = fs::remove_dir_all(&folder);
        let make = |name: &str, flags: &str| {
            let path = folder.join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("mtu"), "9000\n").unwrap();
            fs::write(path.join("flags"), flags).unwrap();
            path
        };
        fs::create_dir(make("xenbr0", "0x1003\n").join("bridge")).unwrap();
        symlink("../xenbr0", make("eth0", "0x1002\n").join("master")).unwrap();
        make("vif3.0", "0x1003\n");
        symlink("../../../vif-4-0", make("inside", "0x1003\n").join("device")).unwrap();
        // Not an interface, or one that is going.
        fs::write(folder.join("bonding_masters"), "").unwrap();
        let found = all(&folder).unwrap();
        let port = HostLink {
            name: "eth0".to_owned(),
            is_bridge: false,
            master: Some("xenbr0".to_owned()),
            mtu: Some(9000),
            is_up: false,
        };
        let bridge = HostLink {
            name: "xenbr0".to_owned(),
            is_bridge: true,
            master: None,
            is_up: true,
            ..port.clone()
        };
        assert_eq!(found, [port, bridge]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(all(&folder).is_err());
    }
}
