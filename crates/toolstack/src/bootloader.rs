//! Bootloaders: programs of the host that find a guest's kernel on its disk, such as pygrub.
//!
//! A bootloader reads file systems that the guest wrote, so it runs confined, and what it says is as untrusted as
//! they are. Source: xen `tools/libs/light/libxl_bootloader.c`, `docs/man/xl.cfg.5.pod.in` (`bootloader`).

use crate::config::{Bootloader, VmConfig};

/// Where a bootloader finds its disk, as it sees the host's files.
pub const DISK: &str = "/run/disk";
/// The folder that it puts the kernel and the ramdisk into, the only one that it may write to.
pub const FOLDER: &str = "/run/out";
/// The file in it that it writes its answer to.
pub const ANSWER: &str = "answer";

/// As long as libxl waits for a restricted one.
pub const SECONDS: u64 = 120;
/// Longest answer. A guest's command line has at most 4096 bytes.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A bootloader to be run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BootloaderRun {
    pub program: String,
    pub arguments: Vec<String>,
    /// The name of the user that it runs as instead of one of its own.
    pub user: Option<String>,
    /// The device that is [`DISK`] for it.
    pub disk: String,
    /// The file that what it says goes to, as xl keeps it.
    pub log: String,
    pub seconds: u64,
}

/// What a bootloader answered. Names are those of files in [`FOLDER`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    pub kernel: String,
    pub ramdisk: Option<String>,
    pub cmdline: String,
}

/// What a bootloader wrote is not an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerError {
    #[error("it named no kernel")]
    NoKernel,
    #[error("its answer is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    #[error("its answer is not UTF-8")]
    NotText,
    #[error("its answer is cut off or in an unknown form")]
    Malformed,
    #[error("it named a file outside of {FOLDER}, where its files belong")]
    Elsewhere,
    #[error("it gave a command line with control characters")]
    Cmdline,
}

impl Bootloader {
    /// Where the program may be, for a version of Xen such as `4.17`.
    #[must_use]
    pub fn programs(&self, version: &str) -> Vec<String> {
        if self.program.starts_with('/') {
            return vec![self.program.clone()];
        }
        xen::programs::bootloaders(&self.program, version)
    }

    /// What it is told: as by libxl, and that nobody is there to choose from a menu.
    #[must_use]
    pub fn arguments(&self, config: &VmConfig) -> Vec<String> {
        let mut words = Vec::new();
        for (option, value) in [("kernel", &config.kernel), ("ramdisk", &config.ramdisk)] {
            words.extend(value.as_ref().map(|value| format!("--{option}={value}")));
        }
        if !config.cmdline.is_empty() {
            words.push(format!("--args={}", config.cmdline));
        }
        if self.program.rsplit('/').next() == Some("pygrub") {
            words.push("--quiet".to_owned());
        }
        words.push(format!("--output={FOLDER}/{ANSWER}"));
        words.push("--output-format=simple0".to_owned());
        words.push(format!("--output-directory={FOLDER}"));
        words.extend(self.arguments.iter().cloned());
        words.push(DISK.to_owned());
        words
    }
}

impl Answer {
    /// Reads an answer: items that end in a zero byte, or the older expression
    /// `linux (kernel '...')(ramdisk '...')(args '...')`.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, AnswerError> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(AnswerError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| AnswerError::NotText)?;
        let is_expression = text
            .strip_prefix("linux")
            .is_some_and(|rest| rest.trim_start().starts_with('(') && !text.contains('\0'));
        let items = match is_expression {
            true => expression(text)?,
            false => simple(text),
        };
        let mut found = Items::default();
        for (key, value) in items {
            match key {
                // The last one counts, as for libxl.
                "kernel" => found.kernel = Some(value),
                "ramdisk" => found.ramdisk = Some(value),
                "args" => found.cmdline = Some(value),
                _ => {}
            }
        }
        let kernel = found.kernel.ok_or(AnswerError::NoKernel)?;
        let cmdline = found.cmdline.unwrap_or_default();
        if cmdline.contains(char::is_control) {
            return Err(AnswerError::Cmdline);
        }
        Ok(Self {
            kernel: file_name(&kernel)?,
            ramdisk: found.ramdisk.as_deref().map(file_name).transpose()?,
            cmdline,
        })
    }
}

#[derive(Default)]
struct Items {
    kernel: Option<String>,
    ramdisk: Option<String>,
    cmdline: Option<String>,
}

/// The name of a file directly in the folder.
fn file_name(path: &str) -> Result<String, AnswerError> {
    let name = path.strip_prefix(FOLDER).ok_or(AnswerError::Elsewhere)?;
    let name = name.strip_prefix('/').ok_or(AnswerError::Elsewhere)?;
    // A folder given with a slash at its end becomes two.
    let name = name.trim_start_matches('/');
    match name {
        "" | "." | ".." | ANSWER => Err(AnswerError::Elsewhere),
        name if name.contains('/') || name.contains(char::is_control) => {
            Err(AnswerError::Elsewhere)
        }
        name => Ok(name.to_owned()),
    }
}

/// `KEY VALUE` in each item. What is something else is ignored, as libxl ignores it.
fn simple(text: &str) -> Vec<(&str, String)> {
    let items =
        text.split('\0').filter_map(|item| item.split_once(|c: char| c.is_ascii_whitespace()));
    items.map(|(key, value)| (key, value.trim_start().to_owned())).collect()
}

/// Groups `(KEY VALUE)` behind the word `linux`. A value is quoted as Python quotes strings, or is one word.
fn expression(text: &str) -> Result<Vec<(&str, String)>, AnswerError> {
    let mut rest = text.strip_prefix("linux").ok_or(AnswerError::Malformed)?.trim_start();
    let mut items = Vec::new();
    while let Some(group) = rest.strip_prefix('(') {
        let (key, after) =
            group.split_once(|c: char| c.is_ascii_whitespace()).ok_or(AnswerError::Malformed)?;
        let (value, after) = value(after.trim_start())?;
        let after = after.trim_start().strip_prefix(')').ok_or(AnswerError::Malformed)?;
        items.push((key, value));
        rest = after.trim_start();
    }
    if rest.is_empty() { Ok(items) } else { Err(AnswerError::Malformed) }
}

/// A value and what follows it.
fn value(text: &str) -> Result<(String, &str), AnswerError> {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '\'' | '"')) else {
        let end = text.find(')').ok_or(AnswerError::Malformed)?;
        return Ok((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut letters = text[1..].char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some((_, escaped @ ('\\' | '\'' | '"'))) => value.push(escaped),
                // Only control characters are written otherwise.
                _ => return Err(AnswerError::Malformed),
            },
            letter if letter == quote => return Ok((value, &text[at + 2..])),
            letter => value.push(letter),
        }
    }
    Err(AnswerError::Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(kernel: &str, ramdisk: Option<&str>, cmdline: &str) -> Answer {
        Answer {
            kernel: kernel.to_owned(),
            ramdisk: ramdisk.map(str::to_owned),
            cmdline: cmdline.to_owned(),
        }
    }

    #[test]
    fn answers_are_read_in_both_forms() {
        for (text, expected) in [
            (
                "kernel /run/out/boot_kernel.x\0ramdisk /run/out/boot_ramdisk.y\0args root=/dev/xvda1 ro\0\0",
                answer("boot_kernel.x", Some("boot_ramdisk.y"), "root=/dev/xvda1 ro"),
            ),
            ("kernel /run/out//k\0", answer("k", None, "")),
            ("kernel \t/run/out/k", answer("k", None, "")),
            ("kernel /run/out/a\0kernel /run/out/b\0later x\0", answer("b", None, "")),
            (
                r#"linux (kernel '/run/out/k')(ramdisk '/run/out/r')(args "it's 1) \\ a")"#,
                answer("k", Some("r"), r"it's 1) \ a"),
            ),
            (r"linux (kernel /run/out/k)(args 'a\'b')", answer("k", None, "a'b")),
            ("linux(kernel /run/out/k)\n", answer("k", None, "")),
        ] {
            assert_eq!(Answer::parse(text.as_bytes()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for (text, expected) in [
            ("", AnswerError::NoKernel),
            ("\0\0", AnswerError::NoKernel),
            ("Traceback (most recent call last):\n", AnswerError::NoKernel),
            ("ramdisk /run/out/r\0", AnswerError::NoKernel),
            ("kernel /etc/shadow\0", AnswerError::Elsewhere),
            ("kernel /run/outside\0", AnswerError::Elsewhere),
            ("kernel /run/out/../disk\0", AnswerError::Elsewhere),
            ("kernel /run/out/..\0", AnswerError::Elsewhere),
            ("kernel /run/out/\0", AnswerError::Elsewhere),
            ("kernel /run/out/answer\0", AnswerError::Elsewhere),
            ("kernel /run/out/k\0ramdisk /dev/sda\0", AnswerError::Elsewhere),
            ("kernel /run/out/k\0args a\nb\0", AnswerError::Cmdline),
            ("linux (kernel '/run/out/k'", AnswerError::Malformed),
            ("linux (kernel '/run/out/k)", AnswerError::Malformed),
            (r"linux (kernel '/run/out/\x00')", AnswerError::Malformed),
            ("linux (kernel /run/out/k) and more", AnswerError::Malformed),
            ("linux (kernel)", AnswerError::Malformed),
        ] {
            assert_eq!(Answer::parse(text.as_bytes()), Err(expected), "{text}");
        }
        assert_eq!(Answer::parse(b"kernel \xff\0"), Err(AnswerError::NotText));
        assert_eq!(Answer::parse(&[b'k'; ANSWER_BYTES_MAX + 1]), Err(AnswerError::TooLong));
    }

    proptest! {
        /// Whatever it writes, files are named in the folder only, and no byte makes it panic.
        #[test]
        fn any_bytes_are_an_answer_or_an_error(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec![
                        "kernel ", "ramdisk ", "args ", "\0", "linux ", "(", ")", "'", "\"", "\\",
                        "/run/out/", "..", "/", " ",
                    ])
                    .prop_map(|it| it.as_bytes().to_vec()),
                    prop::collection::vec(any::<u8>(), 0..6),
                ],
                0..24,
            )
        ) {
            if let Ok(answer) = Answer::parse(&parts.concat()) {
                for name in std::iter::once(&answer.kernel).chain(&answer.ramdisk) {
                    prop_assert!(!name.contains('/') && !name.is_empty());
                    prop_assert!(![".", "..", ANSWER].contains(&name.as_str()));
                }
                prop_assert!(!answer.cmdline.contains(char::is_control));
            }
        }

        #[test]
        fn what_pygrub_writes_is_read_back(args in "[ -~]{0,40}") {
            let quoted = args.replace('\\', "\\\\").replace('\'', "\\'");
            let text = format!("linux (kernel '/run/out/k')(args '{quoted}')");
            prop_assert_eq!(Answer::parse(text.as_bytes()), Ok(answer("k", None, &args)));
        }
    }
}
