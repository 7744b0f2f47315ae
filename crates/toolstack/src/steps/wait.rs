//! Steps that wait: they end when a node of the store has some value, or at their deadline.

use xen::{DomId, XenbusState};

use super::{IfCancelled, IfFailed, StepInfo};
use crate::device_model;
use crate::layout::{Backends, DeviceKind, DeviceRef};

/// What is waited for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Wait {
    /// The device model is ready.
    Model,
    /// The backend has probed its device.
    Backend(DeviceRef),
    /// Frontend and backend are connected. If asked to close during the connection, a frontend
    /// closes and then meets a backend that has just connected: Linux's xenwatch thread crashes
    /// over that.
    Connected(DeviceRef),
    /// The guest has closed a device on request.
    Consent(DeviceRef),
    /// The backend has closed its device.
    Closed(DeviceRef),
    /// The driver domain has run its script and removed the backend.
    Gone(DeviceRef),
}

/// Time limit for a backend to probe its device. xen-blkback and xen-netback take milliseconds; the
/// rest is for a loaded dom0.
const BACKEND_SECONDS: u64 = 30;
/// Time limit for a device model to be ready. It takes a fraction of a second; the rest is for a
/// loaded dom0.
const MODEL_SECONDS: u64 = 60;
/// Time limit for a backend to close. After that the domain is destroyed anyway.
const CLOSE_SECONDS: u64 = 30;
/// Time limit for a guest to connect a device that it is to close. A guest without a driver never
/// does.
const CONNECT_SECONDS: u64 = 10;
/// Time limit for a guest to close a device: it must flush its caches first.
const CONSENT_SECONDS: u64 = 30;
/// Time limit for a driver domain to remove a backend, as for libxl. Nothing there may do that; then we do.
const GONE_SECONDS: u64 = 10;
/// Time limit for a backend that may never report that it has closed: one that was connecting
/// meanwhile, overwrote our Closing and closes anyway; and one that had not probed its device yet,
/// and now never will.
pub const RACED_CLOSE_SECONDS: u64 = 1;

/// Result of a watched node for a wait.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Nothing yet.
    Pending,
    /// It may end without a further change: wait [`RACED_CLOSE_SECONDS`] from now on.
    Shorten,
    Ended,
    /// It will never end.
    Refused(String),
}

/// What follows when a wait times out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Late {
    Fail(String),
    GoOn,
    /// As `GoOn`, with a note in the log.
    GoOnWithNote,
}

impl Wait {
    pub(super) fn info(self) -> StepInfo {
        let wait = |stage, text, device| StepInfo {
            stage,
            text,
            device,
            undo: None,
            if_failed: IfFailed::Fail,
            if_cancelled: IfCancelled::Abandon,
            permit: None,
        };
        match self {
            Self::Model => wait("await device model", "await device model", None),
            Self::Backend(device) => StepInfo {
                undo: Some(Self::Closed(device).into()),
                ..wait("await backends", "await the backend of {}", Some(device))
            },
            Self::Connected(device) => {
                wait("await connected", "await that {} is connected", Some(device))
            }
            Self::Consent(device) => {
                wait("await the guest", "await that the guest lets go of {}", Some(device))
            }
            Self::Closed(device) => wait("await closed", "await the end of {}", Some(device)),
            Self::Gone(device) => {
                wait("await removed", "await that its driver domain removes {}", Some(device))
            }
        }
    }

    /// How long at most.
    #[must_use]
    pub fn seconds(self) -> u64 {
        match self {
            Self::Model => MODEL_SECONDS,
            Self::Backend(_) => BACKEND_SECONDS,
            Self::Connected(_) => CONNECT_SECONDS,
            Self::Consent(_) => CONSENT_SECONDS,
            Self::Closed(_) => CLOSE_SECONDS,
            Self::Gone(_) => GONE_SECONDS,
        }
    }

    /// The nodes to watch: a backend's state, and the device's error nodes.
    #[must_use]
    pub fn nodes(self, domid: DomId, backends: &Backends) -> Vec<String> {
        let ends = |device| backends.ends(device, domid);
        let state = |device| format!("{}/state", ends(device).backend_path());
        match self {
            Self::Model => vec![device_model::state_node(domid)],
            Self::Backend(device) => vec![state(device), ends(device).backend_error()],
            Self::Consent(device) => vec![state(device), device.frontend_error(domid)],
            Self::Connected(device) | Self::Closed(device) | Self::Gone(device) => {
                vec![state(device)]
            }
        }
    }

    /// Evaluates the value of one of these nodes.
    #[must_use]
    pub fn judge(self, path: &str, value: Option<&[u8]>) -> Verdict {
        let device = match self {
            Self::Model if value == Some(b"running") => return Verdict::Ended,
            Self::Model => return Verdict::Pending,
            Self::Backend(device)
            | Self::Connected(device)
            | Self::Consent(device)
            | Self::Closed(device)
            | Self::Gone(device) => device,
        };
        if path.ends_with("/state") {
            let state = value.map_or(XenbusState::Unknown, XenbusState::decode);
            return self.judge_state(device, state);
        }
        // An error message for a device.
        match value {
            None | Some(b"") => Verdict::Pending,
            Some(words) => self.judge_words(device, &spoken_words(words)),
        }
    }

    fn judge_words(self, device: DeviceRef, words: &str) -> Verdict {
        let device = device.spoken();
        Verdict::Refused(match self {
            Self::Backend(_) => format!("the backend of {device} refused it: {words}"),
            Self::Model
            | Self::Connected(_)
            | Self::Consent(_)
            | Self::Closed(_)
            | Self::Gone(_) => {
                format!(
                    "the guest refused to release {device}: {words}; --force detaches it anyway"
                )
            }
        })
    }

    fn judge_state(self, device: DeviceRef, state: XenbusState) -> Verdict {
        match self {
            Self::Model => Verdict::Pending,
            Self::Backend(_) => match state {
                XenbusState::Unknown | XenbusState::Initialising => Verdict::Pending,
                XenbusState::Closing | XenbusState::Closed => Verdict::Refused(format!(
                    "the backend of {} refused it: its state went to {}",
                    device.spoken(),
                    state.as_str()
                )),
                _ => Verdict::Ended,
            },
            // The backend of PCI devices stays, for the others; and it goes with the last.
            Self::Connected(_) | Self::Consent(_) | Self::Closed(_)
                if device.kind == DeviceKind::Pci =>
            {
                match state {
                    XenbusState::Unknown | XenbusState::Connected => Verdict::Ended,
                    _ => Verdict::Pending,
                }
            }
            Self::Connected(_) => match state {
                XenbusState::Initialising | XenbusState::InitWait | XenbusState::Initialised => {
                    Verdict::Pending
                }
                _ => Verdict::Ended,
            },
            Self::Consent(_) => match state {
                XenbusState::Unknown | XenbusState::Closed => Verdict::Ended,
                _ => Verdict::Pending,
            },
            Self::Closed(_) => match state {
                XenbusState::Unknown | XenbusState::Closed => Verdict::Ended,
                XenbusState::Closing => Verdict::Pending,
                _ => Verdict::Shorten,
            },
            Self::Gone(_) => match state {
                XenbusState::Unknown => Verdict::Ended,
                _ => Verdict::Pending,
            },
        }
    }

    /// What follows when it times out. `model_log` is the device model's log.
    #[must_use]
    pub fn late(self, model_log: &str, backends: &Backends) -> Late {
        let seconds = self.seconds();
        match self {
            Self::Model => Late::Fail(format!(
                "the device model was not ready within {seconds} s; {model_log} may say why"
            )),
            Self::Backend(device) => {
                let place = match backends.of(device) {
                    DomId::DOM0 => "dom0".to_owned(),
                    other => format!("domain {other}"),
                };
                Late::Fail(format!(
                    "the backend of {} did not answer within {seconds} s; \
                     is its driver loaded in {place}?",
                    device.spoken()
                ))
            }
            Self::Consent(device) => Late::Fail(format!(
                "the guest did not release {} within {seconds} s; is it in use? \
                 --force detaches it anyway",
                device.spoken()
            )),
            Self::Connected(device) if device.kind == DeviceKind::Pci => Late::Fail(format!(
                "the guest did not connect its PCI devices within {seconds} s; \
                 does its kernel have xen-pcifront?"
            )),
            // There may be no driver for it; then closing is safe.
            Self::Connected(_) => Late::GoOn,
            // The domain is destroyed next, and removing its nodes removes the backend's device.
            Self::Closed(_) => Late::GoOnWithNote,
            // Nothing there may do it; a driver domain without `xl devd` has none.
            Self::Gone(_) => Late::GoOn,
        }
    }
}

/// Words of a guest or backend for one line of a message: without control characters, which would
/// be a guest's on the operator's terminal, and not longer than a line can be.
fn spoken_words(words: &[u8]) -> String {
    const CHARS_MAX: usize = 200;
    let words = String::from_utf8_lossy(words);
    let mut chars = words.chars().flat_map(char::escape_debug);
    let mut spoken: String = chars.by_ref().take(CHARS_MAX).collect();
    if chars.next().is_some() {
        spoken.push_str("...");
    }
    spoken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_words_are_one_short_line_without_control_characters() {
        let wait = Wait::Consent(DeviceRef { kind: DeviceKind::Vbd, devid: 51712 });
        let refusal = |words: &[u8]| match wait.judge("/x/error", Some(words)) {
            Verdict::Refused(message) => message,
            _ => panic!("not refused"),
        };
        let message = refusal(b"16 busy\n\x1b]0;owned\x07\x1b[2J\xff");
        assert!(message.contains(r"16 busy\n\u{1b}]0;owned\u{7}\u{1b}[2J"), "{message}");
        assert!(!message.contains(char::is_control), "{message}");
        let long = refusal(&[b'x'; 2048]);
        assert!(long.contains("xxx...; --force") && long.len() < 320, "{long}");
    }
}
