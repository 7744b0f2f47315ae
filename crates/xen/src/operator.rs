//! What an operator changes of Xen while it runs: its parameters, and the policy of its security module.
//!
//! Sources: `xen/include/public/hypfs.h`, `xen/include/public/xsm/flask_op.h`.

use alloc::vec::Vec;

use crate::abi::u32_at;
use crate::{Errno, Hypervisor, Op, Xen, integer};

/// Longest path with its zero byte, in bytes (`XEN_HYPFS_MAX_PATHLEN`).
const PATH_BYTES_MAX: usize = 1024;
/// `struct xen_hypfs_direntry`.
const ENTRY_BYTES: usize = 12;
/// `struct xen_flask_op`, in bytes, of which the union begins at 8.
const FLASK_BYTES: usize = 40;

/// Why a parameter was not set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ParameterError {
    /// Xen has it, but it cannot be changed while it runs.
    ReadOnly,
    /// It is a number or a switch, and the text is none, or too large a one.
    Value,
    /// ENOENT for no such parameter, ENOSYS for a Xen without hypfs.
    Xen(Errno),
}

impl From<Errno> for ParameterError {
    fn from(errno: Errno) -> Self {
        Self::Xen(errno)
    }
}

impl<H: Hypervisor> Xen<H> {
    /// Sets a parameter of Xen's command line, in its syntax.
    ///
    /// # Errors
    /// [`ParameterError`].
    pub fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
        const READ: u64 = 1;
        const WRITE: u64 = 2;
        let mut bytes = Vec::from(*b"/params/");
        bytes.extend(name.bytes());
        bytes.push(0);
        let path_bytes = bytes.len();
        if path_bytes > PATH_BYTES_MAX {
            return Err(Errno::ENOENT.into());
        }
        // The contents lie behind the path.
        bytes.resize(PATH_BYTES_MAX + ENTRY_BYTES, 0);
        let path = self.put_data(&bytes)?;
        let buffer = path + PATH_BYTES_MAX as u64;
        let read = [READ, path, path_bytes as u64, buffer, ENTRY_BYTES as u64];
        match self.timed("hypfs_read", |hypervisor| hypervisor.hypercall(Op::Hypfs, read)) {
            // Only what it is is read, not its value.
            Ok(_) | Err(Errno::ENOBUFS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (_, area) = self.data();
        let entry = &area[PATH_BYTES_MAX..PATH_BYTES_MAX + ENTRY_BYTES];
        let (kind, length, writable) = ([entry[0], entry[1]], u32_at(entry, 4), u32_at(entry, 8));
        if writable == 0 {
            return Err(ParameterError::ReadOnly);
        }
        let contents = contents(kind, length as usize, value).ok_or(ParameterError::Value)?;
        let (_, area) = self.data();
        let room = area.get_mut(PATH_BYTES_MAX..PATH_BYTES_MAX + contents.len());
        room.ok_or(Errno::E2BIG)?.copy_from_slice(&contents);
        let write = [WRITE, path, path_bytes as u64, buffer, contents.len() as u64];
        self.timed("hypfs_write", |hypervisor| hypervisor.hypercall(Op::Hypfs, write))?;
        Ok(())
    }

    /// Whether the Flask security module enforces its policy.
    ///
    /// # Errors
    /// ENOSYS without that module.
    pub fn flask_enforces(&mut self) -> Result<bool, Errno> {
        const GETENFORCE: u32 = 2;
        Ok(self.flask("flask_getenforce", GETENFORCE, 0, 0)? != 0)
    }

    /// Makes the Flask security module enforce its policy, or only log.
    ///
    /// # Errors
    /// ENOSYS without that module; EACCES or EPERM if its policy, or its build, forbids it.
    pub fn set_flask_enforces(&mut self, enforces: bool) -> Result<(), Errno> {
        const SETENFORCE: u32 = 3;
        self.flask("flask_setenforce", SETENFORCE, enforces.into(), 0).map(drop)
    }

    /// Gives the Flask security module another policy.
    ///
    /// # Errors
    /// ENOSYS without that module, E2BIG for more than fits into the arena; EINVAL for no such policy.
    pub fn load_flask_policy(&mut self, policy: &[u8]) -> Result<(), Errno> {
        const LOAD: u32 = 1;
        let (address, area) = self.data_to_end();
        let room = area.get_mut(FLASK_BYTES..FLASK_BYTES + policy.len());
        room.ok_or(Errno::E2BIG)?.copy_from_slice(policy);
        let bytes = u32::try_from(policy.len()).map_err(|_| Errno::E2BIG)?;
        self.flask("flask_load", LOAD, address + FLASK_BYTES as u64, bytes).map(drop)
    }

    /// The operation lies at the beginning of the data.
    fn flask(
        &mut self,
        name: &'static str,
        cmd: u32,
        first: u64,
        second: u32,
    ) -> Result<u64, Errno> {
        const INTERFACE_VERSION: u32 = 1;
        let mut op = [0; FLASK_BYTES];
        op[..4].copy_from_slice(&cmd.to_ne_bytes());
        op[4..8].copy_from_slice(&INTERFACE_VERSION.to_ne_bytes());
        op[8..16].copy_from_slice(&first.to_ne_bytes());
        op[16..20].copy_from_slice(&second.to_ne_bytes());
        let address = self.put_data(&op)?;
        self.timed(name, |hypervisor| hypervisor.hypercall(Op::Xsm, [address, 0, 0, 0, 0]))
    }
}

/// A value as the entry has it; `None` if it cannot be.
fn contents([kind, encoding]: [u8; 2], length: usize, value: &str) -> Option<Vec<u8>> {
    const STRING: u8 = 2;
    const UINT: u8 = 3;
    const INT: u8 = 4;
    const BOOL: u8 = 5;
    const PLAIN: u8 = 0;
    if encoding != PLAIN {
        return None;
    }
    let number = match kind {
        STRING => {
            let mut text = Vec::from(value);
            text.push(0);
            return Some(text);
        }
        UINT | INT => number(value)?,
        BOOL => match value {
            "1" | "on" | "yes" | "true" | "enable" => 1,
            "0" | "off" | "no" | "false" | "disable" => 0,
            _ => return None,
        },
        _ => return None,
    };
    // Xen's switches and numbers have up to eight bytes.
    let bytes = number.to_le_bytes();
    let (low, high) = bytes.split_at_checked(length.min(8))?;
    let fits = high.iter().all(|&byte| byte == 0) || high.iter().all(|&byte| byte == 0xff);
    fits.then(|| Vec::from(low))
}

/// A number as `strtoll` reads it with base 0, with a plus sign too.
fn number(text: &str) -> Option<i128> {
    let (sign, magnitude) = match text.strip_prefix('+') {
        Some(text) => integer(text).filter(|(sign, _)| *sign > 0)?,
        None => integer(text)?,
    };
    Some(i128::from(sign) * i128::from(magnitude))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_value_has_the_type_and_the_length_of_the_entry() {
        assert_eq!(contents([2, 0], 9, "a/b"), Some(b"a/b\0".to_vec()));
        assert_eq!(contents([2, 1], 9, "a/b"), None, "compressed");
        assert_eq!(contents([3, 0], 4, "0x100"), Some(vec![0, 1, 0, 0]));
        assert_eq!(contents([3, 0], 4, "017"), Some(vec![15, 0, 0, 0]));
        assert_eq!(contents([3, 0], 8, "18446744073709551615"), Some(vec![0xff; 8]));
        assert_eq!(contents([4, 0], 4, "-2"), Some(vec![0xfe, 0xff, 0xff, 0xff]));
        assert_eq!(contents([3, 0], 1, "+255"), Some(vec![255]));
        for (kind, length, value) in [
            (3, 1, "256"),
            (3, 4, "0x1000000000"),
            (3, 4, ""),
            (3, 4, "4k"),
            (4, 4, "-"),
            (4, 4, "+-2"),
            (0, 4, "1"),
        ] {
            assert_eq!(contents([kind, 0], length, value), None, "{value}");
        }
        for (value, byte) in [("1", 1), ("on", 1), ("enable", 1), ("no", 0), ("false", 0)] {
            assert_eq!(contents([5, 0], 1, value), Some(vec![byte]));
        }
        assert_eq!(contents([5, 0], 1, "maybe"), None);
    }
}
