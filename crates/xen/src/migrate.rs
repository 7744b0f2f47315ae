//! What migration needs: dirty pages, frame types, clocks, suspend notification.
//!
//! Source: `xen/include/public/domctl.h`.

use alloc::vec::Vec;

use crate::abi::{Layout, domctl, u32_at, u64_at};
use crate::xen::words;
use crate::{DomId, Errno, EvtchnPort, Hypervisor, Xen};

/// Whether reading the dirty pages begins a new round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DirtyRead {
    /// They stay dirty.
    Peek,
    /// They are clean from now on.
    Clean,
    /// The last read: pages that Xen itself has mapped to write to count as dirty.
    Final,
}

/// Pages dirtied since the last round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Dirty {
    /// Number of pages that the bitmap covers.
    pub pages: u64,
    /// A bit for each page, by the domain's frame number.
    pub bitmap: Vec<u8>,
    /// Faults taken, and pages found dirty, since the last round.
    pub faults: u32,
    pub dirtied: u32,
}

impl Dirty {
    /// The frame numbers of dirty pages, ascending.
    pub fn frames(&self) -> impl Iterator<Item = u64> + '_ {
        (0_u64..).zip(&self.bitmap).flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & 1 << bit != 0).map(move |bit| at * 8 + bit)
        })
    }
}

/// What a PV domain uses a frame as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FrameUse {
    Memory,
    /// A page table of level 1 to 4, pinned or not.
    Table {
        level: u8,
        is_pinned: bool,
    },
    Broken,
    /// Not the domain's.
    None,
}

impl FrameUse {
    /// The top bits of `XEN_DOMCTL_PFINFO_*`.
    fn decode(word: u64) -> Self {
        match word >> 28 & 0xf {
            0 => Self::Memory,
            kind @ (1..=4) => Self::Table { level: kind.to_le_bytes()[0], is_pinned: false },
            kind @ (9..=12) => Self::Table { level: (kind - 8).to_le_bytes()[0], is_pinned: true },
            0xd => Self::Broken,
            _ => Self::None,
        }
    }
}

/// How a domain sees the time stamp counter.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TscInfo {
    pub mode: u32,
    pub khz: u32,
    pub incarnation: u32,
    pub elapsed_ns: u64,
}

impl<H: Hypervisor> Xen<H> {
    /// Most pages that one call covers. Only the largest arena makes this useful.
    #[must_use]
    pub fn dirty_pages_max(&mut self) -> u64 {
        let (_, area) = self.data_to_end();
        area.len() as u64 * 8
    }

    /// Enables log-dirty mode. All pages are clean at first.
    ///
    /// # Errors
    /// EINVAL if it is enabled already, ENOMEM; EOPNOTSUPP for a PV domain where shadow paging is
    /// not built in.
    pub fn enable_log_dirty(&mut self, domid: DomId) -> Result<(), Errno> {
        const ENABLE_LOGDIRTY: u32 = 2;
        let payload = Layout::<40>::new().u32(0, ENABLE_LOGDIRTY).done();
        self.domctl("shadow_op", domctl::SHADOW_OP, domid, &payload).map(drop)
    }

    /// Disables log-dirty mode.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn disable_log_dirty(&mut self, domid: DomId) -> Result<(), Errno> {
        const OFF: u32 = 0;
        let payload = Layout::<40>::new().u32(0, OFF).done();
        self.domctl("shadow_op", domctl::SHADOW_OP, domid, &payload).map(drop)
    }

    /// Dirty pages below `pages`.
    ///
    /// # Errors
    /// EBUSY while another caller does this, E2BIG beyond [`Xen::dirty_pages_max`].
    pub fn dirty(&mut self, domid: DomId, pages: u64, look: DirtyRead) -> Result<Dirty, Errno> {
        const CLEAN: u32 = 11;
        const PEEK: u32 = 12;
        const FINAL: u32 = 1;
        let bytes = usize::try_from(pages.div_ceil(8)).map_err(|_| Errno::E2BIG)?;
        let (address, area) = self.data_to_end();
        area.get_mut(..bytes).ok_or(Errno::E2BIG)?.fill(0);
        let (op, mode) = match look {
            DirtyRead::Peek => (PEEK, 0),
            DirtyRead::Clean => (CLEAN, 0),
            DirtyRead::Final => (CLEAN, FINAL),
        };
        let payload =
            Layout::<40>::new().u32(0, op).u32(4, mode).u64(16, address).u64(24, pages).done();
        self.domctl("shadow_op", domctl::SHADOW_OP, domid, &payload)?;
        let payload = self.domctl_payload();
        let told = u64_at(payload, 24).min(pages);
        let (faults, dirtied) = (u32_at(payload, 32), u32_at(payload, 36));
        let bytes = usize::try_from(told.div_ceil(8)).map_err(|_| Errno::E2BIG)?;
        let (_, area) = self.data_to_end();
        Ok(Dirty { pages: told, bitmap: area[..bytes].to_vec(), faults, dirtied })
    }

    /// What a PV domain uses frames as.
    ///
    /// # Errors
    /// E2BIG for more than 1024 frames, ESRCH.
    pub fn frame_uses(&mut self, domid: DomId, frames: &[u64]) -> Result<Vec<FrameUse>, Errno> {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.to_ne_bytes()).collect();
        let address = self.put_data(&bytes)?;
        let payload = Layout::<16>::new().u64(0, frames.len() as u64).u64(8, address).done();
        self.domctl("getpageframeinfo3", domctl::GETPAGEFRAMEINFO3, domid, &payload)?;
        let (_, area) = self.data();
        Ok(words(&area[..bytes.len()]).into_iter().map(FrameUse::decode).collect())
    }

    /// One HVM save record, without its header.
    ///
    /// # Errors
    /// EINVAL for a PV domain or an unknown kind, ENOENT for no such instance, EBUSY for the caller's own.
    pub fn hvm_record(&mut self, domid: DomId, kind: u16, instance: u16) -> Result<Vec<u8>, Errno> {
        let (address, area) = self.data();
        area.fill(0);
        let payload = Layout::<24>::new()
            .u32(0, kind.into())
            .u32(4, instance.into())
            .u64(8, Self::DATA_BYTES as u64)
            .u64(16, address)
            .done();
        self.domctl("gethvmcontext_partial", domctl::GETHVMCONTEXT_PARTIAL, domid, &payload)?;
        let used = u64_at(self.domctl_payload(), 8);
        let used = usize::try_from(used).map_err(|_| Errno::E2BIG)?;
        let (_, area) = self.data();
        area.get(..used).map(<[u8]>::to_vec).ok_or(Errno::E2BIG)
    }

    /// A PV domain's address size, in bits.
    ///
    /// # Errors
    /// EOPNOTSUPP for a translated domain, ESRCH.
    pub fn address_size(&mut self, domid: DomId) -> Result<u32, Errno> {
        self.domctl("get_address_size", domctl::GET_ADDRESS_SIZE, domid, &[])?;
        Ok(u32_at(self.domctl_payload(), 0))
    }

    /// How a domain sees the time stamp counter.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn tsc_info(&mut self, domid: DomId) -> Result<TscInfo, Errno> {
        self.domctl("gettscinfo", domctl::GETTSCINFO, domid, &[])?;
        let payload = self.domctl_payload();
        Ok(TscInfo {
            mode: u32_at(payload, 0),
            khz: u32_at(payload, 4),
            incarnation: u32_at(payload, 8),
            elapsed_ns: u64_at(payload, 16),
        })
    }

    /// Sets this for a domain that was migrated.
    ///
    /// # Errors
    /// EINVAL for an unknown mode or the caller's own domain.
    pub fn set_tsc_info(&mut self, domid: DomId, info: TscInfo) -> Result<(), Errno> {
        let payload = Layout::<24>::new()
            .u32(0, info.mode)
            .u32(4, info.khz)
            .u32(8, info.incarnation)
            .u64(16, info.elapsed_ns)
            .done();
        self.domctl("settscinfo", domctl::SETTSCINFO, domid, &payload).map(drop)
    }

    /// Sets the offset of a domain's wall clock from the machine's, in seconds.
    ///
    /// # Errors
    /// ESRCH if there is no such domain.
    pub fn set_time_offset(&mut self, domid: DomId, seconds: i64) -> Result<(), Errno> {
        self.domctl("settimeoffset", domctl::SETTIMEOFFSET, domid, &seconds.to_ne_bytes()).map(drop)
    }

    /// Signals one of the domain's own ports when it suspends, instead of the VIRQ.
    ///
    /// # Errors
    /// ESRCH. A port that does not exist is no error: it is not signalled.
    pub fn subscribe_suspend(&mut self, domid: DomId, port: EvtchnPort) -> Result<(), Errno> {
        self.domctl("subscribe", domctl::SUBSCRIBE, domid, &port.0.to_ne_bytes()).map(drop)
    }

    /// Soft-resets a translated domain that has shut down: its event channels and grants are reset.
    ///
    /// # Errors
    /// EINVAL if it has not shut down with that reason, or is PV.
    pub fn soft_reset(&mut self, domid: DomId) -> Result<(), Errno> {
        self.domctl("soft_reset", domctl::SOFT_RESET, domid, &[]).map(drop)
    }

    /// Sets whether breakpoints pause the domain for a debugger.
    ///
    /// # Errors
    /// EINVAL for the caller's own domain, ESRCH.
    pub fn set_debugging(&mut self, domid: DomId, debugging: Debugging) -> Result<(), Errno> {
        self.domctl("setdebugging", domctl::SETDEBUGGING, domid, &[debugging as u8]).map(drop)
    }

    /// Lets a domain receive a global VIRQ.
    ///
    /// # Errors
    /// EINVAL for a per-vCPU VIRQ, ESRCH; EBUSY while it is bound (4.21 and later).
    pub fn set_virq_handler(&mut self, domid: DomId, virq: u32) -> Result<(), Errno> {
        self.domctl("set_virq_handler", domctl::SET_VIRQ_HANDLER, domid, &virq.to_ne_bytes())
            .map(drop)
    }

    /// Sets a new domain's virtual NUMA topology.
    ///
    /// # Errors
    /// EINVAL for inconsistent tables, ESRCH.
    pub fn set_vnuma(&mut self, domid: DomId, vnuma: &Vnuma) -> Result<(), Errno> {
        let mut bytes = Vec::new();
        let mut lay = |words: &[u32]| {
            let at = bytes.len() as u64;
            bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            // What follows may hold 64-bit words.
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            at
        };
        let distance = lay(&vnuma.distances);
        let vcpus = lay(&vnuma.node_of_vcpu);
        let nodes = lay(&vnuma.machine_node_of_node);
        let ranges = bytes.len() as u64;
        for range in &vnuma.ranges {
            let words = Layout::<24>::new()
                .u64(0, range.start)
                .u64(8, range.end)
                .u32(20, range.node)
                .done();
            bytes.extend_from_slice(&words);
        }
        let address = self.put_data(&bytes)?;
        let count = |len: usize| u32::try_from(len).map_err(|_| Errno::E2BIG);
        let payload = Layout::<48>::new()
            .u32(0, count(vnuma.machine_node_of_node.len())?)
            .u32(4, count(vnuma.ranges.len())?)
            .u32(8, count(vnuma.node_of_vcpu.len())?)
            .u64(16, address + distance)
            .u64(24, address + vcpus)
            .u64(32, address + nodes)
            .u64(40, address + ranges)
            .done();
        self.domctl("setvnumainfo", domctl::SETVNUMAINFO, domid, &payload).map(drop)
    }
}

/// Where breakpoints go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Debugging {
    Off,
    On,
}

/// A range of a domain's memory on one of its virtual NUMA nodes, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VnumaRange {
    pub start: u64,
    pub end: u64,
    pub node: u32,
}

/// A domain's virtual NUMA nodes. `distances` has a row for each node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Vnuma {
    pub distances: Vec<u32>,
    pub node_of_vcpu: Vec<u32>,
    pub machine_node_of_node: Vec<u32>,
    pub ranges: Vec<VnumaRange>,
}
