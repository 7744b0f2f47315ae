//! The records that every reader of a state stream knows, in the layout of Xen's daemons.

use alloc::vec::Vec;

use crate::permission::{Access, Permission};
use crate::state::own::{self, Client, LivesOf, Place, Touch, TransactionState, TreeNode};
use crate::state::{Fault, Fields, Lives, encode_record, put_string, put_u16, put_u32};
use xen::DomId;

const END: u32 = 0;
const GLOBAL: u32 = 1;
const CONNECTION: u32 = 2;
const WATCH: u32 = 3;
const TRANSACTION: u32 = 4;
const NODE: u32 = 5;
const GLOBAL_QUOTA: u32 = 6;
const DOMAIN: u32 = 7;
const WATCH_EXTENDED: u32 = 8;

const TYPE_RING: u16 = 0;
const TYPE_SOCKET: u16 = 1;
const FIELD_UNIQUE_ID: u16 = 1;
/// `DOMID_INVALID`: no target.
const NOBODY: u16 = 0x7ff4;
const PERMISSION_BYTES: usize = 4;
const STALE: u8 = 1;
/// A depth that stands for none.
const DEPTH_UNLIMITED: u16 = 0xffff;

/// Bytes that the body of a record takes in the stream before its padding: what its header says, but
/// for a `WATCH_EXT` of Xen's own writer, which counts four bytes that it does not write.
pub(crate) fn body_bytes(kind: u32, body: &[u8]) -> usize {
    if kind != WATCH_EXTENDED || Watch::decode_documented(Fields::new(body)).is_ok() {
        return body.len();
    }
    let mut fields = Fields::new(body);
    match Watch::decode(&mut fields) {
        Ok(_) => body.len() - fields.rest().len(),
        Err(_) => body.len(),
    }
}

/// One record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Record<'a> {
    End,
    Global(Global),
    Connection(Connection<'a>),
    /// `WATCH`, or `WATCH_EXT` if it has a depth.
    Watch(Watch<'a>),
    Transaction(Transaction),
    Node(Node<'a>),
    GlobalQuota(GlobalQuota<'a>),
    Domain(DomainQuota<'a>),
    Lives(Lives),
    LivesOf(LivesOf),
    Place(Place),
    Client(Client<'a>),
    TransactionState(TransactionState),
    Touch(Touch<'a>),
    TreeNode(TreeNode<'a>),
    /// Of a type that is not known here; to be passed over.
    Unknown(u32),
}

/// Descriptors that the daemon holds for all; -1: none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Global {
    pub listener: i32,
    pub event_channels: i32,
}

/// A client with what it sent that was not executed, and what it was not sent yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Connection<'a> {
    pub id: u32,
    pub peer: Peer,
    pub input: &'a [u8],
    /// Bytes of `output` that end a message of which the client has the beginning.
    pub partial_bytes: u16,
    pub output: &'a [u8],
    /// What Xen calls a domain's life, if the writer knew it.
    pub unique_id: Option<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Peer {
    Socket { descriptor: i32 },
    Ring { domid: DomId, target: Target, port: u32 },
}

/// The domain whose rights another one has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target {
    None,
    Domain(DomId),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Watch<'a> {
    pub connection: u32,
    /// As the client gave it.
    pub path: &'a [u8],
    pub token: &'a [u8],
    pub depth: Option<u16>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transaction {
    pub connection: u32,
    pub transaction: u32,
}

/// A node of the store, or one that a transaction touched.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Node<'a> {
    /// 0: of the store.
    pub connection: u32,
    pub transaction: u32,
    /// Of a transaction: 1 read, 2 written, 0 deleted.
    pub access: u16,
    pub permissions: Permissions<'a>,
    pub path: &'a [u8],
    pub value: &'a [u8],
}

/// A permission list in the form of the stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Permissions<'a>(&'a [u8]);

/// Limits by name, those for each domain first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GlobalQuota<'a> {
    pub of_domains: Vec<(&'a str, u32)>,
    pub of_all: Vec<(&'a str, u32)>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainQuota<'a> {
    pub domid: DomId,
    pub features: u32,
    pub quota: Vec<(&'a str, u32)>,
}

impl<'a> Permissions<'a> {
    /// Appends one entry to a list in this form.
    pub fn push(list: &mut Vec<u8>, permission: Permission, is_stale: bool) {
        list.push(permission.access.letter() as u8);
        list.push(if is_stale { STALE } else { 0 });
        list.extend_from_slice(&permission.domid.0.to_ne_bytes());
    }

    /// Takes a list that [`push`](Self::push) made.
    #[must_use]
    pub fn new(list: &'a [u8]) -> Self {
        Self(list)
    }

    fn decode(fields: &mut Fields<'a>, count: u16) -> Result<Self, Fault> {
        fields.bytes(usize::from(count) * PERMISSION_BYTES).map(Self)
    }

    /// The entries, and whether each is stale. An unknown letter grants nothing.
    pub fn iter(self) -> impl Iterator<Item = (Permission, bool)> + use<'a> {
        self.0.chunks_exact(PERMISSION_BYTES).map(|entry| {
            let access = Access::from_letter(entry[0]).unwrap_or(Access::None);
            let domid = DomId(u16::from_ne_bytes([entry[2], entry[3]]));
            (Permission::new(access, domid), entry[1] & STALE != 0)
        })
    }

    #[must_use]
    pub fn len(self) -> usize {
        self.0.len() / PERMISSION_BYTES
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The list as it lies in the stream; equal lists have equal bytes.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Record<'a> {
    /// Reads a record as [`Frames`](crate::state::Frames) cut it out.
    ///
    /// # Errors
    /// What does not fit together, as part of a sentence.
    pub fn decode(kind: u32, body: &'a [u8]) -> Result<Self, Fault> {
        let mut fields = Fields::new(body);
        let fields = &mut fields;
        Ok(match kind {
            END => Self::End,
            GLOBAL => {
                Self::Global(Global { listener: fields.i32()?, event_channels: fields.i32()? })
            }
            CONNECTION => Self::Connection(Connection::decode(fields, body.len())?),
            WATCH => Self::Watch(Watch::decode(fields)?),
            WATCH_EXTENDED => Self::Watch(Watch::decode_extended(body)?),
            TRANSACTION => Self::Transaction(Transaction {
                connection: fields.u32()?,
                transaction: fields.u32()?,
            }),
            NODE => Self::Node(Node::decode(fields)?),
            GLOBAL_QUOTA => {
                let (of_domains, of_all) = (fields.u16()?, fields.u16()?);
                let count = usize::from(of_domains) + usize::from(of_all);
                let mut of_domains_list = named_values(fields, count)?;
                let of_all = of_domains_list.split_off(usize::from(of_domains));
                Self::GlobalQuota(GlobalQuota { of_domains: of_domains_list, of_all })
            }
            DOMAIN => {
                let (domid, count) = (DomId(fields.u16()?), fields.u16()?);
                let features = fields.u32()?;
                let quota = named_values(fields, usize::from(count))?;
                Self::Domain(DomainQuota { domid, features, quota })
            }
            own::LIVES => Self::Lives(Lives::decode(fields)?),
            own::LIVES_OF => Self::LivesOf(LivesOf::decode(fields)?),
            own::PLACE => Self::Place(Place::decode(fields)?),
            own::CLIENT => Self::Client(Client::decode(fields)?),
            own::TRANSACTION_STATE => Self::TransactionState(TransactionState::decode(fields)?),
            own::TOUCH => Self::Touch(Touch::decode(fields)?),
            own::TREE_NODE => Self::TreeNode(TreeNode::decode(fields)?),
            other => Self::Unknown(other),
        })
    }

    /// Appends the record.
    ///
    /// # Panics
    /// If a length does not fit into its field, which those that the protocol allows do.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::End => encode_record(out, END, |_| ()),
            Self::Global(global) => encode_record(out, GLOBAL, |out| {
                out.extend_from_slice(&global.listener.to_ne_bytes());
                out.extend_from_slice(&global.event_channels.to_ne_bytes());
            }),
            Self::Connection(connection) => {
                encode_record(out, CONNECTION, |out| connection.encode(out));
            }
            Self::Watch(watch) => watch.encode(out),
            Self::Transaction(transaction) => encode_record(out, TRANSACTION, |out| {
                put_u32(out, transaction.connection);
                put_u32(out, transaction.transaction);
            }),
            Self::Node(node) => encode_record(out, NODE, |out| node.encode(out)),
            Self::GlobalQuota(quota) => encode_record(out, GLOBAL_QUOTA, |out| {
                put_u16(out, quota.of_domains.len());
                put_u16(out, quota.of_all.len());
                let all: Vec<_> = quota.of_domains.iter().chain(&quota.of_all).copied().collect();
                put_named_values(out, &all);
            }),
            Self::Domain(domain) => encode_record(out, DOMAIN, |out| {
                out.extend_from_slice(&domain.domid.0.to_ne_bytes());
                put_u16(out, domain.quota.len());
                put_u32(out, domain.features);
                put_named_values(out, &domain.quota);
            }),
            Self::Lives(lives) => encode_record(out, own::LIVES, |out| lives.encode(out)),
            Self::LivesOf(lives) => encode_record(out, own::LIVES_OF, |out| lives.encode(out)),
            Self::Place(place) => encode_record(out, own::PLACE, |out| place.encode(out)),
            Self::Client(client) => encode_record(out, own::CLIENT, |out| client.encode(out)),
            Self::TransactionState(state) => {
                encode_record(out, own::TRANSACTION_STATE, |out| state.encode(out));
            }
            Self::Touch(touch) => encode_record(out, own::TOUCH, |out| touch.encode(out)),
            Self::TreeNode(node) => encode_record(out, own::TREE_NODE, |out| node.encode(out)),
            Self::Unknown(kind) => encode_record(out, *kind, |_| ()),
        }
    }
}

impl<'a> Connection<'a> {
    fn decode(fields: &mut Fields<'a>, body_bytes: usize) -> Result<Self, Fault> {
        let id = fields.u32()?;
        let (kind, present) = (fields.u16()?, fields.u16()?);
        let peer = match kind {
            TYPE_RING => {
                let domid = DomId(fields.u16()?);
                let target = match fields.u16()? {
                    NOBODY => Target::None,
                    target => Target::Domain(DomId(target)),
                };
                Peer::Ring { domid, target, port: fields.u32()? }
            }
            TYPE_SOCKET => {
                let descriptor = fields.i32()?;
                fields.u32()?;
                Peer::Socket { descriptor }
            }
            other => return Err(alloc::format!("connection {id} is of the unknown type {other}")),
        };
        let (input_bytes, partial_bytes) = (usize::from(fields.u16()?), fields.u16()?);
        let output_bytes = usize::try_from(fields.u32()?).unwrap_or(usize::MAX);
        let input = fields.bytes(input_bytes)?;
        let output = fields.bytes(output_bytes)?;
        if usize::from(partial_bytes) > output.len() {
            return Err(alloc::format!("connection {id} has part of a reply that it has not"));
        }
        let mut unique_id = None;
        if present & FIELD_UNIQUE_ID != 0 {
            let at = body_bytes - fields.rest().len();
            fields.bytes(at.next_multiple_of(8) - at)?;
            unique_id = Some(fields.u64()?);
        }
        Ok(Self { id, peer, input, partial_bytes, output, unique_id })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        put_u32(out, self.id);
        let present = if self.unique_id.is_some() { FIELD_UNIQUE_ID } else { 0 };
        match self.peer {
            Peer::Ring { domid, target, port } => {
                out.extend_from_slice(&TYPE_RING.to_ne_bytes());
                out.extend_from_slice(&present.to_ne_bytes());
                out.extend_from_slice(&domid.0.to_ne_bytes());
                let target = match target {
                    Target::None => NOBODY,
                    Target::Domain(domid) => domid.0,
                };
                out.extend_from_slice(&target.to_ne_bytes());
                put_u32(out, port);
            }
            Peer::Socket { descriptor } => {
                out.extend_from_slice(&TYPE_SOCKET.to_ne_bytes());
                out.extend_from_slice(&present.to_ne_bytes());
                out.extend_from_slice(&descriptor.to_ne_bytes());
                put_u32(out, 0);
            }
        }
        put_u16(out, self.input.len());
        out.extend_from_slice(&self.partial_bytes.to_ne_bytes());
        put_u32(out, u32::try_from(self.output.len()).expect("unsent output is below 4 GiB"));
        out.extend_from_slice(self.input);
        out.extend_from_slice(self.output);
        if let Some(unique_id) = self.unique_id {
            let bytes = out.len() - start;
            out.resize(start + bytes.next_multiple_of(8), 0);
            out.extend_from_slice(&unique_id.to_ne_bytes());
        }
    }
}

impl<'a> Watch<'a> {
    fn decode(fields: &mut Fields<'a>) -> Result<Self, Fault> {
        let connection = fields.u32()?;
        let (path, token) = (usize::from(fields.u16()?), usize::from(fields.u16()?));
        let (path, token) = (fields.string(path)?, fields.string(token)?);
        Ok(Self { connection, path, token, depth: None })
    }

    /// The documented form, or that of Xen's own writer, in which depth and padding are missing.
    fn decode_extended(body: &'a [u8]) -> Result<Self, Fault> {
        if let Ok(watch) = Self::decode_documented(Fields::new(body)) {
            return Ok(watch);
        }
        // Without its depth: too many events do no harm.
        Self::decode(&mut Fields::new(body))
    }

    fn decode_documented(mut fields: Fields<'a>) -> Result<Self, Fault> {
        let connection = fields.u32()?;
        let (path, token) = (usize::from(fields.u16()?), usize::from(fields.u16()?));
        let (depth, padding) = (fields.u16()?, fields.u16()?);
        let (path, token) = (fields.string(path)?, fields.string(token)?);
        if padding != 0 || path.is_empty() {
            return Err("a watch with a depth is not in the documented form".into());
        }
        let depth = Some(depth).filter(|depth| *depth != DEPTH_UNLIMITED);
        Ok(Self { connection, path, token, depth })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let kind = if self.depth.is_some() { WATCH_EXTENDED } else { WATCH };
        encode_record(out, kind, |out| {
            put_u32(out, self.connection);
            put_u16(out, self.path.len() + 1);
            put_u16(out, self.token.len() + 1);
            if let Some(depth) = self.depth {
                put_u16(out, usize::from(depth.min(DEPTH_UNLIMITED - 1)));
                put_u16(out, 0);
            }
            put_string(out, self.path);
            put_string(out, self.token);
        });
    }
}

impl<'a> Node<'a> {
    fn decode(fields: &mut Fields<'a>) -> Result<Self, Fault> {
        let (connection, transaction) = (fields.u32()?, fields.u32()?);
        let (path, value) = (usize::from(fields.u16()?), usize::from(fields.u16()?));
        let (access, permissions) = (fields.u16()?, fields.u16()?);
        let permissions = Permissions::decode(fields, permissions)?;
        let (path, value) = (fields.string(path)?, fields.bytes(value)?);
        Ok(Self { connection, transaction, access, permissions, path, value })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.connection);
        put_u32(out, self.transaction);
        put_u16(out, self.path.len() + 1);
        put_u16(out, self.value.len());
        put_u16(out, usize::from(self.access));
        put_u16(out, self.permissions.len());
        out.extend_from_slice(self.permissions.as_bytes());
        put_string(out, self.path);
        out.extend_from_slice(self.value);
    }
}

fn named_values<'a>(fields: &mut Fields<'a>, count: usize) -> Result<Vec<(&'a str, u32)>, Fault> {
    let mut values = Fields::new(fields.bytes(count * 4)?);
    let mut named = Vec::with_capacity(count);
    for _ in 0..count {
        let name = core::str::from_utf8(fields.string_to_nul()?);
        named.push((name.map_err(|_| "the name of a limit is no text")?, values.u32()?));
    }
    Ok(named)
}

fn put_named_values(out: &mut Vec<u8>, named: &[(&str, u32)]) {
    for (_, value) in named {
        put_u32(out, *value);
    }
    for (name, _) in named {
        put_string(out, name.as_bytes());
    }
}
