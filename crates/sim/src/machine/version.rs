//! `xen_version`: which hypervisor this is. Source: `xen/common/kernel.c`, `version.h`.

use xen::Errno;

use super::SimXen;
use super::hypercall::Arena;
use crate::bytes::{put, put_u32, put_u64, u32_at};

impl SimXen {
    pub(super) fn version_op(
        &mut self,
        arena: &mut Arena<'_>,
        args: [u64; 5],
    ) -> Result<u64, Errno> {
        const BUILD_ID: [u8; 20] = [0x51; 20];
        let mut text = |bytes: usize, value: &str| {
            let out = arena.get_mut(args[1], bytes)?;
            out.fill(0);
            put(out, 0, value.as_bytes());
            Ok(0)
        };
        match args[0] {
            0 => Ok(4 << 16 | u64::from(self.config.release.minor())),
            1 => text(16, ".0-sim"),
            2 => {
                text(64, "rustc")?;
                let out = arena.get_mut(args[1], 144)?;
                out[64..].fill(0);
                put(out, 64, b"sim");
                put(out, 112, b"1970-01-01");
                Ok(0)
            }
            3 => text(1024, "xen-3.0-x86_64 hvm-3.0-x86_32 hvm-3.0-x86_32p hvm-3.0-x86_64 "),
            4 => text(64, "simulated"),
            5 => {
                put_u64(arena.get_mut(args[1], 8)?, 0, 0xffff_8000_0000_0000);
                Ok(0)
            }
            6 => {
                // writable_page_tables to gnttab_map_avail_bits, as a 64-bit PV domain sees them.
                const FEATURES: u32 = 0x2705;
                if u32_at(arena.get(args[1], 8)?, 0) != 0 {
                    return Err(Errno::EINVAL);
                }
                put_u32(arena.get_mut(args[1], 8)?, 4, FEATURES);
                Ok(0)
            }
            7 => Ok(xen::PAGE_BYTES as u64),
            9 => text(1024, "placeholder dom0_mem=1024M"),
            10 => {
                if args[1] == 0 {
                    return Ok(BUILD_ID.len() as u64);
                }
                let room = u32_at(arena.get(args[1], 4)?, 0);
                if u64::from(room) < BUILD_ID.len() as u64 {
                    return Err(Errno(105));
                }
                put(arena.get_mut(args[1] + 4, BUILD_ID.len())?, 0, &BUILD_ID);
                Ok(BUILD_ID.len() as u64)
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}
