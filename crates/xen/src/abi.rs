//! Interface versions and byte layouts of the two versioned hypercalls, and a cursor over their bytes.
//!
//! All layouts are x86_64's and identical from Xen 4.17 to 4.22 but for createdomain, which grew
//! by four bytes at domctl 0x17. Sources: `xen/include/public/domctl.h`, `sysctl.h`.

/// `XEN_DOMCTL_INTERFACE_VERSION`, probed at run time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DomctlVersion(pub u32);

/// `XEN_SYSCTL_INTERFACE_VERSION`, probed at run time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SysctlVersion(pub u32);

/// The interface of the running hypervisor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Abi {
    pub domctl: DomctlVersion,
    pub sysctl: SysctlVersion,
    /// `XENVER_version`: major and minor.
    pub xen: (u16, u16),
}

impl Abi {
    /// Versions that this crate knows, newest first.
    pub(crate) const DOMCTL_KNOWN: [u32; 4] = [0x18, 0x17, 0x16, 0x15];
    pub(crate) const SYSCTL_KNOWN: [u32; 2] = [0x16, 0x15];

    /// 4.17 answers getdomaininfo for a missing domain with the next one instead of ESRCH.
    #[must_use]
    pub fn getdomaininfo_searches(self) -> bool {
        self.domctl.0 <= 0x15
    }

    /// get_domain_state exists, and with it a domain number that is never reused.
    #[must_use]
    pub fn tells_unique_ids(self) -> bool {
        self.xen >= (4, 21)
    }

    /// Interrupts can be allowed by global system interrupt (4.20 and later).
    #[must_use]
    pub fn has_gsi_permission(self) -> bool {
        self.xen >= (4, 20)
    }

    /// createdomain has the four altp2m bytes after `grant_opts`.
    #[must_use]
    pub fn createdomain_has_altp2m(self) -> bool {
        self.domctl.0 >= 0x17
    }
}

/// Header in front of every domctl's payload: `cmd`, `interface_version`, `domain`, padding.
pub(crate) const DOMCTL_HEADER_BYTES: usize = 16;
pub(crate) const DOMCTL_BYTES: usize = 144;
pub(crate) const SYSCTL_HEADER_BYTES: usize = 8;
pub(crate) const SYSCTL_BYTES: usize = 136;
pub(crate) const DOMAININFO_BYTES: usize = 112;

/// Command numbers. Source: `xen/include/public/domctl.h`.
pub(crate) mod domctl {
    pub(crate) const CREATEDOMAIN: u32 = 1;
    pub(crate) const DESTROYDOMAIN: u32 = 2;
    pub(crate) const PAUSEDOMAIN: u32 = 3;
    pub(crate) const UNPAUSEDOMAIN: u32 = 4;
    pub(crate) const GETDOMAININFO: u32 = 5;
    pub(crate) const SETVCPUAFFINITY: u32 = 9;
    pub(crate) const SHADOW_OP: u32 = 10;
    pub(crate) const MAX_MEM: u32 = 11;
    pub(crate) const SETVCPUCONTEXT: u32 = 12;
    pub(crate) const GETVCPUCONTEXT: u32 = 13;
    pub(crate) const GETVCPUINFO: u32 = 14;
    pub(crate) const MAX_VCPUS: u32 = 15;
    pub(crate) const SCHEDULER_OP: u32 = 16;
    pub(crate) const SETDOMAINHANDLE: u32 = 17;
    pub(crate) const SETDEBUGGING: u32 = 18;
    pub(crate) const IRQ_PERMISSION: u32 = 19;
    pub(crate) const IOMEM_PERMISSION: u32 = 20;
    pub(crate) const IOPORT_PERMISSION: u32 = 21;
    pub(crate) const HYPERCALL_INIT: u32 = 22;
    pub(crate) const SETTIMEOFFSET: u32 = 24;
    pub(crate) const GETVCPUAFFINITY: u32 = 25;
    pub(crate) const RESUMEDOMAIN: u32 = 27;
    pub(crate) const SENDTRIGGER: u32 = 28;
    pub(crate) const SUBSCRIBE: u32 = 29;
    pub(crate) const GETHVMCONTEXT: u32 = 33;
    pub(crate) const SETHVMCONTEXT: u32 = 34;
    pub(crate) const SET_ADDRESS_SIZE: u32 = 35;
    pub(crate) const GET_ADDRESS_SIZE: u32 = 36;
    pub(crate) const ASSIGN_DEVICE: u32 = 37;
    pub(crate) const BIND_PT_IRQ: u32 = 38;
    pub(crate) const MEMORY_MAPPING: u32 = 39;
    pub(crate) const IOPORT_MAPPING: u32 = 40;
    pub(crate) const SET_EXT_VCPUCONTEXT: u32 = 42;
    pub(crate) const GET_EXT_VCPUCONTEXT: u32 = 43;
    pub(crate) const TEST_ASSIGN_DEVICE: u32 = 45;
    pub(crate) const SET_TARGET: u32 = 46;
    pub(crate) const DEASSIGN_DEVICE: u32 = 47;
    pub(crate) const UNBIND_PT_IRQ: u32 = 48;
    pub(crate) const GET_DEVICE_GROUP: u32 = 50;
    pub(crate) const GETHVMCONTEXT_PARTIAL: u32 = 55;
    pub(crate) const GETTSCINFO: u32 = 59;
    pub(crate) const SETTSCINFO: u32 = 60;
    pub(crate) const GETPAGEFRAMEINFO3: u32 = 61;
    pub(crate) const SETVCPUEXTSTATE: u32 = 62;
    pub(crate) const GETVCPUEXTSTATE: u32 = 63;
    pub(crate) const SET_VIRQ_HANDLER: u32 = 66;
    pub(crate) const SETNODEAFFINITY: u32 = 68;
    pub(crate) const GETNODEAFFINITY: u32 = 69;
    pub(crate) const GET_VCPU_MSRS: u32 = 72;
    pub(crate) const SET_VCPU_MSRS: u32 = 73;
    pub(crate) const SETVNUMAINFO: u32 = 74;
    pub(crate) const SOFT_RESET: u32 = 79;
    pub(crate) const GET_CPU_POLICY: u32 = 82;
    pub(crate) const SET_CPU_POLICY: u32 = 83;
    pub(crate) const GET_PAGING_MEMPOOL_SIZE: u32 = 85;
    pub(crate) const SET_PAGING_MEMPOOL_SIZE: u32 = 86;
    /// From Xen 4.20 on.
    pub(crate) const GSI_PERMISSION: u32 = 88;
    /// Stable since 4.21; its interface version is 0.
    pub(crate) const GET_DOMAIN_STATE: u32 = 90;
    pub(crate) const PSR_CMT_OP: u32 = 75;
    pub(crate) const PSR_ALLOC: u32 = 78;
}

/// Command numbers. Source: `xen/include/public/sysctl.h`.
pub(crate) mod sysctl {
    pub(crate) const READCONSOLE: u32 = 1;
    pub(crate) const PHYSINFO: u32 = 3;
    pub(crate) const SCHED_ID: u32 = 4;
    pub(crate) const PERFC_OP: u32 = 5;
    pub(crate) const GETDOMAININFOLIST: u32 = 6;
    pub(crate) const DEBUG_KEYS: u32 = 7;
    pub(crate) const GETCPUINFO: u32 = 8;
    pub(crate) const AVAILHEAP: u32 = 9;
    pub(crate) const GET_PMSTAT: u32 = 10;
    pub(crate) const CPUTOPOINFO: u32 = 16;
    pub(crate) const NUMAINFO: u32 = 17;
    pub(crate) const CPUPOOL_OP: u32 = 18;
    pub(crate) const SCHEDULER_OP: u32 = 19;
    pub(crate) const PSR_CMT_OP: u32 = 21;
    pub(crate) const PCITOPOINFO: u32 = 22;
    pub(crate) const PSR_ALLOC: u32 = 23;
    pub(crate) const GET_CPU_FEATURESET: u32 = 26;
    pub(crate) const GET_CPU_POLICY: u32 = 29;
}

/// Numbers at fixed offsets of a structure, native endian. Out of range is a bug of ours: it panics.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_ne_bytes(array_at(bytes, offset))
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(array_at(bytes, offset))
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(array_at(bytes, offset))
}

pub(crate) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

/// A structure under construction; field offsets are those of the header file.
pub(crate) struct Layout<const N: usize>([u8; N]);

impl<const N: usize> Layout<N> {
    pub(crate) fn new() -> Self {
        Self([0; N])
    }

    pub(crate) fn bytes(mut self, offset: usize, value: &[u8]) -> Self {
        self.0[offset..offset + value.len()].copy_from_slice(value);
        self
    }

    pub(crate) fn u16(self, offset: usize, value: u16) -> Self {
        self.bytes(offset, &value.to_ne_bytes())
    }

    pub(crate) fn u32(self, offset: usize, value: u32) -> Self {
        self.bytes(offset, &value.to_ne_bytes())
    }

    pub(crate) fn i32(self, offset: usize, value: i32) -> Self {
        self.bytes(offset, &value.to_ne_bytes())
    }

    pub(crate) fn u64(self, offset: usize, value: u64) -> Self {
        self.bytes(offset, &value.to_ne_bytes())
    }

    pub(crate) fn done(self) -> [u8; N] {
        self.0
    }
}
