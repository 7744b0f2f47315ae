//! Records of libxc's stream, their bodies and how they are encoded.

use crate::bytes::{Fields, put_record, put_u32, put_u64};
use crate::error::Fault;

pub const PAGE_BYTES: usize = 4096;

pub(crate) const END: u32 = 0;
pub(crate) const PAGE_DATA: u32 = 1;
pub(crate) const X86_PV_INFO: u32 = 2;
pub(crate) const X86_PV_P2M_FRAMES: u32 = 3;
pub(crate) const SHARED_INFO: u32 = 7;
pub(crate) const X86_TSC_INFO: u32 = 8;
pub(crate) const HVM_CONTEXT: u32 = 9;
pub(crate) const HVM_PARAMS: u32 = 0xa;
pub(crate) const TOOLSTACK: u32 = 0xb;
pub(crate) const VERIFY: u32 = 0xd;
pub(crate) const CHECKPOINT: u32 = 0xe;
pub(crate) const DIRTY_PFNS: u32 = 0xf;
pub(crate) const STATIC_DATA_END: u32 = 0x10;
pub(crate) const X86_CPUID_POLICY: u32 = 0x11;
pub(crate) const X86_MSR_POLICY: u32 = 0x12;
/// Records with this bit may be skipped by readers that do not know them.
pub(crate) const OPTIONAL: u32 = 1 << 31;

/// Bits of a page's number; its type is above.
const PFN_MASK: u64 = (1 << 52) - 1;
const TYPE_SHIFT: u32 = 60;

pub(crate) fn name(kind: u32) -> &'static str {
    match kind {
        END => "END",
        PAGE_DATA => "PAGE_DATA",
        X86_PV_INFO => "X86_PV_INFO",
        X86_PV_P2M_FRAMES => "X86_PV_P2M_FRAMES",
        4 => "X86_PV_VCPU_BASIC",
        5 => "X86_PV_VCPU_EXTENDED",
        6 => "X86_PV_VCPU_XSAVE",
        SHARED_INFO => "SHARED_INFO",
        X86_TSC_INFO => "X86_TSC_INFO",
        HVM_CONTEXT => "HVM_CONTEXT",
        HVM_PARAMS => "HVM_PARAMS",
        TOOLSTACK => "TOOLSTACK",
        0xc => "X86_PV_VCPU_MSRS",
        VERIFY => "VERIFY",
        CHECKPOINT => "CHECKPOINT",
        DIRTY_PFNS => "CHECKPOINT_DIRTY_PFN_LIST",
        STATIC_DATA_END => "STATIC_DATA_END",
        X86_CPUID_POLICY => "X86_CPUID_POLICY",
        X86_MSR_POLICY => "X86_MSR_POLICY",
        _ => "of an unknown type",
    }
}

/// The longest body of a type. Writers send batches of 1024 pages; a PV guest's list of frames is the
/// only record that is long because the domain is large.
pub(crate) fn bytes_max(kind: u32) -> usize {
    if kind == X86_PV_P2M_FRAMES { 64 << 20 } else { 16 << 20 }
}

/// A part of a domain's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Record {
    End,
    PageData(PageData),
    /// Bytes of a guest's pointer, and levels of its page tables.
    PvInfo {
        width: u8,
        levels: u8,
    },
    P2mFrames(P2mFrames),
    Vcpu(VcpuBlob),
    SharedInfo(Box<[u8]>),
    Tsc(Tsc),
    HvmContext(Vec<u8>),
    /// Index and value of each.
    HvmParams(Vec<(u64, u64)>),
    /// Memory that follows is for comparison with what has come.
    Verify,
    /// All before it is consistent.
    Checkpoint,
    StaticDataEnd,
    CpuidPolicy(Vec<CpuidLeaf>),
    MsrPolicy(Vec<MsrEntry>),
}

/// What a page is. PV page tables contain machine frames and are translated on the way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PageType {
    Normal,
    /// A page table of level 1 to 4.
    Table {
        level: u8,
        is_pinned: bool,
    },
    Broken,
    /// It exists, without content.
    AllocateOnly,
    /// It is not there any more.
    Invalid,
}

impl PageType {
    pub(crate) fn decode(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Normal,
            1..=4 => Self::Table { level: code, is_pinned: false },
            9..=12 => Self::Table { level: code - 8, is_pinned: true },
            13 => Self::Broken,
            14 => Self::AllocateOnly,
            15 => Self::Invalid,
            _ => return None,
        })
    }

    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Normal => 0,
            Self::Table { level, is_pinned } => u64::from(level) + if is_pinned { 8 } else { 0 },
            Self::Broken => 13,
            Self::AllocateOnly => 14,
            Self::Invalid => 15,
        }
    }

    /// Whether its content is in the record.
    #[must_use]
    pub fn has_data(self) -> bool {
        matches!(self, Self::Normal | Self::Table { .. })
    }
}

/// Pages, and the contents of those that have some, one after the other.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PageData {
    pub pages: Vec<(u64, PageType)>,
    pub data: Vec<u8>,
}

impl PageData {
    /// Each page with its content.
    pub fn iter(&self) -> impl Iterator<Item = (u64, PageType, Option<&[u8]>)> + '_ {
        let mut contents = self.data.chunks_exact(PAGE_BYTES);
        self.pages.iter().map(move |&(pfn, kind)| {
            (pfn, kind, if kind.has_data() { contents.next() } else { None })
        })
    }

    fn decode(body: &[u8]) -> Result<Self, Fault> {
        let wrong = || Fault::Length(body.len() as u64);
        let mut fields = Fields(body);
        let count = fields.u32().ok_or_else(wrong)?;
        let _reserved = fields.u32().ok_or_else(wrong)?;
        // The length of the body bounds what is allocated.
        if count == 0 || u64::from(count) * 8 > fields.rest().len() as u64 {
            return Err(wrong());
        }
        let mut pages = Vec::new();
        for _ in 0..count {
            let word = fields.u64().ok_or_else(wrong)?;
            let code = word.to_le_bytes()[7] >> 4;
            let kind = PageType::decode(code);
            let kind = kind.ok_or(Fault::Unknown("the type of a page", code.into()))?;
            if word >> 52 & 0xff != 0 {
                return Err(Fault::Unknown("the number of a page", word));
            }
            pages.push((word & PFN_MASK, kind));
        }
        let with_data = pages.iter().filter(|(_, kind)| kind.has_data()).count();
        if fields.rest().len() != with_data * PAGE_BYTES {
            return Err(wrong());
        }
        Ok(Self { pages, data: fields.rest().to_vec() })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, u32::try_from(self.pages.len()).expect("a record is not that long"));
        put_u32(out, 0);
        for (pfn, kind) in &self.pages {
            put_u64(out, pfn & PFN_MASK | kind.code() << TYPE_SHIFT);
        }
        out.extend_from_slice(&self.data);
    }
}

/// The frames of a PV domain's table from pfns to machine frames, for the pfns of a range.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct P2mFrames {
    /// Both belong to the range.
    pub start: u32,
    pub end: u32,
    pub frames: Vec<u64>,
}

impl P2mFrames {
    fn decode(body: &[u8]) -> Result<Self, Fault> {
        let wrong = || Fault::Length(body.len() as u64);
        let mut fields = Fields(body);
        let (start, end) = (fields.u32().ok_or_else(wrong)?, fields.u32().ok_or_else(wrong)?);
        let frames = words(fields).ok_or_else(wrong)?;
        if start > end {
            return Err(Fault::Unknown("the first page", start.into()));
        }
        Ok(Self { start, end, frames })
    }

    /// Frames that a table of entries of this many bytes has for the range.
    pub(crate) fn frames_needed(&self, width: u8) -> u64 {
        let per_frame = PAGE_BYTES as u64 / u64::from(width.max(1));
        u64::from(self.end) / per_frame - u64::from(self.start) / per_frame + 1
    }
}

/// Which state of a PV vCPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VcpuState {
    Basic,
    Extended,
    Xsave,
    Msrs,
}

impl VcpuState {
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Basic => 4,
            Self::Extended => 5,
            Self::Xsave => 6,
            Self::Msrs => 0xc,
        }
    }
}

/// A PV vCPU's state, as Xen gives and takes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VcpuBlob {
    pub state: VcpuState,
    pub vcpu: u32,
    pub bytes: Vec<u8>,
}

impl VcpuBlob {
    fn decode(state: VcpuState, body: &[u8]) -> Result<Self, Fault> {
        let mut fields = Fields(body);
        let (vcpu, reserved) = (fields.u32(), fields.u32());
        let (Some(vcpu), Some(_)) = (vcpu, reserved) else {
            return Err(Fault::Length(body.len() as u64));
        };
        Ok(Self { state, vcpu, bytes: fields.rest().to_vec() })
    }
}

/// How a domain sees the time stamp counter.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tsc {
    pub mode: u32,
    pub khz: u32,
    pub elapsed_ns: u64,
    pub incarnation: u32,
}

impl Tsc {
    fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let tsc = Self {
            mode: fields.u32()?,
            khz: fields.u32()?,
            elapsed_ns: fields.u64()?,
            incarnation: fields.u32()?,
        };
        fields.u32()?;
        fields.is_empty().then_some(tsc)
    }
}

/// An entry of a CPUID policy (`xen_cpuid_leaf_t`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CpuidLeaf {
    pub leaf: u32,
    pub subleaf: u32,
    /// eax, ebx, ecx, edx.
    pub registers: [u32; 4],
}

/// An entry of an MSR policy (`xen_msr_entry_t`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MsrEntry {
    pub index: u32,
    pub flags: u32,
    pub value: u64,
}

/// All of the body as words.
fn words(mut fields: Fields<'_>) -> Option<Vec<u64>> {
    let mut words = Vec::new();
    while !fields.is_empty() {
        words.push(fields.u64()?);
    }
    Some(words)
}

fn cpuid_leaves(mut fields: Fields<'_>) -> Option<Vec<CpuidLeaf>> {
    let mut leaves = Vec::new();
    while !fields.is_empty() {
        let (leaf, subleaf) = (fields.u32()?, fields.u32()?);
        let registers = [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        leaves.push(CpuidLeaf { leaf, subleaf, registers });
    }
    Some(leaves)
}

fn msr_entries(mut fields: Fields<'_>) -> Option<Vec<MsrEntry>> {
    let mut entries = Vec::new();
    while !fields.is_empty() {
        entries.push(MsrEntry { index: fields.u32()?, flags: fields.u32()?, value: fields.u64()? });
    }
    Some(entries)
}

fn hvm_params(mut fields: Fields<'_>) -> Option<Vec<(u64, u64)>> {
    let count = fields.u32()?;
    fields.u32()?;
    let mut params = Vec::new();
    while !fields.is_empty() {
        params.push((fields.u64()?, fields.u64()?));
    }
    (params.len() as u64 == u64::from(count)).then_some(params)
}

impl Record {
    /// `None` for one that may be skipped.
    pub(crate) fn decode(kind: u32, body: Vec<u8>) -> Result<Option<Self>, Fault> {
        let wrong = Fault::Length(body.len() as u64);
        let fields = Fields(&body);
        let vcpu = |state| VcpuBlob::decode(state, &body).map(Self::Vcpu);
        let empty = |record| if body.is_empty() { Ok(record) } else { Err(wrong.clone()) };
        Ok(Some(match kind {
            END => empty(Self::End)?,
            PAGE_DATA => Self::PageData(PageData::decode(&body)?),
            X86_PV_INFO => match *body {
                [width @ (4 | 8), levels @ (3 | 4), ..] if body.len() == 8 => {
                    Self::PvInfo { width, levels }
                }
                [width, levels, ..] if body.len() == 8 => {
                    let value = u64::from(width) << 8 | u64::from(levels);
                    return Err(Fault::Unknown("the guest's width", value));
                }
                _ => return Err(wrong),
            },
            X86_PV_P2M_FRAMES => Self::P2mFrames(P2mFrames::decode(&body)?),
            4 => vcpu(VcpuState::Basic)?,
            5 => vcpu(VcpuState::Extended)?,
            6 => vcpu(VcpuState::Xsave)?,
            0xc => vcpu(VcpuState::Msrs)?,
            SHARED_INFO if body.len() == PAGE_BYTES => Self::SharedInfo(body.into()),
            SHARED_INFO => return Err(wrong),
            X86_TSC_INFO => Self::Tsc(Tsc::decode(&body).ok_or(wrong)?),
            HVM_CONTEXT => Self::HvmContext(body),
            HVM_PARAMS => Self::HvmParams(hvm_params(fields).ok_or(wrong)?),
            // It was never in a release's streams.
            TOOLSTACK => return Ok(None),
            VERIFY => empty(Self::Verify)?,
            CHECKPOINT => empty(Self::Checkpoint)?,
            STATIC_DATA_END => empty(Self::StaticDataEnd)?,
            X86_CPUID_POLICY => Self::CpuidPolicy(cpuid_leaves(fields).ok_or(wrong)?),
            X86_MSR_POLICY => Self::MsrPolicy(msr_entries(fields).ok_or(wrong)?),
            optional if optional & OPTIONAL != 0 => return Ok(None),
            // A list of dirty pages goes from the receiver to the sender, never the other way.
            _ => return Err(Fault::UnknownRecord),
        }))
    }

    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::End => END,
            Self::PageData(_) => PAGE_DATA,
            Self::PvInfo { .. } => X86_PV_INFO,
            Self::P2mFrames(_) => X86_PV_P2M_FRAMES,
            Self::Vcpu(blob) => blob.state.code(),
            Self::SharedInfo(_) => SHARED_INFO,
            Self::Tsc(_) => X86_TSC_INFO,
            Self::HvmContext(_) => HVM_CONTEXT,
            Self::HvmParams(_) => HVM_PARAMS,
            Self::Verify => VERIFY,
            Self::Checkpoint => CHECKPOINT,
            Self::StaticDataEnd => STATIC_DATA_END,
            Self::CpuidPolicy(_) => X86_CPUID_POLICY,
            Self::MsrPolicy(_) => X86_MSR_POLICY,
        }
    }

    /// The type's name in the specification.
    #[must_use]
    pub fn name(&self) -> &'static str {
        name(self.kind())
    }

    /// Whether it says nothing. Such a record is left out: readers from 4.6 to 4.8 make work of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::PageData(data) => data.pages.is_empty(),
            Self::Vcpu(blob) => blob.bytes.is_empty(),
            Self::HvmContext(bytes) => bytes.is_empty(),
            Self::HvmParams(params) => params.is_empty(),
            Self::CpuidPolicy(leaves) => leaves.is_empty(),
            Self::MsrPolicy(entries) => entries.is_empty(),
            Self::End
            | Self::PvInfo { .. }
            | Self::P2mFrames(_)
            | Self::SharedInfo(_)
            | Self::Tsc(_)
            | Self::Verify
            | Self::Checkpoint
            | Self::StaticDataEnd => false,
        }
    }

    /// Appends it to a stream, unless it is empty.
    ///
    /// # Panics
    /// If it is longer than [`RECORD_BYTES_MAX`](crate::RECORD_BYTES_MAX).
    pub fn encode(&self, out: &mut Vec<u8>) {
        if !self.is_empty() {
            put_record(out, self.kind(), |out| self.encode_body(out));
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::End | Self::Verify | Self::Checkpoint | Self::StaticDataEnd => {}
            Self::PageData(data) => data.encode(out),
            Self::PvInfo { width, levels } => {
                out.extend_from_slice(&[*width, *levels, 0, 0, 0, 0, 0, 0]);
            }
            Self::P2mFrames(p2m) => {
                put_u32(out, p2m.start);
                put_u32(out, p2m.end);
                p2m.frames.iter().for_each(|frame| put_u64(out, *frame));
            }
            Self::Vcpu(blob) => {
                put_u32(out, blob.vcpu);
                put_u32(out, 0);
                out.extend_from_slice(&blob.bytes);
            }
            Self::SharedInfo(bytes) => out.extend_from_slice(bytes),
            Self::Tsc(tsc) => {
                put_u32(out, tsc.mode);
                put_u32(out, tsc.khz);
                put_u64(out, tsc.elapsed_ns);
                put_u32(out, tsc.incarnation);
                put_u32(out, 0);
            }
            Self::HvmContext(bytes) => out.extend_from_slice(bytes),
            Self::HvmParams(params) => {
                put_u32(out, u32::try_from(params.len()).expect("there are few"));
                put_u32(out, 0);
                for (index, value) in params {
                    put_u64(out, *index);
                    put_u64(out, *value);
                }
            }
            Self::CpuidPolicy(leaves) => {
                for leaf in leaves {
                    put_u32(out, leaf.leaf);
                    put_u32(out, leaf.subleaf);
                    leaf.registers.iter().for_each(|it| put_u32(out, *it));
                }
            }
            Self::MsrPolicy(entries) => {
                for entry in entries {
                    put_u32(out, entry.index);
                    put_u32(out, entry.flags);
                    put_u64(out, entry.value);
                }
            }
        }
    }
}
