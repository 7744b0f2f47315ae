//! The new daemon's part of an update: it loads the store and takes every descriptor.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use xenstore::Quota;
use xenstore::server::Restore;

use crate::live_update::SUCCESSOR_MARK;
use crate::live_update::channel::{Channel, Kind};
use crate::live_update::foreign::Arrival;

/// The old daemon serves while it sends the state, and may be slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// A successor with the complete state, before it serves.
pub(crate) struct Successor(Channel);

impl Successor {
    /// Receives the state from the old daemon.
    pub(crate) fn receive(quota: Quota, now: Duration) -> anyhow::Result<(Self, Arrival)> {
        let channel = Channel::inherited()?;
        let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdin(&null).context("cannot give standard input away")?;
        let mut restore = Restore::new(quota);
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        let (mut journal, mut status) = (None, None);
        let mut devices = Vec::new();
        while !restore.has_ended() {
            let mut message = channel.receive(PATIENCE)?;
            match message.kind {
                Kind::State => restore.feed(&message.bytes).context(SUCCESSOR_MARK)?,
                Kind::NodesEnd => channel.send(Kind::Loaded, &[], &[], PATIENCE)?,
                Kind::Descriptors => descriptors.append(&mut message.descriptors),
                Kind::Devices => devices = message.descriptors,
                Kind::Journal => journal = message.descriptors.pop(),
                Kind::Status => status = message.descriptors.pop(),
                other => bail!("the old daemon says {other:?} too early"),
            }
        }
        let restored = restore.finish(now)?;
        let descriptors = (0..).zip(descriptors).collect();
        Ok((Self(channel), Arrival { restored, descriptors, devices, journal, status }))
    }

    /// Everything is ready: waits until the old daemon has stopped serving.
    pub(crate) fn wait_for_go(&self) -> anyhow::Result<()> {
        self.0.send(Kind::Ready, &[], &[], PATIENCE)?;
        self.0.expect(Kind::Go, PATIENCE)
    }

    /// The first answer was sent: the old daemon may exit.
    pub(crate) fn tell_answered(&self) -> anyhow::Result<()> {
        self.0.send(Kind::Answered, &[], &[], PATIENCE)
    }
}
