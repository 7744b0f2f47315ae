//! Fills a new domain with a saved one's state, record by record.
//!
//! The caller has created the domain with its vCPUs, event channels for store and console, limits, p2m
//! pool and a CPU policy of its own, onto which the saved one is merged. It unpauses it afterwards. Everything else is here: CPU policy, memory, page tables,
//! registers, clock, parameters, and what a domain is told of its new surroundings. If it fails, the
//! caller destroys the domain; nothing else is held.
//!
//! A stream may come from anywhere. What it names is checked against the domain it is loaded into,
//! and memory is taken up here for pages that the domain has, not for numbers that a stream claims.

mod error;
mod hvm;
mod memory;
mod pv;

pub use error::LoadError;

use xen::{CpuPolicy, DomId, EvtchnPort, GrantRef, Hypervisor, Msr, TscInfo, Xen};

use crate::image::Pages;
use crate::layout::console;
use crate::libxc::{CpuidLeaf, DomainType, Headers, MsrEntry, PageData, PageType, Record, Tsc};
use hvm::Hvm;
use memory::Memory;
use pv::Pv;

/// One of the two connections that a domain finds when it runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Channel {
    /// A port of the domain, unbound, that the backend may bind.
    pub port: EvtchnPort,
    pub backend: DomId,
}

/// The domain to fill.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Target {
    pub domid: DomId,
    pub domain: DomainType,
    /// Pages that it may have, those for rings included.
    pub pages_max: u64,
    pub vcpus_max: u32,
    pub store: Channel,
    pub console: Channel,
}

/// What the caller needs to know of a filled domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Loaded {
    /// Frames of the rings, as foreign mappings name them.
    pub store_frame: u64,
    pub console_frame: u64,
    /// Pages that were allocated.
    pub pages: u64,
}

/// The state of one load.
#[derive(Debug)]
pub struct Load {
    target: Target,
    version: u32,
    policy: CpuPolicy,
    progress: Progress,
    memory: Memory,
    kind: Kind,
}

/// How far the records are.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Progress {
    Static,
    State,
    Ended,
}

#[derive(Debug)]
enum Kind {
    Hvm(Hvm),
    Pv(Box<Pv>),
}

impl Load {
    /// Begins to load a stream with these headers.
    ///
    /// # Errors
    /// [`LoadError::WrongType`] if the domain is of another kind.
    pub fn new(target: Target, headers: Headers) -> Result<Self, LoadError> {
        if headers.domain != target.domain {
            let (stream, domain) = (headers.domain.as_str(), target.domain.as_str());
            return Err(LoadError::WrongType { stream, domain });
        }
        let kind = match target.domain {
            DomainType::Hvm => Kind::Hvm(Hvm::default()),
            DomainType::Pv => Kind::Pv(Box::new(Pv::new(target.vcpus_max))),
        };
        Ok(Self {
            target,
            version: headers.version,
            policy: CpuPolicy::default(),
            progress: Progress::Static,
            memory: Memory::new(target.domid, target.domain, target.pages_max),
            kind,
        })
    }

    /// Loads a record. Of a page or a part of the state that comes again, the last one counts.
    ///
    /// # Errors
    /// The record is damaged, does not fit to the domain or is not one of this place, or Xen refuses it.
    pub fn apply<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        record: Record,
    ) -> Result<(), LoadError> {
        let name = record.name();
        if self.progress == Progress::Ended {
            return Err(LoadError::AfterEnd { record: name });
        }
        match record {
            Record::CpuidPolicy(leaves) => {
                self.expect_static(name)?;
                self.policy.leaves = leaves.iter().map(words).collect();
                return Ok(());
            }
            Record::MsrPolicy(entries) => {
                self.expect_static(name)?;
                self.policy.msrs = entries.iter().map(msr).collect();
                return Ok(());
            }
            Record::StaticDataEnd => {
                self.expect_static(name)?;
                return self.end_static(xen);
            }
            Record::Tsc(tsc) => return self.set_clock(xen, tsc),
            Record::PvInfo { width, .. } => return self.pv(name)?.set_width(width),
            _ => self.expect_state(xen, name)?,
        }
        let refused = LoadError::Unexpected { record: name, domain: self.target.domain.as_str() };
        match (record, &mut self.kind) {
            (Record::End, _) => self.progress = Progress::Ended,
            // Pages that come again are loaded again, which is the same if they are the same.
            (Record::Verify, _) => {}
            (Record::PageData(data), Kind::Hvm(_)) if !has_tables(&data) => {
                self.memory.load(xen, &data, &[])?;
            }
            (Record::PageData(data), Kind::Pv(pv)) => pv.load(xen, &mut self.memory, data, &[])?,
            (Record::HvmContext(context), Kind::Hvm(hvm)) => hvm.context = Some(context),
            (Record::HvmParams(params), Kind::Hvm(hvm)) => hvm.set_params(&params)?,
            (Record::P2mFrames(frames), Kind::Pv(pv)) => pv.set_p2m(&mut self.memory, &frames)?,
            (Record::SharedInfo(page), Kind::Pv(pv)) => pv.shared_info = Some(page),
            (Record::Vcpu(blob), Kind::Pv(pv)) => pv.set_vcpu(blob)?,
            _ => return Err(refused),
        }
        Ok(())
    }

    /// Allocates frames whose pages are going to come; in large extents, however the pages come.
    ///
    /// # Errors
    /// The host has no memory for them.
    pub fn expect<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        frames: impl Iterator<Item = u64>,
    ) -> Result<(), LoadError> {
        self.expect_state(xen, "PAGE_DATA")?;
        self.memory.reserve(xen, frames)
    }

    /// Loads pages, as [`apply`](Self::apply) does a record of them.
    ///
    /// # Errors
    /// As for a record.
    pub fn apply_pages<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        pages: Pages,
    ) -> Result<(), LoadError> {
        let record = "PAGE_DATA";
        if self.progress == Progress::Ended {
            return Err(LoadError::AfterEnd { record });
        }
        self.expect_state(xen, record)?;
        let zero: Vec<u64> =
            pages.zero.iter().flat_map(|run| run.first..run.first + run.count).collect();
        match &mut self.kind {
            Kind::Hvm(_) if has_tables(&pages.data) => {
                Err(LoadError::Unexpected { record, domain: self.target.domain.as_str() })
            }
            Kind::Hvm(_) => self.memory.load(xen, &pages.data, &zero),
            Kind::Pv(pv) => pv.load(xen, &mut self.memory, pages.data, &zero),
        }
    }

    /// Whether all has come that must come before the first page.
    #[must_use]
    pub fn takes_pages(&self) -> bool {
        let has_frames = match &self.kind {
            Kind::Hvm(_) => true,
            Kind::Pv(pv) => pv.knows_p2m(),
        };
        self.progress == Progress::State && has_frames
    }

    /// Completes the domain, which is still paused.
    ///
    /// # Errors
    /// A part of the state has not come or does not fit to the memory, or Xen refuses it.
    pub fn finish<H: Hypervisor>(mut self, xen: &mut Xen<H>) -> Result<Loaded, LoadError> {
        if self.progress != Progress::Ended {
            return Err(LoadError::Missing { what: "its end" });
        }
        self.memory.remove_vanished(xen)?;
        let (store_frame, console_frame) = match self.kind {
            Kind::Hvm(hvm) => hvm.finish(xen, &self.target, &self.memory)?,
            Kind::Pv(pv) => pv.finish(xen, &self.target, &self.memory)?,
        };
        const { assert!(GrantRef::XENSTORE.0 == GrantRef::CONSOLE.0 + 1) };
        let Target { domid, store, console, .. } = self.target;
        let rings = [(console.backend, console_frame), (store.backend, store_frame)];
        xen.seed_grants(domid, GrantRef::CONSOLE, &rings)
            .map_err(LoadError::refused("grant the ring pages"))?;
        Ok(Loaded { store_frame, console_frame, pages: self.memory.pages() })
    }

    fn expect_static(&self, record: &'static str) -> Result<(), LoadError> {
        match self.progress {
            Progress::Static => Ok(()),
            _ => Err(LoadError::AfterStaticData { record }),
        }
    }

    /// Version 2 of libxc's stream has no record for the end of static data.
    fn expect_state<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        record: &'static str,
    ) -> Result<(), LoadError> {
        match self.progress {
            Progress::Static if self.version < 3 => self.end_static(xen),
            Progress::Static => Err(LoadError::BeforeStaticData { record }),
            _ => Ok(()),
        }
    }

    /// Xen takes a policy only before the domain's memory and registers depend on it.
    fn end_static<H: Hypervisor>(&mut self, xen: &mut Xen<H>) -> Result<(), LoadError> {
        self.progress = Progress::State;
        if let Kind::Pv(pv) = &self.kind {
            pv.expect_width()?;
        }
        if self.policy == CpuPolicy::default() {
            // Streams of Xen before 4.14 have none: the domain keeps the one it was made with.
            return Ok(());
        }
        let refused = |errno| LoadError::Policy { errno };
        xen.set_cpu_policy(self.target.domid, &self.policy).map_err(refused)
    }

    fn set_clock<H: Hypervisor>(&self, xen: &mut Xen<H>, tsc: Tsc) -> Result<(), LoadError> {
        let info = TscInfo {
            mode: tsc.mode,
            khz: tsc.khz,
            incarnation: tsc.incarnation,
            elapsed_ns: tsc.elapsed_ns,
        };
        xen.set_tsc_info(self.target.domid, info).map_err(LoadError::refused("set its clock"))
    }

    fn pv(&mut self, record: &'static str) -> Result<&mut Pv, LoadError> {
        match &mut self.kind {
            Kind::Pv(pv) => Ok(pv),
            Kind::Hvm(_) => {
                Err(LoadError::Unexpected { record, domain: self.target.domain.as_str() })
            }
        }
    }
}

fn has_tables(data: &PageData) -> bool {
    data.pages.iter().any(|(_, kind)| matches!(kind, PageType::Table { .. }))
}

fn words(leaf: &CpuidLeaf) -> [u32; 6] {
    let [eax, ebx, ecx, edx] = leaf.registers;
    [leaf.leaf, leaf.subleaf, eax, ebx, ecx, edx]
}

fn msr(entry: &MsrEntry) -> Msr {
    Msr { index: entry.index, value: entry.value }
}

/// Tells a guest that its console has no reader yet: consoles have said so since Xen 4.21, and a
/// daemon that knows of it says when it is there.
fn disconnect_console<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    frame: u64,
) -> Result<(), LoadError> {
    if xen.abi().xen < (4, 21) {
        return Ok(());
    }
    let told = [console::DISCONNECTED];
    Ok(xen.write_foreign(domid, &[frame], console::CONNECTION, &told)?)
}
