//! Takes the ELF kernel out of a bzImage.
//!
//! Xen would unpack it too, but with emulated instructions: here it is done once, at full speed.
//! Source: Linux `Documentation/arch/x86/boot.rst`, the real-mode kernel header.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// What Debian's kernels are packed with, by their first bytes: Debian 12's, and 13's.
const PACKERS: [(&[u8], &str); 2] = [(b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];

/// The kernel inside `image`.
///
/// # Errors
/// `image` is no bzImage with a payload of a kind above, or its program fails.
pub(crate) fn unpack(image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(image).context("the Debian kernel is no bzImage with a payload")?;
    let (_, program) = PACKERS
        .into_iter()
        .find(|(magic, _)| payload.starts_with(magic))
        .context("the Debian kernel is packed neither with xz nor with zstd")?;
    let mut child = Command::new(program)
        .args(["--decompress", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{program} does not start"))?;
    let mut input = child.stdin.take().with_context(|| format!("{program} has no input"))?;
    let packed = payload.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&packed));
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{program} cannot unpack the Debian kernel");
    // It may stop reading before the last padding byte; its own status tells whether all is well.
    let _ = writer.join();
    ensure!(output.stdout.starts_with(b"\x7fELF"), "the Debian kernel's payload is no ELF file");
    Ok(output.stdout)
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = usize::from(*image.get(0x1f1)?) + 1;
    let start = setup_sectors * 512 + word(0x248)?;
    // The unpacked size follows the payload proper and is counted in its length.
    let length = word(0x24c)?.checked_sub(4)?;
    image.get(start..start.checked_add(length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_kernel_is_refused() {
        for image in [&b""[..], &[0; 4096], &[0xff; 0x250]] {
            assert!(unpack(image).is_err());
        }
    }
}
