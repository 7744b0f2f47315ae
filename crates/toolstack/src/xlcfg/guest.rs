//! Keys that few guests set: limits of Xen's tables, paging, nested guests, and what they see of the CPU.

use super::syntax::{Setting, Value};
use super::vm::{Reader, Result};
use super::{cpuid, shown};
use crate::config::{CpuidConfig, CpuidText, GuestOptions, OnHostShutdown};

impl Reader<'_> {
    pub(super) fn guest_options(&self) -> Result<GuestOptions> {
        let number = |key, range| {
            let number = self.number(key, range)?;
            Ok(number.and_then(|number| u32::try_from(number).ok()))
        };
        let limit = 0..=i64::from(i32::MAX);
        Ok(GuestOptions {
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
            on_host_shutdown: self.on_host_shutdown()?,
        })
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
