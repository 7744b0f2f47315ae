//! The classes of XenAPI that the façade has, with all fields of each.
//!
//! A record always has every field of its class: clients that were generated from the interface read all of them. What
//! Xylem does not know has a default by its type.
//! Source: xen-api `doc/data/xenapi.json`, for the names and types alone.

mod host;
mod others;
mod resources;
mod vm;

use std::sync::LazyLock;

use crate::value::{Record, Value};

/// The type of a field, as far as defaults and checks need it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Str,
    Int,
    Float,
    Bool,
    Date,
    Ref,
    Set,
    Map,
    /// With its default.
    Enum(&'static str),
}

/// A class.
#[derive(Debug)]
pub struct Def {
    pub name: &'static str,
    /// Names with spaces between them, by type.
    fields: &'static [(Kind, &'static str)],
    /// Those that clients may set, since they are for people or for clients alone.
    labels: &'static str,
}

macro_rules! classes {
    ($($class:ident = $file:ident::$def:ident,)*) => {
        /// A class by its name.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub enum Class { $($class),* }

        impl Class {
            pub const ALL: &'static [Self] = &[$(Self::$class),*];

            #[must_use]
            pub fn def(self) -> &'static Def {
                match self { $(Self::$class => &$file::$def),* }
            }
        }
    };
}

classes! {
    Vm = vm::VM,
    VmMetrics = vm::VM_METRICS,
    VmGuestMetrics = vm::VM_GUEST_METRICS,
    Vbd = vm::VBD,
    VbdMetrics = vm::VBD_METRICS,
    Vif = vm::VIF,
    VifMetrics = vm::VIF_METRICS,
    Console = vm::CONSOLE,
    Vtpm = vm::VTPM,
    Vgpu = vm::VGPU,
    VgpuType = vm::VGPU_TYPE,
    Crashdump = vm::CRASHDUMP,
    Pool = host::POOL,
    Host = host::HOST,
    HostMetrics = host::HOST_METRICS,
    HostCpu = host::HOST_CPU,
    HostCrashdump = host::HOST_CRASHDUMP,
    HostPatch = host::HOST_PATCH,
    PoolPatch = host::POOL_PATCH,
    PoolUpdate = host::POOL_UPDATE,
    Certificate = host::CERTIFICATE,
    Pci = host::PCI,
    Pgpu = host::PGPU,
    GpuGroup = host::GPU_GROUP,
    Sr = resources::SR,
    Pbd = resources::PBD,
    Sm = resources::SM,
    Vdi = resources::VDI,
    Network = resources::NETWORK,
    Pif = resources::PIF,
    PifMetrics = resources::PIF_METRICS,
    Vlan = resources::VLAN,
    Bond = resources::BOND,
    Session = others::SESSION,
    Task = others::TASK,
    Message = others::MESSAGE,
    Event = others::EVENT,
    Role = others::ROLE,
    Subject = others::SUBJECT,
    Blob = others::BLOB,
}

/// A record of each class with defaults only.
static BLANK: LazyLock<Vec<Record>> =
    LazyLock::new(|| Class::ALL.iter().map(|class| class.def().blank()).collect());

impl Class {
    #[must_use]
    pub fn name(self) -> &'static str {
        self.def().name
    }

    /// By its name, in any case of letters.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|class| class.name().eq_ignore_ascii_case(name))
    }

    /// Whether its objects can be listed. Sessions are secrets, and events are no objects.
    #[must_use]
    pub fn is_listed(self) -> bool {
        !matches!(self, Self::Session | Self::Event)
    }

    /// A record with defaults only.
    #[must_use]
    pub fn blank(self) -> Record {
        BLANK[self as usize].clone()
    }
}

impl Def {
    /// All fields, with their types.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, Kind)> {
        let of_kind = |(kind, names): &(Kind, &'static str)| {
            let kind = *kind;
            names.split_ascii_whitespace().map(move |name| (name, kind))
        };
        self.fields.iter().flat_map(of_kind)
    }

    #[must_use]
    pub fn field(&self, name: &str) -> Option<(&'static str, Kind)> {
        self.fields().find(|(field, _)| *field == name)
    }

    pub fn labels(&self) -> impl Iterator<Item = &'static str> {
        self.labels.split_ascii_whitespace()
    }

    /// A field that clients may set.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<(&'static str, Kind)> {
        self.labels().find(|label| *label == name).and_then(|label| self.field(label))
    }

    fn blank(&self) -> Record {
        self.fields().map(|(name, kind)| (name, kind.default())).collect()
    }
}

impl Kind {
    fn default(self) -> Value {
        match self {
            Self::Str => Value::from(""),
            Self::Int => Value::Int(0),
            Self::Float => Value::Float(0.0),
            Self::Bool => Value::Bool(false),
            Self::Date => Value::Date(0),
            Self::Ref => Value::null(),
            Self::Set => Value::Array(Vec::new()),
            Self::Map => Value::map(),
            Self::Enum(word) => Value::from(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_class_has_each_of_its_fields_once() {
        for class in Class::ALL {
            let def = class.def();
            let names: Vec<_> = def.fields().map(|(name, _)| name).collect();
            let once: BTreeSet<_> = names.iter().collect();
            assert_eq!(names.len(), once.len(), "{}", def.name);
            for label in def.labels() {
                assert!(def.field(label).is_some(), "{}.{label}", def.name);
            }
            assert!(*class == Class::Event || once.contains(&"uuid"), "{}", def.name);
            assert_eq!(class.blank().len(), names.len());
            assert_eq!(Class::named(&def.name.to_lowercase()), Some(*class));
        }
        // As many as in the interface.
        for (class, fields) in [
            (Class::Vm, 90),
            (Class::Host, 70),
            (Class::Pool, 57),
            (Class::Vbd, 22),
            (Class::Vif, 27),
            (Class::Vdi, 32),
            (Class::Sr, 21),
            (Class::Task, 17),
            (Class::Session, 16),
        ] {
            assert_eq!(class.def().fields().count(), fields, "{}", class.name());
        }
    }
}
