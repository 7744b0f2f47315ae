//! The store daemon's core on the simulated host: the same server, with simulated rings and sockets.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use xen::{DomId, Errno, EvtchnPort};
use xenstore::client::Transport;

use crate::machine::Machine;
use crate::world::World;

/// What a port of dom0's means to the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StorePort {
    Ring(DomId),
    DomExc,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct SocketId(u64);

#[derive(Debug)]
struct Shell {
    machine: Machine,
}

#[derive(Clone, Debug)]
pub(crate) struct Store(Rc<RefCell<Shell>>);

impl Store {
    pub(crate) fn start(machine: Machine) -> Self {
        Self(Rc::new(RefCell::new(Shell { machine })))
    }
    pub(crate) fn port(&self, _port: EvtchnPort) -> Option<StorePort> {
        None
    }
    pub(crate) fn take_ready(&self) -> Vec<SocketId> {
        vec![]
    }
    pub(crate) fn serve_ring(&self, _domid: DomId) {}
    pub(crate) fn handle_dom_exc(&self) {}
}

#[derive(Debug)]
pub struct SocketTransport {
    store: Store,
    id: SocketId,
    world: Weak<RefCell<World>>,
}

impl SocketTransport {
    pub(crate) fn open(store: &Store) -> Self {
        Self { store: store.clone(), id: SocketId(0), world: Weak::new() }
    }
    pub(crate) fn within(mut self, world: &Rc<RefCell<World>>) -> Self {
        self.world = Rc::downgrade(world);
        self
    }
    pub(crate) fn connection(&self) -> SocketId {
        self.id
    }
    pub(crate) fn has_input(&self) -> bool {
        false
    }
}

impl Transport for SocketTransport {
    fn send(&mut self, _bytes: &[u8]) -> Result<(), Errno> {
        Ok(())
    }
    fn recv(&mut self, _into: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::EAGAIN)
    }
}
