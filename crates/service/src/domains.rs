//! Requests about domains: lists, where they are found, shutdown and the console.

use core::time::Duration;

use api::{Target, Targets, Wait};
use toolstack::config::OnHostShutdown;
use toolstack::work::DeviceReading;
use toolstack::{
    ConsoleKind, DomainRow, Fallback, Reply, ReplyWhen, Request, ShutdownRequest, Told, Wanted,
};
use xen::{DomId, Uuid};

use crate::{Failed, News, Progress, Service, render, succeeded, unexpected};

/// How long a console may take to get its terminal from xenconsoled, and how often it is looked at.
const CONSOLE_WAIT: Duration = Duration::from_secs(10);
const CONSOLE_INTERVAL: Duration = Duration::from_millis(50);

impl Service<'_> {
    pub(crate) fn list(&self, targets: &[Target]) -> Result<api::Reply, Failed> {
        let rows = self.rows(targets)?;
        Ok(api::Reply::Domains(rows.iter().map(render::domain_row).collect()))
    }

    pub(crate) fn configs(&self, targets: &[Target]) -> Result<api::Reply, Failed> {
        let config = |row: &DomainRow| match &row.config {
            Some(vm) => render::listed_config(Some(row.info.domid.0), Some(row.info.handle), vm),
            None => render::listed_foreign(row),
        };
        Ok(api::Reply::Configs(self.rows(targets)?.iter().map(config).collect()))
    }

    pub(crate) fn domid(&self, name: &str) -> Result<api::Reply, Failed> {
        let rows = self.rows(&[])?;
        let row = rows.iter().find(|row| row.name.as_deref() == Some(name));
        Ok(api::Reply::Domid(row.ok_or_else(|| no_such_domain(name))?.info.domid.0))
    }

    pub(crate) fn domname(&self, domid: u16) -> Result<api::Reply, Failed> {
        let name = self.find(Wanted::Number(DomId(domid)))?.and_then(|row| row.name);
        Ok(api::Reply::Domname(name.ok_or_else(|| no_such_domain(&domid.to_string()))?))
    }

    /// The one that is meant.
    pub(crate) fn row(&self, target: &Target) -> Result<DomainRow, Failed> {
        let row = self.rows(std::slice::from_ref(target))?.pop();
        row.ok_or_else(|| no_such_domain(&target.0))
    }

    /// The rows of a listing: those of `targets` in their order, or all.
    pub(crate) fn rows(&self, targets: &[Target]) -> Result<Vec<DomainRow>, Failed> {
        if let [Target(target)] = targets
            && let Some(wanted) = wanted(target)
        {
            let row = self.find(wanted)?.ok_or_else(|| no_such_domain(target))?;
            return Ok(vec![row]);
        }
        let listing = match self.ask(Request::List)? {
            Reply::Domains(listing) => listing,
            other => return Err(unexpected(&other)),
        };
        let rows = &listing.rows;
        if targets.is_empty() {
            return Ok(rows.clone());
        }
        let row_of = |Target(target): &Target| {
            let domid = target.parse().ok().map(DomId);
            let uuid: Option<Uuid> = target.parse().ok();
            rows.iter()
                .find(|row| match domid {
                    Some(domid) => row.info.domid == domid,
                    None => {
                        row.name.as_deref() == Some(target.as_str())
                            || uuid == Some(row.info.handle)
                    }
                })
                .cloned()
                .ok_or_else(|| no_such_domain(target))
        };
        targets.iter().map(row_of).collect()
    }

    /// One domain, without a list of all.
    fn find(&self, wanted: Wanted) -> Result<Option<DomainRow>, Failed> {
        match self.ask(Request::Find { wanted })? {
            Reply::Found(row) => Ok(row.map(|row| *row)),
            other => Err(unexpected(&other)),
        }
    }

    /// The client hears what becomes of each VM.
    pub(crate) fn shut_down(
        &self,
        request: Request,
        progress: Progress,
    ) -> Result<api::Reply, Failed> {
        let ended = self.end_several(request, progress, None)?;
        ended.map(|()| api::Reply::Done).ok_or(Failed::Gone)
    }

    /// `None` if it is not over when the client's patience is.
    fn end_several(
        &self,
        request: Request,
        progress: Progress,
        patience: Option<Duration>,
    ) -> Result<Option<()>, Failed> {
        let mut vm = String::new();
        let mut hear = |news| match news {
            News::Progress(far) => self.tell_far(&vm, &far),
            News::Started { .. } => Ok(()),
            News::Told(told) => {
                if let Told::Waiting { vm: name, .. } = &told {
                    vm.clone_from(name);
                }
                let answers = render::told(told, progress == Progress::Wanted);
                answers.iter().try_for_each(|answer| self.door.tell(answer))
            }
        };
        let ask = self.request(request, progress);
        let reply = self.daemon.wait(ask, patience, self.door, &mut hear)?;
        reply.map(succeeded).transpose().map(|it| it.map(drop))
    }

    /// Each VM is dealt with as it is to be when the host is shut down.
    pub(crate) fn shut_down_with_host(&self, timeout_s: Option<u64>) -> Result<api::Reply, Failed> {
        let patience = timeout_s.map(Duration::from_secs);
        let request = Request::HostShutdown;
        if self.end_several(request, Progress::Unwanted, patience)?.is_some() {
            return Ok(api::Reply::Done);
        }
        let ignored = |row: &DomainRow| {
            row.config.as_ref().is_none_or(|config| {
                config.options.on_host_shutdown == Some(OnHostShutdown::Ignore)
            })
        };
        let rows = self.rows(&[])?;
        let left = rows.iter().filter(|row| !ignored(row)).filter_map(|row| row.name.clone());
        let left: Vec<String> = left.collect();
        let seconds = timeout_s.unwrap_or_default();
        Err(Failed::Told(format!("not ended within {seconds} s: {}", left.join(", "))))
    }

    pub(crate) fn console(
        &self,
        Target(target): &Target,
        kind: Option<api::ConsoleKind>,
        number: u32,
    ) -> Result<api::Reply, Failed> {
        let (uuid, _) = self.resolve(target)?;
        self.terminal(target, uuid, kind, number).map(api::Reply::Console)
    }

    /// xenconsoled creates the pty some time after the domain was introduced.
    pub(crate) fn terminal(
        &self,
        target: &str,
        uuid: Uuid,
        kind: Option<api::ConsoleKind>,
        number: u32,
    ) -> Result<api::Console, Failed> {
        let uuid = uuid.to_string();
        let kind = kind.map(|kind| match kind {
            api::ConsoleKind::Pv => ConsoleKind::Pv,
            api::ConsoleKind::Serial => ConsoleKind::Serial,
        });
        let mut waited = Duration::ZERO;
        loop {
            match self.ask(Request::Console { target: uuid.clone(), kind, number })? {
                Reply::Console { domid, tty: Some(tty) } => {
                    return Ok(api::Console { domid: domid.0, tty });
                }
                Reply::Console { .. } if waited < CONSOLE_WAIT => {
                    self.daemon.pause(CONSOLE_INTERVAL);
                    waited += CONSOLE_INTERVAL;
                }
                Reply::Console { .. } => {
                    return Err(Failed::Told(format!("{target}: {}", no_terminal(number))));
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Resolves a target, for requests in several parts.
    pub(crate) fn resolve(&self, target: &str) -> Result<(Uuid, DomId), Failed> {
        match self.ask(Request::Resolve { target: target.to_owned() })? {
            Reply::Resolved { uuid, domid, .. } => Ok((uuid, domid)),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn block_list(&self, targets: Vec<Target>) -> Result<api::Reply, Failed> {
        self.of_devices(targets, render::block_rows).map(api::Reply::Blocks)
    }

    pub(crate) fn network_list(&self, targets: Vec<Target>) -> Result<api::Reply, Failed> {
        self.of_devices(targets, |_, readings| render::network_rows(readings))
            .map(api::Reply::Networks)
    }

    pub(crate) fn channel_list(&self, targets: Vec<Target>) -> Result<api::Reply, Failed> {
        self.of_devices(targets, |_, readings| render::channel_rows(readings))
            .map(api::Reply::Channels)
    }

    pub(crate) fn keyboard_list(&self, targets: Vec<Target>) -> Result<api::Reply, Failed> {
        self.of_devices(targets, |_, readings| render::keyboard_rows(readings))
            .map(api::Reply::Keyboards)
    }

    /// The rows of a list, of one domain after the other.
    fn of_devices<R>(
        &self,
        targets: Vec<Target>,
        rows_of: impl Fn(u16, &[DeviceReading]) -> Vec<R>,
    ) -> Result<Vec<R>, Failed> {
        let mut rows = Vec::new();
        for target in targets {
            let (domid, readings) = self.devices(target)?;
            rows.extend(rows_of(domid.0, &readings));
        }
        Ok(rows)
    }

    fn devices(&self, Target(target): Target) -> Result<(DomId, Vec<DeviceReading>), Failed> {
        match self.ask(Request::Devices { target })? {
            Reply::Devices { domid, devices } => Ok((domid, devices)),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn vcpus(&self, targets: &[Target]) -> Result<api::Reply, Failed> {
        let rows = self.rows(targets)?;
        match self.ask(Request::Vcpus { of: identities(&rows) })? {
            Reply::Vcpus(readings) => {
                let of_row = |row| render::vcpu_rows(row, &readings);
                Ok(api::Reply::Vcpus(rows.iter().flat_map(of_row).collect()))
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn uptime(&self, targets: &[Target]) -> Result<api::Reply, Failed> {
        let rows = self.rows(targets)?;
        match self.ask(Request::StartTimes { of: identities(&rows) })? {
            Reply::StartTimes(times) => {
                let of_row = |row: &DomainRow| api::DomainRow {
                    started_unix_s: times.get(&row.info.domid).copied(),
                    ..render::domain_row(row)
                };
                Ok(api::Reply::Domains(rows.iter().map(of_row).collect()))
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// What a shutdown or reboot asks of the machine.
pub(crate) fn shutdown(targets: Targets, wait: Wait, how: ShutdownRequest, acpi: bool) -> Request {
    let targets = match targets {
        Targets::These(targets) => {
            toolstack::Targets::These(targets.into_iter().map(|Target(it)| it).collect())
        }
        Targets::All => toolstack::Targets::All,
    };
    let reply = match wait {
        Wait::Asked => ReplyWhen::Asked,
        Wait::Shutdown | Wait::Gone => ReplyWhen::Gone,
    };
    let fallback = if acpi { Fallback::Acpi } else { Fallback::Refuse };
    Request::ShutdownEach { targets, how, fallback, reply }
}

/// A target that is a domid or a UUID, not a name.
fn wanted(target: &str) -> Option<Wanted> {
    let number = || target.parse().ok().map(DomId).map(Wanted::Number);
    number().or_else(|| target.parse().ok().map(Wanted::Handle))
}

fn no_terminal(number: u32) -> String {
    let seconds = CONSOLE_WAIT.as_secs();
    match number {
        0 => format!("no terminal after {seconds} s; is xenconsoled running?"),
        number => format!(
            "console {number} has no terminal after {seconds} s; `xy channel-list` shows PV consoles besides number 0"
        ),
    }
}

fn no_such_domain(target: &str) -> Failed {
    Failed::Told(format!("{target}: no such domain; `xy list` shows them all"))
}

/// The domains of the rows.
fn identities(rows: &[DomainRow]) -> Vec<(DomId, Uuid)> {
    rows.iter().map(|row| (row.info.domid, row.info.handle)).collect()
}
