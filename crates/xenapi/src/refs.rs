//! References and UUIDs of objects.
//!
//! A reference contains the object's UUID, so it is the same after a restart, and nothing has to be kept for it. A VM has
//! its own UUID. What has none in Xylem gets one that follows from what it is called.

use sha2::{Digest, Sha256};
use xen::Uuid;

const PREFIX: &str = "OpaqueRef:";

/// The reference of the object with this UUID.
#[must_use]
pub fn opaque(uuid: Uuid) -> String {
    format!("{PREFIX}{uuid}")
}

/// The UUID in a reference.
#[must_use]
pub(crate) fn uuid_in(reference: &str) -> Option<Uuid> {
    reference.strip_prefix(PREFIX)?.parse().ok()
}

/// The UUID of something that is part of something else, always the same. It has the form of version 8: made by a rule
/// of its own.
#[must_use]
pub fn derived(of: Uuid, kind: &str, name: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(of.0);
    // Lengths keep "ab", "c" and "a", "bc" apart.
    hash.update((kind.len() as u64).to_be_bytes());
    hash.update(kind.as_bytes());
    hash.update(name.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_uuid_never_changes() {
        let vm = Uuid([7; 16]);
        let vbd = derived(vm, "vbd", "51712");
        assert_eq!(vbd.to_string(), "d4ec3993-54a1-8f9b-a088-97af4608c16c");
        assert_eq!(uuid_in(&opaque(vbd)), Some(vbd));
        assert_ne!(derived(vm, "vif", "0"), derived(vm, "vi", "f0"));
        for bad in ["", "OpaqueRef:", "OpaqueRef:NULL", "Ref:1", "OpaqueRef:ää"] {
            assert_eq!(uuid_in(bad), None, "{bad}");
        }
    }
}
