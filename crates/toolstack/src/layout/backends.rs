//! Which domains have the backends of a domain's devices.

use std::collections::BTreeMap;

use xen::DomId;

use super::{DeviceKind, DeviceRef};

/// The driver domains that serve a domain's devices; domain 0 serves those that are not named.
///
/// A name in a configuration may stand for another domain tomorrow, so the domid is found when a device is made, and kept
/// until its nodes are removed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Backends(BTreeMap<DeviceRef, DomId>);

impl Backends {
    /// The domain that has the backend of this device.
    #[must_use]
    pub fn of(&self, device: DeviceRef) -> DomId {
        self.0.get(&device).copied().unwrap_or(DomId::DOM0)
    }

    /// The two ends of a device of this domain.
    #[must_use]
    pub fn ends(&self, device: DeviceRef, domid: DomId) -> Ends {
        Ends { device, frontend: domid, backend: self.of(device) }
    }

    /// Those of several devices of one domain.
    #[must_use]
    pub fn all_ends(&self, devices: Vec<DeviceRef>, domid: DomId) -> Vec<Ends> {
        devices.into_iter().map(|device| self.ends(device, domid)).collect()
    }

    pub fn insert(&mut self, device: DeviceRef, backend: DomId) {
        if backend == DomId::DOM0 {
            self.0.remove(&device);
        } else {
            self.0.insert(device, backend);
        }
    }

    pub fn remove(&mut self, device: DeviceRef) {
        self.0.remove(&device);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (DeviceRef, DomId)> {
        self.0.iter().map(|(device, backend)| (*device, *backend))
    }

    /// As in a record: `vif 0 5;`, the domid last.
    #[must_use]
    pub fn encode(&self) -> String {
        self.iter().map(|(device, backend)| format!("{device} {backend};")).collect()
    }

    /// Of what cannot be read there is nothing.
    #[must_use]
    pub fn decode(text: &str) -> Self {
        let one = |text: &str| {
            let mut words = text.split(' ');
            let (kind, devid, backend) = (words.next()?, words.next()?, words.next()?);
            let kind = DeviceKind::ALL.into_iter().find(|it| it.as_str() == kind)?;
            let device = DeviceRef { kind, devid: devid.parse().ok()? };
            Some((device, DomId(backend.parse().ok()?)))
        };
        Self(text.split(';').filter_map(one).collect())
    }
}

/// A device with the domains that have its two ends.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ends {
    pub device: DeviceRef,
    pub frontend: DomId,
    pub backend: DomId,
}

impl Ends {
    /// Whether domain 0 serves it.
    #[must_use]
    pub fn is_in_domain_0(self) -> bool {
        self.backend == DomId::DOM0
    }

    /// The frontend's directory.
    #[must_use]
    pub fn frontend_path(self) -> String {
        self.device.frontend(self.frontend)
    }

    /// The directory of all backends of this kind for the same domain.
    #[must_use]
    pub fn backends_path(self) -> String {
        let Self { device, frontend, backend } = self;
        format!("/local/domain/{backend}/backend/{}/{frontend}", device.kind.as_str())
    }

    /// The backend's directory.
    #[must_use]
    pub fn backend_path(self) -> String {
        format!("{}/{}", self.backends_path(), self.device.number())
    }

    /// The backend's error node.
    #[must_use]
    pub fn backend_error(self) -> String {
        let Self { device, frontend, backend } = self;
        let (kind, devid) = (device.kind.as_str(), device.number());
        format!("/local/domain/{backend}/error/backend/{kind}/{frontend}/{devid}/error")
    }

    /// The domain and the place that the path of a backend's directory names, if it serves this frontend.
    #[must_use]
    pub fn of_backend(device: DeviceRef, frontend: DomId, path: &str) -> Option<Self> {
        let backend = path.strip_prefix("/local/domain/")?.split('/').next()?;
        let ends = Self { device, frontend, backend: DomId(backend.parse().ok()?) };
        (ends.backend_path() == path).then_some(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIF: DeviceRef = DeviceRef { kind: DeviceKind::Vif, devid: 1 };

    #[test]
    fn backends_are_read_as_they_are_written() {
        let mut backends = Backends::default();
        backends.insert(VIF, DomId(7));
        backends.insert(DeviceRef { kind: DeviceKind::Vbd, devid: 51712 }, DomId(12));
        backends.insert(DeviceRef { kind: DeviceKind::Vif, devid: 0 }, DomId::DOM0);
        assert_eq!(backends.encode(), "vbd 51712 12;vif 1 7;");
        assert_eq!(Backends::decode(&backends.encode()), backends);
        assert_eq!(Backends::decode("vif 1;of 2 3;vif x 1"), Backends::default());
    }

    #[test]
    fn the_path_of_a_backend_names_its_domain() {
        let of = |path| Ends::of_backend(VIF, DomId(9), path).map(|ends| ends.backend.0);
        assert_eq!(of("/local/domain/7/backend/vif/9/1"), Some(7));
        assert_eq!(of("/local/domain/7/backend/vif/9/2"), None);
        assert_eq!(of("/local/domain/7/backend/vif/8/1"), None);
        assert_eq!(of("/local/domain/07/backend/vif/9/1"), None);
    }
}
