//! Reads `xl.cfg` files: text in, a [`VmConfig`] or one clear error out. Opens no file.
//!
//! The syntax is xl's own (`syntax`). Unlike xl, nothing is dropped silently: a key that xl does not
//! know is an error, and so is one that would mean something here but is not supported yet (`keys`).
//! Source: xen `docs/man/xl.cfg.5.pod.in`, `xl-disk-configuration.5`, `xl-network-configuration.5`.

mod disk;
mod hvm;
mod keys;
mod syntax;
mod text;
mod vdev;
mod vif;
mod vm;

use std::fmt;

pub use vdev::ParseVdevError;
use xen::DomainKind;

use crate::config::{DiskConfig, VifConfig, VmConfig};
use syntax::{Place, SyntaxError};

/// A configuration file's text and the settings that win over it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The file's name, for error messages.
    pub file: &'a str,
    pub text: &'a str,
    /// `key=value` settings from the command line. Quotes around a plain value may be left out.
    pub overrides: &'a [String],
}

/// What is wrong with a configuration, in one line that names the file, the line and the key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    file: String,
    /// `None` if the fault is something that the whole file lacks.
    place: Option<Place>,
    /// `None` if the fault is in the syntax before a key is known.
    key: Option<String>,
    problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A file's name may hold anything; the message stays one line.
        let file = self.file.escape_debug();
        match self.place {
            Some(Place::Line(line)) => write!(f, "{file}:{line}: ")?,
            Some(Place::CommandLine) => write!(f, "command line: ")?,
            None => write!(f, "{file}: ")?,
        }
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// Reads a configuration.
///
/// # Errors
/// The first fault found: syntax, then unknown keys, then keys that are not supported, then values.
pub fn parse(source: Source<'_>) -> Result<VmConfig, ConfigError> {
    let settings = syntax::parse(source.text, source.overrides).map_err(
        |SyntaxError { place, key, problem }| ConfigError {
            file: source.file.to_owned(),
            place: Some(place),
            key,
            problem,
        },
    )?;
    vm::Reader { file: source.file, settings: &settings }.vm_config()
}

/// Reads one disk, as `block-attach` names it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_disk(text: &str) -> Result<DiskConfig, String> {
    disk::parse(text)
}

/// Reads one interface, as `network-attach` names it; `devid` is its number unless it says another.
///
/// # Errors
/// What is wrong with it.
pub fn parse_vif(text: &str, devid: u32) -> Result<VifConfig, String> {
    vif::parse(text, devid, DomainKind::Pv)
}

/// The number of a virtual disk by its name: `xvda` is 51712.
///
/// # Errors
/// [`ParseVdevError`] if it names none.
pub fn parse_vdev(text: &str) -> Result<u32, ParseVdevError> {
    Ok(text.parse::<crate::config::Vdev>()?.number)
}

/// `text` as an error message shows it: quoted, on one line, not too long.
fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut cut: String = text.chars().take(CHARS_MAX).collect();
    if cut.len() < text.len() {
        cut.push_str("...");
    }
    format!("{cut:?}")
}

/// An integer as C's `strtol` reads it with base 0: decimal, `0x` hexadecimal or `0` octal.
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    // from_str_radix would take a second sign.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    i64::from_str_radix(digits, radix).ok()?.checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_three_bases() {
        for (text, value) in [
            ("0", Some(0)),
            ("42", Some(42)),
            ("0x1F", Some(31)),
            ("010", Some(8)),
            ("-5", Some(-5)),
            ("08", None),
            ("", None),
            ("-", None),
            ("+5", None),
            ("0x", None),
            ("0x+5", None),
            ("--5", None),
            ("5 ", None),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
        ] {
            assert_eq!(integer(text), value, "{text}");
        }
    }

    #[test]
    fn a_long_or_ugly_text_is_shown_short_and_on_one_line() {
        assert_eq!(shown("a\nb"), r#""a\nb""#);
        assert_eq!(shown(&"x".repeat(80)).len(), 82);
        assert_eq!(shown(&"x".repeat(81)).len(), 85);
    }
}
