//! Commands that change a running domain.

use api::{Request, Target, Trigger, TuneRequest};

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

pub(crate) fn vcpu_set(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let text = &options.operands[1];
    let vcpus = text
        .parse()
        .map_err(|_| Failure::usage(format!("vcpu-set: {text:?} is not a number of vCPUs")))?;
    let ignore_host = options.has("ignore-host");
    tune(session, TuneRequest::VcpuSet { target: target(options), vcpus, ignore_host })
}

pub(crate) fn vcpu_pin(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let usage = |what: &str| Failure::usage(format!("vcpu-pin: {what}; see 'xy help vcpu-pin'"));
    let operands = &options.operands;
    let force = options.has("force");
    let vcpu = match operands[1].as_str() {
        "all" if force => return Err(usage("--force takes one VCPU, not all")),
        "all" => None,
        text => match text.parse() {
            Ok(vcpu) => Some(vcpu),
            Err(_) => return Err(usage(&format!("{text:?} is not a VCPU, and not all"))),
        },
    };
    let unless_left = |text: &String| Some(text.clone()).filter(|text| text != "-");
    let hard = unless_left(&operands[2]);
    let soft = operands.get(3).and_then(unless_left);
    if hard.is_none() && soft.is_none() && !force {
        return Err(usage("neither a hard nor a soft affinity is given"));
    }
    tune(session, TuneRequest::VcpuPin { target: target(options), vcpu, hard, soft, force })
}

pub(crate) fn sysrq(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let text = &options.operands[1];
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(key), None) if key.is_ascii_graphic() => {
            tune(session, TuneRequest::Sysrq { target: target(options), key })
        }
        _ => Err(Failure::usage(format!("sysrq: invalid sysrq {text:?}: it is one letter"))),
    }
}

pub(crate) fn trigger(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let operands = &options.operands;
    let trigger = match operands[1].as_str() {
        "nmi" => Trigger::Nmi,
        "reset" => Trigger::Reset,
        "init" => Trigger::Init,
        "power" => Trigger::Power,
        "sleep" => Trigger::Sleep,
        "s3resume" => Trigger::S3resume,
        other => return Err(Failure::usage(format!("trigger: invalid trigger {other:?}"))),
    };
    let vcpu = operands.get(2).map_or(Ok(0), |text| text.parse());
    let vcpu = vcpu.unwrap_or_else(|_| {
        session.tell("xy: trigger: invalid vcpuid, using default vcpuid=0.");
        0
    });
    tune(session, TuneRequest::Trigger { target: target(options), trigger, vcpu })
}

pub(crate) fn button_press(session: &mut Session, options: &Options) -> Result<(), Failure> {
    session.tell("xy: WARNING: \"button-press\" is deprecated. Please use \"trigger\"");
    let trigger = match options.operands[1].as_str() {
        "power" => Trigger::Power,
        "sleep" => Trigger::Sleep,
        other => return Err(Failure::usage(format!("{other} is an invalid button identifier"))),
    };
    tune(session, TuneRequest::Trigger { target: target(options), trigger, vcpu: 0 })
}

pub(crate) fn rename(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let name = options.operands[1].clone();
    tune(session, TuneRequest::Rename { target: target(options), name })
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
