//! A fake hypervisor for the builder: it allocates frames full of garbage in no useful order, keeps
//! what is written to them, and records the calls.

use std::collections::BTreeMap;

use xen::{
    ARENA_BYTES_MIN, DomId, Errno, ForeignRange, Hypervisor, Op, PAGE_BYTES, Piece, Resource, Xen,
};

const ARENA_ADDRESS: u64 = 0x7f00_0000_0000;
pub(crate) const SHARED_INFO_FRAME: u64 = 0xabcde;
pub(crate) const GARBAGE: u8 = 0xa5;
pub(crate) const DOMAIN: DomId = DomId(7);

#[derive(Default)]
pub(crate) struct Fake {
    arena: Vec<u8>,
    pub(crate) translated: bool,
    /// Largest order of free extents.
    pub(crate) order_max: u32,
    /// Free pages.
    pub(crate) pages_left: u64,
    /// Pages of the domain that it takes on demand.
    pub(crate) on_demand: u64,
    /// Pages that are claimed and not yet populated.
    pub(crate) claimed: u64,
    next_frame: u64,
    /// Written pages by the frame's name in foreign mappings.
    pub(crate) memory: BTreeMap<u64, Vec<u8>>,
    /// Extents that belong to the domain: first frame, by that name, and pages.
    pub(crate) owned: BTreeMap<u64, u64>,
    /// Orders and counts of the extents requested and allocated.
    pub(crate) extents: Vec<(u32, u64, u64)>,
    pub(crate) context: Vec<u8>,
    pub(crate) hvm_context: Vec<u8>,
    pub(crate) hvm_params: BTreeMap<u32, u64>,
    pub(crate) memory_map: Vec<u8>,
    pub(crate) pinned: Option<u64>,
    pub(crate) hypercall_page: Option<u64>,
    pub(crate) paging_pool: Option<u64>,
    pub(crate) memory_max_kib: u64,
    pub(crate) tsc_mode: Option<u32>,
    pub(crate) grants: Vec<u8>,
}

impl Fake {
    pub(crate) fn xen(translated: bool) -> Xen<Self> {
        let fake = Self {
            arena: vec![0; ARENA_BYTES_MIN],
            translated,
            order_max: 18,
            pages_left: u64::MAX,
            next_frame: 0x10_0000,
            grants: vec![GARBAGE; PAGE_BYTES],
            ..Self::default()
        };
        let mut xen = Xen::probe(fake).unwrap();
        xen.take_counters();
        xen
    }

    /// Whether the frame belongs to the domain.
    pub(crate) fn owns(&self, frame: u64) -> bool {
        let below = self.owned.range(..=frame).next_back();
        below.is_some_and(|(first, pages)| frame < first + pages)
    }

    /// Memory of a translated domain, by physical address; the domain owns all of it.
    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        (address..address + bytes as u64)
            .map(|at| {
                assert!(self.owns(at >> 12), "{at:#x} is no memory");
                let page = self.memory.get(&(at >> 12));
                page.map_or(GARBAGE, |page| page[usize::try_from(at % 4096).unwrap()])
            })
            .collect()
    }

    /// A word of that memory.
    pub(crate) fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().unwrap())
    }

    /// A field of vCPU 0's record, which is the last but the end.
    pub(crate) fn register(&self, offset: usize) -> u64 {
        let stream = &self.hvm_context;
        let record = &stream[stream.len() - 8 - 1032..];
        u64::from_le_bytes(record[offset..offset + 8].try_into().unwrap())
    }

    /// All frames of the domain.
    pub(crate) fn frames(&self) -> Vec<u64> {
        self.owned.iter().flat_map(|(first, pages)| *first..first + pages).collect()
    }

    fn at(&self, address: u64, bytes: usize) -> &[u8] {
        let offset = usize::try_from(address - ARENA_ADDRESS).unwrap();
        &self.arena[offset..offset + bytes]
    }

    fn at_mut(&mut self, address: u64, bytes: usize) -> &mut [u8] {
        let offset = usize::try_from(address - ARENA_ADDRESS).unwrap();
        &mut self.arena[offset..offset + bytes]
    }

    fn u32(&self, address: u64) -> u32 {
        u32::from_le_bytes(self.at(address, 4).try_into().unwrap())
    }

    fn u64(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.at(address, 8).try_into().unwrap())
    }

    fn domctl(&mut self, call: u64) -> Result<u64, Errno> {
        let payload = call + 16;
        if self.u32(call + 4) != 0x15 {
            return Err(Errno::EACCES);
        }
        match self.u32(call) {
            // getdomaininfo
            5 => {
                let domid = u16::from_le_bytes(self.at(call + 8, 2).try_into().unwrap());
                let info = self.at_mut(payload, 112);
                info.fill(0);
                info[..2].copy_from_slice(&domid.to_le_bytes());
                info[48..56].copy_from_slice(&SHARED_INFO_FRAME.to_le_bytes());
            }
            // max_mem
            11 => self.memory_max_kib = self.u64(payload),
            // setvcpucontext
            12 => {
                assert_eq!(self.u32(payload), 0, "only vCPU 0 starts");
                self.context = self.at(self.u64(payload + 8), 5168).to_vec();
            }
            // hypercall_init
            22 => self.hypercall_page = Some(self.u64(payload)),
            // gethvmcontext: a header and the memory types of two vCPUs
            33 => {
                let mut stream = Vec::new();
                for (code, instance, bytes) in [(1_u16, 0_u16, 24_u32), (14, 0, 240), (14, 1, 240)]
                {
                    stream.extend(code.to_le_bytes());
                    stream.extend(instance.to_le_bytes());
                    stream.extend(bytes.to_le_bytes());
                    stream.extend(vec![0x11; usize::try_from(bytes).unwrap()]);
                }
                stream.extend([0; 8]);
                let buffer = self.u64(payload + 8);
                self.at_mut(buffer, stream.len()).copy_from_slice(&stream);
                let length = u32::try_from(stream.len()).unwrap().to_le_bytes();
                self.at_mut(payload, 4).copy_from_slice(&length);
            }
            // sethvmcontext
            34 => {
                let bytes = usize::try_from(self.u32(payload)).unwrap();
                self.hvm_context = self.at(self.u64(payload + 8), bytes).to_vec();
            }
            // settscinfo
            60 => self.tsc_mode = Some(self.u32(payload)),
            // set_paging_mempool_size
            86 => self.paging_pool = Some(self.u64(payload)),
            other => panic!("the builder does not use domctl {other}"),
        }
        Ok(0)
    }

    fn take(&mut self, pages: u64) {
        self.pages_left -= pages;
        assert!(self.claimed >= pages, "memory is claimed before it is taken");
        self.claimed -= pages;
    }

    fn set_pod_target(&mut self, pages: u64) -> Result<u64, Errno> {
        assert!(self.owned.is_empty(), "it is the first memory of the domain");
        let more = pages - self.on_demand;
        assert!(more <= 1 << 18, "1 GiB at a time");
        if more > self.pages_left {
            return Err(Errno::ENOMEM);
        }
        self.take(more);
        self.on_demand = pages;
        Ok(0)
    }

    fn populate(&mut self, argument: u64) -> u64 {
        const ON_DEMAND: u32 = 1 << 16;
        let (list, asked) = (self.u64(argument), self.u64(argument + 8));
        let (order, flags) = (self.u32(argument + 16), self.u32(argument + 20));
        let mut given = 0;
        while given < asked && order <= self.order_max && self.pages_left >= 1 << order {
            if flags & ON_DEMAND == 0 {
                self.take(1 << order);
            }
            // Adjacent frames of the domain are not adjacent in the machine.
            let machine = self.next_frame.next_multiple_of(1 << order);
            self.next_frame = machine + (2 << order);
            let entry = list + given * 8;
            let first = if self.translated { self.u64(entry) } else { machine };
            self.at_mut(entry, 8).copy_from_slice(&first.to_le_bytes());
            assert_eq!(self.owned.insert(first, 1 << order), None, "{first:#x} was given before");
            given += 1;
        }
        self.extents.push((order, asked, given));
        given
    }
}

impl Hypervisor for Fake {
    fn arena(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    fn arena_address(&self) -> u64 {
        ARENA_ADDRESS
    }

    fn hypercall(&mut self, op: Op, args: [u64; 5]) -> Result<u64, Errno> {
        match (op, args[0]) {
            (Op::Version, 0) => Ok(4 << 16 | 17),
            (Op::Sysctl, call) if self.u32(call + 4) == 0x15 => Ok(0),
            (Op::Sysctl, _) => Err(Errno::EACCES),
            (Op::Domctl, call) => self.domctl(call),
            (Op::Memory, 6) => Ok(self.populate(args[1])),
            (Op::Memory, 16) => self.set_pod_target(self.u64(args[1])),
            (Op::Memory, 24) => {
                self.claimed = self.u64(args[1] + 8);
                Ok(0)
            }
            (Op::Memory, 13) => {
                let entries = usize::try_from(self.u32(args[1] + 8)).unwrap();
                self.memory_map = self.at(self.u64(args[1] + 16), entries * 20).to_vec();
                Ok(0)
            }
            (Op::Mmuext, address) => {
                self.pinned = Some(self.u64(address + 8));
                Ok(0)
            }
            (Op::Hvm, 0) => {
                self.hvm_params.insert(self.u32(args[1] + 4), self.u64(args[1] + 8));
                Ok(0)
            }
            other => panic!("the builder does not use {other:?}"),
        }
    }

    fn write_foreign(
        &mut self,
        range: ForeignRange<'_>,
        pieces: &[Piece<'_>],
    ) -> Result<(), Errno> {
        let bytes = Piece::joined(pieces);
        assert_eq!(range.domid, DOMAIN);
        assert_eq!(self.pinned, None, "page tables are Xen's once they are pinned");
        assert_eq!((range.offset_bytes + bytes.len()).div_ceil(PAGE_BYTES), range.frames.len());
        let mut rest = bytes.as_slice();
        let mut offset = range.offset_bytes;
        for frame in range.frames {
            if *frame != SHARED_INFO_FRAME && !self.owns(*frame) {
                return Err(Errno::EINVAL);
            }
            let (now, later) = rest.split_at(rest.len().min(PAGE_BYTES - offset));
            let page = self.memory.entry(*frame).or_insert_with(|| vec![GARBAGE; PAGE_BYTES]);
            page[offset..offset + now.len()].copy_from_slice(now);
            (rest, offset) = (later, 0);
        }
        Ok(())
    }

    fn read_foreign(&mut self, _: ForeignRange<'_>, _: &mut [u8]) -> Result<(), Errno> {
        panic!("the builder does not read foreign memory")
    }

    fn write_resource(
        &mut self,
        domid: DomId,
        _: Resource,
        offset_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        assert_eq!(domid, DOMAIN);
        self.grants[offset_bytes..offset_bytes + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
