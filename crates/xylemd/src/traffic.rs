//! The counters of this host's backends, read at most once a second however many ask.
//!
//! They are read by the thread of whoever asks, and no lock of the machine is held meanwhile.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::Traffic;
use service::traffic::{Counters, DEVICES, INTERFACES, traffic};

/// Counters of this age are as good as new ones.
const FRESH: Duration = Duration::from_secs(1);

/// The last counters, and when they were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backends(Arc<Mutex<Option<(Instant, Traffic)>>>);

impl Backends {
    pub(crate) fn traffic(&self) -> Traffic {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((when, traffic)) if when.elapsed() < FRESH => {
                let age_ns = u64::try_from(when.elapsed().as_nanos()).unwrap_or(u64::MAX);
                Traffic { age_ns, ..traffic.clone() }
            }
            _ => {
                let traffic = read(Path::new(DEVICES), Path::new(INTERFACES));
                *last = Some((Instant::now(), traffic.clone()));
                traffic
            }
        }
    }
}

/// The folder of the backends' devices.
struct Folder(PathBuf);

impl Counters for Folder {
    fn number(&mut self, device: &str, file: &str) -> u64 {
        // A disk is unplugged at any time.
        let path = self.0.join(device).join("statistics").join(file);
        small_number(&path).unwrap_or_default()
    }

    fn interface(&mut self, device: &str) -> Option<String> {
        let mut entries = fs::read_dir(self.0.join(device).join("net")).ok()?;
        entries.next()?.ok()?.file_name().into_string().ok()
    }
}

/// Of a file of sysfs: one read, without looking how long it is.
fn small_number(path: &Path) -> Option<u64> {
    let mut bytes = [0; 32];
    let length = File::open(path).ok()?.read(&mut bytes).ok()?;
    std::str::from_utf8(&bytes[..length]).ok()?.trim().parse().ok()
}

/// Nothing of a host without backends.
fn read(devices: &Path, interfaces: &Path) -> Traffic {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // The name of an interface is any bytes.
    let net = fs::read(interfaces).unwrap_or_default();
    let net = String::from_utf8_lossy(&net);
    traffic(names.iter().map(String::as_str), &net, &mut Folder(devices.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_has_them() {
        let folder = std::env::temp_dir().join(format!("xylemd-traffic-{}", std::process::id()));
        let devices = folder.join("devices");
        for (file, count) in
            [("rd_req", 1), ("wr_req", 2), ("rd_sect", 8), ("wr_sect", 16), ("oo_req", 0)]
        {
            let statistics = devices.join("vbd-3-51712/statistics");
            fs::create_dir_all(&statistics).unwrap();
            fs::write(statistics.join(file), format!("{count}\n")).unwrap();
        }
        fs::create_dir_all(devices.join("vif-3-0/net/lan")).unwrap();
        let net = folder.join("net");
        fs::write(&net, "lan: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n").unwrap();
        let traffic = read(&devices, &net);
        assert_eq!((traffic.disks[0].read_bytes, traffic.disks[0].writes), (4096, 2));
        assert_eq!((traffic.vifs[0].sent_bytes, traffic.vifs[0].received_bytes), (5, 6));
        // A disk that has just gone is of no use, and does no harm.
        fs::remove_dir_all(devices.join("vbd-3-51712/statistics")).unwrap();
        assert_eq!(read(&devices, &net).disks[0].reads, 0);
        assert_eq!(read(&folder.join("none"), &net), Traffic::default());
        fs::remove_dir_all(&folder).unwrap();
    }
}
