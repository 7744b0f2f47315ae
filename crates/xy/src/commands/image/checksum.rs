//! Checksums of images' files, and the lists of them that are published beside images.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};

use base16ct::lower::encode_string;
use sha2::{Digest as _, Sha256, Sha512};

/// Names of lists beside images.
pub(crate) const LISTS: [&str; 2] = ["SHA256SUMS", "SHA512SUMS"];

/// What a file must have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Checksum {
    Sha256(String),
    Sha512(String),
}

impl Checksum {
    /// Digits, or `sha256:` or `sha512:` and digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, digits) = match text.split_once(':') {
            Some((name, digits)) => (Some(name), digits),
            None => (None, text),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let digits = digits.to_ascii_lowercase();
        match (name, digits.len()) {
            (None | Some("sha256"), 64) => Some(Self::Sha256(digits)),
            (None | Some("sha512"), 128) => Some(Self::Sha512(digits)),
            _ => None,
        }
    }

    /// That of a file in a list, as `sha256sum` writes it, also with `--tag`.
    pub(crate) fn in_list(list: &str, file: &str) -> Option<Self> {
        list.lines().find_map(|line| {
            let line = line.trim();
            if let Some((digits, name)) = line.split_once(' ') {
                let name = name.trim_start().trim_start_matches('*').trim_start_matches("./");
                if name == file {
                    return Self::parse(digits);
                }
            }
            let (head, digits) = line.split_once(") = ")?;
            let (method, name) = head.split_once(" (")?;
            (name == file).then(|| Self::parse(&format!("{}:{digits}", method.to_lowercase())))?
        })
    }
}

/// The SHA-256 of a file, or what is wrong with it if another checksum is expected. It is read once.
pub(crate) fn verified(
    mut file: &File,
    expected: Option<&Checksum>,
) -> io::Result<Result<String, String>> {
    file.rewind()?;
    let mut sha256 = Sha256::new();
    let mut sha512 = matches!(expected, Some(Checksum::Sha512(_))).then(Sha512::new);
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => {
                sha256.update(&chunk[..count]);
                if let Some(sha512) = &mut sha512 {
                    sha512.update(&chunk[..count]);
                }
            }
        }
    }
    let sha256 = encode_string(&sha256.finalize());
    let found = sha512.map_or_else(|| sha256.clone(), |it| encode_string(&it.finalize()));
    let (name, expected) = match expected {
        None => return Ok(Ok(sha256)),
        Some(Checksum::Sha256(digits)) => ("SHA-256", digits),
        Some(Checksum::Sha512(digits)) => ("SHA-512", digits),
    };
    Ok(match *expected == found {
        true => Ok(sha256),
        false => Err(format!(
            "its {name} is {found}, and should be {expected}: it is damaged, or another file"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_in_lists_of_each_form() {
        let (short, long) = ("a".repeat(64), "b".repeat(128));
        let list = format!(
            "# comment\n{short}  other.img\n{long} *./debian.qcow2\nSHA256 (fedora.qcow2) = {short}\n"
        );
        let found = |file: &str| Checksum::in_list(&list, file);
        assert_eq!(found("other.img"), Some(Checksum::Sha256(short.clone())));
        assert_eq!(found("debian.qcow2"), Some(Checksum::Sha512(long)));
        assert_eq!(found("fedora.qcow2"), Some(Checksum::Sha256(short)));
        assert_eq!(found("img"), None);
    }

    #[test]
    fn a_checksum_has_its_length() {
        for (text, is_one) in [
            ("sha256:".to_owned() + &"0".repeat(64), true),
            ("A".repeat(128), true),
            ("sha256:".to_owned() + &"0".repeat(128), false),
            ("md5:".to_owned() + &"0".repeat(32), false),
            ("g".repeat(64), false),
            (String::new(), false),
        ] {
            assert_eq!(Checksum::parse(&text).is_some(), is_one, "{text}");
        }
    }
}
