//! Lists of CPUs as xl takes them: `0-3,^1`, `nodes:0-1`, `all`.
//!
//! Source: xen `docs/man/xl.1.pod.in` (`vcpu-pin`) and `xl.cfg.5.pod.in` (`cpus`).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use xen::{BitSet, CpuPlace};

/// More CPUs than any Xen supports.
const CPUS_MAX: u32 = 8192;

/// Parts that take effect one after the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CpuList {
    /// As it was written.
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Part {
    All,
    Cpus {
        removes: bool,
        range: RangeInclusive<u32>,
    },
    /// All CPUs of these NUMA nodes.
    Nodes {
        removes: bool,
        range: RangeInclusive<u32>,
    },
}

impl CpuList {
    /// # Errors
    /// Names the part that is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Result<Vec<Part>, String> =
            text.split(',').filter(|part| !part.is_empty()).map(part).collect();
        let parts = parts.map_err(|why| format!("{text:?} is no list of CPUs: {why}"))?;
        match parts.is_empty() {
            true => Err(format!("{text:?} is no list of CPUs, as 0-3,^1 or all")),
            false => Ok(Self { text: text.to_owned(), parts }),
        }
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Of these CPUs; `None` if there are none.
    pub(crate) fn of_numbers(cpus: &BTreeSet<u32>) -> Option<Self> {
        Self::parse(&ranges(cpus.iter().copied())).ok()
    }

    /// The CPUs, if that does not depend on a host.
    pub(crate) fn numbers(&self) -> Option<BTreeSet<u32>> {
        let is_number = |part: &Part| matches!(part, Part::Cpus { .. });
        self.parts.iter().all(is_number).then(|| self.named(&[]))
    }

    /// Whether the CPUs' places are needed to tell them.
    #[must_use]
    pub fn names_nodes(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Nodes { .. }))
    }

    /// The CPUs among the host's. Others are left out, as xl does.
    #[must_use]
    pub fn cpus(&self, count: u32, places: &[Option<CpuPlace>]) -> BitSet {
        (0..count.min(CPUS_MAX)).filter(|cpu| self.has(*cpu, true, places)).collect()
    }

    /// Every CPU that is named, those too that the host has not.
    #[must_use]
    pub(crate) fn named(&self, places: &[Option<CpuPlace>]) -> BTreeSet<u32> {
        let is_there = |cpu: u32| place_of(cpu, places).is_some();
        (0..CPUS_MAX).filter(|cpu| self.has(*cpu, is_there(*cpu), places)).collect()
    }

    fn has(&self, cpu: u32, is_of_all: bool, places: &[Option<CpuPlace>]) -> bool {
        let node = place_of(cpu, places).map(|place| place.node);
        self.parts.iter().fold(false, |is_in, part| match part {
            Part::All => is_in || is_of_all,
            Part::Cpus { removes, range } if range.contains(&cpu) => !removes,
            Part::Nodes { removes, range } if node.is_some_and(|node| range.contains(&node)) => {
                !removes
            }
            Part::Cpus { .. } | Part::Nodes { .. } => is_in,
        })
    }
}

fn place_of(cpu: u32, places: &[Option<CpuPlace>]) -> Option<CpuPlace> {
    places.get(usize::try_from(cpu).ok()?).copied().flatten()
}

/// Ascending numbers in as few words as they can be said: `0-3,8`.
#[must_use]
pub fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

fn part(text: &str) -> Result<Part, String> {
    let (removes, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
    let of_nodes = rest.strip_prefix("node:").or_else(|| rest.strip_prefix("nodes:"));
    let numbers = of_nodes.unwrap_or(rest);
    if numbers == "all" {
        return match removes {
            true => Err("^ and all exclude each other".to_owned()),
            false => Ok(Part::All),
        };
    }
    let range = range(numbers).ok_or_else(|| format!("{text:?} is no number and no range"))?;
    Ok(match of_nodes {
        Some(_) => Part::Nodes { removes, range },
        None => Part::Cpus { removes, range },
    })
}

fn range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| is_number && *number < CPUS_MAX)
    };
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(text: &str) -> Vec<u32> {
        let place = |cpu: u32| Some(CpuPlace { core: cpu, socket: 0, node: cpu / 4 });
        let mut places: Vec<_> = (0..8).map(place).collect();
        places[6] = None;
        CpuList::parse(text).unwrap().cpus(8, &places).iter().collect()
    }

    #[test]
    fn parts_take_effect_in_their_order() {
        assert_eq!(cpus("0-3,^1"), [0, 2, 3]);
        assert_eq!(cpus("^1,0-3"), [0, 1, 2, 3]);
        assert_eq!(cpus("all,^0,^nodes:1"), [1, 2, 3, 6]);
        assert_eq!(cpus("node:1,2"), [2, 4, 5, 7]);
        assert_eq!(cpus("nodes:0-1,^2-3"), [0, 1, 4, 5, 7]);
        assert_eq!(cpus("6-90"), [6, 7]);
        assert_eq!(cpus("nodes:all").len(), 8);
        assert!(cpus("nodes:7").is_empty());
        let place = |node| Some(CpuPlace { core: 0, socket: 0, node });
        let named = |text: &str| CpuList::parse(text).unwrap().named(&[place(0), None, place(1)]);
        assert_eq!(named("all,9"), BTreeSet::from([0, 2, 9]));
        assert_eq!(named("0-3,^node:0"), BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn cpus_without_a_host_are_numbers_alone() {
        let numbers = |text: &str| CpuList::parse(text).unwrap().numbers();
        for text in ["0", "0-3,6,8-9", "4095"] {
            let list = CpuList::of_numbers(&numbers(text).unwrap()).unwrap();
            assert_eq!(list.text(), text);
        }
        assert_eq!(numbers("0-3,^1"), Some(BTreeSet::from([0, 2, 3])));
        assert_eq!((numbers("all"), numbers("1,nodes:0")), (None, None));
        assert_eq!(CpuList::of_numbers(&BTreeSet::new()), None);
    }

    #[test]
    fn what_xl_does_not_take_is_refused() {
        for text in [
            "",
            ",",
            "+1",
            "8192",
            "1 ",
            "^all",
            "^nodes:all",
            "3-1",
            "x",
            "1-",
            "-1",
            "1,2x",
            "nodes:",
            "+1-x",
        ] {
            assert!(CpuList::parse(text).is_err(), "{text}");
        }
        let why = CpuList::parse("1,2x").unwrap_err();
        assert_eq!(why, "\"1,2x\" is no list of CPUs: \"2x\" is no number and no range");
    }
}
