//! The filter of system calls: refuses what helps an attacker and what no such program does.
//!
//! A list of what is allowed would have to be QEMU's, of all its releases and libraries; this is what QEMU's own
//! `-sandbox` does too, which Debian's QEMU for Xen is built without.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// Calls that fail with `EPERM`.
const REFUSED: &[c_long] = &[
    // Mounts, roots and namespaces.
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    // Other processes.
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // The kernel and the host.
    libc::SYS_acct,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_perf_event_open,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // What attacks on the kernel like, and programs that do not come from a file.
    libc::SYS_add_key,
    libc::SYS_execveat,
    libc::SYS_fanotify_init,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_personality,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] = &[
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];

/// Calls that fail with `ENOSYS`, so that programs do without: their arguments are in memory, where a filter cannot read
/// them.
const MISSING: &[c_long] = &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter];

/// Namespaces that a new process could begin in.
const CLONE_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Applies it to this process and all that it executes.
pub(crate) fn apply() -> io::Result<()> {
    for program in filters().map_err(io::Error::other)? {
        apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn filters() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let always = |calls: &[c_long]| -> BTreeMap<c_long, Vec<SeccompRule>> {
        calls.iter().map(|&call| (call, Vec::new())).collect()
    };
    let mut refused = always(REFUSED);
    refused.append(&mut always(REFUSED_HERE));
    let namespaces = u64::from(CLONE_NAMESPACES.cast_unsigned());
    // A filter compares for equality: one rule for each bit.
    let mut rules = Vec::new();
    for bit in (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| namespaces & bit != 0) {
        let has_bit =
            SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bit), bit)?;
        rules.push(SeccompRule::new(vec![has_bit])?);
    }
    refused.insert(libc::SYS_clone, rules);
    // Sockets of other kinds reach parts of the kernel that nothing here needs.
    let mut others = Vec::new();
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        let family = u64::from(family.cast_unsigned());
        let is_other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)?;
        others.push(is_other);
    }
    refused.insert(libc::SYS_socket, vec![SeccompRule::new(others)?]);
    let compile = |rules, errno: i32| -> Result<BpfProgram, seccompiler::BackendError> {
        let refusal = SeccompAction::Errno(errno.unsigned_abs());
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(rules, SeccompAction::Allow, refusal, architecture)?.try_into()
    };
    Ok([compile(refused, libc::EPERM)?, compile(always(MISSING), libc::ENOSYS)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_no_call_is_listed_twice() {
        filters().unwrap();
        let mut all = [REFUSED, REFUSED_HERE, MISSING].concat();
        all.push(libc::SYS_clone);
        all.push(libc::SYS_socket);
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
