//! Requests of clients, whichever door they come through: what each asks of the machine, and how the answer is told.
//!
//! A door (the unix socket, later a network's) decodes a request and hands it to a [`Service`] with the one who asks
//! and a [`Door`] for the answers. Names, texts and relative paths of the API become what the machine knows here, and
//! its replies become the API's, so every door has the same requests, refusals and log lines. Nothing here touches
//! the operating system: what a service needs of the daemon around it is a [`Daemon`].

mod boot;
mod checkpoints;
mod configs;
mod devices;
mod domains;
mod host;
mod moves;
mod objects;
mod pci;
mod psr;
mod relays;
mod render;
mod saved;
mod sched;
mod storage;
mod store;
pub mod traffic;
mod tuning;
mod vms;

use core::time::Duration;
use std::sync::Arc;

use ::storage::System;
use api::{Answer, Request};
use toolstack::Request as Asked;
use toolstack::ShutdownRequest::{Poweroff, Reboot};
use toolstack::channel::ChannelId;
use toolstack::work::Cost;
use toolstack::xlcfg::HostDefaults;
use toolstack::{Asker, Instant, Reply, Told};
use xen::Uuid;

pub use api::Role;

pub use crate::store::StoreLink;

/// The client is gone, or the daemon is about to end: nobody waits for the answer.
#[derive(Debug)]
pub struct Gone;

/// What a client hears before the reply.
#[derive(Debug)]
pub enum News {
    Progress(Box<toolstack::Progress>),
    /// One of many VMs was started, or was not.
    Started {
        vm: String,
        done: usize,
        total: usize,
        failure: Option<String>,
    },
    Told(Told),
}

/// Whether a client wants to hear of each step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Progress {
    Wanted,
    Unwanted,
}

impl From<bool> for Progress {
    fn from(wanted: bool) -> Self {
        if wanted { Self::Wanted } else { Self::Unwanted }
    }
}

/// A request to the machine.
#[derive(Debug)]
pub struct Ask {
    /// Who is behind it, for the log.
    pub asker: Option<Asker>,
    pub request: toolstack::Request,
    pub progress: Progress,
}

/// What `uname` says.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    pub host: String,
    pub release: String,
    pub version: String,
    pub machine: String,
}

/// A console or a screen of a VM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outlet {
    pub vm: Uuid,
    pub domid: u16,
    pub place: Place,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// The path of a pseudo-terminal.
    Terminal(String),
    /// Address and port of a server that speaks RFB.
    Server(String),
}

/// Which way a disk's bytes go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Passing {
    /// To the client.
    Out,
    /// To the disk.
    In,
}

/// Where the answers to a client's request go.
pub trait Door {
    /// Sends one answer.
    ///
    /// # Errors
    /// [`Gone`] if the client is.
    fn tell(&self, answer: &Answer) -> Result<(), Gone>;

    /// The connection to another host that came with the request, once.
    fn channel(&self) -> Option<ChannelId>;

    /// Whether the client has hung up.
    fn has_gone(&self) -> bool;
}

/// The daemon around the machine.
pub trait Daemon {
    /// Puts a request to the machine and waits for the reply. The calling thread may do the work that follows.
    ///
    /// # Errors
    /// [`Gone`] if `hear` says so, or the daemon is about to end.
    fn ask(&self, ask: Ask, hear: &mut dyn FnMut(News) -> Result<(), Gone>) -> Result<Reply, Gone>;

    /// As [`Daemon::ask`], for what may take any time: only as long as the client is there, and for `patience` at most,
    /// after which there is no reply.
    ///
    /// # Errors
    /// [`Gone`] as for [`Daemon::ask`], or if the client is.
    fn wait(
        &self,
        ask: Ask,
        patience: Option<Duration>,
        door: &dyn Door,
        hear: &mut dyn FnMut(News) -> Result<(), Gone>,
    ) -> Result<Option<Reply>, Gone>;

    /// Puts a request whose reply says nothing.
    fn put(&self, request: toolstack::Request);

    /// Takes note of a request that was refused to somebody with this role.
    fn refused(&self, asker: Option<Asker>, role: Role, request: &Request);

    /// Lets some time pass.
    fn pause(&self, time: Duration);

    /// A UUID that nobody has.
    ///
    /// # Errors
    /// Says why there is none.
    fn fresh_uuid(&self) -> Result<Uuid, String>;

    /// A moment of the machine in milliseconds since 1970.
    fn unix_ms(&self, at: Instant) -> u64;

    /// What all work has cost since the start.
    fn totals(&self) -> Cost;

    /// What was done so far, and how long it took.
    fn activity(&self) -> api::Activity;

    /// What domains have read, written, received and sent, as this host's backends count. It may be a second old.
    fn traffic(&self) -> api::Traffic;

    /// Which daemon this is.
    fn pong(&self) -> api::Pong;

    /// The kernel of the daemon's domain.
    fn kernel(&self) -> Kernel;

    /// What `xl.conf` says of every VM that does not say otherwise.
    ///
    /// # Errors
    /// Says what is wrong with it.
    fn host_defaults(&self) -> Result<Arc<HostDefaults>, String>;

    /// Hosts that are known by their keys.
    ///
    /// # Errors
    /// Says what is wrong.
    fn peer(&self, request: api::PeerRequest) -> Result<api::Reply, String>;

    /// Connects to a peer, to move a VM there.
    ///
    /// # Errors
    /// Says why it cannot be reached.
    fn call(&self, peer: &str) -> Result<ChannelId, String>;

    /// Says the path of a device on a connection, and waits until its other end is closed.
    ///
    /// # Errors
    /// Says why it could not be said.
    fn lend(&self, channel: ChannelId, device: &str) -> Result<(), String>;

    /// Passes all bytes of a VDI, which is a device now, to a connection, or from it.
    ///
    /// # Errors
    /// Says why not all were passed.
    fn pass(&self, channel: ChannelId, vdi: &str, device: &str, how: Passing)
    -> Result<(), String>;

    /// Joins a connection to a console or a screen. It goes on by itself.
    ///
    /// # Errors
    /// Says why it cannot be joined.
    fn relay(&self, channel: ChannelId, to: &Outlet) -> Result<(), String>;

    /// Writes a report about the host to a connection. It goes on by itself.
    ///
    /// # Errors
    /// Says why it cannot be made.
    fn report(&self, channel: ChannelId, report: api::Report) -> Result<(), String>;

    /// A connection to the store, with all that the daemon may do there.
    ///
    /// # Errors
    /// Says why there is none.
    fn store(&self) -> Result<Box<dyn StoreLink>, String>;

    /// What the store's daemon tells of itself beside its protocol: `json` or `metrics`; `None` if it tells nothing.
    fn store_status(&self, word: &str) -> Option<String>;

    /// The host, for requests about SRs and VDIs.
    fn storage(&self) -> Box<dyn System>;
}

/// Why a request has no result.
enum Failed {
    Gone,
    /// One line for the client.
    Told(String),
}

impl From<Gone> for Failed {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

/// Answers the requests of one client.
pub struct Service<'a> {
    pub daemon: &'a dyn Daemon,
    pub door: &'a dyn Door,
    pub asker: Option<Asker>,
    pub role: Role,
}

impl Service<'_> {
    /// The final answer to a request. What comes before it is told at the door.
    ///
    /// # Errors
    /// [`Gone`] if nobody waits for it any more.
    pub fn answer(&self, request: Request) -> Result<Answer, Gone> {
        if let Some(why) = self.role.refusal(&request) {
            self.daemon.refused(self.asker, self.role, &request);
            let group = Role::needed(&request).group();
            return Ok(Answer::Error(format!("{why}; root can add you to the group {group}")));
        }
        match self.reply(request) {
            Ok(reply) => Ok(Answer::Ok(reply)),
            Err(Failed::Told(message)) => Ok(Answer::Error(message)),
            Err(Failed::Gone) => Err(Gone),
        }
    }

    fn reply(&self, request: Request) -> Result<api::Reply, Failed> {
        match request {
            Request::Ping => Ok(api::Reply::Pong(self.daemon.pong())),
            Request::Create(create) => self.create(&create),
            Request::Check(create) => self.check(&create).map(Box::new).map(api::Reply::Checked),
            Request::List { targets } => self.list(&targets),
            Request::Configs { targets } => self.configs(&targets),
            Request::Adopt(adopt) => self.adopt(adopt),
            Request::Disown { target: it } => self.done(Asked::Disown { target: target(it) }),
            Request::Destroy { target: it } => self.done(Asked::Destroy { target: target(it) }),
            Request::Shutdown { targets, wait, acpi, progress } => {
                self.shut_down(domains::shutdown(targets, wait, Poweroff, acpi), progress.into())
            }
            Request::Reboot { targets, wait, acpi } => {
                self.shut_down(domains::shutdown(targets, wait, Reboot, acpi), Progress::Unwanted)
            }
            Request::Pause { target: it } => self.done(Asked::Pause { target: target(it) }),
            Request::Unpause { target: it } => self.done(Asked::Unpause { target: target(it) }),
            Request::Tune(request) => self.tune(request),
            Request::Sched(request) => self.sched(request),
            Request::Migrate(migrate) => self.migrate(*migrate),
            Request::MigrateReceive { speaks, arrival } => self.receive(speaks, arrival),
            Request::Peer(request) => self.daemon.peer(request).map_err(Failed::Told),
            Request::MigrateSettle { target: it, runs } => self.settle(target(it), runs),
            request @ (Request::Suspend { .. }
            | Request::Resume { .. }
            | Request::HostShutdown { .. }
            | Request::Save(_)
            | Request::DumpCore(_)
            | Request::Restore(_)
            | Request::Checkpoint(_)
            | Request::QemuMonitorCommand { .. }) => self.look_inside(request),
            Request::Domid { name } => self.domid(&name),
            Request::Domname { domid } => self.domname(domid),
            request @ (Request::Console { .. } | Request::Relay(_)) => self.attach(request),
            request @ (Request::BlockList { .. }
            | Request::NetworkList { .. }
            | Request::ChannelList { .. }
            | Request::KeyboardList { .. }) => self.list_devices(request),
            Request::VcpuList { targets } => self.vcpus(&targets),
            Request::Uptime { targets } => self.uptime(&targets),
            request @ (Request::BlockAttach { .. }
            | Request::BlockDetach { .. }
            | Request::CdInsert { .. }
            | Request::CdEject { .. }
            | Request::NetworkAttach { .. }
            | Request::KeyboardAttach { .. }
            | Request::KeyboardDetach { .. }
            | Request::NetworkDetach { .. }) => self.change_devices(request),
            Request::ConfigText { target: it } => self.config_text(it),
            Request::Explain { target: it } => self.text(Asked::Explain { target: target(it) }),
            Request::Plan { of } => self.plan(of),
            Request::Limits(changes) => self.limits(changes),
            Request::Info => self.info(),
            Request::Host(request) => self.host(request),
            it @ (Request::Activity | Request::Traffic | Request::Counters) => Ok(self.counts(&it)),
            request @ (Request::Define(_)
            | Request::Undefine { .. }
            | Request::Vms
            | Request::Start { .. }
            | Request::StartAll) => self.defined(request),
            Request::Events { since, wait } => self.events(since, wait),
            Request::Objects { cursor, classes, wait } => self.objects(cursor, &classes, wait),
            Request::WaitFor { target: it, state, timeout_s } => {
                self.wait_for(&target(it), &state, timeout_s)
            }
            Request::Operations => self.operations(),
            Request::Trace { target } => self.trace(target),
            Request::Storage(request) => self.storage_reply(request),
            Request::Store(request) => self.store(request),
        }
    }

    /// Requests about defined VMs.
    fn defined(&self, request: Request) -> Result<api::Reply, Failed> {
        match request {
            Request::Define(define) => self.define(&define),
            Request::Undefine { target: it } => self.done(Asked::Undefine { target: target(it) }),
            Request::Vms => self.vms(),
            Request::Start { target: it, paused, progress } => {
                self.start(&target(it), paused, progress.into())
            }
            Request::StartAll => self.start_all(),
            other => unreachable!("{other:?} is answered elsewhere"),
        }
    }

    /// Requests about the state of guests.
    fn look_inside(&self, request: Request) -> Result<api::Reply, Failed> {
        match request {
            Request::Suspend { target: it } => self.done(Asked::Suspend { target: target(it) }),
            Request::Resume { target: it } => self.done(Asked::Resume { target: target(it) }),
            Request::HostShutdown { timeout_s } => self.shut_down_with_host(timeout_s),
            Request::Save(save) => self.save(save),
            Request::DumpCore(dump) => self.dump_core(dump),
            Request::Restore(restore) => self.restore(&restore),
            Request::Checkpoint(request) => self.checkpoint_reply(request),
            Request::QemuMonitorCommand { target: it, command } => {
                self.text(Asked::SpeakToModel { target: target(it), command })
            }
            other => unreachable!("{other:?} is answered elsewhere"),
        }
    }

    fn config_text(&self, it: api::Target) -> Result<api::Reply, Failed> {
        self.text(Asked::ConfigText { target: it.0 })
    }

    fn list_devices(&self, request: Request) -> Result<api::Reply, Failed> {
        match request {
            Request::BlockList { targets } => self.block_list(targets),
            Request::NetworkList { targets } => self.network_list(targets),
            Request::ChannelList { targets } => self.channel_list(targets),
            Request::KeyboardList { targets } => self.keyboard_list(targets),
            other => unreachable!("{other:?} lists no devices"),
        }
    }

    fn change_devices(&self, request: Request) -> Result<api::Reply, Failed> {
        match request {
            Request::BlockAttach { target: it, disk, cwd, progress } => {
                self.block_attach(&target(it), &disk, &cwd, progress.into())
            }
            Request::BlockDetach { target: it, disk, force, progress } => {
                self.block_detach(&target(it), &disk, force, progress.into())
            }
            Request::CdInsert { target: it, drive, path, cwd, force } => {
                self.cd_insert(target(it), &drive, &path, &cwd, force)
            }
            Request::CdEject { target: it, drive, force } => self.cd_eject(it, &drive, force),
            Request::KeyboardAttach { target: it, keyboard } => {
                self.keyboard_attach(&it, &keyboard)
            }
            Request::KeyboardDetach { target: it, keyboard, force } => {
                self.keyboard_detach(&it, &keyboard, force)
            }
            Request::NetworkAttach { target: it, vif } => self.network_attach(&it, &vif),
            Request::NetworkDetach { target: it, vif, force } => {
                self.network_detach(&it, &vif, force)
            }
            other => unreachable!("{other:?} changes no device"),
        }
    }

    fn storage_reply(&self, request: api::StorageRequest) -> Result<api::Reply, Failed> {
        if let api::StorageRequest::VdiLend { vdi, write } = request {
            return self.lend_vdi(&vdi, write);
        }
        if let api::StorageRequest::VdiPass { vdi, write } = request {
            return self.pass_vdi(&vdi, write);
        }
        self.storage(request).map_err(|error| Failed::Told(error.to_string()))
    }

    fn request(&self, request: toolstack::Request, progress: Progress) -> Ask {
        Ask { asker: self.asker, request, progress }
    }

    fn ask(&self, request: toolstack::Request) -> Result<Reply, Failed> {
        succeeded(self.daemon.ask(self.request(request, Progress::Unwanted), &mut |_| Ok(()))?)
    }

    /// As `ask`, with progress for the client if requested.
    fn ask_telling(
        &self,
        vm: &str,
        request: toolstack::Request,
        progress: Progress,
    ) -> Result<Reply, Failed> {
        let ask = self.request(request, progress);
        succeeded(self.daemon.ask(ask, &mut |news| match news {
            News::Progress(far) => self.tell_far(vm, &far),
            News::Started { .. } | News::Told(_) => Ok(()),
        })?)
    }

    fn tell_far(&self, vm: &str, far: &toolstack::Progress) -> Result<(), Gone> {
        self.door.tell(&Answer::Progress(render::progress(vm, far)))
    }

    /// For requests whose success needs no words.
    fn done(&self, request: toolstack::Request) -> Result<api::Reply, Failed> {
        self.ask(request).map(|_| api::Reply::Done)
    }

    fn text(&self, request: toolstack::Request) -> Result<api::Reply, Failed> {
        match self.ask(request)? {
            Reply::Text(text) => Ok(api::Reply::Text(text)),
            other => Err(unexpected(&other)),
        }
    }

    fn info(&self) -> Result<api::Reply, Failed> {
        self.info_rows().map(api::Info).map(api::Reply::Info)
    }

    pub(crate) fn info_rows(&self) -> Result<Vec<(String, String)>, Failed> {
        match self.ask(toolstack::Request::HostInfo)? {
            Reply::HostInfo(info) => Ok(render::host_info(&info, self.daemon.kernel())),
            other => Err(unexpected(&other)),
        }
    }

    fn operations(&self) -> Result<api::Reply, Failed> {
        match self.ask(toolstack::Request::Operations)? {
            Reply::Operations { now, operations } => {
                let rows = operations.iter().map(render::operation_row).collect();
                Ok(api::Reply::Operations(api::Operations { now_ns: now.0, rows }))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn trace(&self, target: String) -> Result<api::Reply, Failed> {
        match self.ask(toolstack::Request::Trace { target })? {
            Reply::Trace { now, trace } => {
                Ok(api::Reply::Trace(render::operation_trace(now, &trace)))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// What the daemon counts by itself, without the machine.
    fn counts(&self, request: &Request) -> api::Reply {
        match request {
            Request::Activity => api::Reply::Activity(self.daemon.activity()),
            Request::Traffic => api::Reply::Traffic(self.daemon.traffic()),
            Request::Counters => {
                let cost = render::cost(&self.daemon.totals());
                api::Reply::Counters(api::Counters { cost, ..Default::default() })
            }
            other => unreachable!("{other:?} is answered elsewhere"),
        }
    }

    /// Applies the given changes and returns all limits.
    fn limits(&self, changes: api::LimitChanges) -> Result<api::Reply, Failed> {
        let ask = |wanted| match self.ask(toolstack::Request::Limits { wanted })? {
            Reply::Limits { limits, waiting, held } => Ok((limits, waiting, held)),
            other => Err(unexpected(&other)),
        };
        let (mut limits, mut waiting, mut held) = ask(None)?;
        if changes != api::LimitChanges::default() {
            devices::change(&mut limits, changes);
            (limits, waiting, held) = ask(Some(limits))?;
        }
        Ok(api::Reply::Limits(render::limits(&limits, waiting, held)))
    }
}

fn target(api::Target(target): api::Target) -> String {
    target
}

/// A reply that is none is the client's to read.
fn succeeded(reply: Reply) -> Result<Reply, Failed> {
    match reply {
        Reply::Failed(message) => Err(Failed::Told(message)),
        reply => Ok(reply),
    }
}

fn unexpected(reply: &Reply) -> Failed {
    match reply {
        // Destroyed by another client while it was being created.
        Reply::Gone { .. } => Failed::Told("the domain was destroyed meanwhile".to_owned()),
        other => Failed::Told(format!("unexpected reply: {other:?}")),
    }
}
