//! What shall go wrong: a plan that the machine follows to the letter.

use xen::Errno;

use crate::prng::Prng;

/// Which hypercalls a rule is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Calls {
    /// All of them, counted together.
    All,
    /// Those of one name, as [`xen::Counters`] spells it.
    Named(&'static str),
}

/// What happens to a VIRQ that the hypervisor raises.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum VirqFate {
    #[default]
    Delivered,
    Lost,
    /// It arrives this many nanoseconds later, together with all others that were raised meanwhile.
    Late(u64),
}

/// Where a hypercall that can be preempted is: between two of its steps, others act and time passes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Preemption {
    #[default]
    Never,
    /// At every point at which Xen looks whether something else is to be done.
    Everywhere,
    /// At one point of so many, by chance.
    OneOf(u64),
}

/// Whether a call that fails did what it was told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Strikes {
    Before,
    /// Only the answer is lost.
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
    /// How long a translated domain's vCPUs wait for its device model before a shutdown is complete, in
    /// nanoseconds.
    pub shutdown_deferred_ns: u64,
    toolstack: Life,
}

/// Whether the toolstack's process still runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Life {
    #[default]
    Lives,
    /// It dies at its action of this number, counting down.
    DiesAfter(u64),
    Dead,
}

impl Faults {
    /// The `k`-th of these calls from now on, counted from 1, fails before it has any effect.
    pub fn fail(&mut self, calls: Calls, k: u64, errno: Errno) {
        assert!(k > 0, "calls are counted from 1");
        self.rules.push(Rule { calls, countdown: k, errno, strikes: Strikes::Before });
    }

    /// The `k`-th of these calls from now on, counted from 1, does what it is told and then says that it
    /// failed, as one whose answer could not be written into the caller's memory.
    pub fn fail_after(&mut self, calls: Calls, k: u64, errno: Errno) {
        assert!(k > 0, "calls are counted from 1");
        self.rules.push(Rule { calls, countdown: k, errno, strikes: Strikes::After });
    }

    /// The fates of the next VIRQs, in order; later ones follow [`Faults::virq_fate`].
    pub fn virqs(&mut self, fates: &[VirqFate]) {
        self.virqs = fates.iter().rev().copied().collect();
    }

    /// The toolstack's process is killed at its `k`-th action from now on, counted from 1. Actions are
    /// hypercalls and writes to the store's socket; of such a write only half is sent. Nothing that the
    /// dead process does has an effect, until [`Faults::revive_toolstack`].
    pub fn kill_toolstack(&mut self, k: u64) {
        assert!(k > 0, "actions are counted from 1");
        self.toolstack = Life::DiesAfter(k);
    }

    /// A new process takes the dead one's place.
    pub fn revive_toolstack(&mut self) {
        self.toolstack = Life::Lives;
    }

    #[must_use]
    pub fn is_toolstack_dead(&self) -> bool {
        self.toolstack == Life::Dead
    }

    /// Counts an action of the toolstack's. False if it is dead now.
    pub(crate) fn count_action(&mut self) -> bool {
        if let Life::DiesAfter(left) = self.toolstack {
            self.toolstack = if left > 1 { Life::DiesAfter(left - 1) } else { Life::Dead };
        }
        self.toolstack != Life::Dead
    }

    /// Rules that have not struck yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.rules.len()
    }

    /// A call begins: what it fails with, without having had an effect.
    pub(crate) fn strike(&mut self, name: &str) -> Option<Errno> {
        self.strike_if(name, Strikes::Before)
    }

    /// A call has had its effect: what it fails with nevertheless.
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

    /// Whether something else is to be done at this point of a long call.
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
    fn a_rule_strikes_the_call_it_names_once() {
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
