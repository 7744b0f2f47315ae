//! Simulated guests: they boot from what the builder put into memory, use their rings, connect
//! their devices and obey requests, or not.
//!
//! ```text
//!   unpaused -> boots (or crashes) -> hello on the console -> xenbus -> waits for events
//! ```
//! A guest's kind and behaviour are set on its command line: `sim.kind=linux`,
//! `sim.behaviour=deaf`.

mod boot;
mod driver;
mod frontend;
mod hvm;
mod image;
mod memory;
mod ring;

use std::collections::BTreeMap;

use xen::{DomId, EvtchnPort, ShutdownReason};
use xenstore::client::{Client, ClientError, Nodes as _, WatchEvent};

pub(crate) use image::loader_image;

pub use image::kernel_image;

use crate::machine::Machine;
use crate::store::Store;
use boot::Boot;
use driver::{Driver, Serves};
use frontend::{DeviceId, Frontend, Resources};
use memory::{Kept, Memory};
use ring::RingTransport;
pub(crate) use ring::console_drain;

/// Kind of a guest's system.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Unikernel,
    Linux,
}

/// Behaviour of a guest after boot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Behaviour {
    Normal,
    /// Connects its devices but never answers a shutdown request.
    Deaf,
    /// Never uses the store.
    Silent,
    /// Obeys, but ignores its devices.
    NeverConnects,
    /// Never closes a device that its backend closes.
    HoldsDevices,
    /// Corrupts its store ring.
    BreaksRing,
    /// Writes as many nodes as it is allowed to.
    Floods,
    /// Changes the state of its devices all the time.
    Toggles,
    /// Does everything, but takes seconds for each step.
    Slow,
    /// Acknowledges a suspend and cannot freeze itself.
    CannotFreeze,
    /// Acknowledges a suspend and does it when nobody waits for it any more.
    SuspendsLate,
    /// Writes garbage into its devices' nodes, and removes its own directories.
    Lies,
    /// An HVM guest without PV drivers, which obeys its power button.
    WithoutDrivers,
    Crashes,
    PowersOff,
    Reboots,
}

fn word<'a>(cmdline: &'a str, key: &str) -> &'a str {
    let mut words = cmdline.split_whitespace();
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or("")
}

impl Behaviour {
    fn of(cmdline: &str) -> Self {
        match word(cmdline, "sim.behaviour") {
            "deaf" => Self::Deaf,
            "silent" => Self::Silent,
            "never-connects" => Self::NeverConnects,
            "holds-devices" => Self::HoldsDevices,
            "breaks-ring" => Self::BreaksRing,
            "floods" => Self::Floods,
            "toggles" => Self::Toggles,
            "slow" => Self::Slow,
            "cannot-freeze" => Self::CannotFreeze,
            "suspends-late" => Self::SuspendsLate,
            "lies" => Self::Lies,
            "without-drivers" => Self::WithoutDrivers,
            "crashes" => Self::Crashes,
            "powers-off" => Self::PowersOff,
            "reboots" => Self::Reboots,
            _ => Self::Normal,
        }
    }
}

/// Phase of a guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Booting,
    Xenbus,
    Running,
    /// It has no drivers for Xen's devices.
    Bare,
    /// It has stopped: shut down, or its store is gone.
    Over,
}

/// What a guest does after it has run for a while.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    /// It waits for an event.
    Block,
    /// It continues by itself after this many nanoseconds.
    Sleep(u64),
    Shutdown(ShutdownReason),
}

/// Time from the first instruction to the hello, in nanoseconds.
const UNIKERNEL_BOOT_NS: u64 = 1_500_000;
const LINUX_BOOT_NS: u64 = 400_000_000;
const XENBUS_NS: u64 = 300_000;
/// Time that a slow guest takes for each step.
const SLOW_NS: u64 = 2_000_000_000;
/// Time that a guest takes to freeze itself before it suspends.
const UNIKERNEL_FREEZE_NS: u64 = 20_000;
const LINUX_FREEZE_NS: u64 = 8_000_000;
/// Time of one that suspends late.
const LATE_FREEZE_NS: u64 = 200_000_000_000;

/// One running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    domid: DomId,
    kind: Kind,
    behaviour: Behaviour,
    boot: Boot,
    phase: Phase,
    machine: Machine,
    store: Client<RingTransport>,
    resources: Resources,
    frontends: BTreeMap<DeviceId, Frontend>,
    /// What it serves others, if it does.
    driver: Option<Driver>,
    /// A slow guest has slept before its next step.
    is_rested: bool,
    /// The port by which it can be asked to suspend.
    suspend_port: Option<EvtchnPort>,
    suspend: Suspend,
    memory: Memory,
}

/// How far a guest is with a suspend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Suspend {
    No,
    /// It was asked by its event channel.
    Asked,
    Freezes,
    /// It has called for it, and goes on when the call returns.
    Called,
}

/// Where a guest is, as far as it matters to one that is loaded into another domain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Goes {
    /// It has called for a suspend.
    Suspends,
    /// Xen stops it, and it does not notice.
    Bare,
    Silent,
}

impl Guest {
    /// Boots a guest. The error is the reason of a crash.
    pub(crate) fn boot(
        machine: &Machine,
        store: &Store,
        domid: DomId,
    ) -> Result<(Self, Next), &'static str> {
        let boot = boot::boot(&machine.get(), domid)?;
        let kind = match word(&boot.cmdline, "sim.kind") {
            "linux" => Kind::Linux,
            _ => Kind::Unikernel,
        };
        let transport = RingTransport {
            machine: machine.clone(),
            store: store.clone(),
            domid,
            mfn: boot.store_mfn,
            port: boot.store_port,
        };
        if kind == Kind::Linux {
            machine.get_mut().give_back_missing(domid);
        }
        let memory = Memory::new(machine.clone(), domid, &boot);
        let mut guest = Self {
            domid,
            kind,
            behaviour: Behaviour::of(&boot.cmdline),
            phase: Phase::Booting,
            machine: machine.clone(),
            store: Client::new(transport),
            resources: Resources::new(machine.clone(), domid, memory.spare()),
            frontends: BTreeMap::new(),
            driver: Serves::of(word(&boot.cmdline, "sim.serves"))
                .map(|serves| Driver::new(domid, machine.clone(), serves)),
            is_rested: false,
            suspend_port: None,
            suspend: Suspend::No,
            memory,
            boot,
        };
        guest.memory.publish_p2m();
        if let Some(kept) = guest.boot.woken.take() {
            guest.wake(&kept);
            return Ok((guest, Next::Sleep(UNIKERNEL_FREEZE_NS)));
        }
        let boot_ns = match (guest.behaviour, kind) {
            (Behaviour::Slow, _) => SLOW_NS,
            (_, Kind::Unikernel) => UNIKERNEL_BOOT_NS,
            (_, Kind::Linux) => LINUX_BOOT_NS,
        };
        Ok((guest, Next::Sleep(boot_ns)))
    }

    /// One of its ports was signalled.
    pub(crate) fn note_event(&mut self, port: EvtchnPort) {
        if self.suspend_port == Some(port) && self.suspend == Suspend::No {
            self.suspend = Suspend::Asked;
        }
    }

    /// The next part of a suspend, if one is under way.
    fn go_on_suspending(&mut self) -> Option<Next> {
        match self.suspend {
            Suspend::No => None,
            Suspend::Asked => Some(self.freeze()),
            Suspend::Freezes => {
                self.suspend = Suspend::Called;
                self.memory.keep(Goes::Suspends);
                Some(Next::Shutdown(ShutdownReason::Suspend))
            }
            Suspend::Called => {
                self.suspend = Suspend::No;
                let result = self.machine.get().shutdown_result(self.domid);
                let text =
                    if result == 1 { "the suspend was cancelled" } else { "in a new domain" };
                self.print(&format!("suspend: returned {result}, {text}\n"));
                if result == 1 {
                    self.memory.go_on();
                } else if !self.memory.has_own_rings() {
                    self.phase = Phase::Over;
                    return Some(Next::Shutdown(ShutdownReason::Crash));
                } else if self.phase == Phase::Running {
                    // It is still where it was, and connects all anew.
                    for (_, frontend) in std::mem::take(&mut self.frontends) {
                        frontend.forget(&mut self.resources);
                    }
                    self.phase = Phase::Xenbus;
                    let told = self.memory.check();
                    self.print(&told);
                }
                None
            }
        }
    }

    /// It goes on in a domain into which it was loaded.
    fn wake(&mut self, kept: &Kept) {
        match kept.goes {
            Goes::Suspends => {
                self.phase = Phase::Xenbus;
                self.suspend = Suspend::Called;
            }
            Goes::Bare => self.phase = Phase::Bare,
            Goes::Silent => self.phase = Phase::Over,
        }
        let told = self.memory.check();
        self.print(&told);
    }

    fn freeze(&mut self) -> Next {
        let freeze_ns = match (self.behaviour, self.kind) {
            (Behaviour::SuspendsLate, _) => LATE_FREEZE_NS,
            (_, Kind::Unikernel) => UNIKERNEL_FREEZE_NS,
            (_, Kind::Linux) => LINUX_FREEZE_NS,
        };
        self.print("going down: suspend\n");
        self.suspend = Suspend::Freezes;
        Next::Sleep(freeze_ns)
    }

    /// Lets the guest run until it waits for something.
    pub(crate) fn run(&mut self) -> Next {
        if let Some(next) = self.go_on_suspending() {
            return next;
        }
        let result = match self.phase {
            Phase::Booting => {
                self.say_hello();
                return self.after_hello();
            }
            Phase::Xenbus => self.begin_xenbus(),
            Phase::Running if self.behaviour == Behaviour::Slow && !self.is_rested => {
                self.is_rested = true;
                return Next::Sleep(SLOW_NS);
            }
            Phase::Running => {
                self.is_rested = false;
                self.handle_events()
            }
            Phase::Bare => return self.check_button(),
            Phase::Over => return Next::Block,
        };
        match result {
            Ok(Next::Shutdown(reason)) => {
                self.phase =
                    if reason == ShutdownReason::Suspend { self.phase } else { Phase::Over };
                Next::Shutdown(reason)
            }
            Ok(Next::Block) if self.phase == Phase::Running => self.memory.write(),
            Ok(next) => next,
            Err(error) => {
                // A kernel continues without its store.
                self.print(&format!("xenbus: {error}\n"));
                self.phase = Phase::Over;
                Next::Block
            }
        }
    }

    fn print(&mut self, text: &str) {
        let mut xen = self.machine.get_mut();
        ring::console_write(xen.guest_frame_mut(self.domid, self.boot.console_mfn), text);
        // A guest does not care whether the console is connected.
        let _unheard = xen.evtchn_send(self.domid, self.boot.console_port);
    }

    fn say_hello(&mut self) {
        let boot = &self.boot;
        let text = match self.kind {
            Kind::Unikernel => format!("hello from a unikernel, {} vCPUs\n", boot.vcpus_online),
            Kind::Linux => format!(
                "Linux version 6.1.0-sim\nCommand line: {}\nRAMDISK: {} bytes\nhello from init\n",
                boot.cmdline, boot.ramdisk_bytes
            ),
        };
        self.print(&text);
    }

    fn after_hello(&mut self) -> Next {
        self.phase = Phase::Xenbus;
        let stop = match self.behaviour {
            Behaviour::Crashes => Some(ShutdownReason::Crash),
            Behaviour::PowersOff => Some(ShutdownReason::Poweroff),
            Behaviour::Reboots => Some(ShutdownReason::Reboot),
            _ => None,
        };
        if let Some(reason) = stop {
            self.phase = Phase::Over;
            return Next::Shutdown(reason);
        }
        match self.behaviour {
            Behaviour::WithoutDrivers => {
                self.phase = Phase::Bare;
                self.memory.keep(Goes::Bare);
                self.check_button()
            }
            Behaviour::Silent => {
                self.phase = Phase::Over;
                self.memory.keep(Goes::Silent);
                Next::Block
            }
            Behaviour::BreaksRing => {
                self.phase = Phase::Over;
                let mut xen = self.machine.get_mut();
                ring::break_store_ring(xen.guest_frame_mut(self.domid, self.boot.store_mfn));
                let _unheard = xen.evtchn_send(self.domid, self.boot.store_port);
                Next::Block
            }
            _ => Next::Sleep(XENBUS_NS),
        }
    }

    fn check_button(&mut self) -> Next {
        let pressed = self.machine.get_mut().take_power_button(self.domid);
        if !pressed {
            return Next::Block;
        }
        self.print("ACPI: power button\n");
        self.phase = Phase::Over;
        Next::Shutdown(ShutdownReason::Poweroff)
    }

    /// Sets the watches and looks for devices, as a kernel's xenbus does.
    fn begin_xenbus(&mut self) -> Result<Next, ClientError> {
        self.phase = Phase::Running;
        self.machine.get_mut().set_callback_irq(self.domid);
        self.store.reset_watches()?;
        self.store.watch("control/shutdown", "shutdown")?;
        for feature in ["feature-poweroff", "feature-reboot", "feature-suspend"] {
            self.store.write(&format!("control/{feature}"), b"1")?;
        }
        if self.behaviour == Behaviour::Floods {
            self.flood()?;
        }
        self.offer_suspend_port()?;
        self.store.watch("device", "device")?;
        if self.driver.is_some() {
            Driver::start(&mut self.store)?;
        }
        self.scan_devices()?;
        self.handle_events()
    }

    fn offer_suspend_port(&mut self) -> Result<(), ClientError> {
        let node = "device/suspend/event-channel";
        match word(&self.boot.cmdline, "sim.suspend") {
            "event-channel" => {
                let port = self.machine.get_mut().evtchn_alloc_unbound(self.domid, DomId::DOM0);
                let Ok(port) = port else { return Ok(()) };
                self.suspend_port = Some(port);
                self.store.write(node, port.to_string().as_bytes())
            }
            // One that is not there.
            "lies" => self.store.write(node, b"4000000000"),
            _ => Ok(()),
        }
    }

    fn flood(&mut self) -> Result<(), ClientError> {
        for number in 0..10_000 {
            match self.store.write(&format!("data/flood/{number}"), b"x") {
                Err(error) if error.refusal().is_some() => {
                    self.print(&format!("flood: stopped after {number} nodes: {error}\n"));
                    return Ok(());
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn scan_devices(&mut self) -> Result<(), ClientError> {
        if self.behaviour == Behaviour::NeverConnects {
            return Ok(());
        }
        for kind in frontend::DeviceKind::ALL {
            let devids = match self.store.directory(&format!("device/{}", kind.as_str())) {
                Ok(devids) => devids,
                Err(error) if error.refusal().is_some() => continue,
                Err(error) => return Err(error),
            };
            // A device that was removed and added again is a new one.
            let gone = |id: &DeviceId| id.kind == kind && !devids.contains(&id.devid);
            let gone: Vec<DeviceId> =
                self.frontends.keys().filter(|id| gone(id)).cloned().collect();
            for id in gone {
                if let Some(frontend) = self.frontends.remove(&id) {
                    self.unwatch_backend(&frontend, &id)?;
                    frontend.forget(&mut self.resources);
                }
            }
            for devid in devids {
                let id = DeviceId { kind, devid };
                if self.frontends.contains_key(&id) {
                    continue;
                }
                if let Some(frontend) = Frontend::probe(&mut self.store, &id)? {
                    self.store.watch(&frontend.backend_state(), &id.token())?;
                    self.frontends.insert(id, frontend);
                }
            }
        }
        Ok(())
    }

    fn unwatch_backend(&mut self, frontend: &Frontend, id: &DeviceId) -> Result<(), ClientError> {
        match self.store.unwatch(&frontend.backend_state(), &id.token()) {
            Err(error) if error.refusal().is_none() => Err(error),
            _ => Ok(()),
        }
    }

    fn handle_events(&mut self) -> Result<Next, ClientError> {
        // Bounded: a guest that floods itself with events must not stop the rest of the world.
        for _ in 0..1000 {
            let Some(event) = self.next_event()? else { break };
            if let Some(next) = self.handle_event(&event)? {
                return Ok(next);
            }
        }
        Ok(Next::Block)
    }

    fn next_event(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        if let Some(event) = self.store.poll_event() {
            return Ok(Some(event));
        }
        self.store.receive()?;
        Ok(self.store.poll_event())
    }

    fn handle_event(&mut self, event: &WatchEvent) -> Result<Option<Next>, ClientError> {
        match event.token.as_str() {
            "shutdown" => return self.handle_shutdown(),
            "device" => self.scan_devices()?,
            token if token.starts_with("backend") => {
                let Some(driver) = &mut self.driver else { return Ok(None) };
                if let Some(text) = driver.handle(&mut self.store, token, &event.path)? {
                    self.print(&text);
                }
            }
            token => {
                if let Some(id) = DeviceId::from_token(token) {
                    self.handle_backend(&id)?;
                }
            }
        }
        Ok(None)
    }

    fn handle_shutdown(&mut self) -> Result<Option<Next>, ClientError> {
        let Some(wanted) = self.store.read_optional("control/shutdown")? else { return Ok(None) };
        let reason = match wanted.as_slice() {
            b"poweroff" | b"halt" => ShutdownReason::Poweroff,
            b"reboot" => ShutdownReason::Reboot,
            b"suspend" => ShutdownReason::Suspend,
            _ => return Ok(None),
        };
        if self.behaviour == Behaviour::Deaf {
            return Ok(None);
        }
        self.store.write("control/shutdown", b"")?;
        match (reason, self.behaviour) {
            (ShutdownReason::Suspend, Behaviour::CannotFreeze) => {
                self.print("Freezing of tasks failed after 20 seconds\n");
                Ok(None)
            }
            (ShutdownReason::Suspend, _) => Ok(Some(self.freeze())),
            _ => {
                self.print(&format!("going down: {reason}\n"));
                Ok(Some(Next::Shutdown(reason)))
            }
        }
    }

    fn handle_backend(&mut self, id: &DeviceId) -> Result<(), ClientError> {
        let Some(frontend) = self.frontends.get_mut(id) else { return Ok(()) };
        match self.behaviour {
            Behaviour::Toggles => return frontend.toggle(&mut self.store),
            Behaviour::Lies => return frontend.lie(&mut self.store),
            _ => {}
        }
        let hold = self.behaviour == Behaviour::HoldsDevices;
        let split = self.kind == Kind::Linux;
        match frontend.handle_backend(&mut self.store, &mut self.resources, split, hold)? {
            frontend::Progress::Connected => {
                let text = match id.kind {
                    frontend::DeviceKind::Vbd => format!("vbd {}: connected\n", id.devid),
                    frontend::DeviceKind::Vif => format!("eth{}: up\n", id.devid),
                    frontend::DeviceKind::Pci => "pci: connected\n".to_owned(),
                };
                self.print(&text);
            }
            frontend::Progress::Reconfigured => self.print("pci: devices changed\n"),
            frontend::Progress::Closed => {
                if let Some(frontend) = self.frontends.remove(id) {
                    self.unwatch_backend(&frontend, id)?;
                }
            }
            frontend::Progress::None => {}
        }
        Ok(())
    }
}
