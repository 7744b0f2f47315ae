//! `shutdown` and `reboot`, with xl's messages.

use std::collections::BTreeSet;

use api::{DomainEvent, EventKind, Request, Target, Targets, Wait};

use super::domains::destroy_all;
use super::{expect_done, expect_reply};
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn shutdown(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let acpi = options.has("F");
    request(session, options, |targets, wait, progress| Request::Shutdown {
        targets,
        wait,
        acpi,
        progress,
    })
}

pub(crate) fn reboot(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let acpi = options.has("F");
    request(session, options, |targets, wait, _| Request::Reboot { targets, wait, acpi })
}

/// Before the host is shut down.
pub(crate) fn with_host(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let timeout_s = match options.value("timeout").map(str::parse) {
        None => None,
        Some(Ok(seconds)) => Some(seconds),
        Some(Err(_)) => {
            return Err(Failure::usage("host-shutdown: --timeout is not a number of seconds"));
        }
    };
    let ended = expect_done(&session.call(&Request::HostShutdown { timeout_s })?);
    if !options.has("destroy") {
        return ended;
    }
    let rows = expect_reply!(session.call(&Request::Vms)?, Vms);
    let mut left: Vec<api::VmRow> = rows.into_iter().filter(|it| it.domid.is_some()).collect();
    // What serves others was there before them.
    left.sort_by_key(|row| std::cmp::Reverse(row.domid));
    let left = left.into_iter().map(|row| Target(row.uuid)).collect();
    let destroyed = destroy_all(session, left);
    ended.and(destroyed)
}

fn request(
    session: &mut Session,
    options: &Options,
    request: impl Fn(Targets, Wait, bool) -> Request,
) -> Result<(), Failure> {
    let targets = match (options.has("all"), options.operands.is_empty()) {
        (true, true) => Targets::All,
        (false, false) => Targets::These(options.targets()),
        (false, true) => return Err(Failure::usage("You must specify -a or a domain id.")),
        (true, false) => return Err(Failure::usage("-a means all domains; do not name any")),
    };
    let wait = match options.count("wait") {
        0 => Wait::Asked,
        1 => Wait::Shutdown,
        _ => Wait::Gone,
    };
    let mut messages = Messages {
        wait,
        named: match &targets {
            Targets::All => None,
            Targets::These(targets) => Some(targets.len()),
        },
        requested: 0,
        announced: false,
        over: BTreeSet::new(),
    };
    let progress = wait != Wait::Asked && session.draws_progress();
    let reply = session.call_with(&request(targets, wait, progress), |session, event| {
        for line in messages.lines(&event) {
            session.tell(&line);
        }
    })?;
    expect_done(&reply)
}

/// xl's messages.
struct Messages {
    wait: Wait,
    /// Number of named domains; `None` for all.
    named: Option<usize>,
    requested: usize,
    /// "Waiting for" has been printed.
    announced: bool,
    /// Domains of which there is no more to tell.
    over: BTreeSet<u16>,
}

impl Messages {
    fn lines(&mut self, event: &DomainEvent) -> Vec<String> {
        let domid = event.domid;
        let mut lines = Vec::new();
        match event.kind {
            EventKind::ShutdownRequested | EventKind::RebootRequested => {
                let verb = match event.kind {
                    EventKind::RebootRequested => "Rebooting",
                    _ => "Shutting down",
                };
                lines.push(format!("{verb} domain {domid}"));
                self.requested += 1;
                if self.named == Some(self.requested) {
                    self.announce(&mut lines);
                }
            }
            EventKind::PowerButtonSent => lines.push(
                "PV control interface not available: sending ACPI power button event.".to_owned(),
            ),
            EventKind::ResetSent => {
                lines.push(
                    "PV control interface not available: sending ACPI reset event.".to_owned(),
                );
            }
            EventKind::ShutDown { reason } => {
                self.announce(&mut lines);
                lines.push(format!("Domain {domid} has been shut down, reason code {reason}"));
                if self.wait == Wait::Gone {
                    lines.push(format!("Domain {domid} continue waiting for death"));
                } else {
                    self.over.insert(domid);
                }
            }
            EventKind::Destroyed if self.over.contains(&domid) => {}
            EventKind::Destroyed => {
                self.announce(&mut lines);
                lines.push(format!("Domain {domid} has been destroyed"));
            }
        }
        lines
    }

    fn announce(&mut self, lines: &mut Vec<String>) {
        if self.wait != Wait::Asked && !self.announced {
            self.announced = true;
            lines.push(format!("Waiting for {} domains", self.requested));
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(wait: Wait, named: Option<usize>, events: &[(u16, EventKind)], expected: &Expect) {
        let over = BTreeSet::new();
        let mut messages = Messages { wait, named, requested: 0, announced: false, over };
        let lines: Vec<_> = events
            .iter()
            .flat_map(|&(domid, kind)| messages.lines(&DomainEvent { domid, kind }))
            .collect();
        expected.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn a_shutdown_without_waiting_only_names_the_domains() {
        let events = [(3, EventKind::ShutdownRequested), (4, EventKind::ShutdownRequested)];
        check(
            Wait::Asked,
            Some(2),
            &events,
            &expect![[r#"
                Shutting down domain 3
                Shutting down domain 4"#]],
        );
    }

    #[test]
    fn waiting_is_announced_once_all_named_domains_were_asked() {
        let events = [
            (3, EventKind::RebootRequested),
            (4, EventKind::RebootRequested),
            (4, EventKind::ShutDown { reason: 1 }),
            (4, EventKind::Destroyed),
            (3, EventKind::Destroyed),
        ];
        check(
            Wait::Shutdown,
            Some(2),
            &events,
            &expect![[r#"
                Rebooting domain 3
                Rebooting domain 4
                Waiting for 2 domains
                Domain 4 has been shut down, reason code 1
                Domain 3 has been destroyed"#]],
        );
    }

    #[test]
    fn waiting_for_all_is_announced_with_the_first_that_ends() {
        let events = [
            (3, EventKind::ShutdownRequested),
            (3, EventKind::ShutDown { reason: 0 }),
            (3, EventKind::Destroyed),
        ];
        check(
            Wait::Gone,
            None,
            &events,
            &expect![[r#"
                Shutting down domain 3
                Waiting for 1 domains
                Domain 3 has been shut down, reason code 0
                Domain 3 continue waiting for death
                Domain 3 has been destroyed"#]],
        );
    }
}
