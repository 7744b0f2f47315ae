//! The operating system as storage sees it: programs, small files, sparse files.

use std::any::Any;

use crate::{BlockHost, HostError, NbdExport};

/// A program to be run: absolute path, arguments, and how long it may take. No shell reads any of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub seconds: u64,
}

impl Command {
    #[must_use]
    pub fn new(program: &str, arguments: &[&str], seconds: u64) -> Self {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        Self { program: program.to_owned(), arguments, seconds }
    }
}

/// Bytes of a file system or volume group.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Space {
    pub bytes: u64,
    pub free_bytes: u64,
}

/// What the name of a file begins with until it is whole, in the folder where it is to be.
pub const PARTIAL_PREFIX: &str = ".part-";

/// How a file may be copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Copying {
    /// In one moment, by sharing blocks: right even while the file is written to.
    Shared,
    /// By sharing if the file system can, else byte for byte, holes left out.
    Any,
}

/// Held for as long as it lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Any + Send>);

impl Lock {
    /// `held` is let go when the lock is.
    pub fn new(held: impl Any + Send) -> Self {
        Self(Box::new(held))
    }
}

/// A connection with a server. What does not get through in time is an error.
pub trait Connection: Any {
    /// Sends all of it.
    ///
    /// # Errors
    /// The connection is broken, or takes too long.
    fn send(&mut self, bytes: &[u8]) -> Result<(), HostError>;

    /// Fills `bytes` with what comes next.
    ///
    /// # Errors
    /// As [`Connection::send`], or the server has closed it.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), HostError>;
}

/// What storage asks of the operating system. Each call has an end: a file system or program that does not
/// answer is an error after a while, never a wait for ever.
pub trait System: BlockHost {
    /// Runs a program to its end and returns what it printed.
    ///
    /// # Errors
    /// The program does not start, fails (its own words are the error), or takes too long.
    fn run(&mut self, command: &Command) -> Result<String, HostError>;

    /// Runs a program with one argument more. Runs that differ in nothing else, of the same `among`, may be made one
    /// with the arguments of all, whose output is everybody's; one that fails is not counted against the others.
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

    /// One exchange with a program that is kept running: a line to its standard input, one from its standard
    /// output. A program that ends or takes too long fails this exchange; the next starts it anew.
    ///
    /// # Errors
    /// As for [`System::run`].
    fn converse(&mut self, command: &Command, line: &str) -> Result<String, HostError>;

    /// A small file's bytes.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is none.
    fn read(&mut self, path: &str) -> Result<Vec<u8>, HostError>;

    /// The first bytes of a file: so many, or all that it has.
    ///
    /// # Errors
    /// As for [`System::read`].
    fn read_start(&mut self, path: &str, bytes: usize) -> Result<Vec<u8>, HostError>;

    /// Gives a file another name, which is not there yet.
    ///
    /// # Errors
    /// [`HostError::Busy`] if there is something at `to` already.
    fn rename_new(&mut self, from: &str, to: &str) -> Result<(), HostError>;

    /// Replaces a small file as one: it has the old bytes or the new ones, whatever happens. Its folder is made. What
    /// a daemon leaves that is killed meanwhile begins with [`PARTIAL_PREFIX`].
    ///
    /// # Errors
    /// What the kernel says.
    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), HostError>;

    /// Removes a file. One that is gone already is no error.
    ///
    /// # Errors
    /// What the kernel says.
    fn remove(&mut self, path: &str) -> Result<(), HostError>;

    /// Names in a folder, sorted. A folder that is missing has none.
    ///
    /// # Errors
    /// What the kernel says.
    fn list(&mut self, folder: &str) -> Result<Vec<String>, HostError>;

    /// Makes a folder and those above it. One that exists is no error.
    ///
    /// # Errors
    /// What the kernel says.
    fn make_folder(&mut self, folder: &str) -> Result<(), HostError>;

    /// Removes an empty folder. One that is gone already is no error.
    ///
    /// # Errors
    /// What the kernel says.
    fn remove_folder(&mut self, folder: &str) -> Result<(), HostError>;

    /// Makes a file of `bytes` zeros that takes no room yet.
    ///
    /// # Errors
    /// [`HostError::Busy`] if there is something at `path` already.
    fn make_sparse(&mut self, path: &str, bytes: u64) -> Result<(), HostError>;

    /// Makes a file longer, by zeros that take no room yet.
    ///
    /// # Errors
    /// What the kernel says.
    fn grow(&mut self, path: &str, bytes: u64) -> Result<(), HostError>;

    /// Copies a file. Until that is done, nothing lies at `to`, and nothing does if it fails.
    ///
    /// # Errors
    /// [`HostError::Busy`] if there is something at `to` already.
    fn copy(&mut self, from: &str, to: &str, how: Copying) -> Result<(), HostError>;

    /// Room that a file takes.
    ///
    /// # Errors
    /// [`HostError::Missing`] if there is none.
    fn used_bytes(&mut self, path: &str) -> Result<u64, HostError>;

    /// Room of the file system that has `path`.
    ///
    /// # Errors
    /// What the kernel says.
    fn space(&mut self, path: &str) -> Result<Space, HostError>;

    /// Lets a loop device see that its file has grown.
    ///
    /// # Errors
    /// What the kernel says.
    fn resize_loop(&mut self, device: &str) -> Result<(), HostError>;

    /// Takes a loop device away, if it still carries the tag: its number may be another's by now. Nobody has it open
    /// any more then.
    ///
    /// # Errors
    /// [`HostError::Busy`] if somebody keeps it open.
    fn detach_tagged(&mut self, device: &str, tag: &str) -> Result<(), HostError>;

    /// Connects with a server by TCP, named `HOST:PORT`.
    ///
    /// # Errors
    /// It does not answer.
    fn dial(&mut self, server: &str) -> Result<Box<dyn Connection>, HostError>;

    /// Hands the kernel a connection of [`System::dial`], on which an export has been entered, to serve as the network
    /// block device `device` (`nbd0`). It stays when this process ends.
    ///
    /// # Errors
    /// [`HostError::Busy`] if the device is served already.
    fn serve_nbd(
        &mut self,
        device: &str,
        connection: Box<dyn Connection>,
        export: &NbdExport,
    ) -> Result<(), HostError>;

    /// Has the kernel close a network block device's connection: at once, whoever has the device open. One that is
    /// not served is no error.
    ///
    /// # Errors
    /// What the kernel says.
    fn release_nbd(&mut self, device: &str) -> Result<(), HostError>;

    /// Waits for so many nanoseconds: made-up delays, not for anything that happens.
    fn sleep(&mut self, nanoseconds: u64);

    /// How often this daemon has asked so before, by this name.
    fn count(&mut self, name: &str) -> u64;

    /// Waits a moment, for something that tells nobody when it has happened. Says whether to look again: not
    /// for ever.
    fn pause(&mut self, waits_so_far: u32) -> bool;

    /// Waits until nobody else of this host's daemon holds the lock of this name.
    ///
    /// # Errors
    /// [`HostError::Busy`] after a while.
    fn lock(&mut self, name: &str) -> Result<Lock, HostError>;
}

/// The text of a file that may be missing.
///
/// # Errors
/// As [`System::read`], but for that.
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
