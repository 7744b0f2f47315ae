//! Names of devices in the store: `device/KIND/NUMBER` on our side, the backend's path on the
//! other. Source: xen `docs/misc/xenstore-paths.pandoc`.

use core::fmt;

use crate::text::decimal_u32;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Vbd,
    Vif,
}

impl Kind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vbd => "vbd",
            Self::Vif => "vif",
        }
    }
}

/// Shown as its folder's name below `device`: `vbd/51712`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceId {
    pub kind: Kind,
    pub number: u32,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.as_str(), self.number)
    }
}

/// What an event of the watch on `device` is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Touched {
    /// `device` itself or a whole kind: anything may have come or gone.
    All,
    /// A device or something in it.
    Device(DeviceId),
    /// A kind of device that this guest does not drive.
    Foreign,
}

impl Touched {
    #[must_use]
    pub fn decode(path: &[u8]) -> Self {
        let mut parts = path.split(|byte| *byte == b'/').skip(1);
        let kind = match parts.next() {
            None => return Self::All,
            Some(b"vbd") => Kind::Vbd,
            Some(b"vif") => Kind::Vif,
            Some(_) => return Self::Foreign,
        };
        match parts.next().map(decimal_u32) {
            None => Self::All,
            Some(Some(number)) => Self::Device(DeviceId { kind, number }),
            Some(None) => Self::Foreign,
        }
    }
}

/// The domain that serves a device, from `/local/domain/DOMID/backend/...`.
#[must_use]
pub fn backend_domid(path: &str) -> Option<u16> {
    let domid = path.strip_prefix("/local/domain/")?.split('/').next()?;
    u16::try_from(decimal_u32(domid.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_which_device_it_is_about() {
        let vif = Touched::Device(DeviceId { kind: Kind::Vif, number: 2 });
        for (path, touched) in [
            (&b"device"[..], Touched::All),
            (b"device/vif", Touched::All),
            (b"device/vif/2", vif),
            (b"device/vif/2/state", vif),
            (b"device/console/1", Touched::Foreign),
            (b"device/vif/x", Touched::Foreign),
        ] {
            assert_eq!(Touched::decode(path), touched, "{path:?}");
        }
    }

    #[test]
    fn the_backends_path_names_its_domain() {
        assert_eq!(backend_domid("/local/domain/3/backend/vbd/9/51712"), Some(3));
        for bad in ["", "/local/domain/", "/local/domain/x/backend", "/local/domain/65536/b"] {
            assert_eq!(backend_domid(bad), None, "{bad}");
        }
    }
}
