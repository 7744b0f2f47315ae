//! The hypercall entry: finds out what is asked for, counts it, lets a fault strike, dispatches.

use xen::{DomId, Errno, Op};

use super::SimXen;
use crate::bytes::{index, put_u64, u16_at, u32_at, u64_at};

/// The caller's memory that hypercalls may point into.
pub(super) struct Arena<'a> {
    pub(super) address: u64,
    pub(super) bytes: &'a mut [u8],
}

impl Arena<'_> {
    /// The bytes at an address, as `copy_from_guest` would see them.
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

/// How long the shortest hypercall takes, in nanoseconds.
const CALL_NS: u64 = 900;

impl SimXen {
    /// One hypercall of `caller`.
    pub(super) fn hypercall(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        op: Op,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        self.settle();
        let name = name(arena, op, args)?;
        *self.calls.entry(name).or_default() += 1;
        self.spend(CALL_NS);
        if let Some(errno) = self.faults.strike(name) {
            self.trace.note(self.now, format_args!("fault: {name} fails with {errno:?}"));
            return Err(errno);
        }
        if let Some(domid) = self.acted_on(arena, op, args)? {
            self.judge(name, domid);
        }
        let result = self.dispatch(caller, arena, op, args);
        if let (Ok(_), "createdomain") = (&result, name) {
            self.mean_new(DomId(u16_at(arena.get(args[0], DOMCTL_BYTES)?, 8)));
        }
        match &result {
            Ok(value) => self.trace.detail(self.now, format_args!("{name} = {value}")),
            Err(errno) => self.trace.detail(self.now, format_args!("{name} = -{errno:?}")),
        }
        self.settle();
        result
    }

    /// One hypercall of the store daemon, which is not counted among the toolstack's and meets no fault.
    pub(super) fn hypercall_of_store(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        op: Op,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        self.spend(CALL_NS);
        self.dispatch(caller, arena, op, args)
    }

    fn dispatch(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        op: Op,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        match op {
            Op::Version => self.version_op(arena, args),
            Op::Domctl => self.domctl(caller, arena, args[0]),
            Op::Sysctl => self.sysctl(caller, arena, args[0]),
            Op::Memory => self.memory_op(caller, arena, args),
            Op::Mmuext => self.mmuext_op(caller, arena, args),
            Op::EventChannel => self.event_channel_op(caller, arena, args),
            Op::Hvm => self.hvm_op(caller, arena, args),
            Op::Sched => self.sched_op(caller, arena, args),
            Op::Multicall => self.multicall(caller, arena, args),
            Op::Physdev => self.physdev_op(caller, arena, args),
            Op::GrantTable | Op::Dm | Op::Hypfs => Err(Errno::ENOSYS),
        }
    }

    /// `HYPERVISOR_multicall`: each entry has its own result.
    fn multicall(
        &mut self,
        caller: DomId,
        arena: &mut Arena<'_>,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        const ENTRY_BYTES: u64 = 64;
        for i in 0..args[1] {
            let at = args[0].checked_add(i * ENTRY_BYTES).ok_or(Errno::EFAULT)?;
            let entry = arena.get(at, index(ENTRY_BYTES))?;
            let op = op_by_number(u64_at(entry, 0));
            let sub_args = core::array::from_fn(|k| u64_at(entry, 16 + 8 * k));
            let result = match op {
                Some(Op::Multicall) => Err(Errno::EINVAL),
                Some(op) => self.hypercall(caller, arena, op, sub_args),
                None => Err(Errno::ENOSYS),
            };
            let word = match result {
                Ok(value) => value,
                Err(errno) => i64::from(-errno.0).cast_unsigned(),
            };
            put_u64(arena.get_mut(at, index(ENTRY_BYTES))?, 8, word);
        }
        Ok(0)
    }

    /// The domain that a call acts on, or reads something of; the calls that tell who is there name nobody.
    fn acted_on(&self, arena: &Arena<'_>, op: Op, args: [u64; 5]) -> Result<Option<DomId>, Errno> {
        let at = |address: u64, offset: u64| Ok(DomId(u16_at(arena.get(address + offset, 2)?, 0)));
        Ok(match (op, args[0]) {
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
    ]
    .into_iter()
    .find(|op| *op as u64 == number)
}

/// The name that counters and fault plans use, as [`xen::Counters`] spells it.
fn name(arena: &Arena<'_>, op: Op, args: [u64; 5]) -> Result<&'static str, Errno> {
    Ok(match (op, args[0]) {
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
        (Op::Hypfs, _) => "hypfs_op",
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
        22 => "pcitopoinfo",
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
