//! The records that only this daemon writes: what Xen's records have no place for.
//!
//! Types are above all that are given out, and other readers pass them over. All numbers are native.

use alloc::vec::Vec;

use crate::permission::{Access, Permission};
use crate::state::{Fault, Fields, put_string, put_u16, put_u32};
use xen::DomId;

const FIRST: u32 = 0x5859_0000;
pub(super) const LIVES: u32 = FIRST + 1;
pub(super) const LIVES_OF: u32 = FIRST + 2;
pub(super) const PLACE: u32 = FIRST + 3;
pub(super) const CLIENT: u32 = FIRST + 4;
pub(super) const TRANSACTION_STATE: u32 = FIRST + 5;
pub(super) const TOUCH: u32 = FIRST + 6;
pub(super) const TREE_NODE: u32 = FIRST + 7;

/// Stands for the watch of what is no event, or one whose watch is gone.
pub const NO_WATCH: u32 = u32::MAX;

const PERMISSION_BYTES: usize = 12;

/// Begins the list of all domains and special nodes: what was listed before is void.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lives {
    pub last_life: u64,
    /// The generation of the tree's last change.
    pub generation: u64,
    pub last_connection: u32,
    /// What the domains saved together for writing, in thousandths of a write.
    pub reserve: i64,
}

/// One domain that the store knows, introduced or not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LivesOf {
    pub domid: DomId,
    pub life: u64,
    /// What Xen calls this life, if it tells.
    pub unique_id: Option<u64>,
    /// Its shutdown was reported.
    pub shutdown: bool,
    /// The domain whose rights it has, with that one's life.
    pub target: Option<(DomId, u64)>,
    /// What it may still write, in thousandths of a write.
    pub credit: i64,
}

/// Where the next node belongs among its siblings, and the state of its list of children.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// `None` if it never had children.
    pub children: Option<ChildList>,
    pub sequence: u32,
}

/// A list of children without the children.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ChildList {
    pub generation: u64,
    /// What the next child gets.
    pub next_sequence: u32,
}

/// What a connection's own record does not tell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Client<'a> {
    pub connection: u32,
    pub last_transaction: u32,
    /// The peer broke the protocol.
    pub broken: bool,
    /// The ring is to begin anew before it is served.
    pub must_reset: bool,
    /// As the domain was introduced.
    pub gfn: u64,
    pub port: u32,
    /// How far the ring was served, if it was: the indexes of requests taken and of replies put.
    pub indexes: Option<(u32, u32)>,
    /// A request that is answered later: its code, number and transaction.
    pub held: Option<(u32, u32, u32)>,
    /// Bytes of the output whose events are on their way: equal ones are queued again.
    pub encoded_bytes: u32,
    /// Where in the output replies end.
    pub reply_ends: Numbers<'a>,
    /// The pieces of the output behind the encoded bytes: the length of each, then which watch it is
    /// an event of, counted in the order of the watches' records, or [`NO_WATCH`].
    pub queue: Numbers<'a>,
}

/// A list of numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Numbers<'a>(&'a [u8]);

/// An open transaction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransactionState {
    pub connection: u32,
    pub transaction: u32,
    pub next_order: u32,
    pub failed: bool,
    /// What it saw is not known any more.
    pub outdated: bool,
    pub owned_delta: i64,
    /// The generations of the last change in its snapshot and in its own tree.
    pub snapshot_generation: u64,
    pub own_generation: u64,
}

/// What a transaction saw of a path and did with it; the numbers are those of `transaction.rs`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Touch<'a> {
    pub connection: u32,
    pub transaction: u32,
    pub order: u32,
    pub seen: u8,
    pub set: u8,
    pub removed: bool,
    pub fires: bool,
    /// Length of the value that was written.
    pub value_bytes: u16,
    /// The list before the first change of it.
    pub acl_before: Option<FullPermissions<'a>>,
    pub path: &'a [u8],
}

/// Which tree a node is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layer {
    Store,
    /// What a transaction began with: only where it differs from the store.
    Snapshot,
    /// What a transaction made of it: only where it differs from the snapshot.
    Own,
}

/// One difference of a tree from the one that it is built on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TreeNode<'a> {
    pub connection: u32,
    pub transaction: u32,
    pub layer: Layer,
    pub path: &'a [u8],
    /// `None`: it and all below it is not there.
    pub content: Option<TreeNodeContent<'a>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TreeNodeContent<'a> {
    pub place: Place,
    pub permissions: FullPermissions<'a>,
    pub value: &'a [u8],
}

/// A permission list with the life of each domain in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FullPermissions<'a>(&'a [u8]);

impl<'a> FullPermissions<'a> {
    /// Appends one entry to a list in this form.
    pub fn push(list: &mut Vec<u8>, permission: Permission, life: Option<u64>) {
        list.push(permission.access.letter() as u8);
        list.push(u8::from(life.is_some()));
        list.extend_from_slice(&permission.domid.0.to_ne_bytes());
        list.extend_from_slice(&life.unwrap_or(0).to_ne_bytes());
    }

    /// Takes a list that [`push`](Self::push) made.
    #[must_use]
    pub fn new(list: &'a [u8]) -> Self {
        Self(list)
    }

    fn decode(fields: &mut Fields<'a>, count: u16) -> Result<Self, Fault> {
        fields.bytes(usize::from(count) * PERMISSION_BYTES).map(Self)
    }

    /// The entries with the lives they are bound to.
    pub fn iter(self) -> impl Iterator<Item = (Permission, Option<u64>)> + use<'a> {
        self.0.chunks_exact(PERMISSION_BYTES).map(|entry| {
            let access = Access::from_letter(entry[0]).unwrap_or(Access::None);
            let domid = DomId(u16::from_ne_bytes([entry[2], entry[3]]));
            let life = entry[4..].try_into().map(u64::from_ne_bytes).expect("eight bytes");
            (Permission::new(access, domid), (entry[1] != 0).then_some(life))
        })
    }

    fn len(self) -> usize {
        self.0.len() / PERMISSION_BYTES
    }
}

impl<'a> Numbers<'a> {
    /// Appends one number to a list in this form.
    pub fn push(list: &mut Vec<u8>, number: usize) {
        put_u32(list, u32::try_from(number).unwrap_or(u32::MAX));
    }

    /// Takes a list that [`push`](Self::push) made.
    #[must_use]
    pub fn new(list: &'a [u8]) -> Self {
        Self(list)
    }

    fn decode(fields: &mut Fields<'a>) -> Result<Self, Fault> {
        let count = usize::try_from(fields.u32()?).unwrap_or(usize::MAX);
        fields.bytes(count.saturating_mul(4)).map(Self)
    }

    fn encode(self, out: &mut Vec<u8>) {
        let count = self.0.len() / 4;
        put_u32(out, u32::try_from(count).expect("a list is shorter than what it is about"));
        out.extend_from_slice(self.0);
    }

    pub fn iter(self) -> impl Iterator<Item = u32> + use<'a> {
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        self.0.chunks_exact(4).map(number)
    }
}

impl Lives {
    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, Fault> {
        Ok(Self {
            last_life: fields.u64()?,
            generation: fields.u64()?,
            last_connection: fields.u32()?,
            reserve: fields.i64()?,
        })
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.last_life.to_ne_bytes());
        out.extend_from_slice(&self.generation.to_ne_bytes());
        put_u32(out, self.last_connection);
        out.extend_from_slice(&self.reserve.to_ne_bytes());
    }
}

impl LivesOf {
    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, Fault> {
        let (domid, life) = (DomId(fields.u16()?), fields.u64()?);
        let (is_known, unique_id) = (fields.u8()? != 0, fields.u64()?);
        let (shutdown, has_target) = (fields.u8()? != 0, fields.u8()? != 0);
        let target = (DomId(fields.u16()?), fields.u64()?);
        let (unique_id, target) = (is_known.then_some(unique_id), has_target.then_some(target));
        Ok(Self { domid, life, unique_id, shutdown, target, credit: fields.i64()? })
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.domid.0.to_ne_bytes());
        out.extend_from_slice(&self.life.to_ne_bytes());
        out.push(u8::from(self.unique_id.is_some()));
        out.extend_from_slice(&self.unique_id.unwrap_or(0).to_ne_bytes());
        out.push(u8::from(self.shutdown));
        out.push(u8::from(self.target.is_some()));
        let (target, life) = self.target.unwrap_or((DomId(0), 0));
        out.extend_from_slice(&target.0.to_ne_bytes());
        out.extend_from_slice(&life.to_ne_bytes());
        out.extend_from_slice(&self.credit.to_ne_bytes());
    }
}

impl Place {
    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, Fault> {
        let (generation, sequence) = (fields.u64()?, fields.u32()?);
        let (next_sequence, had_children) = (fields.u32()?, fields.u8()? != 0);
        let children = ChildList { generation, next_sequence };
        Ok(Self { children: had_children.then_some(children), sequence })
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        let children = self.children.unwrap_or(ChildList { generation: 0, next_sequence: 0 });
        out.extend_from_slice(&children.generation.to_ne_bytes());
        put_u32(out, self.sequence);
        put_u32(out, children.next_sequence);
        out.push(u8::from(self.children.is_some()));
    }
}

impl<'a> Client<'a> {
    pub(super) fn decode(fields: &mut Fields<'a>) -> Result<Self, Fault> {
        Ok(Self {
            connection: fields.u32()?,
            last_transaction: fields.u32()?,
            broken: fields.u8()? != 0,
            must_reset: fields.u8()? != 0,
            gfn: fields.u64()?,
            port: fields.u32()?,
            indexes: match fields.u8()? {
                0 => None,
                _ => Some((fields.u32()?, fields.u32()?)),
            },
            held: match fields.u8()? {
                0 => None,
                _ => Some((fields.u32()?, fields.u32()?, fields.u32()?)),
            },
            encoded_bytes: fields.u32()?,
            reply_ends: Numbers::decode(fields)?,
            queue: Numbers::decode(fields)?,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.connection);
        put_u32(out, self.last_transaction);
        out.push(u8::from(self.broken));
        out.push(u8::from(self.must_reset));
        out.extend_from_slice(&self.gfn.to_ne_bytes());
        put_u32(out, self.port);
        out.push(u8::from(self.indexes.is_some()));
        if let Some((requests_taken, replies_put)) = self.indexes {
            put_u32(out, requests_taken);
            put_u32(out, replies_put);
        }
        out.push(u8::from(self.held.is_some()));
        if let Some((code, request, transaction)) = self.held {
            put_u32(out, code);
            put_u32(out, request);
            put_u32(out, transaction);
        }
        put_u32(out, self.encoded_bytes);
        self.reply_ends.encode(out);
        self.queue.encode(out);
    }
}

impl TransactionState {
    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, Fault> {
        Ok(Self {
            connection: fields.u32()?,
            transaction: fields.u32()?,
            next_order: fields.u32()?,
            failed: fields.u8()? != 0,
            outdated: fields.u8()? != 0,
            owned_delta: fields.i64()?,
            snapshot_generation: fields.u64()?,
            own_generation: fields.u64()?,
        })
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        put_u32(out, self.connection);
        put_u32(out, self.transaction);
        put_u32(out, self.next_order);
        out.push(u8::from(self.failed));
        out.push(u8::from(self.outdated));
        out.extend_from_slice(&self.owned_delta.to_ne_bytes());
        out.extend_from_slice(&self.snapshot_generation.to_ne_bytes());
        out.extend_from_slice(&self.own_generation.to_ne_bytes());
    }
}

impl<'a> Touch<'a> {
    pub(super) fn decode(fields: &mut Fields<'a>) -> Result<Self, Fault> {
        let (connection, transaction) = (fields.u32()?, fields.u32()?);
        let (order, seen, set) = (fields.u32()?, fields.u8()?, fields.u8()?);
        let (removed, fires) = (fields.u8()? != 0, fields.u8()? != 0);
        let value_bytes = fields.u16()?;
        let (path, permissions) = (usize::from(fields.u16()?), fields.u16()?);
        let acl_before = match permissions {
            0 => None,
            count => Some(FullPermissions::decode(fields, count)?),
        };
        let path = fields.string(path)?;
        Ok(Self {
            connection,
            transaction,
            order,
            seen,
            set,
            removed,
            fires,
            value_bytes,
            acl_before,
            path,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.connection);
        put_u32(out, self.transaction);
        put_u32(out, self.order);
        out.push(self.seen);
        out.push(self.set);
        out.push(u8::from(self.removed));
        out.push(u8::from(self.fires));
        put_u16(out, usize::from(self.value_bytes));
        put_u16(out, self.path.len() + 1);
        put_u16(out, self.acl_before.map_or(0, FullPermissions::len));
        out.extend_from_slice(self.acl_before.map_or(&[], |list| list.0));
        put_string(out, self.path);
    }
}

impl<'a> TreeNode<'a> {
    pub(super) fn decode(fields: &mut Fields<'a>) -> Result<Self, Fault> {
        let (connection, transaction) = (fields.u32()?, fields.u32()?);
        let layer = match fields.u16()? {
            0 => Layer::Store,
            1 => Layer::Snapshot,
            2 => Layer::Own,
            other => return Err(alloc::format!("a node is of the unknown layer {other}")),
        };
        let path = usize::from(fields.u16()?);
        let (permissions, value) = (fields.u16()?, usize::from(fields.u16()?));
        let content = if permissions == 0 {
            None
        } else {
            let place = Place::decode(fields)?;
            let permissions = FullPermissions::decode(fields, permissions)?;
            Some(TreeNodeContent { place, permissions, value: fields.bytes(value)? })
        };
        Ok(Self { connection, transaction, layer, path: fields.string(path)?, content })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.connection);
        put_u32(out, self.transaction);
        let layer = match self.layer {
            Layer::Store => 0,
            Layer::Snapshot => 1,
            Layer::Own => 2,
        };
        put_u16(out, layer);
        put_u16(out, self.path.len() + 1);
        match self.content {
            Some(TreeNodeContent { place, permissions, value }) => {
                put_u16(out, permissions.len());
                put_u16(out, value.len());
                place.encode(out);
                out.extend_from_slice(permissions.0);
                out.extend_from_slice(value);
            }
            None => put_u32(out, 0),
        }
        put_string(out, self.path);
    }
}
