//! How much of the store a guest may use. The control domain and sockets have no limits.
//!
//! Names and defaults are those of C xenstored (xen `tools/xenstored/domain.c`). A limit of N admits
//! exactly N; 0 stands for no limit.

use alloc::string::String;

macro_rules! quotas {
    ($($(#[$doc:meta])* $field:ident: $name:literal = $default:literal;)*) => {
        /// The limits of one guest, or those that new guests begin with.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub struct Quota {
            $($(#[$doc])* pub $field: u32,)*
        }

        impl Default for Quota {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Quota {
            /// The names of all limits, as in `GET_QUOTA` and on the command line.
            pub const NAMES: &[&str] = &[$($name,)*];

            /// The limit of this name.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<u32> {
                match name { $($name => Some(self.$field),)* _ => None }
            }

            /// The limit of this name, to be set.
            pub fn get_mut(&mut self, name: &str) -> Option<&mut u32> {
                match name { $($name => Some(&mut self.$field),)* _ => None }
            }
        }
    };
}

quotas! {
    /// Nodes that the guest owns.
    nodes: "nodes" = 1000;
    watches: "watches" = 128;
    /// Transactions that are open at a time.
    transactions: "transactions" = 10;
    /// Requests whose reply the guest has not read; it is not served beyond them.
    outstanding: "outstanding" = 20;
    /// Nodes that one transaction reads or changes.
    transaction_nodes: "transaction-nodes" = 1024;
    /// Bytes held for the guest; events beyond them are dropped, and it is not served.
    memory_bytes: "memory" = 2_560_000;
    /// Size of a node: 16, 8 for each permission, its value, the names of its children.
    node_bytes: "node-size" = 2048;
    /// Length of a path without a leading `/local/domain/N/`.
    path_bytes: "path-max" = 2048;
    /// Entries in a permission list.
    permissions: "node-permissions" = 5;
    /// Above this the daemon tells the operator.
    memory_bytes_soft: "soft-memory" = 2_097_152;
}

/// Whether a count or size is within a limit.
pub(crate) fn admits(limit: u32, count: usize) -> bool {
    limit == 0 || usize::try_from(limit).is_ok_and(|limit| count <= limit)
}

/// The limit as a number that comparisons can use.
pub(crate) fn maximum(limit: u32) -> usize {
    match usize::try_from(limit) {
        Ok(limit) if limit > 0 => limit,
        _ => usize::MAX,
    }
}

/// All names, blank separated.
pub(crate) fn names() -> String {
    Quota::NAMES.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_admits_exactly_itself_and_zero_everything() {
        assert!(admits(10, 10));
        assert!(!admits(10, 11));
        assert!(admits(0, usize::MAX));
        assert_eq!(maximum(0), usize::MAX);
    }

    #[test]
    fn every_name_leads_to_its_own_limit() {
        let mut quota = Quota::default();
        for (value, name) in (7..).zip(Quota::NAMES) {
            *quota.get_mut(name).unwrap() = value;
        }
        for (value, name) in (7..).zip(Quota::NAMES) {
            assert_eq!(quota.get(name), Some(value), "{name}");
        }
        assert_eq!(quota.get("no-such"), None);
    }
}
