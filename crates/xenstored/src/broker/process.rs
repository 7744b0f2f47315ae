//! The broker's process: opens the devices, drops everything else, and serves until its socket is
//! closed.

use std::os::fd::BorrowedFd;
use std::process::ExitCode;

use rustix::io::{Errno, pwrite};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use xen::{ARENA_BYTES_FULL, Hypervisor, Xen};
use xen_linux::{HangupSignals, Inherited, LinuxHypervisor, StopSignals};

use crate::broker::protocol::{self, Answer, MESSAGE_BYTES_MAX, Question};
use crate::confinement::{self, Account};
use crate::platform::cpu_time;

/// Serves the socket on standard input; lists are written to the memory on standard output. Must be
/// called first in a process.
pub(crate) fn serve(account: &str) -> ExitCode {
    let socket = rustix::stdio::stdin();
    let mut xen = match open(account) {
        Ok(xen) => xen,
        Err(error) => {
            let failed = Answer::Failed(format!("{error:#}"));
            // The daemon may be gone.
            let _unheard = send(socket, &failed.encode(0), SendFlags::NOSIGNAL);
            return ExitCode::FAILURE;
        }
    };
    if send(socket, &Answer::Ready.encode(0), SendFlags::NOSIGNAL).is_ok() {
        answer_all(socket, rustix::stdio::stdout(), &mut xen);
    }
    ExitCode::SUCCESS
}

fn open(account: &str) -> anyhow::Result<Xen<LinuxHypervisor>> {
    drop(Inherited::take_all()?);
    // They stay blocked: a signal to daemon and broker is meant for the daemon, and the broker
    // exits with it.
    drop((StopSignals::open()?, HangupSignals::open()?));
    let account = Account::find(account)?;
    let xen = Xen::probe(LinuxHypervisor::open(ARENA_BYTES_FULL)?)?;
    confinement::enter_as_broker(account)?;
    Ok(xen)
}

/// Serves until the peer closes the socket or violates the protocol.
pub(super) fn answer_all<H: Hypervisor>(
    socket: BorrowedFd<'_>,
    memory: BorrowedFd<'_>,
    xen: &mut Xen<H>,
) {
    let mut message = [0; MESSAGE_BYTES_MAX];
    let mut entries = Vec::new();
    loop {
        let length = match recv(socket, &mut message, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Ok((0, _)) | Err(_) => return,
            Ok((length, _)) => length,
        };
        let Some((number, question)) = Question::decode(&message[..length]) else { return };
        let begun = cpu_time();
        let mut answer = protocol::answer(xen, question, &mut entries);
        if write(memory, &entries).is_err() {
            return;
        }
        if let Answer::News { cpu, .. } = &mut answer {
            *cpu = cpu_time().saturating_sub(begun);
        }
        if send(socket, &answer.encode(number), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

fn write(memory: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    let mut at = 0;
    while !bytes.is_empty() {
        match pwrite(memory, bytes, at) {
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
