//! How much memory a domain has, and may have.
//!
//! Source: xen `tools/libs/light/libxl_mem.c`.

use xen::{DomId, DomainKind, Hypervisor};
use xenstore::client::{Batch, Nodes as _, Transport};

use super::Subject;
use crate::host::Host;
use crate::layout::{self, Nodes};
use crate::perform::{Performer, refused, store};
use crate::tuning::amount;
use crate::work::Failure;

/// The least that domain 0 is left with.
const DOM0_KIB_MIN: u64 = 128 << 10;

/// A domain's memory as the store has it, in KiB.
struct MemoryNodes {
    target: u64,
    max: u64,
    video: u64,
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn memory_nodes(&mut self, subject: &Subject) -> Result<MemoryNodes, Failure> {
        let mut look = Batch::new();
        let names = ["target", "static-max", "videoram"];
        let paths = names.map(|name| subject.node(&format!("memory/{name}")));
        let [target, max, video] = [0, 1, 2].map(|at| look.read(&paths[at]));
        let replies = self.store.run(&look)?;
        let kib = |index, path: &str| match replies.get_optional(index)?.map(store::text) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(kib) => Ok(Some(kib)),
                Err(_) => Err(subject.refuse(&format!("{path} is no number of KiB: {text:?}"))),
            },
        };
        let (target, max) = (kib(target, &paths[0])?, kib(max, &paths[1])?);
        // libxl reads it like this too: what is no number, is none.
        let video = replies.get_optional(video)?.map(store::text);
        let video = video.and_then(|text| text.parse().ok()).unwrap_or(0);
        let (target, max) = match (target, max) {
            (Some(target), Some(max)) => (target, max),
            // Nobody has written them for domain 0.
            (target, max) if subject.vm.is_none() => {
                let info = self.xen.domain(DomId::DOM0).map_err(refused("look up", DomId::DOM0))?;
                let info = info.unwrap_or_default();
                (target.unwrap_or(info.pages * 4), max.unwrap_or(info.pages_max.saturating_mul(4)))
            }
            (None, _) => return Err(subject.refuse(&format!("{} is missing", paths[0]))),
            (_, None) => return Err(subject.refuse(&format!("{} is missing", paths[1]))),
        };
        Ok(MemoryNodes { target, max, video })
    }

    pub(super) fn tune_memory_max(
        &mut self,
        subject: &Subject,
        kib: u64,
    ) -> Result<Nodes, Failure> {
        let now = self.memory_nodes(subject)?;
        if kib < now.target {
            return Err(subject.refuse(&format!(
                "a maximum of {} is below its memory of {}; lower that first with `xy mem-set`",
                amount(kib),
                amount(now.target)
            )));
        }
        self.limit_memory(subject, kib)?;
        let mut nodes = Nodes::default();
        nodes.put(subject.node("memory/static-max"), kib.to_string());
        Ok(nodes)
    }

    pub(super) fn tune_memory_target(
        &mut self,
        subject: &Subject,
        kib: u64,
    ) -> Result<Nodes, Failure> {
        let now = self.memory_nodes(subject)?;
        let Some(target) = kib.checked_sub(now.video) else {
            let (kib, video) = (amount(kib), amount(now.video));
            return Err(subject.refuse(&format!("{kib} is less than its video memory of {video}")));
        };
        if target > now.max {
            return Err(subject.refuse(&format!(
                "{} is above its maximum of {}; raise that first with `xy mem-max`",
                amount(kib),
                amount(now.max)
            )));
        }
        if subject.vm.is_none() && target < DOM0_KIB_MIN {
            let (kib, least) = (amount(target), amount(DOM0_KIB_MIN));
            return Err(subject.refuse(&format!("{kib} is less than domain 0 needs, {least}")));
        }
        self.limit_memory(subject, kib)?;
        if subject.kind != DomainKind::Pv {
            let domid = subject.domid();
            let pages = (target + xen_build::extra_kib(subject.kind)) / 4;
            let set = self.xen.set_pod_target(domid, pages);
            set.map_err(refused("set the memory target of", domid))?;
        }
        let mut nodes = Nodes::default();
        if subject.vm.is_none() {
            nodes.put(subject.node("memory/static-max"), now.max.to_string());
        }
        nodes.put(subject.node("memory/target"), target.to_string());
        if let Some((_, uuid)) = subject.vm {
            let path = format!("{}/memory", layout::vm_path(uuid));
            nodes.put(path, (target / 1024).to_string());
        }
        Ok(nodes)
    }

    /// The hypervisor's own limit, above which the guest cannot take memory.
    fn limit_memory(&mut self, subject: &Subject, kib: u64) -> Result<(), Failure> {
        let domid = subject.domid();
        let limit = kib.saturating_add(xen_build::extra_kib(subject.kind));
        self.xen.set_memory_max(domid, limit).map_err(refused("limit the memory of", domid))
    }
}
