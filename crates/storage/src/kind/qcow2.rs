//! QEMU's qcow2 images: created and grown by `qemu-img`, served by
//! [`nbd_device`](super::nbd_device).
//!
//! A clone of a snapshot is an empty image backed by the snapshot, so it is created instantly; the
//! snapshot must be kept while it has clones. Everything else is a copy of the file.

use super::{Place, Result};
use crate::error::Naming as _;
use crate::{Command, StorageError};

const PROGRAM: &str = "/usr/bin/qemu-img";
const SECONDS: u64 = 120;
/// The name of the backing file is in the first cluster, which is usually not larger than this.
const HEADER_BYTES: usize = 64 << 10;

/// Incompatible feature bit (version 3 and later) for an external data file.
const DATA_FILE: u64 = 1 << 2;

/// Fields of an image's header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) bytes: u64,
    /// The backing file.
    pub(super) backing: Option<String>,
    /// Whether the image has an external data file.
    pub(super) has_data_file: bool,
}

impl Header {
    /// Parses the first bytes of an image; `None` if it is not one.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize, length: usize| {
            let digits = bytes.get(at..at.checked_add(length)?)?;
            Some(digits.iter().fold(0, |all, &byte| (all << 8) | u64::from(byte)))
        };
        if bytes.get(..4)? != b"QFI\xfb" {
            return None;
        }
        let (at, length) = (usize::try_from(number(8, 8)?).ok()?, number(16, 4)?);
        let backing = match at {
            0 => None,
            at => {
                let name = bytes.get(at..at.checked_add(usize::try_from(length).ok()?)?)?;
                Some(String::from_utf8_lossy(name).into_owned())
            }
        };
        let features = if number(4, 4)? < 3 { 0 } else { number(72, 8)? };
        Some(Self { bytes: number(24, 8)?, backing, has_data_file: features & DATA_FILE != 0 })
    }

    /// `None` if the file is not an image.
    pub(super) fn find(place: &mut Place<'_>, path: &str) -> Result<Option<Self>> {
        let bytes = place.system.read_start(path, HEADER_BYTES).of(path)?;
        Ok(Self::parse(&bytes))
    }

    pub(super) fn read(place: &mut Place<'_>, path: &str) -> Result<Self> {
        Self::find(place, path)?
            .ok_or_else(|| StorageError::refused(format!("{path}: not an image in format qcow2")))
    }
}

/// Creates an image of zeros, or one backed by the file `backing` in the same folder.
pub(super) fn create(
    place: &mut Place<'_>,
    vdi: &str,
    path: &str,
    bytes: u64,
    backing: Option<&str>,
) -> Result<()> {
    let name = place.name(vdi);
    let size = bytes.to_string();
    let mut arguments = vec!["create", "-q", "-f", "qcow2"];
    if let Some(backing) = backing {
        arguments.extend(["-F", "qcow2", "-b", backing]);
    }
    arguments.extend([path, &size]);
    place.system.run(&Command::new(PROGRAM, &arguments, SECONDS)).map(drop).of(name)
}

pub(super) fn grow(place: &mut Place<'_>, vdi: &str, path: &str, bytes: u64) -> Result<()> {
    let (name, size) = (place.name(vdi), bytes.to_string());
    let arguments = ["resize", "-q", "-f", "qcow2", path, &size];
    place.system.run(&Command::new(PROGRAM, &arguments, SECONDS)).map(drop).of(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bytes: u64, backing: Option<(u64, &str)>) -> Vec<u8> {
        let mut header = b"QFI\xfb\0\0\0\x03".to_vec();
        let (at, name) = backing.unwrap_or_default();
        header.extend(at.to_be_bytes());
        header.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
        header.extend(16_u32.to_be_bytes());
        header.extend(bytes.to_be_bytes());
        header.resize(112, 0);
        header.extend(name.as_bytes());
        header
    }

    #[test]
    fn an_image_has_a_size_and_a_backing_file() {
        let plain = Header { bytes: 4 << 20, backing: None, has_data_file: false };
        assert_eq!(Header::parse(&header(4 << 20, None)), Some(plain.clone()));
        let backing = Some("snap.qcow2".to_owned());
        let backed = Header { bytes: 512, backing, has_data_file: false };
        assert_eq!(Header::parse(&header(512, Some((112, "snap.qcow2")))), Some(backed));
        let mut elsewhere = header(4 << 20, None);
        elsewhere[79] = 4;
        assert_eq!(Header::parse(&elsewhere), Some(Header { has_data_file: true, ..plain }));
    }

    #[test]
    fn other_files_are_not_images() {
        let whole = header(512, Some((112, "snap.qcow2")));
        for end in 0..whole.len() {
            assert_eq!(Header::parse(&whole[..end]), None, "{end}");
        }
        assert_eq!(Header::parse(&header(512, Some((u64::MAX, "x")))), None);
        assert_eq!(Header::parse(&[0; 200]), None);
    }
}
