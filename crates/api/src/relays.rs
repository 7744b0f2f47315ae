//! Consoles and screens of VMs and reports about the host, for clients that cannot open or make them themselves.

use serde::{Deserialize, Serialize};

use crate::request::is_unset;
use crate::{ConsoleKind, Target};

/// What a connection that comes with a request is joined to. Answered by [`Reply::Done`](crate::Reply::Done) as soon as it is;
/// from then on bytes go both ways until either side ends.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum RelayRequest {
    Console {
        target: Target,
        /// Without one, the domain's primary console's.
        #[serde(default, skip_serializing_if = "is_unset")]
        kind: Option<ConsoleKind>,
        #[serde(default, skip_serializing_if = "is_unset")]
        number: u32,
    },
    /// RFB, as VNC viewers speak it.
    Screen { target: Target },
    /// Written to the client, and its end is the connection's.
    Report { of: Report },
}

/// What is said of the host.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// What is not as it should be, as JSON.
    Doctor,
    /// Versions, states and logs, as a tar file.
    Bugreport,
}
