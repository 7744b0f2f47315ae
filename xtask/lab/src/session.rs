//! One life of the lab's host: start, watch, collect, end.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::image::{self, Image};
use super::machine::{Channels, Machine};
use super::{Failure, Mode, Options, Outcome, addition, console, overlay};

/// A host that has not started its scenario by then will not do so.
const BOOT_TIME_MAX: Duration = Duration::from_secs(180);

/// How long dom0 may take to collect what a scenario that took too long has left.
const STOP_TIME_MAX: Duration = Duration::from_secs(15);

/// How often the console and the control channel are read.
const TICK: Duration = Duration::from_millis(50);

const CONSOLE_LINES: usize = 40;

/// A folder that goes with its owner.
struct ScratchFolder(PathBuf);

const SCRATCH_PREFIX: &str = "xylem-lab-";

impl ScratchFolder {
    fn create() -> Result<Self> {
        remove_abandoned();
        let mut number = 0;
        loop {
            let name = format!("{SCRATCH_PREFIX}{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
            }
        }
    }
}

/// Removes the folders of labs that were killed: some 50 MB each.
fn remove_abandoned() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(SCRATCH_PREFIX) else { continue };
        let owner = rest.split('-').next().and_then(|number| number.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            // One that is not ours stays.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Boots, runs `mode` to its end, and leaves the results folder behind.
///
/// # Errors
/// A [`Failure`] if the host died, hung or could not start its store; any other error if it
/// could not be set up.
pub(crate) fn run(
    options: &Options,
    mode: &Mode,
    on_line: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let image = image::prepare(options.series)?;
    let scratch = ScratchFolder::create()?;
    let root = scratch.0.join("root.cpio");
    let mut layers = Vec::new();
    if let Mode::Scenario { text, .. } = mode {
        let additions = addition::wanted(text);
        if !additions.is_empty() {
            layers.push(std::fs::read(image::prepare_additions(&additions)?)?);
        }
    }
    layers.push(overlay::build(options, mode, &image)?);
    write_root(&image, &layers, &root)?;
    prepare_results(&options.results)?;
    let channels = Channels {
        console: options.results.join("console.log"),
        control: scratch.0.join("control"),
        results: scratch.0.join("results.tar"),
    };
    for file in [&channels.console, &channels.control, &channels.results] {
        std::fs::write(file, "")?;
    }

    let started = Instant::now();
    let mut machine = Machine::start(options, mode, &image, &root, &channels)?;
    let lines = forward_lines(&mut machine);
    let mut watch =
        Watch { options, mode, channels: &channels, started, boot: None, stop_asked: None };
    let end = watch.until_the_end(&mut machine, &lines, on_line);
    machine.end();
    // The rest of the scenario's output.
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(1)) {
        on_line(&line);
    }
    let collected = collect(&channels.results, &options.results);
    let status = end?;
    collected?;
    Ok(Outcome {
        status,
        results: options.results.clone(),
        boot: watch.boot.unwrap_or_default(),
        elapsed: started.elapsed(),
    })
}

/// What comes after the image wins over its files.
fn write_root(image: &Image, layers: &[Vec<u8>], path: &Path) -> Result<()> {
    std::fs::copy(&image.root, path)
        .with_context(|| format!("cannot copy {}", image.root.display()))?;
    let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
    for layer in layers {
        std::io::Write::write_all(&mut file, layer)?;
    }
    Ok(())
}

/// An empty folder for the results of this run.
fn prepare_results(folder: &Path) -> Result<()> {
    // Only a folder made by an earlier run is emptied, never a user's own files.
    if folder.join("console.log").is_file() {
        std::fs::remove_dir_all(folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// A scenario's lines as they come; closed when QEMU closes its output.
fn forward_lines(machine: &mut Machine) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(output) = machine.child.stdout.take() {
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = console::plain(&String::from_utf8_lossy(&line));
                if sender.send(text.trim_end_matches('\n').to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
    receiver
}

struct Watch<'a> {
    options: &'a Options,
    mode: &'a Mode,
    channels: &'a Channels,
    started: Instant,
    boot: Option<Duration>,
    /// When dom0 was asked to end a scenario that took too long.
    stop_asked: Option<Duration>,
}

impl Watch<'_> {
    /// The scenario's status.
    fn until_the_end(
        &mut self,
        machine: &mut Machine,
        lines: &Receiver<String>,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<i32> {
        loop {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    on_line(&line);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // A shell has no lines, and neither has a QEMU that has ended.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            let has_ended = machine.child.try_wait()?.is_some();
            if let Some(status) = self.read_control()? {
                return Ok(status);
            }
            let console = read_lossy(&self.channels.console);
            if let Some(cause) = console::cause_of_death(&console) {
                // Let the rest of the report reach the console.
                std::thread::sleep(Duration::from_millis(500));
                return Err(self.failure(cause.to_owned()));
            }
            if has_ended {
                return Err(self.failure(qemu_end(machine)));
            }
            self.check_time(machine)?;
        }
    }

    /// The exit status, once dom0's init has announced it.
    fn read_control(&mut self) -> Result<Option<i32>> {
        let control = read_lossy(&self.channels.control);
        let mut is_stopped = false;
        let mut reason = None;
        for line in control.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let (event, rest) = line.split_once(' ').unwrap_or((line, ""));
            match event {
                "started" if self.boot.is_none() => self.boot = Some(self.started.elapsed()),
                "failed" => reason = Some(format!("dom0 could not start: {rest}")),
                "stopped" => is_stopped = true,
                "exit" if is_stopped => return Err(self.timeout()),
                "exit" => {
                    return match reason {
                        Some(reason) => Err(self.failure(reason)),
                        None => Ok(Some(rest.trim().parse().unwrap_or(1))),
                    };
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn check_time(&mut self, machine: &mut Machine) -> Result<()> {
        let elapsed = self.started.elapsed();
        if self.boot.is_none() && elapsed > BOOT_TIME_MAX {
            let what = format!("dom0 did not come up within {} s", BOOT_TIME_MAX.as_secs());
            return Err(self.failure(what));
        }
        let is_scenario = matches!(self.mode, Mode::Scenario { .. });
        if is_scenario && elapsed > self.options.timeout {
            // A host that is well hands out its logs; one that hangs gets no more time for it.
            if self.stop_asked.is_none() {
                machine.ask_to_stop();
            }
            if self.stop_asked.get_or_insert(elapsed).saturating_add(STOP_TIME_MAX) < elapsed {
                return Err(self.timeout());
            }
        }
        Ok(())
    }

    fn timeout(&self) -> anyhow::Error {
        let seconds = self.options.timeout.as_secs();
        let what = format!("the scenario did not end within {seconds} s (--timeout)");
        Failure { what, console_tail: self.console_tail(), is_timeout: true }.into()
    }

    fn failure(&self, what: String) -> anyhow::Error {
        Failure { what, console_tail: self.console_tail(), is_timeout: false }.into()
    }

    fn console_tail(&self) -> String {
        console::last_lines(&read_lossy(&self.channels.console), CONSOLE_LINES)
    }
}

fn qemu_end(machine: &mut Machine) -> String {
    let mut message = String::new();
    if let Some(mut errors) = machine.child.stderr.take() {
        let _ = errors.read_to_string(&mut message);
    }
    let status = machine.child.wait().map_or_else(|_| "unknown".into(), |end| end.to_string());
    if message.trim().is_empty() {
        format!("the machine went off before the scenario ended (QEMU: {status})")
    } else {
        format!("QEMU ended ({status}): {}", message.trim())
    }
}

/// Unpacks what the scenario left in `/results`.
fn collect(archive: &Path, folder: &Path) -> Result<()> {
    if std::fs::metadata(archive).map_or(0, |metadata| metadata.len()) == 0 {
        return Ok(());
    }
    let status = Command::new("tar")
        .args(["--extract", "--no-same-owner", "--file"])
        .arg(archive)
        .arg("--directory")
        .arg(folder)
        .status()
        .context("tar does not start")?;
    ensure!(status.success(), "the results of the scenario do not unpack");
    Ok(())
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
