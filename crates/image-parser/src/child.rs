//! The confined process: receives one file, parses it, writes the result, exits.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use xen_build::KernelImage;
use xen_linux::Inherited;

use crate::{ANSWER_BYTES_MAX, ANSWER_ERROR, ANSWER_OK, REQUEST, confinement};

/// What lists of processes call it.
const NAME: &CStr = c"xylem-parser";

/// Parses the image received over the standard input, a socket. Must be called first in a process,
/// since it drops all privileges. The last argument of the command line is the memory limit in MiB.
#[must_use]
pub fn serve() -> ExitCode {
    let memory_mib = std::env::args().next_back().and_then(|text| text.parse().ok());
    // A confined process cannot report the reason; the parent only sees its exit.
    let Some(memory_mib) = memory_mib else { return ExitCode::FAILURE };
    let Ok(inherited) = Inherited::take_all() else { return ExitCode::FAILURE };
    drop(inherited);
    // Otherwise that of the link by which it was started.
    let _kept = rustix::thread::set_name(NAME);
    if confinement::enter(memory_mib).is_err() {
        return ExitCode::from(2);
    }
    match parse_one() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(3),
    }
}

fn parse_one() -> io::Result<()> {
    let socket = rustix::stdio::stdin();
    let Some((file, result)) = receive()? else { return Ok(()) };
    let answer = match parse(&file) {
        Ok(kernel) => {
            let mut result = File::from(result);
            result.write_all(kernel.unpacked())?;
            result.write_all(&kernel.describe())?;
            let unpacked_bytes = kernel.unpacked().len() as u64;
            [&[ANSWER_OK][..], &unpacked_bytes.to_le_bytes()].concat()
        }
        Err(words) => {
            let mut answer = vec![ANSWER_ERROR];
            answer.extend(words.bytes().take(ANSWER_BYTES_MAX - 1));
            answer
        }
    };
    send(socket, &answer, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The file and the result's descriptor; `None` when there are no more requests.
fn receive() -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let mut request = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [io::IoSliceMut::new(&mut request)];
    let received =
        recvmsg(rustix::stdio::stdin(), into, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    match (&request[..received], descriptors.next(), descriptors.next()) {
        (REQUEST, Some(file), Some(result)) => Ok(Some((file, result))),
        _ => Ok(None),
    }
}

fn parse(file: &OwnedFd) -> Result<KernelImage, String> {
    let mut bytes = Vec::new();
    let mut file = File::from(file.try_clone().map_err(|error| error.to_string())?);
    file.read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    KernelImage::parse(&bytes).map_err(|error| error.to_string())
}
