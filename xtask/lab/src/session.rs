//! One life of the lab's host: start, watch, collect, end.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::addition::{self, Addition};
use super::image::{self, Image};
use super::machine::{Channels, Machine, Software, Wiring};
use super::network::Side;
use super::pair::Membership;
use super::{Failure, Mode, Options, Outcome, console, overlay};

/// How long a host is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// If it has not started its scenario by then, it will not do so.
    pub boot: Duration,
    /// For collecting what a scenario that took too long has left.
    pub stop: Duration,
}

/// With a small dom0.
const PATIENCE: Patience =
    Patience { boot: Duration::from_secs(180), stop: Duration::from_secs(15) };

/// dom0's memory is small: fewer bounce buffers do.
const KERNEL_ARGUMENTS: &str = "swiotlb=4096";

/// How often the console and the control channel are read.
const TICK: Duration = Duration::from_millis(50);

const CONSOLE_LINES: usize = 40;
const CONSOLE_FILE: &str = "console.log";

/// A folder that goes with its owner.
pub(crate) struct ScratchFolder(pub PathBuf);

const SCRATCH_PREFIX: &str = "xylem-lab-";

impl ScratchFolder {
    pub(crate) fn create() -> Result<Self> {
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
    let additions = match mode {
        Mode::Scenario { text, .. } => addition::wanted(text),
        Mode::Shell { .. } => Vec::new(),
    };
    let scratch = ScratchFolder::create()?;
    run_plan(&Plan::prepare(options, mode, &additions, None, &scratch.0)?, on_line)
}

/// Boots what was planned, follows it to its end, and leaves the results folder behind.
///
/// # Errors
/// As for [`run`].
pub(crate) fn run_plan(plan: &Plan<'_>, on_line: &mut dyn FnMut(&str)) -> Result<Outcome> {
    let mut host = Host::start(plan, &Wiring::default())?;
    let end = host.until_the_end(on_line);
    host.close(on_line);
    let collected = host.collect();
    let status = end?;
    collected?;
    Ok(Outcome {
        status,
        results: plan.options.results.clone(),
        boot: host.boot.unwrap_or_default(),
        elapsed: host.started.elapsed(),
    })
}

/// All that a host needs to start, again and again if need be.
pub(crate) struct Plan<'a> {
    pub options: &'a Options,
    pub mode: &'a Mode,
    pub software: Software,
    /// What is prepared for it and goes with the session.
    pub folder: PathBuf,
    /// What failures call it, if it is one of several.
    pub side: Option<Side>,
    pub patience: Patience,
}

impl<'a> Plan<'a> {
    /// Builds what goes into the host, and empties the folder of its results.
    ///
    /// # Errors
    /// A build fails, or a file cannot be written.
    pub(crate) fn prepare(
        options: &'a Options,
        mode: &'a Mode,
        additions: &[&Addition],
        peer: Option<&Membership>,
        folder: &Path,
    ) -> Result<Self> {
        let image = image::prepare(options.series)?;
        let mut layers = Vec::new();
        if !additions.is_empty() {
            layers.push(std::fs::read(image::prepare_additions(additions)?)?);
        }
        layers.push(overlay::build(options, mode, peer, &image)?);
        let initrd = folder.join("root.cpio");
        write_root(&image, &layers, &initrd)?;
        prepare_results(&options.results)?;
        let software = Software {
            xen: image.xen,
            kernel: image.kernel,
            initrd,
            kernel_arguments: KERNEL_ARGUMENTS,
            disks: Vec::new(),
            reboots: false,
        };
        Ok(Self {
            options,
            mode,
            software,
            folder: folder.to_owned(),
            side: peer.map(|peer| peer.side),
            patience: PATIENCE,
        })
    }

    fn console(&self) -> PathBuf {
        self.options.results.join(CONSOLE_FILE)
    }
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

/// An empty folder for the results of this run, with an empty console.
pub(crate) fn prepare_results(folder: &Path) -> Result<()> {
    // Only a folder made by an earlier run is emptied, never a user's own files.
    if folder.join(CONSOLE_FILE).is_file() {
        std::fs::remove_dir_all(folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(std::fs::write(folder.join(CONSOLE_FILE), "")?)
}

/// Sends a scenario's lines as they come, until QEMU closes its output.
fn forward_lines(machine: &mut Machine, sender: Sender<String>) {
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
}

/// A host that runs: its machine, and what is known of it.
pub(crate) struct Host<'a> {
    plan: &'a Plan<'a>,
    channels: Channels,
    machine: Machine,
    lines: Receiver<String>,
    /// For the lines of the next machine, of a host that may reboot.
    sender: Option<Sender<String>>,
    reboots: usize,
    pub started: Instant,
    /// How long it took to come up, once it has.
    pub boot: Option<Duration>,
    /// When dom0 was asked to end its scenario.
    stop_asked: Option<Instant>,
}

impl<'a> Host<'a> {
    /// Starts the machine.
    ///
    /// # Errors
    /// QEMU does not start.
    pub(crate) fn start(plan: &'a Plan<'a>, wiring: &Wiring) -> Result<Self> {
        let channels = Channels {
            console: plan.console(),
            control: plan.folder.join("control"),
            results: plan.folder.join("results.tar"),
        };
        for file in [&channels.control, &channels.results] {
            std::fs::write(file, "")?;
        }
        let started = Instant::now();
        let Plan { options, mode, software, .. } = plan;
        let mut machine = Machine::start(options, mode, software, &channels, wiring)?;
        let (sender, lines) = channel();
        forward_lines(&mut machine, sender.clone());
        Ok(Self {
            plan,
            channels,
            machine,
            lines,
            sender: software.reboots.then_some(sender),
            reboots: 0,
            started,
            boot: None,
            stop_asked: None,
        })
    }

    /// Switches a host on again whose QEMU ended because it rebooted; whether that is so.
    fn has_rebooted(&mut self, console: &str) -> Result<bool> {
        let Some(sender) = &self.sender else { return Ok(false) };
        let reboots = console::reboots(console);
        if reboots <= self.reboots {
            return Ok(false);
        }
        self.reboots = reboots;
        let Plan { options, mode, software, .. } = self.plan;
        self.machine = Machine::start(options, mode, software, &self.channels, &Wiring::default())?;
        forward_lines(&mut self.machine, sender.clone());
        Ok(true)
    }

    /// The scenario's status.
    ///
    /// # Errors
    /// The host died, or the scenario took too long.
    fn until_the_end(&mut self, on_line: &mut dyn FnMut(&str)) -> Result<i32> {
        loop {
            if self.pass_on(on_line) {
                continue;
            }
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            self.check_time()?;
        }
    }

    /// Waits a moment for a line of the scenario; whether one came.
    pub(crate) fn pass_on(&self, on_line: &mut dyn FnMut(&str)) -> bool {
        match self.lines.recv_timeout(TICK) {
            Ok(line) => {
                on_line(&line);
                return true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            // A shell has no lines, and neither has a QEMU that has ended.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
        }
        false
    }

    /// The scenario's status, if it has ended.
    ///
    /// # Errors
    /// The host died.
    pub(crate) fn status(&mut self) -> Result<Option<i32>> {
        let has_ended = self.machine.child.try_wait()?.is_some();
        if let Some(status) = self.read_control()? {
            return Ok(Some(status));
        }
        let console = read_lossy(&self.channels.console);
        if let Some(cause) = console::cause_of_death(&console, self.plan.software.reboots) {
            // Let the rest of the report reach the console.
            std::thread::sleep(Duration::from_millis(500));
            return Err(self.failure(cause.to_owned()));
        }
        if has_ended {
            if self.has_rebooted(&console)? {
                return Ok(None);
            }
            let what = qemu_end(&mut self.machine);
            return Err(self.failure(what));
        }
        let boot_time_max = self.plan.patience.boot;
        if self.boot.is_none() && self.started.elapsed() > boot_time_max {
            let what = format!("dom0 did not come up within {} s", boot_time_max.as_secs());
            return Err(self.failure(what));
        }
        Ok(None)
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

    /// Ends a scenario that takes too long.
    ///
    /// # Errors
    /// It took too long, and dom0 had its time to collect what there is.
    pub(crate) fn check_time(&mut self) -> Result<()> {
        let is_scenario = matches!(self.plan.mode, Mode::Scenario { .. });
        if is_scenario && self.started.elapsed() > self.plan.options.timeout {
            // A host that is well hands out its logs; one that hangs gets no more time for it.
            self.ask_to_stop();
            if self.has_overstayed() {
                return Err(self.timeout());
            }
        }
        Ok(())
    }

    fn ask_to_stop(&mut self) {
        if self.stop_asked.is_none() {
            self.machine.ask_to_stop();
            self.stop_asked = Some(Instant::now());
        }
    }

    fn has_overstayed(&self) -> bool {
        self.stop_asked.is_some_and(|asked| asked.elapsed() > self.plan.patience.stop)
    }

    /// Has a host that is well hand out what it has, whatever its scenario is at.
    pub(crate) fn let_go(&mut self, on_line: &mut dyn FnMut(&str)) {
        self.ask_to_stop();
        while !self.has_overstayed() {
            if !self.pass_on(on_line) && !matches!(self.status(), Ok(None)) {
                return;
            }
        }
    }

    /// Ends the machine, and passes on the rest of the scenario's output.
    pub(crate) fn close(&mut self, on_line: &mut dyn FnMut(&str)) {
        self.machine.end();
        self.sender = None;
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
            on_line(&line);
        }
    }

    /// Takes the power away, as no operating system notices in time.
    pub(crate) fn cut_power(&mut self) {
        let _ = self.machine.child.kill();
        let _ = self.machine.child.wait();
    }

    /// Unpacks what the scenario left in `/results`.
    ///
    /// # Errors
    /// It does not unpack.
    pub(crate) fn collect(&self) -> Result<()> {
        collect(&self.channels.results, &self.plan.options.results)
    }

    fn timeout(&self) -> anyhow::Error {
        let seconds = self.plan.options.timeout.as_secs();
        let what = format!("the scenario did not end within {seconds} s (--timeout)");
        Failure { what, console_tail: self.console_tail(), is_timeout: true }.into()
    }

    fn failure(&self, what: String) -> anyhow::Error {
        let what = match self.plan.side {
            Some(side) => format!("host {side}: {what}"),
            None => what,
        };
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
