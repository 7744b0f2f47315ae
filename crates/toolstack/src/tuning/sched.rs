//! Schedulers: what may be asked of them and of domains' shares of the CPUs.
//!
//! Sources: xen `tools/libs/light/libxl_sched.c`, `xen/include/public/sysctl.h` for the ranges.

use std::ops::RangeInclusive;

use xen::{DomId, SchedTuning, Scheduler};

const TIMESLICE_MS: RangeInclusive<u32> = 1..=1000;
/// Or none.
const RATELIMIT_US: RangeInclusive<u32> = 100..=500_000;
const MIGRATION_DELAY_US_MAX: u32 = 100_000;

/// A question about pools with one scheduler. A pool is named by its name or number; `None` is the first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SchedQuestion {
    /// Its pools, with their domains' shares; `None`: all of them.
    Pools {
        scheduler: Scheduler,
        pool: Option<String>,
        of: VcpusOf,
    },
    /// One domain's, or those of its vCPUs; none of them: all.
    Domain {
        scheduler: Scheduler,
        domid: DomId,
        vcpus: Option<Vec<u32>>,
    },
    Parameters {
        scheduler: Scheduler,
        pool: Option<String>,
    },
    Change {
        scheduler: Scheduler,
        pool: Option<String>,
        change: PoolChange,
    },
}

/// Whose shares are asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VcpusOf {
    /// Each domain's own.
    None,
    /// Those of each domain's vCPUs.
    Each,
}

/// New parameters; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PoolChange {
    pub timeslice_ms: Option<u32>,
    pub ratelimit_us: Option<u32>,
    pub migration_delay_us: Option<u32>,
}

impl PoolChange {
    /// # Errors
    /// Says what is out of range.
    pub(crate) fn applied_to(self, before: SchedTuning) -> Result<SchedTuning, String> {
        let ratelimit = |before| match self.ratelimit_us.unwrap_or(before) {
            0 => Ok(0),
            us if RATELIMIT_US.contains(&us) => Ok(us),
            us => Err(format!(
                "a ratelimit of {us} us is out of range, valid range is from {} to {}, or 0",
                RATELIMIT_US.start(),
                RATELIMIT_US.end()
            )),
        };
        match before {
            SchedTuning::Credit2 { ratelimit_us } => {
                Ok(SchedTuning::Credit2 { ratelimit_us: ratelimit(ratelimit_us)? })
            }
            SchedTuning::Credit { timeslice_ms, ratelimit_us, migration_delay_us } => {
                let timeslice_ms = self.timeslice_ms.unwrap_or(timeslice_ms);
                if !TIMESLICE_MS.contains(&timeslice_ms) {
                    return Err(format!(
                        "a time slice of {timeslice_ms} ms is out of range, valid range is from {} to {}",
                        TIMESLICE_MS.start(),
                        TIMESLICE_MS.end()
                    ));
                }
                let ratelimit_us = ratelimit(ratelimit_us)?;
                if ratelimit_us > timeslice_ms * 1000 {
                    return Err(format!(
                        "a ratelimit of {ratelimit_us} us is greater than the time slice of \
                         {timeslice_ms} ms"
                    ));
                }
                let migration_delay_us = self.migration_delay_us.unwrap_or(migration_delay_us);
                if migration_delay_us > MIGRATION_DELAY_US_MAX {
                    return Err(format!(
                        "a migration delay of {migration_delay_us} us is out of range, at most \
                         {MIGRATION_DELAY_US_MAX}"
                    ));
                }
                Ok(SchedTuning::Credit { timeslice_ms, ratelimit_us, migration_delay_us })
            }
        }
    }
}

/// A domain's share of the CPUs, as a weight and a cap in percent of one CPU; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Share {
    pub scheduler: Scheduler,
    /// Not 0.
    pub weight: Option<u16>,
    /// 0 is none.
    pub cap: Option<u16>,
}

/// What a vCPU, or each of a domain's, may use of a period.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Budget {
    pub vcpu: Option<u32>,
    pub period_us: u32,
    pub budget_us: u32,
    /// It may have more while CPUs are idle.
    pub extra: bool,
}

impl Budget {
    /// Why it is none.
    pub(crate) fn problem(&self) -> Option<String> {
        let Self { period_us, budget_us, .. } = self;
        if *period_us == 0 || *budget_us == 0 {
            Some("a vCPU's period and budget are at least 1 us".to_owned())
        } else if budget_us > period_us {
            Some(format!("a budget of {budget_us} us is longer than its period of {period_us} us"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_libxl_refuses_are_refused() {
        let before =
            SchedTuning::Credit { timeslice_ms: 30, ratelimit_us: 1000, migration_delay_us: 0 };
        let timeslice = |ms| PoolChange { timeslice_ms: Some(ms), ..PoolChange::default() };
        let ratelimit = |us| PoolChange { ratelimit_us: Some(us), ..PoolChange::default() };
        let delay = |us| PoolChange { migration_delay_us: Some(us), ..PoolChange::default() };
        for wrong in [
            timeslice(0),
            timeslice(1001),
            ratelimit(99),
            ratelimit(30_001),
            ratelimit(500_001),
            delay(100_001),
        ] {
            assert!(wrong.applied_to(before).is_err(), "{wrong:?}");
        }
        for right in [timeslice(1), timeslice(1000), ratelimit(0), ratelimit(30_000)] {
            assert!(right.applied_to(before).is_ok(), "{right:?}");
        }
        let after =
            SchedTuning::Credit { timeslice_ms: 30, ratelimit_us: 1000, migration_delay_us: 9 };
        assert_eq!(delay(9).applied_to(before), Ok(after));
        let credit2 = SchedTuning::Credit2 { ratelimit_us: 1000 };
        assert!(ratelimit(500_001).applied_to(credit2).is_err());
        let after = SchedTuning::Credit2 { ratelimit_us: 500_000 };
        assert_eq!(ratelimit(500_000).applied_to(credit2), Ok(after));
    }
}
