//! The demonstration on the simulated host: many VMs are created, listed, read and shut down, and
//! nothing is left.
//!
//! Times in the report are the simulation's own; how long it took to simulate is the caller's to
//! measure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use timeline::{Outcome, Span, Timeline};
use toolstack::plan::Start;
use toolstack::work::Cost;
use toolstack::{ClientId, Created, Reply, ReplyWhen, Request, ShutdownRequest, StepTime, xlcfg};
use xen::Uuid;
use xenstore::client::ClientError;

use sim::Prng;
use sim::Time;
use sim::kernel_image;
use sim::{Daemon, DaemonError};
use sim::{HostConfig, SimHost};

/// What to show.
#[derive(Clone, Copy, Debug)]
pub struct DemoConfig {
    pub seed: u64,
    pub vms: usize,
    /// One VM in this many is a Linux guest with a disk and a network interface.
    pub linux_every: usize,
    /// Concurrent creates.
    pub parallel: usize,
}

impl Default for DemoConfig {
    fn default() -> Self {
        Self { seed: 1, vms: 1000, linux_every: 10, parallel: 8 }
    }
}

/// The report.
#[derive(Clone, Debug)]
pub struct DemoReport {
    /// The output, line by line.
    pub lines: Vec<String>,
    /// What went wrong; empty if all went well.
    pub problems: Vec<String>,
    /// The trace's digest: the same for the same seed.
    pub digest: u64,
    /// The trace itself.
    pub trace: Vec<String>,
    /// Every step of every create.
    pub timeline: Timeline,
}

/// The demonstration could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("{0}")]
    Daemon(#[from] DaemonError),
    #[error("{0}")]
    Store(#[from] ClientError),
}

/// Virtual time that anything may take before it counts as hung, in nanoseconds.
const PATIENCE_NS: u64 = 600_000_000_000;

/// Progress callback: action, number done, total.
pub type Progress<'a> = &'a mut dyn FnMut(&str, usize, usize);

fn config_text(number: usize, linux: bool) -> String {
    let kind = if number.is_multiple_of(2) { "pv" } else { "pvh" };
    let mut text = format!("name = 'vm{number}'\ntype = '{kind}'\n");
    if linux {
        let _ = write!(
            text,
            "kernel = '/images/vmlinuz'\nramdisk = '/images/initrd'\nmemory = 32\nvcpus = 2\n\
             extra = 'sim.kind=linux'\ndisk = ['/images/disk{number}.raw,raw,xvda,rw']\n\
             vif = ['bridge=xenbr0']\n"
        );
    } else {
        text.push_str("kernel = '/images/unikernel'\nmemory = 8\n");
    }
    text
}

struct Story<'a> {
    host: SimHost,
    daemon: Daemon,
    progress: Progress<'a>,
    lines: Vec<String>,
    problems: Vec<String>,
    until: Time,
}

impl Story<'_> {
    fn say(&mut self, line: String) {
        self.host.note(format_args!("demo: {line}"));
        self.lines.push(line);
    }

    /// Sends one request for each number, `parallel` at a time, and collects the answers.
    fn each(
        &mut self,
        what: &str,
        numbers: usize,
        parallel: usize,
        mut request: impl FnMut(usize) -> Request,
        mut answer: impl FnMut(&mut Vec<String>, usize, Reply),
    ) -> Result<(), ClientError> {
        let mut open: BTreeMap<ClientId, usize> = BTreeMap::new();
        let (mut next, mut done) = (0, 0);
        while done < numbers {
            while next < numbers && open.len() < parallel {
                open.insert(self.daemon.request(request(next))?, next);
                next += 1;
            }
            while let Some(client) = self.daemon.poll_answered() {
                let reply = self.daemon.take_reply(client);
                if let (Some(number), Some(reply)) = (open.remove(&client), reply) {
                    answer(&mut self.problems, number, reply);
                    done += 1;
                    (self.progress)(what, done, numbers);
                }
            }
            if done < numbers && open.len() == parallel.min(numbers - done) {
                self.until = self.host.now().after(PATIENCE_NS);
                if !self.daemon.step(self.until)? {
                    self.problems.push(format!("{what}: {} requests got no answer", open.len()));
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Runs the demonstration.
///
/// # Errors
/// [`DemoError`] if the daemon cannot run at all; failures of VMs are in the report.
pub fn run(config: DemoConfig, progress: Progress<'_>) -> Result<DemoReport, DemoError> {
    let host = SimHost::boot(HostConfig { seed: config.seed, ..HostConfig::default() });
    let os = host.os();
    for kernel in ["/images/unikernel", "/images/vmlinuz"] {
        os.add_file(kernel, kernel_image());
    }
    os.add_file("/images/initrd", vec![0x1f; 200_000]);
    os.add_bridge("xenbr0");
    let is_linux =
        |number: usize| config.linux_every > 0 && number.is_multiple_of(config.linux_every);
    for number in (0..config.vms).filter(|number| is_linux(*number)) {
        os.add_disk(&format!("/images/disk{number}.raw"), 64 << 20);
    }
    let before = host.snapshot()?;
    let daemon = Daemon::start(&host)?;
    let until = host.now();
    let mut story = Story {
        host: host.clone(),
        daemon,
        progress,
        lines: Vec::new(),
        problems: Vec::new(),
        until,
    };

    let created = create(&mut story, config, is_linux)?;
    let settle = story.host.now().after(PATIENCE_NS);
    if !story.daemon.run_until_quiet(settle)? {
        story.problems.push("after the creates the host does not come to rest".to_owned());
    }
    look(&mut story, &created, is_linux)?;
    stop(&mut story, config)?;
    let settle = story.host.now().after(PATIENCE_NS);
    if !story.daemon.run_until_quiet(settle)? {
        story.problems.push("after the shutdowns the host does not come to rest".to_owned());
    }
    let left = host.snapshot()?.differences(&before);
    story.say(format!("left behind: {}", if left.is_empty() { "nothing" } else { "see below" }));
    story.problems.extend(left);
    let lines = std::mem::take(&mut story.lines);
    let problems = std::mem::take(&mut story.problems);
    let timeline = timeline(&created);
    Ok(DemoReport { lines, problems, digest: host.digest(), trace: host.trace(), timeline })
}

/// The timeline of the creates: a track for each VM.
fn timeline(created: &BTreeMap<usize, Created>) -> Timeline {
    let span = |it: &Created, step: &StepTime| Span {
        track: it.name.clone(),
        name: step.step.to_string(),
        kind: step.step.stage().to_owned(),
        ready_ns: step.ready.0,
        start_ns: step.started.0,
        end_ns: step.ended.unwrap_or(it.ended).0,
        waited_for: step.waited_for.clone(),
        outcome: if step.failed { Outcome::Failed } else { Outcome::Ended },
    };
    let spans = created.values().flat_map(|it| it.steps.iter().map(|step| span(it, step)));
    Timeline { title: format!("{} VMs are created", created.len()), spans: spans.collect() }
}

fn create(
    story: &mut Story<'_>,
    config: DemoConfig,
    is_linux: impl Fn(usize) -> bool,
) -> Result<BTreeMap<usize, Created>, ClientError> {
    let begin = story.host.now();
    let mut prng = Prng::new(config.seed);
    let mut created = BTreeMap::new();
    let request = |number: usize| {
        let text = config_text(number, is_linux(number));
        let file = format!("vm{number}.cfg");
        let source = xlcfg::Source { file: &file, text: &text, overrides: &[] };
        let parsed = xlcfg::parse(source).expect("the demonstration's own configuration");
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&prng.next_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&prng.next_u64().to_le_bytes());
        let fresh_uuid = Uuid(bytes);
        Request::Create { config: Box::new(parsed), fresh_uuid, start: Start::Running }
    };
    let answer = |problems: &mut Vec<String>, number: usize, reply: Reply| match reply {
        Reply::Created(it) => drop(created.insert(number, *it)),
        Reply::Failed(message) => problems.push(message),
        other => problems.push(format!("vm{number}: {other:?}")),
    };
    story.each("create", config.vms, config.parallel, request, answer)?;
    let seconds = story.host.now().0.saturating_sub(begin.0) / 1_000_000;
    story.say(format!("{} of {} VMs created in {seconds} ms", created.len(), config.vms));
    for line in stage_table(&created) {
        story.say(line);
    }
    Ok(created)
}

/// Median time of each stage, and what the first and the last create cost.
fn stage_table(created: &BTreeMap<usize, Created>) -> Vec<String> {
    let mut stages: Vec<(&'static str, Vec<u64>)> = Vec::new();
    for step in created.values().flat_map(|it| &it.steps) {
        let micros = step.took_ns() / 1000;
        let name = step.step.stage();
        match stages.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => times.push(micros),
            None => stages.push((name, vec![micros])),
        }
    }
    let mut lines: Vec<String> = stages
        .into_iter()
        .map(|(name, mut times)| {
            times.sort_unstable();
            format!("  {name:<16} {:>8} us (median of {})", times[times.len() / 2], times.len())
        })
        .collect();
    let cost = |cost: &Cost| {
        format!(
            "{} hypercalls, {} store messages in {} round trips, {} transactions",
            cost.hypercalls.values().sum::<u64>(),
            cost.store_messages,
            cost.store_round_trips,
            cost.transactions
        )
    };
    let unikernels: Vec<&Created> = created
        .values()
        .filter(|it| it.steps.iter().all(|s| s.step.stage() != "attach disks"))
        .collect();
    if let (Some(first), Some(last)) = (unikernels.first(), unikernels.last()) {
        lines.push(format!("  {} cost {}", first.name, cost(&first.cost)));
        lines.push(format!("  {} cost {}", last.name, cost(&last.cost)));
    }
    lines
}

fn look(
    story: &mut Story<'_>,
    created: &BTreeMap<usize, Created>,
    is_linux: impl Fn(usize) -> bool,
) -> Result<(), ClientError> {
    let mut listed = 0;
    let answer = |problems: &mut Vec<String>, _: usize, reply: Reply| match reply {
        Reply::Domains(listing) => listed = listing.rows.len(),
        other => problems.push(format!("list: {other:?}")),
    };
    story.each("list", 1, 1, |_| Request::List, answer)?;
    story.say(format!("{listed} domains listed, dom0 included"));
    for linux in [false, true] {
        let found = created.iter().find(|(number, _)| is_linux(**number) == linux);
        if let Some((_, it)) = found {
            let console = story.host.console(it.domid);
            story.say(format!(
                "console of {}: {}",
                it.name,
                console.trim_end().replace('\n', " | ")
            ));
        }
    }
    for it in created.values() {
        if !story.host.console(it.domid).contains("hello from") {
            story.problems.push(format!("{} did not say hello", it.name));
        }
    }
    Ok(())
}

fn stop(story: &mut Story<'_>, config: DemoConfig) -> Result<(), ClientError> {
    let begin = story.host.now();
    let request = |number: usize| Request::Shutdown {
        target: format!("vm{number}"),
        how: ShutdownRequest::Poweroff,
        reply: ReplyWhen::Gone,
    };
    let mut gone = 0;
    let answer = |problems: &mut Vec<String>, number: usize, reply: Reply| match reply {
        Reply::Gone { .. } => gone += 1,
        other => problems.push(format!("shutdown of vm{number}: {other:?}")),
    };
    story.each("shutdown", config.vms, config.parallel * 4, request, answer)?;
    let millis = story.host.now().0.saturating_sub(begin.0) / 1_000_000;
    story.say(format!("{gone} VMs shut down in {millis} ms"));
    Ok(())
}
