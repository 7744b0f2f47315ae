//! `hypfs_op` and `xsm_op`: Xen's parameters, and its security module.
//!
//! Sources: `xen/common/hypfs.c`, `xen/xsm/flask/flask_op.c`.

use std::collections::BTreeMap;

use xen::Errno;

use super::SimXen;
use super::hypercall::Arena;
use crate::bytes::{index, put_u32, u32_at, u64_at};

/// `struct xen_hypfs_direntry` and `struct xen_flask_op`, in bytes.
const ENTRY_BYTES: usize = 12;
const FLASK_BYTES: usize = 40;

/// A file of hypfs.
#[derive(Debug)]
struct Parameter {
    /// `XEN_HYPFS_TYPE_STRING` or `_UINT`.
    kind: u8,
    bytes: Vec<u8>,
    /// 0 if it cannot be written.
    bytes_max: u32,
}

/// What an operator has set.
#[derive(Debug)]
pub(super) struct Operator {
    parameters: BTreeMap<String, Parameter>,
    enforces: bool,
    /// The last policy.
    policy: Vec<u8>,
}

impl Operator {
    pub(super) fn new() -> Self {
        let text = |bytes_max| Parameter { kind: 2, bytes: b"warning\0".to_vec(), bytes_max };
        let parameters = [
            (
                "/params/gnttab_max_frames",
                Parameter { kind: 3, bytes: vec![64, 0, 0, 0], bytes_max: 4 },
            ),
            ("/params/guest_loglvl", text(64)),
            ("/params/com1", text(0)),
        ];
        let parameters = parameters.map(|(path, it)| (path.to_owned(), it)).into();
        Self { parameters, enforces: true, policy: Vec::new() }
    }
}

impl SimXen {
    /// A parameter's bytes.
    ///
    /// # Panics
    /// If there is no such parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> &[u8] {
        &self.operator.parameters[&format!("/params/{name}")].bytes
    }

    /// The policy that was last given to the security module.
    #[must_use]
    pub fn flask_policy(&self) -> &[u8] {
        &self.operator.policy
    }

    pub(super) fn hypfs_op(
        &mut self,
        arena: &mut Arena<'_>,
        [cmd, path, path_bytes, buffer, room]: [u64; 5],
    ) -> Result<u64, Errno> {
        let path = arena.get(path, index(path_bytes))?;
        let [path @ .., 0] = path else { return Err(Errno::EINVAL) };
        let path = core::str::from_utf8(path).map_err(|_| Errno::EINVAL)?;
        let entry = self.operator.parameters.get_mut(path).ok_or(Errno::ENOENT)?;
        let room = index(room);
        match cmd {
            1 => {
                let head = arena.get_mut(buffer, ENTRY_BYTES)?;
                head.fill(0);
                head[0] = entry.kind;
                put_u32(head, 4, u32::try_from(entry.bytes.len()).map_err(|_| Errno::EINVAL)?);
                put_u32(head, 8, entry.bytes_max);
                if room < ENTRY_BYTES + entry.bytes.len() {
                    return Err(Errno::ENOBUFS);
                }
                let contents = arena.get_mut(buffer + ENTRY_BYTES as u64, entry.bytes.len())?;
                contents.copy_from_slice(&entry.bytes);
            }
            2 if entry.bytes_max == 0 => return Err(Errno::EACCES),
            2 if room > index(entry.bytes_max.into()) => return Err(Errno::ENOSPC),
            2 if entry.kind != 2 && room != entry.bytes.len() => return Err(Errno::EINVAL),
            2 => entry.bytes = arena.get(buffer, room)?.to_vec(),
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(0)
    }

    pub(super) fn xsm_op(&mut self, arena: &Arena<'_>, address: u64) -> Result<u64, Errno> {
        if !self.config.has_flask {
            return Err(Errno::ENOSYS);
        }
        let op = arena.get(address, FLASK_BYTES)?;
        if u32_at(op, 4) != 1 {
            return Err(Errno::ENOSYS);
        }
        match u32_at(op, 0) {
            1 => {
                let policy = arena.get(u64_at(op, 8), index(u32_at(op, 16).into()))?;
                // As a policy begins.
                if !policy.starts_with(&0xf97c_ff8c_u32.to_le_bytes()) {
                    return Err(Errno::EINVAL);
                }
                self.operator.policy = policy.to_vec();
                Ok(0)
            }
            2 => Ok(self.operator.enforces.into()),
            3 => {
                self.operator.enforces = u32_at(op, 8) != 0;
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }
}
