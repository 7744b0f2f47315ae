//! A VDI as a block device of this domain, for as long as a command works on it; of another host, as a file here.

mod far;

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::thread;

use api::client::{CallError, Client, socket_path};
use api::{Reply, Request, StorageRequest};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::remote::Remote;
use crate::session::{Failure, one_line};

/// What is done with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Use {
    Read,
    Write,
}

/// Borrows a VDI from the daemon while `work` has it. What was written is on its storage then.
pub(super) fn lend<T>(
    remote: Option<&Remote>,
    vdi: &str,
    how: Use,
    work: impl FnOnce(&File) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(remote) = remote {
        return far::lend(remote, vdi, how, work);
    }
    let no_pipe = |error| Failure::failed(format!("{vdi}: no pipe to xylemd: {error}"));
    let (held, hold) = pipe_with(PipeFlags::CLOEXEC).map_err(no_pipe)?;
    let (said, say) = pipe_with(PipeFlags::CLOEXEC).map_err(no_pipe)?;
    let request = StorageRequest::VdiLend { vdi: vdi.to_owned(), write: how == Use::Write };
    thread::scope(|scope| {
        let call = scope.spawn(move || -> Result<Reply, CallError> {
            let mut client = Client::connect(&socket_path())?;
            client.call_with_channel(&Request::Storage(request), [held, say], |_| {})
        });
        let mut path = String::new();
        // Without a line the daemon's answer says why.
        let _end = BufReader::new(File::from(said)).read_line(&mut path);
        let done = match path.strip_suffix('\n') {
            Some(path) => open(path, how)
                .map_err(|error| Failure::failed(format!("{vdi}: cannot open {path}: {error}")))
                .and_then(|device| {
                    let done = work(&device)?;
                    let synced = if how == Use::Write { device.sync_all() } else { Ok(()) };
                    synced.map_err(|error| Failure::failed(format!("{vdi}: {error}")))?;
                    Ok(done)
                }),
            None => Err(Failure::failed(format!("{vdi}: xylemd lent no device"))),
        };
        drop(hold);
        let lent = call.join().unwrap_or(Err(CallError::Closed));
        match (lent, done) {
            (Err(error), Ok(_)) => Err(Failure::failed(one_line(&error.to_string()))),
            (Err(error), Err(_)) if path.is_empty() => {
                Err(Failure::failed(one_line(&error.to_string())))
            }
            (_, done) => done,
        }
    })
}

fn open(path: &str, how: Use) -> std::io::Result<File> {
    // Exclusive: nobody has mounted it.
    let exclusive = i32::try_from(OFlags::EXCL.bits()).expect("a flag of open(2)");
    match how {
        Use::Read => File::open(path),
        Use::Write => OpenOptions::new().write(true).custom_flags(exclusive).open(path),
    }
}
