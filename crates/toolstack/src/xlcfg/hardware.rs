//! The host's own hardware for a guest: `ioports`, `irqs` and `iomem`.
//!
//! Source: xen `tools/xl/xl_parse.c`, `docs/man/xl.cfg.5.pod.in`.

use super::shown;
use super::vm::{Findings, Reader};
use crate::config::{HardwareAccess, IoMemory, IoPorts};

/// x86 has 64 Ki ports.
const PORT_MAX: u64 = 0xffff;
/// Of 52 bits, the longest addresses of x86.
const FRAME_MAX: u64 = (1 << 40) - 1;
/// More than any host has interrupts.
const IRQ_MAX: u32 = 0xffff;

type Parsed<T> = std::result::Result<T, String>;

/// As C's `strtoul` reads it with base 16, but all of it.
fn hexadecimal(text: &str, most: u64) -> Parsed<u64> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(digits, 16) {
        Ok(number) if is_hex && number <= most => Ok(number),
        Ok(_) if is_hex => Err(format!("{} is above {most:x}", shown(text))),
        _ => Err(format!("{}: expected a hexadecimal number", shown(text))),
    }
}

/// `3f8` or `3f8-3ff`.
fn ports(text: &str) -> Parsed<IoPorts> {
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (hexadecimal(first, PORT_MAX)?, hexadecimal(last, PORT_MAX)?),
        None => {
            let only = hexadecimal(text, PORT_MAX)?;
            (only, only)
        }
    };
    if last < first {
        return Err(format!("{} ends before it begins", shown(text)));
    }
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(IoPorts { first: narrow(first), last: narrow(last) })
}

fn interrupt(text: &str) -> Parsed<u32> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_number && *number <= IRQ_MAX);
    number.ok_or_else(|| format!("{}: expected the number of an interrupt", shown(text)))
}

/// `FRAME,COUNT` or `FRAME,COUNT@GUEST_FRAME`.
fn memory(text: &str) -> Parsed<IoMemory> {
    let (range, gfn) = match text.split_once('@') {
        Some((range, gfn)) => (range, Some(hexadecimal(gfn, FRAME_MAX)?)),
        None => (text, None),
    };
    let Some((first, count)) = range.split_once(',') else {
        return Err(format!("{}: expected FRAME,COUNT or FRAME,COUNT@FRAME", shown(text)));
    };
    let (first, frames) = (hexadecimal(first, FRAME_MAX)?, hexadecimal(count, FRAME_MAX)?);
    let ends = |first: u64| first.checked_add(frames).is_some_and(|end| end <= FRAME_MAX + 1);
    match frames {
        0 => Err("expected at least one frame".to_owned()),
        _ if ends(first) && ends(gfn.unwrap_or_default()) => Ok(IoMemory { first, frames, gfn }),
        _ => Err(format!("{} goes beyond frame {FRAME_MAX:x}", shown(text))),
    }
}

impl Reader<'_> {
    pub(super) fn hardware(&self, found: &mut Findings) -> Option<Box<HardwareAccess>> {
        let hardware = HardwareAccess {
            ports: self.each("ioports", ports, found),
            interrupts: self.each("irqs", interrupt, found),
            memory: self.each("iomem", memory, found),
        };
        (hardware != HardwareAccess::default()).then(|| Box::new(hardware))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_xl_reads_them() {
        assert_eq!(ports("3f8-3ff"), Ok(IoPorts { first: 0x3f8, last: 0x3ff }));
        assert_eq!(ports("0x70"), Ok(IoPorts { first: 0x70, last: 0x70 }));
        for text in ["", "x", "-", "3f8-", "3ff-3f8", "10000", "3f8-3ff-400", "+5"] {
            assert!(ports(text).is_err(), "{text}");
        }
        assert_eq!(interrupt("7"), Ok(7));
        for text in ["", "0x7", "-1", "70000", "seven"] {
            assert!(interrupt(text).is_err(), "{text}");
        }
        let plain = IoMemory { first: 0xa0, frames: 0x20, gfn: None };
        assert_eq!(memory("a0,20"), Ok(plain));
        assert_eq!(memory("a0,20@f0000"), Ok(IoMemory { gfn: Some(0xf_0000), ..plain }));
        for text in ["", "a0", "a0,", "a0,0", "a0,20@", "ffffffffff,2", "a0,1@ffffffffffff"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }
}
