//! `viridian=`: groups of Hyper-V enlightenments.
//!
//! Sources: xen `docs/man/xl.cfg.5.pod.in`, `xen/include/public/hvm/params.h` (`HVMPV_*`).

use super::shown;
use super::syntax::{Setting, Value};
use super::vm::{Reader, Result};

const BASE: u64 = 1;
/// Disables the group `freq`, which is on by default.
const NO_FREQ: u64 = 1 << 1;
const TIME_REF_COUNT: u64 = 1 << 2;
const SYNIC: u64 = 1 << 7;
const STIMER: u64 = 1 << 8;

/// A group, and the bits that it sets. `freq` clears one instead.
const GROUPS: &[(&str, u64)] = &[
    ("base", BASE),
    ("freq", 0),
    ("time_ref_count", TIME_REF_COUNT),
    ("reference_tsc", 1 << 3),
    ("hcall_remote_tlb_flush", 1 << 4),
    ("apic_assist", 1 << 5),
    ("crash_ctl", 1 << 6),
    ("synic", SYNIC),
    ("stimer", TIME_REF_COUNT | SYNIC | STIMER),
    ("hcall_ipi", 1 << 9),
    ("ex_processor_masks", 1 << 10),
    ("no_vp_limit", 1 << 11),
    ("cpu_hotplug", 1 << 12),
];
const DEFAULTS: &[&str] =
    &["base", "freq", "time_ref_count", "apic_assist", "crash_ctl", "no_vp_limit", "cpu_hotplug"];

impl Reader<'_> {
    /// The bits for Xen, 0 for none.
    pub(super) fn viridian(&self) -> Result<u64> {
        let fail = |problem: String| self.error("viridian", self.place("viridian"), problem);
        let groups = match self.settings.get("viridian") {
            Some(Setting { value: Value::List(_), .. }) => {
                let items = self.list("viridian")?;
                enabled(items.iter().map(|(_, text, _)| *text)).map_err(fail)?
            }
            _ if self.flag("viridian", false)? => DEFAULTS.to_vec(),
            _ => Vec::new(),
        };
        mask(&groups).ok_or_else(|| fail("every other group needs the group base".to_owned()))
    }
}

/// The groups that a list enables.
fn enabled<'a>(
    items: impl Iterator<Item = &'a str>,
) -> std::result::Result<Vec<&'static str>, String> {
    let (mut defaults, mut enabled, mut disabled) = (false, Vec::new(), Vec::new());
    for item in items {
        match (item, item.strip_prefix('!')) {
            ("all", _) => enabled = GROUPS.iter().map(|&(name, _)| name).collect(),
            ("defaults", _) => defaults = true,
            (_, negated) => {
                let wanted = negated.unwrap_or(item);
                let group = GROUPS.iter().find(|&&(name, _)| name == wanted);
                let Some(&(name, _)) = group else {
                    let names: Vec<&str> = GROUPS.iter().map(|&(name, _)| name).collect();
                    let names = names.join(", ");
                    return Err(format!(
                        "{}: no such group; there are all, defaults, {names}",
                        shown(item)
                    ));
                };
                let (to, from) = if negated.is_some() {
                    (&mut disabled, &mut enabled)
                } else {
                    (&mut enabled, &mut disabled)
                };
                from.retain(|other| *other != name);
                to.push(name);
            }
        }
    }
    if defaults {
        enabled.extend(DEFAULTS);
    }
    enabled.retain(|name| !disabled.contains(name));
    Ok(enabled)
}

/// `None` without the group that all others need.
fn mask(groups: &[&str]) -> Option<u64> {
    let bits = GROUPS
        .iter()
        .filter(|(name, _)| groups.contains(name))
        .fold(0, |mask, (_, bits)| mask | bits);
    match (groups, bits & BASE) {
        ([], _) => Some(0),
        (_, 0) => None,
        (groups, _) if groups.contains(&"freq") => Some(bits),
        (_, _) => Some(bits | NO_FREQ),
    }
}

/// The groups of this mask.
pub(super) fn groups(mask: u64) -> impl Iterator<Item = &'static str> {
    GROUPS.iter().filter_map(move |&(name, bits)| {
        let is_there = match name {
            "freq" => mask & (BASE | NO_FREQ) == BASE,
            _ => mask & bits == bits,
        };
        is_there.then_some(name)
    })
}

/// The groups of this mask with their numbers in libxl's lists.
pub(crate) fn numbered(mask: u64) -> Vec<(usize, &'static str)> {
    let names: Vec<&str> = groups(mask).collect();
    let all = GROUPS.iter().map(|(name, _)| *name).enumerate();
    all.filter(|(_, name)| names.contains(name)).collect()
}

/// Numbers of the groups of `viridian=1`.
pub(crate) fn default_numbers() -> impl Iterator<Item = usize> {
    let all = GROUPS.iter().enumerate();
    all.filter(|(_, (name, _))| DEFAULTS.contains(name)).map(|(number, _)| number)
}

/// The bits of the groups with these numbers.
pub(crate) fn mask_of_numbers(numbers: &[usize]) -> std::result::Result<u64, String> {
    let name = |number: &usize| GROUPS.get(*number).map(|(name, _)| *name).ok_or(*number);
    let names = numbers.iter().map(name).collect::<std::result::Result<Vec<_>, _>>();
    let names = names.map_err(|number| format!("group {number} is not known"))?;
    mask(&names).ok_or_else(|| "every other group needs the group base".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(items: &[&str]) -> Option<u64> {
        mask(&enabled(items.iter().copied()).unwrap())
    }

    #[test]
    fn groups_have_the_bits_that_xl_sets() {
        for (items, bits) in [
            (&[][..], Some(0)),
            (&["defaults"], Some(0x1865)),
            (&["base"], Some(3)),
            (&["base", "freq"], Some(1)),
            (&["base", "reference_tsc"], Some(0xb)),
            (&["base", "stimer"], Some(0x187)),
            (&["all"], Some(0x1ffd)),
            (&["all", "!freq"], Some(0x1fff)),
            (&["defaults", "!freq", "freq"], Some(0x1865)),
            (&["freq"], None),
            (&["all", "!base"], None),
        ] {
            assert_eq!(of(items), bits, "{items:?}");
        }
        assert!(enabled(["hyperv"].into_iter()).is_err());
    }

    #[test]
    fn a_mask_round_trips_through_its_groups() {
        for items in [&["all"][..], &["all", "!freq"], &["base", "stimer"], &["base"], &[]] {
            let mask = of(items).unwrap();
            let groups: Vec<&str> = groups(mask).collect();
            assert_eq!(of(&groups), Some(mask), "{groups:?}");
        }
    }
}
