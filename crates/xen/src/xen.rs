//! [`Xen`]: a hypervisor with its probed interface, and the plumbing shared by all typed
//! hypercalls.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::abi::{DOMCTL_BYTES, DOMCTL_HEADER_BYTES, SYSCTL_BYTES, SYSCTL_HEADER_BYTES};
use crate::{
    Abi, CpuFacts, DomId, Errno, ForeignRange, Hypervisor, Latencies, Op, PAGE_BYTES, Piece,
    ProbeError, Resource,
};

/// Layout of the arena: the call structure, what it points to, and the rest for listings, so that a
/// list never overwrites a call in progress.
pub(crate) const CALL_OFFSET: usize = 0;
pub(crate) const DATA_OFFSET: usize = PAGE_BYTES;
pub(crate) const LIST_OFFSET: usize = 64 * 1024;

/// Number of calls of each hypercall, by name, since the start or the last reset.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    counts: BTreeMap<&'static str, u64>,
    latencies: BTreeMap<&'static str, Latencies>,
}

impl Counters {
    pub(crate) fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn took(&mut self, name: &'static str, ns: u64) {
        self.latencies.entry(name).or_default().record(ns);
    }

    /// Latencies by name. A few rare calls are counted but not timed.
    pub fn latencies(&self) -> impl Iterator<Item = (&'static str, &Latencies)> + '_ {
        self.latencies.iter().map(|(name, latencies)| (*name, latencies))
    }

    /// Names and counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counts.iter().map(|(name, count)| (*name, *count))
    }

    /// All hypercalls together. Foreign mappings count as one each.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// Foreign memory of a domain could not be mapped.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("cannot map {frames} frames of domain {domid} from {first:#x}: {errno}")]
pub struct ForeignError {
    pub domid: DomId,
    pub first: u64,
    pub frames: usize,
    pub errno: Errno,
}

/// The typed hypercalls of a toolstack, over any [`Hypervisor`].
///
/// Invariant: `abi` is what the hypervisor answered when probed, so no call is refused for its
/// version.
#[derive(Debug)]
pub struct Xen<H> {
    pub(crate) hypervisor: H,
    pub(crate) abi: Abi,
    pub(crate) counters: Counters,
    /// Of translated and of PV domains, once requested.
    pub(crate) cpu_facts: [Option<Arc<CpuFacts>>; 2],
}

impl<H: Hypervisor> Xen<H> {
    /// Probes the hypervisor's interface versions.
    ///
    /// # Errors
    /// [`ProbeError`] if this is not a Xen we may control, or one with unknown interface versions.
    pub fn probe(mut hypervisor: H) -> Result<Self, ProbeError> {
        let mut counters = Counters::default();
        let abi = crate::probe::probe(&mut hypervisor, &mut counters)?;
        Ok(Self { hypervisor, abi, counters, cpu_facts: [None, None] })
    }

    #[must_use]
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// Hypercalls issued so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counts and resets them.
    pub fn take_counters(&mut self) -> Counters {
        core::mem::take(&mut self.counters)
    }

    /// The hypervisor itself, for anything but a toolstack's hypercalls.
    pub fn hypervisor(&mut self) -> &mut H {
        &mut self.hypervisor
    }

    /// Writes into another domain's memory, from `offset_bytes` into the first frame.
    ///
    /// # Errors
    /// [`ForeignError`] if the frames cannot be mapped.
    pub fn write_foreign(
        &mut self,
        domid: DomId,
        frames: &[u64],
        offset_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), ForeignError> {
        self.write_foreign_pieces(domid, frames, offset_bytes, &[Piece::Bytes(bytes)])
    }

    /// As [`Xen::write_foreign`], gathered from several pieces.
    ///
    /// # Errors
    /// [`ForeignError`] if the frames cannot be mapped.
    pub fn write_foreign_pieces(
        &mut self,
        domid: DomId,
        frames: &[u64],
        offset_bytes: usize,
        pieces: &[Piece<'_>],
    ) -> Result<(), ForeignError> {
        let range = ForeignRange { domid, frames, offset_bytes };
        self.timed("map_foreign", |hypervisor| hypervisor.write_foreign(range, pieces))
            .map_err(|errno| foreign_error(domid, frames, errno))
    }

    /// Reads another domain's memory, from `offset_bytes` into the first frame.
    ///
    /// # Errors
    /// [`ForeignError`] if the frames cannot be mapped.
    pub fn read_foreign(
        &mut self,
        domid: DomId,
        frames: &[u64],
        offset_bytes: usize,
        into: &mut [u8],
    ) -> Result<(), ForeignError> {
        let range = ForeignRange { domid, frames, offset_bytes };
        self.timed("map_foreign", |hypervisor| hypervisor.read_foreign(range, into))
            .map_err(|errno| foreign_error(domid, frames, errno))
    }

    /// Seeds an entry of a new domain's version-1 grant table: `backend` may map `frame`.
    ///
    /// # Errors
    /// The errno of mapping the table.
    pub fn seed_grant(
        &mut self,
        domid: DomId,
        grant: crate::GrantRef,
        backend: DomId,
        frame: u64,
    ) -> Result<(), Errno> {
        self.seed_grants(domid, grant, &[(backend, frame)])
    }

    /// As [`Xen::seed_grant`], for consecutive entries from `first` on, by one mapping.
    ///
    /// # Errors
    /// The errno of mapping the table.
    pub fn seed_grants(
        &mut self,
        domid: DomId,
        first: crate::GrantRef,
        entries: &[(DomId, u64)],
    ) -> Result<(), Errno> {
        /// Bytes of `struct grant_entry_v1`: flags, domid, frame.
        const ENTRY_BYTES: usize = 8;
        const GTF_PERMIT_ACCESS: u16 = 1;
        let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
        for (backend, frame) in entries {
            let frame = u32::try_from(*frame).map_err(|_| Errno::EINVAL)?;
            bytes.extend_from_slice(&GTF_PERMIT_ACCESS.to_ne_bytes());
            bytes.extend_from_slice(&backend.0.to_ne_bytes());
            bytes.extend_from_slice(&frame.to_ne_bytes());
        }
        let offset = usize::try_from(first.0).map_err(|_| Errno::EINVAL)? * ENTRY_BYTES;
        self.timed("map_resource", |hypervisor| {
            hypervisor.write_resource(domid, Resource::GrantTable, offset, &bytes)
        })
    }

    /// Address of the data area, and the area itself.
    pub(crate) fn data(&mut self) -> (u64, &mut [u8]) {
        let address = self.hypervisor.arena_address() + DATA_OFFSET as u64;
        (address, &mut self.hypervisor.arena()[DATA_OFFSET..LIST_OFFSET])
    }

    /// The data area and the listing area behind it as one, for longer data.
    pub(crate) fn data_to_end(&mut self) -> (u64, &mut [u8]) {
        let address = self.hypervisor.arena_address() + DATA_OFFSET as u64;
        (address, &mut self.hypervisor.arena()[DATA_OFFSET..])
    }

    /// Bytes that the data area holds.
    pub(crate) const DATA_BYTES: usize = LIST_OFFSET - DATA_OFFSET;

    /// Puts `bytes` into the data area and returns their address.
    pub(crate) fn put_data(&mut self, bytes: &[u8]) -> Result<u64, Errno> {
        let (address, area) = self.data();
        area.get_mut(..bytes.len()).ok_or(Errno::E2BIG)?.copy_from_slice(bytes);
        Ok(address)
    }

    /// Counts a call and the time it takes.
    pub(crate) fn timed<R>(&mut self, name: &'static str, call: impl FnOnce(&mut H) -> R) -> R {
        self.counters.count(name);
        let begun = self.hypervisor.now_ns();
        let result = call(&mut self.hypervisor);
        self.counters.took(name, self.hypervisor.now_ns().saturating_sub(begun));
        result
    }

    pub(crate) fn domctl(
        &mut self,
        name: &'static str,
        cmd: u32,
        domid: DomId,
        payload: &[u8],
    ) -> Result<u64, Errno> {
        let version = self.abi.domctl.0;
        self.timed(name, |hypervisor| domctl_raw(hypervisor, version, cmd, domid, payload))
    }

    /// The payload of the last domctl, as Xen left it.
    pub(crate) fn domctl_payload(&mut self) -> &[u8] {
        &self.hypervisor.arena()[CALL_OFFSET + DOMCTL_HEADER_BYTES..CALL_OFFSET + DOMCTL_BYTES]
    }

    /// The domain in the last domctl's header, as Xen left it.
    pub(crate) fn domctl_domid(&mut self) -> DomId {
        DomId(crate::abi::u16_at(self.hypervisor.arena(), CALL_OFFSET + 8))
    }

    pub(crate) fn sysctl(
        &mut self,
        name: &'static str,
        cmd: u32,
        payload: &[u8],
    ) -> Result<u64, Errno> {
        let version = self.abi.sysctl.0;
        self.timed(name, |hypervisor| sysctl_raw(hypervisor, version, cmd, payload))
    }

    pub(crate) fn sysctl_payload(&mut self) -> &[u8] {
        &self.hypervisor.arena()[CALL_OFFSET + SYSCTL_HEADER_BYTES..CALL_OFFSET + SYSCTL_BYTES]
    }

    /// A call of the form `op(subop, &argument)` whose argument is one structure.
    pub(crate) fn call_with(
        &mut self,
        name: &'static str,
        op: Op,
        subop: u64,
        argument: &[u8],
    ) -> Result<u64, Errno> {
        let address = self.arena_structure(argument);
        self.timed(name, |hypervisor| hypervisor.hypercall(op, [subop, address, 0, 0, 0]))
    }

    /// Puts a structure where calls have theirs. Returns its address.
    pub(crate) fn arena_structure(&mut self, structure: &[u8]) -> u64 {
        self.hypervisor.arena()[CALL_OFFSET..CALL_OFFSET + structure.len()]
            .copy_from_slice(structure);
        self.hypervisor.arena_address() + CALL_OFFSET as u64
    }

    /// The argument of the last [`Xen::call_with`], as Xen left it.
    pub(crate) fn argument(&mut self, bytes: usize) -> &[u8] {
        &self.hypervisor.arena()[CALL_OFFSET..CALL_OFFSET + bytes]
    }
}

fn foreign_error(domid: DomId, frames: &[u64], errno: Errno) -> ForeignError {
    let first = frames.first().copied().unwrap_or_default();
    ForeignError { domid, first, frames: frames.len(), errno }
}

pub(crate) fn domctl_raw<H: Hypervisor>(
    hypervisor: &mut H,
    version: u32,
    cmd: u32,
    domid: DomId,
    payload: &[u8],
) -> Result<u64, Errno> {
    let mut call = [0; DOMCTL_BYTES];
    call[..4].copy_from_slice(&cmd.to_ne_bytes());
    call[4..8].copy_from_slice(&version.to_ne_bytes());
    call[8..10].copy_from_slice(&domid.0.to_ne_bytes());
    call[DOMCTL_HEADER_BYTES..DOMCTL_HEADER_BYTES + payload.len()].copy_from_slice(payload);
    hypervisor.arena()[CALL_OFFSET..CALL_OFFSET + DOMCTL_BYTES].copy_from_slice(&call);
    let address = hypervisor.arena_address() + CALL_OFFSET as u64;
    hypervisor.hypercall(Op::Domctl, [address, 0, 0, 0, 0])
}

pub(crate) fn sysctl_raw<H: Hypervisor>(
    hypervisor: &mut H,
    version: u32,
    cmd: u32,
    payload: &[u8],
) -> Result<u64, Errno> {
    let mut call = [0; SYSCTL_BYTES];
    call[..4].copy_from_slice(&cmd.to_ne_bytes());
    call[4..8].copy_from_slice(&version.to_ne_bytes());
    call[SYSCTL_HEADER_BYTES..SYSCTL_HEADER_BYTES + payload.len()].copy_from_slice(payload);
    hypervisor.arena()[CALL_OFFSET..CALL_OFFSET + SYSCTL_BYTES].copy_from_slice(&call);
    let address = hypervisor.arena_address() + CALL_OFFSET as u64;
    hypervisor.hypercall(Op::Sysctl, [address, 0, 0, 0, 0])
}

/// The list of values in `bytes`, as native-endian 64-bit words.
pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| crate::abi::u64_at(word, 0)).collect()
}
