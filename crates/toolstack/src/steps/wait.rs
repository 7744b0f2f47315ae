//! Steps that wait: they end when a node of the store says so, or when their time is over.

use xen::{DomId, XenbusState};

use super::{IfCancelled, IfFailed, StepInfo};
use crate::device_model;
use crate::layout::DeviceRef;

/// What is waited for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Wait {
    /// The device model is ready.
    Model,
    /// The backend has seen its device.
    Backend(DeviceRef),
    /// The two halves of a device have found each other. Asked to close while they do, a frontend closes and then
    /// meets a backend that has just connected: Linux's loses its xenbus thread over that.
    Connected(DeviceRef),
    /// The guest has closed a device that it was asked for.
    Consent(DeviceRef),
    /// The backend has closed its device.
    Closed(DeviceRef),
}

/// How long a backend may take to see its device. xen-blkback and xen-netback take milliseconds;
/// the rest is for a loaded dom0.
const BACKEND_SECONDS: u64 = 30;
/// How long a device model may take to be ready. It takes a fraction of a second; the rest is for a loaded dom0.
const MODEL_SECONDS: u64 = 60;
/// How long a backend may take to close. After that the domain is destroyed all the same.
const CLOSE_SECONDS: u64 = 30;
/// How long a guest may take to connect a device that it is to close. One that has no driver for it never does.
const CONNECT_SECONDS: u64 = 10;
/// How long a guest may take to close a device: what it has in its caches has to be written first.
const CONSENT_SECONDS: u64 = 30;
/// How long to wait for a backend that may never say that it has closed: one that was connecting while it was told to,
/// wrote another state over our Closing and closes all the same; and one that had not looked at its device yet, and now
/// has no reason to.
pub const RACED_CLOSE_SECONDS: u64 = 1;

/// What a watched node says about a wait.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Nothing yet.
    Pending,
    /// It may be over without another word: wait [`RACED_CLOSE_SECONDS`] from now on.
    Shorten,
    Ended,
    /// It will never be over.
    Refused(String),
}

/// What follows when the time of a wait is over.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Late {
    Fail(String),
    GoOn,
    /// As `GoOn`, and operators are told.
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
        }
    }

    /// The nodes that tell when it is over: a backend's state, and what is said about the device.
    #[must_use]
    pub fn nodes(self, domid: DomId) -> Vec<String> {
        let state = |device: DeviceRef| format!("{}/state", device.backend(domid));
        match self {
            Self::Model => vec![device_model::state_node(domid)],
            Self::Backend(device) => vec![state(device), device.backend_error(domid)],
            Self::Consent(device) => vec![state(device), device.frontend_error(domid)],
            Self::Connected(device) | Self::Closed(device) => vec![state(device)],
        }
    }

    /// What the value of one of these nodes says.
    #[must_use]
    pub fn judge(self, path: &str, value: Option<&[u8]>) -> Verdict {
        let device = match self {
            Self::Model if value == Some(b"running") => return Verdict::Ended,
            Self::Model => return Verdict::Pending,
            Self::Backend(device)
            | Self::Connected(device)
            | Self::Consent(device)
            | Self::Closed(device) => device,
        };
        if path.ends_with("/state") {
            let state = value.map_or(XenbusState::Unknown, XenbusState::decode);
            return self.judge_state(device, state);
        }
        // Somebody's own words about a device.
        match value {
            None | Some(b"") => Verdict::Pending,
            Some(words) => self.judge_words(device, &String::from_utf8_lossy(words)),
        }
    }

    fn judge_words(self, device: DeviceRef, words: &str) -> Verdict {
        let device = device.spoken();
        Verdict::Refused(match self {
            Self::Backend(_) => format!("the backend of {device} refused it: {words}"),
            Self::Model | Self::Connected(_) | Self::Consent(_) | Self::Closed(_) => {
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
        }
    }

    /// What follows when its time is over. `model_log` has the device model's words.
    #[must_use]
    pub fn late(self, model_log: &str) -> Late {
        let seconds = self.seconds();
        match self {
            Self::Model => Late::Fail(format!(
                "the device model was not ready within {seconds} s; {model_log} may say why"
            )),
            Self::Backend(device) => Late::Fail(format!(
                "the backend of {} did not answer within {seconds} s; \
                 is its driver loaded in dom0?",
                device.spoken()
            )),
            Self::Consent(device) => Late::Fail(format!(
                "the guest did not release {} within {seconds} s; is it in use? \
                 --force detaches it anyway",
                device.spoken()
            )),
            // There may be no driver for it; then there is nobody to be surprised either.
            Self::Connected(_) => Late::GoOn,
            // The domain is destroyed next, and with its nodes the backend loses its device.
            Self::Closed(_) => Late::GoOnWithNote,
        }
    }
}
