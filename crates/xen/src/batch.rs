//! Several hypercalls in one: `HYPERVISOR_multicall`.
//!
//! Entering Xen costs more than most calls themselves. Entries are encoded for each batch, since
//! Xen overwrites their arguments. Source: `xen/include/public/xen.h` (`struct multicall_entry`).

use alloc::vec::Vec;

use crate::abi::{DOMCTL_BYTES, DOMCTL_HEADER_BYTES, Layout, domctl};
use crate::domain::DomainInfo;
use crate::{DomId, Errno, EvtchnPeer, EvtchnPort, HvmParam, Hypervisor, Op, Xen};

const ENTRY_BYTES: usize = 64;
/// Alignment of a batch's structures: Xen reads words of at most 64 bits.
const ALIGNMENT: usize = 8;

/// How a call receives its structure.
#[derive(Clone, Copy, Debug)]
enum Arguments {
    /// `op(&structure)`
    Structure,
    /// `op(command, &structure)`
    CommandAndStructure(u64),
}

#[derive(Clone, Debug)]
struct Call {
    op: Op,
    arguments: Arguments,
    structure: Vec<u8>,
}

/// Hypercalls to be issued together, in order. A failure does not stop those after it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    calls: Vec<Call>,
}

/// One call's result, and its structure as Xen left it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub result: Result<u64, Errno>,
    structure: Vec<u8>,
}

impl Answer {
    /// The result of [`Batch::domain`]; `None` if there is no such domain.
    ///
    /// # Errors
    /// Any errno of the hypercall but ESRCH.
    pub fn domain(&self, asked: DomId) -> Result<Option<DomainInfo>, Errno> {
        match self.result {
            Ok(_) => {}
            Err(Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let info = DomainInfo::decode(&self.structure[DOMCTL_HEADER_BYTES..]);
        // As for `Xen::domain`: on a miss 4.17 returns the next domain.
        Ok((info.domid == asked).then_some(info))
    }

    /// The port that [`Batch::alloc_unbound`] allocated.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn port(&self) -> Result<EvtchnPort, Errno> {
        self.result.map(|_| EvtchnPort(crate::abi::u32_at(&self.structure, 4)))
    }

    /// The value that [`Batch::hvm_param`] read.
    ///
    /// # Errors
    /// The hypercall's errno.
    pub fn hvm_param(&self) -> Result<u64, Errno> {
        self.result.map(|_| crate::abi::u64_at(&self.structure, 8))
    }
}

impl Batch {
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn domctl(&mut self, cmd: u32, domid: DomId, payload: &[u8]) {
        // The interface version is filled in when the batch is issued.
        let structure = Layout::<DOMCTL_BYTES>::new()
            .u32(0, cmd)
            .u16(8, domid.0)
            .bytes(DOMCTL_HEADER_BYTES, payload)
            .done();
        let arguments = Arguments::Structure;
        self.calls.push(Call { op: Op::Domctl, arguments, structure: structure.to_vec() });
    }

    /// As [`Xen::domain`]; read the result with [`Answer::domain`].
    pub fn domain(&mut self, domid: DomId) {
        self.domctl(domctl::GETDOMAININFO, domid, &[]);
    }

    /// As [`Xen::pause_domain`].
    pub fn pause_domain(&mut self, domid: DomId) {
        self.domctl(domctl::PAUSEDOMAIN, domid, &[]);
    }

    /// As [`Xen::unpause_domain`].
    pub fn unpause_domain(&mut self, domid: DomId) {
        self.domctl(domctl::UNPAUSEDOMAIN, domid, &[]);
    }

    /// As [`Xen::set_vcpus_max`].
    pub fn set_vcpus_max(&mut self, domid: DomId, vcpus: u32) {
        self.domctl(domctl::MAX_VCPUS, domid, &vcpus.to_ne_bytes());
    }

    /// As [`Xen::set_memory_max`].
    pub fn set_memory_max(&mut self, domid: DomId, kib: u64) {
        self.domctl(domctl::MAX_MEM, domid, &kib.to_ne_bytes());
    }

    /// As [`Xen::set_paging_pool`].
    pub fn set_paging_pool(&mut self, domid: DomId, bytes: u64) {
        self.domctl(domctl::SET_PAGING_MEMPOOL_SIZE, domid, &bytes.to_ne_bytes());
    }

    /// As [`Xen::alloc_unbound`]; read the result with [`Answer::port`].
    pub fn alloc_unbound(&mut self, peer: EvtchnPeer) {
        const ALLOC_UNBOUND: u64 = 6;
        let structure = Layout::<8>::new().u16(0, peer.owner.0).u16(2, peer.remote.0).done();
        let arguments = Arguments::CommandAndStructure(ALLOC_UNBOUND);
        self.calls.push(Call { op: Op::EventChannel, arguments, structure: structure.to_vec() });
    }

    /// As [`Xen::set_hvm_param`].
    pub fn set_hvm_param(&mut self, domid: DomId, param: HvmParam, value: u64) {
        const SET_PARAM: u64 = 0;
        self.hvm_call(SET_PARAM, domid, param, value);
    }

    /// As [`Xen::hvm_param`]; read the result with [`Answer::hvm_param`].
    pub fn hvm_param(&mut self, domid: DomId, param: HvmParam) {
        const GET_PARAM: u64 = 1;
        self.hvm_call(GET_PARAM, domid, param, 0);
    }

    fn hvm_call(&mut self, command: u64, domid: DomId, param: HvmParam, value: u64) {
        let structure =
            Layout::<16>::new().u16(0, domid.0).u32(4, param as u32).u64(8, value).done();
        let arguments = Arguments::CommandAndStructure(command);
        self.calls.push(Call { op: Op::Hvm, arguments, structure: structure.to_vec() });
    }
}

impl<H: Hypervisor> Xen<H> {
    /// Issues a batch: one hypercall for as many calls as fit into the arena (more than 17,000 with
    /// the largest).
    ///
    /// # Errors
    /// The errno of the multicall itself; each call's own result is in its [`Answer`].
    pub fn issue(&mut self, batch: &Batch) -> Result<Vec<Answer>, Errno> {
        let mut answers = Vec::with_capacity(batch.calls.len());
        let mut rest = batch.calls.as_slice();
        while !rest.is_empty() {
            let (_, area) = self.data_to_end();
            let room = area.len();
            let mut bytes = 0;
            let fits = rest
                .iter()
                .take_while(|call| {
                    bytes += ENTRY_BYTES + call.structure.len().next_multiple_of(ALIGNMENT);
                    bytes <= room
                })
                .count();
            let (now, later) = rest.split_at(fits.max(1));
            self.issue_part(now, &mut answers)?;
            rest = later;
        }
        Ok(answers)
    }

    fn issue_part(&mut self, calls: &[Call], answers: &mut Vec<Answer>) -> Result<(), Errno> {
        let version = self.abi.domctl.0.to_ne_bytes();
        let (address, area) = self.data_to_end();
        let mut at = calls.len() * ENTRY_BYTES;
        let mut places = Vec::with_capacity(calls.len());
        for (entry, call) in calls.iter().enumerate() {
            let end = at + call.structure.len();
            area.get_mut(at..end).ok_or(Errno::E2BIG)?.copy_from_slice(&call.structure);
            if call.op == Op::Domctl {
                area[at + 4..at + 8].copy_from_slice(&version);
            }
            let structure = address + at as u64;
            let laid_out = Layout::<ENTRY_BYTES>::new().u64(0, call.op as u64);
            let laid_out = match call.arguments {
                Arguments::Structure => laid_out.u64(16, structure),
                Arguments::CommandAndStructure(command) => {
                    laid_out.u64(16, command).u64(24, structure)
                }
            };
            let entry = entry * ENTRY_BYTES;
            area[entry..entry + ENTRY_BYTES].copy_from_slice(&laid_out.done());
            places.push(at..end);
            at = end.next_multiple_of(ALIGNMENT);
        }
        self.counters.count("multicall");
        let count = calls.len() as u64;
        self.hypervisor.hypercall(Op::Multicall, [address, count, 0, 0, 0])?;
        let (_, area) = self.data_to_end();
        for (entry, place) in places.into_iter().enumerate() {
            // A result is a 64-bit number, negative for an error.
            let word = crate::abi::u64_at(area, entry * ENTRY_BYTES + 8).cast_signed();
            let result = u64::try_from(word)
                .map_err(|_| Errno(i32::try_from(-word).unwrap_or(Errno::EIO.0)));
            answers.push(Answer { result, structure: area[place].to_vec() });
        }
        Ok(())
    }
}
