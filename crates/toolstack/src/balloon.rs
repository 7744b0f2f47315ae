//! Memory of domain 0 that VMs may have: what xl calls autoballoon.
//!
//! ```text
//!   Balloon::next(what there is now) -> Done | Lower(target) | Wait | Stuck | Missing(KiB)
//! ```
//! Domain 0 is given a lower target, and gives memory back to Xen until it has no more than that. How much that is differs
//! by some MiB between Xen and Linux, so the target is lowered again if domain 0 has arrived and there is still too little.
//!
//! Source: xen `freemem` in `tools/xl/xl_vmcontrol.c`, `auto_autoballoon` in `tools/xl/xl.c`.

/// What domain 0 keeps unless the daemon is told otherwise. (Below 128 MiB libxl refuses, too.)
pub const DOM0_KIB_LEAST: u64 = 512 << 10;

/// Of the memory that domain 0's kernel could give, so much stays for what its programs do next.
const SPARED_KIB: u64 = 64 << 10;

/// Domain 0 has arrived if it has no more than this above its target.
const NEAR_KIB: u64 = 32 << 10;

const SECOND: u64 = 1_000_000_000;

/// A time without progress after which the target is lowered further, if domain 0 has arrived.
const SETTLED_NS: u64 = 3 * SECOND;

/// A time without progress after which nobody waits any more.
const STUCK_NS: u64 = 30 * SECOND;

/// `autoballoon` of `xl.conf`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Autoballoon {
    On,
    Off,
    /// On, unless the memory of domain 0 is limited on Xen's command line.
    #[default]
    Auto,
}

impl Autoballoon {
    #[must_use]
    pub fn is_on(self, xen_commandline: &str) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Auto => !xen_commandline.split(' ').any(limits_dom0),
        }
    }
}

/// Whether a word of Xen's command line says how much memory domain 0 has.
fn limits_dom0(word: &str) -> bool {
    let Some(amounts) = word.strip_prefix("dom0_mem=") else { return false };
    let amounts = amounts.strip_suffix(',').unwrap_or(amounts);
    amounts.split(',').all(|amount| {
        let amount =
            ["min:", "max:"].iter().find_map(|it| amount.strip_prefix(it)).unwrap_or(amount);
        match amount.strip_suffix('%') {
            None => is_size(amount),
            Some(part) => match part.rsplit_once('+') {
                Some((size, part)) => is_size(size) && is_part(part),
                None => is_part(part),
            },
        }
    })
}

fn is_size(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let digits = text.strip_suffix(|c: char| "bBkKmMgGtT".contains(c)).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
}

fn is_part(text: &str) -> bool {
    matches!(text.len(), 1..=2) && text.bytes().all(|it| it.is_ascii_digit())
}

/// What the host says about domain 0's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dom0Policy {
    pub autoballoon: Autoballoon,
    /// It never has less.
    pub least_kib: u64,
    /// How much its kernel could give without taking it from programs, if that is known.
    pub available_kib: Option<u64>,
}

/// Domain 0's memory, as Xen and the store have it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Dom0Memory {
    pub(crate) has_kib: u64,
    pub(crate) target_kib: u64,
}

impl Dom0Memory {
    /// The target below which it is not brought.
    fn floor_kib(self, policy: &Dom0Policy) -> u64 {
        let givable = policy.available_kib.map(|it| it.saturating_sub(SPARED_KIB));
        let used = givable.map_or(0, |givable| self.has_kib.saturating_sub(givable));
        used.max(policy.least_kib)
    }

    fn base_kib(self) -> u64 {
        self.has_kib.min(self.target_kib)
    }

    /// How much it can give.
    pub(crate) fn givable_kib(self, policy: &Dom0Policy) -> u64 {
        self.base_kib().saturating_sub(self.floor_kib(policy))
    }
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    /// There is enough.
    Done,
    /// Give domain 0 this target.
    Lower {
        target_kib: u64,
    },
    Wait,
    /// Domain 0 gives nothing more.
    Stuck,
    /// It may not give more, and so much is missing.
    Missing {
        kib: u64,
    },
}

/// A request for memory, until it is there.
#[derive(Clone, Debug)]
pub(crate) struct Balloon {
    needed_kib: u64,
    floor_kib: u64,
    /// What domain 0 is to have, once it was told.
    target_kib: Option<u64>,
    /// The least that it has had so far, and since when.
    least_kib: u64,
    progress_ns: u64,
    lowered_ns: u64,
}

impl Balloon {
    pub(crate) fn new(needed_kib: u64, dom0: Dom0Memory, policy: &Dom0Policy, now_ns: u64) -> Self {
        Self {
            needed_kib,
            floor_kib: dom0.floor_kib(policy),
            target_kib: None,
            least_kib: dom0.has_kib,
            progress_ns: now_ns,
            lowered_ns: now_ns,
        }
    }

    /// `free_kib` is what nobody has claimed.
    pub(crate) fn next(&mut self, now_ns: u64, free_kib: u64, dom0: Dom0Memory) -> Next {
        let short = self.needed_kib.saturating_sub(free_kib);
        if short == 0 {
            return Next::Done;
        }
        if dom0.has_kib < self.least_kib {
            self.least_kib = dom0.has_kib;
            self.progress_ns = now_ns;
        }
        let Some(target) = self.target_kib else {
            return self.lower(now_ns, dom0.base_kib(), short);
        };
        let idle = now_ns.saturating_sub(self.progress_ns);
        let settled = idle.min(now_ns.saturating_sub(self.lowered_ns)) >= SETTLED_NS;
        if idle >= STUCK_NS {
            Next::Stuck
        } else if settled && dom0.has_kib <= target + NEAR_KIB {
            self.lower(now_ns, target.min(dom0.has_kib), short)
        } else {
            Next::Wait
        }
    }

    fn lower(&mut self, now_ns: u64, base_kib: u64, short_kib: u64) -> Next {
        let most = base_kib.saturating_sub(self.floor_kib);
        if short_kib > most {
            return Next::Missing { kib: short_kib - most };
        }
        let target_kib = base_kib - short_kib;
        self.target_kib = Some(target_kib);
        self.lowered_ns = now_ns;
        Next::Lower { target_kib }
    }

    /// Whether domain 0 was told anything.
    pub(crate) fn has_lowered(&self) -> bool {
        self.target_kib.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 10;

    fn policy(least_mib: u64, available_mib: Option<u64>) -> Dom0Policy {
        Dom0Policy {
            autoballoon: Autoballoon::On,
            least_kib: least_mib * MIB,
            available_kib: available_mib.map(|it| it * MIB),
        }
    }

    fn dom0(has_mib: u64, target_mib: u64) -> Dom0Memory {
        Dom0Memory { has_kib: has_mib * MIB, target_kib: target_mib * MIB }
    }

    #[test]
    fn auto_depends_on_xens_command_line() {
        for limited in [
            "dom0_mem=2G",
            "placeholder dom0_mem=1024M,max:1024M com1=115200",
            "dom0_mem=min:512M,max:50%",
            "dom0_mem=max:1G+10%,",
            "dom0_mem=-256M",
            "x dom0_mem=1048576",
        ] {
            assert!(!Autoballoon::Auto.is_on(limited), "{limited}");
            assert!(Autoballoon::On.is_on(limited));
        }
        for free in [
            "",
            "placeholder console=com1",
            "dom0_mem=",
            "dom0_mem=lots",
            "dom0_mem=100%",
            "xdom0_mem=1G",
            "dom0_max_vcpus=2",
        ] {
            assert!(Autoballoon::Auto.is_on(free), "{free}");
            assert!(!Autoballoon::Off.is_on(free));
        }
    }

    #[test]
    fn domain_0_keeps_its_least_and_what_it_uses() {
        // Limit, available; has, target; givable.
        for (least, available, has, target, givable) in [
            (512, None, 2048, 2048, 1536),
            (512, Some(2000), 2048, 2048, 1536),
            // 1448 of 2048 MiB are in use, or spared.
            (512, Some(664), 2048, 2048, 600),
            (512, Some(20), 2048, 2048, 0),
            // It is giving already.
            (512, None, 2048, 1024, 512),
            (512, None, 400, 400, 0),
            (0, None, 400, 400, 400),
        ] {
            let policy = policy(least, available);
            assert_eq!(dom0(has, target).givable_kib(&policy), givable * MIB, "{policy:?}");
        }
    }

    #[test]
    fn the_target_is_lowered_by_what_is_missing_and_again_if_that_was_not_enough() {
        let mut it = Balloon::new(300 * MIB, dom0(1000, 1000), &policy(512, None), 0);
        assert_eq!(it.next(0, 100 * MIB, dom0(1000, 1000)), Next::Lower { target_kib: 800 * MIB });
        assert!(it.has_lowered());
        assert_eq!(it.next(SECOND, 200 * MIB, dom0(900, 800)), Next::Wait);
        // Linux counts ten MiB less than Xen.
        assert_eq!(it.next(2 * SECOND, 290 * MIB, dom0(810, 800)), Next::Wait);
        assert_eq!(it.next(4 * SECOND, 290 * MIB, dom0(810, 800)), Next::Wait);
        let again = Next::Lower { target_kib: 790 * MIB };
        assert_eq!(it.next(5 * SECOND, 290 * MIB, dom0(810, 800)), again);
        assert_eq!(it.next(6 * SECOND, 300 * MIB, dom0(800, 790)), Next::Done);
    }

    #[test]
    fn what_may_not_be_given_is_missing_and_nothing_is_asked_for() {
        let mut it = Balloon::new(1000 * MIB, dom0(1000, 1000), &policy(512, None), 0);
        let missing = Next::Missing { kib: 412 * MIB };
        assert_eq!(it.next(0, 100 * MIB, dom0(1000, 1000)), missing);
        assert!(!it.has_lowered());
    }

    #[test]
    fn a_domain_0_that_gives_nothing_is_not_waited_for_and_not_asked_for_more() {
        let mut it = Balloon::new(300 * MIB, dom0(1000, 1000), &policy(512, None), 0);
        it.next(0, 0, dom0(1000, 1000));
        for second in 1..30 {
            assert_eq!(it.next(second * SECOND, 0, dom0(1000, 700)), Next::Wait, "{second}");
        }
        assert_eq!(it.next(30 * SECOND, 0, dom0(1000, 700)), Next::Stuck);
    }
}
