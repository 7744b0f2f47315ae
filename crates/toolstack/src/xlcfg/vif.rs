//! One element of `vif = [..]`.
//!
//! Source: xen `docs/man/xl-network-configuration.5.pod.in`.

use xen::DomainKind;

use super::keys::nearest;
use super::xlconf::VifDefaults;
use super::{integer, shown};
use crate::config::{Mac, Rate, Trust, VifConfig};
use crate::{hotplug, network};

/// Default bridge, as in libxl.
pub(super) const BRIDGE_DEFAULT: &str = "xenbr0";
/// Linux: `IFNAMSIZ` without the NUL.
const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// The minimum of IPv4, and the maximum of the device's field.
const MTU_RANGE: std::ops::RangeInclusive<i64> = 68..=65535;
const RATE_INTERVAL_US_DEFAULT: u64 = 50_000;

pub(super) const PARAMETERS: &[&str] = &[
    "antispoof",
    "backend",
    "bridge",
    "devid",
    "gatewaydev",
    "ip",
    "mac",
    "model",
    "mtu",
    "rate",
    "script",
    "type",
    "vifname",
    "vlan",
];

/// Cards that QEMU emulates, by their names there.
const MODELS: &[&str] =
    &["rtl8139", "e1000", "e1000e", "ne2k_pci", "pcnet", "virtio-net-pci", "vmxnet3"];
const MODEL_DEFAULT: &str = "rtl8139";

/// Parses one interface; `index` is its index in the list. The error is the problem only.
pub(super) fn parse(
    text: &str,
    index: u32,
    kind: DomainKind,
    defaults: &VifDefaults,
) -> Result<VifConfig, String> {
    let mut vif = VifConfig {
        devid: index,
        mac: None,
        bridge: defaults.bridge.clone().unwrap_or_else(|| BRIDGE_DEFAULT.to_owned()),
        name: None,
        ip: None,
        mtu: None,
        rate: None,
        model: (kind == DomainKind::Hvm).then(|| MODEL_DEFAULT.to_owned()),
        script: defaults.script.clone(),
        gateway: defaults.gateway.clone(),
        trust: Trust::Trusted,
        backend: defaults.backend.clone(),
        antispoof: defaults.antispoof,
    };
    let mut seen = Vec::new();
    for parameter in text.split(',') {
        let parameter = parameter.trim();
        let Some((key, value)) = parameter.split_once('=') else {
            match parameter {
                "" => continue,
                "trusted" => vif.trust = Trust::Trusted,
                "untrusted" => vif.trust = Trust::Untrusted,
                _ => return Err(format!("{}: expected key=value", shown(parameter))),
            }
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        let key = if key == "netdev" { "gatewaydev" } else { key };
        if seen.contains(&key) {
            return Err(format!("{} is given twice", shown(key)));
        }
        seen.push(key);
        match (key, kind) {
            ("type" | "model", DomainKind::Hvm) => emulation(&mut vif, key, value)?,
            _ => read_parameter(&mut vif, key, value)?,
        }
    }
    if vif.backend.is_some() {
        // An emulated card is on a network of domain 0, where the driver domain has none.
        vif.model = None;
    }
    // What another script or domain makes of it is not ours to say.
    if vif.script.is_none() && vif.backend.is_none() && !is_interface_name(&vif.bridge) {
        let bridge = shown(&vif.bridge);
        return Err(format!(
            "bridge={bridge}: expected the name of a network bridge, at most 15 bytes"
        ));
    }
    network::problem(&vif)?;
    // The tap device of an emulated card is called `NAME-emu`.
    if vif.model.is_some()
        && vif.name.as_ref().is_some_and(|name| name.len() + 4 > INTERFACE_NAME_BYTES_MAX)
    {
        return Err("vifname: at most 11 bytes beside an emulated card; or use type=vif".to_owned());
    }
    Ok(vif)
}

/// Checks that `vif` and `others` can be interfaces of one VM.
pub(super) fn check_distinct(vif: &VifConfig, others: &[VifConfig]) -> Result<(), String> {
    for (index, other) in others.iter().enumerate() {
        if other.devid == vif.devid {
            return Err(format!("devid {} is used by vif[{index}] already", vif.devid));
        }
        if let Some(mac) = vif.mac.filter(|&mac| other.mac == Some(mac)) {
            return Err(format!("mac {mac} is used by vif[{index}] already"));
        }
        if let Some(name) = vif.name.as_ref().filter(|_| other.name == vif.name) {
            return Err(format!("vifname {name} is used by vif[{index}] already"));
        }
    }
    Ok(())
}

/// Parses whether an HVM domain's interface has an emulated card, and which.
fn emulation(vif: &mut VifConfig, key: &str, value: &str) -> Result<(), String> {
    match (key, value) {
        ("type", "ioemu") => {}
        ("type", "vif") => vif.model = None,
        ("type", _) => return Err(format!("type={}: expected ioemu or vif", shown(value))),
        // As in xl's manual.
        (_, "virtio-net") if vif.model.is_some() => vif.model = Some("virtio-net-pci".to_owned()),
        _ if !MODELS.contains(&value) => {
            let known = MODELS.join(", ");
            return Err(format!("model={}: expected one of {known}", shown(value)));
        }
        // Without an emulated card it has none.
        _ => vif.model = vif.model.is_some().then(|| value.to_owned()),
    }
    Ok(())
}

fn read_parameter(vif: &mut VifConfig, key: &str, value: &str) -> Result<(), String> {
    let refuse = |reason: &str| Err(format!("{key}={}: {reason}", shown(value)));
    match key {
        "mac" => vif.mac = Some(mac(value)?),
        "bridge" if is_word(value) => vif.bridge = value.to_owned(),
        "bridge" => return refuse("expected the name of a network bridge, at most 15 bytes"),
        "vifname" if value.is_empty() => {}
        "vifname" if is_interface_name(value) => vif.name = Some(value.to_owned()),
        "vifname" => return refuse("expected a name for a network interface, at most 15 bytes"),
        "ip" if value.is_empty() => {}
        "ip" => vif.ip = Some(addresses(value)?),
        "devid" => {
            vif.devid = integer(value)
                .and_then(|devid| u8::try_from(devid).ok())
                .map(u32::from)
                .ok_or_else(|| format!("devid={}: expected 0 to 255", shown(value)))?;
        }
        "mtu" => {
            vif.mtu = integer(value)
                .filter(|mtu| MTU_RANGE.contains(mtu))
                .and_then(|mtu| u32::try_from(mtu).ok())
                .map(Some)
                .ok_or_else(|| format!("mtu={}: expected 68 to 65535", shown(value)))?;
        }
        "rate" => vif.rate = Some(rate(value)?),
        "type" if value == "vif" => {}
        "type" if value == "ioemu" => {
            return refuse("only an HVM domain has emulated cards, from its start; use type=vif");
        }
        "type" => return refuse("expected vif"),
        // The model of an emulated card; ignored for PV interfaces, as in xl.
        "model" => {}
        "script" if is_own_script(value) => vif.script = None,
        "script" if is_word(value) => vif.script = Some(value.to_owned()),
        "script" => {
            return refuse("expected the name of a script in /etc/xen/scripts, or its path");
        }
        "backend" => match backend(value) {
            Ok(domain) => vif.backend = domain,
            Err(problem) => return refuse(problem),
        },
        "gatewaydev" if value.is_empty() => vif.gateway = None,
        "gatewaydev" if is_word(value) => vif.gateway = Some(value.to_owned()),
        "gatewaydev" => return refuse("expected the name of a network interface"),
        "antispoof" => match value {
            "0" => vif.antispoof = false,
            "1" => vif.antispoof = true,
            _ => return refuse("expected 0 or 1"),
        },
        "vlan" => {
            return refuse(
                "Xen's scripts for Linux do nothing with it; a bridge of Open vSwitch has bridge=NAME.VLAN",
            );
        }
        _ => {
            return Err(match nearest(key, PARAMETERS.iter().copied()) {
                Some(name) => format!("{}: unknown parameter; did you mean {name}?", shown(key)),
                None => format!("{}: unknown parameter", shown(key)),
            });
        }
    }
    Ok(())
}

fn mac(value: &str) -> Result<Mac, String> {
    let mac: Mac = value.parse().map_err(|error| format!("mac={}: {error}", shown(value)))?;
    if mac.0[0] & 1 != 0 {
        return Err(format!("mac={mac}: a group address; the first byte must be even"));
    }
    if mac == Mac::default() {
        return Err(format!("mac={mac}: no interface may have this address"));
    }
    Ok(mac)
}

/// Whether this is the script whose work `xylemd` does itself.
pub(super) fn is_own_script(value: &str) -> bool {
    hotplug::path(value) == hotplug::VIF_BRIDGE
}

/// Whether a script can be told this by the store and its environment.
pub(super) fn is_word(value: &str) -> bool {
    /// Of a path of Linux.
    const BYTES_MAX: usize = 4095;
    (1..=BYTES_MAX).contains(&value.len()) && !value.contains(char::is_control)
}

pub(crate) fn is_domain_0(value: &str) -> bool {
    matches!(value, "0" | "Domain-0" | "dom0")
}

/// The name or domid of a driver domain, unless it is domain 0.
pub(super) fn backend(value: &str) -> Result<Option<String>, &'static str> {
    /// Longer than the name of any domain.
    const BYTES_MAX: usize = 255;
    if is_domain_0(value) {
        Ok(None)
    } else if is_word(value) && value.len() <= BYTES_MAX && !value.contains(',') {
        Ok(Some(value.to_owned()))
    } else {
        Err("expected the name or the domid of a domain")
    }
}

/// As Linux's `dev_valid_name`; a name with % would be a template.
pub(super) fn is_interface_name(value: &str) -> bool {
    let fits = (1..=INTERFACE_NAME_BYTES_MAX).contains(&value.len());
    let odd = |c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control();
    fits && !value.contains(odd) && !matches!(value, "." | "..")
}

/// Addresses or networks separated by spaces, as vif-bridge reads them.
fn addresses(value: &str) -> Result<String, String> {
    /// More than any interface has, and well below the limit of a node.
    const BYTES_MAX: usize = 1024;
    if value.len() <= BYTES_MAX && !value.contains(char::is_control) {
        Ok(value.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    } else {
        Err(format!("ip={}: expected IP addresses with spaces between", shown(value)))
    }
}

/// `10Mb/s`, `250KB/s@20ms`: bits or bytes per second, refilled once per interval.
fn rate(value: &str) -> Result<Rate, String> {
    let refuse = |problem: &str| format!("rate={}: {problem}", shown(value));
    let (speed, interval) = match value.split_once('@') {
        Some((speed, interval)) => (speed, Some(interval)),
        None => (value, None),
    };
    let per_second = bytes_per_second(speed)
        .ok_or_else(|| refuse("expected a rate as in 10Mb/s or 250KB/s@20ms"))?;
    let interval_us = match interval {
        None => RATE_INTERVAL_US_DEFAULT,
        Some(interval) => interval_us(interval)
            .ok_or_else(|| refuse("expected an interval as in @20ms, at most 4294 s"))?,
    };
    let bytes = u128::from(per_second) * u128::from(interval_us) / 1_000_000;
    match u64::try_from(bytes) {
        Ok(0) => Err(refuse("less than one byte in each interval")),
        Ok(bytes) => Ok(Rate { bytes, interval_us }),
        Err(_) => Err(refuse("too fast")),
    }
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit))
}

fn bytes_per_second(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let (factor, unit) = match unit.split_at_checked(1)? {
        ("K", unit) => (1_000, unit),
        ("M", unit) => (1_000_000, unit),
        ("G", unit) => (1_000_000_000, unit),
        _ => (1, unit),
    };
    let bytes = number.checked_mul(factor)?;
    match unit {
        "B/s" => Some(bytes),
        "b/s" => Some(bytes / 8),
        _ => None,
    }
}

fn interval_us(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit {
        "us" | "u" => 1,
        "ms" | "m" => 1_000,
        "s" | "" => 1_000_000,
        _ => return None,
    };
    // The backend has a 32-bit field for it.
    number.checked_mul(factor).filter(|us| (1..=u64::from(u32::MAX)).contains(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> String {
        match parse(text, 3, DomainKind::Pv, &VifDefaults::default()) {
            Ok(VifConfig {
                devid,
                mac,
                bridge,
                name,
                ip,
                mtu,
                rate,
                model: _,
                script,
                gateway,
                trust,
                backend,
                antispoof,
            }) => {
                let antispoof = if antispoof { " antispoof" } else { "" };
                let backend = backend.map(|it| format!(" in {it}")).unwrap_or_default();
                let script = script.map(|script| format!(" by {script}")).unwrap_or_default();
                let gateway = gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
                let trust = if trust == Trust::Trusted { "" } else { " untrusted" };
                let name = name.map(|name| format!(" as {name}")).unwrap_or_default();
                let ip = ip.map(|ip| format!(" for {ip}")).unwrap_or_default();
                let mac = mac.map(|mac| format!(" {mac}")).unwrap_or_default();
                let mtu = mtu.map(|mtu| format!(" mtu {mtu}")).unwrap_or_default();
                let rate =
                    rate.map(|r| format!(" {},{}", r.bytes, r.interval_us)).unwrap_or_default();
                format!(
                    "{devid} {bridge}{name}{mac}{ip}{mtu}{rate}{script}{gateway}{trust}{backend}{antispoof}"
                )
            }
            Err(problem) => problem,
        }
    }

    #[test]
    fn an_hvm_domains_interfaces_are_emulated_unless_configured_otherwise() {
        let none = VifDefaults::default();
        let model = |text| parse(text, 0, DomainKind::Hvm, &none).map(|vif| vif.model);
        let some = |model: &str| Ok(Some(model.to_owned()));
        assert_eq!(model(""), some("rtl8139"));
        assert_eq!(model("type=ioemu,model=e1000"), some("e1000"));
        assert_eq!(model("model=virtio-net"), some("virtio-net-pci"));
        assert_eq!(model("type=vif,model=e1000"), Ok(None));
        assert_eq!(model("model=e1000,type=vif"), Ok(None));
        assert!(model("model=e1000,romfile=/etc/shadow").is_err());
        assert_eq!(
            model("model=ne2000"),
            Err("model=\"ne2000\": expected one of rtl8139, e1000, e1000e, ne2k_pci, pcnet, \
                 virtio-net-pci, vmxnet3"
                .to_owned())
        );
    }

    #[test]
    fn interfaces_are_read() {
        for (text, expected) in [
            ("", "3 xenbr0"),
            ("bridge=br1", "3 br1"),
            ("mac=00:16:3E:00:0a:01, bridge=br1 ,mtu=9000", "3 br1 00:16:3e:00:0a:01 mtu 9000"),
            ("devid=7,type=vif,model=e1000,script=vif-bridge,backend=0", "7 xenbr0"),
            ("rate=10Mb/s", "3 xenbr0 62500,50000"),
            ("rate=250KB/s@20ms", "3 xenbr0 5000,20000"),
            ("rate=1GB/s@1s", "3 xenbr0 1000000000,1000000"),
            ("rate=8b/s@1", "3 xenbr0 1,1000000"),
            ("rate=20000B/s@50u", "3 xenbr0 1,50"),
            ("ip=10.0.0.2,mac=00:16:3e:00:0a:01", "3 xenbr0 00:16:3e:00:0a:01 for 10.0.0.2"),
            (
                "ip= 10.0.0.2  10.1.0.0/16 fe80::1/64 ",
                "3 xenbr0 for 10.0.0.2 10.1.0.0/16 fe80::1/64",
            ),
            ("ip=,vifname=", "3 xenbr0"),
            ("vifname=web-lan,bridge=br1", "3 br1 as web-lan"),
            ("script=vif-route,ip=10.0.0.2", "3 xenbr0 for 10.0.0.2 by vif-route"),
            (
                "script=/usr/local/bin/wire,gatewaydev=eth1",
                "3 xenbr0 by /usr/local/bin/wire via eth1",
            ),
            ("netdev=eth1", "3 xenbr0 via eth1"),
            ("bridge=ovsbr0.10:20,script=vif-openvswitch", "3 ovsbr0.10:20 by vif-openvswitch"),
            ("untrusted,bridge=br1", "3 br1 untrusted"),
            ("backend=netvm,bridge=any word", "3 any word in netvm"),
            ("backend=dom0", "3 xenbr0"),
            ("untrusted,trusted", "3 xenbr0"),
        ] {
            assert_eq!(render(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_interfaces_are_refused_with_a_reason() {
        for (text, expected) in [
            ("br1", "\"br1\": expected key=value"),
            ("brigde=br1", "\"brigde\": unknown parameter; did you mean bridge?"),
            ("colour=red", "\"colour\": unknown parameter"),
            ("mac=00:16:3e:00:00:01,mac=00:16:3e:00:00:02", "\"mac\" is given twice"),
            (
                "mac=0:1:2",
                "mac=\"0:1:2\": not an Ethernet address: expected six pairs of hexadecimal digits as in 00:16:3e:01:02:03",
            ),
            (
                "mac=+0:16:3e:00:00:01",
                "mac=\"+0:16:3e:00:00:01\": not an Ethernet address: expected six pairs of hexadecimal digits as in 00:16:3e:01:02:03",
            ),
            (
                "mac=01:16:3e:00:00:01",
                "mac=01:16:3e:00:00:01: a group address; the first byte must be even",
            ),
            ("mac=00:00:00:00:00:00", "mac=00:00:00:00:00:00: no interface may have this address"),
            ("bridge=", "bridge=\"\": expected the name of a network bridge, at most 15 bytes"),
            (
                "bridge=a/b",
                "bridge=\"a/b\": expected the name of a network bridge, at most 15 bytes",
            ),
            (
                "bridge=0123456789abcdef",
                "bridge=\"0123456789abcdef\": expected the name of a network bridge, at most 15 bytes",
            ),
            ("devid=256", "devid=\"256\": expected 0 to 255"),
            ("mtu=67", "mtu=\"67\": expected 68 to 65535"),
            ("mtu=65536", "mtu=\"65536\": expected 68 to 65535"),
            ("rate=10", "rate=\"10\": expected a rate as in 10Mb/s or 250KB/s@20ms"),
            ("rate=10Mb/s@", "rate=\"10Mb/s@\": expected an interval as in @20ms, at most 4294 s"),
            (
                "rate=10Mb/s@4295",
                "rate=\"10Mb/s@4295\": expected an interval as in @20ms, at most 4294 s",
            ),
            (
                "rate=10Mb/s@0s",
                "rate=\"10Mb/s@0s\": expected an interval as in @20ms, at most 4294 s",
            ),
            ("rate=0Mb/s", "rate=\"0Mb/s\": less than one byte in each interval"),
            ("rate=18446744073GB/s@4294s", "rate=\"18446744073GB/s@4294s\": too fast"),
            (
                "type=ioemu",
                "type=\"ioemu\": only an HVM domain has emulated cards, from its start; use type=vif",
            ),
            (
                "script=",
                "script=\"\": expected the name of a script in /etc/xen/scripts, or its path",
            ),
            (
                "bridge=ovsbr0.10:20",
                "bridge=\"ovsbr0.10:20\": expected the name of a network bridge, at most 15 bytes",
            ),
            ("gatewaydev=eth0,netdev=eth1", "\"gatewaydev\" is given twice"),
            ("ip=10.0\t.2", "ip=\"10.0\\t.2\": expected IP addresses with spaces between"),
            (
                "vifname=vif%d",
                "vifname=\"vif%d\": expected a name for a network interface, at most 15 bytes",
            ),
            ("backend=", "backend=\"\": expected the name or the domid of a domain"),
        ] {
            assert_eq!(render(text), expected, "{text}");
        }
    }
}
