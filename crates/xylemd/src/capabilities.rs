//! Capabilities that this daemon and the programs that it starts drop.
//!
//! A process with privcmd controls the host, and `xylemd` has it. The programs that it starts for
//! disks do not: some of them read guests' data (images, file systems). They need root for devices,
//! mounts and the network, and maybe to load a module; none of them reboots the host, sets its
//! clock or traces other processes. Hotplug scripts need raw sockets for iptables.

use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

const NEVER_NEEDED: [CapabilitySet; 20] = [
    CapabilitySet::AUDIT_CONTROL,
    CapabilitySet::AUDIT_READ,
    CapabilitySet::AUDIT_WRITE,
    CapabilitySet::BLOCK_SUSPEND,
    CapabilitySet::BPF,
    CapabilitySet::CHECKPOINT_RESTORE,
    CapabilitySet::LEASE,
    CapabilitySet::LINUX_IMMUTABLE,
    CapabilitySet::MAC_ADMIN,
    CapabilitySet::MAC_OVERRIDE,
    CapabilitySet::NET_BROADCAST,
    CapabilitySet::PERFMON,
    // Also kexec.
    CapabilitySet::SYS_BOOT,
    CapabilitySet::SYS_PACCT,
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::SYS_TIME,
    CapabilitySet::SYS_TTY_CONFIG,
    CapabilitySet::SYSLOG,
    CapabilitySet::WAKE_ALARM,
    CapabilitySet::IPC_OWNER,
];

/// Drops them, in this thread and in all that it starts.
pub(crate) fn give_up() -> rustix::io::Result<()> {
    for capability in NEVER_NEEDED {
        // Fails for capabilities unknown to the kernel, and without root.
        let _refused = remove_capability_from_bounding_set(capability);
    }
    let mut sets = capabilities(None)?;
    let unneeded = NEVER_NEEDED.into_iter().collect::<CapabilitySet>();
    sets.effective -= unneeded;
    sets.permitted -= unneeded;
    sets.inheritable -= unneeded;
    set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_not_had_by_threads_or_programs() {
        std::thread::spawn(|| {
            give_up().unwrap();
            let sets = std::thread::spawn(|| capabilities(None).unwrap()).join().unwrap();
            let unneeded = NEVER_NEEDED.into_iter().collect::<CapabilitySet>();
            assert!(!sets.effective.intersects(unneeded) && !sets.permitted.intersects(unneeded));
            let status = std::process::Command::new("/bin/cat").arg("/proc/self/status").output();
            let status = String::from_utf8(status.unwrap().stdout).unwrap();
            let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
            let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
            // Without root there are none.
            assert_eq!(effective & unneeded.bits(), 0);
        })
        .join()
        .unwrap();
    }
}
