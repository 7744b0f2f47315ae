//! Virtual disk names to `virtual-device` numbers.
//!
//! Source: xen `docs/man/xen-vbd-interface.7.pandoc`.

use std::str::FromStr;

use super::integer;
use crate::config::Vdev;

/// Disks and partitions up to 15 have the old form, 202 << 8; all others are marked by bit 28.
const EXTENDED: u32 = 1 << 28;

/// Not the name of a virtual disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "not a virtual disk: expected xvda to xvdbgqcv with or without a partition up to 255, hda to \
     hdd, sda to sdp, d0p0 or a number"
)]
pub struct ParseVdevError;

impl FromStr for Vdev {
    type Err = ParseVdevError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = numbered(text).or_else(|| named(text)).ok_or(ParseVdevError)?;
        Ok(Self { name: text.to_owned(), number })
    }
}

fn xvd_number(disk: u32, partition: u32) -> u32 {
    if disk <= 15 && partition <= 15 {
        202 << 8 | disk << 4 | partition
    } else {
        EXTENDED | disk << 8 | partition
    }
}

/// `xvda1`, `hda`, `sdb2`.
fn named(text: &str) -> Option<u32> {
    let (family, rest) = match text.strip_prefix("xvd") {
        Some(rest) => ("xvd", rest),
        None => text.split_at_checked(2)?,
    };
    let digits = rest.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let disk = disk_index(&rest[..rest.len() - digits.len()])?;
    // A partition has no leading zero, and 0 is the whole disk, which has no digits.
    let partition: u32 = match digits {
        "" => 0,
        _ if digits.starts_with('0') || !digits.bytes().all(|b| b.is_ascii_digit()) => return None,
        _ => digits.parse().ok()?,
    };
    match family {
        "xvd" if disk < 1 << 20 && partition <= 255 => Some(xvd_number(disk, partition)),
        "hd" if disk <= 3 && partition <= 63 => {
            let major = if disk < 2 { 3 } else { 22 };
            Some(major << 8 | (disk & 1) << 6 | partition)
        }
        "sd" if disk <= 15 && partition <= 15 => Some(8 << 8 | disk << 4 | partition),
        _ => None,
    }
}

/// The name of a number; the number itself if it has none.
#[must_use]
pub fn vdev_name(number: u32) -> String {
    let major = number >> 8;
    let (family, disk, partition) = match major {
        202 => ("xvd", number >> 4 & 15, number & 15),
        8 => ("sd", number >> 4 & 15, number & 15),
        3 | 22 => ("hd", u32::from(major == 22) * 2 + (number >> 6 & 3), number & 63),
        _ if number & EXTENDED != 0 => ("xvd", number >> 8 & 0xf_ffff, number & 255),
        _ => return number.to_string(),
    };
    let name = match partition {
        0 => format!("{family}{}", disk_letters(disk)),
        partition => format!("{family}{}{partition}", disk_letters(disk)),
    };
    match named(&name) {
        Some(same) if same == number => name,
        _ => number.to_string(),
    }
}

/// What [`disk_index`] reads.
fn disk_letters(disk: u32) -> String {
    let mut letters = Vec::new();
    let mut rest = disk + 1;
    while rest > 0 {
        rest -= 1;
        letters.push(char::from(b"abcdefghijklmnopqrstuvwxyz"[rest as usize % 26]));
        rest /= 26;
    }
    letters.iter().rev().collect()
}

/// `a` is 0, `z` is 25, `aa` is 26.
fn disk_index(letters: &str) -> Option<u32> {
    // Five letters go beyond the highest disk.
    if letters.is_empty() || letters.len() > 5 {
        return None;
    }
    let count = letters.bytes().fold(0, |count, b| count * 26 + u32::from(b - b'a') + 1);
    Some(count - 1)
}

/// `d0`, `d0p0`, `51712`, `0xca00`.
fn numbered(text: &str) -> Option<u32> {
    if let Some(rest) = text.strip_prefix('d') {
        let (disk, partition) = rest.split_once('p').unwrap_or((rest, "0"));
        let disk = u32::try_from(integer(disk)?).ok().filter(|&disk| disk < 1 << 20)?;
        let partition = u32::from(u8::try_from(integer(partition)?).ok()?);
        return Some(xvd_number(disk, partition));
    }
    let number = u32::try_from(integer(text)?).ok()?;
    // 2 << 28 onwards is reserved.
    (number < 2 << 28).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_convert_back_to_names() {
        for name in [
            "xvda",
            "xvda15",
            "xvda16",
            "xvdp15",
            "xvdz",
            "xvdaa",
            "xvdbgqcv255",
            "hda",
            "hdd63",
            "sdp15",
        ] {
            let number = name.parse::<Vdev>().unwrap().number;
            assert_eq!(vdev_name(number), name);
        }
        // d0p0's number is xvda's; what no name has stays a number.
        assert_eq!(vdev_name(51712), "xvda");
        assert_eq!(vdev_name(1 << 28 | 5), (1 << 28 | 5).to_string());
        assert_eq!(vdev_name(7), "7");
    }

    #[test]
    fn names_have_the_numbers_of_the_interface() {
        for (name, number) in [
            ("xvda", 51712),
            ("xvda1", 51713),
            ("xvda15", 51727),
            ("xvda16", 1 << 28 | 16),
            ("xvda255", 1 << 28 | 255),
            ("xvdb", 51728),
            ("xvdp", 51952),
            ("xvdq", 1 << 28 | 16 << 8),
            ("xvdz", 1 << 28 | 25 << 8),
            ("xvdaa", 1 << 28 | 26 << 8),
            ("xvdiv", 1 << 28 | 255 << 8),
            ("xvdiw", 1 << 28 | 256 << 8),
            ("xvdtq37", 1 << 28 | 536 << 8 | 37),
            ("xvdbgqcv", 1 << 28 | ((1 << 20) - 1) << 8),
            ("d0", 51712),
            ("d0p0", 51712),
            ("d1p2", 51730),
            ("d536p37", 1 << 28 | 536 << 8 | 37),
            ("d0x10p0", 1 << 28 | 16 << 8),
            ("d1048575p255", (1 << 28) | 0x0fff_ffff),
            ("hda", 768),
            ("hdb5", 837),
            ("hdc2", 5634),
            ("hdd63", 5759),
            ("sda", 2048),
            ("sdb3", 2067),
            ("sdp15", 2303),
            ("51712", 51712),
            ("0xca00", 51712),
            ("0145000", 51712),
            ("0", 0),
            ("536870911", (2 << 28) - 1),
        ] {
            let vdev: Vdev = name.parse().unwrap_or_else(|_| panic!("{name}"));
            assert_eq!((vdev.number, vdev.name.as_str()), (number, name));
        }
    }

    #[test]
    fn names_beyond_the_interface_are_refused() {
        for name in [
            "",
            "xvd",
            "xvda0",
            "xvda01",
            "xvda256",
            "xvdA",
            "xvd1",
            "xvda1x",
            "xvdbgqcw",
            "xvdzzzzzz",
            "hde",
            "hda64",
            "hd",
            "sdq",
            "sda16",
            "vda",
            "d",
            "dp",
            "d0p256",
            "d1048576p0",
            "d-1p0",
            "d0p",
            "-1",
            "0x",
            "536870912",
            "4294967296",
            "é",
            "xvdé",
            "xvda+1",
            "disk",
            "d1p2p3",
        ] {
            assert_eq!(name.parse::<Vdev>(), Err(ParseVdevError), "{name}");
        }
    }
}
