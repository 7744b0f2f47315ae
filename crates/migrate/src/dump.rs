//! Reads a domain into a core file, for `crash` and other debuggers: its registers, shared info and memory.
//!
//! ```text
//!   prepare -> head -> next ... (its pages, in order) -> tail (which frames they are)
//! ```
//! The domain is paused or has stopped, or the file is of no single moment. Nothing is translated: page tables and
//! registers of a PV guest have machine frames, which the file's own table leads back to the guest's.

mod elf;

use xen::{DomId, DomainKind, FrameUse, Hypervisor, PAGE_BYTES, Xen};

use crate::capture::{CaptureError, P2m, Round, Translated, fill, info};
use crate::frames::FrameSet;
use crate::libxc::{PageData, PageType};
use elf::Head;

/// Most pages of one read: 2 MiB.
const BATCH_PAGES: usize = 512;
/// Frames of the file's table that are put out at a time.
const TABLE_FRAMES: usize = 1 << 16;

/// A dump of one domain.
#[derive(Debug)]
pub struct Dump {
    domid: DomId,
    frames: Frames,
    head: Vec<u8>,
    /// Of the file's sections.
    names: Vec<u8>,
    /// Frames that the file has room for, and those of them that are yet to be read.
    pages: u64,
    todo: FrameSet,
}

#[derive(Debug)]
enum Frames {
    /// Those that could be read.
    Translated(Translated),
    Pv {
        p2m: P2m,
        /// Those that could not.
        lost: FrameSet,
    },
}

impl Dump {
    /// Finds out what there is to be read, and reads all that is not memory.
    ///
    /// # Errors
    /// There is no such domain, Xen refuses a call, or a PV guest's own list of its frames is missing or damaged.
    pub fn prepare<H: Hypervisor>(xen: &mut Xen<H>, domid: DomId) -> Result<Self, CaptureError> {
        let info = info(xen, domid)?;
        let version = xen.version_info();
        let version = version.map_err(CaptureError::refused(domid, "ask for Xen's version for"))?;
        let mut contexts = Vec::new();
        let mut none = Ok(());
        for vcpu in 0..info.vcpu_count() {
            // One that the guest has never started has none.
            match xen.vcpu_context(domid, vcpu) {
                Ok(context) => contexts.push(context),
                Err(errno) => none = Err(errno),
            }
        }
        if contexts.is_empty() {
            none.map_err(CaptureError::refused(domid, "read the registers of"))?;
        }
        let mut page = vec![0; PAGE_BYTES];
        let read = xen.read_foreign(domid, &[info.shared_info_frame], 0, &mut page);
        let is_pv = info.kind() == DomainKind::Pv;
        let shared_info = match read {
            Ok(()) => Some(page),
            // It need not be mapped in a translated guest.
            Err(_) if !is_pv => None,
            Err(error) => return Err(error.into()),
        };
        let (frames, todo) = if let (true, Some(shared_info)) = (is_pv, &shared_info) {
            let p2m = P2m::read(xen, &info, shared_info)?;
            let todo: FrameSet = p2m.pfns().collect();
            (Frames::Pv { p2m, lost: FrameSet::default() }, todo)
        } else {
            let mut frames = Translated::default();
            let _all_are_new = frames.learn(xen, &info)?;
            let todo = frames.all();
            (Frames::Translated(frames), todo)
        };
        let pages = todo.len();
        let head = Head { version: &version, contexts: &contexts, shared_info, pages, is_pv };
        let (head, names) = head.encode();
        Ok(Self { domid, frames, head, names, pages, todo })
    }

    /// What comes before the pages.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// How many pages there are.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Reads the next pages into a buffer that is reused; false if none are left. A page that has gone since is left out.
    ///
    /// # Errors
    /// Xen refuses to say which frames are the guest's.
    pub fn next<H: Hypervisor>(
        &mut self,
        xen: &mut Xen<H>,
        batch: &mut PageData,
    ) -> Result<bool, CaptureError> {
        batch.pages.clear();
        batch.data.clear();
        let mut frames = Vec::with_capacity(BATCH_PAGES);
        while let Some(block) = self.todo.take_block(BATCH_PAGES - frames.len()) {
            frames.extend(block);
        }
        if frames.is_empty() {
            return Ok(false);
        }
        match &mut self.frames {
            Frames::Translated(known) => {
                known.read(xen, self.domid, Round::Live, &frames, batch)?;
            }
            Frames::Pv { p2m, lost } => read_pv(xen, self.domid, p2m, lost, &frames, batch)?,
        }
        Ok(true)
    }

    /// What comes after the pages, in pieces: zeros in place of pages that were left out, the table of frames, names.
    pub fn tail(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let (read, lost): (Box<dyn Iterator<Item = [u64; 2]> + '_>, u64) = match &self.frames {
            Frames::Translated(known) => {
                let read = known.frames();
                (Box::new(read.iter().map(|frame| [frame, frame])), self.pages - read.len())
            }
            Frames::Pv { p2m, lost } => {
                let read = p2m.pairs().filter(|(pfn, _)| !lost.contains(*pfn));
                (Box::new(read.map(|(pfn, mfn)| [pfn, mfn])), lost.len())
            }
        };
        let words = match self.frames {
            Frames::Translated(_) => 1,
            Frames::Pv { .. } => 2,
        };
        let zeros = (0..lost).map(|_| vec![0; PAGE_BYTES]);
        let none = (0..lost).map(|_| [elf::NO_FRAME; 2]);
        let mut table = read.chain(none).peekable();
        let table = std::iter::from_fn(move || {
            table.peek()?;
            let piece = table.by_ref().take(TABLE_FRAMES);
            Some(
                piece
                    .flat_map(|entry| entry.into_iter().take(words))
                    .flat_map(u64::to_le_bytes)
                    .collect(),
            )
        });
        zeros.chain(table).chain([self.names.clone()])
    }
}

/// Reads pages of a PV guest as they are. Those that cannot be read are lost.
fn read_pv<H: Hypervisor>(
    xen: &mut Xen<H>,
    domid: DomId,
    p2m: &P2m,
    lost: &mut FrameSet,
    frames: &[u64],
    batch: &mut PageData,
) -> Result<(), CaptureError> {
    let in_list = frames.iter().filter_map(|pfn| Some((*pfn, p2m.mfn(*pfn)?)));
    let (pfns, mfns): (Vec<u64>, Vec<u64>) = in_list.unzip();
    let mut there = pfns;
    if fill(xen, domid, &mfns, batch).is_err() {
        // Some are of devices, or of other domains.
        let refused = CaptureError::refused(domid, "ask for the use of the frames of");
        let uses = xen.frame_uses(domid, &mfns).map_err(refused)?;
        let mut data = Vec::new();
        let all = there.into_iter().zip(mfns).zip(uses);
        there = Vec::new();
        for ((pfn, mfn), is) in all {
            let is_memory = matches!(is, FrameUse::Memory | FrameUse::Table { .. });
            if is_memory && fill(xen, domid, &[mfn], batch).is_ok() {
                data.extend_from_slice(&batch.data);
                there.push(pfn);
            } else {
                lost.insert(pfn);
            }
        }
        batch.data = data;
    }
    batch.pages.extend(there.into_iter().map(|pfn| (pfn, PageType::Normal)));
    Ok(())
}
