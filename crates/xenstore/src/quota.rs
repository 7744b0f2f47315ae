//! Quotas of guests. The control domain and sockets have no limits.
//!
//! Names and defaults are those of C xenstored (xen `tools/xenstored/domain.c`). A limit of N
//! admits exactly N; 0 means no limit.

use alloc::string::String;

macro_rules! quotas {
    ($($(#[$doc:meta])* $field:ident: $name:literal = $default:literal, $text:literal;)*) => {
        /// The limits of one guest, or the defaults of new guests.
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

            /// Description of the limit with this name.
            pub(crate) fn text(name: &str) -> &'static str {
                match name { $($name => $text,)* _ => "" }
            }

            /// The limit with this name.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<u32> {
                match name { $($name => Some(self.$field),)* _ => None }
            }

            /// The limit with this name, mutable.
            pub fn get_mut(&mut self, name: &str) -> Option<&mut u32> {
                match name { $($name => Some(&mut self.$field),)* _ => None }
            }
        }
    };
}

quotas! {
    /// Nodes that the guest owns.
    nodes: "nodes" = 1000, "nodes that a domain owns";
    watches: "watches" = 128, "watches of a domain";
    /// Requests whose reply the guest has not read; it is not served beyond them.
    outstanding: "outstanding" = 20, "requests of a domain with an unread reply";
    /// Bytes held for the guest. Requests that need more are refused, events beyond it are dropped,
    /// and the guest is not served until it has read its replies.
    memory_bytes: "memory" = 2_621_440, "bytes held for a domain";
    /// Above this the daemon logs a warning.
    memory_bytes_soft: "soft-memory" = 2_097_152, "bytes held for a domain (warning)";
    /// Transactions that are open at a time.
    transactions: "transactions" = 10, "open transactions of a domain";
    /// Nodes that one transaction reads or changes.
    transaction_nodes: "transaction-nodes" = 1024, "nodes that one transaction touches";
    /// Entries in a permission list.
    permissions: "node-permissions" = 5, "permissions of a node";
    /// Length of a path without a leading `/local/domain/N/`.
    path_bytes: "path-max" = 2048, "length of a path";
    /// Size of a node: 16, 8 for each permission, its value, the names of its children.
    node_bytes: "node-size" = 2048, "size of a node";
}

/// Prefix of limits that only warn.
pub(crate) const SOFT_PREFIX: &str = "soft-";

/// A guest's current or maximum use of some limits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Seen {
    pub(crate) nodes: usize,
    pub(crate) watches: usize,
    pub(crate) outstanding: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) transactions: usize,
}

impl Seen {
    /// The use of the limit with this name; `None` if it is not cumulative.
    pub(crate) fn get(&self, name: &str) -> Option<usize> {
        match name {
            "nodes" => Some(self.nodes),
            "watches" => Some(self.watches),
            "outstanding" => Some(self.outstanding),
            "memory" => Some(self.memory_bytes),
            "transactions" => Some(self.transactions),
            _ => None,
        }
    }

    /// The maximum of each.
    pub(crate) fn max(&self, other: &Self) -> Self {
        Self {
            nodes: self.nodes.max(other.nodes),
            watches: self.watches.max(other.watches),
            outstanding: self.outstanding.max(other.outstanding),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            transactions: self.transactions.max(other.transactions),
        }
    }
}

/// Whether a count or size is within a limit.
pub(crate) fn admits(limit: u32, count: usize) -> bool {
    limit == 0 || usize::try_from(limit).is_ok_and(|limit| count <= limit)
}

/// The limit as a number for comparisons.
pub(crate) fn maximum(limit: u32) -> usize {
    match usize::try_from(limit) {
        Ok(limit) if limit > 0 => limit,
        _ => usize::MAX,
    }
}

/// All names, separated by spaces.
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
