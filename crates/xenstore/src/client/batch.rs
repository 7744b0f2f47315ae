//! Many requests in one round trip.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;
use crate::client::ClientError;
use crate::permission::Permission;
use crate::wire::MessageType;

/// Requests that are sent together; the replies come back in the same order.
///
/// Outside a transaction each takes effect on its own, in order, whatever became of those before it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(super) requests: Vec<BatchRequest>,
}

#[derive(Clone, Debug)]
pub(super) struct BatchRequest {
    pub(super) kind: MessageType,
    pub(super) payload: Vec<u8>,
    path_bytes: usize,
}

impl BatchRequest {
    /// Such as `read /local/domain/3/name`, for error messages.
    pub(super) fn describe(&self) -> String {
        describe(self.kind, &self.payload[..self.path_bytes])
    }
}

pub(super) fn describe(kind: MessageType, path: &[u8]) -> String {
    format!("{} {}", kind.label(), String::from_utf8_lossy(path))
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

    fn push(&mut self, kind: MessageType, path: &str, rest: &[&[u8]]) -> usize {
        let mut payload =
            Vec::with_capacity(path.len() + 1 + rest.iter().map(|r| r.len()).sum::<usize>());
        payload.extend_from_slice(path.as_bytes());
        payload.push(0);
        for part in rest {
            payload.extend_from_slice(part);
        }
        self.requests.push(BatchRequest { kind, payload, path_bytes: path.len() });
        self.requests.len() - 1
    }

    /// Each of these returns the request's index in [`Replies`].
    pub fn read(&mut self, path: &str) -> usize {
        self.push(MessageType::Read, path, &[])
    }

    pub fn directory(&mut self, path: &str) -> usize {
        self.push(MessageType::Directory, path, &[])
    }

    pub fn get_perms(&mut self, path: &str) -> usize {
        self.push(MessageType::GetPerms, path, &[])
    }

    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> usize {
        self.push(MessageType::Write, path, &[value.as_ref()])
    }

    pub fn mkdir(&mut self, path: &str) -> usize {
        self.push(MessageType::Mkdir, path, &[])
    }

    pub fn rm(&mut self, path: &str) -> usize {
        self.push(MessageType::Rm, path, &[])
    }

    pub fn set_perms(&mut self, path: &str, permissions: &[Permission]) -> usize {
        let list = Permission::encode_list(permissions);
        self.push(MessageType::SetPerms, path, &[list.as_bytes()])
    }

    pub fn watch(&mut self, path: &str, token: &str) -> usize {
        self.push(MessageType::Watch, path, &[token.as_bytes(), b"\0"])
    }

    pub fn unwatch(&mut self, path: &str, token: &str) -> usize {
        self.push(MessageType::Unwatch, path, &[token.as_bytes(), b"\0"])
    }
}

/// What the store answered to a [`Batch`].
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
    /// [`ClientError::Refused`] for any other refusal.
    pub fn get_optional(&self, index: usize) -> Result<Option<&[u8]>, ClientError> {
        match self.get(index) {
            Ok(payload) => Ok(Some(payload)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first refusal, if there is one.
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
