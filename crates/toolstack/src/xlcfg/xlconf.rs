//! `xl.conf`: what holds for every VM of a host that does not say otherwise. It has the syntax of `xl.cfg`.
//!
//! As with xl, a value that means nothing is a warning, and only numbers of frames and what cannot be read at all are
//! faults.
//! Source: xen `docs/man/xl.conf.5.pod.in`, and `parse_global_config` in `tools/xl/xl.c`.

use std::fmt;

use super::keys::nearest;
use super::syntax::{self, Value};
use super::vif;
use super::vm::Reader;
use super::{ConfigError, shown};
use crate::balloon::Autoballoon;

/// What a configuration without these keys gets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostDefaults {
    pub(super) vif: VifDefaults,
    pub(super) grant_frames_max: Option<u16>,
    pub(super) maptrack_frames_max: Option<u32>,
    pub(super) grant_version_max: Option<u8>,
    /// Whether domain 0 gives memory to VMs that find too little.
    pub autoballoon: Autoballoon,
}

/// For interfaces that do not name their own.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct VifDefaults {
    pub(super) bridge: Option<String>,
    pub(super) script: Option<String>,
    pub(super) gateway: Option<String>,
    pub(super) backend: Option<String>,
    pub(super) antispoof: bool,
}

impl HostDefaults {
    /// The bridge of Linux that an interface is on which says nothing, if that is one.
    #[must_use]
    pub fn bridge(&self) -> Option<&str> {
        let is_elsewhere = self.vif.script.is_some() || self.vif.backend.is_some();
        (!is_elsewhere).then(|| self.vif.bridge.as_deref().unwrap_or(vif::BRIDGE_DEFAULT))
    }
}

/// The keys that were taken, in one line; empty if there are none.
impl fmt::Display for HostDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vif, grant_frames_max, maptrack_frames_max, grant_version_max, autoballoon } =
            self;
        let balloon = match autoballoon {
            Autoballoon::Auto => None,
            Autoballoon::On => Some("on"),
            Autoballoon::Off => Some("off"),
        };
        let taken = [
            ("autoballoon", balloon.map(str::to_owned)),
            ("vif.default.bridge", vif.bridge.clone()),
            ("vif.default.script", vif.script.clone()),
            ("vif.default.gatewaydev", vif.gateway.clone()),
            ("vif.default.backend", vif.backend.clone()),
            ("vif.default.antispoof", vif.antispoof.then(|| "1".to_owned())),
            ("max_grant_frames", grant_frames_max.map(|it| it.to_string())),
            ("max_maptrack_frames", maptrack_frames_max.map(|it| it.to_string())),
            ("max_grant_version", grant_version_max.map(|it| it.to_string())),
        ];
        let taken = taken.into_iter().filter_map(|(key, value)| Some((key, value?)));
        for ((key, value), index) in taken.zip(0..) {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// What `xl.conf` says, and everything that is wrong with it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostReading {
    pub defaults: HostDefaults,
    /// With these, xl does nothing at all.
    pub faults: Vec<ConfigError>,
    /// A line each, in the order of the lines.
    pub warnings: Vec<String>,
}

/// What becomes of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Treatment {
    Read,
    /// It is about how xl works and not about VMs.
    OfXlOnly,
    /// xl would make another VM, or treat the host otherwise, unless the value is one of `harmless`.
    NotDone {
        harmless: &'static [&'static str],
        reason: &'static str,
    },
}

use Treatment::{NotDone, OfXlOnly, Read};

const NO_MASKS: &str = "ignored: VMs may run on all CPUs of their pool";

/// Sorted for binary search.
const KEYS: &[(&str, Treatment)] = &[
    ("autoballoon", Read),
    ("blkdev_start", OfXlOnly),
    ("bootloader_restrict", OfXlOnly),
    ("claim_mode", OfXlOnly),
    ("colo.default.proxyscript", OfXlOnly),
    ("defaultbridge", Read),
    (
        "domid_policy",
        NotDone {
            harmless: &["xen"],
            reason: "ignored: Xen chooses domain IDs, one after the other",
        },
    ),
    ("lockfile", OfXlOnly),
    ("max_grant_frames", Read),
    ("max_grant_version", Read),
    ("max_maptrack_frames", Read),
    ("output_format", NotDone { harmless: &["json"], reason: "ignored: xy prints JSON" }),
    ("remus.default.netbufscript", OfXlOnly),
    ("run_hotplug_scripts", OfXlOnly),
    // Xylem's own: xl does not look at it.
    ("vif.default.antispoof", Read),
    ("vif.default.backend", Read),
    ("vif.default.bridge", Read),
    ("vif.default.gatewaydev", Read),
    ("vif.default.script", Read),
    ("vifscript", Read),
    ("vm.cpumask", NotDone { harmless: &["all"], reason: NO_MASKS }),
    ("vm.hvm.cpumask", NotDone { harmless: &["all"], reason: NO_MASKS }),
    ("vm.pv.cpumask", NotDone { harmless: &["all"], reason: NO_MASKS }),
];

/// Reads the text of `xl.conf`; `file` is its name, for messages.
#[must_use]
pub fn read_host(file: &str, text: &str) -> HostReading {
    let (settings, errors) = syntax::parse(text, &[]);
    if !errors.is_empty() {
        return HostReading {
            faults: errors.into_iter().map(|error| error.in_file(file)).collect(),
            ..HostReading::default()
        };
    }
    let none = HostDefaults::default();
    let reader = Reader { file, settings: &settings, defaults: &none };
    let mut warnings = reader.warnings_of_host();
    let mut faults = Vec::new();
    let mut number = |key, most| {
        let number = reader.number(key, 1..=most).unwrap_or_else(|fault| {
            faults.push(fault);
            None
        });
        number.and_then(|number| u32::try_from(number).ok())
    };
    let narrow = |number| u16::try_from(number).ok();
    let defaults = HostDefaults {
        grant_frames_max: number("max_grant_frames", u16::MAX.into()).and_then(narrow),
        maptrack_frames_max: number("max_maptrack_frames", i32::MAX.into()),
        grant_version_max: number("max_grant_version", 2).and_then(|it| u8::try_from(it).ok()),
        vif: reader.vif_defaults(&mut faults, &mut warnings),
        autoballoon: reader.autoballoon(&mut warnings),
    };
    warnings.sort_by_key(|warning| warning.place);
    faults.sort_by_key(|fault| fault.place);
    let warnings = warnings.into_iter().map(ConfigError::into_warning).collect();
    HostReading { defaults, faults, warnings }
}

impl Reader<'_> {
    fn warnings_of_host(&self) -> Vec<ConfigError> {
        let mut warnings = Vec::new();
        for (key, setting) in self.settings {
            let known = KEYS.binary_search_by_key(&key.as_str(), |&(name, _)| name);
            match known.map(|index| KEYS[index].1) {
                Ok(Read | OfXlOnly) => {}
                Ok(NotDone { harmless, reason }) => {
                    warnings.extend(self.unless_harmless(key, setting, harmless, reason));
                }
                Err(_) => {
                    let problem = match nearest(key, KEYS.iter().map(|&(name, _)| name)) {
                        Some(name) => format!("unknown key, ignored; did you mean {name}?"),
                        None => "unknown key, ignored".to_owned(),
                    };
                    warnings.push(self.error(key, setting.place, problem));
                }
            }
        }
        warnings
    }

    fn autoballoon(&self, warnings: &mut Vec<ConfigError>) -> Autoballoon {
        const KEY: &str = "autoballoon";
        let Some(setting) = self.settings.get(KEY) else { return Autoballoon::default() };
        match &setting.value {
            Value::Atom(text) if ["on", "1"].contains(&text.as_str()) => Autoballoon::On,
            Value::Atom(text) if ["off", "0"].contains(&text.as_str()) => Autoballoon::Off,
            Value::Atom(text) if text == "auto" => Autoballoon::Auto,
            _ => {
                let problem = "ignored: expected \"on\", \"off\" or \"auto\"";
                warnings.push(self.error(KEY, setting.place, problem));
                Autoballoon::default()
            }
        }
    }

    fn vif_defaults(
        &self,
        faults: &mut Vec<ConfigError>,
        warnings: &mut Vec<ConfigError>,
    ) -> VifDefaults {
        let mut text = |key: &'static str, old: &'static str| {
            let mut value = None;
            for name in [old, key] {
                let Some(setting) = self.settings.get(name) else { continue };
                match &setting.value {
                    Value::Atom(text) => value = Some((text.clone(), name, setting.place)),
                    Value::List(_) => warnings.push(self.error(
                        name,
                        setting.place,
                        "ignored: expected one value instead of a list",
                    )),
                }
                if name == old {
                    let problem = format!("deprecated; switch to {key}");
                    warnings.push(self.error(name, setting.place, problem));
                }
            }
            value.filter(|(text, ..)| !text.is_empty())
        };
        let bridge = text("vif.default.bridge", "defaultbridge");
        let script = text("vif.default.script", "vifscript").map(|(script, ..)| script);
        let script = script.filter(|script| !vif::is_own_script(script));
        let gateway = text("vif.default.gatewaydev", "").map(|(gateway, ..)| gateway);
        let backend = text("vif.default.backend", "").map(|(backend, ..)| backend);
        let antispoof = text("vif.default.antispoof", "");
        let antispoof = antispoof.is_some_and(|(value, key, place)| {
            if !["0", "1"].contains(&value.as_str()) {
                // Whoever asks for protection must not go without for a slip.
                faults.push(self.error(key, place, format!("{}: expected 0 or 1", shown(&value))));
            }
            value == "1"
        });
        let bridge = bridge.and_then(|(bridge, key, place)| {
            if vif::is_interface_name(&bridge) || script.is_some() {
                return Some(bridge);
            }
            let expected = "expected the name of a network bridge, at most 15 bytes";
            faults.push(self.error(key, place, format!("{}: {expected}", shown(&bridge))));
            None
        });
        VifDefaults {
            bridge,
            script,
            gateway,
            backend: backend.filter(|backend| !vif::is_domain_0(backend)),
            antispoof,
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::xlcfg::{Source, Strictness, parse_vif_on, read_on};

    fn check(text: &str, expected: &Expect) {
        let HostReading { defaults, faults, warnings } = read_host("/etc/xen/xl.conf", text);
        let mut lines = vec![format!("[{defaults}]")];
        lines.extend(faults.iter().map(|fault| format!("FAULT {fault}")));
        lines.extend(warnings);
        expected.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn keys_are_in_order() {
        for pair in KEYS.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} {}", pair[0].0, pair[1].0);
        }
    }

    #[test]
    fn the_file_that_xen_installs_says_nothing() {
        let text =
            "# Global XL config file #\n#autoballoon=\"auto\"\n\n#lockfile=\"/var/lock/xl\"\n";
        check(text, &expect!["[]"]);
    }

    #[test]
    fn keys_of_vms_are_taken_and_keys_of_xl_accepted() {
        check(
            "vif.default.bridge=\"br0\"\nvif.default.script='/etc/xen/scripts/vif-bridge'\n\
             vif.default.backend='Domain-0'\nvif.default.gatewaydev='eth0'\noutput_format='json'\n\
             run_hotplug_scripts=1\nlockfile='/run/xl'\nautoballoon='off'\nclaim_mode=1\n\
             max_grant_frames=0x40\nmax_maptrack_frames=1024\nmax_grant_version=1\n\
             blkdev_start='xvda'\nvm.cpumask='all'\nbootloader_restrict=1\ndomid_policy='xen'\n",
            &expect![
                "[autoballoon=off, vif.default.bridge=br0, vif.default.gatewaydev=eth0, max_grant_frames=64, max_maptrack_frames=1024, max_grant_version=1]"
            ],
        );
    }

    #[test]
    fn what_is_not_done_here_is_said() {
        check(
            "autoballoon='on'\noutput_format='sxp'\nvm.cpumask='1-3'\nvm.pv.cpumask='2'\n\
             domid_policy='random'\nvifscript='vif-route'\ndefaultbridge='br1'\nvif.defualt.bridge='x'\n\
             colour='red'\n",
            &expect![[r#"
                [autoballoon=on, vif.default.bridge=br1, vif.default.script=vif-route]
                /etc/xen/xl.conf:2: warning: output_format: ignored: xy prints JSON
                /etc/xen/xl.conf:3: warning: vm.cpumask: ignored: VMs may run on all CPUs of their pool
                /etc/xen/xl.conf:4: warning: vm.pv.cpumask: ignored: VMs may run on all CPUs of their pool
                /etc/xen/xl.conf:5: warning: domid_policy: ignored: Xen chooses domain IDs, one after the other
                /etc/xen/xl.conf:6: warning: vifscript: deprecated; switch to vif.default.script
                /etc/xen/xl.conf:7: warning: defaultbridge: deprecated; switch to vif.default.bridge
                /etc/xen/xl.conf:8: warning: vif.defualt.bridge: unknown key, ignored; did you mean vif.default.bridge?
                /etc/xen/xl.conf:9: warning: colour: unknown key, ignored"#]],
        );
    }

    #[test]
    fn faults_name_their_line() {
        check(
            "max_grant_frames=lots\n",
            &expect![[r#"
                []
                FAULT /etc/xen/xl.conf:1: max_grant_frames: "lots" needs quotes around it"#]],
        );
        check(
            "vif.default.bridge='a bridge'\nmax_grant_frames=-1\nmax_maptrack_frames='many'\n\
             autoballoon='yes'\n",
            &expect![[r#"
                []
                FAULT /etc/xen/xl.conf:1: vif.default.bridge: "a bridge": expected the name of a network bridge, at most 15 bytes
                FAULT /etc/xen/xl.conf:2: max_grant_frames: -1 is out of range; expected 1 to 65535
                FAULT /etc/xen/xl.conf:3: max_maptrack_frames: "many" is not a whole number
                /etc/xen/xl.conf:4: warning: autoballoon: ignored: expected "on", "off" or "auto""#]],
        );
    }

    #[test]
    fn a_vm_gets_what_it_does_not_say() {
        let host = "vif.default.bridge='br7'\nmax_grant_frames=40\nmax_maptrack_frames=50\n\
                    max_grant_version=1";
        let defaults = read_host("xl.conf", host).defaults;
        let vm = |more: &str| {
            let text = format!("name='a'\nkernel='/k'\nmemory=8\n{more}");
            let source = Source { file: "a.cfg", text: &text, overrides: &[] };
            read_on(&defaults, source, Strictness::Tolerant).config.unwrap()
        };
        let one = vm("vif=['', 'bridge=br8']");
        let bridges: Vec<_> = one.vifs.iter().map(|vif| vif.bridge.as_str()).collect();
        assert_eq!(bridges, ["br7", "br8"]);
        assert_eq!(one.grant_frames_max, Some(40));
        assert_eq!(one.options.maptrack_frames_max, Some(50));
        assert_eq!(one.options.grant_version_max, Some(1));
        let two = vm("max_grant_frames=3\nmax_maptrack_frames=4\nmax_grant_version=2");
        assert_eq!(two.grant_frames_max, Some(3));
        assert_eq!(two.options.maptrack_frames_max, Some(4));
        assert_eq!(two.options.grant_version_max, Some(2));
    }

    #[test]
    fn an_interface_has_the_hosts_script_unless_it_names_its_own() {
        let host = "vif.default.script='vif-openvswitch'\nvif.default.bridge='ovsbr0.10:20'\n\
                    vif.default.gatewaydev='eth1'";
        let defaults = read_host("xl.conf", host).defaults;
        let vif = |text| parse_vif_on(&defaults, text, 0);
        let of_host = vif("").unwrap();
        assert_eq!(of_host.script.as_deref(), Some("vif-openvswitch"));
        assert_eq!(of_host.bridge, "ovsbr0.10:20");
        assert_eq!(of_host.gateway.as_deref(), Some("eth1"));
        assert_eq!(vif("script=vif-bridge,bridge=br0").unwrap().script, None);
        assert_eq!(
            vif("script=vif-bridge").unwrap_err(),
            "bridge=\"ovsbr0.10:20\": expected the name of a network bridge, at most 15 bytes"
        );
        assert_eq!(vif("script=mine").unwrap().script.as_deref(), Some("mine"));
    }

    #[test]
    fn an_interface_is_served_by_the_hosts_driver_domain_unless_it_names_another() {
        let defaults = read_host("xl.conf", "vif.default.backend='netvm'").defaults;
        let backend = |text| parse_vif_on(&defaults, text, 0).unwrap().backend;
        assert_eq!(backend("").as_deref(), Some("netvm"));
        assert_eq!(backend("backend=other").as_deref(), Some("other"));
        assert_eq!(backend("backend=0"), None);
    }
}
