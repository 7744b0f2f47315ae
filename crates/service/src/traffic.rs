//! What Linux says of the devices of its backends, as [`api::Traffic`]. Whoever reads its files is handed in.
//!
//! What dom0 receives on a guest's interface is what the guest has sent, and the other way round. Sources: Linux
//! `drivers/block/xen-blkback/xenbus.c`, `drivers/net/xen-netback/interface.c`, `net/core/net-procfs.c`.

use std::collections::BTreeMap;

use api::{DiskTraffic, Traffic, VifTraffic};
use toolstack::xlcfg::vdev_name;

/// Folders of the backends' devices, each with the names of a kind, a domain and a device.
pub const DEVICES: &str = "/sys/bus/xen-backend/devices";

/// All interfaces, in one read.
pub const INTERFACES: &str = "/proc/net/dev";

/// Devices of each kind that are counted.
const DEVICES_MAX: usize = 16384;

const SECTOR_BYTES: u64 = 512;

/// A place to read from.
pub trait Counters {
    /// The number in a file of the device's folder; 0 of one that is there no more.
    fn number(&mut self, device: &str, file: &str) -> u64;

    /// The interface of a device that has another name than usual.
    fn interface(&mut self, device: &str) -> Option<String>;
}

/// One direction of an interface.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    bytes: u64,
    packets: u64,
    dropped: u64,
}

impl Way {
    fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            packets: self.packets.saturating_add(other.packets),
            dropped: self.dropped.saturating_add(other.dropped),
        }
    }
}

/// What dom0 has received and sent on an interface.
type Ways = (Way, Way);

/// The lines of `/proc/net/dev` by their interface.
fn interfaces(text: &str) -> BTreeMap<&str, Ways> {
    let line = |line: &'_ str| -> Option<(usize, Ways)> {
        let colon = line.rfind(':')?;
        let numbers: Vec<u64> = line[colon + 1..]
            .split_ascii_whitespace()
            .map(|word| word.parse().unwrap_or_default())
            .collect();
        // Bytes, packets, errors, dropped and four more; then the same of what was sent.
        let way = |from: usize| -> Option<Way> {
            let [bytes, packets, _, dropped] = *numbers.get(from..from + 4)? else { return None };
            Some(Way { bytes, packets, dropped })
        };
        Some((colon, (way(0)?, way(8)?)))
    };
    text.lines().filter_map(|it| line(it).map(|(colon, ways)| (it[..colon].trim(), ways))).collect()
}

/// Kind, domain and number of a backend's device: `vbd-3-51712`.
fn device(name: &str) -> Option<(&str, u16, u32)> {
    let mut parts = name.split('-');
    let found = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(found)
}

/// Counts the devices of these names, whose interfaces are in the text of `/proc/net/dev`.
#[must_use]
pub fn traffic<'a>(
    names: impl Iterator<Item = &'a str>,
    net: &str,
    from: &mut dyn Counters,
) -> Traffic {
    let interfaces = interfaces(net);
    let mut devices: Vec<_> = names.filter_map(|name| Some((device(name)?, name))).collect();
    devices.sort_unstable();
    let of = |wanted: &'static str| {
        let is_wanted = move |((kind, ..), _): &&((&str, u16, u32), &str)| *kind == wanted;
        devices.iter().filter(is_wanted).take(DEVICES_MAX)
    };
    let mut traffic = Traffic::default();
    for ((_, domid, vdev), name) in of("vbd") {
        let mut number = |file| from.number(name, file);
        traffic.disks.push(DiskTraffic {
            domid: *domid,
            device: vdev_name(*vdev),
            reads: number("rd_req"),
            writes: number("wr_req"),
            read_bytes: number("rd_sect").saturating_mul(SECTOR_BYTES),
            written_bytes: number("wr_sect").saturating_mul(SECTOR_BYTES),
            out_of_requests: number("oo_req"),
        });
    }
    for ((_, domid, devid), name) in of("vif") {
        let usual = format!("vif{domid}.{devid}");
        let found = match interfaces.contains_key(&*usual) {
            true => Some(usual),
            false => from.interface(name),
        };
        let Some(interface) = found else { continue };
        // An HVM guest without drivers uses its device model's until it has some.
        let both = [interfaces.get(&*interface), interfaces.get(&*format!("{interface}-emu"))];
        let ways = both.into_iter().flatten().copied().reduce(|a, b| (a.0.and(b.0), a.1.and(b.1)));
        let Some((sent, received)) = ways else { continue };
        traffic.vifs.push(VifTraffic {
            domid: *domid,
            devid: *devid,
            received_bytes: received.bytes,
            received_packets: received.packets,
            received_dropped: received.dropped,
            sent_bytes: sent.bytes,
            sent_packets: sent.packets,
            sent_dropped: sent.dropped,
        });
    }
    traffic
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices whose files have the length of their own names.
    struct Fake;

    impl Counters for Fake {
        fn number(&mut self, device: &str, file: &str) -> u64 {
            assert!(device.starts_with("vbd-"));
            match file {
                "rd_req" => 1,
                "wr_req" => 2,
                "rd_sect" => 8,
                "wr_sect" => 16,
                "oo_req" => 3,
                other => panic!("{other}"),
            }
        }

        fn interface(&mut self, device: &str) -> Option<String> {
            (device == "vif-4-0").then(|| "lan".to_owned())
        }
    }

    const NET: &str = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  144    2    0    0    0     0          0         0      144       2    0    0    0     0       0          0
vif3.0: 1000   10    0    1    0     0          0         0     2000      20    0    5    0     0       0          0
vif3.0-emu: 100 1    0    0    0     0          0         0      200       2    0    0    0     0       0          0
 vif3.1:short 1
   lan:    7    1    0    0    0     0          0         0        8       1    0    0    0     0       0          0
vif9.0:    1    1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
eth0:1:    1    1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
";

    #[test]
    fn what_dom0_receives_was_sent_by_the_guest() {
        let names = [
            "vif-3-0",
            "vif-4-0",
            "vif-3-1",
            "vbd-10-51712",
            "vbd-3-51728",
            "vbd-3-51712",
            "pci-3-0",
            "vbd-x-1",
        ];
        let traffic = traffic(names.into_iter(), NET, &mut Fake);
        let disks: Vec<_> = traffic.disks.iter().map(|it| (it.domid, it.device.as_str())).collect();
        assert_eq!(disks, [(3, "xvda"), (3, "xvdb"), (10, "xvda")]);
        let expected = DiskTraffic {
            domid: 3,
            device: "xvda".to_owned(),
            reads: 1,
            writes: 2,
            read_bytes: 4096,
            written_bytes: 8192,
            out_of_requests: 3,
        };
        assert_eq!(traffic.disks[0], expected);
        let both = VifTraffic {
            domid: 3,
            received_bytes: 2200,
            received_packets: 22,
            received_dropped: 5,
            sent_bytes: 1100,
            sent_packets: 11,
            sent_dropped: 1,
            ..VifTraffic::default()
        };
        let renamed = VifTraffic {
            domid: 4,
            received_bytes: 8,
            received_packets: 1,
            sent_bytes: 7,
            sent_packets: 1,
            ..VifTraffic::default()
        };
        // An interface without a backend's device is nobody's.
        assert_eq!(traffic.vifs, [both, renamed]);
    }

    #[test]
    fn more_devices_than_that_are_not_counted() {
        let names: Vec<_> = (0..20_000).map(|it| format!("vbd-{}-51712", it + 1)).collect();
        let traffic = traffic(names.iter().map(String::as_str), "", &mut Fake);
        assert_eq!(traffic.disks.len(), DEVICES_MAX);
    }
}
