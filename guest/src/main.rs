//! The smallest real Xen guest: one image with a PV and a PVH entry, 4 to 8 MB of memory.
//!
//! It writes to the console ring, speaks to the store, connects its disks and network
//! interfaces, obeys `control/shutdown`, and sleeps between events. One virtual CPU, no
//! interrupts, no heap: everything happens in one loop around `SCHEDOP_poll`.
//!
//! Memory, PV and PVH alike: the image at 1 MiB, its stack, pages and tables in its `.bss`.

#![no_std]
#![no_main]

mod blkfront;
mod channel;
mod clock;
mod console;
mod devices;
mod evtchn;
mod grant;
mod hypercall;
mod machine;

mod netfront;
mod page;
mod runtime;
mod store;

use core::arch::global_asm;
use core::panic::PanicInfo;

use guest_proto::options::SuspendBy;
use guest_proto::text::Text;
use guest_proto::xenbus::Shutdown;

use crate::channel::Context;
use crate::console::{say, tell};
use crate::devices::{DEVICES_MAX, Devices};
use crate::grant::GrantTable;
use crate::hypercall::Reason;
use crate::machine::{Machine, Resumed};
use crate::page::Pool;
use crate::store::{Matters, Store, TOKEN_DEVICES, TOKEN_SHUTDOWN};

/// All devices lie on it, and are moved once.
const STACK_BYTES: usize = if cfg!(feature = "wide") { 1 << 20 } else { 64 << 10 };

global_asm!(include_str!("notes.s"), options(att_syntax));
global_asm!(
    include_str!("entry_pv.s"),
    stack_bytes = const STACK_BYTES,
    options(att_syntax)
);
global_asm!(include_str!("entry_pvh.s"), options(att_syntax));

#[unsafe(no_mangle)]
extern "C" fn pv_main(start_info: usize) -> ! {
    let started = clock::ticks();
    // SAFETY: the entry code passes on what Xen's PV boot protocol puts into rsi.
    let machine = unsafe { Machine::pv(start_info) };
    run(machine.expect("start_info is not Xen's"), started)
}

#[unsafe(no_mangle)]
extern "C" fn pvh_main(start_info: usize) -> ! {
    let started = clock::ticks();
    // SAFETY: the entry code passes on what Xen's PVH boot protocol puts into ebx.
    let machine = unsafe { Machine::pvh(start_info) };
    run(machine.expect("hvm_start_info is not Xen's"), started)
}

fn run(machine: Machine, started: u64) -> ! {
    let store = Store::new(machine.store);
    let mut guest = Guest {
        machine,
        store,
        grants: GrantTable::new(),
        pool: Pool::new(),
        devices: Devices::new(),
        suspend_port: None,
    };
    hello(&guest.machine, &mut guest.store, started);
    guest.set_up();
    loop {
        guest.turn();
    }
}

struct Guest {
    machine: Machine,
    store: Store,
    grants: GrantTable,
    pool: Pool,
    devices: Devices,
    /// An event on it asks to suspend.
    suspend_port: Option<u32>,
}

impl Guest {
    fn set_up(&mut self) {
        set_up_watches(&self.machine, &mut self.store);
        self.suspend_port = match self.machine.options.suspend {
            SuspendBy::EventChannel => offer_suspend_port(&mut self.store),
            SuspendBy::Store | SuspendBy::Never | SuspendBy::Xen => None,
        };
    }

    /// Does what there is to do, then sleeps.
    fn turn(&mut self) {
        if self.suspend_port.is_some_and(evtchn::take) {
            self.suspend();
        }
        self.store.service();
        if self.store.take_fired(TOKEN_SHUTDOWN) {
            if let Some(shutdown) = shutdown_request(&mut self.store) {
                self.obey(shutdown);
            }
        }
        let (devices, mut context) = self.devices();
        devices.service(&mut context);
        if self.store.is_idle() {
            sleep(&self.store, &self.devices, self.suspend_port);
        }
    }

    fn devices(&mut self) -> (&mut Devices, Context<'_>) {
        let context = Context {
            machine: &self.machine,
            store: &mut self.store,
            grants: &mut self.grants,
            pool: &mut self.pool,
        };
        (&mut self.devices, context)
    }

    fn obey(&mut self, shutdown: Shutdown) {
        let reason = match shutdown {
            Shutdown::Poweroff => Reason::Poweroff,
            Shutdown::Reboot => Reason::Reboot,
            Shutdown::Crash => panic!("crash, as control/shutdown asked for"),
            Shutdown::Suspend if self.machine.options.suspend == SuspendBy::Never => return,
            Shutdown::Suspend => return self.suspend(),
        };
        tell!("shutdown reason={reason:?}");
        let (devices, mut context) = self.devices();
        devices.close_all(&mut context);
        tell!("bye");
        stop(reason)
    }

    /// Devices are left as they are: a new domain has new ones, the old one keeps using them.
    fn suspend(&mut self) {
        tell!("suspend");
        self.store.settle();
        match self.machine.suspend() {
            Resumed::Here => tell!("resumed here"),
            Resumed::Elsewhere => {
                self.store = Store::reopen(self.machine.store);
                self.grants = GrantTable::new();
                self.pool = Pool::new();
                self.devices = Devices::new();
                let domid = domid(&mut self.store);
                say!("resumed elsewhere domid={domid}");
                self.set_up();
            }
        }
    }
}

fn hello(machine: &Machine, store: &mut Store, started: u64) {
    console::set_quiet(machine.options.quiet);
    let domid = domid(store);
    let (major, minor) = hypercall::xen_version();
    say!(
        "hello mode={} domid={domid} memory={}KiB xen={major}.{minor} boot_us={}",
        machine.mode.as_str(),
        machine.memory_kib(),
        clock::elapsed_ns(started) / 1000
    );
    if machine.options.has_unknown {
        say!("the command line has a word that starts with xylem. and means nothing to me");
    }
}

/// Our own number, as text: it is only shown.
fn domid(store: &mut Store) -> Text<8> {
    let domid = store.read(format_args!("domid")).ok().and_then(Text::from_bytes);
    domid.unwrap_or_else(|| Text::of(format_args!("unknown")))
}

fn set_up_watches(machine: &Machine, store: &mut Store) {
    if let Err(error) = store.watch(format_args!("control/shutdown"), TOKEN_SHUTDOWN) {
        say!("the store refuses a watch on control/shutdown: {error:?}");
    }
    if !machine.options.ignore_devices {
        if let Err(error) = store.watch(format_args!("device"), TOKEN_DEVICES) {
            say!("the store refuses a watch on device: {error:?}");
        }
    }
    // Not every toolstack lets a guest write these.
    for feature in ["feature-poweroff", "feature-reboot", "feature-suspend"] {
        store.post_write(format_args!("control/{feature}"), "1", Matters::No);
    }
}

/// A port by which dom0 can ask us to suspend without the store.
fn offer_suspend_port(store: &mut Store) -> Option<u32> {
    const DOM0: u16 = 0;
    let port = hypercall::alloc_unbound(DOM0).ok()?;
    let number = Text::<16>::of(format_args!("{port}"));
    // Where a toolstack does not let us write this, it asks by `control/shutdown`.
    store.post_write(format_args!("device/suspend/event-channel"), number.as_str(), Matters::No);
    Some(port)
}

fn sleep(store: &Store, devices: &Devices, suspend_port: Option<u32>) {
    let mut ports = [store.port(); DEVICES_MAX + 2];
    let mut used = 1;
    for port in devices.ports().chain(suspend_port) {
        ports[used] = port;
        used += 1;
    }
    evtchn::wait(&ports[..used], 0);
}

/// What the toolstack asks for, if it asks; tells it that we have seen it.
fn shutdown_request(store: &mut Store) -> Option<Shutdown> {
    let value = store.read(format_args!("control/shutdown")).ok()?;
    let shutdown = Shutdown::decode(value);
    let unknown = !value.is_empty() && shutdown.is_none();
    if unknown {
        say!("control/shutdown asks for something unknown");
    }
    if unknown || shutdown.is_some() {
        store.post_write(format_args!("control/shutdown"), "", Matters::No);
    }
    shutdown
}

fn stop(reason: Reason) -> ! {
    loop {
        hypercall::shutdown(reason, 0);
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let message = info.message();
    match info.location() {
        Some(place) => say!("panic at {}:{}: {message}", place.file(), place.line()),
        None => say!("panic: {message}"),
    }
    stop(Reason::Crash)
}
