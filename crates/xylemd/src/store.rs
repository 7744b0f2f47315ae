//! Connections to the store daemon, which outlive its restarts.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use xenstore::client::Client;
use xenstore_socket::StoreSocket;

/// How long a request waits for a store that is being restarted.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn connect(path: &Path) -> Result<Client<StoreSocket>> {
    StoreSocket::connect_patiently(path, PATIENCE)
        .with_context(|| format!("no store at {}: is xylem-xenstored running?", path.display()))
}
