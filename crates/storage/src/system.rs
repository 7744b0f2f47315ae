//! The operating system interface of storage: programs, small files, sparse files.

use std::any::Any;

use crate::{BlockHost, HostError, NbdExport, StorageError};

/// A program to be run: absolute path, arguments and time limit. No shell is involved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub seconds: u64,
    /// For a program that reads a guest's bytes and runs on: a name for it, unique on the host. It is
    /// started without the rights that it does not need.
    pub confined_as: Option<String>,
}

impl Command {
    #[must_use]
    pub fn new(program: &str, arguments: &[&str], seconds: u64) -> Self {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        Self { program: program.to_owned(), arguments, seconds, confined_as: None }
    }

    /// The same program, confined.
    #[must_use]
    pub fn confined_as(self, name: &str) -> Self {
        Self { confined_as: Some(name.to_owned()), ..self }
    }
}

/// Space of a file system or volume group, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Space {
    pub bytes: u64,
    pub free_bytes: u64,
}

/// Name prefix of an incomplete file, in the same folder as the final one.
pub const PARTIAL_PREFIX: &str = ".part-";

/// How a file may be copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Copying {
    /// Atomically, by reflink: consistent even while the file is written.
    Shared,
    /// By reflink if supported, otherwise byte by byte without holes.
    Any,
}

/// A lock, released when dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held to be dropped")] Box<dyn Any + Send>);

impl Lock {
    /// `held` is dropped with the lock.
    pub fn new(held: impl Any + Send) -> Self {
        Self(Box::new(held))
    }
}

/// A connection to a server, with timeouts.
pub trait Connection: Any {
    /// Sends all bytes.
    ///
    /// # Errors
    /// The connection is broken, or takes too long.
    fn send(&mut self, bytes: &[u8]) -> Result<(), HostError>;

    /// Receives exactly `bytes.len()` bytes.
    ///
    /// # Errors
    /// As [`Connection::send`], or the server has closed it.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), HostError>;
}

/// Work that may be done beside other such work.
pub type Job<'a> = Box<dyn FnOnce(&mut dyn System) -> Result<(), StorageError> + Send + 'a>;

/// The system calls of storage. Each has a timeout: an unresponsive file system or program is an
/// error after a while.
pub trait System: BlockHost {
    /// Runs a program to its end and returns what it printed.
    ///
    /// # Errors
    /// The program does not start, fails (the error is its own message), or times out.
    fn run(&mut self, command: &Command) -> Result<String, HostError>;

    /// Runs a program with one further argument. Concurrent runs with the same `among` that differ
    /// only in this argument may be combined into one, whose output all receive; if it fails, they
    /// are run separately.
    ///
    /// # Errors
    /// As for [`System::run`].
    fn run_with(
        &mut self,
        _among: &str,
        command: &Command,
        argument: &str,
    ) -> Result<String, HostError> {
        let mut command = command.clone();
        command.arguments.push(argument.to_owned());
        self.run(&command)
    }

    /// One exchange with a program that is kept running: a line to its standard input, one from its
    /// standard output. If the program exits or times out, this exchange fails; the next restarts
    /// it.
    ///
    /// # Errors
    /// As for [`System::run`].
    fn converse(&mut self, command: &Command, line: &str) -> Result<String, HostError>;

    /// A small file's bytes.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is none.
    fn read(&mut self, path: &str) -> Result<Vec<u8>, HostError>;

    /// The first bytes of a file, at most `bytes`.
    ///
    /// # Errors
    /// As for [`System::read`].
    fn read_start(&mut self, path: &str, bytes: usize) -> Result<Vec<u8>, HostError>;

    /// Renames a file to a new name.
    ///
    /// # Errors
    /// [`HostError::Busy`] if `to` exists already.
    fn rename_new(&mut self, from: &str, to: &str) -> Result<(), HostError>;

    /// Replaces a small file atomically, creating its folder. The temporary file of an interrupted
    /// call begins with [`PARTIAL_PREFIX`].
    ///
    /// # Errors
    /// An errno of the kernel.
    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), HostError>;

    /// Removes a file. Idempotent.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn remove(&mut self, path: &str) -> Result<(), HostError>;

    /// Names in a folder, sorted; none for a missing folder.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn list(&mut self, folder: &str) -> Result<Vec<String>, HostError>;

    /// Creates a folder and its parents. Idempotent.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn make_folder(&mut self, folder: &str) -> Result<(), HostError>;

    /// Removes an empty folder. Idempotent.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn remove_folder(&mut self, folder: &str) -> Result<(), HostError>;

    /// Creates a sparse file of `bytes` bytes.
    ///
    /// # Errors
    /// [`HostError::Busy`] if it exists already.
    fn make_sparse(&mut self, path: &str, bytes: u64) -> Result<(), HostError>;

    /// Extends a file, sparsely.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn grow(&mut self, path: &str, bytes: u64) -> Result<(), HostError>;

    /// Copies a file. `to` appears only when the copy is complete.
    ///
    /// # Errors
    /// [`HostError::Busy`] if `to` exists already.
    fn copy(&mut self, from: &str, to: &str, how: Copying) -> Result<(), HostError>;

    /// Disk usage of a file.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is none.
    fn used_bytes(&mut self, path: &str) -> Result<u64, HostError>;

    /// Space of the file system with `path`.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn space(&mut self, path: &str) -> Result<Space, HostError>;

    /// Waits until all that was written to a block device is on its storage.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn flush(&mut self, device: &str) -> Result<(), HostError>;

    /// Does all of these, concurrently where the host can. The results are in the order of the jobs.
    fn do_each(&mut self, jobs: Vec<Job<'_>>) -> Vec<Result<(), StorageError>>;

    /// Updates a loop device to its file's size.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn resize_loop(&mut self, device: &str) -> Result<(), HostError>;

    /// Detaches a loop device if it still has the tag, since its number may have been reused. It is
    /// no longer open then.
    ///
    /// # Errors
    /// [`HostError::Busy`] if it stays open.
    fn detach_tagged(&mut self, device: &str, tag: &str) -> Result<(), HostError>;

    /// Connects to a server by TCP, `HOST:PORT`.
    ///
    /// # Errors
    /// It does not answer.
    fn dial(&mut self, server: &str) -> Result<Box<dyn Connection>, HostError>;

    /// Passes a connection of [`System::dial`], in the transmission phase of an export, to the
    /// kernel as the network block device `device` (`nbd0`). It outlives this process.
    ///
    /// # Errors
    /// [`HostError::Busy`] if the device is connected already.
    fn serve_nbd(
        &mut self,
        device: &str,
        connection: Box<dyn Connection>,
        export: &NbdExport,
    ) -> Result<(), HostError>;

    /// Disconnects a network block device, even while it is open. Idempotent.
    ///
    /// # Errors
    /// An errno of the kernel.
    fn release_nbd(&mut self, device: &str) -> Result<(), HostError>;

    /// Sleeps for this many nanoseconds, for simulated delays only.
    fn sleep(&mut self, nanoseconds: u64);

    /// Number of earlier calls of this daemon with this name.
    fn count(&mut self, name: &str) -> u64;

    /// Waits between two polls. Returns whether to poll again.
    fn pause(&mut self, waits_so_far: u32) -> bool;

    /// Takes the lock of this name, waiting for its holder in this daemon.
    ///
    /// # Errors
    /// [`HostError::Busy`] after a timeout.
    fn lock(&mut self, name: &str) -> Result<Lock, HostError>;
}

/// The text of a file that may be missing.
///
/// # Errors
/// As [`System::read`], but for a missing file.
pub(crate) fn text_if_there(
    system: &mut dyn System,
    path: &str,
) -> Result<Option<String>, HostError> {
    match system.read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(HostError::Missing) => Ok(None),
        Err(error) => Err(error),
    }
}
