//! Fault injection: a plan of faults that the machine executes.

use xen::Errno;

use crate::prng::Prng;

/// The hypercalls of a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Calls {
    /// All, counted together.
    All,
    /// Those of one name, as in [`xen::Counters`].
    Named(&'static str),
}

/// What happens to a VIRQ that the hypervisor raises.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum VirqFate {
    #[default]
    Delivered,
    Lost,
    /// It arrives this many nanoseconds later, merged with all others raised meanwhile.
    Late(u64),
}

/// Where preemptible hypercalls are preempted: between two steps, others act and time passes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Preemption {
    #[default]
    Never,
    /// At every preemption check of Xen.
    Everywhere,
    /// At one check in this many, at random.
    OneOf(u64),
}

/// Whether a failing call has taken effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Strikes {
    Before,
    /// Only the result is lost.
    After,
}

#[derive(Clone, Debug)]
struct Rule {
    calls: Calls,
    /// Counts down; the call that finds 1 fails.
    countdown: u64,
    errno: Errno,
    strikes: Strikes,
}

/// A plan of faults. The default plan has none.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    rules: Vec<Rule>,
    virqs: Vec<VirqFate>,
    pub virq_fate: VirqFate,
    pub preemption: Preemption,
    /// How long a translated domain's shutdown is deferred by its device model, in nanoseconds.
    pub shutdown_deferred_ns: u64,
    toolstack: Life,
}

/// Whether the toolstack's process is alive.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Life {
    #[default]
    Lives,
    /// It is killed at this action from now on.
    DiesAfter(u64),
    Dead,
}

impl Faults {
    /// The `k`-th of these calls from now on, counted from 1, fails before it has any effect.
    pub fn fail(&mut self, calls: Calls, k: u64, errno: Errno) {
        assert!(k > 0, "calls are counted from 1");
        self.rules.push(Rule { calls, countdown: k, errno, strikes: Strikes::Before });
    }

    /// The `k`-th of these calls from now on, counted from 1, takes effect and then fails, like one
    /// whose result could not be copied to the caller.
    pub fn fail_after(&mut self, calls: Calls, k: u64, errno: Errno) {
        assert!(k > 0, "calls are counted from 1");
        self.rules.push(Rule { calls, countdown: k, errno, strikes: Strikes::After });
    }

    /// The fates of the next VIRQs, in order; later ones follow [`Faults::virq_fate`].
    pub fn virqs(&mut self, fates: &[VirqFate]) {
        self.virqs = fates.iter().rev().copied().collect();
    }

    /// The toolstack's process is killed at its `k`-th action from now on, counted from 1. Actions
    /// are hypercalls and writes to the store's socket; of such a write only half is sent. The dead
    /// process has no further effect until [`Faults::revive_toolstack`].
    pub fn kill_toolstack(&mut self, k: u64) {
        assert!(k > 0, "actions are counted from 1");
        self.toolstack = Life::DiesAfter(k);
    }

    /// A new process replaces the killed one.
    pub fn revive_toolstack(&mut self) {
        self.toolstack = Life::Lives;
    }

    #[must_use]
    pub fn is_toolstack_dead(&self) -> bool {
        self.toolstack == Life::Dead
    }

    /// Counts an action of the toolstack. False if it is dead now.
    pub(crate) fn count_action(&mut self) -> bool {
        if let Life::DiesAfter(left) = self.toolstack {
            self.toolstack = if left > 1 { Life::DiesAfter(left - 1) } else { Life::Dead };
        }
        self.toolstack != Life::Dead
    }

    /// Number of pending rules.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.rules.len()
    }

    /// The error with which a call fails before taking effect, if any.
    pub(crate) fn strike(&mut self, name: &str) -> Option<Errno> {
        self.strike_if(name, Strikes::Before)
    }

    /// The error with which a call fails after taking effect, if any.
    pub(crate) fn strike_after(&mut self, name: &str) -> Option<Errno> {
        self.strike_if(name, Strikes::After)
    }

    fn strike_if(&mut self, name: &str, strikes: Strikes) -> Option<Errno> {
        let mut struck = None;
        self.rules.retain_mut(|rule| {
            let is_other = matches!(rule.calls, Calls::Named(wanted) if wanted != name);
            if is_other || rule.strikes != strikes {
                return true;
            }
            rule.countdown -= 1;
            if rule.countdown == 0 {
                struck = struck.or(Some(rule.errno));
            }
            rule.countdown > 0
        });
        struck
    }

    /// Whether a long call is preempted here.
    pub(crate) fn preempts(&self, prng: &mut Prng) -> bool {
        match self.preemption {
            Preemption::Never => false,
            Preemption::Everywhere => true,
            Preemption::OneOf(points) => prng.below(points) == 0,
        }
    }

    pub(crate) fn next_virq(&mut self) -> VirqFate {
        self.virqs.pop().unwrap_or(self.virq_fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_fails_the_named_call_once() {
        let mut faults = Faults::default();
        faults.fail(Calls::Named("b"), 2, Errno::ENOMEM);
        let struck: Vec<_> = ["a", "b", "a", "b", "b"].map(|name| faults.strike(name)).into();
        assert_eq!(struck, [None, None, None, Some(Errno::ENOMEM), None]);
        faults.fail(Calls::All, 1, Errno::EFAULT);
        assert_eq!(faults.strike("anything"), Some(Errno::EFAULT));
        faults.fail_after(Calls::Named("a"), 1, Errno::EFAULT);
        assert_eq!((faults.strike("a"), faults.strike_after("b")), (None, None));
        assert_eq!(faults.strike_after("a"), Some(Errno::EFAULT));
    }
}
