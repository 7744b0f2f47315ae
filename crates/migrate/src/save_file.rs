//! A file of `xl save`, and the beginning of what `xl migrate` sends: a header, the VM's
//! configuration, libxl's stream. Source: `tools/xl/xl.h` and `xl_vmcontrol.c` of Xen.

use crate::bytes::{Fields, put_u32};
use crate::error::{Fault, StreamError};
use crate::input::Input;

const MAGIC: [u8; 32] = *b"Xen saved domain, xl format\n \0 \r";
/// As the writer's words are in memory.
const BYTE_ORDER: u32 = 0x0102_0304;
const BIG_ENDIAN: u32 = 0x0403_0201;
/// The configuration is JSON, not an `xl.cfg` file.
const JSON: u32 = 1;
/// libxl's stream is of version 2.
const STREAM_V2: u32 = 2;
const HEADER_BYTES: usize = 48;
/// A configuration is some KiB long.
const CONFIG_BYTES_MAX: u32 = 4 << 20;

/// Whether a file that begins so is one of `xl save`.
#[must_use]
pub fn is_one(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

/// Appends the header and the configuration, in libxl's JSON.
///
/// # Panics
/// If the configuration is longer than a reader takes.
pub fn encode(config: &str, out: &mut Vec<u8>) {
    let length = u32::try_from(config.len()).unwrap_or(u32::MAX);
    assert!(length <= CONFIG_BYTES_MAX, "a configuration of {length} bytes");
    out.extend_from_slice(&MAGIC);
    for word in [BYTE_ORDER, JSON | STREAM_V2, 0, 4 + length, length] {
        put_u32(out, word);
    }
    out.extend_from_slice(config.as_bytes());
}

/// The configuration at the beginning of a file, in libxl's JSON, once it has come. After it the
/// input is at libxl's stream.
///
/// # Errors
/// The file is damaged, foreign or older than Xen 4.6.
pub fn parse(input: &mut Input) -> Result<Option<String>, StreamError> {
    const WHAT: &str = "the header of the file";
    let Some(bytes) = input.peek(HEADER_BYTES, WHAT)? else { return Ok(None) };
    let length = decode_header(bytes).map_err(|fault| input.error(WHAT, fault))?;
    const CONFIG: &str = "the configuration in the file";
    let whole = HEADER_BYTES + length as usize;
    let Some(bytes) = input.peek(whole, CONFIG)? else { return Ok(None) };
    let config = decode_config(&bytes[HEADER_BYTES..]);
    let config = config.map_err(|fault| input.error(CONFIG, fault))?;
    input.consume(whole);
    Ok(Some(config))
}

/// The length of the optional data.
fn decode_header(bytes: &[u8]) -> Result<u32, Fault> {
    let not_one = || Fault::NotOne("a file of `xl save`");
    let (magic, rest) = bytes.split_first_chunk().ok_or_else(not_one)?;
    if *magic != MAGIC {
        return Err(not_one());
    }
    let mut fields = Fields(rest);
    let mut word = || fields.u32().ok_or(Fault::Truncated);
    let (order, mandatory, _optional, length) = (word()?, word()?, word()?, word()?);
    match order {
        BYTE_ORDER => {}
        BIG_ENDIAN => return Err(Fault::BigEndian),
        other => return Err(Fault::Unknown("the byte order", other.into())),
    }
    if mandatory & !(JSON | STREAM_V2) != 0 {
        return Err(Fault::Unknown("the mandatory flags", mandatory.into()));
    }
    if mandatory != JSON | STREAM_V2 {
        return Err(Fault::NotOne("a file of `xl save` from Xen 4.6 or newer"));
    }
    if length > CONFIG_BYTES_MAX + 4 {
        return Err(Fault::TooLong(length.into()));
    }
    Ok(length)
}

fn decode_config(bytes: &[u8]) -> Result<String, Fault> {
    let wrong = || Fault::Length(bytes.len() as u64);
    let mut fields = Fields(bytes);
    let length = fields.u32().ok_or_else(wrong)?;
    // What follows is for newer readers.
    let config = fields.rest().get(..length as usize).ok_or_else(wrong)?;
    let config = config.strip_suffix(b"\0").unwrap_or(config);
    String::from_utf8(config.to_vec()).map_err(|_| Fault::NotOne("text"))
}
