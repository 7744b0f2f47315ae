//! Files of saved VMs on dom0's disk, which may be full, damaged or slow.

use std::sync::Arc;

use storage::HostError;
use toolstack::host::{ImageSink, ImageSource, unfinished_name};

use crate::machine::Machine;
use crate::os::{File, SimOs};

/// What is wrong with the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskFaults {
    /// Bytes until it is full.
    pub(crate) room: Option<u64>,
    /// Reads at or after this offset of a file fail.
    pub(crate) unreadable_from: Option<u64>,
    /// How long a MiB takes, in nanoseconds.
    pub(crate) ns_per_mib: u64,
}

impl SimOs {
    /// The disk takes this many bytes from now on, or any number.
    pub fn set_room(&self, room: Option<u64>) {
        self.get_mut().disk_faults.room = room;
    }

    /// Reads of saved VMs fail from this offset on, or no longer.
    pub fn set_unreadable_from(&self, offset: Option<u64>) {
        self.get_mut().disk_faults.unreadable_from = offset;
    }

    /// Reading and writing a MiB of a saved VM takes this long.
    pub fn set_ns_per_mib(&self, ns: u64) {
        self.get_mut().disk_faults.ns_per_mib = ns;
    }

    /// The bytes of a file, if there is such a file.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<Arc<[u8]>> {
        match self.get().files.get(path) {
            Some(File::Bytes(bytes)) => Some(Arc::clone(bytes)),
            _ => None,
        }
    }

    pub fn remove_file(&self, path: &str) {
        self.get_mut().files.remove(path);
    }

    /// An action of the daemon on its host, at which it may be killed.
    pub(crate) fn act(&self) -> Result<(), HostError> {
        let machine = self.get().machine.clone();
        let lives = machine.is_none_or(|machine| machine.get_mut().faults_mut().count_action());
        match lives {
            true => self.get().storage.alive(),
            false => Err(HostError::Refused("the daemon was killed".to_owned())),
        }
    }

    fn is_killed(&self) -> bool {
        let os = self.get();
        let dead = |machine: &Machine| machine.get().faults().is_toolstack_dead();
        os.storage.alive().is_err() || os.machine.as_ref().is_some_and(dead)
    }

    fn take_time(&self, bytes: usize) {
        let (ns, machine) = {
            let os = self.get();
            (os.disk_faults.ns_per_mib, os.machine.clone())
        };
        if let Some(machine) = machine.filter(|_| ns > 0) {
            let until = machine.get().now().after((ns * bytes as u64) >> 20);
            while machine.pass_event(until) {}
            let mut xen = machine.get_mut();
            xen.now = xen.now.max(until);
        }
    }

    pub(crate) fn begin_image(&self, path: &str) -> Result<Box<dyn ImageSink>, HostError> {
        self.act()?;
        let mut os = self.get_mut();
        os.storage.check(path)?;
        let path = os.storage.resolve(path);
        match os.files.get(os.target(&path)) {
            None | Some(File::Bytes(_)) => {}
            Some(File::Directory) => return Err(HostError::Refused("is a directory".to_owned())),
            Some(_) => return Err(HostError::Refused("is not a regular file".to_owned())),
        }
        let path = os.target(&path).to_owned();
        let unfinished = unfinished_name(&path);
        os.files.insert(unfinished.clone(), File::Bytes(Arc::new([])));
        let os = self.clone();
        Ok(Box::new(SimSink { os, path, unfinished, bytes: Vec::new(), is_whole: false }))
    }

    pub(crate) fn source(&self, path: &str) -> Result<Box<dyn ImageSource>, HostError> {
        let bytes = self.with_state(path, |os, path| match os.files.get(os.target(path)) {
            None => Err(HostError::Missing),
            Some(File::Bytes(bytes)) => Ok(Arc::clone(bytes)),
            Some(_) => Err(HostError::Refused("is not a regular file".to_owned())),
        })?;
        Ok(Box::new(SimSource { os: self.clone(), bytes }))
    }

    pub(crate) fn remove_unfinished(&self, path: &str) -> Result<(), HostError> {
        self.act()?;
        let mut os = self.get_mut();
        os.storage.check(path)?;
        let path = os.target(&os.storage.resolve(path)).to_owned();
        os.files.remove(&unfinished_name(&path));
        Ok(())
    }
}

#[derive(Debug)]
struct SimSink {
    os: SimOs,
    path: String,
    unfinished: String,
    bytes: Vec<u8>,
    is_whole: bool,
}

impl ImageSink for SimSink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.os.act()?;
        self.os.take_time(bytes.len());
        let mut os = self.os.get_mut();
        os.storage.check(&self.path)?;
        if let Some(room) = &mut os.disk_faults.room {
            let left = room.checked_sub(bytes.len() as u64);
            *room = left.ok_or_else(|| HostError::Refused("no space left on device".to_owned()))?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<(), HostError> {
        self.os.act()?;
        {
            let mut os = self.os.get_mut();
            os.storage.check(&self.path)?;
            os.files.remove(&self.unfinished);
            let bytes = std::mem::take(&mut self.bytes);
            os.files.insert(self.path.clone(), File::Bytes(bytes.into()));
        }
        self.is_whole = true;
        // The caller may be killed before it knows.
        self.os.act()
    }
}

impl Drop for SimSink {
    fn drop(&mut self) {
        if !self.is_whole && !self.os.is_killed() {
            let mut os = self.os.get_mut();
            os.files.remove(&self.unfinished);
            if let Some(room) = &mut os.disk_faults.room {
                *room += self.bytes.len() as u64;
            }
        }
    }
}

#[derive(Debug)]
struct SimSource {
    os: SimOs,
    bytes: Arc<[u8]>,
}

impl ImageSource for SimSource {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, HostError> {
        self.os.act()?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let length = buffer.len().min(self.bytes.len() - start);
        self.os.take_time(length);
        let broken = self.os.get().disk_faults.unreadable_from;
        if broken.is_some_and(|from| offset + length as u64 > from) {
            return Err(HostError::Refused("input/output error".to_owned()));
        }
        buffer[..length].copy_from_slice(&self.bytes[start..start + length]);
        Ok(length)
    }
}
