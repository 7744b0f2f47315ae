//! Lines of the trace.

use alloc::string::String;

use crate::server::{ConnId, Header, Host, MessageType};

/// A topic of the trace, switched on and off by `CONTROL log`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Topic {
    /// Introduced and released domains.
    Domains,
    /// Requests and replies.
    Io,
    /// Guests that are throttled, and served again.
    WriteRate,
}

impl Topic {
    const ALL: [Self; 3] = [Self::Domains, Self::Io, Self::WriteRate];

    /// As C xenstored calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Domains => "obj",
            Self::Io => "io",
            Self::WriteRate => "wrl",
        }
    }
}

/// The topics that are switched on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Topics([bool; Topic::ALL.len()]);

impl Default for Topics {
    fn default() -> Self {
        Self([true, true, false])
    }
}

impl Topics {
    pub(super) fn has(self, topic: Topic) -> bool {
        self.0[topic as usize]
    }

    /// Obeys `+NAME` or `-NAME`; `None` if it is neither, or there is no such topic.
    pub(super) fn switch(&mut self, text: &str) -> Option<()> {
        let (on, name) = match text.split_at_checked(1)? {
            ("+", name) => (true, name),
            ("-", name) => (false, name),
            _ => return None,
        };
        let topic = Topic::ALL.into_iter().find(|topic| topic.name() == name)?;
        self.0[topic as usize] = on;
        Some(())
    }

    pub(super) fn report(self) -> String {
        let line = |topic: Topic| {
            let state = if self.has(topic) { "on" } else { "off" };
            alloc::format!("{:<8}: {state}\n", topic.name())
        };
        Topic::ALL.into_iter().map(line).collect()
    }
}

pub(super) fn request(
    host: &mut dyn Host,
    id: ConnId,
    header: Header,
    kind: Option<MessageType>,
    payload: &[u8],
) {
    let label = kind.map_or("unknown", MessageType::label);
    let text = String::from_utf8_lossy(payload);
    let (id, transaction) = (id.number(), header.transaction_id);
    host.trace(format_args!("in {id} transaction {transaction} {label} {}", text.escape_debug()));
}
