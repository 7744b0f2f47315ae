//! `cargo xtask messages`: every sentence that an operator can meet, in one list to be read.
//!
//! A sentence is a string literal with words in it, or the text of an error type. Comments, tests, assertions and
//! attributes of the compiler are none. What is printed depends on where it stands, not on what it means: among the
//! lines are a few that are not for operators.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use lab::workspace;
use lexopt::prelude::*;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

const HELP: &str = "\
cargo xtask messages [CRATE ...]

  prints FILE:LINE: TEXT for every message in the sources of these crates
  (default: xy xylemd service toolstack storage api image-parser xen-build)";

const CRATES: [&str; 8] =
    ["xy", "xylemd", "service", "toolstack", "storage", "api", "image-parser", "xen-build"];

/// Macros and methods whose texts only a developer meets, when a promise of our own is broken.
const ASSERTIONS: [&str; 9] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "expect",
    "panic",
    "unreachable",
    "cfg",
];

pub(crate) fn main(parser: &mut lexopt::Parser) -> Result<ExitCode> {
    let mut crates = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Value(name) => crates.push(name.string()?),
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if crates.is_empty() {
        crates = CRATES.map(str::to_owned).to_vec();
    }
    let root = workspace();
    for name in crates {
        let mut files = Vec::new();
        collect(&root.join("crates").join(&name).join("src"), &mut files)?;
        for file in files {
            let shown = file.strip_prefix(&root).unwrap_or(&file).display();
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {shown}"))?;
            for Message { line, text } in messages(&text).with_context(|| format!("{shown}"))? {
                println!("{shown}:{line}: {text}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[derive(Debug, Eq, PartialEq)]
struct Message {
    line: usize,
    text: String,
}

fn messages(source: &str) -> Result<Vec<Message>> {
    let tokens: TokenStream = source.parse().map_err(|error| anyhow!("cannot parse: {error}"))?;
    let mut found = Vec::new();
    walk(tokens, &mut found);
    Ok(found)
}

fn walk(tokens: TokenStream, found: &mut Vec<Message>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                // `#![...]` is one, too.
                at += usize::from(matches!(tokens.get(at), Some(TokenTree::Punct(_))));
                let Some(TokenTree::Group(attribute)) = tokens.get(at) else { continue };
                at += 1;
                if is_attribute(attribute, "error") {
                    walk(attribute.stream(), found);
                } else if is_attribute(attribute, "cfg") && mentions(attribute, "test") {
                    at = after_item(&tokens, at);
                }
            }
            TokenTree::Ident(word) if ASSERTIONS.contains(&word.to_string().as_str()) => {
                at = after_arguments(&tokens, at);
            }
            TokenTree::Group(group) => walk(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if is_sentence(&text) {
                    let line = literal.span().start().line;
                    found.push(Message { line, text: on_one_line(&text) });
                }
            }
            _ => {}
        }
    }
}

fn is_attribute(group: &Group, name: &str) -> bool {
    group.delimiter() == Delimiter::Bracket
        && matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(it)) if it == name)
}

fn mentions(group: &Group, name: &str) -> bool {
    group.stream().into_iter().any(|token| match token {
        TokenTree::Ident(word) => word == name,
        TokenTree::Group(group) => mentions(&group, name),
        _ => false,
    })
}

/// Past the item that begins here: it ends with a block or a semicolon.
fn after_item(tokens: &[TokenTree], begin: usize) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    };
    let length = tokens[begin..].iter().position(ends);
    length.map_or(tokens.len(), |length| begin + length + 1)
}

/// Past `!` and the parentheses, or past the parentheses of a method.
fn after_arguments(tokens: &[TokenTree], begin: usize) -> usize {
    let mut at = begin;
    if matches!(tokens.get(at), Some(TokenTree::Punct(mark)) if mark.as_char() == '!') {
        at += 1;
    }
    if matches!(tokens.get(at), Some(TokenTree::Group(_))) { at + 1 } else { begin }
}

/// Two words at least, the first characters of which are letters.
fn is_sentence(literal: &str) -> bool {
    let Some(text) = literal.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return literal.starts_with("r\"") && literal.contains(' ');
    };
    let words = text
        .split_whitespace()
        .filter(|word| word.chars().filter(|letter| letter.is_ascii_alphabetic()).count() >= 2);
    words.count() >= 2
}

/// A literal that continues on the next line, as printed.
fn on_one_line(literal: &str) -> String {
    let mut lines = literal.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_operators_read_is_found_and_nothing_else() {
        let source = r##"
            //! A module's text.
            /// A comment, "quoted words".
            #[derive(Debug, thiserror::Error)]
            enum Error {
                #[error("no such {0}; `xy list` shows them all")]
                Missing(String),
            }
            #[expect(dead_code, reason = "some reason")]
            fn fail() -> String {
                assert!(true, "never told");
                let it = Some(1).expect("never told either");
                let word = "word";
                format!("{word}: cannot be \
                         read: {it}")
            }
            #[cfg(test)]
            mod tests { const X: &str = "not this one"; }
            #[cfg(test)]
            const Y: &str = "nor this one";
            const Z: &str = "but this one";
        "##;
        let found = messages(source).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.line, it.text.as_str())).collect();
        assert_eq!(
            found,
            [
                (6, "\"no such {0}; `xy list` shows them all\""),
                (14, "\"{word}: cannot be read: {it}\""),
                (21, "\"but this one\""),
            ]
        );
    }
}
