//! The machine as a whole: its console, CPUs, NUMA nodes, pools, schedulers, heap and features.
//!
//! Source: `xen/include/public/sysctl.h`.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::abi::{Layout, sysctl, u16_at, u32_at, u64_at};
use crate::{BitSet, DomId, Errno, Hypervisor, Op, PciAddress, Scheduler, Xen};

/// Bytes of the hypervisor's console, and the position of the next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConsoleText {
    pub bytes: Vec<u8>,
    /// Pass it to the next [`Xen::console`] to read only what is new.
    pub next: u32,
}

/// A performance counter of the hypervisor, with a value for each CPU or slot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PerfCounter {
    pub name: String,
    pub values: Vec<u32>,
}

/// A CPU's core, socket and node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CpuPlace {
    pub core: u32,
    pub socket: u32,
    pub node: u32,
}

/// A NUMA node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NumaNode {
    pub bytes: u64,
    pub bytes_free: u64,
    /// To each node, itself included.
    pub distances: Vec<u32>,
}

/// A pool's CPUs and its scheduler.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CpuPool {
    pub id: u32,
    pub scheduler_id: u32,
    pub domains: u32,
    pub cpus: BitSet,
}

/// Parameters of a pool's scheduler.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SchedTuning {
    Credit { timeslice_ms: u32, ratelimit_us: u32, migration_delay_us: u32 },
    Credit2 { ratelimit_us: u32 },
}

/// A CPU's idle times by C-state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IdleStates {
    pub idle_ns: u64,
    pub last: u32,
    /// Entries and nanoseconds of each state.
    pub states: Vec<(u64, u64)>,
}

impl<H: Hypervisor> Xen<H> {
    /// Bytes of the hypervisor's console from `next` on (0 at first). The buffer is not cleared, so
    /// any number of readers can follow it.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn console(&mut self, next: u32) -> Result<ConsoleText, Errno> {
        self.read_console(next, false)
    }

    /// As [`Xen::console`], and what was read is removed for other readers.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn take_console(&mut self, next: u32) -> Result<ConsoleText, Errno> {
        self.read_console(next, true)
    }

    fn read_console(&mut self, next: u32, clear: bool) -> Result<ConsoleText, Errno> {
        let (address, area) = self.data();
        let room = u32::try_from(area.len()).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<24>::new()
            .bytes(0, &[u8::from(clear), u8::from(next > 0)])
            .u32(4, next)
            .u64(8, address)
            .u32(16, room)
            .done();
        self.sysctl("readconsole", sysctl::READCONSOLE, &payload)?;
        let payload = self.sysctl_payload();
        let (next, used) = (u32_at(payload, 4), u32_at(payload, 16) as usize);
        let (_, area) = self.data();
        Ok(ConsoleText { bytes: area.get(..used).ok_or(Errno::E2BIG)?.to_vec(), next })
    }

    /// Sends debug keys to the hypervisor (`xl debug-keys`).
    ///
    /// # Errors
    /// E2BIG for more keys than fit into the arena.
    pub fn debug_keys(&mut self, keys: &[u8]) -> Result<(), Errno> {
        let address = self.put_data(keys)?;
        let count = u32::try_from(keys.len()).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<16>::new().u64(0, address).u32(8, count).done();
        self.sysctl("debug_keys", sysctl::DEBUG_KEYS, &payload).map(drop)
    }

    /// The hypervisor's performance counters. Two hypercalls; the first queries the number.
    ///
    /// # Errors
    /// ENOSYS if Xen was built without them.
    pub fn perf_counters(&mut self) -> Result<Vec<PerfCounter>, Errno> {
        const QUERY: u32 = 2;
        const NAME_BYTES: usize = 80;
        const DESC_BYTES: usize = NAME_BYTES + 4;
        let ask = Layout::<32>::new().u32(0, QUERY).done();
        self.sysctl("perfc_op", sysctl::PERFC_OP, &ask)?;
        let payload = self.sysctl_payload();
        let (counters, values) = (u32_at(payload, 4) as usize, u32_at(payload, 8) as usize);
        let values_at = counters * DESC_BYTES;
        let (address, area) = self.data_to_end();
        if values_at + values * 4 > area.len() {
            return Err(Errno::E2BIG);
        }
        let fill = Layout::<32>::new()
            .u32(0, QUERY)
            .u64(16, address)
            .u64(24, address + values_at as u64)
            .done();
        self.sysctl("perfc_op", sysctl::PERFC_OP, &fill)?;
        let (_, area) = self.data_to_end();
        let mut at = values_at;
        let mut found = Vec::with_capacity(counters);
        for desc in area[..values_at].chunks_exact(DESC_BYTES) {
            let name = &desc[..NAME_BYTES];
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
            let bytes = 4 * u32_at(desc, NAME_BYTES) as usize;
            let values = area.get(at..at + bytes).ok_or(Errno::E2BIG)?;
            at += bytes;
            found.push(PerfCounter {
                name: String::from_utf8_lossy(&name[..end]).into_owned(),
                values: values.chunks_exact(4).map(|word| u32_at(word, 0)).collect(),
            });
        }
        Ok(found)
    }

    /// Nanoseconds that each CPU has idled since boot.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn cpu_idle_ns(&mut self) -> Result<Vec<u64>, Errno> {
        const CPUS_MAX: u32 = 4096;
        let (address, _) = self.data();
        let payload = Layout::<24>::new().u32(0, CPUS_MAX).u64(8, address).done();
        self.sysctl("getcpuinfo", sysctl::GETCPUINFO, &payload)?;
        let found = u32_at(self.sysctl_payload(), 16).min(CPUS_MAX) as usize;
        let (_, area) = self.data();
        Ok(crate::xen::words(&area[..found * 8]))
    }

    /// Bytes of free memory at addresses of `bits_min` to `bits_max` bits (0: any), of one node or all.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn free_heap(
        &mut self,
        bits_min: u32,
        bits_max: u32,
        node: Option<u32>,
    ) -> Result<u64, Errno> {
        let node = match node {
            Some(node) => i32::try_from(node).map_err(|_| Errno::EINVAL)?,
            None => -1,
        };
        let payload = Layout::<24>::new().u32(0, bits_min).u32(4, bits_max).i32(8, node).done();
        self.sysctl("availheap", sysctl::AVAILHEAP, &payload)?;
        Ok(u64_at(self.sysctl_payload(), 16))
    }

    /// Each CPU's place; `None` for one that is absent. Two hypercalls; the first queries the
    /// number.
    ///
    /// # Errors
    /// E2BIG if the answer does not fit into the arena.
    pub fn cpu_places(&mut self) -> Result<Vec<Option<CpuPlace>>, Errno> {
        const PLACE_BYTES: usize = 12;
        /// `XEN_INVALID_CORE_ID` and its like.
        const NONE: u32 = u32::MAX;
        self.sysctl("cputopoinfo", sysctl::CPUTOPOINFO, &[0; 16])?;
        let cpus = u32_at(self.sysctl_payload(), 0);
        let address = self.put_data(&vec![0; cpus as usize * PLACE_BYTES])?;
        let payload = Layout::<16>::new().u32(0, cpus).u64(8, address).done();
        self.sysctl("cputopoinfo", sysctl::CPUTOPOINFO, &payload)?;
        let found = u32_at(self.sysctl_payload(), 0).min(cpus) as usize;
        let (_, area) = self.data();
        let places = area[..found * PLACE_BYTES].chunks_exact(PLACE_BYTES);
        Ok(places
            .map(|bytes| {
                let place = CpuPlace {
                    core: u32_at(bytes, 0),
                    socket: u32_at(bytes, 4),
                    node: u32_at(bytes, 8),
                };
                (place.core != NONE).then_some(place)
            })
            .collect())
    }

    /// The machine's NUMA nodes. Two hypercalls; the first queries the number.
    ///
    /// # Errors
    /// E2BIG if the answer does not fit into the arena.
    pub fn numa_nodes(&mut self) -> Result<Vec<NumaNode>, Errno> {
        self.sysctl("numainfo", sysctl::NUMAINFO, &[0; 24])?;
        let most = u32_at(self.sysctl_payload(), 0) as usize;
        let address = self.put_data(&vec![0; most * 16 + most * most * 4])?;
        let payload = Layout::<24>::new()
            .u32(0, u32::try_from(most).map_err(|_| Errno::E2BIG)?)
            .u64(8, address)
            .u64(16, address + most as u64 * 16)
            .done();
        self.sysctl("numainfo", sysctl::NUMAINFO, &payload)?;
        // Rows of distances have the length of the returned number of nodes, not the requested one.
        let found = (u32_at(self.sysctl_payload(), 0) as usize).min(most);
        let (_, area) = self.data();
        let distances = &area[most * 16..most * 16 + found * found * 4];
        Ok((0..found)
            .map(|node| NumaNode {
                bytes: u64_at(area, node * 16),
                bytes_free: u64_at(area, node * 16 + 8),
                distances: (0..found)
                    .map(|to| u32_at(distances, (node * found + to) * 4))
                    .collect(),
            })
            .collect())
    }

    /// The NUMA node of each PCI device; `None` if it is unknown.
    ///
    /// # Errors
    /// ENODEV if the first device is unknown to the hypervisor, E2BIG for more than fit into the arena.
    pub fn pci_nodes(&mut self, devices: &[PciAddress]) -> Result<Vec<Option<u32>>, Errno> {
        /// `XEN_INVALID_NODE_ID` and `XEN_INVALID_DEV`.
        const INVALID: u32 = u32::MAX - 1;
        let mut bytes: Vec<u8> = devices
            .iter()
            .flat_map(|device| {
                let [devfn, bus, segment @ ..] = device.0.to_le_bytes();
                let segment = u16::from_le_bytes(segment).to_ne_bytes();
                [segment[0], segment[1], bus, devfn]
            })
            .collect();
        let nodes_at = bytes.len();
        bytes.resize(nodes_at * 2, 0xff);
        let address = self.put_data(&bytes)?;
        let payload = Layout::<24>::new()
            .u32(0, u32::try_from(devices.len()).map_err(|_| Errno::E2BIG)?)
            .u64(8, address)
            .u64(16, address + nodes_at as u64)
            .done();
        self.sysctl("pcitopoinfo", sysctl::PCITOPOINFO, &payload)?;
        let (_, area) = self.data();
        let nodes = area[nodes_at..nodes_at * 2].chunks_exact(4).map(|word| u32_at(word, 0));
        Ok(nodes.map(|node| (node < INVALID).then_some(node)).collect())
    }

    /// A CPU's idle times by C-state.
    ///
    /// # Errors
    /// ENODEV or EINVAL where the hypervisor does not manage idle states, EINVAL for no such CPU.
    pub fn idle_states(&mut self, cpu: u32) -> Result<IdleStates, Errno> {
        const GET_MAX: u32 = 0x21;
        const GET: u32 = 0x22;
        let ask = Layout::<64>::new().u32(0, GET_MAX).u32(4, cpu).done();
        self.sysctl("get_pmstat", sysctl::GET_PMSTAT, &ask)?;
        let states = u32_at(self.sysctl_payload(), 8) as usize;
        let address = self.put_data(&vec![0; states * 16])?;
        let payload = Layout::<64>::new()
            .u32(0, GET)
            .u32(4, cpu)
            .u32(8, u32::try_from(states).map_err(|_| Errno::E2BIG)?)
            .u64(24, address)
            .u64(32, address + states as u64 * 8)
            .done();
        self.sysctl("get_pmstat", sysctl::GET_PMSTAT, &payload)?;
        let payload = self.sysctl_payload();
        let (last, idle_ns) = (u32_at(payload, 12), u64_at(payload, 16));
        let (_, area) = self.data();
        let words = crate::xen::words(&area[..states * 16]);
        let (entries, residencies) = words.split_at(states);
        let states = entries.iter().copied().zip(residencies.iter().copied()).collect();
        Ok(IdleStates { idle_ns, last, states })
    }

    fn cpupool(&mut self, op: u32, pool: u32, fields: &[(usize, u32)]) -> Result<(), Errno> {
        let address = self.put_data(&[0; BitSet::BYTES])?;
        let mut payload =
            Layout::<40>::new().u32(0, op).u32(4, pool).u64(24, address).u32(32, BitSet::BITS);
        for (offset, value) in fields {
            payload = payload.u32(*offset, *value);
        }
        self.sysctl("cpupool_op", sysctl::CPUPOOL_OP, &payload.done()).map(drop)
    }

    /// The first CPU pool whose number is not below `from`, if there is one.
    ///
    /// # Errors
    /// Any errno of the hypercall but ENOENT.
    pub fn cpupool_from(&mut self, from: u32) -> Result<Option<CpuPool>, Errno> {
        const INFO: u32 = 3;
        match self.cpupool(INFO, from, &[]) {
            Ok(()) => {}
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let payload = self.sysctl_payload();
        let (id, scheduler_id, domains) =
            (u32_at(payload, 4), u32_at(payload, 8), u32_at(payload, 20));
        let (_, area) = self.data();
        let cpus = BitSet::from_bytes(&area[..BitSet::BYTES]);
        Ok(Some(CpuPool { id, scheduler_id, domains, cpus }))
    }

    /// CPUs that are in no pool.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn free_cpus(&mut self) -> Result<BitSet, Errno> {
        const FREEINFO: u32 = 7;
        self.cpupool(FREEINFO, 0, &[])?;
        let (_, area) = self.data();
        Ok(BitSet::from_bytes(&area[..BitSet::BYTES]))
    }

    /// Creates an empty CPU pool and returns its number.
    ///
    /// # Errors
    /// EEXIST for a number in use, EINVAL for a scheduler that is not built in.
    pub fn create_cpupool(
        &mut self,
        number: Option<u32>,
        scheduler: Scheduler,
    ) -> Result<u32, Errno> {
        const CREATE: u32 = 1;
        self.cpupool(CREATE, number.unwrap_or(u32::MAX), &[(8, scheduler as u32)])?;
        Ok(u32_at(self.sysctl_payload(), 4))
    }

    /// Removes a CPU pool.
    ///
    /// # Errors
    /// EBUSY while it has CPUs or domains, ENOENT.
    pub fn destroy_cpupool(&mut self, pool: u32) -> Result<(), Errno> {
        const DESTROY: u32 = 2;
        self.cpupool(DESTROY, pool, &[])
    }

    /// Adds a free CPU to a pool.
    ///
    /// # Errors
    /// ENODEV for a CPU that is not free, ENOENT.
    pub fn add_cpu_to_pool(&mut self, pool: u32, cpu: u32) -> Result<(), Errno> {
        const ADD_CPU: u32 = 4;
        self.cpupool(ADD_CPU, pool, &[(16, cpu)])
    }

    /// Takes a CPU out of a pool.
    ///
    /// # Errors
    /// EBUSY for the last one of a pool with domains, EAGAIN to be tried again, ENODEV, ENOENT.
    pub fn remove_cpu_from_pool(&mut self, pool: u32, cpu: u32) -> Result<(), Errno> {
        const REMOVE_CPU: u32 = 5;
        self.cpupool(REMOVE_CPU, pool, &[(16, cpu)])
    }

    /// Moves a domain to another pool.
    ///
    /// # Errors
    /// EPERM for the caller's own, ESRCH; ENOENT for no such pool, or one without CPUs.
    pub fn move_domain_to_pool(&mut self, pool: u32, domid: DomId) -> Result<(), Errno> {
        const MOVE_DOMAIN: u32 = 6;
        self.cpupool(MOVE_DOMAIN, pool, &[(12, domid.0.into())])
    }

    /// The parameters of a pool's scheduler.
    ///
    /// # Errors
    /// EINVAL if it is another scheduler or has no settings, ENOENT or ESRCH for no such pool.
    pub fn sched_tuning(&mut self, pool: u32, scheduler: Scheduler) -> Result<SchedTuning, Errno> {
        const GETINFO: u32 = 1;
        let payload =
            Layout::<32>::new().u32(0, pool).u32(4, scheduler as u32).u32(8, GETINFO).done();
        self.sysctl("scheduler_op_host", sysctl::SCHEDULER_OP, &payload)?;
        let payload = self.sysctl_payload();
        let word = |at: usize| u32_at(payload, 16 + 4 * at);
        match scheduler {
            Scheduler::Credit => Ok(SchedTuning::Credit {
                timeslice_ms: word(0),
                ratelimit_us: word(1),
                migration_delay_us: word(2),
            }),
            Scheduler::Credit2 => Ok(SchedTuning::Credit2 { ratelimit_us: word(0) }),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Sets the parameters of a pool's scheduler.
    ///
    /// # Errors
    /// EINVAL for a value out of range, or if it is another scheduler.
    pub fn set_sched_tuning(&mut self, pool: u32, tuning: SchedTuning) -> Result<(), Errno> {
        let payload = Layout::<32>::new().u32(0, pool);
        let payload = match tuning {
            SchedTuning::Credit { timeslice_ms, ratelimit_us, migration_delay_us } => payload
                .u32(4, Scheduler::Credit as u32)
                .u32(16, timeslice_ms)
                .u32(20, ratelimit_us)
                .u32(24, migration_delay_us),
            SchedTuning::Credit2 { ratelimit_us } => {
                payload.u32(4, Scheduler::Credit2 as u32).u32(16, ratelimit_us)
            }
        };
        self.sysctl("scheduler_op_host", sysctl::SCHEDULER_OP, &payload.done()).map(drop)
    }

    /// A word of `XENVER_get_features`, as the caller's domain sees it.
    ///
    /// # Errors
    /// EINVAL for a word that does not exist.
    pub fn features(&mut self, word: u32) -> Result<u32, Errno> {
        const GET_FEATURES: u64 = 6;
        let argument = Layout::<8>::new().u32(0, word).done();
        self.call_with("xen_version", Op::Version, GET_FEATURES, &argument)?;
        Ok(u32_at(self.argument(8), 4))
    }

    /// What a port of a domain is connected to.
    ///
    /// # Errors
    /// EINVAL for a number beyond the last, ESRCH.
    pub fn channel_status(
        &mut self,
        domid: DomId,
        port: crate::EvtchnPort,
    ) -> Result<ChannelStatus, Errno> {
        const EVTCHNOP_STATUS: u64 = 5;
        let argument = Layout::<24>::new().u16(0, domid.0).u32(4, port.0).done();
        self.call_with("evtchn_status", Op::EventChannel, EVTCHNOP_STATUS, &argument)?;
        let bytes = self.argument(24);
        let (domain, word) = (DomId(u16_at(bytes, 16)), u32_at(bytes, 16));
        Ok(match u32_at(bytes, 8) {
            0 => ChannelStatus::Closed,
            1 => ChannelStatus::Unbound { remote: domain },
            2 => ChannelStatus::Interdomain {
                remote: domain,
                port: crate::EvtchnPort(u32_at(bytes, 20)),
            },
            3 => ChannelStatus::Pirq(word),
            4 => ChannelStatus::Virq(word),
            5 => ChannelStatus::Ipi,
            _ => return Err(Errno::EINVAL),
        })
    }

    /// Closes one of the caller's own ports, which must not be in use by its kernel.
    ///
    /// # Errors
    /// EINVAL if it is free.
    pub fn close_channel(&mut self, port: crate::EvtchnPort) -> Result<(), Errno> {
        const EVTCHNOP_CLOSE: u64 = 3;
        let argument = port.0.to_ne_bytes();
        self.call_with("evtchn_close", Op::EventChannel, EVTCHNOP_CLOSE, &argument).map(drop)
    }

    /// Closes all event channels of a domain.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn reset_channels(&mut self, domid: DomId) -> Result<(), Errno> {
        const EVTCHNOP_RESET: u64 = 10;
        let argument = domid.0.to_ne_bytes();
        self.call_with("evtchn_reset", Op::EventChannel, EVTCHNOP_RESET, &argument).map(drop)
    }
}

/// What an event channel port is connected to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChannelStatus {
    Closed,
    Unbound { remote: DomId },
    Interdomain { remote: DomId, port: crate::EvtchnPort },
    Pirq(u32),
    Virq(u32),
    Ipi,
}
