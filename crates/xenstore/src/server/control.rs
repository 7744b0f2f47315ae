//! `CONTROL`: commands of `xenstore-control`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xen::DomId;

use crate::Error;
use crate::quota::{Quota, SOFT_PREFIX, Seen};
use crate::server::connection::Peer;
use crate::server::{ConnId, Host, Server};
use crate::wire::{self, PAYLOAD_BYTES_MAX};

/// Commands and their arguments, as shown by `xenstore-control help`.
const HELP: &[(&str, &str)] = &[
    ("check", ""),
    ("help", ""),
    ("live-update", "[-c <cmdline>] [-F] [-t <timeout>] [-v <version>] <file>"),
    ("log", "[on|off|+<switch>|-<switch>]"),
    ("logfile", "<file>"),
    ("memreport", "[<file>]"),
    ("print", "<string>"),
    ("quota", "[set <name> <val>|<domid>|max [-r]]"),
    ("quota-soft", "[set <name> <val>]"),
    ("stats", ""),
];

/// When a command is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    Now,
    /// By [`Server::answer_held`].
    Later,
}

impl Server {
    pub(super) fn control(
        &mut self,
        host: &mut dyn Host,
        client: ConnId,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<Answer, Error> {
        let words: Option<Vec<&str>> =
            wire::strings(payload).map(|word| core::str::from_utf8(word).ok()).collect();
        let words = words.ok_or(Error::EINVAL)?;
        let text = match words[..] {
            ["check"] => {
                let Err(difference) = self.check() else { return Ok(Answer::Now) };
                host.log(&format!("check: {difference}"));
                difference
            }
            ["help"] => help(),
            ["live-update", ref words @ ..] => match host.live_update(client, words)? {
                Some(answer) => answer,
                None => return Ok(Answer::Later),
            },
            ["log"] => format!("Log switch settings:\n{}", self.topics.report()),
            ["log", "on"] => {
                host.open_trace(None)?;
                self.set_tracing(true);
                return Ok(Answer::Now);
            }
            ["log", "off"] => {
                self.set_tracing(false);
                return Ok(Answer::Now);
            }
            ["log", switch] => {
                self.topics.switch(switch).ok_or(Error::EINVAL)?;
                return Ok(Answer::Now);
            }
            ["logfile", file] => {
                host.open_trace(Some(file))?;
                self.set_tracing(true);
                return Ok(Answer::Now);
            }
            ["memreport"] => self.memory_report(),
            ["memreport", file] => {
                host.write_report(Some(file), &self.memory_report())?;
                return Ok(Answer::Now);
            }
            ["print", text] => {
                host.log(text);
                return Ok(Answer::Now);
            }
            ["quota"] => quota_report(&self.domains.quota, Severity::Refuses),
            ["quota", "set", name, value] => {
                self.set_default_quota(name, value, Severity::Refuses)?;
                return Ok(Answer::Now);
            }
            ["quota", "max"] => self.most_seen_report(),
            ["quota", "max", "-r"] => {
                self.forget_most_seen();
                self.most_seen_report()
            }
            ["quota", id] => self.domain_quota_report(id)?,
            ["quota-soft"] => quota_report(&self.domains.quota, Severity::Warns),
            ["quota-soft", "set", name, value] => {
                self.set_default_quota(name, value, Severity::Warns)?;
                return Ok(Answer::Now);
            }
            ["stats"] => self.stats(),
            _ => return Err(Error::EINVAL),
        };
        let length = text.len().min(PAYLOAD_BYTES_MAX - 1);
        reply.extend_from_slice(&text.as_bytes()[..length]);
        reply.push(0);
        Ok(Answer::Now)
    }

    /// `quota set` takes no 0: a limit is lifted by `SET_QUOTA` or on the command line only.
    fn set_default_quota(
        &mut self,
        name: &str,
        value: &str,
        severity: Severity,
    ) -> Result<(), Error> {
        let value = value.parse().ok().filter(|value| *value > 0).ok_or(Error::EINVAL)?;
        let (_, name) =
            quota_names(severity).find(|(shown, _)| *shown == name).ok_or(Error::EINVAL)?;
        *self.domains.quota.get_mut(name).ok_or(Error::EINVAL)? = value;
        self.record_quota();
        Ok(())
    }

    fn domain_quota_report(&self, id: &str) -> Result<String, Error> {
        let domid = DomId(id.parse().map_err(|_| Error::EINVAL)?);
        let domain = self.domains.get(domid).ok_or(Error::ENOENT)?;
        let in_use = self.in_use(domid);
        let most = domain.seen.max(&in_use);
        let mut report = format!("Domain {domid}:\n");
        for (name, _) in quota_names(Severity::Refuses) {
            if let (Some(now), Some(most)) = (in_use.get(name), most.get(name)) {
                report.push_str(&format!("{name:<17}: {now:8} (max {most:8})\n"));
            }
        }
        Ok(report)
    }

    fn most_seen_report(&self) -> String {
        let line = |(name, _)| {
            let most = self.most_seen.get(name)?;
            Some(format!("{name:<17}: {most:8}\n"))
        };
        let lines: String = quota_names(Severity::Refuses).filter_map(line).collect();
        format!("Max. seen accounting values:\n{lines}")
    }

    /// Resets the maximum use to the current use.
    fn forget_most_seen(&mut self) {
        let domids: Vec<DomId> = self.domains.iter().map(|(domid, _)| domid).collect();
        self.most_seen = Seen::default();
        for domid in domids {
            let in_use = self.in_use(domid);
            if domid != DomId::DOM0 {
                self.most_seen = self.most_seen.max(&in_use);
            }
            if let Some(domain) = self.domains.get_mut(domid) {
                domain.seen = in_use;
            }
        }
    }

    /// Counters and sizes as one JSON object.
    #[must_use]
    pub fn stats(&self) -> String {
        let transactions: usize = self.connections.values().map(|c| c.transactions.len()).sum();
        let output: usize = self.connections.values().map(|c| c.output.bytes()).sum();
        let domains = self.domains.iter().filter(|(_, d)| d.connection.is_some()).count();
        format!(
            "{{{},\"connections\":{},\"domains\":{domains},\"domains_kept\":{},\"nodes\":{},\"watches\":{},\
             \"transactions_open\":{transactions},\"output_bytes\":{output}}}",
            self.counters.json_members(),
            self.connections.len(),
            self.domains_kept(),
            self.store.node_count(),
            self.watches.len(),
        )
    }

    fn memory_report(&self) -> String {
        let mut report = format!(
            "{} nodes, {} watches, {} connections, {} open transactions\n",
            self.store.node_count(),
            self.watches.len(),
            self.connections.len(),
            self.transactions_open,
        );
        for (domid, _) in self.domains.iter() {
            let in_use = self.in_use(domid);
            let (bytes, nodes, watches) = (in_use.memory_bytes, in_use.nodes, in_use.watches);
            report.push_str(&format!(
                "domain {domid}: {bytes} bytes, {nodes} nodes, {watches} watches, {} transactions\n",
                in_use.transactions
            ));
        }
        for (id, connection) in &self.connections {
            if connection.peer == Peer::Socket {
                let (bytes, id) = (connection.held_bytes(), id.number());
                let watches = connection.watches.len();
                report.push_str(&format!("socket client {id}: {bytes} bytes, {watches} watches\n"));
            }
        }
        report
    }
}

fn help() -> String {
    let line = |(name, rest): &(&str, &str)| format!("{name:<15} {rest}");
    HELP.iter().map(|command| format!("{}\n", line(command).trim_end())).collect()
}

/// What happens to a guest beyond a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Severity {
    Refuses,
    Warns,
}

/// Names of limits as they are shown, with their own names.
fn quota_names(severity: Severity) -> impl Iterator<Item = (&'static str, &'static str)> {
    Quota::NAMES.iter().filter_map(move |name| match (name.strip_prefix(SOFT_PREFIX), severity) {
        (None, Severity::Refuses) => Some((*name, *name)),
        (Some(shown), Severity::Warns) => Some((shown, *name)),
        _ => None,
    })
}

fn quota_report(quota: &Quota, severity: Severity) -> String {
    let line = |(shown, name): (&str, &str)| {
        let (value, text) = (quota.get(name).unwrap_or(0), Quota::text(name));
        format!("{shown:<17}: {value:8} {text}\n")
    };
    let lines: String = quota_names(severity).map(line).collect();
    format!("Quota settings:\n{lines}")
}
