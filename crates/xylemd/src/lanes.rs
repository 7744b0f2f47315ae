//! Further connections of moves, a thread each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use toolstack::channel::Broken;
use toolstack::lanes::{
    LaneCall, LaneCounts, LaneIn, LaneItem, LaneJob, LaneOut, LaneReceiver, LaneSender,
};
use toolstack::perform::LIMITS;
use xen::Uuid;

use crate::channels::Link;

/// What waits to be sent: enough for a thread not to wait for the one that reads the guest.
const JOBS: usize = 2;
/// What has come and is not applied: some frames of a MiB at most.
const ITEMS: usize = 4;
/// How often a sender looks whether there is room.
const ROOM_LOOK: Duration = Duration::from_millis(1);
/// How often a receiver looks whether it is still wanted.
const LOOK_NS: u64 = 50_000_000;

/// What a thread has told.
#[derive(Default)]
struct Told {
    counts: Mutex<LaneCounts>,
    broken: Mutex<Option<Broken>>,
    /// Nobody waits for it any more.
    is_over: AtomicBool,
}

impl Told {
    fn broken(&self) -> MutexGuard<'_, Option<Broken>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// A connection on which pages leave.
struct Outgoing {
    jobs: SyncSender<LaneJob>,
    told: Arc<Told>,
}

fn refused(error: &std::io::Error) -> Broken {
    Broken(format!("no thread for it: {error}"))
}

/// Sends on a thread of its own.
pub(crate) fn send(link: Link, call: &LaneCall) -> Result<Box<dyn LaneOut>, Broken> {
    let (jobs, given) = sync_channel(JOBS);
    let told = Arc::<Told>::default();
    let (tells, mut sender) = (Arc::clone(&told), LaneSender::new(link, call));
    let began = Instant::now();
    let now = move || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let run = move || {
        for job in given {
            let result = sender.perform(job, &now, &mut || tells.is_over());
            *tells.counts.lock().unwrap_or_else(PoisonError::into_inner) = sender.counts();
            if let Err(broken) = result {
                *tells.broken() = Some(broken);
                return;
            }
        }
    };
    let started = thread::Builder::new().name("lane-out".to_owned()).spawn(run);
    started.map_err(|error| refused(&error))?;
    Ok(Box::new(Outgoing { jobs, told }))
}

impl LaneOut for Outgoing {
    fn give(&mut self, mut job: LaneJob, timeout_ns: u64) -> Result<Option<LaneJob>, Broken> {
        let deadline = Instant::now() + Duration::from_nanos(timeout_ns);
        loop {
            match self.jobs.try_send(job) {
                Ok(()) => return Ok(None),
                Err(TrySendError::Full(back)) if Instant::now() >= deadline => {
                    return Ok(Some(back));
                }
                Err(TrySendError::Full(back)) => job = back,
                Err(TrySendError::Disconnected(_)) => {
                    let broken = self.told.broken().clone();
                    return Err(broken.unwrap_or_else(|| Broken("it has ended".to_owned())));
                }
            }
            thread::sleep(ROOM_LOOK);
        }
    }

    fn counts(&self) -> LaneCounts {
        *self.told.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.told.is_over.store(true, Ordering::Relaxed);
    }
}

/// A connection on which pages come.
struct Incoming {
    items: Receiver<Result<LaneItem, Broken>>,
    told: Arc<Told>,
}

/// Receives on a thread of its own.
pub(crate) fn receive(link: Link, transfer: Uuid, number: u8) -> Result<Box<dyn LaneIn>, Broken> {
    let (come, items) = sync_channel(ITEMS);
    let told = Arc::<Told>::default();
    let tells = Arc::clone(&told);
    let mut receiver = LaneReceiver::new(link, transfer, number, LIMITS);
    let run = move || {
        while !tells.is_over() {
            let item = match receiver.next(LOOK_NS) {
                Ok(None) => continue,
                Ok(Some(item)) => Ok(item),
                Err(broken) => Err(broken),
            };
            let is_last = matches!(item, Ok(LaneItem::End) | Err(_));
            if come.send(item).is_err() || is_last {
                return;
            }
        }
    };
    let started = thread::Builder::new().name("lane-in".to_owned()).spawn(run);
    started.map_err(|error| refused(&error))?;
    Ok(Box::new(Incoming { items, told }))
}

impl LaneIn for Incoming {
    fn next(&mut self, timeout_ns: u64) -> Result<Option<LaneItem>, Broken> {
        match self.items.recv_timeout(Duration::from_nanos(timeout_ns)) {
            Ok(item) => item.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Broken("it has ended".to_owned())),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.told.is_over.store(true, Ordering::Relaxed);
    }
}
