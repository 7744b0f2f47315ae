//! Batches: many requests in one round trip, and guards for changes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;
use crate::client::{ClientError, ProtocolError};
use crate::permission::Permission;
use crate::wire::MessageType;
use crate::wire::batch::EntryKind;

/// Requests that are sent together; the replies come back in the same order.
///
/// [Run](super::Nodes::run): each takes effect in order, independent of earlier failures; others
/// may see intermediate states. [Committed](super::Client::commit): all take effect atomically, or
/// none.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(super) requests: Vec<BatchRequest>,
}

#[derive(Clone, Debug)]
pub(super) struct BatchRequest {
    pub(super) action: Action,
    pub(super) payload: Vec<u8>,
    path_bytes: usize,
}

/// The kind of a request in a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Action {
    /// An entry of a batch message, and for all but the guards a message of its own.
    Entry(EntryKind),
    Watch,
    Unwatch,
}

impl Action {
    fn label(self) -> &'static str {
        match self {
            Self::Entry(EntryKind::GuardPresent) => "guard present",
            Self::Entry(EntryKind::GuardAbsent) => "guard absent",
            Self::Entry(EntryKind::GuardValue) => "guard value",
            Self::Entry(EntryKind::GuardChildren) => "guard children",
            _ => self.message().label(),
        }
    }

    /// The message used instead without batches; for a guard, the one that it is evaluated with.
    pub(super) fn message(self) -> MessageType {
        match self {
            Self::Watch => MessageType::Watch,
            Self::Unwatch => MessageType::Unwatch,
            Self::Entry(kind) => match kind {
                EntryKind::Directory => MessageType::Directory,
                EntryKind::GetPerms => MessageType::GetPerms,
                EntryKind::Write => MessageType::Write,
                EntryKind::Mkdir => MessageType::Mkdir,
                EntryKind::Rm => MessageType::Rm,
                EntryKind::SetPerms => MessageType::SetPerms,
                EntryKind::DirectoryPart | EntryKind::GuardChildren => MessageType::DirectoryPart,
                EntryKind::Read
                | EntryKind::GuardPresent
                | EntryKind::GuardAbsent
                | EntryKind::GuardValue => MessageType::Read,
            },
        }
    }

    pub(super) fn entry(self) -> Option<EntryKind> {
        match self {
            Self::Entry(kind) => Some(kind),
            Self::Watch | Self::Unwatch => None,
        }
    }

    pub(super) fn changes(self) -> bool {
        self.entry().is_some_and(EntryKind::changes)
    }

    pub(super) fn is_guard(self) -> bool {
        use EntryKind::{GuardAbsent, GuardChildren, GuardPresent, GuardValue};
        matches!(self, Self::Entry(GuardPresent | GuardAbsent | GuardValue | GuardChildren))
    }
}

impl BatchRequest {
    /// Such as `read /local/domain/3/name`, for error messages.
    pub(super) fn describe(&self) -> String {
        describe(self.action.label(), self.path())
    }

    pub(super) fn path(&self) -> &[u8] {
        &self.payload[..self.path_bytes]
    }

    /// The payload after the path and its NUL.
    fn rest(&self) -> &[u8] {
        &self.payload[self.path_bytes + 1..]
    }

    /// Path and token of a watch.
    pub(super) fn watch(&self) -> (String, String) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let token = self.rest().strip_suffix(b"\0").unwrap_or_default();
        (text(self.path()), text(token))
    }

    /// The payload of [`Action::message`].
    pub(super) fn message_payload(&self) -> [&[u8]; 2] {
        match self.action {
            Action::Entry(EntryKind::GuardValue) => [self.path(), b"\0"],
            Action::Entry(EntryKind::GuardChildren) => [self.path(), b"\x000\0"],
            _ => [&self.payload, b""],
        }
    }

    /// Evaluates a guard by the reply to its message.
    pub(super) fn judge(&self, reply: Result<Vec<u8>, Error>) -> Result<Vec<u8>, Error> {
        let same = |is_same: bool| if is_same { Ok(b"OK\0".to_vec()) } else { Err(Error::EAGAIN) };
        match (self.action, reply) {
            (Action::Entry(EntryKind::GuardPresent), Ok(_))
            | (Action::Entry(EntryKind::GuardAbsent), Err(Error::ENOENT)) => same(true),
            (Action::Entry(EntryKind::GuardAbsent), Ok(_)) => Err(Error::EEXIST),
            (Action::Entry(EntryKind::GuardValue), Ok(value)) => same(value == self.rest()),
            (Action::Entry(EntryKind::GuardChildren), Ok(part)) => {
                let generation = part.split(|byte| *byte == 0).next();
                same(generation == self.rest().strip_suffix(b"\0"))
            }
            (_, reply) => reply,
        }
    }
}

/// A request in an error message.
pub(super) fn describe(label: &str, path: &[u8]) -> String {
    format!("{label} {}", String::from_utf8_lossy(path))
}

impl Batch {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn push(&mut self, action: Action, path: &str, rest: &[&[u8]]) -> usize {
        let mut payload =
            Vec::with_capacity(path.len() + 1 + rest.iter().map(|r| r.len()).sum::<usize>());
        payload.extend_from_slice(path.as_bytes());
        payload.push(0);
        for part in rest {
            payload.extend_from_slice(part);
        }
        self.requests.push(BatchRequest { action, payload, path_bytes: path.len() });
        self.requests.len() - 1
    }

    /// Each of these returns the request's index in [`Replies`].
    pub fn read(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::Read), path, &[])
    }

    pub fn directory(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::Directory), path, &[])
    }

    pub fn get_perms(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::GetPerms), path, &[])
    }

    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> usize {
        self.push(Action::Entry(EntryKind::Write), path, &[value.as_ref()])
    }

    pub fn mkdir(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::Mkdir), path, &[])
    }

    pub fn rm(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::Rm), path, &[])
    }

    pub fn set_perms(&mut self, path: &str, permissions: &[Permission]) -> usize {
        let list = Permission::encode_list(permissions);
        self.push(Action::Entry(EntryKind::SetPerms), path, &[list.as_bytes()])
    }

    /// The generation of the list of children, followed by the first of them: see
    /// [`Replies::generation`] and [`guard_children`](Self::guard_children).
    pub fn directory_generation(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::DirectoryPart), path, &[b"0\0"])
    }

    // Guards: each refuses a `commit` unless it holds.

    /// The node exists; `ENOENT` otherwise.
    pub fn guard_present(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::GuardPresent), path, &[])
    }

    /// The node does not exist; `EEXIST` otherwise.
    pub fn guard_absent(&mut self, path: &str) -> usize {
        self.push(Action::Entry(EntryKind::GuardAbsent), path, &[])
    }

    /// The node has this value; `EAGAIN` otherwise, `ENOENT` if it does not exist.
    pub fn guard_value(&mut self, path: &str, value: impl AsRef<[u8]>) -> usize {
        self.push(Action::Entry(EntryKind::GuardValue), path, &[value.as_ref()])
    }

    /// No child of the node was added or removed since [`Replies::generation`]; `EAGAIN` otherwise.
    pub fn guard_children(&mut self, path: &str, generation: &str) -> usize {
        let rest = [generation.as_bytes(), b"\0"];
        self.push(Action::Entry(EntryKind::GuardChildren), path, &rest)
    }

    pub fn watch(&mut self, path: &str, token: &str) -> usize {
        self.push(Action::Watch, path, &[token.as_bytes(), b"\0"])
    }

    pub fn unwatch(&mut self, path: &str, token: &str) -> usize {
        self.push(Action::Unwatch, path, &[token.as_bytes(), b"\0"])
    }
}

/// Whether a node has children.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HasChildren {
    Yes,
    No,
}

/// The replies to a [`Batch`].
#[derive(Clone, Debug)]
pub struct Replies {
    pub(super) requests: Vec<String>,
    pub(super) results: Vec<Result<Vec<u8>, Error>>,
}

impl Replies {
    /// The reply to the request with this index.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the request in it.
    ///
    /// # Panics
    /// If the batch had no such request.
    pub fn get(&self, index: usize) -> Result<&[u8], ClientError> {
        match &self.results[index] {
            Ok(payload) => Ok(payload),
            Err(error) => {
                Err(ClientError::Refused { request: self.requests[index].clone(), error: *error })
            }
        }
    }

    /// As [`get`](Self::get), with a missing node as `None`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for any other error.
    pub fn get_optional(&self, index: usize) -> Result<Option<&[u8]>, ClientError> {
        match self.get(index) {
            Ok(payload) => Ok(Some(payload)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The generation of a node's list of children, and whether it has any, from the reply to
    /// [`Batch::directory_generation`].
    ///
    /// # Errors
    /// As [`get`](Self::get), or [`ProtocolError::BadReply`].
    pub fn generation(&self, index: usize) -> Result<(String, HasChildren), ClientError> {
        let part = self.get(index)?;
        let end = part.iter().position(|&byte| byte == 0);
        let end = end.ok_or(ProtocolError::BadReply(MessageType::DirectoryPart))?;
        let has_children = if part[end..] == *b"\0\0" { HasChildren::No } else { HasChildren::Yes };
        Ok((String::from_utf8_lossy(&part[..end]).into_owned(), has_children))
    }

    /// The first error, if there is one.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the request in it.
    pub fn all_ok(&self) -> Result<(), ClientError> {
        (0..self.results.len()).try_for_each(|index| self.get(index).map(|_| ()))
    }

    /// The plain results, in the order of the requests.
    pub fn results(&self) -> &[Result<Vec<u8>, Error>] {
        &self.results
    }
}
