//! Operations on nodes, inside and outside transactions.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::Error;
use crate::client::{Batch, ClientError, ProtocolError, Replies};
use crate::permission::Permission;
use crate::wire::{self, MessageType};

/// Attempts to read a listing in parts.
const LISTINGS_MAX: u32 = 100;

/// Reading and changing nodes: with a [`Client`](super::Client), each request separately, or with a
/// [`Transaction`](super::Transaction), all or nothing.
pub trait Nodes {
    /// Sends one request on `path` and waits for its reply.
    ///
    /// # Errors
    /// [`ClientError`]; every method below fails in the same ways.
    fn call(
        &mut self,
        kind: MessageType,
        path: &str,
        rest: &[&[u8]],
    ) -> Result<Vec<u8>, ClientError>;

    /// Sends all requests of `batch` and collects the replies: in one round trip each 64 requests,
    /// or each 60 kB if the store serves [batches](crate::wire::batch). A failed request is a value
    /// in [`Replies`], as is a failed guard.
    ///
    /// # Errors
    /// Only errors that end the connection.
    fn run(&mut self, batch: &Batch) -> Result<Replies, ClientError>;

    /// The node's value.
    fn read(&mut self, path: &str) -> Result<Vec<u8>, ClientError> {
        self.call(MessageType::Read, path, &[])
    }

    /// The node's value, or `None` if it does not exist.
    fn read_optional(&mut self, path: &str) -> Result<Option<Vec<u8>>, ClientError> {
        match self.read(path) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The node's value as text.
    fn read_text(&mut self, path: &str) -> Result<String, ClientError> {
        String::from_utf8(self.read(path)?)
            .map_err(|_| ClientError::NotText { path: path.to_owned() })
    }

    /// Sets the value; creates the node and missing parents.
    fn write(&mut self, path: &str, value: &[u8]) -> Result<(), ClientError> {
        self.call(MessageType::Write, path, &[value]).map(|_| ())
    }

    /// Makes sure that the node exists.
    fn mkdir(&mut self, path: &str) -> Result<(), ClientError> {
        self.call(MessageType::Mkdir, path, &[]).map(|_| ())
    }

    /// Removes the node and everything below it. A missing node is no error, but a missing parent
    /// is.
    fn rm(&mut self, path: &str) -> Result<(), ClientError> {
        self.call(MessageType::Rm, path, &[]).map(|_| ())
    }

    /// Names of the node's children, however many there are.
    fn directory(&mut self, path: &str) -> Result<Vec<String>, ClientError> {
        match self.call(MessageType::Directory, path, &[]) {
            Ok(payload) => Ok(names(&payload)),
            Err(error) if error.refusal() == Some(Error::E2BIG) => self.directory_in_parts(path),
            Err(error) => Err(error),
        }
    }

    /// Names of the node's children from several messages; starts again if the list changes meanwhile.
    fn directory_in_parts(&mut self, path: &str) -> Result<Vec<String>, ClientError> {
        let mut generation: Option<Vec<u8>> = None;
        let mut listing: Vec<u8> = Vec::new();
        let mut attempts = 1;
        loop {
            let offset = listing.len().to_string();
            let rest = [offset.as_bytes(), b"\0"];
            let reply = match self.call(MessageType::DirectoryPart, path, &rest) {
                Err(error) if error.refusal() == Some(Error::ENOSYS) => {
                    return Err(ClientError::TooManyChildren { path: path.to_owned() });
                }
                other => other?,
            };
            let bad_reply = ProtocolError::BadReply(MessageType::DirectoryPart);
            let end = reply.iter().position(|&byte| byte == 0).ok_or(bad_reply.clone())?;
            let (reply_generation, part) = (&reply[..end], &reply[end + 1..]);
            if generation.as_deref().is_some_and(|known| known != reply_generation) {
                if attempts == LISTINGS_MAX {
                    return Err(ClientError::Unsteady { path: path.to_owned(), attempts });
                }
                attempts += 1;
                generation = None;
                listing.clear();
                continue;
            }
            generation = Some(reply_generation.to_vec());
            // The last part ends with one NUL more than its last name.
            if part == b"\0" || part.ends_with(b"\0\0") {
                listing.extend_from_slice(&part[..part.len() - 1]);
                return Ok(names(&listing));
            }
            if part.is_empty() {
                return Err(bad_reply.into());
            }
            listing.extend_from_slice(part);
        }
    }

    /// The node's permission list; the first entry names the owner.
    fn get_perms(&mut self, path: &str) -> Result<Vec<Permission>, ClientError> {
        let payload = self.call(MessageType::GetPerms, path, &[])?;
        Permission::decode_list(&payload)
            .map_err(|_| ProtocolError::BadReply(MessageType::GetPerms).into())
    }

    /// Replaces the node's permission list.
    fn set_perms(&mut self, path: &str, permissions: &[Permission]) -> Result<(), ClientError> {
        let list = Permission::encode_list(permissions);
        self.call(MessageType::SetPerms, path, &[list.as_bytes()]).map(|_| ())
    }
}

fn names(payload: &[u8]) -> Vec<String> {
    wire::strings(payload).map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}
