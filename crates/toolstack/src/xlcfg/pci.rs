//! Devices of the host for a guest: `pci`, and `rdm`, the memory that they have reserved.
//!
//! Source: xen `docs/man/xl-pci-configuration.5.pod`, `tools/libs/util/libxlu_pci.c`, the checks of
//! `tools/libs/light/libxl_create.c`.

use xen::{DomainKind, PciAddress};

use super::shown;
use super::vm::{Findings, Reader, Result};
use crate::config::{Passthrough, PciDevice, PciName, PciPlace, Rdm, RdmPolicy};

type Parsed<T> = std::result::Result<T, String>;

/// A number of up to this, in hexadecimal, at the start of a text; and the rest.
fn hexadecimal(text: &str, most: u32) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let number = u32::from_str_radix(digits, 16).ok().filter(|number| *number <= most)?;
    Some((number, rest))
}

/// `[SEGMENT:]BUS:DEVICE.FUNCTION` at the start of a text, where the function may be `*`; and the rest.
fn place(text: &str) -> Option<(PciPlace, &str)> {
    let (first, rest) = hexadecimal(text, 0xffff)?;
    let (second, rest) = hexadecimal(rest.strip_prefix(':')?, 0xff)?;
    let (segment, bus, device, rest) = match rest.strip_prefix(':') {
        None => (0, first, second, rest),
        Some(rest) => {
            let (third, rest) = hexadecimal(rest, 0xff)?;
            (first, second, third, rest)
        }
    };
    let rest = rest.strip_prefix('.')?;
    let (function, rest) = match rest.strip_prefix('*') {
        Some(rest) => (None, rest),
        None => {
            let (function, rest) = hexadecimal(rest, 7)?;
            (Some(u8::try_from(function).ok()?), rest)
        }
    };
    let device = u8::try_from(device).ok().filter(|device| *device < 32)?;
    let (segment, bus) = (u16::try_from(segment).ok()?, u8::try_from(bus).ok()?);
    Some((PciPlace { segment, bus, device, function }, rest))
}

fn whole_place(text: &str) -> Parsed<PciPlace> {
    match place(text) {
        Some((place, "")) => Ok(place),
        _ => Err(format!("{}: expected [SEGMENT:]BUS:DEVICE.FUNCTION", shown(text))),
    }
}

/// One function of a device.
///
/// # Errors
/// The text is no BDF, or means all functions.
pub fn pci_function(text: &str) -> Parsed<PciAddress> {
    let place = whole_place(text)?;
    place.function.ok_or_else(|| format!("{text}: is not one function of a device"))?;
    Ok(place.first_function())
}

fn slot(text: &str) -> Parsed<u8> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match hexadecimal(digits, 0x1f) {
        Some((slot, "")) => u8::try_from(slot).map_err(|error| error.to_string()),
        _ => Err(format!("vslot: {}: expected 0 to 1f", shown(text))),
    }
}

/// As C's `atoi` reads it for xl, but all of it.
fn flag(key: &str, text: &str) -> Parsed<bool> {
    let number = text.parse::<i32>();
    number.map(|number| number != 0).map_err(|_| format!("{key}: {}: expected 0 or 1", shown(text)))
}

fn policy(text: &str) -> Parsed<RdmPolicy> {
    let known = RdmPolicy::ALL.into_iter().find(|policy| policy.as_str() == text);
    known.ok_or_else(|| format!("{}: expected strict or relaxed", shown(text)))
}

/// `BDF[@SLOT],KEY=VALUE,...`, which has the values of `usual` where it says nothing.
fn device(text: &str, usual: &PciDevice) -> Parsed<PciDevice> {
    let (mut address, mut name) = (None, None);
    let mut device = usual.clone();
    let mut rest = text;
    if let Some((found, more)) = place(text) {
        let (first, more) = more.split_once(',').unwrap_or((more, ""));
        match first.strip_prefix('@') {
            Some(at) => device.slot = Some(slot(at)?),
            None if first.is_empty() => {}
            None => return Err(format!("{}: expected a comma after {found}", shown(text))),
        }
        address = Some(found);
        rest = more;
    }
    for parameter in rest.split(',').filter(|parameter| !parameter.is_empty()) {
        let Some((key, value)) = parameter.split_once('=') else {
            return Err(format!("{}: expected KEY=VALUE", shown(parameter)));
        };
        match key {
            "bdf" => address = Some(whole_place(value)?),
            "name" => name = Some(value.to_owned()),
            "vslot" => device.slot = Some(slot(value)?),
            "permissive" => device.permissive = flag(key, value)?,
            "msitranslate" => device.msitranslate = flag(key, value)?,
            "seize" => device.seize = flag(key, value)?,
            "power_mgmt" => device.power_mgmt = flag(key, value)?,
            "rdm_policy" => device.rdm_policy = policy(value)?,
            _ => {
                return Err(format!(
                    "{}: expected bdf, name, vslot, permissive, msitranslate, seize, power_mgmt or rdm_policy",
                    shown(key)
                ));
            }
        }
    }
    device.name = match (address, name) {
        (Some(place), None) => PciName::Address(place),
        (None, Some(name)) if !name.is_empty() => PciName::Named(name),
        (Some(_), Some(_)) => return Err("expected a BDF or a name, not both".to_owned()),
        (None, _) => return Err(format!("{}: expected a BDF or a name", shown(text))),
    };
    Ok(device)
}

/// One device, with nothing said for all of them.
pub(super) fn parse(text: &str) -> Parsed<PciDevice> {
    let usual = PciDevice {
        name: PciName::Named(String::new()),
        slot: None,
        permissive: false,
        msitranslate: false,
        seize: false,
        power_mgmt: false,
        rdm_policy: RdmPolicy::Strict,
    };
    device(text, &usual)
}

fn rdm(text: &str) -> Parsed<Rdm> {
    let mut rdm = Rdm { of_host: false, policy: RdmPolicy::default() };
    for parameter in text.split(',').map(str::trim) {
        match parameter.split_once('=') {
            Some(("strategy", "host")) => rdm.of_host = true,
            Some(("policy", word)) => rdm.policy = policy(word)?,
            _ => {
                let expected = "expected strategy=host and policy=strict or policy=relaxed";
                return Err(format!("{}: {expected}", shown(parameter)));
            }
        }
    }
    Ok(rdm)
}

impl Reader<'_> {
    /// An HVM guest's.
    pub(super) fn rdm(&self, kind: DomainKind) -> Result<Option<Rdm>> {
        let Some((text, place)) = self.atom("rdm")?.filter(|(text, _)| !text.is_empty()) else {
            return Ok(None);
        };
        if kind != DomainKind::Hvm {
            return Ok(None);
        }
        self.number("rdm_mem_boundary", 0..=i64::from(super::MEMORY_MIB_MAX))?;
        rdm(text).map(Some).map_err(|problem| self.error("rdm", place, problem))
    }

    /// What the devices' own parameters do not say is said for all of them.
    pub(super) fn pci(
        &self,
        kind: DomainKind,
        rdm: Option<Rdm>,
        grows: bool,
        found: &mut Findings,
    ) -> Vec<PciDevice> {
        let mut flag = |key| found.take(self.flag(key, false));
        let usual = PciDevice {
            name: PciName::Named(String::new()),
            slot: None,
            permissive: flag("pci_permissive"),
            msitranslate: flag("pci_msitranslate"),
            seize: flag("pci_seize"),
            power_mgmt: flag("pci_power_mgmt"),
            // Shared reserved memory is a way from one guest to another.
            rdm_policy: rdm.map_or(RdmPolicy::Strict, |rdm| rdm.policy),
        };
        let mut devices = Vec::new();
        for (name, text, place) in found.take(self.list("pci")) {
            match device(text, &usual) {
                Ok(device) => devices.push(device),
                Err(problem) => found.faults.push(self.error(&name, place, problem)),
            }
        }
        if devices.is_empty() {
            return devices;
        }
        let problem = match kind {
            DomainKind::Pvh => "not for PVH domains: Xen gives them no devices of the host yet",
            DomainKind::Hvm if grows => {
                "needs all of maxmem at the start, as with xl: memory must be as large"
            }
            DomainKind::Pv | DomainKind::Hvm => return devices,
        };
        found.faults.push(self.error("pci", self.place("pci"), problem));
        devices
    }

    /// A PV guest with devices of the host needs the map, whatever its file says.
    pub(super) fn host_map(&self, kind: DomainKind, has_devices: bool) -> Result<bool> {
        if kind != DomainKind::Pv {
            return Ok(false);
        }
        self.flag("e820_host", false).map(|wanted| wanted || has_devices)
    }

    pub(super) fn check_passthrough(
        &self,
        passthrough: Passthrough,
        devices: &[PciDevice],
        found: &mut Findings,
    ) {
        if passthrough == Passthrough::Disabled && !devices.is_empty() {
            let problem = "disabled, but pci names devices, which need it";
            found.faults.push(self.error("passthrough", self.place("passthrough"), problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> PciDevice {
        PciDevice {
            name: PciName::Named(String::new()),
            slot: None,
            permissive: false,
            msitranslate: true,
            seize: false,
            power_mgmt: false,
            rdm_policy: RdmPolicy::Relaxed,
        }
    }

    #[test]
    fn a_device_is_named_as_xl_takes_it() {
        for (text, name, at) in [
            ("01:00.0", "0000:01:00.0", None),
            ("0a:1f.7@1f", "0000:0a:1f.7", Some(0x1f)),
            ("ffff:0a:1f.*,vslot=5", "ffff:0a:1f.*", Some(5)),
            ("bdf=0:1:2.3", "0000:01:02.3", None),
            ("name=card,vslot=0x1", "card", Some(1)),
        ] {
            let device = device(text, &usual()).unwrap();
            assert_eq!((device.name.to_string().as_str(), device.slot), (name, at), "{text}");
        }
        let given = device(
            "0:1.0,permissive=1,msitranslate=0,seize=1,power_mgmt=1,rdm_policy=strict",
            &usual(),
        );
        let PciDevice { permissive, msitranslate, seize, power_mgmt, rdm_policy, .. } =
            given.unwrap();
        assert_eq!(
            (permissive, msitranslate, seize, power_mgmt, rdm_policy),
            (true, false, true, true, RdmPolicy::Strict)
        );
    }

    #[test]
    fn a_function_is_given_with_or_without_its_segment() {
        assert_eq!(pci_function("1f:2.1"), Ok(PciAddress(0x1f11)));
        assert_eq!(pci_function("0001:02:1f.3"), Ok(PciAddress(0x1_02fb)));
        assert!(pci_function("01:02.*").is_err() && pci_function("01:02").is_err());
    }

    #[test]
    fn what_xl_does_not_take_is_refused() {
        for (text, problem) in [
            ("", "\"\": expected a BDF or a name"),
            ("01:00", "\"01:00\": expected KEY=VALUE"),
            ("01:20.0", "\"01:20.0\": expected KEY=VALUE"),
            ("01:00.8", "\"01:00.8\": expected KEY=VALUE"),
            ("100:00.0", "\"100:00.0\": expected KEY=VALUE"),
            ("01:00.0x", "\"01:00.0x\": expected a comma after 0000:01:00.0"),
            ("01:00.0@20", "vslot: \"20\": expected 0 to 1f"),
            ("01:00.0,name=a", "expected a BDF or a name, not both"),
            ("bdf=1", "\"1\": expected [SEGMENT:]BUS:DEVICE.FUNCTION"),
            ("01:00.0,seize=yes", "seize: \"yes\": expected 0 or 1"),
            ("01:00.0,rdm_policy=loose", "\"loose\": expected strict or relaxed"),
            (
                "01:00.0,color=1",
                "\"color\": expected bdf, name, vslot, permissive, msitranslate, seize, power_mgmt or rdm_policy",
            ),
        ] {
            assert_eq!(device(text, &usual()), Err(problem.to_owned()), "{text}");
        }
    }

    #[test]
    fn reserved_memory_is_of_the_host_or_of_the_devices() {
        let of = |of_host, policy| Ok(Rdm { of_host, policy });
        assert_eq!(rdm("strategy=host,policy=strict"), of(true, RdmPolicy::Strict));
        assert_eq!(rdm("policy=relaxed"), of(false, RdmPolicy::Relaxed));
        assert!(rdm("strategy=none").is_err());
        assert!(rdm("policy=loose").is_err());
    }
}
