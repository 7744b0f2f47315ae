//! Confinement of the parser, before it sees an image.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// The parser's user, if started by root: nobody.
const NOBODY: u32 = 65534;

/// Limit of CPU time if the parent is gone, in seconds.
const CPU_SECONDS_LAST: u64 = 600;

/// Standard input, output and error, and the descriptors of a request, with some room.
const DESCRIPTORS_MAX: u64 = 8;

/// Connections, and files of the resolver.
const CLIENT_DESCRIPTORS_MAX: u64 = 64;

/// Calls that are allowed with any arguments. None of them opens anything.
const FREE: &[c_long] = &[
    // The request, the file, the result.
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory; executable mappings are refused below.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Exit, also of a failed assertion.
    libc::SYS_clock_gettime,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// Drops everything that parsing does not need, permanently: then this process can only read and write what it has open.
///
/// # Errors
/// The kernel's.
pub fn enter(memory_mib: u64) -> io::Result<()> {
    // Preferred victim of the OOM killer.
    let _refused = std::fs::write("/proc/self/oom_score_adj", "1000");
    // Do not inherit the daemon's priority.
    let _refused = rustix::process::setpriority_process(None, 0);
    let memory_bytes = memory_mib.saturating_mul(1 << 20);
    limit(&[
        (Resource::As, memory_bytes),
        (Resource::Fsize, memory_bytes),
        (Resource::Cpu, CPU_SECONDS_LAST),
        (Resource::Nofile, DESCRIPTORS_MAX),
    ])?;
    give_up_rights()?;
    allow_only_those_needed()
}

/// Calls of no client of a network that writes to one file.
const NOT_A_CLIENTS: &[c_long] = &[
    libc::SYS_bpf,
    libc::SYS_creat,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_kill,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mount,
    libc::SYS_openat2,
    libc::SYS_perf_event_open,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_setns,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vfork,
];

/// As [`enter`], for a process that talks to servers: it is nobody, may connect, open files for reading, and write to what
/// it has open, up to `file_bytes` in a file.
///
/// # Errors
/// The kernel's.
pub fn enter_with_network(memory_mib: u64, file_bytes: u64) -> io::Result<()> {
    limit(&[
        (Resource::As, memory_mib.saturating_mul(1 << 20)),
        (Resource::Fsize, file_bytes),
        (Resource::Nofile, CLIENT_DESCRIPTORS_MAX),
    ])?;
    give_up_rights()?;
    let program = client_filter().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

/// Sets these limits, and leaves no core and no folder in use.
fn limit(limits: &[(Resource, u64)]) -> io::Result<()> {
    std::env::set_current_dir("/")?;
    for &(resource, most) in limits.iter().chain(&[(Resource::Core, 0)]) {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// Becomes nobody, without capabilities and without a way to get any.
fn give_up_rights() -> io::Result<()> {
    become_nobody()?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    thread::clear_ambient_capability_set()?;
    thread::set_capabilities(None, none)?;
    Ok(thread::set_no_new_privs(true)?)
}

fn client_filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        NOT_A_CLIENTS.iter().map(|&call| (call, Vec::new())).collect();
    // Files are opened for reading only.
    for (call, argument) in [(libc::SYS_open, 1), (libc::SYS_openat, 2)] {
        let mut writing = Vec::new();
        for bit in [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC] {
            let bit = u64::from(bit.cast_unsigned());
            let has = SeccompCondition::new(
                argument,
                SeccompCmpArgLen::Dword,
                SeccompCmpOp::MaskedEq(bit),
                bit,
            )?;
            writing.push(SeccompRule::new(vec![has])?);
        }
        rules.insert(call, writing);
    }
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refusal, architecture)?.try_into()?)
}

/// A parser that was not started by root keeps its user.
fn become_nobody() -> rustix::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        // Fails for capabilities unknown to the kernel.
        let _unknown = thread::remove_capability_from_bounding_set(capability);
    }
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    thread::set_thread_groups(&[])?;
    thread::set_thread_res_gid(gid, gid, gid)?;
    thread::set_thread_res_uid(uid, uid, uid)
}

fn allow_only_those_needed() -> io::Result<()> {
    let program = filter().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

fn filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        FREE.iter().map(|&call| (call, Vec::new())).collect();
    // Data is never executable.
    let bits = u64::from(libc::PROT_EXEC.cast_unsigned());
    let never_run =
        SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), 0)?;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![SeccompRule::new(vec![never_run.clone()])?]);
    }
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, refusal, SeccompAction::Allow, architecture)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind, Result};
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use super::*;

    /// A call that must be refused, by name.
    type Forbidden = (&'static str, fn() -> Result<()>);

    #[test]
    fn a_client_reads_and_connects_but_writes_no_file() {
        let calls: [(bool, Forbidden); 6] = [
            (true, ("a file", || std::fs::File::open("/proc/self/status").map(drop))),
            (true, ("the network", || TcpListener::bind("127.0.0.1:0").map(drop))),
            (false, ("a new file", || std::fs::write("xylem-parser", ""))),
            (
                false,
                ("an old file", || {
                    std::fs::OpenOptions::new().append(true).open("/dev/null").map(drop)
                }),
            ),
            (false, ("a name", || std::fs::rename("/proc/none", "/proc/other"))),
            (false, ("a program", || Command::new("/bin/true").status().map(drop))),
        ];
        for (is_allowed, (name, call)) in calls {
            let done = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    apply_filter(&client_filter().unwrap()).unwrap();
                    call().map_err(|error: Error| error.kind())
                });
                thread.join().expect("the thread ends by itself")
            });
            let expected = if is_allowed { Ok(()) } else { Err(ErrorKind::PermissionDenied) };
            assert_eq!(done, expected, "{name}");
        }
    }

    #[test]
    fn a_parser_opens_starts_and_signals_nothing() {
        let forbidden: [Forbidden; 8] = [
            ("a file", || std::fs::File::open("/proc/self/status").map(drop)),
            ("a folder", || std::fs::read_dir("/").map(drop)),
            ("a new file", || std::fs::write("xylem-parser", "")),
            ("the network", || TcpListener::bind("127.0.0.1:0").map(drop)),
            ("a local socket", || UnixStream::pair().map(drop)),
            ("a program", || Command::new("/bin/true").status().map(drop)),
            ("a signal", || Ok(rustix::process::test_kill_process(rustix::process::Pid::INIT)?)),
            ("another user", || {
                let user = Uid::from_raw(NOBODY);
                Ok(rustix::thread::set_thread_res_uid(user, user, user)?)
            }),
        ];
        for (name, call) in forbidden {
            let kind = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    allow_only_those_needed().unwrap();
                    call().map_err(|error: Error| error.kind())
                });
                thread.join().expect("the thread ends by itself")
            });
            assert_eq!(kind, Err(ErrorKind::PermissionDenied), "{name}");
        }
    }
}
