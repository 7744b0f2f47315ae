//! Keys about how Xen runs a guest's machine.
//!
//! Source: xen `tools/xl/xl_parse.c`, the checks of `tools/libs/light/libxl_create.c` and of
//! `arch_sanitise_domain_config` in `xen/arch/x86/domain.c`.

use xen::DomainKind;

use super::vm::{Findings, Reader, Result};
use super::{integer, shown};
use crate::config::{Altp2m, MachineOptions, Passthrough, TimerMode};

/// The largest buffer of a trace.
const TRACE_KIB_MAX: i64 = 64 << 10;
const TRACE_KIB_MIN: u32 = 4;

impl Reader<'_> {
    /// What does not depend on others' keys; the rest is checked by [`Reader::check_machine`].
    pub(super) fn machine(&self, kind: DomainKind, found: &mut Findings) -> MachineOptions {
        let default = MachineOptions::default();
        let is_translated = kind != DomainKind::Pv;
        let mut options = MachineOptions {
            vpmu: found.take(self.flag("vpmu", false)),
            trace_kib: found.take(self.trace_kib(kind)),
            passthrough: found.take(self.passthrough(kind)),
            timer_mode: found.take(self.timer_mode(kind)),
            ..default
        };
        // For PV domains xl checks that they are values, and no more.
        let altp2m = found.take(self.altp2m(kind));
        let count = self.number("altp2m_count", 0..=i64::from(u16::MAX));
        let count = found.take(count).and_then(|count| u16::try_from(count).ok());
        if is_translated {
            options.altp2m = altp2m;
            options.altp2m_count = count;
            options.out_of_sync = found.take(self.flag("oos", true).map(Some)).unwrap_or(true);
        }
        if kind == DomainKind::Hvm {
            let aligned = self.flag("vpt_align", true).map(Some);
            options.timers_aligned = found.take(aligned).unwrap_or(true);
            options.pirqs = found.take(self.flag("hvm_pirq", false));
        }
        options
    }

    /// What libxl refuses of keys that do not go together.
    pub(super) fn check_machine(
        &self,
        options: &MachineOptions,
        (nested_virt, shadow_paging): (bool, bool),
        (memory_mib, memory_max_mib): (u64, u64),
        kind: DomainKind,
        found: &mut Findings,
    ) {
        let mut refuse = |key: &str, problem: &str| {
            found.faults.push(self.error(key, self.place(key), problem));
        };
        let grows = kind != DomainKind::Pv && memory_mib < memory_max_mib;
        if options.altp2m != Altp2m::Disabled {
            let key = match self.settings.contains_key("altp2m") {
                true => "altp2m",
                false => "altp2mhvm",
            };
            if nested_virt {
                refuse(key, "not together with nestedhvm");
            }
            if grows {
                refuse(
                    key,
                    "needs all of maxmem at the start, as with xl: memory must be as large",
                );
            }
        }
        let key = "passthrough";
        match options.passthrough {
            Passthrough::Default | Passthrough::Disabled => {}
            Passthrough::Enabled | Passthrough::Synchronised | Passthrough::Shared if grows => {
                refuse(
                    key,
                    "needs all of maxmem at the start, as with xl: memory must be as large",
                );
            }
            Passthrough::Shared if shadow_paging => {
                refuse(key, "share_pt is for guests with hap");
            }
            Passthrough::Enabled | Passthrough::Synchronised | Passthrough::Shared => {}
        }
    }

    /// A word or, as xl took it first, its number.
    fn word_or_number<T: Copy>(
        &self,
        key: &str,
        all: &[T],
        as_str: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>> {
        let Some((word, place)) = self.atom(key)?.filter(|(word, _)| !word.is_empty()) else {
            return Ok(None);
        };
        let by_number = integer(word).and_then(|number| usize::try_from(number).ok());
        let known = match by_number {
            Some(number) => all.get(number).copied(),
            None => all.iter().copied().find(|it| as_str(*it) == word),
        };
        known.map(Some).ok_or_else(|| {
            let words: Vec<_> = all.iter().map(|it| as_str(*it)).collect();
            let problem = format!("{}: expected one of {}", shown(word), words.join(", "));
            self.error(key, place, problem)
        })
    }

    /// `altp2mhvm` is the key that came first, for HVM only.
    fn altp2m(&self, kind: DomainKind) -> Result<Altp2m> {
        let mode = self.word_or_number("altp2m", &Altp2m::ALL, Altp2m::as_str)?.unwrap_or_default();
        let earlier = kind == DomainKind::Hvm && self.flag("altp2mhvm", false)?;
        Ok(match mode {
            Altp2m::Disabled if earlier => Altp2m::Mixed,
            mode => mode,
        })
    }

    fn timer_mode(&self, kind: DomainKind) -> Result<TimerMode> {
        let mode = self.word_or_number("timer_mode", &TimerMode::ALL, TimerMode::as_str)?;
        match mode {
            Some(_) if kind == DomainKind::Pv => {
                let place = self.place("timer_mode");
                Err(self.error(
                    "timer_mode",
                    place,
                    "not for PV domains, which have no such timers",
                ))
            }
            mode => Ok(mode.unwrap_or_default()),
        }
    }

    fn passthrough(&self, kind: DomainKind) -> Result<Passthrough> {
        const KEY: &str = "passthrough";
        let mode = self.word(KEY, &Passthrough::ALL, Passthrough::as_str)?.unwrap_or_default();
        let problem = match (mode, kind) {
            (Passthrough::Default | Passthrough::Disabled, _) => return Ok(mode),
            (_, DomainKind::Pvh) => {
                "not for PVH domains: Xen gives them no devices of the host yet"
            }
            (Passthrough::Shared, DomainKind::Pv) => {
                "share_pt is not for PV domains, which have no tables to be shared"
            }
            (_, DomainKind::Pv | DomainKind::Hvm) => return Ok(mode),
        };
        Err(self.error(KEY, self.place(KEY), problem))
    }

    fn trace_kib(&self, kind: DomainKind) -> Result<u32> {
        const KEY: &str = "vmtrace_buf_kb";
        let kib = self.number(KEY, 0..=TRACE_KIB_MAX)?;
        let kib = kib.and_then(|kib| u32::try_from(kib).ok()).unwrap_or_default();
        // libxl rounds it to pages, and Xen takes powers of two.
        let kib = kib.next_multiple_of(TRACE_KIB_MIN);
        let problem = match kib {
            0 => return Ok(0),
            _ if kind == DomainKind::Pv => "Xen traces no PV domains".to_owned(),
            kib if !kib.is_power_of_two() => format!("{kib} KiB: expected a power of two"),
            kib => return Ok(kib),
        };
        Err(self.error(KEY, self.place(KEY), problem))
    }
}
