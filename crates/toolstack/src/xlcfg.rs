//! Reads `xl.cfg` files: text in, a [`VmConfig`], faults and warnings out. Opens no file.
//!
//! The syntax is xl's own (`syntax`). Unlike xl, nothing is dropped silently: a key that xl does not know is a
//! warning, or a fault if it looks like a typo; a key that is not supported is a fault if the VM would not be
//! what was asked for, else a warning (`keys`).
//! Source: xen `docs/man/xl.cfg.5.pod.in`, `xl-disk-configuration.5`, `xl-network-configuration.5`.

mod boot;
mod cpu_features;
mod cpuid;
mod disk;
mod guest;
mod hardware;
mod hvm;
mod keys;
mod machine;
mod pci;
mod pool;
mod served;
mod spice;
mod syntax;
#[cfg(test)]
mod table;
mod text;
mod vdev;
mod vif;
mod viridian;
mod vm;
mod xlconf;

use std::fmt;

pub use pci::pci_function;
pub use pool::read_pool;
pub use text::device_text;
pub use vdev::{ParseVdevError, vdev_name};
pub(crate) use vif::is_domain_0;
pub(crate) use viridian::{
    default_numbers as viridian_default, mask_of_numbers as viridian_mask,
    numbered as viridian_groups,
};
pub(crate) use vm::{MEMORY_MIB_MAX, name_problem};
use xen::DomainKind;
pub use xlconf::{HostDefaults, HostReading, read_host};

use crate::config::{DiskConfig, KeyboardConfig, PciDevice, VifConfig, VmConfig};
use syntax::Place;

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

impl ConfigError {
    /// `KEY: PROBLEM`, for a text that nobody wrote.
    pub(crate) fn without_place(&self) -> String {
        let key = self.key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default();
        format!("{key}{}", self.problem)
    }

    /// The line as a warning instead: `FILE:LINE: warning: KEY: PROBLEM`, as xl writes them.
    fn into_warning(mut self) -> String {
        let key = self.key.take().map(|key| format!("{key}: ")).unwrap_or_default();
        self.problem.insert_str(0, &format!("warning: {key}"));
        self.to_string()
    }
}

/// Whether warnings are faults.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Strictness {
    #[default]
    Tolerant,
    Strict,
}

/// What a configuration says, and everything that is wrong with it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// With faults: what could be read in spite of them, good enough to check the rest.
    pub config: Option<VmConfig>,
    /// In the order of the lines.
    pub faults: Vec<ConfigError>,
    /// A line each, in the order of the lines.
    pub warnings: Vec<String>,
}

/// Reads a configuration as far as it can be read, and finds all its faults. What it does not say is as in `defaults`.
#[must_use]
pub fn read_on(defaults: &HostDefaults, source: Source<'_>, strictness: Strictness) -> Reading {
    let (settings, errors) = syntax::parse(source.text, source.overrides);
    let mut faults: Vec<_> = errors.into_iter().map(|error| error.in_file(source.file)).collect();
    if !faults.is_empty() {
        // What a file lacks is not known before all of it can be read.
        return Reading { faults, ..Reading::default() };
    }
    let reader = vm::Reader { file: source.file, settings: &settings, defaults };
    let (config, mut found) = reader.vm_config();
    faults.append(&mut found.faults);
    if strictness == Strictness::Strict {
        faults.append(&mut found.warnings);
    }
    // What the file lacks is what a misspelt key was to say, so it comes last.
    faults.sort_by_key(|fault| (fault.place.is_none(), fault.place));
    found.warnings.sort_by_key(|warning| warning.place);
    let warnings = found.warnings.into_iter().map(ConfigError::into_warning).collect();
    Reading { config, faults, warnings }
}

/// As [`read_on`] on a host without `xl.conf`.
#[must_use]
pub fn read(source: Source<'_>, strictness: Strictness) -> Reading {
    read_on(&HostDefaults::default(), source, strictness)
}

/// Reads a configuration that has to be right and says all that matters, such as a record; warnings are dropped.
///
/// # Errors
/// The first fault.
pub fn parse(source: Source<'_>) -> Result<VmConfig, ConfigError> {
    let Reading { config, faults, warnings: _ } = read(source, Strictness::Tolerant);
    match faults.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(config.expect("what has no fault can be read")),
    }
}

/// Reads one disk, as `block-attach` names it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_disk(text: &str) -> Result<DiskConfig, String> {
    disk::parse(text)
}

/// Reads one keyboard, as `vkb-attach` names it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_keyboard(text: &str) -> Result<KeyboardConfig, String> {
    served::keyboard(text)
}

/// Reads one PCI device of the host, as `pci-attach` names it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_pci(text: &str) -> Result<PciDevice, String> {
    pci::parse(text)
}

/// Reads one interface, as `network-attach` names it; `devid` is its number unless it says another.
///
/// # Errors
/// What is wrong with it.
pub fn parse_vif_on(defaults: &HostDefaults, text: &str, devid: u32) -> Result<VifConfig, String> {
    vif::parse(text, devid, DomainKind::Pv, &defaults.vif)
}

/// As [`parse_vif_on`] on a host without `xl.conf`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_vif(text: &str, devid: u32) -> Result<VifConfig, String> {
    parse_vif_on(&HostDefaults::default(), text, devid)
}

/// The number of a virtual disk by its name: `xvda` is 51712.
///
/// # Errors
/// [`ParseVdevError`] if it names none.
pub fn parse_vdev(text: &str) -> Result<u32, ParseVdevError> {
    Ok(text.parse::<crate::config::Vdev>()?.number)
}

/// `text` as an error message shows it: quoted, on one line, not too long.
pub(crate) fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut cut: String = text.chars().take(CHARS_MAX).collect();
    if cut.len() < text.len() {
        cut.push_str("...");
    }
    format!("{cut:?}")
}

/// An integer as C's `strtol` reads it with base 0: decimal, `0x` hexadecimal or `0` octal.
fn integer(text: &str) -> Option<i64> {
    let (sign, magnitude) = xen::integer(text)?;
    i64::try_from(magnitude).ok()?.checked_mul(sign)
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
