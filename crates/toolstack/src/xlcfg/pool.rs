//! The file of a CPU pool, for `cpupool-create`. It has the syntax of `xl.cfg`.
//!
//! Source: xen `docs/man/xlcpupool.cfg.5.pod`, and `main_cpupoolcreate` in `tools/xl/xl_cpupool.c`.

use super::syntax::{Place, Value};
use super::vm::{Reader, Result};
use super::{HostDefaults, Source, integer, shown, syntax};
use crate::tuning::CpuList;
use crate::xen_host::{NewPool, PoolCpus, scheduler_named};

/// Reads a pool; one without a name has that of its file.
///
/// # Errors
/// The first fault.
pub fn read_pool(source: Source<'_>) -> Result<NewPool> {
    let (settings, errors) = syntax::parse(source.text, source.overrides);
    if let Some(error) = errors.into_iter().next() {
        return Err(error.in_file(source.file));
    }
    let defaults = HostDefaults::default();
    let reader = Reader { file: source.file, settings: &settings, defaults: &defaults };
    let base = source.file.rsplit('/').next().unwrap_or_default();
    let name = match reader.path("name")? {
        Some(name) => name,
        None if !base.is_empty() => base,
        None => return Err(reader.missing("name", "missing; as in name=\"lab\"")),
    };
    let scheduler = match reader.atom("sched")? {
        None => None,
        Some((word, place)) => Some(scheduler_named(word).ok_or_else(|| {
            let problem = format!(
                "{}: unknown scheduler; expected credit, credit2, arinc653, rtds or null",
                shown(word)
            );
            reader.error("sched", place, problem)
        })?),
    };
    // As for xl, nodes win.
    let cpus = match reader.pool_nodes()? {
        Some(nodes) => PoolCpus::OfNodes(nodes),
        None => reader.pool_cpus()?,
    };
    Ok(NewPool { name: name.to_owned(), scheduler, cpus })
}

impl Reader<'_> {
    fn pool_nodes(&self) -> Result<Option<Vec<u32>>> {
        if !self.settings.contains_key("nodes") {
            return Ok(None);
        }
        let nodes = self.list("nodes")?.into_iter();
        nodes
            .map(|(key, text, place)| self.pool_number(&key, text, place))
            .collect::<Result<_>>()
            .map(Some)
    }

    fn pool_cpus(&self) -> Result<PoolCpus> {
        let Some(setting) = self.settings.get("cpus") else { return Ok(PoolCpus::None) };
        let text = match &setting.value {
            Value::Atom(text) => text.clone(),
            Value::List(_) => {
                let cpus = self.list("cpus")?.into_iter();
                let number = |(key, text, place): (String, &str, Place)| {
                    self.pool_number(&key, text, place).map(|cpu| cpu.to_string())
                };
                cpus.map(number).collect::<Result<Vec<_>>>()?.join(",")
            }
        };
        if text.is_empty() {
            return Ok(PoolCpus::None);
        }
        let cpus = CpuList::parse(&text);
        cpus.map(PoolCpus::These).map_err(|problem| self.error("cpus", setting.place, problem))
    }

    fn pool_number(&self, key: &str, text: &str, place: Place) -> Result<u32> {
        integer(text).and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
            self.error(key, place, format!("{} is not a number from 0 on", shown(text)))
        })
    }
}

#[cfg(test)]
mod tests {
    use xen::Scheduler;

    use super::*;

    fn read(file: &str, text: &str, overrides: &[&str]) -> std::result::Result<NewPool, String> {
        let overrides: Vec<String> = overrides.iter().map(|it| (*it).to_owned()).collect();
        let source = Source { file, text, overrides: &overrides };
        read_pool(source).map_err(|error| error.to_string())
    }

    #[test]
    fn pools_are_read() {
        let text = "name = \"lab\"\nsched = \"credit\"\ncpus = [ \"2\", \"3\" ]\n";
        let these = |text| PoolCpus::These(CpuList::parse(text).unwrap());
        let pool =
            |name: &str, scheduler, cpus| Ok(NewPool { name: name.to_owned(), scheduler, cpus });
        assert_eq!(read("/a", text, &[]), pool("lab", Some(Scheduler::Credit), these("2,3")));
        assert_eq!(read("/etc/xen/lab.cfg", "", &[]), pool("lab.cfg", None, PoolCpus::None));
        assert_eq!(read("", "", &["name=x", "cpus=\"0-3,^1\""]), pool("x", None, these("0-3,^1")));
        assert_eq!(
            read("", "", &["name=x", "cpus=\"9\"", "nodes=[\"0\",\"1\"]"]),
            pool("x", None, PoolCpus::OfNodes(vec![0, 1]))
        );
    }

    #[test]
    fn wrong_pools_are_refused_with_a_reason() {
        for (text, expected) in [
            ("", "p: name: missing; as in name=\"lab\""),
            (
                "name='x'\nsched='sedf'",
                "p:2: sched: \"sedf\": unknown scheduler; expected credit, credit2, arinc653, rtds or null",
            ),
            ("name='x'\ncpus=['a']", "p:2: cpus[0]: \"a\" is not a number from 0 on"),
            (
                "name='x'\ncpus='3-1'",
                "p:2: cpus: \"3-1\" is no list of CPUs: \"3-1\" is no number and no range",
            ),
            ("name='x'\nnodes='1'", "p:2: nodes: expected a list, as in nodes = [ '...' ]"),
        ] {
            // A file's name would be the pool's.
            let file = if text.is_empty() { "" } else { "p" };
            let found = read(file, text, &[]).unwrap_err();
            assert_eq!(
                found,
                expected.strip_prefix("p").filter(|_| file.is_empty()).unwrap_or(expected)
            );
        }
    }
}
