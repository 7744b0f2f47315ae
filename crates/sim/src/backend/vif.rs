//! netback's part: creates the host's end of the interface and waits until it is plugged into a
//! bridge.

use xenstore::client::{Batch, ClientError, Nodes as _};

use super::device::{Connection, Fatal};
use super::{BackendId, Shared};

#[derive(Debug)]
pub(super) struct Vif {
    link: String,
}

impl Vif {
    pub(super) fn probe(
        shared: &mut Shared,
        path: &str,
        id: BackendId,
    ) -> Result<Self, ClientError> {
        let mut features = Batch::new();
        for key in [
            "feature-sg",
            "feature-gso-tcpv4",
            "feature-gso-tcpv6",
            "feature-ipv6-csum-offload",
            "feature-rx-copy",
            "feature-multicast-control",
            "feature-split-event-channels",
            "feature-ctrl-ring",
        ] {
            features.write(&format!("{path}/{key}"), "1");
        }
        features.write(&format!("{path}/multi-queue-max-queues"), "2");
        shared.store.run(&features)?.all_ok()?;
        let link = format!("vif{}.{}", id.domid, id.devid);
        shared.os.get_mut().links.insert(link.clone());
        Ok(Self { link })
    }

    pub(super) fn connect(
        shared: &mut Shared,
        frontend: &str,
        id: BackendId,
    ) -> Result<Result<Option<Connection>, Fatal>, ClientError> {
        let split = shared.store.read_optional(&format!("{frontend}/event-channel-tx"))?.is_some();
        let channels: &[&str] =
            if split { &["event-channel-tx", "event-channel-rx"] } else { &["event-channel"] };
        let rings = ["tx-ring-ref", "rx-ring-ref"];
        let made = Connection::make(shared, frontend, id.domid, &rings, channels)?;
        Ok(made.map(Some))
    }

    /// Whether the toolstack has plugged the link into its bridge.
    pub(super) fn is_plugged(shared: &mut Shared, path: &str) -> Result<bool, ClientError> {
        let status = shared.store.read_optional(&format!("{path}/hotplug-status"))?;
        Ok(status.as_deref() == Some(b"connected"))
    }

    pub(super) fn remove(&mut self, shared: &mut Shared, path: &str) -> Result<(), ClientError> {
        shared.os.get_mut().remove_link(&self.link);
        match shared.store.rm(&format!("{path}/hotplug-status")) {
            Err(error) if error.refusal().is_some() => Ok(()),
            other => other,
        }
    }
}
