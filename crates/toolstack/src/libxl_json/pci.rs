//! Devices of the host, to JSON.

use serde_json::{Map, Value};

use crate::config::{Passthrough, PciDevice, PciName, VmConfig};

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
        PciName::Named(name) => {
            fields.insert("name".to_owned(), name.as_str().into());
        }
        PciName::Address(place) => {
            for (key, number) in [
                ("func", place.function.unwrap_or_default().into()),
                ("dev", place.device.into()),
                ("bus", place.bus.into()),
                ("domain", place.segment),
            ] {
                if number != 0 {
                    fields.insert(key.to_owned(), number.into());
                }
            }
            if place.function.is_none() {
                function_mask = u32::MAX;
            }
        }
    }
    if let Some(slot) = device.slot.filter(|slot| *slot != 0) {
        fields.insert("vdevfn".to_owned(), (slot << 3).into());
    }
    fields.insert("vfunc_mask".to_owned(), function_mask.into());
    for (key, flag) in [
        ("msitranslate", device.msitranslate),
        ("power_mgmt", device.power_mgmt),
        ("permissive", device.permissive),
        ("seize", device.seize),
    ] {
        if flag {
            fields.insert(key.to_owned(), true.into());
        }
    }
    fields.insert("rdm_policy".to_owned(), device.rdm_policy.as_str().into());
    fields.into()
}
