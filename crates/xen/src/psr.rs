//! Resources that CPUs share: caches and memory bandwidth, how domains use them and how much each may use.
//!
//! Sources: `xen/include/public/{sysctl,domctl,platform}.h`; the Intel SDM, volume 3, chapter 18 ("RDT").

use alloc::vec::Vec;

use crate::abi::{Layout, domctl, sysctl, u32_at, u64_at};
use crate::{DomId, Errno, Hypervisor, Op, Xen};

/// What is known of monitoring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MonitoringFact {
    /// The number of RMIDs; domains that are not monitored have 0.
    TotalRmid,
    /// What a count is to be multiplied with.
    Factor,
    /// The size of this CPU's L3 cache, in KiB.
    CacheKib { cpu: u32 },
    /// Whether there is any: 0 or 1.
    Enabled,
    /// Counters that there are: bit n is the one with number n + 1.
    Counters,
}

/// What is counted for a domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Counter {
    /// What it has in the L3 cache.
    CacheOccupancy = 1,
    /// What was moved between memory and the cache.
    TotalBandwidth = 2,
    /// The same with the memory of the CPU's own node.
    LocalBandwidth = 3,
}

/// A count at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sample {
    /// In units of [`MonitoringFact::Factor`] bytes.
    pub count: u64,
    /// Xen's time.
    pub ns: u64,
}

/// What domains can be given a share of.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Allocation {
    L3Cache,
    /// With different shares for code and data.
    L3Code,
    L3Data,
    L2Cache,
    /// Memory bandwidth: by how much it is throttled.
    Bandwidth,
}

/// What a socket can share out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AllocationInfo {
    /// Bits in the mask of a cache, or the most by which bandwidth is throttled.
    pub limit: u32,
    /// The highest number of a class of service: Xen has one for each different share.
    pub classes_max: u32,
    /// Of an L3 cache: code and data have shares of their own. Of bandwidth: throttling is linear, in percent.
    pub flag: bool,
}

impl Allocation {
    /// `XEN_DOMCTL_PSR_SET_*` and `XEN_DOMCTL_PSR_GET_*`.
    fn commands(self) -> (u32, u32) {
        match self {
            Self::L3Cache => (0, 1),
            Self::L3Code => (2, 4),
            Self::L3Data => (3, 5),
            Self::L2Cache => (6, 7),
            Self::Bandwidth => (8, 9),
        }
    }
}

impl<H: Hypervisor> Xen<H> {
    /// # Errors
    /// ENODEV without monitoring, ENOSYS or EOPNOTSUPP on a Xen without it.
    pub fn monitoring(&mut self, fact: MonitoringFact) -> Result<u64, Errno> {
        let (command, cpu) = match fact {
            MonitoringFact::TotalRmid => (0, 0),
            MonitoringFact::Factor => (1, 0),
            MonitoringFact::CacheKib { cpu } => (2, cpu),
            MonitoringFact::Enabled => (3, 0),
            MonitoringFact::Counters => (4, 0),
        };
        let payload = Layout::<16>::new().u32(0, command).u32(8, cpu).done();
        self.sysctl("psr_cmt_op_host", sysctl::PSR_CMT_OP, &payload)?;
        Ok(u64_at(self.sysctl_payload(), 8))
    }

    /// The resource monitoring ID of a domain; 0 if it is not monitored.
    ///
    /// # Errors
    /// ENODEV without monitoring, ESRCH for no such domain.
    pub fn rmid(&mut self, domid: DomId) -> Result<u32, Errno> {
        const QUERY: u32 = 2;
        let payload = Layout::<8>::new().u32(0, QUERY).done();
        self.domctl("psr_cmt_op", domctl::PSR_CMT_OP, domid, &payload)?;
        Ok(u32_at(self.domctl_payload(), 4))
    }

    /// Begins or ends to monitor a domain.
    ///
    /// # Errors
    /// EEXIST if it is monitored already, ENOENT if it is not, EOVERFLOW without a free RMID; as above.
    pub fn set_monitored(&mut self, domid: DomId, monitored: bool) -> Result<(), Errno> {
        let payload = Layout::<8>::new().u32(0, monitored.into()).done();
        self.domctl("psr_cmt_op", domctl::PSR_CMT_OP, domid, &payload).map(drop)
    }

    /// What a counter of a monitored domain says on the socket of a CPU.
    ///
    /// # Errors
    /// EINVAL if the CPU does not know; as Xen answers.
    pub fn monitoring_sample(
        &mut self,
        cpu: u32,
        rmid: u32,
        counter: Counter,
    ) -> Result<Sample, Errno> {
        const RESOURCE_OP: u32 = 61;
        const INTERFACE_VERSION: u32 = 0x0300_0001;
        const READ: u32 = 0;
        const WRITE: u32 = 1;
        const SELECT: u64 = 0xc8d;
        const COUNTER: u64 = 0xc8e;
        const TIME: u64 = 0x10;
        /// The selection was wrong, or there is no count yet.
        const ERRORS: u64 = 3 << 62;
        const ENTRIES: u32 = 3;
        const ENTRY_BYTES: usize = 24;
        let select = u64::from(rmid) << 32 | counter as u64;
        let entries: Vec<u8> = [(WRITE, SELECT, select), (READ, COUNTER, 0), (READ, TIME, 0)]
            .into_iter()
            .flat_map(|(command, register, value)| {
                Layout::<ENTRY_BYTES>::new().u32(0, command).u64(8, register).u64(16, value).done()
            })
            .collect();
        let address = self.put_data(&entries)?;
        // The structure is as large as its union.
        let argument = Layout::<136>::new()
            .u32(0, RESOURCE_OP)
            .u32(4, INTERFACE_VERSION)
            .u32(8, ENTRIES)
            .u32(12, cpu)
            .u64(16, address)
            .done();
        let place = self.arena_structure(&argument);
        let done = self.timed("platform_op", |hypervisor| {
            hypervisor.hypercall(Op::Platform, [place, 0, 0, 0, 0])
        })?;
        let (_, area) = self.data();
        let [count, ns] = [1, 2].map(|entry| u64_at(area, entry * ENTRY_BYTES + 16));
        if done != u64::from(ENTRIES) || count & ERRORS != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Sample { count, ns })
    }

    /// What a socket can share out.
    ///
    /// # Errors
    /// ENODEV or ENOENT if it cannot, ERANGE for no such socket, ENOSYS or EOPNOTSUPP on a Xen without it.
    pub fn allocation_info(
        &mut self,
        what: Allocation,
        socket: u32,
    ) -> Result<AllocationInfo, Errno> {
        let command = match what {
            Allocation::L3Cache | Allocation::L3Code | Allocation::L3Data => 0,
            Allocation::L2Cache => 1,
            Allocation::Bandwidth => 2,
        };
        let payload = Layout::<24>::new().u32(0, command).u32(4, socket).done();
        self.sysctl("psr_alloc_host", sysctl::PSR_ALLOC, &payload)?;
        let info = self.sysctl_payload();
        Ok(AllocationInfo {
            limit: u32_at(info, 8),
            classes_max: u32_at(info, 12),
            flag: u32_at(info, 16) & 1 != 0,
        })
    }

    /// A domain's share: a mask of a cache's parts, or by how much its bandwidth is throttled.
    ///
    /// # Errors
    /// As [`Xen::allocation_info`]; ESRCH for no such domain.
    pub fn allocation(
        &mut self,
        domid: DomId,
        what: Allocation,
        socket: u32,
    ) -> Result<u64, Errno> {
        let (_, get) = what.commands();
        let payload = Layout::<16>::new().u32(0, get).u32(4, socket).done();
        self.domctl("psr_alloc", domctl::PSR_ALLOC, domid, &payload)?;
        Ok(u64_at(self.domctl_payload(), 8))
    }

    /// Sets it.
    ///
    /// # Errors
    /// EINVAL for an impossible share, EOVERFLOW without a free class of service, ENXIO for a share of code or data
    /// where both have the same; as above.
    pub fn set_allocation(
        &mut self,
        domid: DomId,
        what: Allocation,
        socket: u32,
        share: u64,
    ) -> Result<(), Errno> {
        let (set, _) = what.commands();
        let payload = Layout::<16>::new().u32(0, set).u32(4, socket).u64(8, share).done();
        self.domctl("psr_alloc", domctl::PSR_ALLOC, domid, &payload).map(drop)
    }
}
