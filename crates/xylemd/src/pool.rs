//! The pool: threads that carry work out, with a queue for each class of it.
//!
//! A hypercall can keep its thread for long, and destroying a domain does. Because each class has
//! its own threads, a list never waits for either.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use toolstack::WorkId;
use toolstack::perform::Performer;
use toolstack::work::{Work, WorkClass};
use xen::Xen;
use xen_linux::LinuxHypervisor;
use xenstore_socket::StoreSocket;

use crate::Options;
use crate::core::Input;
use crate::host::{Images, LinuxHost};
use crate::store;

type Job = (WorkId, Work);
type LinuxPerformer = Performer<LinuxHypervisor, StoreSocket, LinuxHost>;

/// Threads that tear down. More only contend for the hypervisor's heap lock.
const DESTROYERS: usize = 2;
/// Threads that read and list.
const READERS: usize = 2;

pub(crate) struct Pool {
    queries: Sender<Job>,
    changes: Sender<Job>,
    destroys: Sender<Job>,
}

impl Pool {
    pub(crate) fn start(
        options: &Options,
        images: &Images,
        inputs: &Sender<Input>,
    ) -> Result<Self> {
        let start = |class: &str, threads: usize, arena: usize| -> Result<Sender<Job>> {
            let (jobs, queue) = mpsc::channel();
            let queue = Arc::new(Mutex::new(queue));
            for index in 0..threads {
                let performer = performer(options, images, arena)?;
                let (queue, inputs) = (Arc::clone(&queue), inputs.clone());
                thread::Builder::new()
                    .name(format!("{class}-{index}"))
                    .spawn(move || work(performer, &queue, &inputs))?;
            }
            Ok(jobs)
        };
        Ok(Self {
            queries: start("query", READERS, xen::ARENA_BYTES_FULL)?,
            changes: start("change", options.workers, xen::ARENA_BYTES_MIN)?,
            destroys: start("destroy", DESTROYERS, xen::ARENA_BYTES_MIN)?,
        })
    }

    pub(crate) fn submit(&self, id: WorkId, work: Work) {
        let queue = match work.class() {
            WorkClass::Query => &self.queries,
            WorkClass::Change => &self.changes,
            WorkClass::Destroy => &self.destroys,
        };
        queue.send((id, work)).expect("workers live as long as the daemon");
    }
}

fn performer(options: &Options, images: &Images, arena: usize) -> Result<LinuxPerformer> {
    let hypervisor = LinuxHypervisor::open(arena).context("cannot control Xen")?;
    let xen = Xen::probe(hypervisor).context("cannot control Xen")?;
    let store = store::connect(&options.store_socket)?;
    Ok(Performer { xen, store, host: LinuxHost::open(images.clone())? })
}

fn work(mut performer: LinuxPerformer, queue: &Mutex<Receiver<Job>>, inputs: &Sender<Input>) {
    loop {
        // A poisoned queue is whole: the lock is held only to take from it.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((id, work)) = job else { return };
        let (result, cost) = performer.perform(work);
        if inputs.send(Input::Worked { work: id, result, cost }).is_err() {
            return;
        }
    }
}
