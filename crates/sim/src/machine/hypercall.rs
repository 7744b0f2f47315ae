//! The hypercall entry: decodes, counts, injects faults, dispatches.

use xen::{DomId, Errno, Op};

use super::SimXen;
use crate::bytes::{index, put_u64, u16_at, u32_at, u64_at};

/// The caller's memory that hypercalls may point into.
pub(super) struct Arena<'a> {
    pub(super) address: u64,
    pub(super) bytes: &'a mut [u8],
}

impl Arena<'_> {
    /// The bytes at an address, as by `copy_from_guest`.
    pub(super) fn get(&self, address: u64, bytes: usize) -> Result<&[u8], Errno> {
        let start = index(address.checked_sub(self.address).ok_or(Errno::EFAULT)?);
        let end = start.checked_add(bytes).ok_or(Errno::EFAULT)?;
        self.bytes.get(start..end).ok_or(Errno::EFAULT)
    }

    pub(super) fn get_mut(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], Errno> {
        let start = index(address.checked_sub(self.address).ok_or(Errno::EFAULT)?);
        let end = start.checked_add(bytes).ok_or(Errno::EFAULT)?;
        self.bytes.get_mut(start..end).ok_or(Errno::EFAULT)
    }
}

pub(super) const DOMCTL_BYTES: usize = 144;
pub(super) const SYSCTL_BYTES: usize = 136;

/// Duration of the shortest hypercall, in nanoseconds.
const CALL_NS: u64 = 900;

/// Xen's internal error for a preempted call, never returned to a caller.
pub(super) const ERESTART: Errno = Errno(85);

/// The bits of a memory op's number; those above are the extent at which a preempted one continues.
pub(super) const MEMORY_OP_MASK: u64 = 0x3f;
const MEMORY_OP_BITS: u32 = 6;

/// A hypercall in progress. Preemption changes its arguments, so that it continues where it
/// stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    op: Op,
    pub(super) args: [u64; 5],
    /// It continues after preemption.
    pub(super) goes_on: bool,
    /// So does the current entry of a multicall.
    entry_goes_on: bool,
}

impl Call {
    pub(super) fn new(op: Op, args: [u64; 5]) -> Self {
        Self { op, args, goes_on: false, entry_goes_on: false }
    }

    /// The extent at which a memory op begins or continues.
    pub(super) fn extent_first(&self) -> u64 {
        self.args[0] >> MEMORY_OP_BITS
    }

    /// Makes a memory op continue at this extent.
    pub(super) fn go_on_at(&mut self, extent: u64) -> Errno {
        self.args[0] = self.args[0] & MEMORY_OP_MASK | extent << MEMORY_OP_BITS;
        ERESTART
    }
}

/// Progress of a hypercall.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Progress {
    Done(Result<u64, Errno>),
    /// It will continue with its current arguments.
    Preempted,
}

impl SimXen {
    /// Runs a hypercall of `caller` until it is done or preempted.
    pub(super) fn hypercall(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        call: &mut Call,
    ) -> Progress {
        match self.hypercall_named(caller, arena, call) {
            Err(ERESTART) => {
                call.goes_on = true;
                Progress::Preempted
            }
            result => Progress::Done(result),
        }
    }

    fn hypercall_named(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        call: &mut Call,
    ) -> Result<u64, Errno> {
        self.settle();
        let name = name(arena, call.op, call.args)?;
        if !call.goes_on {
            *self.calls.entry(name).or_default() += 1;
            self.spend(CALL_NS);
            if let Some(errno) = self.faults.strike(name) {
                self.trace.note(self.now, format_args!("fault: {name} fails with {errno:?}"));
                return Err(errno);
            }
        }
        // A continued call acts on the domain that has the domid then.
        if let Some(domid) = self.acted_on(arena, call.op, call.args)? {
            self.judge(name, domid);
        }
        let mut result = self.dispatch(caller, arena, call);
        if let (Ok(_), "createdomain") = (&result, name) {
            self.mean_new(DomId(u16_at(arena.get(call.args[0], DOMCTL_BYTES)?, 8)));
        }
        match &result {
            Ok(value) => self.trace.detail(self.now, format_args!("{name} = {value}")),
            Err(ERESTART) => {
                self.preemptions += 1;
                self.trace.detail(self.now, format_args!("{name} is preempted"));
            }
            Err(errno) => self.trace.detail(self.now, format_args!("{name} = -{errno:?}")),
        }
        if result.is_ok()
            && let Some(errno) = self.faults.strike_after(name)
        {
            self.trace.note(self.now, format_args!("fault: {name} is done and says {errno:?}"));
            result = Err(errno);
        }
        self.settle();
        result
    }

    /// Whether a long call is preempted here.
    pub(super) fn is_preempted(&mut self) -> bool {
        self.faults.preempts(&mut self.prng)
    }

    /// Runs a hypercall of the store daemon: not counted as the toolstack's, and without faults.
    pub(super) fn hypercall_of_store(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        call: &mut Call,
    ) -> Result<u64, Errno> {
        self.spend(CALL_NS);
        let result = self.dispatch(caller, arena, call);
        assert!(result != Err(ERESTART), "what the store asks for is short");
        result
    }

    fn dispatch(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        call: &mut Call,
    ) -> Result<u64, Errno> {
        self.goes_on = call.goes_on;
        let args = call.args;
        match call.op {
            Op::Version => self.version_op(arena, args),
            Op::Domctl => self.domctl(caller, arena, args[0]),
            Op::Sysctl => self.sysctl(caller, arena, args[0]),
            Op::Memory => self.memory_op(caller, arena, call),
            Op::Mmuext => self.mmuext_op(caller, arena, call),
            Op::EventChannel => self.event_channel_op(caller, arena, args),
            Op::Hvm => self.hvm_op(caller, arena, args),
            Op::Sched => self.sched_op(caller, arena, args),
            Op::Multicall => self.multicall(caller, arena, call),
            Op::Physdev => self.physdev_op(caller, arena, args),
            Op::Hypfs => self.hypfs_op(arena, args),
            Op::Xsm => self.xsm_op(arena, args[0]),
            Op::Platform => self.platform_op(arena, args[0]),
            Op::GrantTable | Op::Dm => Err(Errno::ENOSYS),
        }
    }

    /// `HYPERVISOR_multicall`: each entry has its own result. Others act between entries and where
    /// an entry is preempted.
    fn multicall(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        call: &mut Call,
    ) -> Result<u64, Errno> {
        const ENTRY_BYTES: u64 = 64;
        /// A debug build overwrites an entry's arguments with this.
        const SPENT: u8 = 0xaa;
        while call.args[1] > 0 {
            let at = call.args[0];
            let entry = arena.get(at, index(ENTRY_BYTES))?;
            let op = op_by_number(u64_at(entry, 0));
            let args = core::array::from_fn(|k| u64_at(entry, 16 + 8 * k));
            let result = match op {
                Some(Op::Multicall) => Err(Errno::EINVAL),
                Some(op) => {
                    let goes_on = std::mem::take(&mut call.entry_goes_on);
                    let mut inner = Call { goes_on, ..Call::new(op, args) };
                    match self.hypercall(caller, arena, &mut inner) {
                        Progress::Done(result) => result,
                        Progress::Preempted => {
                            // It continues from its entry's current arguments.
                            let entry = arena.get_mut(at, index(ENTRY_BYTES))?;
                            for (k, arg) in inner.args.into_iter().enumerate() {
                                put_u64(entry, 16 + 8 * k, arg);
                            }
                            call.entry_goes_on = true;
                            return Err(ERESTART);
                        }
                    }
                }
                None => Err(Errno::ENOSYS),
            };
            let word = match result {
                Ok(value) => value,
                Err(errno) => i64::from(-errno.0).cast_unsigned(),
            };
            let entry = arena.get_mut(at, index(ENTRY_BYTES))?;
            entry.fill(SPENT);
            put_u64(entry, 8, word);
            call.args[0] = at.checked_add(ENTRY_BYTES).ok_or(Errno::EFAULT)?;
            call.args[1] -= 1;
            if call.args[1] > 0 && self.is_preempted() {
                return Err(ERESTART);
            }
        }
        Ok(0)
    }

    /// The domain that a call acts on or reads; calls that enumerate domains have none.
    fn acted_on(&self, arena: &Arena<'_>, op: Op, args: [u64; 5]) -> Result<Option<DomId>, Errno> {
        let at = |address: u64, offset: u64| Ok(DomId(u16_at(arena.get(address + offset, 2)?, 0)));
        Ok(match (op, sub_op(op, args)) {
            (Op::Domctl, address) => {
                let cmd = u32_at(arena.get(address, 4)?, 0);
                if matches!(cmd, 1 | 5 | 90) { None } else { Some(at(address, 8)?) }
            }
            (Op::EventChannel, 6) | (Op::Hvm, 0 | 1) | (Op::Sched, 4) | (Op::Memory, 7 | 13) => {
                Some(at(args[1], 0)?)
            }
            (Op::Memory, 6 | 24) => Some(at(args[1], 24)?),
            (Op::Mmuext, _) => Some(DomId(u16::try_from(args[3]).unwrap_or(u16::MAX))),
            _ => None,
        })
    }

    fn event_channel_op(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        const CLOSE: u64 = 3;
        const SEND: u64 = 4;
        const STATUS: u64 = 5;
        const RESET: u64 = 10;
        const ALLOC_UNBOUND: u64 = 6;
        match args[0] {
            ALLOC_UNBOUND => {
                let argument = arena.get(args[1], 8)?;
                let itself = |domid| if domid == DomId::SELF.0 { caller } else { DomId(domid) };
                let (owner, remote) = (itself(u16_at(argument, 0)), itself(u16_at(argument, 2)));
                if owner != caller && caller != DomId::DOM0 {
                    return Err(Errno::EPERM);
                }
                let port = self.evtchn_alloc_unbound(owner, remote)?;
                arena.get_mut(args[1], 8)?[4..].copy_from_slice(&port.0.to_le_bytes());
                Ok(0)
            }
            CLOSE => {
                let port = xen::EvtchnPort(u32_at(arena.get(args[1], 4)?, 0));
                self.evtchn_close(caller, port).map(|()| 0)
            }
            SEND => {
                let port = xen::EvtchnPort(u32_at(arena.get(args[1], 4)?, 0));
                self.evtchn_send(caller, port).map(|()| 0)
            }
            STATUS => {
                let argument = arena.get(args[1], 24)?;
                let (domid, port) = (DomId(u16_at(argument, 0)), u32_at(argument, 4));
                let domid = if domid == DomId::SELF { caller } else { domid };
                let status = self.evtchn_status(domid, xen::EvtchnPort(port))?;
                arena.get_mut(args[1], 24)?[8..].copy_from_slice(&status);
                Ok(0)
            }
            RESET => {
                let domid = DomId(u16_at(arena.get(args[1], 2)?, 0));
                let domid = if domid == DomId::SELF { caller } else { domid };
                if domid != caller && caller != DomId::DOM0 {
                    return Err(Errno::EPERM);
                }
                if domid != caller && !self.live(domid)?.is_paused() {
                    return Err(Errno::EINVAL);
                }
                self.live(domid)?;
                self.close_all_ports(domid);
                Ok(0)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    fn sched_op(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        const REMOTE_SHUTDOWN: u64 = 4;
        if args[0] != REMOTE_SHUTDOWN {
            return Err(Errno::ENOSYS);
        }
        let argument = arena.get(args[1], 8)?;
        let (domid, reason) = (DomId(u16_at(argument, 0)), u32_at(argument, 4));
        let reason = u8::try_from(reason).map_err(|_| Errno::EINVAL)?;
        self.live(domid)?;
        if domid == caller || caller != DomId::DOM0 {
            return Err(Errno::EPERM);
        }
        self.shutdown_domain(domid, reason);
        Ok(0)
    }
}

/// The first argument, reduced to a memory op's number.
fn sub_op(op: Op, args: [u64; 5]) -> u64 {
    if op == Op::Memory { args[0] & MEMORY_OP_MASK } else { args[0] }
}

fn op_by_number(number: u64) -> Option<Op> {
    [
        Op::Memory,
        Op::Multicall,
        Op::Version,
        Op::GrantTable,
        Op::Mmuext,
        Op::Sched,
        Op::EventChannel,
        Op::Physdev,
        Op::Hvm,
        Op::Sysctl,
        Op::Domctl,
        Op::Dm,
        Op::Hypfs,
        Op::Xsm,
        Op::Platform,
    ]
    .into_iter()
    .find(|op| *op as u64 == number)
}

/// The name for counters and fault plans, as in [`xen::Counters`].
fn name(arena: &Arena<'_>, op: Op, args: [u64; 5]) -> Result<&'static str, Errno> {
    Ok(match (op, sub_op(op, args)) {
        (Op::Domctl, address) => domctl_name(u32_at(arena.get(address, DOMCTL_BYTES)?, 0)),
        (Op::Sysctl, address) => match u32_at(arena.get(address, SYSCTL_BYTES)?, 0) {
            3 => "physinfo",
            4 => "sched_id",
            6 => "getdomaininfolist",
            number => sysctl_name(number),
        },
        (Op::Version, _) => "xen_version",
        (Op::Memory, 1) => "decrease_reservation",
        (Op::Memory, 2) => "maximum_ram_page",
        (Op::Memory, 3 | 4) => "reservation",
        (Op::Memory, 14) => "maximum_gpfn",
        (Op::Memory, 15) => "remove_from_physmap",
        (Op::Memory, 18 | 19) => "sharing_pages",
        (Op::Memory, 23) => "add_to_physmap_batch",
        (Op::Memory, 27) => "reserved_device_memory_map",
        (Op::Memory, 28) => "acquire_resource",
        (Op::Memory, 6) => "populate_physmap",
        (Op::Memory, 7) => "add_to_physmap",
        (Op::Memory, 10) => "machine_memory_map",
        (Op::Memory, 13) => "set_memory_map",
        (Op::Memory, 24) => "claim_pages",
        (Op::Memory, _) => "memory_op",
        (Op::Mmuext, _) => "pin_table",
        (Op::Sched, 4) => "remote_shutdown",
        (Op::Sched, _) => "sched_op",
        (Op::EventChannel, 3) => "evtchn_close",
        (Op::EventChannel, 5) => "evtchn_status",
        (Op::EventChannel, 6) => "alloc_unbound",
        (Op::EventChannel, 10) => "evtchn_reset",
        (Op::EventChannel, _) => "event_channel_op",
        (Op::Hvm, 0) => "hvm_set_param",
        (Op::Hvm, 1) => "hvm_get_param",
        (Op::Hvm, _) => "hvm_op",
        (Op::Multicall, _) => "multicall",
        (Op::GrantTable, _) => "grant_table_op",
        (Op::Physdev, 13) => "map_pirq",
        (Op::Physdev, 14) => "unmap_pirq",
        (Op::Physdev, _) => "physdev_op",
        (Op::Dm, _) => "dm_op",
        (Op::Hypfs, 1) => "hypfs_read",
        (Op::Hypfs, 2) => "hypfs_write",
        (Op::Hypfs, _) => "hypfs_op",
        (Op::Xsm, _) => "flask_op",
        (Op::Platform, _) => "platform_op",
    })
}

fn sysctl_name(cmd: u32) -> &'static str {
    match cmd {
        1 => "readconsole",
        5 => "perfc_op",
        7 => "debug_keys",
        8 => "getcpuinfo",
        9 => "availheap",
        10 => "get_pmstat",
        16 => "cputopoinfo",
        17 => "numainfo",
        18 => "cpupool_op",
        19 => "scheduler_op_host",
        21 => "psr_cmt_op_host",
        22 => "pcitopoinfo",
        23 => "psr_alloc_host",
        26 => "get_cpu_featureset",
        29 => "get_cpu_policy_host",
        _ => "sysctl",
    }
}

fn domctl_name(cmd: u32) -> &'static str {
    match cmd {
        1 => "createdomain",
        2 => "destroydomain",
        3 => "pausedomain",
        4 => "unpausedomain",
        5 => "getdomaininfo",
        11 => "max_mem",
        12 => "setvcpucontext",
        13 => "getvcpucontext",
        14 => "getvcpuinfo",
        15 => "max_vcpus",
        17 => "setdomainhandle",
        22 => "hypercall_init",
        27 => "resumedomain",
        33 => "gethvmcontext",
        34 => "sethvmcontext",
        35 => "set_address_size",
        60 => "settscinfo",
        75 => "psr_cmt_op",
        78 => "psr_alloc",
        82 => "get_cpu_policy",
        83 => "set_cpu_policy",
        85 => "get_paging_mempool_size",
        86 => "set_paging_mempool_size",
        9 => "setvcpuaffinity",
        10 => "shadow_op",
        16 => "scheduler_op",
        18 => "setdebugging",
        19 => "irq_permission",
        20 => "iomem_permission",
        21 => "ioport_permission",
        24 => "settimeoffset",
        25 => "getvcpuaffinity",
        28 => "sendtrigger",
        29 => "subscribe",
        36 => "get_address_size",
        37 => "assign_device",
        38 => "bind_pt_irq",
        39 => "memory_mapping",
        40 => "ioport_mapping",
        42 => "set_ext_vcpucontext",
        43 => "get_ext_vcpucontext",
        45 => "test_assign_device",
        46 => "set_target",
        47 => "deassign_device",
        48 => "unbind_pt_irq",
        50 => "get_device_group",
        55 => "gethvmcontext_partial",
        59 => "gettscinfo",
        61 => "getpageframeinfo3",
        62 => "setvcpuextstate",
        63 => "getvcpuextstate",
        66 => "set_virq_handler",
        68 => "setnodeaffinity",
        69 => "getnodeaffinity",
        72 => "get_vcpu_msrs",
        73 => "set_vcpu_msrs",
        74 => "setvnumainfo",
        79 => "soft_reset",
        88 => "gsi_permission",
        90 => "get_domain_state",
        _ => "domctl",
    }
}
