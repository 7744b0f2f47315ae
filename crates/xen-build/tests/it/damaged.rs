//! Files that are cut off or damaged anywhere: never a panic, whatever they pretend to be.

use xen::DomainKind;
use xen_build::{BuildConfig, KernelImage};

use crate::fake::{DOMAIN, Fake};
use crate::images::PACKINGS;
use crate::kernels::{self, bzimage, pack};
use crate::pv::{CHANNELS, config};

/// Parses, and builds what can be parsed.
fn try_out(file: &[u8]) {
    let Ok(kernel) = KernelImage::parse_bounded(file, 1 << 20) else { return };
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        let config = BuildConfig { ramdisk: Some(&[1; 100]), ..config(kind, &kernel, 5) };
        let mut xen = Fake::xen(kind != DomainKind::Pv);
        let checked = xen_build::check(&config).map(drop);
        let built = xen_build::build(&mut xen, DOMAIN, &config, &CHANNELS).map(drop);
        assert_eq!(checked, built);
    }
}

/// Marsaglia's xorshift, so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

fn small() -> kernels::Elf {
    let mut elf = kernels::unikernel();
    elf.segments = vec![(0x10_0000, kernels::code(0x1100), 0x1200)];
    elf
}

#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    let elf = small().bytes();
    for end in 0..elf.len() {
        try_out(&elf[..end]);
    }
    for compression in PACKINGS {
        let image = bzimage(&pack(&elf, compression));
        for end in (0..image.len()).step_by(7) {
            try_out(&image[..end]);
        }
    }
}

#[test]
fn a_packed_kernel_cut_off_inside_the_bzimage_is_an_error() {
    for compression in &PACKINGS[1..] {
        let packed = pack(&small().bytes(), *compression);
        for end in (4..packed.len() - 4).step_by(3) {
            let size = packed.last_chunk::<4>().unwrap();
            let cut = [&packed[..end], size].concat();
            assert!(KernelImage::parse_bounded(&bzimage(&cut), 1 << 20).is_err());
        }
    }
}

#[test]
fn a_byte_changed_anywhere_never_panics() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let elf = small().bytes();
    let headers = 64 + 2 * 56;
    for at in (0..headers).chain(elf.len() - 150..elf.len()) {
        for value in [0, 0x80, 0xff] {
            let mut file = elf.clone();
            file[at] = value;
            try_out(&file);
        }
    }
    for compression in PACKINGS {
        let image = bzimage(&pack(&elf, compression));
        for _ in 0..100 {
            let mut file = image.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(file.len());
                file[at] ^= 1 << random.below(8);
            }
            try_out(&file);
        }
    }
}
