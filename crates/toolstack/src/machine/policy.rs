//! Policies: what follows when a domain has stopped by itself.

use xen::{ShutdownReason, Uuid};

use super::changes::DomainEnd;
use super::events::VmState;
use super::operation::Outcome;
use super::{Action, Instant, Toolstack};
use crate::config::{ShutdownAction, VmConfig};

/// This many crashes within this many seconds count as a loop: the VM is left down.
const CRASHES_MAX: usize = 5;
const CRASHES_SECONDS: u64 = 300;

/// A domain that stops by itself sooner counts as short-lived. The first is restarted at once;
/// after the second in a row the restart is delayed by a second, doubled each time up to the
/// maximum.
const LIFE_SECONDS_MIN: u64 = 10;
const RESTART_DELAY_SECONDS_MAX: u64 = 60;

/// Delay after this many short lives in a row.
fn restart_delay(short_lives: u32) -> u64 {
    match short_lives {
        0 | 1 => 0,
        many => (1 << (many - 2).min(16)).min(RESTART_DELAY_SECONDS_MAX),
    }
}

fn ordinal(number: u32) -> String {
    let suffix = match (number % 10, number % 100) {
        (1, teens) if teens != 11 => "st",
        (2, teens) if teens != 12 => "nd",
        (3, teens) if teens != 13 => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

/// Name of a shutdown reason.
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

/// Why these policies are refused, if one is not supported.
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
            ShutdownAction::RenameRestart => {
                "\"preserve\" keeps the domain, \"restart\" starts the VM again"
            }
            ShutdownAction::SoftReset if key != "on_soft_reset" => "use \"restart\"",
            // It is the default there, and the guest is restarted.
            _ => return None,
        };
        Some(format!("{}: {} is not supported; {instead}", config.origin.at(key), action.as_str()))
    };
    wanted.into_iter().filter_map(refusal).collect()
}

impl Toolstack {
    /// Applies the VM's policy. No reason means that the domain was destroyed by others.
    pub(super) fn domain_stopped(
        &mut self,
        now: Instant,
        uuid: Uuid,
        end: DomainEnd,
        out: &mut Vec<Action>,
    ) {
        let reason = end.reason();
        let vm = self.vms.get_mut(&uuid).expect("a stopped VM is known");
        // It has stopped before, and its restart is delayed.
        if reason.is_some() && vm.restart_at.is_some() {
            return;
        }
        vm.restart_at = None;
        vm.stopped = reason;
        let policy = vm.config.policy;
        let action = match reason {
            None => ShutdownAction::Destroy,
            Some(ShutdownReason::Poweroff) => policy.poweroff,
            Some(ShutdownReason::Reboot) => policy.reboot,
            Some(ShutdownReason::Suspend) => return self.found_suspended(now, uuid, out),
            Some(ShutdownReason::Watchdog) => policy.watchdog,
            Some(ShutdownReason::SoftReset) => policy.soft_reset,
            Some(ShutdownReason::Crash | ShutdownReason::Other(_)) => policy.crash,
        };
        self.follow(now, uuid, action, out);
    }

    /// Does what a policy says of a domain that has stopped.
    pub(super) fn follow(
        &mut self,
        now: Instant,
        uuid: Uuid,
        action: ShutdownAction,
        out: &mut Vec<Action>,
    ) {
        match action {
            ShutdownAction::Preserve => {
                let why = self.vms[&uuid].stopped.map_or("", word);
                self.changed(now, uuid, VmState::Preserved, why);
            }
            ShutdownAction::Destroy => self.take_over(now, uuid, Outcome::Gone, out),
            ShutdownAction::CoredumpDestroy => {
                self.dump_stopped(now, uuid, ShutdownAction::Destroy, out);
            }
            ShutdownAction::CoredumpRestart => {
                self.dump_stopped(now, uuid, ShutdownAction::Restart, out);
            }
            ShutdownAction::Restart | ShutdownAction::RenameRestart | ShutdownAction::SoftReset => {
                if self.crashes_in_a_loop(now, uuid, out) {
                    self.take_over(now, uuid, Outcome::Gone, out);
                } else {
                    self.restart(now, uuid, out);
                }
            }
        }
    }

    /// Restarts a VM, with a delay if its domains stop repeatedly right after their start. Until
    /// then the stopped domain is kept.
    fn restart(&mut self, now: Instant, uuid: Uuid, out: &mut Vec<Action>) {
        let vm = self.vms.get_mut(&uuid).expect("a stopped VM is known");
        let is_short = vm.began.is_some_and(|began| now < began.plus_seconds(LIFE_SECONDS_MIN));
        vm.short_lives = if is_short && !vm.is_asked { vm.short_lives + 1 } else { 0 };
        let delay = restart_delay(vm.short_lives);
        if delay == 0 {
            return self.take_over(now, uuid, Outcome::Rebooted, out);
        }
        let at = now.plus_seconds(delay);
        vm.restart_at = Some(at);
        let why = format!(
            "stopped ({}) within {LIFE_SECONDS_MIN} s for the {} time in a row, starts again in {delay} s",
            vm.stopped.map_or("destroyed", word),
            ordinal(vm.short_lives),
        );
        out.push(Action::Note { message: format!("{}: {why}", vm.config.name) });
        self.restarts.insert((at, uuid));
        self.changed(now, uuid, VmState::Starting, why);
    }

    /// Begins the delayed restarts that are due.
    pub(super) fn begin_restarts(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some(&(at, uuid)) = self.restarts.first().filter(|(at, _)| *at <= now) {
            self.restarts.remove(&(at, uuid));
            let vm = self.vms.get_mut(&uuid).filter(|vm| vm.restart_at == Some(at));
            if let Some(vm) = vm {
                vm.restart_at = None;
                self.take_over(now, uuid, Outcome::Rebooted, out);
            }
        }
    }

    /// Counts a crash; returns and reports whether there were too many in a short time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let delays: Vec<u64> = [0, 1, 2, 3, 4, 7, 8, 9, u32::MAX].map(restart_delay).to_vec();
        assert_eq!(delays, [0, 0, 1, 2, 4, 32, 60, 60, 60]);
        let words: Vec<String> = [1, 2, 3, 4, 11, 12, 21, 113].map(ordinal).to_vec();
        assert_eq!(words, ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "113th"]);
    }
}
