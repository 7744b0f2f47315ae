//! A request's body to a call, and an answer to a reply's body.
//!
//! As in XAPI a path decides: `/jsonrpc` takes JSON, any other takes XML. Clients refuse a content type with a
//! parameter behind it.

use crate::value::Answer;
use crate::{jsonrpc, xmlrpc};

/// Longest accepted body, in bytes.
pub const BODY_BYTES_MAX: usize = 300 << 10;

/// Values within values, at most.
pub(crate) const DEPTH_MAX: usize = 32;

/// The path that takes JSON.
pub const JSON_PATH: &str = "/jsonrpc";

/// A call of a method.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub method: String,
    pub params: Vec<crate::Value>,
}

/// The body is no call. The caller is told by the status of HTTP alone, since there is nobody to give an answer to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Malformed(pub String);

/// In what an answer is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    Xml {
        /// Without a status around its value, as the list of methods alone is.
        is_bare: bool,
    },
    Json(jsonrpc::Envelope),
}

/// The call in a body that was posted to this path.
///
/// # Errors
/// [`Malformed`].
pub fn decode(path: &str, body: &[u8]) -> Result<(Call, Form), Malformed> {
    if body.len() > BODY_BYTES_MAX {
        return Err(Malformed(format!("more than {BODY_BYTES_MAX} bytes")));
    }
    if path.split('?').next() == Some(JSON_PATH) {
        let (call, envelope) = jsonrpc::decode(body)?;
        return Ok((call, Form::Json(envelope)));
    }
    let text = str::from_utf8(body).map_err(|error| Malformed(error.to_string()))?;
    let call = xmlrpc::decode(text)?;
    let is_bare = call.method == "system.listMethods";
    Ok((call, Form::Xml { is_bare }))
}

impl Form {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self, answer: &Answer) -> String {
        match self {
            Self::Xml { is_bare } => xmlrpc::encode(answer, *is_bare),
            Self::Json(envelope) => jsonrpc::encode(answer, envelope),
        }
    }

    #[must_use]
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Xml { .. } => "text/xml",
            Self::Json(_) => "application/json",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Value;

    /// Any value that calls may have.
    pub(crate) fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            "[ -~äé\t\n]{0,12}".prop_map(Value::Str),
            any::<i64>().prop_map(Value::Int),
            any::<bool>().prop_map(Value::Bool),
            (-1e9..1e9).prop_map(Value::Float),
            (0..4_000_000_000_i64).prop_map(Value::Date),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("[a-z<&]{0,6}", inner, 0..4)
                    .prop_map(|map: BTreeMap<_, _>| Value::Map(map)),
            ]
        })
    }

    #[test]
    fn the_path_decides() {
        let xml = b"<methodCall><methodName>system.listMethods</methodName></methodCall>";
        for path in ["/", "/RPC2", "/xmlrpc", "/unknown?x=1"] {
            let (call, form) = decode(path, xml).expect("it is a call");
            assert_eq!(
                (call.method.as_str(), form),
                ("system.listMethods", Form::Xml { is_bare: true })
            );
        }
        let json = br#"{"method":"a.b","id":1}"#;
        let (_, form) = decode("/jsonrpc", json).expect("it is a call");
        assert_eq!(form.content_type(), "application/json");
        assert!(decode("/", json).is_err() && decode("/jsonrpc", xml).is_err());
        assert!(decode("/", &[b' '; BODY_BYTES_MAX + 1]).is_err());
    }
}
