//! The seccomp filter: allows what serving, logs, a journal and a successor need.
//!
//! A call that is not listed fails with `EPERM`. It does not kill the daemon: an attacker gains
//! nothing by it, and a forgotten rare path costs a line in the log, not the store. The filter
//! persists over an exec, so it must allow a successor to start: the loader's calls, and the same
//! handover again.
//!
//! Limits: a hypercall is an ioctl with a pointer, so a filter cannot distinguish hypercalls. The
//! daemon makes none. Its broker has its own filter: that ioctl, its socket, its memory, exit.

use std::collections::BTreeMap;

use anyhow::Context;
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use xen_linux::{EventChannels, GrantDevice, LinuxHypervisor};

/// Calls that are allowed with any arguments.
const FREE: &[c_long] = &[
    // Sockets and waiting. Creation of sockets is restricted below.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Files: logs, pid file, saved state, the fake host.
    libc::SYS_access,
    libc::SYS_chdir,
    libc::SYS_chmod,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_memfd_create,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendfile,
    libc::SYS_stat,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_umask,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory. Executable mappings are restricted below.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munmap,
    // Time, random numbers, this process itself.
    libc::SYS_arch_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpgrp,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_membarrier,
    libc::SYS_nanosleep,
    libc::SYS_prlimit64,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_seccomp,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_setrlimit,
    libc::SYS_setsid,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_uname,
    // A successor: start, wait, kill on failure. Signals reach processes of this account only.
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_vfork,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Calls of the broker that are allowed with any arguments. None of them opens anything.
const FREE_TO_BROKER: &[c_long] = &[
    libc::SYS_pwrite64,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    // Memory. Executable mappings are refused below.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Time and exit, also of a failed assertion.
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// ioctls on files other than Xen's devices.
const PLAIN_REQUESTS: [libc::c_ulong; 4] =
    [libc::FIONBIO, libc::FIOCLEX, libc::FIONREAD, libc::TCGETS];

const PROCESS_CONTROLS: [libc::c_int; 8] = [
    libc::PR_SET_NAME,
    libc::PR_SET_PDEATHSIG,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_CAPBSET_READ,
    libc::PR_CAPBSET_DROP,
    libc::PR_CAP_AMBIENT,
    libc::PR_SET_DUMPABLE,
    // The allocator names memory areas.
    libc::PR_SET_VMA,
];

/// Flags of clone that create namespaces, in which one would be root.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Installs the filter in this thread and those that it starts.
pub(super) fn allow_only_those_needed() -> anyhow::Result<()> {
    let filters = filters().context("the filter of system calls makes no sense")?;
    for filter in &filters {
        apply_filter(filter).context("the kernel does not take the filter of system calls")?;
    }
    Ok(())
}

/// As [`allow_only_those_needed`], for the broker of hypercalls.
pub(super) fn allow_only_a_brokers() -> anyhow::Result<()> {
    let filter = brokers_filter().context("the filter of system calls makes no sense")?;
    apply_filter(&filter).context("the kernel does not take the filter of system calls")
}

fn brokers_filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        FREE_TO_BROKER.iter().map(|&call| (call, Vec::new())).collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![without(2, libc::PROT_EXEC)?]);
    }
    rules.insert(libc::SYS_ioctl, equal(1, LinuxHypervisor::REQUESTS.to_vec())?);
    program(rules, refusal(libc::EPERM), SeccompAction::Allow)
}

fn filters() -> Result<[BpfProgram; 2], seccompiler::Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        FREE.iter().map(|&call| (call, Vec::new())).collect();
    let local = words([libc::AF_UNIX]);
    rules.insert(libc::SYS_socket, equal(0, local.clone())?);
    rules.insert(libc::SYS_socketpair, equal(0, local)?);
    rules.insert(libc::SYS_prctl, equal(0, words(PROCESS_CONTROLS))?);
    rules.insert(libc::SYS_clone, vec![without(0, NAMESPACES)?]);
    // Memory is never both writable and executable.
    let (write, run) = (libc::PROT_WRITE, libc::PROT_EXEC);
    rules.insert(libc::SYS_mmap, vec![without(2, run)?, without(2, write)?]);
    rules.insert(libc::SYS_mprotect, vec![without(2, run)?]);
    let requests = [&PLAIN_REQUESTS, EventChannels::REQUESTS, GrantDevice::REQUESTS];
    let requests = requests.concat().into_iter();
    rules.insert(libc::SYS_ioctl, equal(1, requests.collect())?);
    let allowed = program(rules, refusal(libc::EPERM), SeccompAction::Allow)?;
    // Its flags are in memory, invisible to filters: without it the C library uses `clone`.
    let unseen = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unseen = program(unseen, SeccompAction::Allow, refusal(libc::ENOSYS))?;
    Ok([allowed, unseen])
}

fn refusal(errno: libc::c_int) -> SeccompAction {
    SeccompAction::Errno(errno.unsigned_abs())
}

fn program(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    let architecture = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, matched, architecture)?.try_into()?)
}

fn words<const N: usize>(values: [libc::c_int; N]) -> Vec<u64> {
    values.map(|value| u64::from(value.cast_unsigned())).to_vec()
}

/// One rule for each value that an argument may have.
fn equal(argument: u8, values: Vec<u64>) -> Result<Vec<SeccompRule>, seccompiler::Error> {
    let rule = |value| condition(argument, SeccompCmpOp::Eq, value);
    values.into_iter().map(rule).collect()
}

/// An argument has none of these bits.
fn without(argument: u8, bits: libc::c_int) -> Result<SeccompRule, seccompiler::Error> {
    let bits = u64::from(bits.cast_unsigned());
    condition(argument, SeccompCmpOp::MaskedEq(bits), 0)
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::Error> {
    // These arguments are `int` in the kernel; upper bits of the register are ignored.
    let length = SeccompCmpArgLen::Dword;
    Ok(SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])?)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind, Result};
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::process::Command;

    use super::*;

    /// Runs in a separate thread under the filter.
    fn confined<R: Send>(body: impl FnOnce() -> R + Send) -> R {
        under(allow_only_those_needed, body)
    }

    fn under<R: Send>(filter: fn() -> anyhow::Result<()>, body: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                filter().unwrap();
                body()
            });
            thread.join().expect("the thread ends by itself")
        })
    }

    #[test]
    fn a_broker_opens_starts_and_signals_nothing() {
        let forbidden: [Forbidden; 8] = [
            ("a file", || std::fs::File::open("/proc/self/status").map(drop)),
            ("a folder", || std::fs::read_dir("/").map(drop)),
            ("another descriptor", || Ok(rustix::io::dup(std::io::stderr()).map(drop)?)),
            ("the network", || TcpListener::bind("127.0.0.1:0").map(drop)),
            ("a local socket", || UnixStream::pair().map(drop)),
            ("a program", || Command::new("/bin/true").status().map(drop)),
            ("a signal", || Ok(rustix::process::test_kill_process(rustix::process::Pid::INIT)?)),
            ("another device's request", || {
                Ok(rustix::io::ioctl_fionbio(std::io::stderr(), false)?)
            }),
        ];
        for (name, call) in forbidden {
            let kind = under(allow_only_a_brokers, call).map_err(|error: Error| error.kind());
            assert_eq!(kind, Err(ErrorKind::PermissionDenied), "{name}");
        }
    }

    /// A call that must be refused, by name.
    type Forbidden = (&'static str, fn() -> Result<()>);

    #[test]
    fn what_no_store_needs_is_refused() {
        let forbidden: [Forbidden; 8] = [
            ("an internet server", || TcpListener::bind("127.0.0.1:0").map(drop)),
            ("an internet datagram", || UdpSocket::bind("127.0.0.1:0").map(drop)),
            ("another root folder", || Ok(rustix::process::chroot("/")?)),
            ("a link", || std::fs::hard_link("/etc/passwd", "/tmp/passwd")),
            ("another priority", || Ok(rustix::process::setpriority_process(None, 1).map(drop)?)),
            ("another user", || {
                let user = rustix::process::getuid();
                Ok(rustix::thread::set_thread_res_uid(user, user, user)?)
            }),
            ("the host's name", || Ok(rustix::system::sethostname(b"host")?)),
            ("a terminal's size", || {
                Ok(rustix::termios::tcgetwinsize(std::io::stderr()).map(drop)?)
            }),
        ];
        for (name, call) in forbidden {
            let kind = confined(call).map_err(|error: Error| error.kind());
            assert_eq!(kind, Err(ErrorKind::PermissionDenied), "{name}");
        }
    }

    #[test]
    fn what_a_store_and_its_successor_need_is_allowed() {
        confined(|| {
            let (mut one, mut two) = UnixStream::pair().unwrap();
            std::io::Write::write_all(&mut one, b"x").unwrap();
            std::io::Read::read_exact(&mut two, &mut [0]).unwrap();
            UnixDatagram::unbound().unwrap().set_nonblocking(true).unwrap();
            drop(vec![0u8; 64 << 20]);
            std::thread::spawn(|| ()).join().unwrap();
            // A program with its loader and its libraries.
            let output = Command::new("/bin/sh").args(["-c", "echo started"]).output().unwrap();
            assert_eq!(output.stdout, b"started\n", "{output:?}");
            let output = Command::new("/bin/sh").args(["-c", "nice true"]).output().unwrap();
            assert!(!output.stderr.is_empty(), "a program that was started is not confined");
        });
    }
}
