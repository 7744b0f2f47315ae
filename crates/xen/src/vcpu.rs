//! vCPUs: where they run, what their registers hold, how they are scheduled.
//!
//! Source: `xen/include/public/domctl.h`.

use alloc::vec;
use alloc::vec::Vec;

use crate::abi::{Layout, domctl, u16_at, u32_at, u64_at};
use crate::{BitSet, DomId, Errno, Hypervisor, Xen};

/// `struct vcpu_guest_context` of x86_64.
const CONTEXT_BYTES: usize = 5168;

/// A vCPU's hard and soft affinity.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Affinity {
    pub hard: BitSet,
    pub soft: BitSet,
}

/// New affinities; `None` leaves one unchanged.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AffinityChange {
    pub hard: Option<BitSet>,
    pub soft: Option<BitSet>,
    /// Ends a pinning by the domain's own kernel first.
    pub is_forced: bool,
}

/// Schedulers, by `XEN_SCHEDULER_*`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum Scheduler {
    Credit = 5,
    Credit2 = 6,
    Arinc653 = 7,
    Rtds = 8,
    Null = 9,
}

impl Scheduler {
    /// The scheduler of that number, if it is one.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        [Self::Credit, Self::Credit2, Self::Arinc653, Self::Rtds, Self::Null]
            .into_iter()
            .find(|scheduler| *scheduler as u32 == id)
    }
}

/// A domain's or vCPU's share of the CPUs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SchedParams {
    /// `cap` is in percent of one CPU; 0 is none.
    Credit {
        weight: u16,
        cap: u16,
    },
    Credit2 {
        weight: u16,
        cap: u16,
    },
    /// `budget_us` of every `period_us`; `extra` is [`SchedParams::RTDS_EXTRA`] or 0.
    Rtds {
        period_us: u32,
        budget_us: u32,
        extra: u32,
    },
}

impl SchedParams {
    /// The vCPU may run beyond its budget while CPUs are idle.
    pub const RTDS_EXTRA: u32 = 1;

    #[must_use]
    pub fn scheduler(self) -> Scheduler {
        match self {
            Self::Credit { .. } => Scheduler::Credit,
            Self::Credit2 { .. } => Scheduler::Credit2,
            Self::Rtds { .. } => Scheduler::Rtds,
        }
    }

    /// The same with another weight or cap, where its scheduler has them.
    #[must_use]
    pub fn with_share(mut self, weight: Option<u16>, cap: Option<u16>) -> Self {
        if let Self::Credit { weight: w, cap: c } | Self::Credit2 { weight: w, cap: c } = &mut self
        {
            *w = weight.unwrap_or(*w);
            *c = cap.unwrap_or(*c);
        }
        self
    }

    fn encode(self) -> [u8; 12] {
        match self {
            Self::Credit { weight, cap } | Self::Credit2 { weight, cap } => {
                Layout::<12>::new().u16(0, weight).u16(2, cap).done()
            }
            Self::Rtds { period_us, budget_us, extra } => {
                Layout::<12>::new().u32(0, period_us).u32(4, budget_us).u32(8, extra).done()
            }
        }
    }

    fn decode(scheduler: Scheduler, bytes: &[u8]) -> Option<Self> {
        let (weight, cap) = (u16_at(bytes, 0), u16_at(bytes, 2));
        match scheduler {
            Scheduler::Credit => Some(Self::Credit { weight, cap }),
            Scheduler::Credit2 => Some(Self::Credit2 { weight, cap }),
            Scheduler::Rtds => Some(Self::Rtds {
                period_us: u32_at(bytes, 0),
                budget_us: u32_at(bytes, 4),
                extra: u32_at(bytes, 8),
            }),
            Scheduler::Arinc653 | Scheduler::Null => None,
        }
    }
}

/// A PV vCPU's extended context: entry points for 32-bit calls, and machine check banks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ExtVcpuContext {
    pub syscall32_eip: u64,
    pub sysenter_eip: u64,
    pub syscall32_cs: u16,
    pub sysenter_cs: u16,
    pub syscall32_disables_events: u8,
    pub sysenter_disables_events: u8,
    pub mcg_cap: u64,
    pub mci_ctl2: [u64; 2],
    pub mcg_ext_ctl: u64,
}

/// The extended processor state of a PV vCPU.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ExtState {
    /// `XCR0` bits that the processor has.
    pub features: u64,
    /// Empty on a processor without XSAVE.
    pub bytes: Vec<u8>,
}

/// A model specific register and its value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Msr {
    pub index: u32,
    pub value: u64,
}

impl<H: Hypervisor> Xen<H> {
    /// A vCPU's affinities, as they were set.
    ///
    /// # Errors
    /// EINVAL for a number beyond the last, ESRCH before the vCPUs exist.
    pub fn vcpu_affinity(&mut self, domid: DomId, vcpu: u32) -> Result<Affinity, Errno> {
        let change = AffinityChange {
            hard: Some(BitSet::default()),
            soft: Some(BitSet::default()),
            is_forced: false,
        };
        self.affinity_call("getvcpuaffinity", domctl::GETVCPUAFFINITY, domid, vcpu, &change)
    }

    /// Changes a vCPU's affinities. Returns the effective sets: without the CPUs of other pools
    /// (and, for the soft one, without those outside the hard one); a set that was not changed is
    /// empty.
    ///
    /// # Errors
    /// EINVAL if no CPU would be left, ESRCH before the vCPUs exist.
    pub fn set_vcpu_affinity(
        &mut self,
        domid: DomId,
        vcpu: u32,
        change: &AffinityChange,
    ) -> Result<Affinity, Errno> {
        self.affinity_call("setvcpuaffinity", domctl::SETVCPUAFFINITY, domid, vcpu, change)
    }

    fn affinity_call(
        &mut self,
        name: &'static str,
        cmd: u32,
        domid: DomId,
        vcpu: u32,
        change: &AffinityChange,
    ) -> Result<Affinity, Errno> {
        const HARD: u32 = 1;
        const SOFT: u32 = 2;
        const FORCE: u32 = 4;
        let mut bitmaps = [0; 2 * BitSet::BYTES];
        let mut flags = if change.is_forced { FORCE } else { 0 };
        for (at, flag, set) in [(0, HARD, &change.hard), (BitSet::BYTES, SOFT, &change.soft)] {
            if let Some(set) = set {
                flags |= flag;
                bitmaps[at..at + BitSet::BYTES].copy_from_slice(&set.bytes());
            }
        }
        let address = self.put_data(&bitmaps)?;
        let payload = Layout::<40>::new()
            .u32(0, vcpu)
            .u32(4, flags)
            .u64(8, address)
            .u32(16, BitSet::BITS)
            .u64(24, address + BitSet::BYTES as u64)
            .u32(32, BitSet::BITS)
            .done();
        self.domctl(name, cmd, domid, &payload)?;
        let (_, area) = self.data();
        let read = |at: usize, flag: u32| match flags & flag {
            0 => BitSet::default(),
            _ => BitSet::from_bytes(&area[at..at + BitSet::BYTES]),
        };
        Ok(Affinity { hard: read(0, HARD), soft: read(BitSet::BYTES, SOFT) })
    }

    /// NUMA nodes that a domain's memory comes from first.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn node_affinity(&mut self, domid: DomId) -> Result<BitSet, Errno> {
        self.node_affinity_call("getnodeaffinity", domctl::GETNODEAFFINITY, domid, None)
    }

    /// Sets the NUMA nodes that a domain's memory shall come from first.
    ///
    /// # Errors
    /// EINVAL for a set without an online node.
    pub fn set_node_affinity(&mut self, domid: DomId, nodes: &BitSet) -> Result<(), Errno> {
        self.node_affinity_call("setnodeaffinity", domctl::SETNODEAFFINITY, domid, Some(nodes))
            .map(drop)
    }

    fn node_affinity_call(
        &mut self,
        name: &'static str,
        cmd: u32,
        domid: DomId,
        nodes: Option<&BitSet>,
    ) -> Result<BitSet, Errno> {
        let bytes = nodes.map_or([0; BitSet::BYTES], BitSet::bytes);
        let address = self.put_data(&bytes)?;
        let payload = Layout::<16>::new().u64(0, address).u32(8, BitSet::BITS).done();
        self.domctl(name, cmd, domid, &payload)?;
        let (_, area) = self.data();
        Ok(BitSet::from_bytes(&area[..BitSet::BYTES]))
    }

    /// A vCPU's register state: `struct vcpu_guest_context`, 5168 bytes.
    ///
    /// # Errors
    /// ENODATA if none was ever set, ESRCH for no such vCPU.
    pub fn vcpu_context(&mut self, domid: DomId, vcpu: u32) -> Result<Vec<u8>, Errno> {
        let address = self.put_data(&[0; CONTEXT_BYTES])?;
        let payload = Layout::<16>::new().u32(0, vcpu).u64(8, address).done();
        self.domctl("getvcpucontext", domctl::GETVCPUCONTEXT, domid, &payload)?;
        let (_, area) = self.data();
        Ok(area[..CONTEXT_BYTES].to_vec())
    }

    /// Resets a vCPU to its state before a context was set.
    ///
    /// # Errors
    /// EINVAL for no such vCPU, ESRCH.
    pub fn reset_vcpu(&mut self, domid: DomId, vcpu: u32) -> Result<(), Errno> {
        let payload = Layout::<16>::new().u32(0, vcpu).done();
        self.domctl("setvcpucontext", domctl::SETVCPUCONTEXT, domid, &payload).map(drop)
    }

    /// A vCPU's extended context.
    ///
    /// # Errors
    /// ESRCH for no such vCPU.
    pub fn ext_vcpu_context(&mut self, domid: DomId, vcpu: u32) -> Result<ExtVcpuContext, Errno> {
        let payload = Layout::<64>::new().u32(0, vcpu).done();
        self.domctl("get_ext_vcpucontext", domctl::GET_EXT_VCPUCONTEXT, domid, &payload)?;
        let payload = self.domctl_payload();
        Ok(ExtVcpuContext {
            syscall32_eip: u64_at(payload, 8),
            sysenter_eip: u64_at(payload, 16),
            syscall32_cs: u16_at(payload, 24),
            sysenter_cs: u16_at(payload, 26),
            syscall32_disables_events: payload[28],
            sysenter_disables_events: payload[29],
            mcg_cap: u64_at(payload, 32),
            mci_ctl2: [u64_at(payload, 40), u64_at(payload, 48)],
            mcg_ext_ctl: u64_at(payload, 56),
        })
    }

    /// A vCPU's extended context as Xen lays it out (`struct xen_domctl_ext_vcpucontext`), for
    /// [`Xen::set_ext_vcpu_bytes`]; empty if it has none.
    ///
    /// # Errors
    /// ESRCH for no such vCPU.
    pub fn ext_vcpu_bytes(&mut self, domid: DomId, vcpu: u32) -> Result<Vec<u8>, Errno> {
        let payload = Layout::<64>::new().u32(0, vcpu).done();
        self.domctl("get_ext_vcpucontext", domctl::GET_EXT_VCPUCONTEXT, domid, &payload)?;
        let payload = self.domctl_payload();
        let bytes = (u32_at(payload, 4) as usize).min(payload.len());
        Ok(payload[..bytes].to_vec())
    }

    /// Sets what [`Xen::ext_vcpu_bytes`] read, maybe of another vCPU.
    ///
    /// # Errors
    /// As for [`Xen::set_ext_vcpu_context`]; E2BIG for more than 128 bytes, EINVAL for less than 8.
    pub fn set_ext_vcpu_bytes(
        &mut self,
        domid: DomId,
        vcpu: u32,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        const BYTES_MAX: usize = 128;
        if bytes.len() < 8 {
            return Err(Errno::EINVAL);
        }
        if bytes.len() > BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let size = u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<BYTES_MAX>::new().bytes(0, bytes).u32(0, vcpu).u32(4, size).done();
        self.domctl("set_ext_vcpucontext", domctl::SET_EXT_VCPUCONTEXT, domid, &payload).map(drop)
    }

    /// Sets a vCPU's extended context.
    ///
    /// # Errors
    /// EINVAL for entry points outside the guest's address space, ESRCH for no such vCPU.
    pub fn set_ext_vcpu_context(
        &mut self,
        domid: DomId,
        vcpu: u32,
        context: &ExtVcpuContext,
    ) -> Result<(), Errno> {
        let payload = Layout::<64>::new()
            .u32(0, vcpu)
            .u32(4, 64)
            .u64(8, context.syscall32_eip)
            .u64(16, context.sysenter_eip)
            .u16(24, context.syscall32_cs)
            .u16(26, context.sysenter_cs)
            .bytes(28, &[context.syscall32_disables_events, context.sysenter_disables_events])
            .u64(32, context.mcg_cap)
            .u64(40, context.mci_ctl2[0])
            .u64(48, context.mci_ctl2[1])
            .u64(56, context.mcg_ext_ctl)
            .done();
        self.domctl("set_ext_vcpucontext", domctl::SET_EXT_VCPUCONTEXT, domid, &payload).map(drop)
    }

    /// A PV vCPU's extended processor state. Two hypercalls; the first queries the size.
    ///
    /// # Errors
    /// ESRCH for no such vCPU, E2BIG if the state does not fit into the arena.
    pub fn ext_state(&mut self, domid: DomId, vcpu: u32) -> Result<ExtState, Errno> {
        let ask = Layout::<32>::new().u32(0, vcpu).done();
        self.domctl("getvcpuextstate", domctl::GETVCPUEXTSTATE, domid, &ask)?;
        let payload = self.domctl_payload();
        let (features, size) = (u64_at(payload, 8), u64_at(payload, 16));
        if size == 0 {
            return Ok(ExtState { features, bytes: Vec::new() });
        }
        let bytes = usize::try_from(size).map_err(|_| Errno::E2BIG)?;
        if bytes > Self::DATA_BYTES {
            return Err(Errno::E2BIG);
        }
        let (address, _) = self.data();
        let fill =
            Layout::<32>::new().u32(0, vcpu).u64(8, features).u64(16, size).u64(24, address).done();
        self.domctl("getvcpuextstate", domctl::GETVCPUEXTSTATE, domid, &fill)?;
        let (_, area) = self.data();
        Ok(ExtState { features, bytes: area[..bytes].to_vec() })
    }

    /// Loads a PV vCPU's extended processor state.
    ///
    /// # Errors
    /// EINVAL for a state that the processor does not have.
    pub fn set_ext_state(
        &mut self,
        domid: DomId,
        vcpu: u32,
        state: &ExtState,
    ) -> Result<(), Errno> {
        let address = self.put_data(&state.bytes)?;
        let payload = Layout::<32>::new()
            .u32(0, vcpu)
            .u64(8, state.features)
            .u64(16, state.bytes.len() as u64)
            .u64(24, address)
            .done();
        self.domctl("setvcpuextstate", domctl::SETVCPUEXTSTATE, domid, &payload).map(drop)
    }

    /// A PV vCPU's model specific registers, for migration. Two hypercalls; the first queries their
    /// number.
    ///
    /// # Errors
    /// EINVAL for no such vCPU.
    pub fn vcpu_msrs(&mut self, domid: DomId, vcpu: u32) -> Result<Vec<Msr>, Errno> {
        const ENTRY_BYTES: usize = 16;
        let ask = Layout::<16>::new().u32(0, vcpu).done();
        self.domctl("get_vcpu_msrs", domctl::GET_VCPU_MSRS, domid, &ask)?;
        let most = u32_at(self.domctl_payload(), 4);
        let address = self.put_data(&vec![0; most as usize * ENTRY_BYTES])?;
        let fill = Layout::<16>::new().u32(0, vcpu).u32(4, most).u64(8, address).done();
        self.domctl("get_vcpu_msrs", domctl::GET_VCPU_MSRS, domid, &fill)?;
        let found = u32_at(self.domctl_payload(), 4).min(most) as usize;
        let (_, area) = self.data();
        let entries = area[..found * ENTRY_BYTES].chunks_exact(ENTRY_BYTES);
        Ok(entries.map(|entry| Msr { index: u32_at(entry, 0), value: u64_at(entry, 8) }).collect())
    }

    /// Loads model specific registers of a PV vCPU.
    ///
    /// # Errors
    /// EINVAL for a register or value that Xen does not accept.
    pub fn set_vcpu_msrs(&mut self, domid: DomId, vcpu: u32, msrs: &[Msr]) -> Result<(), Errno> {
        let bytes: Vec<u8> = msrs
            .iter()
            .flat_map(|msr| Layout::<16>::new().u32(0, msr.index).u64(8, msr.value).done())
            .collect();
        let address = self.put_data(&bytes)?;
        let count = u32::try_from(msrs.len()).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<16>::new().u32(0, vcpu).u32(4, count).u64(8, address).done();
        self.domctl("set_vcpu_msrs", domctl::SET_VCPU_MSRS, domid, &payload).map(drop)
    }

    /// A domain's share of the CPUs, under the scheduler of its pool.
    ///
    /// # Errors
    /// EINVAL if its pool has another scheduler, or one without shares.
    pub fn sched_params(
        &mut self,
        domid: DomId,
        scheduler: Scheduler,
    ) -> Result<SchedParams, Errno> {
        const GETINFO: u32 = 1;
        let payload = Layout::<24>::new().u32(0, scheduler as u32).u32(4, GETINFO).done();
        self.domctl("scheduler_op", domctl::SCHEDULER_OP, domid, &payload)?;
        let payload = self.domctl_payload();
        SchedParams::decode(scheduler, &payload[8..20]).ok_or(Errno::EINVAL)
    }

    /// Sets a domain's share of the CPUs.
    ///
    /// # Errors
    /// EINVAL if its pool has another scheduler, or for a share out of range.
    pub fn set_sched_params(&mut self, domid: DomId, params: SchedParams) -> Result<(), Errno> {
        const PUTINFO: u32 = 0;
        let payload = Layout::<24>::new()
            .u32(0, params.scheduler() as u32)
            .u32(4, PUTINFO)
            .bytes(8, &params.encode())
            .done();
        self.domctl("scheduler_op", domctl::SCHEDULER_OP, domid, &payload).map(drop)
    }

    /// Budgets of single vCPUs, under the real-time scheduler.
    ///
    /// # Errors
    /// EINVAL under another scheduler, or for no such vCPU.
    pub fn rtds_vcpus(&mut self, domid: DomId, vcpus: &[u32]) -> Result<Vec<SchedParams>, Errno> {
        const GETVCPUINFO: u32 = 3;
        let blank = [0; 12];
        let asked: Vec<([u8; 12], u32)> = vcpus.iter().map(|vcpu| (blank, *vcpu)).collect();
        self.rtds_call(domid, GETVCPUINFO, &asked)?;
        let (_, area) = self.data();
        area[..vcpus.len() * 16]
            .chunks_exact(16)
            .map(|entry| SchedParams::decode(Scheduler::Rtds, entry).ok_or(Errno::EINVAL))
            .collect()
    }

    /// Sets the budgets of single vCPUs, under the real-time scheduler.
    ///
    /// # Errors
    /// EINVAL under another scheduler, for no such vCPU, or for a budget out of range.
    pub fn set_rtds_vcpus(
        &mut self,
        domid: DomId,
        vcpus: &[(u32, SchedParams)],
    ) -> Result<(), Errno> {
        const PUTVCPUINFO: u32 = 2;
        let given: Vec<([u8; 12], u32)> =
            vcpus.iter().map(|(vcpu, params)| (params.encode(), *vcpu)).collect();
        self.rtds_call(domid, PUTVCPUINFO, &given)
    }

    fn rtds_call(
        &mut self,
        domid: DomId,
        cmd: u32,
        vcpus: &[([u8; 12], u32)],
    ) -> Result<(), Errno> {
        let bytes: Vec<u8> = vcpus
            .iter()
            .flat_map(|(params, vcpu)| Layout::<16>::new().bytes(0, params).u32(12, *vcpu).done())
            .collect();
        let address = self.put_data(&bytes)?;
        let count = u32::try_from(vcpus.len()).map_err(|_| Errno::E2BIG)?;
        let payload = Layout::<24>::new()
            .u32(0, Scheduler::Rtds as u32)
            .u32(4, cmd)
            .u64(8, address)
            .u32(16, count)
            .done();
        self.domctl("scheduler_op", domctl::SCHEDULER_OP, domid, &payload).map(drop)
    }
}
