//! Rates of disks and interfaces, from counters that begin anew when a device is plugged or its VM boots.

use std::collections::{BTreeMap, BTreeSet};

use api::Traffic;

use crate::ring::Ring;
use crate::text::number;

/// Devices of a VM with a history. Of more, those that are gone for longest are forgotten.
const OF_A_VM_MAX: usize = 32;
/// Of all VMs.
pub(crate) const DEVICES_MAX: usize = 8192;

/// A device of a domain.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Device {
    /// By its name, such as `xvda`.
    Disk(String),
    Vif(u32),
}

impl Device {
    /// Of its two rates, as XAPI calls them: what the guest reads or receives, and writes or sends.
    fn names(&self) -> [String; 2] {
        match self {
            Self::Disk(name) => [format!("vbd_{name}_read"), format!("vbd_{name}_write")],
            Self::Vif(devid) => [format!("vif_{devid}_rx"), format!("vif_{devid}_tx")],
        }
    }
}

/// Bytes in and out: counted, or in a second.
type Pair<T> = (T, T);

/// Devices with their rates, where these are known.
pub(crate) type DeviceRates = Vec<(Device, Option<Pair<f64>>)>;

/// What counters said, by domain and device.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    at_ns: u64,
    bytes: BTreeMap<(u16, Device), Pair<u64>>,
}

impl Counted {
    pub(crate) fn new(traffic: &Traffic, at_ns: u64) -> Self {
        let disk = |it: &api::DiskTraffic| {
            ((it.domid, Device::Disk(it.device.clone())), (it.read_bytes, it.written_bytes))
        };
        let vif = |it: &api::VifTraffic| {
            ((it.domid, Device::Vif(it.devid)), (it.received_bytes, it.sent_bytes))
        };
        let bytes = traffic.disks.iter().map(disk).chain(traffic.vifs.iter().map(vif)).collect();
        Self { at_ns, bytes }
    }

    /// Of each device, and its rates since `before`, if that can be said: not of one that was not there, nor of one whose
    /// counters have begun anew.
    pub(crate) fn rates(&self, before: &Self, at_most_ns: u64) -> BTreeMap<u16, DeviceRates> {
        let elapsed_ns = self.at_ns.saturating_sub(before.at_ns);
        let is_near = (1..=at_most_ns).contains(&elapsed_ns);
        let per_second = |bytes: u64| number(bytes) * 1e9 / number(elapsed_ns);
        let mut rates: BTreeMap<u16, DeviceRates> = BTreeMap::new();
        for ((domid, device), (read, written)) in &self.bytes {
            let since = || {
                let (read_then, written_then) =
                    before.bytes.get(&(*domid, device.clone())).filter(|_| is_near)?;
                let (read, written) =
                    (read.checked_sub(*read_then)?, written.checked_sub(*written_then)?);
                Some((per_second(read), per_second(written)))
            };
            rates.entry(*domid).or_default().push((device.clone(), since()));
        }
        rates
    }
}

#[derive(Debug)]
struct Rates {
    input: Ring,
    output: Ring,
    seen_s: u64,
}

/// The rates of a VM's devices.
#[derive(Debug, Default)]
pub(crate) struct Devices(BTreeMap<Device, Rates>);

impl Devices {
    pub(crate) const BYTES_EACH: usize = 2 * Ring::BYTES + 128;

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Takes in the rates at a time. `room` is for how many devices more there is room.
    pub(crate) fn put(&mut self, now_s: u64, rates: DeviceRates, room: &mut usize) {
        let there: BTreeSet<Device> = rates.iter().map(|(device, _)| device.clone()).collect();
        for (device, rate) in rates {
            if !self.0.contains_key(&device) {
                if self.0.len() >= OF_A_VM_MAX && self.forget_one(&there) {
                    *room += 1;
                }
                if self.0.len() >= OF_A_VM_MAX || *room == 0 {
                    continue;
                }
                *room -= 1;
            }
            let new = || Rates { input: Ring::new(), output: Ring::new(), seen_s: now_s };
            let kept = self.0.entry(device).or_insert_with(new);
            kept.seen_s = now_s;
            if let Some((input, output)) = rate {
                kept.input.put(now_s, input);
                kept.output.put(now_s, output);
            }
        }
    }

    /// Forgets the one that is gone for longest, if any is.
    fn forget_one(&mut self, there: &BTreeSet<Device>) -> bool {
        let gone = self.0.iter().filter(|(device, _)| !there.contains(device));
        let longest = gone.min_by_key(|(_, it)| it.seen_s).map(|(device, _)| device.clone());
        longest.is_some_and(|device| self.0.remove(&device).is_some())
    }

    /// Forgets those that were seen too long ago.
    pub(crate) fn forget(&mut self, now_s: u64, gone_s: u64) {
        self.0.retain(|_, it| now_s.abs_diff(it.seen_s) <= gone_s);
    }

    pub(crate) fn rings(&self) -> impl Iterator<Item = (String, &Ring)> {
        self.0.iter().flat_map(|(device, it)| {
            let [input, output] = device.names();
            [(input, &it.input), (output, &it.output)]
        })
    }
}
