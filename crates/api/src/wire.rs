//! Encoding and decoding of lines.

use serde::{Deserialize, Serialize};

use crate::{Answer, Request, Role, VERSION};

/// Longest accepted line, in bytes: room for a thousand VMs in one list.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// The peer's line cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("protocol version {peer}, expected {VERSION}: use xy and xylemd of the same release")]
    Version { peer: u64 },
    #[error("cannot decode the message: {0}")]
    Malformed(String),
    #[error("{0:?} is no role")]
    Role(String),
    #[error("the message exceeds {LINE_BYTES_MAX} bytes")]
    TooLong,
}

/// A request, and for whom it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Asked {
    pub request: Request,
    /// The role of somebody for whom the client asks. It gives no right that the client itself has not.
    pub role: Option<Role>,
}

#[derive(Serialize)]
struct OutgoingRequest<'a> {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    as_role: Option<Role>,
    #[serde(flatten)]
    request: &'a Request,
}

#[derive(Deserialize)]
struct Envelope {
    version: u64,
    #[serde(default)]
    as_role: Option<String>,
}

/// A request as a line, newline included.
#[must_use]
pub fn encode_request(request: &Request) -> String {
    line(&OutgoingRequest { version: VERSION, as_role: None, request })
}

/// A request for somebody else as a line, newline included.
#[must_use]
pub fn encode_asked(request: &Request, role: Role) -> String {
    line(&OutgoingRequest { version: VERSION, as_role: Some(role), request })
}

/// An answer as a line, newline included.
#[must_use]
pub fn encode_answer(answer: &Answer) -> String {
    line(answer)
}

/// Decodes a request line, with or without its newline.
///
/// # Errors
/// [`WireError`]; its text can be sent back as [`Answer::Error`].
pub fn decode_request(line: &[u8]) -> Result<Request, WireError> {
    decode_asked(line).map(|it| it.request)
}

/// As [`decode_request`], with the role of somebody for whom the client asks.
///
/// # Errors
/// As for [`decode_request`]. A role that is not known is refused, since it may be a lesser one.
pub fn decode_asked(line: &[u8]) -> Result<Asked, WireError> {
    check_length(line)?;
    // Check the version first: the rest may have another meaning in another version.
    let envelope: Envelope = serde_json::from_slice(line).map_err(malformed)?;
    if envelope.version != u64::from(VERSION) {
        return Err(WireError::Version { peer: envelope.version });
    }
    let known = |name: String| Role::of(&name).ok_or(WireError::Role(name));
    let role = envelope.as_role.map(known).transpose()?;
    let request = serde_json::from_slice(line).map_err(malformed)?;
    Ok(Asked { request, role })
}

/// Decodes an answer line, with or without its newline.
///
/// # Errors
/// [`WireError`].
pub fn decode_answer(line: &[u8]) -> Result<Answer, WireError> {
    check_length(line)?;
    serde_json::from_slice(line).map_err(malformed)
}

fn check_length(line: &[u8]) -> Result<(), WireError> {
    if line.len() <= LINE_BYTES_MAX { Ok(()) } else { Err(WireError::TooLong) }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of map_err")]
fn malformed(error: serde_json::Error) -> WireError {
    WireError::Malformed(error.to_string())
}

/// Our own types have string keys only, so serialisation cannot fail.
fn line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).expect("api types always serialise");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Planned, Target};

    #[test]
    fn what_a_plan_is_wanted_of_survives_the_line() {
        let target = Target("web".to_owned());
        for of in [
            Planned::Reboot { target: target.clone() },
            Planned::BlockAttach { disk: "/a.raw,raw,xvdb,w".to_owned() },
            Planned::BlockDetach { target, disk: "xvdb".to_owned(), force: true },
        ] {
            let request = Request::Plan { of };
            assert_eq!(decode_request(encode_request(&request).as_bytes()).ok(), Some(request));
        }
    }
}
