//! How Xen runs a guest's machine, where few guests want another way.

/// Whether a guest may have several views of its memory, and who switches between them: itself, another domain, or both.
/// Source: `xen/include/public/hvm/params.h`, `XEN_ALTP2M_*`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Altp2m {
    #[default]
    Disabled,
    Mixed,
    External,
    Limited,
}

impl Altp2m {
    /// By their numbers in Xen.
    pub const ALL: [Self; 4] = [Self::Disabled, Self::Mixed, Self::External, Self::Limited];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Mixed => "mixed",
            Self::External => "external",
            Self::Limited => "limited",
        }
    }

    /// Xen's number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Disabled => 0,
            Self::Mixed => 1,
            Self::External => 2,
            Self::Limited => 3,
        }
    }
}

/// What becomes of a timer's ticks that a vCPU missed while it did not run.
/// Source: `xen/include/public/hvm/params.h`, `HVMPTM_*`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum TimerMode {
    /// They come late, and the guest's time stands still meanwhile.
    Delay,
    /// They come late, and the guest's time goes on.
    #[default]
    NoDelay,
    /// They do not come, and the guest's time goes on.
    Dropped,
    /// They come as a single one.
    OnePending,
}

impl TimerMode {
    /// By their numbers in Xen.
    pub const ALL: [Self; 4] = [Self::Delay, Self::NoDelay, Self::Dropped, Self::OnePending];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay_for_missed_ticks",
            Self::NoDelay => "no_delay_for_missed_ticks",
            Self::Dropped => "no_missed_ticks_pending",
            Self::OnePending => "one_missed_tick_pending",
        }
    }

    /// Xen's number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Delay => 0,
            Self::NoDelay => 1,
            Self::Dropped => 2,
            Self::OnePending => 3,
        }
    }
}

/// Whether the host's IOMMU translates for a guest, so that it may get devices of the host.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Passthrough {
    /// As its devices need it.
    #[default]
    Default,
    Disabled,
    /// As the host can best do it.
    Enabled,
    /// By tables of its own.
    Synchronised,
    /// By the tables of the guest's memory.
    Shared,
}

impl Passthrough {
    pub const ALL: [Self; 5] =
        [Self::Default, Self::Disabled, Self::Enabled, Self::Synchronised, Self::Shared];

    /// The word in a configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Disabled => "disabled",
            Self::Enabled => "enabled",
            Self::Synchronised => "sync_pt",
            Self::Shared => "share_pt",
        }
    }
}

/// Those ways.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MachineOptions {
    pub altp2m: Altp2m,
    /// How many views there may be; `None`: as many as libxl asks for.
    pub altp2m_count: Option<u16>,
    pub timer_mode: TimerMode,
    /// Whether an HVM guest's timers are aligned, so that several go off at once.
    pub timers_aligned: bool,
    /// Whether an HVM guest may bind the interrupts of its devices to event channels.
    pub pirqs: bool,
    /// Whether it may count events of the CPU.
    pub vpmu: bool,
    /// For each vCPU, to trace it; 0 for none.
    pub trace_kib: u32,
    /// Whether shadow page tables may be out of sync with the guest's.
    pub out_of_sync: bool,
    pub passthrough: Passthrough,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            altp2m: Altp2m::default(),
            altp2m_count: None,
            timer_mode: TimerMode::default(),
            timers_aligned: true,
            pirqs: false,
            vpmu: false,
            trace_kib: 0,
            out_of_sync: true,
            passthrough: Passthrough::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_in_the_order_of_their_numbers() {
        for (number, (altp2m, timer)) in (0..).zip(Altp2m::ALL.into_iter().zip(TimerMode::ALL)) {
            assert_eq!((altp2m.number(), timer.number()), (number, number));
        }
    }
}
