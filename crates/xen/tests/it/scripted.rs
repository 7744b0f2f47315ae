//! A scripted hypervisor that records its calls.

use xen::{ARENA_BYTES_MIN, DomId, Errno, ForeignRange, Hypervisor, Op, Piece, Resource};

/// The arena's pretended address.
pub(crate) const ARENA_ADDRESS: u64 = 0x7000_0000_0000;

/// One hypercall as it was issued.
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) args: [u64; 5],
    pub(crate) arena: Vec<u8>,
}

type Answer<'a> = dyn FnMut(Op, [u64; 5], &mut [u8]) -> Result<u64, Errno> + 'a;

pub(crate) struct Scripted<'a> {
    arena: Vec<u8>,
    answer: Box<Answer<'a>>,
    pub(crate) calls: Vec<Call>,
    pub(crate) resource_writes: Vec<(usize, Vec<u8>)>,
}

impl<'a> Scripted<'a> {
    /// `answer` sees each call and the arena, and may write to it.
    pub(crate) fn new(
        answer: impl FnMut(Op, [u64; 5], &mut [u8]) -> Result<u64, Errno> + 'a,
    ) -> Self {
        Self {
            arena: vec![0; ARENA_BYTES_MIN],
            answer: Box::new(answer),
            calls: Vec::new(),
            resource_writes: Vec::new(),
        }
    }
}

impl Hypervisor for Scripted<'_> {
    fn arena(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    fn arena_address(&self) -> u64 {
        ARENA_ADDRESS
    }

    fn hypercall(&mut self, op: Op, args: [u64; 5]) -> Result<u64, Errno> {
        self.calls.push(Call { op, args, arena: self.arena.clone() });
        (self.answer)(op, args, &mut self.arena)
    }

    fn write_foreign(&mut self, _: ForeignRange<'_>, _: &[Piece<'_>]) -> Result<(), Errno> {
        Err(Errno::ESRCH)
    }

    fn read_foreign(&mut self, _: ForeignRange<'_>, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::ESRCH)
    }

    fn write_resource(
        &mut self,
        _: DomId,
        _: Resource,
        offset_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        self.resource_writes.push((offset_bytes, bytes.to_vec()));
        Ok(())
    }
}

/// The native-endian word at an offset of the arena.
pub(crate) fn word(arena: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(arena[offset..offset + 4].try_into().expect("four bytes"))
}

/// Answers to the calls of [`xen::Xen::probe`], and `None` to all others.
pub(crate) fn probing(
    release: (u64, u64),
    versions: (u32, u32),
) -> impl Fn(Op, [u64; 5], &[u8]) -> Option<Result<u64, Errno>> {
    move |op, args, arena| match op {
        Op::Version if args[0] == 0 => Some(Ok(release.0 << 16 | release.1)),
        Op::Domctl if word(arena, 4) != versions.0 => Some(Err(Errno::EACCES)),
        Op::Sysctl if word(arena, 4) != versions.1 => Some(Err(Errno::EACCES)),
        _ => None,
    }
}
