//! Writes the archive that Linux unpacks as its initial root file system.
//!
//! Only the "newc" format, and only what an initramfs needs: no hard links, every owner root,
//! every time zero, so that equal input gives equal bytes. Linux accepts several archives one
//! after the other, which is how one run's files are laid over the cached image.
//! Source: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive under construction. Paths are relative to the root, without a leading slash;
/// parent directories appear by themselves.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    directories: BTreeSet<String>,
}

struct Entry<'a> {
    path: &'a str,
    mode: u32,
    device: (u32, u32),
    content: &'a [u8],
}

impl Archive {
    pub(crate) fn directory(&mut self, path: &str) {
        if path.is_empty() || !self.directories.insert(path.to_owned()) {
            return;
        }
        self.parents_of(path);
        self.entry(&Entry { path, mode: DIRECTORY | 0o755, device: (0, 0), content: &[] });
    }

    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.parents_of(path);
        self.entry(&Entry { path, mode: REGULAR | permissions, device: (0, 0), content });
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.parents_of(path);
        let content = target.as_bytes();
        self.entry(&Entry { path, mode: SYMLINK | 0o777, device: (0, 0), content });
    }

    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents_of(path);
        let mode = CHARACTER_DEVICE | 0o600;
        self.entry(&Entry { path, mode, device: (major, minor), content: &[] });
    }

    /// The archive with its trailer, ready to be followed by another one.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(&Entry { path: "TRAILER!!!", mode: 0, device: (0, 0), content: &[] });
        self.pad(512);
        self.bytes
    }

    fn parents_of(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, entry: &Entry<'_>) {
        self.inode += 1;
        let length = u32::try_from(entry.content.len()).expect("files of an image are below 4 GiB");
        let name_length = u32::try_from(entry.path.len() + 1).expect("paths are short");
        let links = if entry.mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let (major, minor) = entry.device;
        let fields =
            [self.inode, entry.mode, 0, 0, links, 0, length, 0, 0, major, minor, name_length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(entry.path.as_bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend_from_slice(entry.content);
        self.pad(4);
    }

    fn pad(&mut self, alignment: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
    }
}

/// The content of a file in an archive.
pub fn content<'a>(archive: &'a [u8], path: &str) -> Option<&'a [u8]> {
    const HEADER_BYTES: usize = 110;
    let mut at: usize = 0;
    loop {
        let header = archive.get(at..at + HEADER_BYTES)?;
        let field = |index: usize| {
            let text = std::str::from_utf8(&header[6 + 8 * index..][..8]).ok()?;
            usize::from_str_radix(text, 16).ok()
        };
        let (length, name_length) = (field(6)?, field(11)?);
        let name = archive.get(at + HEADER_BYTES..at + HEADER_BYTES + name_length)?;
        let data = (at + HEADER_BYTES + name_length).next_multiple_of(4);
        let found = archive.get(data..data.checked_add(length)?)?;
        if name.strip_suffix(b"\0") == Some(path.as_bytes()) {
            return Some(found);
        }
        at = (data + length).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_path() {
        let mut archive = Archive::default();
        archive.file("etc/one", 0o644, b"1");
        archive.file("etc/three", 0o644, b"333");
        let bytes = archive.finish();
        assert_eq!(content(&bytes, "etc/one"), Some(&b"1"[..]));
        assert_eq!(content(&bytes, "etc/three"), Some(&b"333"[..]));
        assert_eq!(content(&bytes, "etc/two"), None);
        assert_eq!(content(&bytes[..200], "etc/three"), None);
    }

    #[test]
    fn entries_are_aligned_and_parents_come_first() {
        let mut archive = Archive::default();
        archive.file("etc/deep/name", 0o644, b"hello");
        archive.file("etc/deep/other", 0o755, b"");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 512, 0);

        let mut paths = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let field = |index: usize| {
                let text = std::str::from_utf8(&bytes[at + 6 + 8 * index..][..8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let (length, name_length) = (field(6), field(11));
            let name = &bytes[at + 110..at + 110 + name_length - 1];
            paths.push(String::from_utf8(name.to_vec()).unwrap());
            if paths.last().unwrap() == "TRAILER!!!" {
                break;
            }
            at = (at + 110 + name_length).next_multiple_of(4);
            at = (at + length).next_multiple_of(4);
        }
        assert_eq!(paths, ["etc", "etc/deep", "etc/deep/name", "etc/deep/other", "TRAILER!!!"]);
    }
}
