//! Consoles, screens and reports, joined to connections that come with requests.

use api::{RelayRequest, Target};
use toolstack::{Reply, Request};
use xen::Uuid;

use crate::{Failed, Outlet, Place, Service, unexpected};

impl Service<'_> {
    /// Requests about consoles and screens.
    pub(crate) fn attach(&self, request: api::Request) -> Result<api::Reply, Failed> {
        match request {
            api::Request::Console { target, kind, number } => self.console(&target, kind, number),
            api::Request::Relay(request) => self.relay(request),
            other => unreachable!("{other:?} is about no console"),
        }
    }

    fn relay(&self, request: RelayRequest) -> Result<api::Reply, Failed> {
        let outlet = match request {
            RelayRequest::Console { target: Target(target), kind, number } => {
                let (vm, _) = self.resolve(&target)?;
                let api::Console { domid, tty } = self.terminal(&target, vm, kind, number)?;
                Outlet { vm, domid, place: Place::Terminal(tty) }
            }
            RelayRequest::Screen { target: Target(target) } => {
                let (vm, domid) = self.resolve(&target)?;
                Outlet { vm, domid: domid.0, place: Place::Server(self.screen(vm)?) }
            }
            RelayRequest::Report { of } => {
                self.daemon.report(self.channel()?, of).map_err(Failed::Told)?;
                return Ok(api::Reply::Done);
            }
        };
        self.daemon.relay(self.channel()?, &outlet).map_err(Failed::Told)?;
        Ok(api::Reply::Done)
    }

    fn screen(&self, vm: Uuid) -> Result<String, Failed> {
        match self.ask(Request::Screen { target: vm.to_string() })? {
            Reply::Text(address) => Ok(address),
            other => Err(unexpected(&other)),
        }
    }
}
