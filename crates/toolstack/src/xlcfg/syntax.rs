//! The syntax of a configuration file: `key = value` and `key += value`, where a value is a string, a
//! number or a list. What keys mean is not known here.
//!
//! Source: xen `tools/libs/util/libxlu_cfg_y.y` and `libxlu_cfg_l.l`. Taken more widely than there: a
//! value without quotes that is no number gets an error of its own, lines may end in CR LF, and the
//! last comment needs no newline.

use std::collections::BTreeMap;

use super::{ConfigError, shown};

/// Nested lists deeper than this are refused; no key of xl needs more than three.
const DEPTH_MAX: u32 = 8;

/// Where something was set.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Place {
    /// A line of the file, from 1.
    Line(u32),
    CommandLine,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Value {
    /// A string or a number: xl keeps both as text.
    Atom(String),
    List(Vec<Setting>),
}

/// A value and where it stands: that of a key, or an element of a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Setting {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// What each key was last set to.
pub(super) type Settings = BTreeMap<String, Setting>;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SyntaxError {
    pub(super) place: Place,
    pub(super) key: Option<String>,
    pub(super) problem: String,
}

impl SyntaxError {
    pub(super) fn in_file(self, file: &str) -> ConfigError {
        let Self { place, key, problem } = self;
        ConfigError { file: file.to_owned(), place: Some(place), key, problem }
    }
}

/// Reads a file's text, then the settings of the command line. After an error it goes on with the next line
/// that begins with a key.
pub(super) fn parse(text: &str, overrides: &[String]) -> (Settings, Vec<SyntaxError>) {
    let (mut settings, mut errors) = (Settings::new(), Vec::new());
    let mut parser = Parser::new(text, Place::Line(1));
    while let Err(error) = parser.statements(&mut settings) {
        errors.push(error);
        parser.skip_to_key();
    }
    errors.extend(overrides.iter().filter_map(|text| parse_override(text, &mut settings).err()));
    (settings, errors)
}

/// The shell takes quotes away, so that a plain word is taken as a string here.
fn parse_override(text: &str, settings: &mut Settings) -> Result<(), SyntaxError> {
    let fail = |problem| SyntaxError { place: Place::CommandLine, key: None, problem };
    let (key, value) =
        text.split_once('=').ok_or_else(|| fail(format!("{}: expected key=value", shown(text))))?;
    let value = value.trim();
    if value.starts_with(['"', '\'', '[']) {
        return Parser::new(text, Place::CommandLine).statements(settings);
    }
    let (key, operator) = match key.strip_suffix('+') {
        Some(key) => (key.trim(), Operator::Add),
        None => (key.trim(), Operator::Assign),
    };
    if !is_key(key) {
        return Err(fail(format!("{}: expected key=value", shown(text))));
    }
    let setting = Setting { value: Value::Atom(value.to_owned()), place: Place::CommandLine };
    store(settings, key, operator, setting)
}

fn is_key(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_alphanumeric())
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Operator {
    Assign,
    Add,
}

fn store(
    settings: &mut Settings,
    key: &str,
    operator: Operator,
    setting: Setting,
) -> Result<(), SyntaxError> {
    match (operator, settings.get_mut(key)) {
        (Operator::Add, Some(old)) => {
            match (&mut old.value, setting.value) {
                (Value::Atom(old), Value::Atom(more)) => old.push_str(&more),
                (Value::List(old), Value::List(more)) => old.extend(more),
                (_, _) => {
                    return Err(SyntaxError {
                        place: setting.place,
                        key: Some(key.to_owned()),
                        problem: "+= needs the same kind of value on both sides, two strings or \
                                  two lists"
                            .to_owned(),
                    });
                }
            }
            old.place = setting.place;
        }
        (_, _) => {
            settings.insert(key.to_owned(), setting);
        }
    }
    Ok(())
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Token {
    Word(String),
    Quoted(String),
    Comma,
    Open,
    Close,
    Assign,
    Add,
    Semicolon,
    Newline,
    End,
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Word(word) => shown(word),
            Self::Quoted(text) => format!("the string {}", shown(text)),
            Self::Comma => "a comma".to_owned(),
            Self::Open => "[".to_owned(),
            Self::Close => "]".to_owned(),
            Self::Assign => "=".to_owned(),
            Self::Add => "+=".to_owned(),
            Self::Semicolon => "a semicolon".to_owned(),
            Self::Newline => "the end of the line".to_owned(),
            Self::End => "the end".to_owned(),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    place: Place,
    /// `rest` and `place` where the statement that is being read begins.
    statement: (&'a str, Place),
    /// The key whose value is being read.
    key: Option<String>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, place: Place) -> Self {
        Self { rest: text, place, statement: (text, place), key: None }
    }

    fn fail(&self, problem: impl Into<String>) -> SyntaxError {
        self.fail_at(self.place, problem)
    }

    fn fail_at(&self, place: Place, problem: impl Into<String>) -> SyntaxError {
        SyntaxError { place, key: self.key.clone(), problem: problem.into() }
    }

    fn statements(&mut self, settings: &mut Settings) -> Result<(), SyntaxError> {
        loop {
            self.key = None;
            self.statement = (self.rest, self.place);
            let place = self.place;
            let key = match self.token()? {
                Token::Newline | Token::Semicolon => continue,
                Token::End => return Ok(()),
                Token::Word(word) if is_key(&word) => word,
                token => {
                    let problem = format!("expected key = value instead of {}", token.shown());
                    return Err(self.fail_at(place, problem));
                }
            };
            self.key = Some(key.clone());
            let operator = match self.token()? {
                Token::Assign => Operator::Assign,
                Token::Add => Operator::Add,
                token => {
                    let problem = format!("expected = after the key instead of {}", token.shown());
                    return Err(self.fail_at(place, problem));
                }
            };
            let first = self.token()?;
            let value = self.value(first, place, 0)?;
            let end_place = self.place;
            match self.token()? {
                Token::Newline | Token::Semicolon | Token::End => {}
                token => {
                    let problem = format!(
                        "expected a new line or a semicolon after the value instead of {}",
                        token.shown()
                    );
                    return Err(self.fail_at(end_place, problem));
                }
            }
            store(settings, &key, operator, Setting { value, place })?;
        }
    }

    /// Goes back to where the statement begins, and on to the next line that begins with `KEY =`.
    fn skip_to_key(&mut self) {
        (self.rest, self.place) = self.statement;
        loop {
            let Some((_, rest)) = self.rest.split_once('\n') else {
                self.rest = "";
                return;
            };
            self.rest = rest;
            if let Place::Line(line) = &mut self.place {
                *line = line.saturating_add(1);
            }
            let line = rest.split('\n').next().unwrap_or_default();
            let key = line.split_once('=').map(|(key, _)| key.strip_suffix('+').unwrap_or(key));
            if key.is_some_and(|key| is_key(key.trim_end())) {
                return;
            }
        }
    }

    /// Reads the value that `first`, at `place`, begins.
    fn value(&mut self, first: Token, place: Place, depth: u32) -> Result<Value, SyntaxError> {
        match first {
            Token::Quoted(text) => Ok(Value::Atom(text)),
            Token::Word(word) if is_number(&word) => Ok(Value::Atom(word)),
            Token::Word(word) => {
                Err(self.fail_at(place, format!("{} needs quotes around it", shown(&word))))
            }
            Token::Open if depth == DEPTH_MAX => Err(self.fail_at(place, "lists nest too deeply")),
            Token::Open => self.list(place, depth + 1),
            token => {
                Err(self.fail_at(place, format!("expected a value instead of {}", token.shown())))
            }
        }
    }

    /// Reads a list up to its closing bracket; the opening one was at `opened`.
    fn list(&mut self, opened: Place, depth: u32) -> Result<Value, SyntaxError> {
        let mut items = Vec::new();
        loop {
            let (place, first) = self.token_after_newlines()?;
            match first {
                Token::Close => return Ok(Value::List(items)),
                Token::End => return Err(self.fail_at(opened, "the list has no closing ]")),
                first => items.push(Setting { value: self.value(first, place, depth)?, place }),
            }
            let (place, token) = self.token_after_newlines()?;
            match token {
                Token::Comma => {}
                Token::Close => return Ok(Value::List(items)),
                Token::End => return Err(self.fail_at(opened, "the list has no closing ]")),
                token => {
                    let problem = format!("expected a comma or ] instead of {}", token.shown());
                    return Err(self.fail_at(place, problem));
                }
            }
        }
    }

    fn token_after_newlines(&mut self) -> Result<(Place, Token), SyntaxError> {
        loop {
            let place = self.place;
            match self.token()? {
                Token::Newline => {}
                token => return Ok((place, token)),
            }
        }
    }

    fn token(&mut self) -> Result<Token, SyntaxError> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
        if self.rest.starts_with('#') {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.rest = &self.rest[end..];
        }
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        let after = &self.rest[first.len_utf8()..];
        let simple = match first {
            '\n' => {
                if let Place::Line(line) = &mut self.place {
                    *line = line.saturating_add(1);
                }
                Some(Token::Newline)
            }
            ',' => Some(Token::Comma),
            '[' => Some(Token::Open),
            ']' => Some(Token::Close),
            '=' => Some(Token::Assign),
            ';' => Some(Token::Semicolon),
            _ => None,
        };
        if let Some(token) = simple {
            self.rest = after;
            return Ok(token);
        }
        if let Some(after) = self.rest.strip_prefix("+=") {
            self.rest = after;
            return Ok(Token::Add);
        }
        if matches!(first, '"' | '\'') {
            return self.quoted(first, after).map(Token::Quoted);
        }
        Ok(Token::Word(self.word()))
    }

    fn word(&mut self) -> String {
        let ends = |(i, c): (usize, char)| {
            let more = matches!(
                c,
                ' ' | '\t' | '\r' | '\n' | ',' | '[' | ']' | '=' | ';' | '#' | '"' | '\''
            );
            more || (c == '+' && self.rest[i..].starts_with("+="))
        };
        let end = self.rest.char_indices().find(|&at| ends(at)).map_or(self.rest.len(), |(i, _)| i);
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    /// Reads a string up to its closing quote; `text` begins after the opening one.
    fn quoted(&mut self, quote: char, text: &'a str) -> Result<String, SyntaxError> {
        // Bytes, because \xHH names a byte: two of them may be one character.
        let mut bytes = Vec::new();
        let mut chars = text.chars();
        loop {
            match chars.next() {
                None | Some('\n') => {
                    return Err(self.fail("the string has no closing quote on its line"));
                }
                Some(c) if c == quote => break,
                Some('\\') => bytes.push(self.escape(&mut chars)?),
                Some(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        self.rest = chars.as_str();
        if bytes.contains(&0) {
            return Err(self.fail("the string contains a NUL"));
        }
        String::from_utf8(bytes).map_err(|_| self.fail("the string is not UTF-8"))
    }

    fn escape(&self, chars: &mut std::str::Chars<'_>) -> Result<u8, SyntaxError> {
        Ok(match chars.next() {
            Some(c @ ('"' | '\'' | '\\')) => u8::try_from(c).unwrap_or(b'\\'),
            Some('a') => 0x07,
            Some('b') => 0x08,
            Some('f') => 0x0c,
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('v') => 0x0b,
            Some('x') => {
                let digits: String = chars.by_ref().take(2).collect();
                match u8::from_str_radix(&digits, 16) {
                    Ok(byte) if digits.len() == 2 && !digits.starts_with('+') => byte,
                    _ => return Err(self.fail("\\x needs two hexadecimal digits")),
                }
            }
            // xl calls its \NNN octal but reads it as decimal.
            Some('0'..='7') => {
                return Err(self.fail("\\ before a digit is ambiguous; use \\xHH"));
            }
            _ => return Err(self.fail("\\ before a character that has no escape")),
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn render(value: &Value) -> String {
        match value {
            Value::Atom(text) => format!("{text:?}"),
            Value::List(items) => {
                let items: Vec<_> = items
                    .iter()
                    .map(|item| match item.place {
                        Place::Line(line) => format!("{}@{line}", render(&item.value)),
                        Place::CommandLine => render(&item.value),
                    })
                    .collect();
                format!("[{}]", items.join(", "))
            }
        }
    }

    fn check_with(text: &str, overrides: &[&str], expected: &Expect) {
        let overrides: Vec<_> = overrides.iter().map(|&text| text.to_owned()).collect();
        let (settings, errors) = parse(text, &overrides);
        let errors = errors.into_iter().map(|SyntaxError { place, key, problem }| {
            format!("{place:?} {}: {problem}\n", key.unwrap_or_default())
        });
        let settings = settings
            .iter()
            .map(|(key, Setting { value, place })| format!("{place:?} {key} {}\n", render(value)));
        expected.assert_eq(&errors.chain(settings).collect::<String>());
    }

    fn check(text: &str, expected: &Expect) {
        check_with(text, &[], expected);
    }

    #[test]
    fn assignments_of_every_kind_are_read() {
        check(
            "# a comment\nname = 'g1' # another\nmemory=64;vcpus = 0x2\n\
             a.b_c = \"it's \\\"so\\\"\"\nlist = [ 'a', # one\n  \"b\",\n\n 3,\n]\nnone=[]\r\n\
             deep = [ [ 'x', 1 ], [] ]\nkey='end' # no newline",
            &expect![[r#"
                Line(4) a.b_c "it's \"so\""
                Line(11) deep [["x"@11, "1"@11]@11, []@11]
                Line(12) key "end"
                Line(5) list ["a"@5, "b"@6, "3"@8]
                Line(3) memory "64"
                Line(2) name "g1"
                Line(10) none []
                Line(3) vcpus "0x2"
            "#]],
        );
    }

    #[test]
    fn a_later_setting_wins_and_plus_adds() {
        check_with(
            "a = '1'\na = '2'\na += '3'\nl = ['x']\nl += ['y']\nnew += 'n'\nl2 = ['x']\n",
            &["l2=[ 'z' ]", "name=my vm", "a+=4", "b = \"c\" ; d='e'", "empty="],
            &expect![[r#"
                CommandLine a "234"
                CommandLine b "c"
                CommandLine d "e"
                CommandLine empty ""
                Line(5) l ["x"@4, "y"@5]
                CommandLine l2 ["z"]
                CommandLine name "my vm"
                Line(6) new "n"
            "#]],
        );
    }

    #[test]
    fn escapes_are_those_of_xl() {
        check(
            r#"a = "\\ \" \' \n\t\r\a\b\f\v \x41\xc3\xa9""#,
            &expect![[r#"
                Line(1) a "\\ \" ' \n\t\r\u{7}\u{8}\u{c}\u{b} Aé"
            "#]],
        );
    }

    #[test]
    fn faults_name_their_line() {
        let check = |text: &str, expected: &str| {
            let SyntaxError { place, key, problem } = parse(text, &[]).1.remove(0);
            assert_eq!(format!("{place:?} {}: {problem}", key.unwrap_or_default()), expected);
        };
        check("\nname", "Line(2) name: expected = after the key instead of the end");
        check(
            "name\n= 'x'",
            "Line(1) name: expected = after the key instead of the end of the line",
        );
        check("a = ", "Line(1) a: expected a value instead of the end");
        check("a = b", "Line(1) a: \"b\" needs quotes around it");
        check("a = /boot/x", "Line(1) a: \"/boot/x\" needs quotes around it");
        check("a = 'x", "Line(1) a: the string has no closing quote on its line");
        check("a = 'x\n'", "Line(1) a: the string has no closing quote on its line");
        check("a = 'x\\\n'", "Line(1) a: \\ before a character that has no escape");
        check("a = '\\0'", "Line(1) a: \\ before a digit is ambiguous; use \\xHH");
        check("a = '\\x0'", "Line(1) a: \\x needs two hexadecimal digits");
        check("a = '\\x+1'", "Line(1) a: \\x needs two hexadecimal digits");
        check("a = '\\x00'", "Line(1) a: the string contains a NUL");
        check("a = '\\xff'", "Line(1) a: the string is not UTF-8");
        check(
            "a = 'x' b = 'y'",
            "Line(1) a: expected a new line or a semicolon after the value instead of \"b\"",
        );
        check("a = [ 'x'\n\n", "Line(1) a: the list has no closing ]");
        check("a = [", "Line(1) a: the list has no closing ]");
        check(
            "a = [\n 'x'\n 'y' ]",
            "Line(3) a: expected a comma or ] instead of the string \"y\"",
        );
        check("a = [ , ]", "Line(1) a: expected a value instead of a comma");
        check("a = [[[[[[[[[", "Line(1) a: lists nest too deeply");
        check(
            "a = 'x'\na += ['y']",
            "Line(2) a: += needs the same kind of value on both sides, two strings or two lists",
        );
        check("def f():\n", "Line(1) def: expected = after the key instead of \"f():\"");
        check("9a = 'x'", "Line(1) : expected key = value instead of \"9a\"");
        check("= 'x'", "Line(1) : expected key = value instead of =");
    }

    #[test]
    fn after_a_fault_the_next_line_with_a_key_is_read() {
        check(
            "a = [ 'x',\nb = 'y'\nc =\nd = x\n  ]\ne += 'z' w\nf = 'ok'",
            &expect![[r#"
                Line(2) a: "b" needs quotes around it
                Line(3) c: expected a value instead of the end of the line
                Line(4) d: "x" needs quotes around it
                Line(6) e: expected a new line or a semicolon after the value instead of "w"
                Line(2) b "y"
                Line(7) f "ok"
            "#]],
        );
    }

    #[test]
    fn an_override_that_is_none_is_refused() {
        for text in ["", "name", "=x", "a b=c", "+=x"] {
            let error = parse("", &[text.to_owned()]).1.remove(0);
            assert_eq!(error.problem, format!("{text:?}: expected key=value"));
            assert_eq!(error.place, Place::CommandLine);
        }
    }
}
