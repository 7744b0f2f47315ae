//! Devices of the host, to JSON and from it.

use serde_json::{Map, Value};

use super::read::{Node, Result};
use super::write::set;
use crate::config::{Passthrough, PciDevice, PciName, PciPlace, RdmPolicy, VmConfig};

pub(super) fn put(config: &VmConfig, whole: &mut Value) {
    let devices = &config.options.pci;
    if devices.is_empty() {
        return;
    }
    whole["pcidevs"] = devices.iter().map(device).collect();
    // As libxl decides if nobody has.
    if config.options.machine.passthrough == Passthrough::Default {
        whole["c_info"]["passthrough"] = Passthrough::Synchronised.as_str().into();
    }
}

/// Without what is 0 or false, as libxl writes it.
fn device(device: &PciDevice) -> Value {
    let mut fields = Map::new();
    let mut function_mask = 1;
    match &device.name {
        PciName::Named(name) => set(&mut fields, [("name", Some(name.as_str()))]),
        PciName::Address(place) => {
            let number = |number: u16| Some(number).filter(|it| *it != 0);
            let numbers = [
                ("func", number(place.function.unwrap_or_default().into())),
                ("dev", number(place.device.into())),
                ("bus", number(place.bus.into())),
                ("domain", number(place.segment)),
            ];
            set(&mut fields, numbers);
            if place.function.is_none() {
                function_mask = u32::MAX;
            }
        }
    }
    let slot = device.slot.filter(|slot| *slot != 0);
    set(&mut fields, [("vdevfn", slot.map(|slot| slot << 3))]);
    set(&mut fields, [("vfunc_mask", Some(function_mask))]);
    let flag = |flag: bool| flag.then_some(true);
    let flags = [
        ("msitranslate", flag(device.msitranslate)),
        ("power_mgmt", flag(device.power_mgmt)),
        ("permissive", flag(device.permissive)),
        ("seize", flag(device.seize)),
    ];
    set(&mut fields, flags);
    set(&mut fields, [("rdm_policy", Some(device.rdm_policy.as_str()))]);
    fields.into()
}

/// Those of a whole configuration.
pub(super) fn read(root: &Node<'_>) -> Result<Vec<PciDevice>> {
    root.objects("pcidevs")?.iter().map(read_device).collect()
}

fn read_device(node: &Node<'_>) -> Result<PciDevice> {
    let flag = |key: &str| Ok(node.flag(key)? == Some(true));
    // Where a named one is libxl says too, and it may be elsewhere by now.
    let name = match node.owned("name")? {
        Some(name) => PciName::Named(name),
        None => {
            let is_whole = node.number("vfunc_mask")? == Some(u32::MAX.into());
            let function = node.narrow::<u8>("func")?.unwrap_or_default();
            let device = node.narrow::<u8>("dev")?.unwrap_or_default();
            node.refuse_if("func", function > 7, "expected 0 to 7")?;
            node.refuse_if("dev", device > 31, "expected 0 to 31")?;
            PciName::Address(PciPlace {
                segment: node.narrow("domain")?.unwrap_or_default(),
                bus: node.narrow("bus")?.unwrap_or_default(),
                device,
                function: (!is_whole).then_some(function),
            })
        }
    };
    let slot = node.narrow::<u8>("vdevfn")?.map(|place| place >> 3).filter(|slot| *slot != 0);
    Ok(PciDevice {
        name,
        slot,
        permissive: flag("permissive")?,
        msitranslate: flag("msitranslate")?,
        seize: flag("seize")?,
        power_mgmt: flag("power_mgmt")?,
        rdm_policy: node
            .choice("rdm_policy", &RdmPolicy::ALL, RdmPolicy::as_str)?
            .unwrap_or(RdmPolicy::Strict),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::xlcfg;

    #[test]
    fn a_device_has_the_fields_that_libxl_keeps_of_it() {
        let text = "name='g'\nkernel='/k'\nmemory=64\ntype='pv'\n\
                    pci=['0001:02:1f.*@5,permissive=1','00:10.0','name=card,seize=1']\n";
        let config = xlcfg::parse(xlcfg::Source { file: "g.cfg", text, overrides: &[] }).unwrap();
        let fields = crate::libxl_json::fields(&config);
        assert_eq!(
            fields["pcidevs"],
            json!([
                { "dev": 31, "bus": 2, "domain": 1, "vdevfn": 40, "vfunc_mask": u32::MAX, "permissive": true, "rdm_policy": "strict" },
                { "dev": 16, "vfunc_mask": 1, "rdm_policy": "strict" },
                { "name": "card", "vfunc_mask": 1, "seize": true, "rdm_policy": "strict" },
            ])
        );
        assert_eq!(fields["c_info"]["passthrough"], "sync_pt");
        let text = serde_json::Value::Object(fields.clone()).to_string();
        let read = crate::libxl_json::from_json("g", &text).unwrap().config;
        assert_eq!(read.options.pci, config.options.pci);
        assert_eq!(fields["b_info"]["type.pv"]["e820_host"], "True");
    }
}
