//! What domains send and receive through the backends of the daemon's own domain.

use std::collections::BTreeMap;

use api::TrafficRow;
use storage::System;

/// Of the kernel: counters of network interfaces, and a folder for each backend.
const NET: &str = "/proc/net/dev";
const BACKENDS: &str = "/sys/bus/xen-backend/devices";

/// A row for each domain with such a device. What cannot be read counts nothing.
pub(crate) fn traffic(system: &mut dyn System) -> Vec<TrafficRow> {
    let mut rows = BTreeMap::new();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    add_networks(&mut rows, &system.read(NET).map(text).unwrap_or_default());
    for device in system.list(BACKENDS).unwrap_or_default() {
        let domid = device.strip_prefix("vbd-").and_then(|it| it.split_once('-')?.0.parse().ok());
        let Some(domid) = domid else { continue };
        let mut count = |name: &str| {
            let read = system.read(&format!("{BACKENDS}/{device}/statistics/{name}"));
            read.ok().and_then(|it| text(it).trim().parse::<u64>().ok()).unwrap_or_default()
        };
        let row = row_of(&mut rows, domid);
        row.vbds += 1;
        row.out_of_requests += count("oo_req");
        row.reads += count("rd_req");
        row.writes += count("wr_req");
        row.sectors_read += count("rd_sect");
        row.sectors_written += count("wr_sect");
    }
    rows.into_values().collect()
}

fn row_of(rows: &mut BTreeMap<u16, TrafficRow>, domid: u16) -> &mut TrafficRow {
    rows.entry(domid).or_insert_with(|| TrafficRow { domid, ..TrafficRow::default() })
}

/// Parses `/proc/net/dev`. What the host receives on `vif3.0` was sent by domain 3.
fn add_networks(rows: &mut BTreeMap<u16, TrafficRow>, text: &str) {
    for line in text.lines() {
        let Some((interface, counts)) = line.split_once(':') else { continue };
        let vif = interface.trim().strip_prefix("vif").and_then(|rest| rest.split_once('.'));
        let Some(domid) = vif.and_then(|(domid, _)| domid.parse().ok()) else { continue };
        let counts: Vec<u64> =
            counts.split_whitespace().map(|word| word.parse().unwrap_or_default()).collect();
        let row = row_of(rows, domid);
        row.nets += 1;
        row.sent_bytes += counts.first().copied().unwrap_or_default();
        row.received_bytes += counts.get(8).copied().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_and_disks_are_counted_as_the_kernel_tells() {
        let host = sim::SimHost::boot(sim::HostConfig::default());
        let os = host.os();
        let net = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 1 2 3\n\
                   vif7.0:  4096  1 0 0 0 0 0 0 2048 9 0 0 0 0 0 0\nvif7.1: 4096 0 0 0 0 0 0 0 0 0\n";
        os.add_file(NET, net.as_bytes().to_vec());
        for (device, count) in [("vbd-3-51712", 1), ("vbd-3-51728", 2), ("vif-3-0", 4)] {
            for name in ["oo_req", "rd_req", "wr_req", "rd_sect", "wr_sect"] {
                let path = format!("{BACKENDS}/{device}/statistics/{name}");
                os.add_file(&path, format!("{count}\n").into_bytes());
            }
        }
        let disks = TrafficRow {
            domid: 3,
            vbds: 2,
            out_of_requests: 3,
            reads: 3,
            writes: 3,
            sectors_read: 3,
            sectors_written: 3,
            ..TrafficRow::default()
        };
        let (nets, sent_bytes, received_bytes) = (2, 8192, 2048);
        let networks =
            TrafficRow { domid: 7, nets, sent_bytes, received_bytes, ..TrafficRow::default() };
        assert_eq!(traffic(&mut os.clone()), [disks, networks]);
    }
}
