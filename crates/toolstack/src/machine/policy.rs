//! What follows when a domain has stopped by itself.

use xen::{ShutdownReason, Uuid};

use super::events::VmState;
use super::operation::Then;
use super::{Action, Instant, Toolstack};
use crate::config::{ShutdownAction, VmConfig};

/// So many crashes within so many seconds are a loop: the VM is left down.
const CRASHES_MAX: usize = 5;
const CRASHES_SECONDS: u64 = 300;

/// The word for why a domain stopped.
pub(super) fn word(reason: ShutdownReason) -> &'static str {
    match reason {
        ShutdownReason::Poweroff => "poweroff",
        ShutdownReason::Reboot => "reboot",
        ShutdownReason::Suspend => "suspend",
        ShutdownReason::Crash => "crash",
        ShutdownReason::Watchdog => "watchdog",
        ShutdownReason::SoftReset => "soft reset",
        ShutdownReason::Other(_) => "stopped for an unknown reason",
    }
}

/// Why a VM with these policies cannot run, if it asks for what is not done.
pub(super) fn refusal(config: &VmConfig) -> Option<String> {
    refusals(config).into_iter().next()
}

/// As [`refusal`], for each of its policies.
pub(super) fn refusals(config: &VmConfig) -> Vec<String> {
    let policy = &config.policy;
    let wanted = [
        ("on_poweroff", policy.poweroff),
        ("on_reboot", policy.reboot),
        ("on_crash", policy.crash),
        ("on_watchdog", policy.watchdog),
        ("on_soft_reset", policy.soft_reset),
    ];
    let refusal = |(key, action): (&str, ShutdownAction)| {
        let instead = match action {
            ShutdownAction::CoredumpDestroy => "\"preserve\" keeps the domain for inspection",
            ShutdownAction::CoredumpRestart => "\"restart\" starts the VM again without a core",
            ShutdownAction::RenameRestart => {
                "\"preserve\" keeps the domain, \"restart\" starts the VM again"
            }
            ShutdownAction::SoftReset if key != "on_soft_reset" => "use \"restart\"",
            // Where it is the default, a guest that asks for it is restarted.
            _ => return None,
        };
        Some(format!("{}: {} is not supported; {instead}", config.origin.at(key), action.as_str()))
    };
    wanted.into_iter().filter_map(refusal).collect()
}

impl Toolstack {
    /// Follows the VM's policy. No reason means that somebody else destroyed the domain.
    pub(super) fn domain_stopped(
        &mut self,
        now: Instant,
        uuid: Uuid,
        reason: Option<ShutdownReason>,
        out: &mut Vec<Action>,
    ) {
        let vm = self.vms.get_mut(&uuid).expect("a stopped VM is known");
        vm.stopped = reason;
        let policy = vm.config.policy;
        let action = match reason {
            None => ShutdownAction::Destroy,
            Some(ShutdownReason::Poweroff) => policy.poweroff,
            Some(ShutdownReason::Reboot) => policy.reboot,
            // A suspended domain waits for whoever suspended it.
            Some(ShutdownReason::Suspend) => return,
            Some(ShutdownReason::Watchdog) => policy.watchdog,
            Some(ShutdownReason::SoftReset) => policy.soft_reset,
            Some(ShutdownReason::Crash | ShutdownReason::Other(_)) => policy.crash,
        };
        match action {
            ShutdownAction::Preserve => {
                let why = reason.map_or("", word);
                self.changed(now, uuid, VmState::Preserved, why);
            }
            ShutdownAction::Destroy | ShutdownAction::CoredumpDestroy => {
                self.take_over(now, uuid, Then::Gone, out);
            }
            ShutdownAction::Restart
            | ShutdownAction::RenameRestart
            | ShutdownAction::CoredumpRestart
            | ShutdownAction::SoftReset => {
                let then = match self.crashes_in_a_loop(now, uuid, out) {
                    true => Then::Gone,
                    false => Then::Rebooted,
                };
                self.take_over(now, uuid, then, out);
            }
        }
    }

    /// Counts a crash; says, and tells, whether it was one too many in a short time.
    fn crashes_in_a_loop(&mut self, now: Instant, uuid: Uuid, out: &mut Vec<Action>) -> bool {
        let vm = self.vms.get_mut(&uuid).expect("a stopped VM is known");
        let wanted = [Some(ShutdownReason::Reboot), Some(ShutdownReason::Poweroff)];
        if wanted.contains(&vm.stopped) {
            return false;
        }
        vm.crashes.push_back(now);
        while vm.crashes.front().is_some_and(|crash| crash.plus_seconds(CRASHES_SECONDS) < now) {
            vm.crashes.pop_front();
        }
        if vm.crashes.len() < CRASHES_MAX {
            return false;
        }
        let why = format!("crashed {CRASHES_MAX} times within {CRASHES_SECONDS} s, is left down");
        let message = format!("{}: {why}; its console says more", vm.config.name);
        vm.why = Some(why);
        out.push(Action::Note { message });
        true
    }
}
