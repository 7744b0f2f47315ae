//! libxc's stream: a domain's memory and registers. Version 3 is written, 2 and 3 are read.

pub(crate) mod order;
mod read;
mod record;

pub use read::{Item, Parser};
pub use record::{
    CpuidLeaf, MsrEntry, P2mFrames, PAGE_BYTES, PageData, PageType, Record, Tsc, VcpuBlob,
    VcpuState,
};

use crate::bytes::{Fields, put_u32};
use crate::error::{Fault, StreamError};
use crate::input::Input;

const MARKER: [u8; 8] = [0xff; 8];
const ID: [u8; 4] = *b"XENF";
const VERSION: u32 = 3;
const VERSION_MIN: u32 = 2;
const BIG_ENDIAN: u16 = 1;
const HEADERS_BYTES: usize = 40;
const PAGE_SHIFT: u16 = 12;

/// What kind of domain a stream is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DomainType {
    Pv,
    /// HVM or PVH.
    Hvm,
}

impl DomainType {
    fn code(self) -> u32 {
        match self {
            Self::Pv => 1,
            Self::Hvm => 2,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pv => "PV",
            Self::Hvm => "HVM or PVH",
        }
    }
}

/// The two headers of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Headers {
    pub version: u32,
    pub domain: DomainType,
    /// Of the Xen that the domain ran on. A major version of 0 is a converted stream of Xen 4.5.
    pub xen_version: (u32, u32),
}

impl Headers {
    /// Headers of a stream of version 3.
    #[must_use]
    pub fn new(domain: DomainType, xen_version: (u32, u32)) -> Self {
        Self { version: VERSION, domain, xen_version }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MARKER);
        out.extend_from_slice(&ID);
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        put_u32(out, self.domain.code());
        out.extend_from_slice(&PAGE_SHIFT.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        put_u32(out, self.xen_version.0);
        put_u32(out, self.xen_version.1);
    }

    fn parse(input: &mut Input) -> Result<Option<Self>, StreamError> {
        const WHAT: &str = "the header of libxc's stream";
        let Some(bytes) = input.peek(HEADERS_BYTES, WHAT)? else { return Ok(None) };
        let headers = Self::decode(bytes).map_err(|fault| input.error(WHAT, fault))?;
        input.consume(HEADERS_BYTES);
        Ok(Some(headers))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut fields = Fields(bytes);
        let short = Fault::Truncated;
        let marker: [u8; 8] = fields.take().ok_or(short.clone())?;
        let id: [u8; 4] = fields.take().ok_or(short.clone())?;
        if marker != MARKER || id != ID {
            return Err(Fault::NotOne("a migration stream of Xen 4.6 or newer"));
        }
        let version = u32::from_be_bytes(fields.take().ok_or(short.clone())?);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(Fault::Version(version));
        }
        let options = u16::from_be_bytes(fields.take().ok_or(short.clone())?);
        if options & BIG_ENDIAN != 0 {
            return Err(Fault::BigEndian);
        }
        if options != 0 {
            return Err(Fault::Unknown("the option word", options.into()));
        }
        let _reserved: [u8; 6] = fields.take().ok_or(short.clone())?;
        let domain = match fields.u32().ok_or(short.clone())? {
            1 => DomainType::Pv,
            2 => DomainType::Hvm,
            other => return Err(Fault::Unknown("the type of the domain", other.into())),
        };
        let page_shift = fields.u16().ok_or(short.clone())?;
        if page_shift != PAGE_SHIFT {
            return Err(Fault::Unknown("the page size", page_shift.into()));
        }
        let _reserved = fields.u16();
        let mut number = || fields.u32().ok_or(short.clone());
        Ok(Self { version, domain, xen_version: (number()?, number()?) })
    }
}
