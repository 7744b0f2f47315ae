//! Reads from an ELF file the two things an image needs to know: which shared libraries a
//! program asks for, and which modules a kernel module depends on.
//!
//! 64-bit little-endian files only; anything else counts as "needs nothing".
//! Source: System V ABI, chapters 4 and 5; Linux `include/linux/module.h` for `.modinfo`,
//! `include/linux/module_signature.h` for signatures.

const DYNAMIC_SEGMENT: u32 = 2;
const INTERPRETER_SEGMENT: u32 = 3;
const LOAD_SEGMENT: u32 = 1;
const NEEDED: u64 = 1;
const STRING_TABLE: u64 = 5;

struct Segment {
    kind: u32,
    offset: usize,
    address: u64,
    length: usize,
}

/// The names in the `NEEDED` entries of `file`, and its interpreter's file name.
pub(crate) fn libraries(file: &[u8]) -> Vec<String> {
    parse(file).unwrap_or_default()
}

fn parse(file: &[u8]) -> Option<Vec<String>> {
    let segments = segments(file)?;
    let mut names = Vec::new();
    for segment in segments.iter().filter(|segment| segment.kind == INTERPRETER_SEGMENT) {
        let path = string(file, segment.offset)?;
        names.push(path.rsplit('/').next()?.to_owned());
    }
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == DYNAMIC_SEGMENT) else {
        return Some(names);
    };
    let entries: Vec<(u64, u64)> = (0..dynamic.length / 16)
        .map_while(|index| {
            let at = dynamic.offset + index * 16;
            Some((word(file, at)?, word(file, at + 8)?))
        })
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let strings = entries.iter().find(|(tag, _)| *tag == STRING_TABLE)?.1;
    let strings = file_offset(&segments, strings)?;
    for (_, value) in entries.iter().filter(|(tag, _)| *tag == NEEDED) {
        names.push(string(file, strings.checked_add(usize::try_from(*value).ok()?)?)?);
    }
    Some(names)
}

/// The value of the first `KEY=value` string of a kernel module's `.modinfo`.
pub(crate) fn module_info(module: &[u8], key: &str) -> Option<String> {
    // The section is a run of NUL-terminated strings. Looking for the string itself needs no
    // section table and cannot be confused: nothing else in a module has this shape.
    let pattern = [b"\0", key.as_bytes(), b"="].concat();
    let at = module.windows(pattern.len()).position(|window| window == pattern)?;
    string(module, at + pattern.len())
}

/// A kernel module without the signature that may follow its ELF file.
pub(crate) fn without_module_signature(module: &[u8]) -> &[u8] {
    const MAGIC: &[u8] = b"~Module signature appended~\n";
    const DESCRIPTION_BYTES: usize = 12;
    let cut = || {
        let described = module.strip_suffix(MAGIC)?;
        let (rest, length) = described.split_last_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        rest.get(..rest.len().checked_sub(DESCRIPTION_BYTES - 4)?.checked_sub(length)?)
    };
    cut().unwrap_or(module)
}

fn segments(file: &[u8]) -> Option<Vec<Segment>> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = usize::try_from(word(file, 32)?).ok()?;
    let size = usize::from(half(file, 54)?);
    (0..usize::from(half(file, 56)?))
        .map(|index| {
            let at = table + index * size;
            Some(Segment {
                kind: u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?),
                offset: usize::try_from(word(file, at + 8)?).ok()?,
                address: word(file, at + 16)?,
                length: usize::try_from(word(file, at + 32)?).ok()?,
            })
        })
        .collect()
}

fn file_offset(segments: &[Segment], address: u64) -> Option<usize> {
    segments.iter().filter(|segment| segment.kind == LOAD_SEGMENT).find_map(|segment| {
        let within = usize::try_from(address.checked_sub(segment.address)?).ok()?;
        (within < segment.length).then(|| segment.offset + within)
    })
}

fn word(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(file.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn half(file: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(file.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn string(file: &[u8], at: usize) -> Option<String> {
    let rest = file.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that is linked dynamically wherever this runs; the tests themselves may be static.
    fn shell() -> Vec<u8> {
        std::fs::read("/bin/sh").unwrap()
    }

    #[test]
    fn a_shell_needs_libc_and_the_dynamic_loader() {
        let file = shell();
        let names = libraries(&file);
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("ld-linux")), "{names:?}");
    }

    #[test]
    fn a_cut_file_needs_nothing_and_does_not_panic() {
        let file = shell();
        for length in (0..1024).step_by(7) {
            assert_eq!(libraries(&file[..length]), Vec::<String>::new());
        }
    }

    #[test]
    fn a_signature_is_cut_off_and_a_module_without_one_stays() {
        let description = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
        let signed = [b"module", &b"sig"[..], &description, b"~Module signature appended~\n"];
        assert_eq!(without_module_signature(&signed.concat()), b"module");
        assert_eq!(without_module_signature(b"module"), b"module");
        let lying = [&description[..], b"~Module signature appended~\n"].concat();
        assert_eq!(without_module_signature(&lying), lying);
    }

    #[test]
    fn module_info_is_found_by_its_key() {
        let module = b"\x7fELF..\0alias=x\0depends=stp,llc\0name=bridge\0";
        assert_eq!(module_info(module, "depends").as_deref(), Some("stp,llc"));
        assert_eq!(module_info(module, "softdep"), None);
    }
}
