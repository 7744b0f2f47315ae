//! Node paths: validation and canonical form.
//!
//! Source: xen `docs/misc/xenstore.txt`, "Values and paths"; `io/xs_wire.h` for the lengths.

use alloc::borrow::{Cow, ToOwned};
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use crate::Error;

/// Longest absolute path (`XENSTORE_ABS_PATH_MAX`), in bytes.
const ABSOLUTE_BYTES_MAX: usize = 3072;

/// Longest path without a leading `/local/domain/N/` (`XENSTORE_REL_PATH_MAX`), in bytes.
const RELATIVE_BYTES_MAX: usize = 2048;

/// Names in the longest path that a guest may use. Real ones have ten or less; each name costs
/// every commit and lookup a step.
pub(crate) const GUEST_NAMES_MAX: usize = 32;

const HOMES: &str = "/local/domain/";

/// A canonical path: `/`, `/a/b`, or a special one such as `@releaseDomain`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Path<'a>(&'a str);

/// A canonical path that owns its text.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct OwnedPath(Arc<str>);

/// A canonical path from a request: the text itself, or a relative one with its prefix.
#[derive(Clone, Debug)]
pub struct CanonicalPath<'a>(Cow<'a, str>);

impl<'a> CanonicalPath<'a> {
    /// Checks a path from a request; one without a leading `/` or `@` is relative to `home`.
    ///
    /// # Errors
    /// `EINVAL` if it is invalid or too long.
    pub fn new(text: &'a [u8], home: &str) -> Result<Self, Error> {
        let is_special = text.first() == Some(&b'@');
        if text.is_empty() || text.len() > ABSOLUTE_BYTES_MAX {
            return Err(Error::EINVAL);
        }
        // Branch-free per byte: this runs for every request.
        let (mut faults, mut previous) = (0, 0);
        for &byte in text {
            let class = CLASS[usize::from(byte)];
            faults |= class & (previous | NO_PATH_BYTE);
            previous = class;
        }
        if faults != 0 || (previous == SLASH && text != b"/") {
            return Err(Error::EINVAL);
        }
        let text = core::str::from_utf8(text).map_err(|_| Error::EINVAL)?;
        let absolute = if is_special || text.starts_with('/') {
            Cow::Borrowed(text)
        } else {
            let mut absolute = String::with_capacity(home.len() + 1 + text.len());
            absolute.push_str(home);
            absolute.push('/');
            absolute.push_str(text);
            Cow::Owned(absolute)
        };
        let path = Self(absolute);
        let fits = path.0.len() <= RELATIVE_BYTES_MAX
            || (path.0.len() <= ABSOLUTE_BYTES_MAX
                && path.as_path().relative_bytes() <= RELATIVE_BYTES_MAX);
        if fits { Ok(path) } else { Err(Error::EINVAL) }
    }

    #[must_use]
    pub fn as_path(&self) -> Path<'_> {
        Path(&self.0)
    }
}

impl OwnedPath {
    #[must_use]
    pub fn as_path(&self) -> Path<'_> {
        Path(&self.0)
    }
}

impl core::borrow::Borrow<str> for OwnedPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'a> Path<'a> {
    pub const ROOT: Path<'static> = Path("/");
    pub(crate) const INTRODUCE_DOMAIN: Path<'static> = Path("@introduceDomain");
    pub(crate) const RELEASE_DOMAIN: Path<'static> = Path("@releaseDomain");

    /// For text that is canonical by construction.
    pub(crate) fn from_canonical(text: &'a str) -> Self {
        debug_assert!(text == "/" || !text.ends_with('/'), "{text} is not canonical");
        Self(text)
    }

    #[must_use]
    pub fn as_str(self) -> &'a str {
        self.0
    }

    #[must_use]
    pub fn to_owned_path(self) -> OwnedPath {
        OwnedPath(self.0.into())
    }

    /// Whether this is one of the special `@` nodes outside the tree.
    #[must_use]
    pub fn is_special(self) -> bool {
        self.0.starts_with('@')
    }

    #[must_use]
    pub fn is_root(self) -> bool {
        self.0 == "/"
    }

    /// The names from the root; none for the root itself.
    pub fn components(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.0.strip_prefix('/').unwrap_or(self.0);
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            // Names are short: a loop is faster than a search function.
            let end = rest.bytes().position(|byte| byte == b'/').unwrap_or(rest.len());
            let name = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            Some(name)
        })
    }

    /// Number of names from the root.
    pub(crate) fn depth(self) -> usize {
        if self.is_root() { 0 } else { self.0.bytes().filter(|&byte| byte == b'/').count() }
    }

    /// The [components](Self::components) as bytes, for comparisons.
    pub(crate) fn names(self) -> impl Iterator<Item = &'a [u8]> {
        let text = self.0.as_bytes();
        let mut rest = text.strip_prefix(b"/").unwrap_or(text);
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            Some(name)
        })
    }

    /// The path without its last name.
    #[must_use]
    pub fn parent(self) -> Option<Path<'a>> {
        if self.is_root() {
            return None;
        }
        match self.0.rfind('/')? {
            0 => Some(Path("/")),
            slash => Some(Path(&self.0[..slash])),
        }
    }

    /// What comes after `/local/domain/N/`, or the whole length of another path.
    pub(crate) fn relative_bytes(self) -> usize {
        let Some(rest) = self.0.strip_prefix(HOMES) else { return self.0.len() };
        match rest.split_once('/') {
            Some((domid, inner)) if is_number(domid) => inner.len(),
            _ => self.0.len(),
        }
    }

    /// As [`join`](Self::join).
    pub(crate) fn join_owned(self, name: &str) -> OwnedPath {
        OwnedPath(self.join(name).into())
    }

    /// This path with a name appended.
    pub(crate) fn join(self, name: &str) -> String {
        let mut text = self.0.to_owned();
        if !self.is_root() {
            text.push('/');
        }
        text.push_str(name);
        text
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Classes of bytes: two that share a bit must not follow each other, and this one must not occur.
const NO_PATH_BYTE: u8 = 1;
const SLASH: u8 = 2;

const CLASS: [u8; 256] = {
    let mut table = [NO_PATH_BYTE; 256];
    let mut byte = 0u8;
    while byte < 128 {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'@') {
            table[byte as usize] = 0;
        }
        byte += 1;
    }
    table[b'/' as usize] = SLASH;
    table
};

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    const HOME: &str = "/local/domain/1";

    fn canonical(text: &str) -> Result<String, Error> {
        CanonicalPath::new(text.as_bytes(), HOME).map(|path| path.as_path().as_str().to_owned())
    }

    #[test]
    fn paths_are_absolute_relative_or_special() {
        for text in ["/", "/a", "/a/b-c_d@e/0", "@introduceDomain", "@releaseDomain/5"] {
            assert_eq!(canonical(text).as_deref(), Ok(text));
        }
        assert_eq!(canonical("device/vif").as_deref(), Ok("/local/domain/1/device/vif"));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let bad = [
            "",
            "//",
            "/a/",
            "a/",
            "/a//b",
            "/a b",
            "/a.b",
            "/a:b",
            "/a+b",
            "/a\n",
            "/\u{e4}",
            "@/",
            "/local/domain/",
            "/local/domain/1/",
        ];
        for text in bad {
            assert_eq!(canonical(text), Err(Error::EINVAL), "{text}");
        }
        assert!(CanonicalPath::new(b"/a\0", HOME).is_err());
    }

    #[test]
    fn both_spellings_of_a_path_meet_the_same_limit() {
        let name = |bytes: usize| "x".repeat(bytes);
        for (bytes, fits) in [(2047, true), (2048, true), (2049, false)] {
            assert_eq!(canonical(&name(bytes)).is_ok(), fits, "relative, {bytes}");
            let absolute = format!("/local/domain/1/{}", name(bytes));
            assert_eq!(canonical(&absolute).is_ok(), fits, "absolute, {bytes}");
            let elsewhere = format!("/{}", name(bytes - 1));
            assert_eq!(canonical(&elsewhere).is_ok(), fits, "elsewhere, {bytes}");
        }
    }

    #[test]
    fn a_parent_is_one_name_shorter() {
        let chain = |text| {
            core::iter::successors(Some(Path(text)), |path| path.parent())
                .map(Path::as_str)
                .collect::<Vec<_>>()
        };
        assert_eq!(chain("/a/b/c"), ["/a/b/c", "/a/b", "/a", "/"]);
        assert_eq!(chain("@releaseDomain/5"), ["@releaseDomain/5", "@releaseDomain"]);
        assert_eq!(Path("/").components().count(), 0);
        for text in ["/", "/a", "/a/b-1/c", "@releaseDomain/5"] {
            assert!(Path(text).names().eq(Path(text).components().map(str::as_bytes)), "{text}");
        }
        assert_eq!(Path("/").join("a"), "/a");
        assert_eq!(Path("/a").join("b"), "/a/b");
    }
}
