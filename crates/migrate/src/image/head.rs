//! What a saved VM is: the first frame.

use crate::bytes::{Fields, put_u32};
use crate::error::Fault;
use crate::libxc::Headers;

/// Whether a reader that does not know a fact may go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Weight {
    Optional,
    Essential,
}

/// Something about a saved VM that this version has no field for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fact {
    pub key: String,
    pub value: Vec<u8>,
    pub weight: Weight,
}

/// What a saved VM is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Head {
    pub name: String,
    pub uuid: [u8; 16],
    /// The VM's configuration, as text of the caller's form.
    pub config: String,
    pub headers: Headers,
    /// Pages that its domain may have.
    pub pages_max: u64,
    pub vcpus: u32,
    /// When it was saved, in seconds since 1970.
    pub created: u64,
    /// Those with a field above are not among them.
    pub facts: Vec<Fact>,
}

/// A head has about ten.
const FACTS_MAX: usize = 256;
/// Longest head. Its configuration is some KiB long.
const HEAD_BYTES_MAX: usize = 4 << 20;

const NAME: &str = "name";
const UUID: &str = "uuid";
const CONFIG: &str = "config";
const LIBXC: &str = "libxc";
const PAGES_MAX: &str = "pages-max";
const VCPUS: &str = "vcpus";
const CREATED: &str = "created";

fn put(out: &mut Vec<u8>, key: &str, weight: Weight, value: &[u8]) {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a head is short");
    put_u32(out, u32::from(weight == Weight::Essential));
    put_u32(out, length(key.as_bytes()));
    put_u32(out, length(value));
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(value);
}

fn take(fields: &mut Fields<'_>) -> Option<Fact> {
    let (weight, key, value) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let weight = if weight & 1 == 0 { Weight::Optional } else { Weight::Essential };
    let (key, rest) = fields.rest().split_at_checked(key as usize)?;
    let (value, rest) = rest.split_at_checked(value as usize)?;
    *fields = Fields(rest);
    Some(Fact { key: String::from_utf8(key.to_vec()).ok()?, value: value.to_vec(), weight })
}

impl Head {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut libxc = Vec::new();
        self.headers.encode(&mut libxc);
        for (key, value) in [
            (NAME, self.name.as_bytes()),
            (UUID, &self.uuid),
            (CONFIG, self.config.as_bytes()),
            (LIBXC, &libxc),
            (PAGES_MAX, &self.pages_max.to_le_bytes()),
            (VCPUS, &self.vcpus.to_le_bytes()),
            (CREATED, &self.created.to_le_bytes()),
        ] {
            put(out, key, Weight::Essential, value);
        }
        for fact in &self.facts {
            put(out, &fact.key, fact.weight, &fact.value);
        }
    }

    /// Essential facts that are not `known` are refused.
    pub(crate) fn decode(body: &[u8], known: &[&str]) -> Result<Self, Fault> {
        if body.len() > HEAD_BYTES_MAX {
            return Err(Fault::TooLong(body.len() as u64));
        }
        let mut fields = Fields(body);
        let mut facts: Vec<Fact> = Vec::new();
        while !fields.is_empty() {
            let fact = take(&mut fields).ok_or(Fault::Length(body.len() as u64))?;
            if facts.len() == FACTS_MAX {
                return Err(Fault::Unknown("the number of facts", FACTS_MAX as u64 + 1));
            }
            if facts.iter().any(|other| other.key == fact.key) {
                return Err(Fault::Twice);
            }
            facts.push(fact);
        }
        let mut remove = |key: &'static str| {
            let at = facts.iter().position(|fact| fact.key == key);
            at.map(|at| facts.remove(at).value).ok_or(Fault::Missing(key))
        };
        let head = Self {
            name: text(remove(NAME)?)?,
            uuid: array(&remove(UUID)?)?,
            config: text(remove(CONFIG)?)?,
            headers: Headers::decode(&remove(LIBXC)?)?,
            pages_max: u64::from_le_bytes(array(&remove(PAGES_MAX)?)?),
            vcpus: u32::from_le_bytes(array(&remove(VCPUS)?)?),
            created: u64::from_le_bytes(array(&remove(CREATED)?)?),
            facts: Vec::new(),
        };
        let unknown = facts
            .iter()
            .find(|fact| fact.weight == Weight::Essential && !known.contains(&fact.key.as_str()));
        match unknown {
            Some(fact) => Err(Fault::Essential(fact.key.chars().take(64).collect())),
            None => Ok(Self { facts, ..head }),
        }
    }

    /// The value of a fact without a field.
    #[must_use]
    pub fn fact(&self, key: &str) -> Option<&[u8]> {
        self.facts.iter().find(|fact| fact.key == key).map(|fact| fact.value.as_slice())
    }
}

fn text(bytes: Vec<u8>) -> Result<String, Fault> {
    String::from_utf8(bytes).map_err(|_| Fault::NotOne("text"))
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Fault> {
    bytes.try_into().map_err(|_| Fault::Length(bytes.len() as u64))
}
