//! JSON-RPC, versions 1.0 and 2.0: calls in, answers out.

use serde_json::{Map, Number, Value as Json, json};

use crate::failure::Failure;
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
    let json = match (envelope.version, answer) {
        (Version::Two, Ok(value)) => {
            json!({"jsonrpc": "2.0", "result": to_json(value), "id": id})
        }
        (Version::Two, Err(failure)) => {
            json!({"jsonrpc": "2.0", "error": error(failure), "id": id})
        }
        (Version::One, Ok(value)) => {
            json!({"result": to_json(value), "error": null, "id": id})
        }
        (Version::One, Err(failure)) => {
            json!({"result": null, "error": failure.parts(), "id": id})
        }
    };
    json.to_string()
}

fn error(failure: &Failure) -> Json {
    json!({"code": 1, "message": failure.code(), "data": &failure.parts()[1..]})
}

pub(crate) fn to_json(value: &Value) -> Json {
    match value {
        Value::Str(text) => Json::String(text.clone()),
        Value::Int(it) => Json::from(*it),
        Value::Count(it) => Json::from(*it),
        // One that JSON cannot say is zero: none of ours is.
        Value::Float(it) => Number::from_f64(*it).map_or_else(|| Json::from(0), Json::Number),
        Value::Bool(it) => Json::Bool(*it),
        Value::Date(it) => Json::String(date_text(*it)),
        Value::Array(items) => Json::Array(items.iter().map(to_json).collect()),
        Value::Map(map) => {
            Json::Object(map.iter().map(|(key, it)| (key.clone(), to_json(it))).collect())
        }
        Value::Record(record) => {
            let field = |(key, it): (&&str, &Value)| ((*key).to_owned(), to_json(it));
            Json::Object(record.iter().map(field).collect::<Map<_, _>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;
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
            {"id":1,"jsonrpc":"2.0","result":["19700101T00:00:00Z",3]}
            {"error":{"code":1,"data":["p"],"message":"CODE"},"id":1,"jsonrpc":"2.0"}
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
