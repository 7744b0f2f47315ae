//! The command line: words that start with `xylem.`; others are ignored.

use crate::frame::Ipv4;

/// What a guest does when it is asked for a device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Unplug {
    #[default]
    LetsGo,
    /// `xylem.refuse`: it keeps the device and says so.
    Refuses,
    /// `xylem.hold`: it keeps the device and says nothing.
    Ignores,
}

/// How a guest wants to be asked to suspend.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SuspendBy {
    /// By an event on a port that it offers in `device/suspend/event-channel`.
    #[default]
    EventChannel,
    /// `xylem.suspend=store`: by `control/shutdown` alone.
    Store,
    /// `xylem.suspend=never`: it acknowledges the request and does not suspend.
    Never,
    /// `xylem.suspend=xen`: not at all. A PVH guest registers no event vector, so it counts as one
    /// without PV drivers, which Xen stops by itself.
    Xen,
}

/// What the command line can ask for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Options {
    /// `xylem.quiet`: only the hello line and errors.
    pub quiet: bool,
    /// `xylem.ip=A.B.C.D`: the address of the first vif; without it the backend's `ip` counts.
    pub ip: Option<Ipv4>,
    /// `xylem.nodev`: leave all devices alone.
    pub ignore_devices: bool,
    /// What becomes of a device that its backend closes while the guest runs.
    pub unplug: Unplug,
    pub suspend: SuspendBy,
    /// A word starts with `xylem.` and means nothing.
    pub has_unknown: bool,
}

impl Options {
    #[must_use]
    pub fn parse(line: &[u8]) -> Self {
        let mut options = Self::default();
        for word in line.split(|byte| *byte == b' ') {
            let Some(option) = word.strip_prefix(b"xylem.") else { continue };
            match option {
                b"quiet" => options.quiet = true,
                b"refuse" => options.unplug = Unplug::Refuses,
                b"hold" => options.unplug = Unplug::Ignores,
                b"nodev" => options.ignore_devices = true,
                b"suspend=store" => options.suspend = SuspendBy::Store,
                b"suspend=never" => options.suspend = SuspendBy::Never,
                b"suspend=xen" => options.suspend = SuspendBy::Xen,
                _ => match option.strip_prefix(b"ip=").and_then(Ipv4::parse) {
                    Some(ip) => options.ip = Some(ip),
                    None => options.has_unknown = true,
                },
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_among_foreign_words() {
        let options = Options::parse(b"root=/dev/xvda xylem.quiet  xylem.ip=10.0.0.2 ro");
        let ip = Some(Ipv4([10, 0, 0, 2]));
        assert_eq!(options, Options { quiet: true, ip, ..Options::default() });
        assert_eq!(Options::parse(b""), Options::default());
        assert!(Options::parse(b"xylem.nodev").ignore_devices);
        assert_eq!(Options::parse(b"xylem.refuse").unplug, Unplug::Refuses);
        assert_eq!(Options::parse(b"xylem.hold").unplug, Unplug::Ignores);
        assert_eq!(Options::parse(b"xylem.suspend=store").suspend, SuspendBy::Store);
        assert_eq!(Options::parse(b"xylem.suspend=never").suspend, SuspendBy::Never);
        assert_eq!(Options::parse(b"xylem.suspend=xen").suspend, SuspendBy::Xen);
    }

    #[test]
    fn an_option_that_means_nothing_is_noticed() {
        for line in ["xylem.loud", "a xylem.ip=10.0.0", "xylem."] {
            assert!(Options::parse(line.as_bytes()).has_unknown, "{line}");
        }
        assert!(!Options::parse(b"xylem quiet=1").has_unknown);
    }
}
