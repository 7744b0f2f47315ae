//! Commands that change a running domain.

use api::{Request, Target, TuneRequest};

use super::expect_done;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(crate) fn mem_max(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, kib) = (target(options), memory_kib("mem-max", &options.operands[1])?);
    tune(session, TuneRequest::MemMax { target, kib })
}

pub(crate) fn mem_set(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (target, kib) = (target(options), memory_kib("mem-set", &options.operands[1])?);
    tune(session, TuneRequest::MemSet { target, kib })
}

fn target(options: &Options) -> Target {
    Target(options.operands[0].clone())
}

fn tune(session: &mut Session, request: TuneRequest) -> Result<(), Failure> {
    expect_done(&session.call(&Request::Tune(request))?)
}

/// An amount in MiB, or in the unit of its last letter, as xl reads it.
fn memory_kib(verb: &str, text: &str) -> Result<u64, Failure> {
    let wrong = || {
        let units = "a number of MiB, or of the unit that follows it: b, k, m, g or t";
        Failure::usage(format!("{verb}: invalid memory size: {text:?}; it is {units}"))
    };
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let kib = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "b" => Some(number >> 10),
        "k" => Some(number),
        "" | "m" => number.checked_mul(1 << 10),
        "g" => number.checked_mul(1 << 20),
        "t" => number.checked_mul(1 << 30),
        _ => None,
    };
    // Xen counts in bytes.
    kib.filter(|kib| *kib < 1 << 53).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_mib_unless_a_letter_says_otherwise() {
        let cases = [
            ("512", 512 << 10),
            ("512m", 512 << 10),
            ("2G", 2 << 20),
            ("1t", 1 << 30),
            ("1500k", 1500),
            ("2048B", 2),
            ("0", 0),
        ];
        for (text, kib) in cases {
            assert_eq!(memory_kib("mem-set", text).unwrap(), kib, "{text}");
        }
        for text in ["", "k", "-5", "5x", "5mb", "m5", "1.5g", "99999999999t", "8388608t"] {
            assert!(memory_kib("mem-set", text).is_err(), "{text}");
        }
    }
}
