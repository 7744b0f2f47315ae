//! The xenstore, for clients that cannot reach it themselves. Values are texts with escapes as `xenstore-ls` has them:
//! `\n`, `\\`, `\001`, `\xff`; all other bytes are printable ASCII.

use serde::{Deserialize, Serialize};

use crate::request::is_unset;

/// Requests about nodes of the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum StoreRequest {
    /// A node and all below it, a part at a time: each before those below it, siblings in the order of the store. Parts are of
    /// different moments. Answered by [`Reply::StoreTree`](crate::Reply::StoreTree).
    Tree {
        path: String,
        /// The `next` of the last part.
        #[serde(default, skip_serializing_if = "is_unset")]
        after: Option<String>,
        /// Levels below the node; all without it.
        #[serde(default, skip_serializing_if = "is_unset")]
        depth: Option<u32>,
        /// So many nodes at most, of up to 1000.
        #[serde(default, skip_serializing_if = "is_unset")]
        limit: Option<u32>,
    },
    /// Values of one moment; null for a node that is not there. Answered by
    /// [`Reply::StoreValues`](crate::Reply::StoreValues).
    Read { paths: Vec<String> },
    /// Names of nodes' children, of one moment; null for a node that is not there. Answered by
    /// [`Reply::StoreNames`](crate::Reply::StoreNames).
    List { paths: Vec<String> },
    /// Sets values, all or none; missing nodes are created. Answered by [`Reply::Done`](crate::Reply::Done).
    Write { values: Vec<StoreValue> },
    /// Removes nodes and all below them, all or none. Answered by [`Reply::Done`](crate::Reply::Done).
    Rm {
        paths: Vec<String>,
        /// Also parents that are left without a value and children.
        #[serde(default, skip_serializing_if = "is_unset")]
        tidy: bool,
    },
    /// Sets permissions. Answered by [`Reply::Done`](crate::Reply::Done).
    Chmod {
        path: String,
        /// As `n0`, `r3`: a letter of `nrwb`, and a domain; the owner's first.
        permissions: Vec<String>,
        /// Also of all below.
        #[serde(default, skip_serializing_if = "is_unset")]
        recurse: bool,
        /// Also of all above but the root.
        #[serde(default, skip_serializing_if = "is_unset")]
        upto: bool,
    },
    /// Sends [`Answer::Changed`](crate::Answer::Changed) with the paths of what changes at these nodes and below, first with
    /// the nodes themselves, until the client hangs up. Answered by [`Reply::Done`](crate::Reply::Done) after `count` of them.
    Watch {
        paths: Vec<String>,
        /// Leave out changes further below.
        #[serde(default, skip_serializing_if = "is_unset")]
        depth: Option<u32>,
        #[serde(default, skip_serializing_if = "is_unset")]
        count: Option<u32>,
    },
    /// What a domain has in the store, and may have; without one, what each may have. Answered by
    /// [`Reply::StoreQuota`](crate::Reply::StoreQuota).
    Quota {
        #[serde(default, skip_serializing_if = "is_unset")]
        domid: Option<u16>,
    },
    /// Counters and resources of the store's daemon. Answered by [`Reply::StoreStats`](crate::Reply::StoreStats).
    Stats,
    /// The same as Prometheus reads it. Answered by [`Reply::Text`](crate::Reply::Text).
    Metrics,
}

/// A node's new value.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreValue {
    pub path: String,
    pub value: String,
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreNode {
    pub path: String,
    pub value: String,
    /// As `n0`, `r3`; the first names the owner.
    pub permissions: Vec<String>,
    /// How many it has.
    pub children: usize,
}

/// A part of a tree.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreTree {
    pub nodes: Vec<StoreNode>,
    /// Where the next part begins, if there are more nodes.
    pub next: Option<String>,
}

/// One kind of what a domain has in the store.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StoreQuotaRow {
    /// As `nodes`.
    pub name: String,
    /// How much it has now, and had at most.
    pub used: Option<u64>,
    pub used_max: Option<u64>,
    /// How much a domain may have if nothing else was set for it; 0 means any.
    pub limit: Option<u64>,
}
