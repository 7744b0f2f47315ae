//! Where the CPU time of a few programs goes: `cpu_sampler MILLISECONDS OUTPUT STOP NAME...`
//!
//! Looks at every thread of the processes of these names (their `comm`) once in so many milliseconds, until the
//! file STOP exists. The CPU time that a thread has used since, as the scheduler counts it, goes to its program, its
//! own name, and its stack in the kernel if it still runs. Of a thread that waits by now nobody can say where it used
//! its time; it goes to "(worked, then waited)" with the system call in which it waits. OUTPUT gets "frame;frame
//! NANOSECONDS" lines. Everything comes from `/proc`, so it works without performance counters, which no
//! domain under Xen has by default.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// A thread that was seen, and the CPU time it had used by then.
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

/// The stack in the kernel, outermost first; nothing while the thread runs in its program.
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

/// Whether a thread is on a CPU or wants to be. Its name, in brackets, may have blanks in it.
fn runs(folder: &str) -> bool {
    let stat = text(&format!("{folder}/stat"));
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
}

/// Looks at all threads once.
fn look(names: &[String], seen: &mut Seen, stacks: &mut BTreeMap<String, u64>) {
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
            // All that a new process has used is new as well.
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
    // What was used before the start is nobody's concern.
    look(names, &mut seen, &mut BTreeMap::new());
    while !Path::new(stop).exists() {
        std::thread::sleep(interval);
        look(names, &mut seen, &mut stacks);
    }
    let lines: Vec<String> = stacks.iter().map(|(stack, ns)| format!("{stack} {ns}\n")).collect();
    std::fs::write(output, lines.concat())?;
    Ok(())
}
