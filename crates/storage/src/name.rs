//! Names of SRs and VDIs.
//!
//! They become names of files and logical volumes and tags of loop devices, so they use characters
//! that all of these allow, and both fit into a tag of 63 bytes.

use std::fmt;

use crate::StorageError;

/// Longest name of an SR, in bytes.
pub(crate) const SR_BYTES_MAX: usize = 16;
/// Longest name of a VDI, in bytes: a UUID fits.
pub(crate) const VDI_BYTES_MAX: usize = 40;

/// A VDI and its SR, written `sr:vdi`.
///
/// Invariant: both names are valid.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct VdiName {
    sr: String,
    vdi: String,
}

impl VdiName {
    /// Parses `sr:vdi`; `None` for anything else, such as a path.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (sr, vdi) = text.split_once(':')?;
        let fits = is_in_form(sr, SR_BYTES_MAX) && is_in_form(vdi, VDI_BYTES_MAX);
        fits.then(|| Self { sr: sr.to_owned(), vdi: vdi.to_owned() })
    }

    /// The VDI `vdi` of `sr`, if the names are valid.
    ///
    /// # Errors
    /// Says which names are valid.
    pub fn new(sr: &str, vdi: &str) -> Result<Self, StorageError> {
        check_sr(sr)?;
        check("VDI", vdi, VDI_BYTES_MAX)?;
        Ok(Self { sr: sr.to_owned(), vdi: vdi.to_owned() })
    }

    #[must_use]
    pub fn sr(&self) -> &str {
        &self.sr
    }

    #[must_use]
    pub fn vdi(&self) -> &str {
        &self.vdi
    }
}

impl fmt::Display for VdiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sr, self.vdi)
    }
}

fn is_in_form(name: &str, bytes_max: usize) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    name.len() <= bytes_max
        && name.bytes().all(letter)
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
}

pub(crate) fn is_vdi(name: &str) -> bool {
    is_in_form(name, VDI_BYTES_MAX)
}

pub(crate) fn check_sr(name: &str) -> Result<(), StorageError> {
    check("SR", name, SR_BYTES_MAX)
}

fn check(what: &str, name: &str, bytes_max: usize) -> Result<(), StorageError> {
    if is_in_form(name, bytes_max) {
        return Ok(());
    }
    Err(StorageError::Refused(format!(
        "{name:?} cannot name {} {what}: expected up to {bytes_max} of A-Z a-z 0-9 . _ -, a letter or digit first",
        if what == "SR" { "an" } else { "a" },
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vdi_is_distinguished_from_a_path() {
        let longest = format!("{}:{}", "s".repeat(SR_BYTES_MAX), "v".repeat(VDI_BYTES_MAX));
        for text in ["fast:web1", "a:0-._", &longest] {
            assert_eq!(VdiName::parse(text).map(|name| name.to_string()).as_deref(), Some(text));
        }
        let (long_sr, long_vdi) = (format!("s{longest}"), format!("{longest}v"));
        for text in [
            "/a:b", "./a:b", "a:b/c", "a:", ":b", "a:b:c", "a", "", ".a:b", "a:-b", &long_sr,
            &long_vdi,
        ] {
            assert_eq!(VdiName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_invalid_name_is_refused_with_the_rule() {
        assert_eq!(
            VdiName::new("a b", "x").unwrap_err().to_string(),
            "\"a b\" cannot name an SR: expected up to 16 of A-Z a-z 0-9 . _ -, a letter or digit first"
        );
        assert!(VdiName::new("a", "").is_err());
    }
}
