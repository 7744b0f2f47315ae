//! Samples the CPU time of a few programs by thread and stack: `cpu_sampler MILLISECONDS OUTPUT
//! STOP NAME...`
//!
//! Samples every thread of the processes with these names (`comm`) at this interval, until the file
//! STOP exists. The CPU time that a thread has used since the last sample, from the scheduler's
//! statistics, is attributed to its program, its name, and its kernel stack if it is running. For a
//! thread that is waiting by then the place is unknown; its time goes to "(worked, then waited)"
//! with the system call in which it waits. OUTPUT gets "frame;frame NANOSECONDS" lines. Everything
//! comes from `/proc`, so it works without performance counters, which no domain under Xen has by
//! default.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// Known threads, and the CPU time they had used at the last sample.
type Seen = BTreeMap<(u32, u32), u64>;

fn numbers(folder: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn text(path: &str) -> String {
    let mut text = std::fs::read_to_string(path).unwrap_or_default();
    text.truncate(text.trim_end().len());
    text
}

/// The kernel stack, outermost first; empty while the thread is in user mode.
fn kernel_frames(folder: &str) -> Vec<String> {
    let stack = text(&format!("{folder}/stack"));
    let frame = |line: &str| {
        let function = line.rsplit(' ').next().unwrap_or_default();
        function.split(['+', ';']).next().unwrap_or_default().to_owned()
    };
    let mut frames: Vec<String> = stack.lines().map(frame).collect();
    frames.reverse();
    frames
}

/// Whether a thread is running or runnable. Its name, in parentheses, may contain spaces.
fn runs(folder: &str) -> bool {
    let stat = text(&format!("{folder}/stat"));
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
}

/// Samples all threads once.
fn sample(names: &[String], seen: &mut Seen, stacks: &mut BTreeMap<String, u64>) {
    let mut now = Seen::new();
    for pid in numbers("/proc") {
        let name = text(&format!("/proc/{pid}/comm"));
        if !names.contains(&name) {
            continue;
        }
        for tid in numbers(&format!("/proc/{pid}/task")) {
            let folder = format!("/proc/{pid}/task/{tid}");
            let schedstat = text(&format!("{folder}/schedstat"));
            let Some(used) = schedstat.split(' ').next().and_then(|word| word.parse().ok()) else {
                continue;
            };
            now.insert((pid, tid), used);
            // All time of a new process is new.
            let before = seen.get(&(pid, tid)).copied().unwrap_or_default();
            if used > before {
                let mut frames = vec![name.clone(), text(&format!("{folder}/comm"))];
                let kernel = kernel_frames(&folder);
                if kernel.is_empty() {
                    frames.push("(in the program)".to_owned());
                } else if runs(&folder) {
                    frames.extend(kernel);
                } else {
                    let call = kernel.iter().find_map(|frame| frame.split_once("_sys_"));
                    frames.push("(worked, then waited)".to_owned());
                    frames.extend(call.map(|(_, name)| name.to_owned()));
                }
                *stacks.entry(frames.join(";")).or_default() += used - before;
            }
        }
    }
    *seen = now;
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interval, output, stop, names @ ..] = &arguments[..] else {
        return Err("cpu_sampler MILLISECONDS OUTPUT STOP NAME...".into());
    };
    let interval = Duration::from_millis(interval.parse()?);
    let (mut seen, mut stacks) = (Seen::new(), BTreeMap::new());
    // Time used before the start does not count.
    sample(names, &mut seen, &mut BTreeMap::new());
    while !Path::new(stop).exists() {
        std::thread::sleep(interval);
        sample(names, &mut seen, &mut stacks);
    }
    let lines: Vec<String> = stacks.iter().map(|(stack, ns)| format!("{stack} {ns}\n")).collect();
    std::fs::write(output, lines.concat())?;
    Ok(())
}
