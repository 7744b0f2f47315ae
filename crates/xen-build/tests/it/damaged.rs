//! Truncated and damaged files never cause a panic.

use xen::DomainKind;
use xen_build::{BuildConfig, KernelImage};

use crate::fake::{DOMAIN, Fake};
use crate::images::PACKINGS;
use crate::kernels::{self, bzimage, pack};
use crate::pv::{CHANNELS, config};

/// Parses, and builds what can be parsed.
fn try_out(file: &[u8]) {
    if let Ok(kernel) = KernelImage::parse_bounded(file, 1 << 20) {
        try_to_build(&kernel);
    }
}

fn try_to_build(kernel: &KernelImage) {
    for kind in [DomainKind::Pv, DomainKind::Pvh] {
        let config = BuildConfig { ramdisk: Some(&[1; 100]), ..config(kind, kernel, 5) };
        let mut xen = Fake::xen(kind != DomainKind::Pv);
        let checked = xen_build::check(&config).map(drop);
        let built = xen_build::build(&mut xen, DOMAIN, &config, &CHANNELS, &mut ()).map(drop);
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
    for elf in [small().bytes(), small().bytes_32(3), small().bytes_32(62)] {
        for end in 0..elf.len() {
            try_out(&elf[..end]);
        }
    }
    let elf = small().bytes();
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
    for (elf, headers) in [(&elf, 64 + 2 * 56), (&small().bytes_32(62), 52 + 2 * 32)] {
        for at in (0..headers).chain(elf.len() - 150..elf.len()) {
            for value in [0, 1, 2, 0x80, 0xff] {
                let mut file = elf.clone();
                file[at] = value;
                try_out(&file);
            }
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

#[test]
fn a_description_is_complete() {
    for elf in [kernels::linux(), kernels::unikernel(), small()] {
        for compression in PACKINGS {
            let kernel = KernelImage::parse(&bzimage(&pack(&elf.bytes(), compression))).unwrap();
            let (description, unpacked) = (kernel.describe(), kernel.unpacked().to_vec());
            let again = KernelImage::assemble(&description, unpacked).unwrap();
            assert_eq!(format!("{again:?}"), format!("{kernel:?}"));
            assert_eq!(again.unpacked(), kernel.unpacked());
        }
    }
}

#[test]
fn a_damaged_description_never_makes_an_unsound_kernel() {
    let kernel = KernelImage::parse(&small().bytes()).unwrap();
    let description = kernel.describe();
    let assemble =
        |description: &[u8]| KernelImage::assemble(description, kernel.unpacked().to_vec());
    for end in 0..description.len() {
        assert!(assemble(&description[..end]).is_err(), "{end}");
    }
    assert!(assemble(&[&description[..], &[0]].concat()).is_err());
    assert!(KernelImage::assemble(&description, vec![0; 100]).is_err());
    for at in 0..description.len() {
        for bit in [0, 4, 7] {
            let mut damaged = description.clone();
            damaged[at] ^= 1 << bit;
            if let Ok(kernel) = assemble(&damaged) {
                try_to_build(&kernel);
            }
        }
    }
}

#[test]
fn headers_that_all_cover_the_whole_file_cost_no_more_than_one() {
    // 60,000 headers of notes, each as long as the file, 3 MiB of empty notes: some 10^10 of them.
    let mut file = small().bytes();
    let headers = 60_000_usize;
    let table = file.len();
    file[32..40].copy_from_slice(&(table as u64).to_le_bytes());
    file[56..58].copy_from_slice(&u16::try_from(headers).unwrap().to_le_bytes());
    let total = (table + headers * 56) as u64;
    for _ in 0..headers {
        file.extend([4_u32, 0].iter().flat_map(|word| word.to_le_bytes()));
        for word in [0, 0, 0, total, total, 4] {
            file.extend(u64::to_le_bytes(word));
        }
    }
    assert!(KernelImage::parse(&file).is_err(), "there is nothing to load");
}
