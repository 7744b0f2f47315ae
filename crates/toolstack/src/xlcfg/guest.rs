//! Keys that few guests set: limits of Xen's tables, paging, nested guests, and what they see of the CPU.

use super::syntax::{Setting, Value};
use super::vm::{Reader, Result};
use super::{cpuid, shown};
use crate::config::{
    AffinityConfig, ClockOffset, CpuLists, CpuidConfig, CpuidText, GuestOptions, MachineOptions,
    OnHostShutdown,
};
use crate::tuning::{CpuList, FIRST_POOL};

/// As much as a guest's memory.
const POOL_MIB_MAX: u32 = super::MEMORY_MIB_MAX;

impl Reader<'_> {
    pub(super) fn guest_options(&self) -> Result<GuestOptions> {
        let number = |key, range| {
            let number = self.number(key, range)?;
            Ok(number.and_then(|number| u32::try_from(number).ok()))
        };
        let limit = 0..=i64::from(i32::MAX);
        let options = GuestOptions {
            // 0 is as good as none, as for xl.
            evtchn_port_max: number("max_event_channels", limit.clone())?.filter(|max| *max > 0),
            maptrack_frames_max: number("max_maptrack_frames", limit)?
                .or(self.defaults.maptrack_frames_max),
            grant_version_max: number("max_grant_version", 1..=2)?
                .and_then(|version| u8::try_from(version).ok())
                .or(self.defaults.grant_version_max),
            nested_virt: self.flag("nestedhvm", false)?,
            shadow_paging: !self.flag("hap", true)?,
            cpuid: self.cpuid()?.map(Box::new),
            cpu_weight: self.number("cpu_weight", 1..=65535)?.and_then(|it| u16::try_from(it).ok()),
            cpu_cap: self.cpu_cap()?,
            affinity: self.affinity()?.map(Box::new),
            never_moves: self.flag("nomigrate", false)?,
            clock: ClockOffset {
                seconds: self
                    .number("rtc_timeoffset", i64::from(i32::MIN)..=i64::from(i32::MAX))?
                    .and_then(|seconds| i32::try_from(seconds).ok())
                    .unwrap_or_default(),
                is_local: self.flag("localtime", false)?,
            },
            on_host_shutdown: self.on_host_shutdown()?,
            pool: self.pool()?,
            paging_pool_mib: number("shadow_memory", 0..=i64::from(POOL_MIB_MAX))?
                .filter(|mib| *mib > 0),
            msr_relaxed: self.flag("msr_relaxed", false)?,
            is_driver_domain: self.flag("driver_domain", false)?,
            // Have several faults; read beside them.
            hardware: None,
            machine: MachineOptions::default(),
            pci: Vec::new(),
            rdm: None,
            host_map: false,
            shim: None,
            // Needs the disks; read beside them.
            bootloader: None,
        };
        if options.never_moves && options.on_host_shutdown == Some(OnHostShutdown::Save) {
            let problem = "the VM would not be saved, which on_host_shutdown = \"save\" asks for";
            return Err(self.error("nomigrate", self.place("nomigrate"), problem));
        }
        Ok(options)
    }

    /// As it is used, the first pool is the same as none.
    fn pool(&self) -> Result<Option<String>> {
        let pool = self.path("pool")?;
        Ok(pool.filter(|it| !FIRST_POOL.contains(it)).map(str::to_owned))
    }

    /// In percent of one CPU: up to all of its vCPUs. 0 is none.
    fn cpu_cap(&self) -> Result<Option<u16>> {
        let cap = self.number("cap", 0..=i64::from(u16::MAX))?;
        let cap = cap.and_then(|cap| u16::try_from(cap).ok()).filter(|cap| *cap > 0);
        // Said elsewhere.
        let Ok((_, vcpus_max)) = self.vcpus() else { return Ok(cap) };
        match cap {
            Some(cap) if u32::from(cap) > vcpus_max * 100 => {
                let problem =
                    format!("{cap} is above {}, all of {vcpus_max} vCPUs", vcpus_max * 100);
                Err(self.error("cap", self.place("cap"), problem))
            }
            cap => Ok(cap),
        }
    }

    fn affinity(&self) -> Result<Option<AffinityConfig>> {
        let affinity =
            AffinityConfig { hard: self.cpu_lists("cpus")?, soft: self.cpu_lists("cpus_soft")? };
        Ok((affinity != AffinityConfig::default()).then_some(affinity))
    }

    fn cpu_lists(&self, key: &str) -> Result<Option<CpuLists>> {
        let parse = |name: &str, text: &str, place| {
            CpuList::parse(text).map_err(|problem| self.error(name, place, problem))
        };
        let Some(Setting { value, place }) = self.settings.get(key) else { return Ok(None) };
        match value {
            Value::Atom(text) if text.is_empty() => Ok(None),
            Value::Atom(text) => Ok(Some(CpuLists::Common(parse(key, text, *place)?))),
            Value::List(_) => {
                let items = self.list(key)?;
                let lists = items.iter().map(|(name, text, place)| parse(name, text, *place));
                let lists = lists.collect::<Result<Vec<_>>>()?;
                Ok((!lists.is_empty()).then_some(CpuLists::Each(lists)))
            }
        }
    }

    fn on_host_shutdown(&self) -> Result<Option<OnHostShutdown>> {
        const KEY: &str = "on_host_shutdown";
        let Some((word, place)) = self.atom(KEY)? else { return Ok(None) };
        OnHostShutdown::parse(word).map(Some).ok_or_else(|| {
            let words = OnHostShutdown::ALL.map(OnHostShutdown::as_str).join(", ");
            let problem = format!("{} is not an action; expected one of {words}", shown(word));
            self.error(KEY, place, problem)
        })
    }

    fn cpuid(&self) -> Result<Option<CpuidConfig>> {
        let Some(Setting { value, place }) = self.settings.get("cpuid") else { return Ok(None) };
        match value {
            Value::Atom(text) => {
                cpuid::parse_words(text).map_err(|problem| self.error("cpuid", *place, problem))
            }
            Value::List(_) => {
                let items = self.list("cpuid")?;
                let texts = items.iter().map(|(_, text, _)| (*text).to_owned()).collect();
                let mut config = CpuidConfig::new(CpuidText::Leaves(texts));
                for (name, text, place) in items {
                    cpuid::parse_leaf(text, &mut config)
                        .map_err(|problem| self.error(&name, place, problem))?;
                }
                Ok(config.sets_anything().then_some(config))
            }
        }
    }
}
