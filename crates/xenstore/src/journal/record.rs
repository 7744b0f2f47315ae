//! One record of the journal as bytes.
//!
//! A byte says which record it is; its fields follow in the order of the table below. Numbers are
//! little-endian groups of seven bits, strings have their length in front. A record that cannot be
//! read makes everything after it unreadable, so readers stop with an error.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use xen::DomId;

use crate::acl::{Acl, Entry, Life};
use crate::path::{CanonicalPath, Path};
use crate::permission::{Access, Permission};
use crate::quota::Quota;

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident = $code:literal { $($field:ident: $type:ty,)* })*) => {
        /// A change, or in a checkpoint a part of the state.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum Record<'a> {
            $($(#[$doc])* $name { $($field: $type,)* },)*
        }

        impl<'a> Record<'a> {
            pub(crate) fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field,)* } => {
                        out.push($code);
                        $($field.put(out);)*
                    })*
                }
            }

            /// Takes the first record off `bytes`, which must not be empty.
            pub(crate) fn decode(bytes: &mut &'a [u8]) -> Option<Self> {
                match take(bytes, 1)?[0] {
                    $($code => Some(Self::$name { $($field: Field::take(bytes)?,)* }),)*
                    _ => None,
                }
            }
        }
    };
}

records! {
    // The tree, by what was done to it.
    Write = 1 { path: Path<'a>, creator: Option<DomId>, value: &'a [u8], }
    Ensure = 2 { path: Path<'a>, creator: Option<DomId>, }
    SetAcl = 3 { path: Path<'a>, acl: &'a [u8], }
    Remove = 4 { path: Path<'a>, }
    /// A dead domain's rights went out of all lists.
    ForgetDomain = 5 { domid: DomId, }
    /// A node of a checkpoint: so many names up from the one before, then this one. An empty list
    /// stands for that of the parent.
    Node = 6 { up: u64, name: &'a str, acl: &'a [u8], value: &'a [u8], }
    /// Lists of children get generations beyond this.
    Generation = 7 { generation: u64, }

    // Special nodes.
    SpecialAcl = 16 { path: Path<'a>, acl: &'a [u8], }
    ForgetSpecialRights = 17 { domid: DomId, }

    // Domains and limits.
    Domain = 32 {
        domid: DomId,
        life: u64,
        unique_id: Option<u64>,
        connection: u64,
        shutdown: bool,
        target: Option<DomId>,
        target_life: u64,
        features: u32,
        quota: Quota,
    }
    DomainEnd = 33 { domid: DomId, }
    Quota = 34 { quota: Quota, }
    /// The highest numbers that were ever given out.
    Numbers = 35 { connection: u64, life: u64, }

    // Rings: the connection of a domain that was introduced.
    Ring = 48 {
        connection: u64,
        domid: DomId,
        gfn: u64,
        port: u32,
        broken: bool,
        must_reset: bool,
        last_transaction: u32,
    }
    /// Where the ring's indexes stand: requests taken out, replies put in.
    RingIndexes = 49 { connection: u64, requests_taken: u32, replies_put: u32, }
    /// The ring begins anew, at this event channel.
    RingReset = 50 { connection: u64, port: u32, }
    RingBroken = 51 { connection: u64, }
    /// Requests were taken out of the ring, and replies were put in before that, up to here.
    Taken = 52 { connection: u64, requests_taken: u32, replies_put: u32, }
    /// What was taken out and waits to be executed.
    Input = 53 { connection: u64, bytes: &'a [u8], }
    Reply = 54 {
        connection: u64,
        code: u32,
        request_id: u32,
        transaction_id: u32,
        payload: &'a [u8],
    }
    Event = 55 { connection: u64, path: &'a str, token: &'a [u8], }
    /// Unsent bytes of a checkpoint, and at which of them replies end.
    Output = 56 { connection: u64, bytes: &'a [u8], reply_ends: Vec<u64>, }
    Watch = 57 {
        connection: u64,
        path: Path<'a>,
        token: &'a [u8],
        depth: Option<u32>,
        home_bytes: u64,
    }
    Unwatch = 58 { connection: u64, path: Path<'a>, token: &'a [u8], }
    ResetWatches = 59 { connection: u64, }
    /// A request in a transaction, which is executed again on the way back.
    Request = 60 { connection: u64, code: u32, transaction_id: u32, payload: &'a [u8], }
    /// A transaction of a checkpoint: it can be read from, its commit will be refused.
    OldTransaction = 61 { connection: u64, transaction_id: u32, }
    /// More of a message whose beginning waits to be executed.
    MoreInput = 62 { connection: u64, bytes: &'a [u8], }
}

/// What a record consists of.
trait Field<'a>: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(bytes: &mut &'a [u8]) -> Option<Self>;
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

impl Field<'_> for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        out.push(rest.to_le_bytes()[0]);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = take(bytes, 1)?[0];
            let group = u64::from(byte & 0x7f);
            if group << shift >> shift != group {
                return None;
            }
            number |= group << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

macro_rules! number_fields {
    ($($type:ty),*) => {$(
        impl Field<'_> for $type {
            fn put(&self, out: &mut Vec<u8>) {
                u64::from(*self).put(out);
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                u64::take(bytes)?.try_into().ok()
            }
        }
    )*};
}

number_fields!(u32, u16);

impl Field<'_> for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(take(bytes, 1)?[0] != 0)
    }
}

impl Field<'_> for DomId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        u16::take(bytes).map(DomId)
    }
}

/// Nothing is zero, something its number plus one.
impl Field<'_> for Option<u32> {
    fn put(&self, out: &mut Vec<u8>) {
        self.map_or(0, |number| u64::from(number) + 1).put(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        match u64::take(bytes)?.checked_sub(1) {
            None => Some(None),
            Some(number) => number.try_into().ok().map(Some),
        }
    }
}

impl Field<'_> for Option<u64> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|number| number.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        if bool::take(bytes)? { u64::take(bytes).map(Some) } else { Some(None) }
    }
}

impl Field<'_> for Option<DomId> {
    fn put(&self, out: &mut Vec<u8>) {
        self.map(|domid| u32::from(domid.0)).put(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        match <Option<u32> as Field>::take(bytes)? {
            None => Some(None),
            Some(number) => number.try_into().ok().map(|number| Some(DomId(number))),
        }
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self);
    }

    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let length = u64::take(bytes)?.try_into().ok()?;
        take(bytes, length)
    }
}

impl<'a> Field<'a> for &'a str {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_bytes().put(out);
    }

    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        core::str::from_utf8(<&[u8]>::take(bytes)?).ok()
    }
}

impl<'a> Field<'a> for Path<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_str().put(out);
    }

    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let text = <&str>::take(bytes)?;
        let is_absolute = text.starts_with(['/', '@']);
        let is_canonical = is_absolute && CanonicalPath::new(text.as_bytes(), "").is_ok();
        is_canonical.then(|| Path::from_canonical(text))
    }
}

impl Field<'_> for Vec<u64> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|number| number.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let count = u64::take(bytes)?;
        (0..count).map(|_| u64::take(bytes)).collect()
    }
}

/// By names, so that a version that knows more limits can read it.
impl Field<'_> for Quota {
    fn put(&self, out: &mut Vec<u8>) {
        (Self::NAMES.len() as u64).put(out);
        for name in Self::NAMES {
            (*name).put(out);
            self.get(name).unwrap_or(0).put(out);
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut quota = Self::default();
        for _ in 0..u64::take(bytes)? {
            let name = <&str>::take(bytes)?;
            let limit = u32::take(bytes)?;
            if let Some(known) = quota.get_mut(name) {
                *known = limit;
            }
        }
        Some(quota)
    }
}

const LIVES: u8 = 1;
const ACL_ENTRY_BYTES: usize = 4;

/// A permission list as bytes: which life of a domain is meant follows from when it is read.
pub(crate) fn encode_acl(acl: &Acl) -> Vec<u8> {
    let mut out = Vec::with_capacity(ACL_ENTRY_BYTES * acl.entries().len());
    for entry in acl.entries() {
        let [low, high] = entry.permission.domid.0.to_le_bytes();
        let letter = match entry.permission.access {
            Access::None => b'n',
            Access::Read => b'r',
            Access::Write => b'w',
            Access::ReadWrite => b'b',
        };
        let lives = if entry.life.is_some() { LIVES } else { 0 };
        out.extend_from_slice(&[letter, lives, low, high]);
    }
    out
}

/// The list again; `life` tells the present life of a domain.
pub(crate) fn decode_acl(bytes: &[u8], life: impl Fn(DomId) -> Option<Life>) -> Option<Arc<Acl>> {
    let mut entries = Vec::with_capacity(bytes.len() / ACL_ENTRY_BYTES);
    for entry in bytes.chunks(ACL_ENTRY_BYTES) {
        let &[letter, lives, low, high] = entry else { return None };
        let access = match letter {
            b'n' => Access::None,
            b'r' => Access::Read,
            b'w' => Access::Write,
            b'b' => Access::ReadWrite,
            _ => return None,
        };
        let domid = DomId(u16::from_le_bytes([low, high]));
        let life = if lives == LIVES { Some(life(domid)?) } else { None };
        entries.push(Entry { permission: Permission::new(access, domid), life });
    }
    if entries.is_empty() { None } else { Some(Arc::new(Acl::new(entries))) }
}

/// Follows the nodes of a checkpoint, which name themselves by the way from the one before.
#[derive(Debug, Default)]
pub(crate) struct NodePath {
    text: String,
}

impl NodePath {
    /// The path of the next node, or `None` if it can be none.
    pub(crate) fn step(&mut self, up: u64, name: &str) -> Option<Path<'_>> {
        for _ in 0..up {
            let parent = self.text.rfind('/')?;
            self.text.truncate(parent);
        }
        self.text.push('/');
        self.text.push_str(name);
        let path = CanonicalPath::new(self.text.as_bytes(), "");
        let is_path = path.is_ok() && !name.is_empty() && !name.contains('/');
        is_path.then(|| Path::from_canonical(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(record: &Record<'_>) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for length in 1..bytes.len() {
            assert_eq!(Record::decode(&mut &bytes[..length]), None, "{record:?} cut at {length}");
        }
        bytes.push(99);
        let mut rest = &bytes[..];
        assert_eq!(Record::decode(&mut rest).as_ref(), Some(record));
        assert_eq!(rest, [99]);
    }

    #[test]
    fn every_kind_of_field_comes_back_and_a_cut_record_is_none() {
        let quota = Quota { nodes: 0, watches: u32::MAX, ..Quota::default() };
        let path = Path::from_canonical("/a/b");
        for record in [
            Record::Write { path, creator: Some(DomId(0xffff)), value: &[0, 255] },
            Record::Ensure { path: Path::ROOT, creator: None },
            Record::Watch {
                connection: u64::MAX,
                path,
                token: b"t",
                depth: Some(u32::MAX),
                home_bytes: 3,
            },
            Record::Watch { connection: 1, path, token: b"", depth: None, home_bytes: 0 },
            Record::Domain {
                domid: DomId(7),
                life: 1 << 40,
                unique_id: Some(u64::MAX),
                connection: 128,
                shutdown: true,
                target: None,
                target_life: 0,
                features: 15,
                quota,
            },
            Record::Output { connection: 5, bytes: &[1; 300], reply_ends: alloc::vec![7, 300] },
        ] {
            round_trip(&record);
        }
    }

    #[test]
    fn permission_lists_name_the_life_that_is_present_when_they_are_read() {
        let entry = |access, domid: u16, life: Option<u64>| Entry {
            permission: Permission::new(access, DomId(domid)),
            life: life.map(Life),
        };
        let acl = Acl::new(alloc::vec![
            entry(Access::None, 0, Some(0)),
            entry(Access::ReadWrite, 5, Some(9)),
            entry(Access::Read, 0x7ff5, None),
        ]);
        let bytes = encode_acl(&acl);
        let lives = |domid: DomId| [(0, 0), (5, 9)].into_iter().find(|(id, _)| *id == domid.0);
        let life = |domid| lives(domid).map(|(_, life)| Life(life));
        assert_eq!(decode_acl(&bytes, life).as_deref(), Some(&acl));
        assert_eq!(decode_acl(&bytes, |_| None), None);
        assert_eq!(decode_acl(&[], life), None);
        assert_eq!(decode_acl(&bytes[..6], life), None);
    }

    #[test]
    fn nodes_of_a_checkpoint_name_themselves_by_the_way_from_the_one_before() {
        let mut path = NodePath::default();
        let steps = [(0, "a", "/a"), (0, "b", "/a/b"), (1, "c", "/a/c"), (2, "d", "/d")];
        for (up, name, expected) in steps {
            assert_eq!(path.step(up, name).map(Path::as_str), Some(expected));
        }
        assert_eq!(path.step(3, "x"), None);
        for name in ["", "a/b", "a b"] {
            assert_eq!(NodePath::default().step(0, name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn numbers_of_every_size_come_back(number: u64, shift in 0u32..64) {
            let number = number >> shift;
            let mut bytes = Vec::new();
            number.put(&mut bytes);
            prop_assert!(bytes.len() <= 10);
            prop_assert_eq!(u64::take(&mut &bytes[..]), Some(number));
        }

        #[test]
        fn noise_is_read_without_harm(noise: Vec<u8>) {
            let mut rest = &noise[..];
            while !rest.is_empty() && Record::decode(&mut rest).is_some() {}
        }
    }
}
