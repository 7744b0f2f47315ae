//! Bootloaders: what they find is told beforehand; no file system is simulated.

use std::collections::BTreeMap;
use std::sync::Arc;

use storage::HostError;
use toolstack::bootloader::BootloaderRun;
use toolstack::host::{BootFolder, KernelError};
use xen_build::KernelImage;

use crate::os::SimOs;

/// How bootloaders end from now on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BootloaderFate {
    /// It answers this and leaves these files.
    Answers { answer: Vec<u8>, files: BTreeMap<String, Vec<u8>> },
    /// It fails, is killed or does not end in time.
    Fails(String),
}

impl BootloaderFate {
    /// It finds a kernel and maybe a ramdisk, and answers as pygrub does.
    #[must_use]
    pub fn finds(kernel: Vec<u8>, ramdisk: Option<Vec<u8>>, cmdline: &str) -> Self {
        let mut answer = "kernel /run/out/k\0".to_owned();
        let mut files = BTreeMap::from([("k".to_owned(), kernel)]);
        if let Some(ramdisk) = ramdisk {
            answer.push_str("ramdisk /run/out/r\0");
            files.insert("r".to_owned(), ramdisk);
        }
        answer.push_str(&format!("args {cmdline}\0\0"));
        Self::Answers { answer: answer.into_bytes(), files }
    }
}

impl Default for BootloaderFate {
    fn default() -> Self {
        Self::Fails("no bootloader was expected".to_owned())
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Bootloaders {
    fate: BootloaderFate,
    runs: Vec<BootloaderRun>,
    /// Folders that somebody still has.
    open: u32,
}

impl SimOs {
    pub fn set_bootloader(&self, fate: BootloaderFate) {
        self.get_mut().bootloaders.fate = fate;
    }

    /// Those that were run, with their arguments.
    #[must_use]
    pub fn bootloader_runs(&self) -> Vec<BootloaderRun> {
        self.get().bootloaders.runs.clone()
    }

    /// How many folders of them are there.
    #[must_use]
    pub fn bootloader_folders(&self) -> u32 {
        self.get().bootloaders.open
    }

    pub(crate) fn boot(&mut self, run: &BootloaderRun) -> Result<Box<dyn BootFolder>, HostError> {
        let fate = self.change(&run.disk, |os, disk| {
            if os.device_at(disk).is_none() {
                return Err(HostError::Missing);
            }
            os.bootloaders.runs.push(run.clone());
            Ok(os.bootloaders.fate.clone())
        })?;
        match fate {
            BootloaderFate::Fails(why) => Err(HostError::Refused(why)),
            BootloaderFate::Answers { answer, files } => {
                self.get_mut().bootloaders.open += 1;
                Ok(Box::new(Folder { os: self.clone(), answer, files }))
            }
        }
    }
}

struct Folder {
    os: SimOs,
    answer: Vec<u8>,
    files: BTreeMap<String, Vec<u8>>,
}

impl BootFolder for Folder {
    fn answer(&mut self, bytes_max: usize) -> Result<Vec<u8>, HostError> {
        Ok(self.answer.iter().take(bytes_max).copied().collect())
    }

    fn kernel(&mut self, name: &str) -> Result<Arc<KernelImage>, KernelError> {
        Ok(Arc::new(KernelImage::parse(&self.ramdisk(name)?)?))
    }

    fn ramdisk(&mut self, name: &str) -> Result<Arc<[u8]>, HostError> {
        let bytes = self.files.get(name).ok_or(HostError::Missing)?;
        Ok(bytes.as_slice().into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.os.get_mut().bootloaders.open -= 1;
    }
}
