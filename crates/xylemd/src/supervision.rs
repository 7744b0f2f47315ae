//! What the service manager hears, and tells.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use xen_linux::StopSignals;

use crate::core::Core;
use crate::images::Images;

/// Looks at the daemon in the time after which the manager ends it.
const LOOKS: u32 = 4;
/// Time between two looks if nobody ends it: only its status is told.
const UNHURRIED: Duration = Duration::from_secs(30);

/// Ends this process when it is told to. What it was doing is gone on with by the next daemon, as after a kill; but no process
/// of our own stays behind.
pub(crate) fn end_when_told(stop: StopSignals, images: Images) -> std::io::Result<()> {
    let wait = move || {
        loop {
            let mut fds = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
            let _interrupted = poll(&mut fds, None);
            if !matches!(stop.received(), Ok(false)) {
                break;
            }
        }
        // The manager may have gone.
        let _unheard = service_manager::tell("STOPPING=1\nSTATUS=ends; VMs run on\n");
        images.end();
        crate::log("ends as it was told; VMs run on");
        std::process::exit(0);
    };
    thread::Builder::new().name("stop".to_owned()).spawn(wait).map(drop)
}

/// Tells the manager that the daemon serves, and from then on that it is alive.
///
/// It is alive as long as the watcher goes round: woken for this, it takes the machine's lock and hears the store. A
/// daemon whose machine hangs, or which no event reaches any more, is not.
pub(crate) fn begin(core: &Arc<Core>, turns: Arc<AtomicU64>) -> std::io::Result<()> {
    if !service_manager::is_there() {
        return Ok(());
    }
    if let Err(error) = service_manager::tell("READY=1\n") {
        crate::warn(format_args!("cannot tell the service manager: {error}"));
    }
    let pause = service_manager::watchdog().map_or(UNHURRIED, |it| it / LOOKS);
    let core = Arc::clone(core);
    let look = move || {
        let mut seen = None;
        loop {
            let now = turns.load(Ordering::Relaxed);
            if seen != Some(now) {
                // A lost one is followed by others.
                let _lost = service_manager::tell(&format!("WATCHDOG=1\n{}", core.status()));
            }
            seen = Some(now);
            core.wake();
            thread::sleep(pause);
        }
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(look).map(drop)
}
