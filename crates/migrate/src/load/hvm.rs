//! What a translated domain has besides memory.

use xen::{HvmParam, Hypervisor, PAGE_BYTES, Piece, Xen};

use super::memory::Memory;
use super::{LoadError, Target, disconnect_console};
use crate::hvm_params;

/// Registers, emulated devices and parameters, as they came.
#[derive(Debug, Default)]
pub(super) struct Hvm {
    pub(super) context: Option<Vec<u8>>,
    params: Option<Vec<(HvmParam, u64)>>,
}

/// `HVM_PARAM_PAE_ENABLED`: old streams have it, and nothing depends on it any more.
const PAE_ENABLED: u64 = 4;

impl Hvm {
    pub(super) fn set_params(&mut self, params: &[(u64, u64)]) -> Result<(), LoadError> {
        let mut known: Vec<(HvmParam, u64)> = Vec::new();
        for &(index, value) in params {
            if index == PAE_ENABLED {
                continue;
            }
            let param = hvm_params::SAVED.into_iter().find(|param| *param as u64 == index);
            let param = param.ok_or(LoadError::Param { index })?;
            // Of one that is there several times the last counts, and Xen is told once.
            known.retain(|(other, _)| *other != param);
            known.push((param, value));
        }
        self.params = Some(known);
        Ok(())
    }

    /// Loads everything; returns the frames of the store's and the console's ring.
    pub(super) fn finish<H: Hypervisor>(
        self,
        xen: &mut Xen<H>,
        target: &Target,
        memory: &Memory,
    ) -> Result<(u64, u64), LoadError> {
        let context = self.context.ok_or(LoadError::Missing { what: "its HVM context" })?;
        let params = self.params.ok_or(LoadError::Missing { what: "the list of parameters" })?;
        let value = |wanted| params.iter().rev().find(|(param, _)| *param == wanted).map(|it| it.1);
        let ring = |wanted, what| {
            let pfn = value(wanted).ok_or(LoadError::Missing { what })?;
            memory.name(pfn).ok_or(LoadError::NoSuchFrame { what, pfn })
        };
        let store = ring(HvmParam::StorePfn, "the store's ring page")?;
        let console = ring(HvmParam::ConsolePfn, "the console's ring page")?;
        // Whoever is at the other end of these begins anew.
        let requests = [HvmParam::IoreqPfn, HvmParam::BufioreqPfn].into_iter().filter_map(value);
        let requests = requests.filter_map(|pfn| memory.name(pfn));
        let blank: Vec<u64> = [store, console].into_iter().chain(requests).collect();
        let zeros = Piece::Zeros(blank.len() * PAGE_BYTES);
        xen.write_foreign_pieces(target.domid, &blank, 0, &[zeros])?;
        disconnect_console(xen, target.domid, console)?;

        let ports = [
            (HvmParam::StoreEvtchn, target.store.port.0.into()),
            (HvmParam::ConsoleEvtchn, target.console.port.0.into()),
        ];
        let refused = LoadError::refused("set its parameters");
        for (param, value) in params.into_iter().chain(ports) {
            xen.set_hvm_param(target.domid, param, value).map_err(&refused)?;
        }
        xen.set_hvm_context(target.domid, &context)
            .map_err(LoadError::refused("load its HVM context"))?;
        Ok((store, console))
    }
}
