//! The loader in an HVM domain: checks what the builder left, as hvmloader would.
//!
//! The BIOS of a simulated guest holds its command line. Sources: `xen/include/public/hvm/hvm_info_table.h`,
//! `arch-x86/hvm/start_info.h`, `tools/firmware/hvmloader`.

use super::boot::{Boot, Crash, Pvh, text};
use crate::bytes::{index, u32_at, u64_at};

/// `HVM_INFO_PADDR`.
const INFO_ADDRESS: u64 = 0x9f800;
/// Most bytes of a BIOS that are read.
const TEXT_BYTES: u64 = 1024;
/// Parameters that Xen and its tools need.
const PARAMETERS: [u32; 6] = [1, 2, 12, 17, 18, 32];

impl Pvh<'_> {
    pub(super) fn boot_hvm(&self, cpu: &[u8]) -> Result<Boot, Crash> {
        self.check_start(cpu)?;
        let domain = self.xen.domain(self.domid).ok_or("no domain")?;
        if PARAMETERS.iter().any(|param| domain.param(*param) == 0) {
            return Err("a parameter of the domain is not set");
        }
        let pages = self.check_info()?;
        let mut info = [0; 56];
        self.read(u64_at(cpu, 520), &mut info).map_err(|_| "rbx does not lead to start_info")?;
        if u32_at(&info, 0) != 0x336e_c578 || u32_at(&info, 12) != 1 {
            return Err("start_info has no magic, or not one module");
        }
        let mut module = [0; 32];
        self.read(u64_at(&info, 16), &mut module)?;
        let mut name = [0; 9];
        self.read(u64_at(&module, 16), &mut name)?;
        if name != *b"firmware\0" {
            return Err("the module is not called firmware");
        }
        let mut bios = vec![0; index(u64_at(&module, 8).min(TEXT_BYTES))];
        self.read(u64_at(&module, 0), &mut bios)?;
        self.rings(text(&bios), 0, self.spare(pages))
    }

    /// Checks the information table; returns the pages of RAM below 4 GiB.
    fn check_info(&self) -> Result<u64, Crash> {
        let mut info = [0; 48];
        self.read(INFO_ADDRESS, &mut info)?;
        let sum = info.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        if info[..8] != *b"HVM INFO" || sum != 0 {
            return Err("the information table is not one");
        }
        let pages = u64::from(u32_at(&info, 20));
        self.read((pages - 1) << xen::PAGE_SHIFT, &mut [0]).map_err(|_| "low memory ends early")?;
        Ok(pages)
    }
}
