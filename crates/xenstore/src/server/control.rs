//! `CONTROL`: what `xenstore-control` can ask the daemon.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;
use crate::quota::Quota;
use crate::server::{Host, Server};
use crate::wire::{self, PAYLOAD_BYTES_MAX};

const HELP: &str = "\
check: compare all counters with a recount
help: this text
log on|off: whether requests are written to the trace file
memreport: sizes of what the daemon holds
print <text>: write a line to the daemon's log
quota: the limits that guests begin with
quota set <name> <value>: change one of them
stats: counters of requests, transactions and events as JSON
";

impl Server {
    pub(super) fn control(
        &mut self,
        host: &mut dyn Host,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let words: Option<Vec<&str>> =
            wire::strings(payload).map(|word| core::str::from_utf8(word).ok()).collect();
        let words = words.ok_or(Error::EINVAL)?;
        let text = match words[..] {
            ["check"] => match self.check() {
                Ok(()) => return Ok(()),
                Err(difference) => {
                    host.log(&format!("check: {difference}"));
                    difference
                }
            },
            ["help"] => HELP.into(),
            ["log", "on"] => {
                self.set_tracing(true);
                return Ok(());
            }
            ["log", "off"] => {
                self.set_tracing(false);
                return Ok(());
            }
            ["memreport"] => self.memory_report(),
            ["print", text] => {
                host.log(text);
                return Ok(());
            }
            ["quota"] => quota_report(&self.domains.quota),
            ["quota", "set", name, value] => {
                let value = value.parse().map_err(|_| Error::EINVAL)?;
                *self.domains.quota.get_mut(name).ok_or(Error::EINVAL)? = value;
                self.record_quota();
                return Ok(());
            }
            ["stats"] => self.stats(),
            _ => return Err(Error::EINVAL),
        };
        let length = text.len().min(PAYLOAD_BYTES_MAX - 1);
        reply.extend_from_slice(&text.as_bytes()[..length]);
        reply.push(0);
        Ok(())
    }

    /// Counters and sizes as one JSON object.
    #[must_use]
    pub fn stats(&self) -> String {
        let transactions: usize = self.connections.values().map(|c| c.transactions.len()).sum();
        let output: usize = self.connections.values().map(|c| c.output.bytes()).sum();
        let domains = self.domains.iter().filter(|(_, d)| d.connection.is_some()).count();
        format!(
            "{{{},\"connections\":{},\"domains\":{domains},\"nodes\":{},\"watches\":{},\
             \"transactions_open\":{transactions},\"output_bytes\":{output}}}",
            self.counters.json_members(),
            self.connections.len(),
            self.store.node_count(),
            self.watches.len(),
        )
    }

    fn memory_report(&self) -> String {
        let mut report = format!(
            "{} nodes, {} watches, {} connections\n",
            self.store.node_count(),
            self.watches.len(),
            self.connections.len()
        );
        for (domid, domain) in self.domains.iter() {
            let connection = domain.connection.and_then(|id| self.connections.get(&id));
            let output = connection.map_or(0, |connection| connection.output.bytes());
            let watches = connection.map_or(0, |connection| connection.watches.len());
            let nodes = self.store.owned_count(domid);
            report.push_str(&format!(
                "domain {domid}: {nodes} nodes, {watches} watches, {output} bytes unsent\n"
            ));
        }
        report
    }
}

fn quota_report(quota: &Quota) -> String {
    let line = |name: &&str| format!("{name}: {}\n", quota.get(name).unwrap_or(0));
    Quota::NAMES.iter().map(line).collect()
}
