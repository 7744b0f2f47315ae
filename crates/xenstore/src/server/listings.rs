//! Cache of lists of children: building one needs every child, sorted by age.

use alloc::vec::Vec;

use crate::tree::Node;

/// Number of slots; each list has only one possible slot.
const SLOTS: usize = 256;

/// Longer ones do not fit into a `DIRECTORY` reply.
const LISTING_BYTES_MAX: usize = crate::wire::PAYLOAD_BYTES_MAX;

/// Listings by the unique generation of the list of children.
#[derive(Debug, Default)]
pub(super) struct Listings {
    slots: Vec<Listing>,
}

#[derive(Clone, Debug, Default)]
struct Listing {
    /// 0: empty.
    generation: u64,
    bytes: Vec<u8>,
}

impl Listings {
    /// Appends the names of the children, oldest first, with a NUL each.
    pub(super) fn list(&mut self, node: &Node, out: &mut Vec<u8>) {
        let Some(generation) = node.shared_generation() else { return list(node, out) };
        if node.name_bytes() > LISTING_BYTES_MAX {
            return list(node, out);
        }
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, Listing::default());
        }
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
        let slot = &mut self.slots[generation as usize % SLOTS];
        if slot.generation != generation {
            slot.generation = generation;
            slot.bytes.clear();
            list(node, &mut slot.bytes);
        }
        out.extend_from_slice(&slot.bytes);
    }
}

/// The payload of a `DIRECTORY` reply.
pub(super) fn list(node: &Node, out: &mut Vec<u8>) {
    for child in node.children_by_age() {
        out.extend_from_slice(child.name().as_bytes());
        out.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::private_to_dom0;
    use crate::path::Path;
    use crate::tree::Tree;
    use alloc::format;

    #[test]
    fn a_listing_is_that_of_the_children_as_they_are() {
        let mut listings = Listings::default();
        let mut tree = Tree::new(private_to_dom0());
        for i in 0..1_000 {
            let path = format!("/{}/{}", i % 7, i % 31);
            let path = Path::from_canonical(&path);
            if i % 3 == 0 {
                tree.remove(path);
            } else {
                tree.ensure(path, None);
            }
            let mut own = tree.private_copy();
            own.ensure(Path::from_canonical("/own"), None);
            for tree in [&tree, &own] {
                for node in tree.root().children().chain([tree.root()]) {
                    let (mut fresh, mut kept) = (Vec::new(), Vec::new());
                    list(node, &mut fresh);
                    listings.list(node, &mut kept);
                    assert_eq!(fresh, kept);
                }
            }
        }
    }
}
