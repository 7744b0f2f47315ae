//! Dom0's interface for storage: files, mounts and programs, with a daemon that can be killed
//! between any two calls.

use std::collections::{BTreeMap, BTreeSet};

use storage::{
    BlockHost as _, Command, Connection, Copying, DeviceNumber, HostError, Job, Lock, NbdExport,
    PARTIAL_PREFIX, Space, StorageError, System,
};

use crate::agenda::Time;
use crate::iscsi::{self, Targets};
use crate::lvm::{self, Groups};
use crate::nbd::{self, Servers};
use crate::os::{File, LOOP_MAJOR, OsState, SimOs};
use crate::qemu::{self, Behind, Served};

/// Timeout of a hanging storage call, as on a real host.
pub(crate) const HANG_SECONDS: u64 = 30;

/// Bytes of every file system.
const FILE_SYSTEM_BYTES: u64 = 1 << 40;

/// State behind the calls of [`System`].
#[derive(Debug, Default)]
pub(crate) struct StorageState {
    /// Folder of a mount, and what is mounted there. Files below it are those of the source.
    mounts: BTreeMap<String, String>,
    /// Kill points so far: before and after each change.
    moments: u64,
    /// The kill point at which the daemon dies.
    dies_at: Option<u64>,
    /// Path prefixes that fail, with their errors.
    failing: BTreeMap<String, HostError>,
    /// Path prefixes that hang.
    hanging: BTreeSet<String>,
    /// Whether reflinks are supported.
    shares_blocks: bool,
    pub(crate) lvm: Groups,
    pub(crate) served: Served,
    pub(crate) targets: Targets,
    pub(crate) nbd: Servers,
    /// Call counts by name.
    counts: BTreeMap<String, u64>,
    /// Simulated delays not yet waited for.
    slept_ns: u64,
}

fn killed() -> HostError {
    HostError::Refused("the daemon was killed".to_owned())
}

impl StorageState {
    /// A kill point.
    fn moment(&mut self) -> Result<(), HostError> {
        self.moments += 1;
        self.alive()
    }

    pub(crate) fn alive(&self) -> Result<(), HostError> {
        if self.dies_at.is_some_and(|end| self.moments >= end) { Err(killed()) } else { Ok(()) }
    }

    pub(crate) fn check(&self, path: &str) -> Result<(), HostError> {
        if self.hangs(path) {
            let text = format!("no answer within {HANG_SECONDS} s");
            return Err(HostError::Refused(text));
        }
        let failing = self.failing.iter().find(|(beginning, _)| path.starts_with(*beginning));
        failing.map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    fn hangs(&self, path: &str) -> bool {
        self.hanging.iter().any(|beginning| path.starts_with(beginning))
    }

    /// Resolves a path through mounts.
    pub(crate) fn resolve(&self, path: &str) -> String {
        for (point, source) in &self.mounts {
            if let Some(rest) = path.strip_prefix(point.as_str()) {
                return format!("{source}{rest}");
            }
        }
        path.to_owned()
    }
}

impl OsState {
    /// Files of VDIs in use.
    #[must_use]
    pub fn attached_vdis(&self) -> Vec<String> {
        self.files.keys().filter(|path| is_record_of_use(path)).cloned().collect()
    }

    /// Files of disk claims.
    #[must_use]
    pub fn claimed_disks(&self) -> Vec<String> {
        self.files.keys().filter(|path| path.starts_with("/run/xylem/disk")).cloned().collect()
    }

    /// Mounts by folder.
    #[must_use]
    pub fn mounts(&self) -> &BTreeMap<String, String> {
        &self.storage.mounts
    }

    /// Kill points so far: before and after each change.
    #[must_use]
    pub fn moments(&self) -> u64 {
        self.storage.moments
    }

    /// All paths below `folder`.
    #[must_use]
    pub fn paths(&self, folder: &str) -> Vec<String> {
        self.files.keys().filter(|path| path.starts_with(folder)).cloned().collect()
    }

    /// Logical volumes of VDIs that are active.
    #[must_use]
    pub fn active_volumes(&self) -> Vec<String> {
        self.storage.lvm.active_names()
    }

    /// Connected network block devices: images by path; exports by server, name and access.
    #[must_use]
    pub fn served(&self) -> Vec<String> {
        let text = |it: &qemu::Server| match &it.behind {
            Behind::Image(path) => path.clone(),
            Behind::Export { server, name } => format!("{server}/{name} {}", it.access.as_str()),
        };
        self.storage.served.values().map(text).collect()
    }

    fn image_of(&mut self, device: DeviceNumber) -> Option<&mut BTreeMap<u64, u8>> {
        match qemu::behind(&self.storage.served, device).cloned() {
            Some(Behind::Image(path)) => {
                return match self.files.get_mut(&path) {
                    Some(File::Qcow2 { sectors, .. }) => Some(sectors),
                    _ => None,
                };
            }
            Some(Behind::Export { server, name }) => {
                return self.storage.nbd.export_mut(&server, &name).map(|it| &mut it.sectors);
            }
            None => {}
        }
        if self.storage.targets.bytes(device).is_some() {
            return self.storage.targets.image(device);
        }
        if device.major != LOOP_MAJOR {
            return self.storage.lvm.image(device);
        }
        let path = self.loops.get(&device.minor)?.path.clone();
        match self.files.get_mut(&path)? {
            File::Image { sectors, .. } => Some(sectors),
            _ => None,
        }
    }
}

impl OsState {
    /// A dead daemon does nothing more.
    fn check_toolstack(&self) -> Result<(), HostError> {
        match &self.machine {
            Some(machine) if machine.get().faults().is_toolstack_dead() => Err(killed()),
            _ => Ok(()),
        }
    }

    /// The host has lost power: what is below `/run` and `/dev`, mounts, links and processes are gone.
    pub(crate) fn lose_power(&mut self, now: Time) {
        self.disk_uses.end_all(now);
        let is_kept = |path: &String| {
            !["/run/", "/dev/loop", "/dev/nbd"].iter().any(|it| path.starts_with(it))
        };
        self.files.retain(|path, _| is_kept(path));
        self.loops.clear();
        self.forget_links();
        self.models.clear();
        self.scripts.forget();
        self.storage.mounts.clear();
        self.storage.served.clear();
        self.storage.counts.clear();
        self.storage.slept_ns = 0;
    }
}

fn is_record_of_use(path: &str) -> bool {
    path.starts_with("/run/xylem/sr/") && path.ends_with(".json")
}

impl SimOs {
    /// Makes a change, with a kill point before and after it.
    pub(crate) fn change<T>(
        &self,
        path: &str,
        change: impl FnOnce(&mut OsState, &str) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        self.act()?;
        let mut os = self.get_mut();
        os.storage.moment()?;
        os.storage.check(path)?;
        let path = os.storage.resolve(path);
        let result = change(&mut os, &path)?;
        os.storage.moment()?;
        Ok(result)
    }

    /// Reads something; fails if the daemon is dead.
    pub(crate) fn with_state<T>(
        &self,
        path: &str,
        read: impl FnOnce(&OsState, &str) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        let os = self.get();
        os.storage.alive()?;
        os.check_toolstack()?;
        os.storage.check(path)?;
        read(&os, &os.storage.resolve(path))
    }

    /// Kills the daemon at the `moments`-th kill point from now: then its calls fail without
    /// effect.
    pub fn kill_daemon_after(&self, moments: u64) {
        let mut os = self.get_mut();
        os.storage.dies_at = Some(os.storage.moments + moments);
    }

    /// Starts a new daemon after a kill.
    pub fn restart_daemon(&self) {
        let mut os = self.get_mut();
        os.storage.dies_at = None;
        os.storage.counts.clear();
    }

    /// Takes the simulated delays since the last call, in nanoseconds.
    pub fn take_slept(&self) -> u64 {
        std::mem::take(&mut self.get_mut().storage.slept_ns)
    }

    /// Makes everything below `beginning` fail from now on, or no longer.
    pub fn set_failing(&self, beginning: &str, error: Option<HostError>) {
        let failing = &mut self.get_mut().storage.failing;
        match error {
            Some(error) => failing.insert(beginning.to_owned(), error),
            None => failing.remove(beginning),
        };
    }

    /// Makes everything below `beginning` hang from now on, or no longer: calls there time out.
    pub fn set_hanging(&self, beginning: &str, hangs: bool) {
        let hanging = &mut self.get_mut().storage.hanging;
        match hangs {
            true => hanging.insert(beginning.to_owned()),
            false => hanging.remove(beginning),
        };
    }

    /// Whether a call for this path hangs.
    pub(crate) fn hangs(&self, path: &str) -> bool {
        self.get().storage.hangs(path)
    }

    /// Whether the daemon's calls still have an effect.
    #[must_use]
    pub fn daemon_lives(&self) -> bool {
        self.get().storage.alive().is_ok()
    }

    /// Kills the program that serves a block device.
    pub fn kill_server(&self, device: DeviceNumber) {
        qemu::kill(&mut self.get_mut().storage.served, device);
    }

    /// Sets whether reflinks are supported, as on xfs and btrfs.
    pub fn set_shares_blocks(&self, shares_blocks: bool) {
        self.get_mut().storage.shares_blocks = shares_blocks;
    }

    /// Writes one sector of a block device. False if it does not exist.
    pub fn write_sector(&self, device: DeviceNumber, sector: u64, byte: u8) -> bool {
        let mut os = self.get_mut();
        let fits = sector < os.sectors(device);
        let image = os.image_of(device).filter(|_| fits);
        image.map(|sectors| sectors.insert(sector, byte)).is_some()
    }

    /// Reads one sector of a block device; `None` if it does not exist.
    #[must_use]
    pub fn read_sector(&self, device: DeviceNumber, sector: u64) -> Option<u8> {
        let mut os = self.get_mut();
        let fits = sector < os.sectors(device);
        let image = os.image_of(device).filter(|_| fits)?;
        Some(image.get(&sector).copied().unwrap_or(0))
    }
}

fn exists() -> HostError {
    HostError::Busy
}

/// Temporary name of an incomplete file.
fn partial(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    format!("{folder}/{PARTIAL_PREFIX}{name}")
}

/// Text of the mount table.
fn mount_table(os: &OsState) -> Vec<u8> {
    let mounts = &os.storage.mounts;
    let lines = mounts.iter().map(|(point, source)| format!("{source} {point} nfs rw 0 0\n"));
    lines.collect::<String>().into_bytes()
}

fn run(os: &mut OsState, command: &Command) -> Result<String, HostError> {
    let words: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
    match (command.program.as_str(), words.as_slice()) {
        ("/usr/bin/mount", ["-t", "nfs", "-o", _, source, point]) => {
            os.storage.check(source)?;
            os.storage.mounts.insert((*point).to_owned(), (*source).to_owned());
            Ok(String::new())
        }
        ("/usr/bin/umount", [point]) => match os.storage.mounts.remove(*point) {
            Some(_) => Ok(String::new()),
            None => Err(HostError::Refused(format!("umount: {point}: not mounted."))),
        },
        ("/usr/sbin/iscsiadm", words) => iscsi::run(os, words),
        ("/usr/bin/qemu-img", words) => qemu::img(os, words),
        ("/usr/bin/qemu-nbd", words) => qemu::nbd(os, words),
        ("/usr/sbin/lvm", words) => lvm::run(os, words),
        ("/usr/sbin/blkdiscard", words) => lvm::zero(os, words),
        ("/usr/bin/dd", words) => lvm::copy(os, words),
        (program, words) => {
            Err(HostError::Refused(format!("{program} {}: not on this host", words.join(" "))))
        }
    }
}

impl System for SimOs {
    fn run(&mut self, command: &Command) -> Result<String, HostError> {
        self.change(&command.program, |os, _| run(os, command))
    }

    /// A driver program here has no VDIs, and accepts all other requests.
    fn converse(&mut self, command: &Command, line: &str) -> Result<String, HostError> {
        self.change(&command.program, |os, program| {
            if !os.files.contains_key(program) {
                return Err(HostError::Refused(format!("{program}: not on this host")));
            }
            let scans = line.contains("\"call\":\"scan\"");
            Ok(if scans { "{\"ok\":[]}" } else { "{\"ok\":null}" }.to_owned())
        })
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, HostError> {
        self.with_state(path, |os, path| match os.files.get(path) {
            _ if path == "/proc/self/mounts" => Ok(mount_table(os)),
            None => qemu::kernel_file(os, path)
                .or_else(|| os.storage.targets.read(path))
                .unwrap_or(Err(HostError::Missing)),
            Some(File::Bytes(bytes)) => Ok(bytes.to_vec()),
            Some(_) => Err(HostError::Refused("not a small file".to_owned())),
        })
    }

    fn read_start(&mut self, path: &str, bytes: usize) -> Result<Vec<u8>, HostError> {
        let mut start = self.with_state(path, |os, path| match os.files.get(path) {
            Some(File::Qcow2 { bytes, backing, .. }) => {
                Ok(qemu::header(*bytes, backing.as_deref()))
            }
            Some(File::Bytes(bytes)) => Ok(bytes.to_vec()),
            Some(_) => Ok(Vec::new()),
            None => Err(HostError::Missing),
        })?;
        start.truncate(bytes);
        Ok(start)
    }

    fn rename_new(&mut self, from: &str, to: &str) -> Result<(), HostError> {
        let from = self.get().storage.resolve(from);
        self.change(to, |os, to| {
            if os.files.contains_key(to) {
                return Err(exists());
            }
            let file = os.files.remove(&from).ok_or(HostError::Missing)?;
            os.files.insert(to.to_owned(), file);
            Ok(())
        })
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), HostError> {
        let partial = partial(path);
        self.change(&partial, |os, partial| {
            os.files.insert(partial.to_owned(), File::Bytes(bytes.into()));
            Ok(())
        })?;
        let new = self.get().storage.resolve(&partial);
        self.change(path, |os, path| {
            let file = os.files.remove(&new).ok_or(HostError::Missing)?;
            os.files.insert(path.to_owned(), file);
            Ok(())
        })
    }

    fn remove(&mut self, path: &str) -> Result<(), HostError> {
        self.change(path, |os, path| {
            os.files.remove(path);
            Ok(())
        })
    }

    fn list(&mut self, folder: &str) -> Result<Vec<String>, HostError> {
        self.with_state(folder, |os, folder| {
            match folder {
                "/sys/block" => return Ok(qemu::devices()),
                "/proc" => return Ok(qemu::processes(&os.storage.served)),
                _ => {}
            }
            if let Some(names) = os.storage.targets.list(folder) {
                return Ok(names);
            }
            let beginning = format!("{folder}/");
            let below = os.files.keys().filter_map(|path| path.strip_prefix(&beginning));
            let mut names: Vec<String> =
                below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
            names.dedup();
            Ok(names)
        })
    }

    fn make_folder(&mut self, folder: &str) -> Result<(), HostError> {
        self.change(folder, |os, folder| {
            os.files.insert(folder.to_owned(), File::Directory);
            Ok(())
        })
    }

    fn remove_folder(&mut self, folder: &str) -> Result<(), HostError> {
        self.change(folder, |os, folder| {
            let beginning = format!("{folder}/");
            if os.files.keys().any(|path| path.starts_with(&beginning)) {
                return Err(HostError::Refused("Directory not empty".to_owned()));
            }
            os.files.remove(folder);
            Ok(())
        })
    }

    fn make_sparse(&mut self, path: &str, bytes: u64) -> Result<(), HostError> {
        self.change(path, |os, path| {
            if os.files.contains_key(path) {
                return Err(exists());
            }
            let image = File::Image { bytes, sectors: BTreeMap::new() };
            os.files.insert(path.to_owned(), image);
            Ok(())
        })
    }

    fn grow(&mut self, path: &str, new_bytes: u64) -> Result<(), HostError> {
        self.change(path, |os, path| match os.files.get_mut(path) {
            Some(File::Image { bytes, .. }) => {
                *bytes = new_bytes;
                Ok(())
            }
            _ => Err(HostError::Missing),
        })
    }

    fn copy(&mut self, from: &str, to: &str, how: Copying) -> Result<(), HostError> {
        let partial = partial(to);
        if how == Copying::Shared && !self.get().storage.shares_blocks {
            return Err(HostError::Refused("Operation not supported".to_owned()));
        }
        let from = self.get().storage.resolve(from);
        self.change(&partial, |os, partial| {
            let image = os.files.get(&from).cloned().ok_or(HostError::Missing)?;
            os.files.insert(partial.to_owned(), image);
            Ok(())
        })?;
        let source = self.get().storage.resolve(&partial);
        self.change(to, |os, to| {
            if os.files.contains_key(to) {
                os.files.remove(&source);
                return Err(exists());
            }
            let image = os.files.remove(&source).ok_or(HostError::Missing)?;
            os.files.insert(to.to_owned(), image);
            Ok(())
        })
    }

    fn used_bytes(&mut self, path: &str) -> Result<u64, HostError> {
        self.with_state(path, |os, path| match os.files.get(path) {
            Some(File::Image { sectors, .. }) => Ok(sectors.len() as u64 * 512),
            Some(_) => Ok(0),
            None => Err(HostError::Missing),
        })
    }

    fn space(&mut self, path: &str) -> Result<Space, HostError> {
        self.with_state(path, |os, folder| {
            let used = os.files.iter().filter(|(path, _)| path.starts_with(folder));
            let used: u64 = used
                .map(|(_, file)| match file {
                    File::Image { sectors, .. } => sectors.len() as u64 * 512,
                    _ => 0,
                })
                .sum();
            Ok(Space { bytes: FILE_SYSTEM_BYTES, free_bytes: FILE_SYSTEM_BYTES - used })
        })
    }

    fn flush(&mut self, device: &str) -> Result<(), HostError> {
        self.change(device, |_, _| Ok(()))
    }

    fn do_each(&mut self, jobs: Vec<Job<'_>>) -> Vec<Result<(), StorageError>> {
        jobs.into_iter().map(|job| job(self)).collect()
    }

    fn resize_loop(&mut self, device: &str) -> Result<(), HostError> {
        self.change(device, |_, _| Ok(()))
    }

    fn detach_tagged(&mut self, device: &str, tag: &str) -> Result<(), HostError> {
        let there = self.with_state(device, |os, _| {
            let mut ours = os.loops.iter().filter(|(_, it)| it.tag == tag);
            Ok(ours.any(|(minor, _)| device == format!("/dev/loop{minor}")))
        })?;
        if there { self.detach_loop(device) } else { Ok(()) }
    }

    fn dial(&mut self, server: &str) -> Result<Box<dyn Connection>, HostError> {
        nbd::dial(self, server)
    }

    fn serve_nbd(
        &mut self,
        device: &str,
        connection: Box<dyn Connection>,
        export: &NbdExport,
    ) -> Result<(), HostError> {
        let (behind, access) = nbd::behind(connection, export)?;
        self.change("/dev/nbd", |os, _| qemu::serve(os, qemu::minor(device)?, behind, access))
    }

    fn release_nbd(&mut self, device: &str) -> Result<(), HostError> {
        self.change("/dev/nbd", |os, _| {
            os.storage.served.remove(&qemu::minor(device)?);
            Ok(())
        })
    }

    fn sleep(&mut self, nanoseconds: u64) {
        self.get_mut().storage.slept_ns += nanoseconds;
    }

    fn count(&mut self, name: &str) -> u64 {
        let mut os = self.get_mut();
        let count = os.storage.counts.entry(name.to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    fn pause(&mut self, waits_so_far: u32) -> bool {
        waits_so_far < 3
    }

    fn lock(&mut self, _name: &str) -> Result<Lock, HostError> {
        Ok(Lock::new(()))
    }
}
