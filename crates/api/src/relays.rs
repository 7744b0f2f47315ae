//! Consoles and screens of VMs, for clients that cannot open them themselves.

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
}
