//! XML-RPC: calls in, answers out.
//!
//! Integers are written without a type, as XAPI writes them: clients for 32 bits would refuse larger ones otherwise.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;

use crate::failure::Failure;
use crate::rpc::{Call, DEPTH_MAX, Malformed};
use crate::value::{Answer, Value, date_text, parse_date};

/// A call.
///
/// # Errors
/// [`Malformed`].
pub fn decode(text: &str) -> Result<Call, Malformed> {
    let mut parser = Parser::of(text);
    parser.open("methodCall")?;
    parser.open("methodName")?;
    let method = parser.text_to_end()?.trim().to_owned();
    let mut params = Vec::new();
    if parser.opens("params")? {
        while parser.opens("param")? {
            params.push(parser.value_element(0)?);
            parser.close()?;
        }
        parser.close()?;
    }
    parser.close()?;
    Ok(Call { method, params })
}

/// One value as it stands in a call: `<value>..</value>`.
///
/// # Errors
/// [`Malformed`].
pub fn decode_value(text: &str) -> Result<Value, Malformed> {
    Parser::of(text).value_element(0)
}

/// What comes next, without what says nothing.
enum Token {
    Open(String),
    Close,
    Text(String),
    End,
}

struct Parser<'a> {
    reader: Reader<&'a [u8]>,
    /// Read, and not used yet.
    next: Option<Token>,
}

impl<'a> Parser<'a> {
    fn of(text: &'a str) -> Self {
        let mut reader = Reader::from_str(text);
        // Names of ends are checked by the reader, so they need not be here.
        reader.config_mut().expand_empty_elements = true;
        Self { reader, next: None }
    }

    fn take(&mut self) -> Result<Token, Malformed> {
        if let Some(token) = self.next.take() {
            return Ok(token);
        }
        loop {
            let event = self.reader.read_event().map_err(|error| Malformed(error.to_string()))?;
            let token = match event {
                Event::Start(start) => Token::Open(start.name().into_inner().to_owned()),
                Event::End(_) => Token::Close,
                Event::Text(text) => Token::Text(text.xml10_content().into_owned()),
                Event::CData(data) => Token::Text(data.xml10_content().into_owned()),
                Event::GeneralRef(it) => Token::Text(resolved(&it)?),
                Event::Eof => Token::End,
                // Nobody needs a document type, and it could define entities.
                Event::DocType(_) => return Err(Malformed("it has a document type".to_owned())),
                _ => continue,
            };
            return Ok(token);
        }
    }

    /// The next token that is not white space.
    fn take_mark(&mut self) -> Result<Token, Malformed> {
        loop {
            match self.take()? {
                Token::Text(text) if text.trim().is_empty() => {}
                Token::Text(_) => return Err(Malformed("text where an element goes".to_owned())),
                token => return Ok(token),
            }
        }
    }

    fn open(&mut self, name: &str) -> Result<(), Malformed> {
        match self.take_mark()? {
            Token::Open(found) if found == name => Ok(()),
            _ => Err(Malformed(format!("{name} is missing"))),
        }
    }

    /// Whether this element is next; it is open then.
    fn opens(&mut self, name: &str) -> Result<bool, Malformed> {
        match self.take_mark()? {
            Token::Open(found) if found == name => Ok(true),
            token => {
                self.next = Some(token);
                Ok(false)
            }
        }
    }

    fn close(&mut self) -> Result<(), Malformed> {
        match self.take_mark()? {
            Token::Close => Ok(()),
            _ => Err(Malformed("an element does not end where it should".to_owned())),
        }
    }

    /// The text up to the end of the open element.
    fn text_to_end(&mut self) -> Result<String, Malformed> {
        let mut text = String::new();
        loop {
            match self.take()? {
                Token::Text(part) => text.push_str(&part),
                Token::Close => return Ok(text),
                _ => return Err(Malformed("an element where text goes".to_owned())),
            }
        }
    }

    fn value_element(&mut self, depth: usize) -> Result<Value, Malformed> {
        self.open("value")?;
        self.value(depth)
    }

    /// The rest of an open value.
    fn value(&mut self, depth: usize) -> Result<Value, Malformed> {
        if depth >= DEPTH_MAX {
            return Err(Malformed("it is nested too deep".to_owned()));
        }
        let mut text = String::new();
        loop {
            match self.take()? {
                Token::Text(part) => text.push_str(&part),
                Token::Close => return Ok(Value::Str(text)),
                Token::Open(kind) => {
                    let value = self.typed(&kind, depth)?;
                    self.close()?;
                    return Ok(value);
                }
                Token::End => return Err(Malformed("it ends in a value".to_owned())),
            }
        }
    }

    fn typed(&mut self, kind: &str, depth: usize) -> Result<Value, Malformed> {
        match kind {
            "struct" => return self.members(depth),
            "array" => return self.items(depth),
            _ => {}
        }
        let text = self.text_to_end()?;
        let word = text.trim();
        let value = match kind {
            "string" => return Ok(Value::Str(text)),
            "nil" => return Ok(Value::void()),
            "i4" | "int" | "i8" => word.parse().ok().map(Value::Int),
            "double" => word.parse().ok().map(Value::Float),
            "boolean" => match word {
                "1" => Some(Value::Bool(true)),
                "0" => Some(Value::Bool(false)),
                _ => None,
            },
            "dateTime.iso8601" => parse_date(word).map(Value::Date),
            _ => None,
        };
        value.ok_or_else(|| Malformed(format!("{kind}: not a value of a known type")))
    }

    fn members(&mut self, depth: usize) -> Result<Value, Malformed> {
        let mut map = BTreeMap::new();
        while self.opens("member")? {
            self.open("name")?;
            let name = self.text_to_end()?;
            map.insert(name, self.value_element(depth + 1)?);
            self.close()?;
        }
        self.close()?;
        Ok(Value::Map(map))
    }

    fn items(&mut self, depth: usize) -> Result<Value, Malformed> {
        let mut items = Vec::new();
        if self.opens("data")? {
            while self.opens("value")? {
                items.push(self.value(depth + 1)?);
            }
            self.close()?;
        }
        self.close()?;
        Ok(Value::Array(items))
    }
}

fn resolved(it: &quick_xml::events::BytesRef<'_>) -> Result<String, Malformed> {
    if let Ok(Some(character)) = it.resolve_char_ref() {
        return Ok(character.to_string());
    }
    let known = resolve_xml_entity(&it.xml10_content()).map(str::to_owned);
    known.ok_or_else(|| Malformed("an unknown entity".to_owned()))
}

/// The answer to a call. A bare one has no status around its value; failures always have.
#[must_use]
pub fn encode(answer: &Answer, is_bare: bool) -> String {
    let mut out = String::from("<?xml version=\"1.0\"?><methodResponse><params><param>");
    match answer {
        Ok(value) if is_bare => write_value(&mut out, value),
        Ok(value) => {
            out.push_str(
                "<value><struct><member><name>Status</name><value>Success</value></member>",
            );
            out.push_str("<member><name>Value</name>");
            write_value(&mut out, value);
            out.push_str("</member></struct></value>");
        }
        Err(failure) => write_failure(&mut out, failure),
    }
    out.push_str("</param></params></methodResponse>");
    out
}

fn write_failure(out: &mut String, failure: &Failure) {
    out.push_str("<value><struct><member><name>Status</name><value>Failure</value></member>");
    out.push_str("<member><name>ErrorDescription</name>");
    write_value(out, &failure.parts().iter().map(String::as_str).collect());
    out.push_str("</member></struct></value>");
}

/// One value as it stands in an answer, and in the results of tasks.
#[must_use]
pub fn encode_value(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

fn write_value(out: &mut String, value: &Value) {
    out.push_str("<value>");
    match value {
        Value::Str(text) => write_text(out, text),
        Value::Int(it) => {
            let _ = write!(out, "{it}");
        }
        Value::Count(it) => {
            let _ = write!(out, "<i4>{it}</i4>");
        }
        Value::Float(it) => {
            let _ = write!(out, "<double>{it}</double>");
        }
        Value::Bool(it) => {
            let _ = write!(out, "<boolean>{}</boolean>", u8::from(*it));
        }
        Value::Date(it) => {
            let _ = write!(out, "<dateTime.iso8601>{}</dateTime.iso8601>", date_text(*it));
        }
        Value::Array(items) => {
            out.push_str("<array><data>");
            items.iter().for_each(|item| write_value(out, item));
            out.push_str("</data></array>");
        }
        Value::Map(map) => write_members(out, map.iter()),
        Value::Record(record) => write_members(out, record.iter()),
    }
    out.push_str("</value>");
}

fn write_members<'a, K: AsRef<str>>(
    out: &mut String,
    members: impl Iterator<Item = (K, &'a Value)>,
) {
    out.push_str("<struct>");
    for (name, value) in members {
        out.push_str("<member><name>");
        write_text(out, name.as_ref());
        out.push_str("</name>");
        write_value(out, value);
        out.push_str("</member>");
    }
    out.push_str("</struct>");
}

/// Characters that XML cannot have are left out.
fn write_text(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // A parser would make a line feed of a plain one.
            '\r' => out.push_str("&#13;"),
            '\t' | '\n' => out.push(character),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => {}
            _ => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;
    use crate::rpc::tests::value;

    #[test]
    fn calls_are_read_as_clients_write_them() {
        let call = decode(
            "<?xml version='1.0'?>\n<methodCall>\n<methodName>VM.start</methodName>\n<params>\n\
             <param>\n<value><string>OpaqueRef:1</string></value>\n</param>\n\
             <param><value>plain &amp; &#65;<![CDATA[<b>]]></value></param>\n\
             <param><value><boolean>1</boolean></value></param><param><value/></param>\n\
             <param><value><array><data>\n<value><i4>-5</i4></value><value><int>7</int></value>\n\
             </data></array></value></param>\n\
             <param><value><struct><member><name>k</name><value><double>1.5</double></value>\
             </member></struct></value></param>\n</params>\n</methodCall>\n",
        )
        .expect("it is a call");
        expect![[r#"Call { method: "VM.start", params: [Str("OpaqueRef:1"), Str("plain & A<b>"), Bool(true), Str(""), Array([Int(-5), Int(7)]), Map({"k": Float(1.5)})] }"#]]
        .assert_eq(&format!("{call:?}"));
        let call = decode("<methodCall><methodName>a.b</methodName></methodCall>");
        assert_eq!(call.expect("it is a call").params, []);
    }

    #[test]
    fn what_is_no_call_is_refused() {
        let deep = "<value><array><data>".repeat(100);
        for text in [
            "",
            "x",
            "<methodCall/>",
            "<methodCall><methodName>a</methodName>",
            "<methodCall><methodName>a</methodName><params><param><value><i4>x</i4></value>",
            "<methodCall><methodName>a</methodNam></methodCall>",
            "<!DOCTYPE x [<!ENTITY a 'b'>]><methodCall><methodName>&a;</methodName></methodCall>",
            "<methodCall><methodName>&a;</methodName></methodCall>",
            &format!("<methodCall><methodName>a</methodName><params><param>{deep}"),
        ] {
            assert!(decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn answers_have_a_status() {
        let check = |answer: &Answer, is_bare, expected: expect_test::Expect| {
            let text = encode(answer, is_bare);
            let inner = text.strip_prefix("<?xml version=\"1.0\"?><methodResponse><params><param>");
            expected.assert_eq(inner.unwrap_or(&text));
        };
        check(
            &Ok(Value::Int(42)),
            false,
            expect![
                "<value><struct><member><name>Status</name><value>Success</value></member><member><name>Value</name><value>42</value></member></struct></value></param></params></methodResponse>"
            ],
        );
        check(
            &Ok(["a<"].into_iter().collect()),
            true,
            expect![
                "<value><array><data><value>a&lt;</value></data></array></value></param></params></methodResponse>"
            ],
        );
        check(
            &Err(Failure::new("A", ["b"])),
            true,
            expect![
                "<value><struct><member><name>Status</name><value>Failure</value></member><member><name>ErrorDescription</name><value><array><data><value>A</value><value>b</value></data></array></value></member></struct></value></param></params></methodResponse>"
            ],
        );
    }

    proptest! {
        #[test]
        fn values_come_back(value in value()) {
            // Integers have no type, and read as texts.
            let read = decode_value(&encode_value(&value)).expect("it was written here");
            prop_assert_eq!(encode_value(&read), encode_value(&value));
        }

        #[test]
        fn nothing_panics(text in "(<|>|&|/|value|methodCall|methodName|params|param|array|data|x|;|#|\\PC){0,60}") {
            let _ = decode(&text);
            let _ = decode_value(&text);
        }
    }
}
