//! What must be true of two hosts at every moment.

use sim::{DiskUse, Span};
use storage::Access;
use xen::Uuid;

/// VMs that ran on both hosts at once: one line each.
#[must_use]
pub fn twice(runs: &[Vec<Span<Uuid>>; 2]) -> Vec<String> {
    let [left, right] = runs;
    let mut lines = Vec::new();
    for one in left {
        for other in right.iter().filter(|it| it.what == one.what && it.overlaps(one)) {
            let (uuid, there) = (one.what, other.domid);
            lines.push(format!(
                "VM {uuid} runs on the left as domain {} since {}, and on the right as domain {there} since {}",
                one.domid, one.began, other.began
            ));
        }
    }
    for spans in runs {
        for (at, one) in spans.iter().enumerate() {
            let others = spans[at + 1..].iter();
            for other in others.filter(|it| it.what == one.what && it.overlaps(one)) {
                let (uuid, since) = (one.what, other.began);
                lines.push(format!("VM {uuid} runs twice on one host since {since}"));
            }
        }
    }
    lines
}

/// Shared disks that backends of both hosts had connected at once, one of them for writing.
#[must_use]
pub fn written_twice(uses: &[Vec<Span<DiskUse>>; 2], shared: &str) -> Vec<String> {
    let [left, right] = uses;
    let mut lines = Vec::new();
    for one in left.iter().filter(|it| it.what.disk.starts_with(shared)) {
        let same = right.iter().filter(|it| it.what.disk == one.what.disk && it.overlaps(one));
        for other in same {
            let writes = [one, other].iter().any(|it| it.what.access == Access::ReadWrite);
            if writes {
                let (disk, since) = (&one.what.disk, one.began.max(other.began));
                lines.push(format!("{disk} is connected on both hosts since {since}"));
            }
        }
    }
    lines
}

/// The VMs that run at the end: how often each.
#[must_use]
pub fn running(runs: &[Vec<Span<Uuid>>; 2], uuid: Uuid) -> [usize; 2] {
    [0, 1].map(|side: usize| {
        runs[side].iter().filter(|it| it.what == uuid && it.ended.is_none()).count()
    })
}
