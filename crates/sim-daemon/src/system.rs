//! The simulated operating system, for clients' threads: each call is made on the simulation's thread.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use sim::SimOs;
use storage::{
    BlockHost, Command, Connection, Copying, DiskId, FileKind, HostError, Job, Lock, LoopUse, Mode,
    NbdExport, Space, StorageError, System, TaggedLoop,
};

use crate::world::Deed;

#[derive(Debug)]
pub(crate) struct RemoteSystem {
    deeds: Sender<Deed>,
}

impl RemoteSystem {
    pub(crate) fn new(deeds: Sender<Deed>) -> Self {
        Self { deeds }
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut SimOs) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let (answer, answered) = mpsc::channel();
        let call = move |os: &mut SimOs| {
            // Whoever asked waits.
            let _gone = answer.send(call(os));
        };
        let ended = || HostError::Refused("the simulated host has ended".to_owned());
        self.deeds.send(Deed::System(Box::new(call))).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?
    }
}

/// Methods that are the simulated system's, with their arguments as owned values.
macro_rules! remote {
    ($(fn $name:ident($($argument:ident: &$type:ty),* $(; $($value:ident: $value_type:ty),*)?) -> $result:ty;)*) => {
        $(fn $name(&mut self, $($argument: &$type,)* $($($value: $value_type,)*)?) -> Result<$result, HostError> {
            $(let $argument = $argument.to_owned();)*
            self.call(move |os| os.$name($(&$argument,)* $($($value,)*)?))
        })*
    };
}

impl BlockHost for RemoteSystem {
    remote! {
        fn inspect(path: &str) -> FileKind;
        fn identify(path: &str) -> DiskId;
        fn loops() -> Vec<LoopUse>;
        fn is_unclaimed(device: &str) -> bool;
        fn tag_loop(device: &str, tag: &str) -> ();
        fn detach_loop(device: &str) -> ();
        fn tagged_loops(prefix: &str) -> Vec<TaggedLoop>;
    }

    fn attach_loop(&mut self, path: &str, mode: Mode, tag: &str) -> Result<LoopUse, HostError> {
        let (path, tag) = (path.to_owned(), tag.to_owned());
        self.call(move |os| os.attach_loop(&path, mode, &tag))
    }
}

impl System for RemoteSystem {
    remote! {
        fn run(command: &Command) -> String;
        fn converse(command: &Command, line: &str) -> String;
        fn read(path: &str) -> Vec<u8>;
        fn read_start(path: &str; bytes: usize) -> Vec<u8>;
        fn rename_new(from: &str, to: &str) -> ();
        fn write(path: &str, bytes: &[u8]) -> ();
        fn remove(path: &str) -> ();
        fn list(folder: &str) -> Vec<String>;
        fn make_folder(folder: &str) -> ();
        fn remove_folder(folder: &str) -> ();
        fn make_sparse(path: &str; bytes: u64) -> ();
        fn grow(path: &str; bytes: u64) -> ();
        fn copy(from: &str, to: &str; how: Copying) -> ();
        fn used_bytes(path: &str) -> u64;
        fn space(path: &str) -> Space;
        fn flush(device: &str) -> ();
        fn resize_loop(device: &str) -> ();
        fn detach_tagged(device: &str, tag: &str) -> ();
        fn release_nbd(device: &str) -> ();
    }

    fn do_each(&mut self, jobs: Vec<Job<'_>>) -> Vec<Result<(), StorageError>> {
        jobs.into_iter().map(|job| job(self)).collect()
    }

    fn dial(&mut self, server: &str) -> Result<Box<dyn Connection>, HostError> {
        Err(HostError::Refused(format!("{server}: a simulated host reaches no servers")))
    }

    fn serve_nbd(
        &mut self,
        device: &str,
        _: Box<dyn Connection>,
        _: &NbdExport,
    ) -> Result<(), HostError> {
        Err(HostError::Refused(format!("{device}: a simulated host reaches no servers")))
    }

    /// Delays of simulated storage pass on the simulation's clock.
    fn sleep(&mut self, nanoseconds: u64) {
        std::thread::sleep(Duration::from_nanos(nanoseconds));
    }

    fn count(&mut self, name: &str) -> u64 {
        let name = name.to_owned();
        self.call(move |os| Ok(os.count(&name))).unwrap_or_default()
    }

    fn pause(&mut self, waits_so_far: u32) -> bool {
        std::thread::sleep(Duration::from_millis(10));
        waits_so_far < 3
    }

    fn lock(&mut self, name: &str) -> Result<Lock, HostError> {
        let name = name.to_owned();
        self.call(move |os| os.lock(&name))
    }
}
