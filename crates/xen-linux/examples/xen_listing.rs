//! Compares the ways to list all domains, through one device in one process.
//!
//! `xen_listing ROUNDS` prints `SAMPLE NAME VALUE` lines: microseconds of each listing, in turn,
//! and the hypercalls that it took. All must return the same domids. `one-call` is what Xylem does.
//! `chunks-of-2` is what 4.17's OCaml bindings do, with a permanent buffer. `bounce` is what
//! libxenctrl does with the largest buffer: map it, clear it, call, copy all of it back, unmap it.
//! `bounce-1024` is the same with the 1024 entries that libxl requests at a time.

use std::fs::File;
use std::process::ExitCode;
use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use xen::{ARENA_BYTES_FULL, DomId, Hypervisor, Op, Xen};
use xen_linux::LinuxHypervisor;

/// `struct xen_domctl_getdomaininfo`.
const INFO_BYTES: usize = 112;
/// Identifiers that a domain can have.
const DOMAINS_MAX: usize = DomId::FIRST_RESERVED as usize;
/// Offset of the chunked listing's buffer in the arena, after the call's structure.
const CHUNK_OFFSET: usize = 4096;

type Listed<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xen_listing: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Listed<()> {
    let rounds: u32 = std::env::args()
        .nth(1)
        .ok_or("usage: xen_listing ROUNDS")?
        .parse()
        .map_err(|error| format!("ROUNDS: {error}"))?;
    let mut xen = Xen::probe(LinuxHypervisor::open(ARENA_BYTES_FULL)?)?;
    let device = File::options().read(true).write(true).open("/dev/xen/hypercall")?;
    let wanted: Vec<u16> = xen.domains()?.iter().map(|info| info.domid.0).collect();
    type Way = fn(&mut Xen<LinuxHypervisor>, &File) -> Listed<(Vec<u16>, u32)>;
    let ways: [(&str, Way); 4] = [
        ("one-call", |xen, _| {
            let before = xen.counters().total();
            let list = xen.domains()?;
            let calls = u32::try_from(xen.counters().total() - before)?;
            Ok((list.iter().map(|info| info.domid.0).collect(), calls))
        }),
        ("chunks-of-2", |xen, _| chunked(xen, 2)),
        ("bounce", |xen, device| bounced(xen, device, DOMAINS_MAX)),
        ("bounce-1024", |xen, device| bounced(xen, device, 1024)),
    ];
    for round in 0..=rounds {
        for (name, way) in ways {
            let started = Instant::now();
            let (ids, calls) = way(&mut xen, &device)?;
            let took = started.elapsed();
            if ids != wanted {
                return Err(
                    format!("{name} lists {} domains, not {}", ids.len(), wanted.len()).into()
                );
            }
            match round {
                // The first round touches the memory and is not timed.
                0 => println!("SAMPLE {name}-calls {calls}"),
                _ => println!("SAMPLE {name}-us {}", took.as_secs_f64() * 1e6),
            }
        }
    }
    Ok(())
}

/// One getdomaininfolist: how many domains from `first` on were written to `buffer`.
fn list(xen: &mut Xen<LinuxHypervisor>, first: u16, max: usize, buffer: u64) -> Listed<usize> {
    const GETDOMAININFOLIST: u32 = 6;
    let version = xen.abi().sysctl.0;
    let hypervisor = xen.hypervisor();
    let call = hypervisor.arena_address();
    let arena = hypervisor.arena();
    arena[..136].fill(0);
    arena[..4].copy_from_slice(&GETDOMAININFOLIST.to_ne_bytes());
    arena[4..8].copy_from_slice(&version.to_ne_bytes());
    arena[8..10].copy_from_slice(&first.to_ne_bytes());
    arena[12..16].copy_from_slice(&u32::try_from(max)?.to_ne_bytes());
    arena[16..24].copy_from_slice(&buffer.to_ne_bytes());
    hypervisor.hypercall(Op::Sysctl, [call, 0, 0, 0, 0])?;
    let found = hypervisor.arena()[24..28].first_chunk().ok_or("an arena is longer")?;
    Ok(usize::try_from(u32::from_ne_bytes(*found))?)
}

fn ids(infos: &[u8]) -> impl Iterator<Item = u16> + '_ {
    infos.chunks_exact(INFO_BYTES).map(|info| u16::from_ne_bytes([info[0], info[1]]))
}

/// Lists `max` domains at a time until a listing is empty, into a permanent buffer.
fn chunked(xen: &mut Xen<LinuxHypervisor>, max: usize) -> Listed<(Vec<u16>, u32)> {
    let (mut all, mut calls, mut first) = (Vec::new(), 0, 0);
    loop {
        let buffer = xen.hypervisor().arena_address() + CHUNK_OFFSET as u64;
        let found = list(xen, first, max, buffer)?;
        calls += 1;
        let infos = &xen.hypervisor().arena()[CHUNK_OFFSET..CHUNK_OFFSET + found * INFO_BYTES];
        all.extend(ids(infos));
        match all.last() {
            Some(last) if found > 0 => first = last + 1,
            _ => return Ok((all, calls)),
        }
    }
}

/// Lists through a buffer that is allocated for each call and copied as a whole.
fn bounced(xen: &mut Xen<LinuxHypervisor>, device: &File, max: usize) -> Listed<(Vec<u16>, u32)> {
    let bytes = (max * INFO_BYTES).next_multiple_of(xen::PAGE_BYTES);
    let mut copy = vec![0_u8; bytes];
    let (mut all, mut calls, mut first) = (Vec::new(), 0, 0);
    loop {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses an unused range, which nothing else refers to.
        let buffer = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, device, 0) }?;
        // SAFETY: the mapping has that many bytes and is writable.
        unsafe { std::ptr::write_bytes(buffer.cast::<u8>(), 0, bytes) };
        let found = list(xen, first, max, buffer as u64);
        calls += 1;
        // SAFETY: both have that many bytes, and Xen is done with the buffer.
        unsafe { std::ptr::copy_nonoverlapping(buffer.cast::<u8>(), copy.as_mut_ptr(), bytes) };
        // SAFETY: the range was mapped above and nothing refers to it any more.
        unsafe { munmap(buffer, bytes) }?;
        let found = found?;
        all.extend(ids(&copy[..found * INFO_BYTES]));
        match all.last() {
            Some(last) if found == max => first = last + 1,
            _ => return Ok((all, calls)),
        }
    }
}
