//! Connections to the store daemon that survive its restarts.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use xenstore::client::Client;
use xenstore_socket::StoreSocket;

/// Timeout for a store that is being restarted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Timeout for a store that hangs during a request. It usually answers in milliseconds; after this
/// the performer is needed elsewhere, and the request fails.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn connect(path: &Path) -> Result<Client<StoreSocket>> {
    StoreSocket::connect_within(path, PATIENCE, Some(ANSWER_WITHIN))
        .with_context(|| format!("no store at {}: is xylem-xenstored running?", path.display()))
}
