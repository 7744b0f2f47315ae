//! Requests about PCI devices of the host.

use api::{PciRequest, Target};
use toolstack::config::{PciDevice, PciName, PciPlace};
use toolstack::pci::{PciAsk, PciRow, Wanted};
use toolstack::xen_host::{HostAsk, HostTold};
use toolstack::{Device, Request, xlcfg};

use crate::devices::unplug;
use crate::{Failed, Progress, Service};

impl Service<'_> {
    pub(crate) fn pci(&self, request: PciRequest) -> Result<api::Reply, Failed> {
        let ask = match request {
            PciRequest::Assignable => PciAsk::Assignable,
            PciRequest::AssignableAdd { device, name } => {
                name.as_deref().map_or(Ok(()), toolstack::pci::check_name).map_err(Failed::Told)?;
                let device = xlcfg::pci_function(&device).map_err(Failed::Told)?;
                PciAsk::MakeAssignable { device, name }
            }
            PciRequest::AssignableRemove { device, rebind } => {
                let address = xlcfg::pci_function(&device).ok();
                PciAsk::Return { device: Wanted { text: device, address }, rebind }
            }
            PciRequest::List { target } => {
                PciAsk::OfDomain { domid: self.row(&target)?.info.domid }
            }
            PciRequest::Attach { target, device } => return self.pci_attach(&target, &device),
            PciRequest::Detach { target, device, force } => {
                return self.pci_detach(&target, &device, force);
            }
        };
        let told = self.ask_host(HostAsk::Pci(ask))?;
        self.told_of_host(told, &[])
    }

    fn pci_rows(&self, ask: PciAsk) -> Result<Vec<PciRow>, Failed> {
        match self.ask_host(HostAsk::Pci(ask))? {
            HostTold::Pci(rows) => Ok(rows),
            other => Err(Failed::Told(format!("unexpected: {other:?}"))),
        }
    }

    fn pci_attach(&self, target: &Target, spec: &str) -> Result<api::Reply, Failed> {
        let (_, uuid) = self.config_and_uuid(target)?;
        let entry = entry(spec)?;
        // It gets its place when it is its turn.
        self.plug(&uuid.to_string(), Device::Pci(0, entry), Progress::Unwanted)
    }

    fn pci_detach(&self, target: &Target, spec: &str, force: bool) -> Result<api::Reply, Failed> {
        let row = self.row(target)?;
        let wanted = entry(spec)?.name;
        let has = self.pci_rows(PciAsk::OfDomain { domid: row.info.domid })?;
        let place = |address| PciName::Address(PciPlace::of(address));
        // It may have been given by its name and be detached by its address, or the other way round.
        let entry = match &wanted {
            PciName::Address(one) if one.function.is_some() => {
                let meant = has.into_iter().find(|it| it.address == one.first_function());
                meant.and_then(|it| it.name).map(PciName::Named)
            }
            PciName::Named(name) if has.iter().all(|it| it.name.as_ref() != Some(name)) => {
                let named = self.pci_rows(PciAsk::Named { name: name.clone() })?;
                named.first().map(|it| place(it.address))
            }
            PciName::Address(_) | PciName::Named(_) => None,
        };
        let entry = entry.unwrap_or(wanted);
        let target = row.info.handle.to_string();
        self.done(Request::UnplugPci { target, entry, how: unplug(force) })
    }
}

/// A device as in `pci=`.
fn entry(spec: &str) -> Result<PciDevice, Failed> {
    xlcfg::parse_pci(spec).map_err(|problem| Failed::Told(format!("pci: {problem}")))
}

pub(crate) fn row(row: PciRow) -> api::PciRow {
    let PciRow { address, name, guest_slot } = row;
    api::PciRow { device: address.to_string(), name, vdevfn: guest_slot }
}
