//! What `xl info` shows: the hypervisor's version and build, the machine, one vCPU.
//!
//! Sources: `xen/include/public/version.h`, `sysctl.h`, `domctl.h`.

use alloc::string::String;

use crate::abi::{Layout, domctl, sysctl, u32_at, u64_at};
use crate::xen::CALL_OFFSET;
use crate::{DomId, Errno, Hypervisor, Op, Xen};

const VERSION: u64 = 0;
const EXTRAVERSION: u64 = 1;
const COMPILE_INFO: u64 = 2;
const CAPABILITIES: u64 = 3;
const CHANGESET: u64 = 4;
const PLATFORM_PARAMETERS: u64 = 5;
const PAGESIZE: u64 = 7;
const COMMANDLINE: u64 = 9;
const BUILD_ID: u64 = 10;

/// The hypervisor's version and build.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct VersionInfo {
    pub major: u16,
    pub minor: u16,
    pub extra: String,
    pub capabilities: String,
    pub changeset: String,
    pub commandline: String,
    pub compiler: String,
    pub compile_by: String,
    pub compile_domain: String,
    pub compile_date: String,
    /// Hexadecimal; empty if the build has none.
    pub build_id: String,
    pub pagesize_bytes: u64,
    /// Where the hypervisor begins in a PV domain's address space.
    pub virt_start: u64,
    /// `XEN_SCHEDULER_*`.
    pub scheduler_id: u32,
}

impl VersionInfo {
    /// The scheduler's name, as its `sched=` option spells it.
    #[must_use]
    pub fn scheduler(&self) -> &'static str {
        match self.scheduler_id {
            5 => "credit",
            6 => "credit2",
            7 => "arinc653",
            8 => "rtds",
            9 => "null",
            _ => "unknown",
        }
    }
}

/// The physical machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PhysInfo {
    pub threads_per_core: u32,
    pub cores_per_socket: u32,
    pub cpus: u32,
    pub cpu_id_max: u32,
    pub nodes: u32,
    pub cpu_khz: u32,
    /// `XEN_SYSCTL_PHYSCAP_*`.
    pub capabilities: u32,
    pub pages: u64,
    pub pages_free: u64,
    pub pages_scrub: u64,
    /// Claimed but not yet allocated.
    pub pages_outstanding: u64,
    pub hw_caps: [u32; 8],
}

impl PhysInfo {
    /// The highest grant table version that domains may use.
    #[must_use]
    pub fn grant_version_max(&self) -> u8 {
        /// `XEN_SYSCTL_PHYSCAP_gnttab_v2`.
        const GNTTAB_V2: u32 = 1 << 9;
        if self.capabilities & GNTTAB_V2 == 0 { 1 } else { 2 }
    }

    /// Whether devices of the host can be given to guests: there is an IOMMU, and Xen uses it.
    #[must_use]
    pub fn has_iommu(&self) -> bool {
        self.capabilities & 1 << 2 != 0
    }

    /// Whether the IOMMU can use the tables of a guest's memory.
    #[must_use]
    pub fn shares_iommu_tables(&self) -> bool {
        self.capabilities & 1 << 5 != 0
    }

    /// Whether vCPUs can be traced into a buffer.
    #[must_use]
    pub fn has_vmtrace(&self) -> bool {
        self.capabilities & 1 << 6 != 0
    }

    /// Whether guests may count events of the CPU.
    #[must_use]
    pub fn has_vpmu(&self) -> bool {
        self.capabilities & 1 << 7 != 0
    }
}

/// Shared memory pages, and CPUs in no pool.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SetAside {
    /// Pages saved by sharing between domains.
    pub sharing_pages_freed: u64,
    /// Pages that are shared.
    pub sharing_pages_used: u64,
    /// CPUs in no pool.
    pub cpus_free: u32,
}

/// One vCPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VcpuInfo {
    pub online: bool,
    pub blocked: bool,
    pub running: bool,
    pub cpu_time_ns: u64,
    /// Physical CPU it runs on or ran on last.
    pub cpu: u32,
}

/// The text before the first NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl<H: Hypervisor> Xen<H> {
    fn version_text(&mut self, what: u64, bytes: usize) -> Result<String, Errno> {
        let blank = [0; 1024];
        self.call_with("xen_version", Op::Version, what, &blank[..bytes])?;
        Ok(text(self.argument(bytes)))
    }

    /// Xen's boot options alone.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn commandline(&mut self) -> Result<String, Errno> {
        self.version_text(COMMANDLINE, 1024)
    }

    /// Version, build and boot options.
    ///
    /// # Errors
    /// The hypercall's errno; a missing build id is no error.
    pub fn version_info(&mut self) -> Result<VersionInfo, Errno> {
        let mut info = VersionInfo {
            extra: self.version_text(EXTRAVERSION, 16)?,
            capabilities: self.version_text(CAPABILITIES, 1024)?,
            changeset: self.version_text(CHANGESET, 64)?,
            commandline: self.version_text(COMMANDLINE, 1024)?,
            ..VersionInfo::default()
        };
        self.counters.count("xen_version");
        let version = self.hypervisor.hypercall(Op::Version, [VERSION, 0, 0, 0, 0])?;
        let [low, high, major_low, major_high, ..] = version.to_le_bytes();
        info.major = u16::from_le_bytes([major_low, major_high]);
        info.minor = u16::from_le_bytes([low, high]);

        self.call_with("xen_version", Op::Version, COMPILE_INFO, &[0; 144])?;
        let compile = self.argument(144);
        info.compiler = text(&compile[..64]);
        info.compile_by = text(&compile[64..80]);
        info.compile_domain = text(&compile[80..112]);
        info.compile_date = text(&compile[112..144]);

        self.call_with("xen_version", Op::Version, PLATFORM_PARAMETERS, &[0; 8])?;
        info.virt_start = u64_at(self.argument(8), 0);
        self.counters.count("xen_version");
        info.pagesize_bytes = self.hypervisor.hypercall(Op::Version, [PAGESIZE, 0, 0, 0, 0])?;

        // `struct xen_build_id`: the length, then that many bytes.
        let mut request = [0; 68];
        request[..4].copy_from_slice(&64_u32.to_ne_bytes());
        if let Ok(bytes) = self.call_with("xen_version", Op::Version, BUILD_ID, &request) {
            let bytes = usize::try_from(bytes).unwrap_or(0).min(64);
            for byte in &self.hypervisor.arena()[CALL_OFFSET + 4..CALL_OFFSET + 4 + bytes] {
                use core::fmt::Write;
                // Writing to a String cannot fail.
                let _ = write!(info.build_id, "{byte:02x}");
            }
        }
        self.sysctl("sched_id", sysctl::SCHED_ID, &[])?;
        info.scheduler_id = u32_at(self.sysctl_payload(), 0);
        Ok(info)
    }

    /// The machine's CPUs and memory.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn phys_info(&mut self) -> Result<PhysInfo, Errno> {
        self.sysctl("physinfo", sysctl::PHYSINFO, &[])?;
        let payload = self.sysctl_payload();
        Ok(PhysInfo {
            threads_per_core: u32_at(payload, 0),
            cores_per_socket: u32_at(payload, 4),
            cpus: u32_at(payload, 8),
            cpu_id_max: u32_at(payload, 12),
            nodes: u32_at(payload, 16),
            cpu_khz: u32_at(payload, 24),
            capabilities: u32_at(payload, 28),
            pages: u64_at(payload, 40),
            pages_free: u64_at(payload, 48),
            pages_scrub: u64_at(payload, 56),
            pages_outstanding: u64_at(payload, 64),
            hw_caps: core::array::from_fn(|i| u32_at(payload, 80 + 4 * i)),
        })
    }

    /// Shared memory pages, and CPUs in no pool.
    ///
    /// # Errors
    /// The hypercall's errno; ENOSYS if Xen was built without either.
    pub fn set_aside(&mut self) -> Result<SetAside, Errno> {
        const XENMEM_GET_SHARING_FREED_PAGES: u64 = 18;
        const XENMEM_GET_SHARING_SHARED_PAGES: u64 = 19;
        const CPUPOOL_OP_FREEINFO: u32 = 7;
        /// Size of the CPU bitmap: more CPUs than any Xen supports.
        const BITMAP_BYTES: u16 = 1024;
        let mut pages = |what| {
            self.counters.count("sharing_pages");
            self.hypervisor.hypercall(Op::Memory, [what, 0, 0, 0, 0])
        };
        let sharing_pages_freed = pages(XENMEM_GET_SHARING_FREED_PAGES)?;
        let sharing_pages_used = pages(XENMEM_GET_SHARING_SHARED_PAGES)?;
        let address = self.put_data(&[0; BITMAP_BYTES as usize])?;
        let payload = Layout::<40>::new()
            .u32(0, CPUPOOL_OP_FREEINFO)
            .u64(24, address)
            .u32(32, 8 * u32::from(BITMAP_BYTES))
            .done();
        self.sysctl("cpupool_op", sysctl::CPUPOOL_OP, &payload)?;
        let (_, bitmap) = self.data();
        let cpus_free =
            bitmap[..usize::from(BITMAP_BYTES)].iter().map(|byte| byte.count_ones()).sum();
        Ok(SetAside { sharing_pages_freed, sharing_pages_used, cpus_free })
    }

    /// One vCPU's state.
    ///
    /// # Errors
    /// EINVAL for a number beyond the maximum given to createdomain, ESRCH before
    /// [`Xen::set_vcpus_max`].
    pub fn vcpu_info(&mut self, domid: DomId, vcpu: u32) -> Result<VcpuInfo, Errno> {
        self.domctl("getvcpuinfo", domctl::GETVCPUINFO, domid, &vcpu.to_ne_bytes())?;
        let payload = self.domctl_payload();
        Ok(VcpuInfo {
            online: payload[4] != 0,
            blocked: payload[5] != 0,
            running: payload[6] != 0,
            cpu_time_ns: u64_at(payload, 8),
            cpu: u32_at(payload, 16),
        })
    }
}
