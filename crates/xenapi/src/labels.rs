//! What clients keep with objects: fields that are for people or for clients alone, and devices that are not plugged.
//!
//! They are in memory here; the shell keeps them in a file between two runs.

use std::collections::BTreeMap;

use api::DeviceObject;
use serde_json::{Map, Value as Json};
use xen::Uuid;

use crate::failure::Failure;
use crate::jsonrpc;
use crate::model::{Class, Kind};
use crate::objects::Key;
use crate::spec::Spec;
use crate::value::{Record, Value};

/// Bytes of the labels of one object, at most.
const OBJECT_BYTES_MAX: usize = 64 << 10;

/// Bytes of all labels, at most.
const BYTES_MAX: usize = 32 << 20;

/// Devices that are not plugged, at most.
const DEVICES_MAX: usize = 10_000;

/// A device of a VM, by kind and number.
pub(crate) type DeviceKey = (Uuid, String, u32);

#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    of: BTreeMap<Key, BTreeMap<&'static str, Value>>,
    bytes: usize,
    /// Devices that clients have made and not plugged, or have unplugged and may plug again.
    devices: BTreeMap<DeviceKey, DeviceObject>,
    /// Raised by each change.
    pub revision: u64,
}

impl Labels {
    pub(crate) fn get(&self, key: Key, field: &str) -> Option<&Value> {
        self.of.get(&key)?.get(field)
    }

    /// Puts an object's labels into its record.
    pub(crate) fn label(&self, key: Key, record: &mut Record) {
        for (field, value) in self.of.get(&key).into_iter().flatten() {
            record.insert(field, value.clone());
        }
    }

    pub(crate) fn set(
        &mut self,
        key: Key,
        field: &'static str,
        value: Value,
    ) -> Result<(), Failure> {
        let labels = self.of.entry(key).or_default();
        let before: usize = labels.values().map(Value::size).sum();
        let replaced = labels.get(field).map_or(0, Value::size);
        let after = before - replaced + value.size();
        if after > OBJECT_BYTES_MAX || self.bytes - before + after > BYTES_MAX {
            return Err(Failure::internal("there is no room for more labels"));
        }
        self.bytes = self.bytes - before + after;
        labels.insert(field, value);
        self.revision += 1;
        Ok(())
    }

    /// The object is there no more.
    pub(crate) fn forget(&mut self, key: Key) {
        if let Some(labels) = self.of.remove(&key) {
            self.bytes -= labels.values().map(Value::size).sum::<usize>();
            self.revision += 1;
        }
    }

    /// Nothing of the VM is there any more.
    pub(crate) fn forget_devices(&mut self, vm: Uuid) {
        let before = self.devices.len();
        self.devices.retain(|(of, _, _), _| *of != vm);
        self.revision += u64::from(self.devices.len() != before);
    }

    /// Nobody can plug this disk any more. Returns the VMs that could.
    pub(crate) fn forget_disk(&mut self, vdi: &str) -> Vec<Uuid> {
        let has_it = |it: &DeviceObject| Spec(&it.config).get("target") == Some(vdi);
        let keys = self.devices.iter().filter(|(_, it)| has_it(it)).map(|(key, _)| key.clone());
        let keys: Vec<_> = keys.collect();
        keys.iter().for_each(|key| self.remove_device(key));
        keys.into_iter().map(|(vm, _, _)| vm).collect()
    }

    pub(crate) fn devices_of(&self, vm: Uuid) -> impl Iterator<Item = &DeviceObject> {
        let first = (vm, String::new(), 0);
        let of_vm = self.devices.range(first..).take_while(move |((it, _, _), _)| *it == vm);
        of_vm.map(|(_, device)| device)
    }

    pub(crate) fn device(&self, key: &DeviceKey) -> Option<&DeviceObject> {
        self.devices.get(key)
    }

    pub(crate) fn put_device(&mut self, key: DeviceKey, it: DeviceObject) -> Result<(), Failure> {
        if self.devices.len() >= DEVICES_MAX {
            return Err(Failure::internal(
                "there is no room for more devices that are not plugged",
            ));
        }
        self.revision += 1;
        self.devices.insert(key, it);
        Ok(())
    }

    pub(crate) fn remove_device(&mut self, key: &DeviceKey) {
        self.revision += u64::from(self.devices.remove(key).is_some());
    }

    /// All of them, to be kept.
    pub(crate) fn export(&self) -> Json {
        let mut classes: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
        for ((class, uuid), labels) in &self.of {
            let fields =
                labels.iter().map(|(field, it)| ((*field).to_owned(), jsonrpc::to_json(it)));
            let object = Json::Object(fields.collect());
            classes.entry(class.name()).or_default().insert(uuid.to_string(), object);
        }
        let devices: Vec<_> = self.devices.values().collect();
        serde_json::json!({ "labels": classes, "devices": devices })
    }

    /// What was kept. What is not understood is left out.
    pub(crate) fn import(kept: &Json) -> Self {
        let mut labels = Self::default();
        let classes = kept.get("labels").and_then(Json::as_object);
        for (class, objects) in classes.into_iter().flatten() {
            let Some(class) = Class::named(class) else { continue };
            for (uuid, fields) in objects.as_object().into_iter().flatten() {
                let Ok(uuid) = uuid.parse() else { continue };
                for (field, value) in fields.as_object().into_iter().flatten() {
                    let label = class.def().label(field);
                    let value = jsonrpc::from_json(value.clone()).ok();
                    if let (Some((field, kind)), Some(value)) = (label, value)
                        && let Ok(value) = checked(field, kind, &value)
                    {
                        let _is_full = labels.set((class, uuid), field, value);
                    }
                }
            }
        }
        let devices = kept.get("devices").and_then(Json::as_array);
        for device in devices.into_iter().flatten() {
            if let Ok(device) = serde_json::from_value::<DeviceObject>(device.clone())
                && let Ok(vm) = device.vm.parse()
            {
                let key = (vm, device.kind.clone(), device.devid);
                let _is_full = labels.put_device(key, device);
            }
        }
        labels.revision = 0;
        labels
    }
}

/// A value that a field of this type may have. Sets and maps are of texts: those are all that clients may set.
pub(crate) fn checked(field: &str, kind: Kind, value: &Value) -> Result<Value, Failure> {
    let wrong = || Failure::wrong_type(field);
    let text = |it: &Value| it.as_str().map(Value::from).ok_or_else(wrong);
    match kind {
        Kind::Str | Kind::Ref | Kind::Enum(_) => text(value),
        Kind::Int => value.as_int().map(Value::Int).ok_or_else(wrong),
        Kind::Float => value.as_float().map(Value::Float).ok_or_else(wrong),
        Kind::Bool => value.as_bool().map(Value::Bool).ok_or_else(wrong),
        Kind::Date => value.as_date().map(Value::Date).ok_or_else(wrong),
        Kind::Set => {
            let items = value.as_array().ok_or_else(wrong)?;
            let mut unique = Vec::new();
            for item in items {
                let item = text(item)?;
                if !unique.contains(&item) {
                    unique.push(item);
                }
            }
            Ok(Value::Array(unique))
        }
        Kind::Map => {
            let map = value.as_map().ok_or_else(wrong)?;
            let items = map.iter().map(|(key, it)| Ok((key.clone(), text(it)?)));
            items.collect::<Result<_, Failure>>().map(Value::Map)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_back_from_where_they_were_kept() {
        let vm = Uuid([1; 16]);
        let mut labels = Labels::default();
        let key = (Class::Vm, vm);
        labels.set(key, "tags", ["a", "b"].into_iter().collect()).expect("there is room");
        labels.set(key, "other_config", Value::texts([("k", "v")])).expect("there is room");
        let device = DeviceObject {
            vm: vm.to_string(),
            kind: "vif".to_owned(),
            devid: 2,
            ..DeviceObject::default()
        };
        labels.put_device((vm, "vif".to_owned(), 2), device).expect("there is room");
        let kept = labels.export();
        let read = Labels::import(&kept);
        assert_eq!(read.export(), kept);
        assert_eq!(read.bytes, labels.bytes);
        assert_eq!(read.devices_of(vm).count(), 1);
        labels.forget(key);
        assert_eq!(labels.bytes, 0);
        for odd in ["null", "[]", r#"{"labels":{"VM":{"x":{}},"no":{}},"devices":[1]}"#] {
            let odd = serde_json::from_str(odd).expect("it is JSON");
            assert_eq!(Labels::import(&odd).of.len(), 0);
        }
    }

    #[test]
    fn labels_have_a_limit() {
        let key = (Class::Vm, Uuid([1; 16]));
        let mut labels = Labels::default();
        let long = Value::from("x".repeat(OBJECT_BYTES_MAX));
        assert!(labels.set(key, "name_description", long).is_err());
        let short = Value::from("x".repeat(OBJECT_BYTES_MAX / 2));
        for _ in 0..10 {
            assert!(labels.set(key, "name_description", short.clone()).is_ok());
        }
    }
}
