//! Changes of a running domain that need no plan: one hypercall, a few nodes, and the VM's record where a reboot
//! must find them.

mod cpus;
mod sched;

pub use cpus::{CpuList, ranges};
pub use sched::{Budget, PoolChange, SchedQuestion, Share, VcpusOf};
use xen::{DomainKind, Scheduler, Trigger};

use crate::config::VmConfig;
use crate::xlcfg::MEMORY_MIB_MAX;

/// What the first CPU pool is called, where it is all the same as none.
pub(crate) const FIRST_POOL: [&str; 2] = ["0", "Pool-0"];

/// One change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Tuning {
    /// The most memory that the guest may be given.
    MemoryMax {
        kib: u64,
    },
    /// The memory that it is to have, by its balloon driver.
    MemoryTarget {
        kib: u64,
    },
    /// How many vCPUs are online.
    Vcpus {
        count: u32,
        host: HostLimit,
    },
    Pin(Pinning),
    /// The domain's share of the CPUs.
    Share(Share),
    /// The same under the real-time scheduler.
    Budgets(Vec<Budget>),
    /// A key for the guest's kernel.
    Sysrq {
        key: char,
    },
    Trigger {
        trigger: Trigger,
        vcpu: u32,
    },
    /// Ends an ACPI sleep (S3).
    WakeUp,
    Rename {
        name: String,
    },
    /// Into another CPU pool, by number or name.
    Pool {
        pool: String,
    },
    /// What the VM's next domain is made of instead. The present one stays as it is.
    NextConfig(Box<VmConfig>),
}

/// Whether more vCPUs may be online than the host has CPUs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostLimit {
    Kept,
    Ignored,
}

/// Where vCPUs may run, and where they run best; `None` leaves one unchanged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pinning {
    /// `None`: all of them.
    pub vcpu: Option<u32>,
    pub hard: Option<CpuList>,
    pub soft: Option<CpuList>,
    /// Ends a pinning by the domain's own kernel first.
    pub is_forced: bool,
}

impl Tuning {
    /// The verb, as in the log.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MemoryMax { .. } => "mem-max",
            Self::MemoryTarget { .. } => "mem-set",
            Self::Vcpus { .. } => "vcpu-set",
            Self::Pin(_) => "vcpu-pin",
            Self::Share(Share { scheduler: Scheduler::Credit, .. }) => "sched-credit",
            Self::Share(_) => "sched-credit2",
            Self::Budgets(_) => "sched-rtds",
            Self::Sysrq { .. } => "sysrq",
            Self::Trigger { .. } | Self::WakeUp => "trigger",
            Self::Rename { .. } => "rename",
            Self::Pool { .. } => "cpupool-migrate",
            Self::NextConfig(_) => "config-update",
        }
    }

    /// The same with what is asked.
    #[must_use]
    pub(crate) fn deed(&self) -> String {
        let verb = self.verb();
        match self {
            Self::MemoryMax { kib } | Self::MemoryTarget { kib } => {
                format!("{verb} to {}", amount(*kib))
            }
            Self::Vcpus { count, .. } => format!("{verb} to {count}"),
            Self::Pin(_) | Self::Share(_) | Self::Budgets(_) | Self::NextConfig(_) => {
                verb.to_owned()
            }
            Self::Sysrq { key } => format!("{verb} {key:?}"),
            Self::Trigger { trigger, .. } => format!("{verb} {trigger:?}").to_ascii_lowercase(),
            Self::WakeUp => format!("{verb} s3resume"),
            Self::Rename { name: to } | Self::Pool { pool: to } => format!("{verb} to {to}"),
        }
    }

    /// Whether the VM's next domain must be like it too.
    #[must_use]
    pub(crate) fn outlives_domain(&self) -> bool {
        match self {
            Self::MemoryMax { .. }
            | Self::MemoryTarget { .. }
            | Self::Vcpus { .. }
            | Self::Share(_)
            | Self::Rename { .. }
            | Self::Pool { .. }
            | Self::NextConfig(_) => true,
            Self::Pin(_)
            | Self::Budgets(_)
            | Self::Sysrq { .. }
            | Self::Trigger { .. }
            | Self::WakeUp => false,
        }
    }

    /// Changes a configuration alike, as far as it can say it: whole MiB, and neither above the other.
    pub(crate) fn apply(&self, config: &mut VmConfig) {
        let mib = |kib: &u64| kib.div_ceil(1024).clamp(1, MEMORY_MIB_MAX.into());
        match self {
            Self::MemoryMax { kib } => {
                config.memory_max_mib = mib(kib);
                config.memory_mib = config.memory_mib.min(config.memory_max_mib);
            }
            Self::MemoryTarget { kib } => {
                config.memory_mib = mib(kib);
                config.memory_max_mib = config.memory_max_mib.max(config.memory_mib);
            }
            Self::Vcpus { count, .. } => {
                // A device model keeps those that it has.
                let least = if config.kind == DomainKind::Hvm { config.vcpus } else { 1 };
                config.vcpus = (*count).clamp(least, config.vcpus_max);
            }
            Self::Rename { name } => config.name.clone_from(name),
            Self::Pool { pool } => {
                let other = Some(pool).filter(|it| !FIRST_POOL.contains(&it.as_str()));
                config.options.pool = other.cloned();
            }
            Self::Share(Share { weight, cap, .. }) => {
                // More is refused when it is set.
                let most = u16::try_from(config.vcpus_max * 100).unwrap_or(u16::MAX);
                let options = &mut config.options;
                options.cpu_weight = weight.filter(|it| *it > 0).or(options.cpu_weight);
                let cap = cap.or(options.cpu_cap).filter(|cap| *cap > 0);
                options.cpu_cap = cap.map(|cap| cap.min(most));
            }
            Self::Pin(_)
            | Self::Budgets(_)
            | Self::Sysrq { .. }
            | Self::Trigger { .. }
            | Self::WakeUp
            | Self::NextConfig(_) => {}
        }
    }
}

/// An amount of memory as operators read it.
pub(crate) fn amount(kib: u64) -> String {
    match kib % 1024 {
        0 => format!("{} MiB", kib / 1024),
        _ => format!("{kib} KiB"),
    }
}
