//! Changes of a running domain that need no plan: one hypercall, a few nodes, and the VM's record where a reboot
//! must find them.

use crate::config::VmConfig;

/// One change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Tuning {
    /// The most memory that the guest may be given.
    MemoryMax { kib: u64 },
    /// The memory that it is to have, by its balloon driver.
    MemoryTarget { kib: u64 },
}

/// Most memory of a configuration.
const MEMORY_MIB_MAX: u64 = 16 << 20;

impl Tuning {
    /// The verb, as in the log.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MemoryMax { .. } => "mem-max",
            Self::MemoryTarget { .. } => "mem-set",
        }
    }

    /// Whether the VM's next domain must be like it too.
    #[must_use]
    pub(crate) fn outlives_domain(&self) -> bool {
        match self {
            Self::MemoryMax { .. } | Self::MemoryTarget { .. } => true,
        }
    }

    /// Changes a configuration alike, as far as it can say it: whole MiB, and neither above the other.
    pub(crate) fn apply(&self, config: &mut VmConfig) {
        let mib = |kib: &u64| kib.div_ceil(1024).clamp(1, MEMORY_MIB_MAX);
        match self {
            Self::MemoryMax { kib } => {
                config.memory_max_mib = mib(kib);
                config.memory_mib = config.memory_mib.min(config.memory_max_mib);
            }
            Self::MemoryTarget { kib } => {
                config.memory_mib = mib(kib);
                config.memory_max_mib = config.memory_max_mib.max(config.memory_mib);
            }
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
