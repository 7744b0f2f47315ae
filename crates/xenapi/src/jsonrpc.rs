//! JSON-RPC, versions 1.0 and 2.0: calls in, answers out.

use serde::{Serialize, Serializer};
use serde_json::{Number, Value as Json, json};

use crate::rpc::{Call, DEPTH_MAX, Malformed};
use crate::value::{Answer, Value, date_text};

/// The version in which a call came, and its answer goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    One,
    Two,
}

/// What an answer needs of its call.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    pub version: Version,
    /// A number or a text, as it came.
    pub id: Json,
}

/// A call. One without an identifier is refused: nobody would hear of its answer.
///
/// # Errors
/// [`Malformed`].
pub fn decode(body: &[u8]) -> Result<(Call, Envelope), Malformed> {
    let json: Json = serde_json::from_slice(body).map_err(|error| Malformed(error.to_string()))?;
    let Json::Object(mut call) = json else {
        return Err(Malformed("not an object".to_owned()));
    };
    let version = match call.get("jsonrpc").map(Json::as_str) {
        Some(Some("2.0")) => Version::Two,
        None | Some(Some("1.0")) => Version::One,
        Some(_) => return Err(Malformed("an unknown version".to_owned())),
    };
    let id = match call.remove("id") {
        Some(id @ (Json::String(_) | Json::Number(_))) => id,
        _ => return Err(Malformed("it has no id".to_owned())),
    };
    let Some(Json::String(method)) = call.remove("method") else {
        return Err(Malformed("it has no method".to_owned()));
    };
    let params = match call.remove("params") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(params)) => {
            params.into_iter().map(|it| value(it, 0)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(Malformed("its params are not a list".to_owned())),
    };
    Ok((Call { method, params }, Envelope { version, id }))
}

pub(crate) fn from_json(json: Json) -> Result<Value, Malformed> {
    value(json, 0)
}

fn value(json: Json, depth: usize) -> Result<Value, Malformed> {
    if depth >= DEPTH_MAX {
        return Err(Malformed("it is nested too deep".to_owned()));
    }
    Ok(match json {
        Json::Null => Value::void(),
        Json::Bool(it) => Value::Bool(it),
        Json::Number(it) => number(&it)?,
        Json::String(it) => Value::Str(it),
        Json::Array(items) => Value::Array(
            items.into_iter().map(|it| value(it, depth + 1)).collect::<Result<_, _>>()?,
        ),
        Json::Object(map) => Value::Map(
            map.into_iter()
                .map(|(key, it)| Ok((key, value(it, depth + 1)?)))
                .collect::<Result<_, Malformed>>()?,
        ),
    })
}

fn number(it: &Number) -> Result<Value, Malformed> {
    let value = it.as_i64().map(Value::Int).or_else(|| it.as_f64().map(Value::Float));
    value.ok_or_else(|| Malformed("a number that is too large".to_owned()))
}

/// The answer to a call.
#[must_use]
pub fn encode(answer: &Answer, envelope: &Envelope) -> String {
    let id = &envelope.id;
    let reply = match (envelope.version, answer) {
        (Version::Two, Ok(value)) => Reply::new(id, "2.0").result(value),
        (Version::Two, Err(failure)) => Reply::new(id, "2.0").error(json!({
            "code": 1, "message": failure.code(), "data": &failure.parts()[1..],
        })),
        // Version 1.0 has both, of which one is null.
        (Version::One, Ok(value)) => {
            Reply { error: Some(Json::Null), ..Reply::new(id, "") }.result(value)
        }
        (Version::One, Err(failure)) => {
            Reply { nothing: Some(()), ..Reply::new(id, "") }.error(json!(failure.parts()))
        }
    };
    serde_json::to_string(&reply).expect("keys are texts")
}

/// Written as it is: a tree of all values would be as large again.
#[derive(Serialize)]
struct Reply<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Json>,
    id: &'a Json,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    /// No result, where that is to be said.
    #[serde(rename = "result", skip_serializing_if = "Option::is_none")]
    nothing: Option<()>,
}

impl<'a> Reply<'a> {
    fn new(id: &'a Json, jsonrpc: &'static str) -> Self {
        Self { jsonrpc, error: None, id, result: None, nothing: None }
    }

    fn result(self, value: &'a Value) -> Self {
        Self { result: Some(value), ..self }
    }

    fn error(self, error: Json) -> Self {
        Self { error: Some(error), ..self }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Str(text) => out.serialize_str(text),
            Self::Int(it) => out.serialize_i64(*it),
            Self::Count(it) => out.serialize_u32(*it),
            // One that JSON cannot say is zero: none of ours is.
            Self::Float(it) => out.serialize_f64(if it.is_finite() { *it } else { 0.0 }),
            Self::Bool(it) => out.serialize_bool(*it),
            Self::Date(it) => out.serialize_str(&date_text(*it)),
            Self::Array(items) => out.collect_seq(items),
            Self::Map(map) => out.collect_map(map),
            Self::Record(record) => out.collect_map(record.iter()),
        }
    }
}

/// One value as JSON.
pub(crate) fn to_json(value: &Value) -> Json {
    serde_json::to_value(value).expect("keys are texts")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;
    use crate::Failure;
    use crate::rpc::tests::value as any_value;

    #[test]
    fn calls_of_both_versions_are_read() {
        let one = decode(br#"{"method":"VM.start","params":["r",true,5,1.5,{"a":[]}],"id":"x"}"#);
        expect![[r#"Ok((Call { method: "VM.start", params: [Str("r"), Bool(true), Int(5), Float(1.5), Map({"a": Array([])})] }, Envelope { version: One, id: String("x") }))"#]]
        .assert_eq(&format!("{one:?}"));
        let two = decode(br#"{"jsonrpc":"2.0","method":"a.b","id":7}"#).expect("it is a call");
        assert_eq!(two.1, Envelope { version: Version::Two, id: 7.into() });
        let deep =
            format!(r#"{{"method":"a","id":1,"params":[{}{}]}}"#, "[".repeat(60), "]".repeat(60));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"method":"a","params":[]}"#,
            r#"{"method":"a","params":[],"id":null}"#,
            r#"{"method":"a","params":{},"id":1}"#,
            r#"{"jsonrpc":"3.0","method":"a","id":1}"#,
            &deep,
        ] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn answers_are_in_the_version_of_the_call() {
        let failure = Err(Failure::new("CODE", ["p"]));
        let date = Ok([Value::Date(0), Value::Count(3)].into_iter().collect());
        let mut all = String::new();
        for version in [Version::One, Version::Two] {
            let envelope = Envelope { version, id: 1.into() };
            for answer in [&date, &failure] {
                all += &encode(answer, &envelope);
                all.push('\n');
            }
        }
        expect![[r#"
            {"error":null,"id":1,"result":["19700101T00:00:00Z",3]}
            {"error":["CODE","p"],"id":1,"result":null}
            {"jsonrpc":"2.0","id":1,"result":["19700101T00:00:00Z",3]}
            {"jsonrpc":"2.0","error":{"code":1,"data":["p"],"message":"CODE"},"id":1}
        "#]]
        .assert_eq(&all);
    }

    proptest! {
        #[test]
        fn values_come_back(it in any_value()) {
            let read = value(to_json(&it), 0).expect("it was written here");
            prop_assert_eq!(to_json(&read), to_json(&it));
        }

        #[test]
        fn nothing_panics(body in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&body);
        }

        #[test]
        fn nothing_like_json_panics(body in r#"(\{|\}|\[|\]|"method":|"id":|"params":|"a"|1|,|e9|-){0,30}"#) {
            let _ = decode(body.as_bytes());
        }
    }
}
