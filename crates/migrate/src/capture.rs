//! Reads a domain's state: its memory in rounds, and the rest when it has suspended.
//!
//! ```text
//!   prepare -> head                            static: kind, policies, p2m frames
//!        [start_live -> (begin_round(Live) -> next_batch ...) ...]
//!        the guest suspends
//!        begin_round(Last) -> next_batch ...   all frames, or those dirtied since
//!        tail                                  registers, clock, parameters
//!   end                                        also after a failure
//! ```
//! Nothing here waits. What a guest names (frames, page tables, registers) is checked against what
//! Xen says, so that a damaged guest gets an error instead of a stream that cannot be loaded.

mod error;
mod p2m;
mod pv;
mod translated;

pub use error::CaptureError;
pub(crate) use p2m::P2m;
pub(crate) use pv::gdt_frames;
pub(crate) use translated::Translated;

use xen::{
    CpuPolicy, Dirty, DirtyRead, DomId, DomainInfo, DomainKind, Errno, Hypervisor, PAGE_BYTES,
    ShutdownReason, Xen,
};

use crate::frames::FrameSet;
use crate::libxc::{CpuidLeaf, DomainType, Headers, MsrEntry, PageData, PageType, Record, Tsc};
use pv::Pv;

/// Most pages of one batch: 2 MiB, as large as a large page.
const BATCH_PAGES: usize = 512;

/// Which pages a round is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Round {
    /// The guest runs: what is read may be old already, and comes again.
    Live,
    /// The guest has suspended.
    Last,
}

/// The state of one save of one domain.
#[derive(Debug)]
pub struct Capture {
    domid: DomId,
    xen_version: (u32, u32),
    policy: CpuPolicy,
    kind: Kind,
    /// Log-dirty mode is on, by us.
    logs: bool,
    round: Round,
    /// Frames that the round has yet to read.
    todo: FrameSet,
    /// All frames were read in earlier rounds, but for those dirtied since the last began.
    is_whole: bool,
}

#[derive(Debug)]
enum Kind {
    Translated(Translated),
    Pv(Box<Pv>),
}

impl Capture {
    /// Reads what does not change while the guest runs.
    ///
    /// # Errors
    /// There is no such domain, Xen refuses a call, or a PV guest's own list of its frames is missing or
    /// damaged.
    pub fn prepare<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) -> Result<Self, CaptureError> {
        let info = info(xen, domid)?;
        let refused = CaptureError::refused(domid, "read the CPU policy");
        let policy = xen.cpu_policy(domid).map_err(refused)?;
        let kind = match info.kind() {
            DomainKind::Pv => Kind::Pv(Box::new(Pv::prepare(xen, &info)?)),
            DomainKind::Pvh | DomainKind::Hvm => Kind::Translated(Translated::default()),
        };
        let (major, minor) = xen.abi().xen;
        Ok(Self {
            domid,
            xen_version: (major.into(), minor.into()),
            policy,
            kind,
            logs: false,
            round: Round::Last,
            todo: FrameSet::default(),
            is_whole: false,
        })
    }

    /// The headers of libxc's stream.
    #[must_use]
    pub fn headers(&self) -> Headers {
        let domain = match self.kind {
            Kind::Translated(_) => DomainType::Hvm,
            Kind::Pv(_) => DomainType::Pv,
        };
        Headers::new(domain, self.xen_version)
    }

    /// The records before the first page.
    #[must_use]
    pub fn head(&self) -> Vec<Record> {
        let leaf = |words: &[u32; 6]| {
            let [leaf, subleaf, registers @ ..] = *words;
            CpuidLeaf { leaf, subleaf, registers }
        };
        let entry = |msr: &xen::Msr| MsrEntry { index: msr.index, flags: 0, value: msr.value };
        let mut head = match &self.kind {
            Kind::Translated(_) => Vec::new(),
            Kind::Pv(_) => vec![Record::PvInfo { width: 8, levels: 4 }],
        };
        head.extend([
            Record::CpuidPolicy(self.policy.leaves.iter().map(leaf).collect()),
            Record::MsrPolicy(self.policy.msrs.iter().map(entry).collect()),
            Record::StaticDataEnd,
        ]);
        if let Kind::Pv(pv) = &self.kind {
            head.push(Record::P2mFrames(pv.p2m_frames()));
        }
        head.retain(|record| !record.is_empty());
        head
    }

    /// Begins to log which pages the guest writes, so that its memory can be read while it runs. The
    /// next round covers all pages.
    ///
    /// # Errors
    /// [`CaptureError::NoLogDirty`] where this Xen cannot: the guest must be suspended first.
    pub fn start_live<H: Hypervisor>(&mut self, xen: &mut Xen<H>) -> Result<(), CaptureError> {
        let domid = self.domid;
        self.is_whole = false;
        let mut enabled = xen.enable_log_dirty(domid);
        if enabled == Err(Errno::EINVAL) {
            // Left on by whoever was here before, maybe. Xen says the same for a domain with a device of
            // the machine.
            let off = CaptureError::refused(domid, "stop logging its writes");
            xen.disable_log_dirty(domid).map_err(off)?;
            enabled = xen.enable_log_dirty(domid);
        }
        match enabled {
            Ok(()) => {
                self.logs = true;
                Ok(())
            }
            Err(Errno::EOPNOTSUPP) => Err(CaptureError::NoLogDirty { domid }),
            Err(errno) => Err(CaptureError::refused(domid, "log its writes")(errno)),
        }
    }

    /// Begins a round and says how many pages it has: all in the first and after a failure, otherwise
    /// those written since the last one began.
    ///
    /// # Errors
    /// [`CaptureError::NotSuspended`] for the last round of a guest that has not, or Xen refuses.
    pub fn begin_round<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        round: Round,
    ) -> Result<u64, CaptureError> {
        let domid = self.domid;
        let info = info(xen, domid)?;
        if round == Round::Last && info.flags.shutdown() != Some(ShutdownReason::Suspend) {
            return Err(CaptureError::NotSuspended { domid });
        }
        let goes_on = self.logs && std::mem::take(&mut self.is_whole);
        self.is_whole = false;
        self.round = round;
        self.todo = FrameSet::default();
        let look = match round {
            Round::Live => DirtyRead::Clean,
            Round::Last => DirtyRead::Final,
        };
        self.todo = match &mut self.kind {
            Kind::Translated(domain) => {
                if !goes_on {
                    domain.forget();
                }
                let change = domain.learn(xen, &info)?;
                if goes_on {
                    let dirty = read_dirty(xen, domid, domain.end(), look)?;
                    domain.dirtied(xen, domid, &dirty, change)?
                } else {
                    domain.all()
                }
            }
            Kind::Pv(pv) => {
                pv.reread(xen, &info)?;
                if goes_on {
                    let dirty = read_dirty(xen, domid, pv.pages(), look)?;
                    pv.dirtied(dirty.frames())
                } else {
                    pv.all()
                }
            }
        };
        Ok(self.todo.len())
    }

    /// Reads the next pages of the round into a buffer that is reused; false if none are left, and the
    /// batch is empty then.
    ///
    /// # Errors
    /// A page cannot be read, or (in the last round) a page table leads out of the guest. The round must
    /// be begun again.
    pub fn next_batch<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        batch: &mut PageData,
    ) -> Result<bool, CaptureError> {
        batch.pages.clear();
        while batch.pages.is_empty() {
            let mut frames = Vec::with_capacity(BATCH_PAGES);
            // Whole blocks, so that whoever loads them can allocate large pages.
            while let Some(block) = self.todo.take_block(BATCH_PAGES - frames.len()) {
                frames.extend(block);
            }
            if frames.is_empty() {
                batch.data.clear();
                self.is_whole = true;
                return Ok(false);
            }
            let (domid, round) = (self.domid, self.round);
            match &mut self.kind {
                Kind::Translated(domain) => domain.read(xen, domid, round, &frames, batch)?,
                Kind::Pv(pv) => pv.read(xen, domid, round, &frames, batch)?,
            }
        }
        Ok(true)
    }

    /// What is left of the state, after the last round. [`Record::End`] is the stream's, not part of it.
    ///
    /// # Errors
    /// Xen refuses, or a PV vCPU's registers lead out of the guest.
    pub fn tail<H: Hypervisor>(&mut self, xen: &mut Xen<H>) -> Result<Vec<Record>, CaptureError> {
        let domid = self.domid;
        let tsc = xen.tsc_info(domid).map_err(CaptureError::refused(domid, "read its clock"))?;
        let mut tail = vec![Record::Tsc(Tsc {
            mode: tsc.mode,
            khz: tsc.khz,
            elapsed_ns: tsc.elapsed_ns,
            incarnation: tsc.incarnation,
        })];
        match &self.kind {
            Kind::Translated(_) => tail.extend(translated::state(xen, domid)?),
            Kind::Pv(pv) => {
                let info = info(xen, domid)?;
                tail.extend(pv.state(xen, &info)?);
            }
        }
        tail.retain(|record| !record.is_empty());
        Ok(tail)
    }

    /// Stops the logging of writes. Does nothing if it is not on.
    pub fn end<H: Hypervisor>(&mut self, xen: &mut Xen<H>) {
        if std::mem::take(&mut self.logs) {
            // The domain may be gone, and its log with it.
            let _gone = xen.disable_log_dirty(self.domid);
        }
        self.is_whole = false;
        self.todo = FrameSet::default();
    }
}

pub(crate) fn info<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
) -> Result<DomainInfo, CaptureError> {
    let info = xen.domain(domid).map_err(CaptureError::refused(domid, "ask Xen about it"))?;
    info.filter(|info| !info.flags.dying()).ok_or(CaptureError::Gone { domid })
}

fn read_dirty<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    pages: u64,
    look: DirtyRead,
) -> Result<Dirty, CaptureError> {
    xen.dirty(domid, pages, look).map_err(|errno| match errno {
        Errno::E2BIG => CaptureError::TooLarge { domid, pages, max: xen.dirty_pages_max() },
        errno => CaptureError::refused(domid, "read its dirty pages")(errno),
    })
}

/// Fills a batch with pages of which all have content.
pub(crate) fn fill<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    names: &[u64],
    batch: &mut PageData,
) -> Result<(), CaptureError> {
    batch.data.resize(names.len() * PAGE_BYTES, 0);
    if !names.is_empty() {
        xen.read_foreign(domid, names, 0, &mut batch.data)?;
    }
    Ok(())
}

/// A page of a batch of pages without tables.
fn memory(frame: u64) -> (u64, PageType) {
    (frame, PageType::Normal)
}
