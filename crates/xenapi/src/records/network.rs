//! Networks: the bridges that interfaces are on.

use std::collections::BTreeMap;

use xen::Uuid;

use crate::model::Class;
use crate::objects::Records;
use crate::records::device::device_uuid;
use crate::records::{Draft, View, bridges_of};
use crate::spec::Spec;
use crate::value::Value;

impl View<'_> {
    pub(crate) fn network_records(&self) -> Records {
        let mut vifs: BTreeMap<String, Vec<Uuid>> =
            bridges_of(self).into_iter().map(|bridge| (bridge, Vec::new())).collect();
        for (vm, it) in self.all_devices().filter(|(_, it)| it.kind == "vif") {
            let bridge = Spec(&it.config).get("bridge");
            if let Some(of_bridge) = bridge.and_then(|bridge| vifs.get_mut(bridge)) {
                of_bridge.push(device_uuid(vm, "vif", it.devid));
            }
        }
        let mut records = Records::new();
        for (bridge, vifs) in vifs {
            let mut draft = Draft::of(Class::Network, self.network(&bridge));
            draft.set("name_label", bridge.as_str());
            draft.set("bridge", bridge.as_str());
            draft.set("MTU", Value::Int(1500));
            draft.set("managed", false);
            draft.point_all("VIFs", vifs);
            draft.finish(self.labels, &mut records);
        }
        records
    }

    /// The bridge of a network.
    pub(crate) fn bridge(&self, network: Uuid) -> Option<String> {
        bridges_of(self).into_iter().find(|bridge| self.network(bridge) == network)
    }
}
