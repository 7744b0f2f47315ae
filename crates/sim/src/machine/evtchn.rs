//! Event channels and the VIRQ for domain exceptions.
//!
//! A port is free, unbound, interdomain or bound to a VIRQ. The lowest free port from 1 is
//! allocated first; a pending port stays pending until its owner consumes it, however often it is
//! signalled. Source: `xen/common/event_channel.c`.

use std::collections::{BTreeMap, BTreeSet};

use xen::{DomId, Errno, EvtchnPort};

use super::{Dying, Occurrence, SimXen, VIRQ_DOM_EXC};
use crate::bytes::put_u32;
use crate::faults::VirqFate;

/// What an event channel port is connected to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Channel {
    Unbound { remote: DomId },
    Interdomain { remote: DomId, port: EvtchnPort },
    Virq(u32),
}

#[derive(Debug, Default)]
pub(super) struct Ports {
    channels: BTreeMap<EvtchnPort, Channel>,
    pending: BTreeSet<EvtchnPort>,
}

impl Ports {
    fn free_port(&self, port_max: u32) -> Option<EvtchnPort> {
        let mut wanted = 1;
        for port in self.channels.keys() {
            if port.0 != wanted {
                break;
            }
            wanted += 1;
        }
        (wanted <= port_max).then_some(EvtchnPort(wanted))
    }
}

impl SimXen {
    /// What a port is connected to, `None` if it is free.
    #[must_use]
    pub fn channel(&self, domid: DomId, port: EvtchnPort) -> Option<Channel> {
        self.domains.get(&domid)?.ports.channels.get(&port).copied()
    }

    /// All ports in use by a domain.
    #[must_use]
    pub fn channels(&self, domid: DomId) -> Vec<(EvtchnPort, Channel)> {
        let ports = self.domains.get(&domid).map(|domain| &domain.ports);
        ports.into_iter().flat_map(|ports| &ports.channels).map(|(&p, &c)| (p, c)).collect()
    }

    fn new_port(&mut self, domid: DomId, channel: Channel) -> Result<EvtchnPort, Errno> {
        let domain = self.live(domid)?;
        if domain.dying != Dying::Alive {
            return Err(Errno::EINVAL);
        }
        let port = domain.ports.free_port(domain.evtchn_port_max).ok_or(Errno::ENOSPC)?;
        domain.ports.channels.insert(port, channel);
        Ok(port)
    }

    /// `EVTCHNOP_alloc_unbound`.
    ///
    /// # Errors
    /// ESRCH without that domain, EINVAL if it is dying, ENOSPC without a free port.
    pub fn evtchn_alloc_unbound(
        &mut self,
        owner: DomId,
        remote: DomId,
    ) -> Result<EvtchnPort, Errno> {
        self.new_port(owner, Channel::Unbound { remote })
    }

    /// `EVTCHNOP_bind_interdomain` by `domid`.
    ///
    /// # Errors
    /// ESRCH without the remote domain, EINVAL if its port is not unbound for `domid`.
    pub fn evtchn_bind_interdomain(
        &mut self,
        domid: DomId,
        remote: DomId,
        remote_port: EvtchnPort,
    ) -> Result<EvtchnPort, Errno> {
        let peer = self.live(remote)?;
        match peer.ports.channels.get(&remote_port) {
            Some(Channel::Unbound { remote: expected }) if *expected == domid => {}
            _ => return Err(Errno::EINVAL),
        }
        let port = self.new_port(domid, Channel::Interdomain { remote, port: remote_port })?;
        let peer = self.live(remote)?;
        peer.ports.channels.insert(remote_port, Channel::Interdomain { remote: domid, port });
        // A new binding is pending once, so that earlier events are not lost.
        self.set_pending(domid, port);
        Ok(port)
    }

    /// `EVTCHNOP_bind_virq` for the domain exceptions.
    ///
    /// # Errors
    /// EEXIST if the domain has it bound already; from 4.21 EBUSY for a domain that is not to receive it.
    pub fn evtchn_bind_dom_exc(&mut self, domid: DomId) -> Result<EvtchnPort, Errno> {
        let receives = self.dom_exc_receiver() == domid;
        if !receives && self.config.release >= super::Release::Xen4_21 {
            return Err(Errno::EBUSY);
        }
        if self.dom_exc_port_of(domid).is_some() {
            return Err(Errno::EEXIST);
        }
        let port = self.new_port(domid, Channel::Virq(VIRQ_DOM_EXC))?;
        if receives {
            // All domains count as changed for a new owner.
            self.changed = self.domains.keys().copied().collect();
        }
        Ok(port)
    }

    /// The receiver of the VIRQ.
    fn dom_exc_receiver(&self) -> DomId {
        self.virq_handlers.get(&VIRQ_DOM_EXC).copied().unwrap_or(DomId::DOM0)
    }

    /// `EVTCHNOP_close`.
    ///
    /// # Errors
    /// EINVAL for a free port.
    pub fn evtchn_close(&mut self, domid: DomId, port: EvtchnPort) -> Result<(), Errno> {
        let ports = &mut self.live(domid)?.ports;
        let channel = ports.channels.remove(&port).ok_or(Errno::EINVAL)?;
        ports.pending.remove(&port);
        if domid == DomId::DOM0 {
            self.toolstack_ports.remove(&port);
        }
        if let Channel::Interdomain { remote, port } = channel
            && let Some(peer) = self.domains.get_mut(&remote)
        {
            peer.ports.channels.insert(port, Channel::Unbound { remote: domid });
        }
        Ok(())
    }

    /// `EVTCHNOP_status`: the result's fields, from the status on.
    pub(super) fn evtchn_status(
        &mut self,
        domid: DomId,
        port: EvtchnPort,
    ) -> Result<[u8; 16], Errno> {
        /// Ports are allocated in buckets of this many.
        const BUCKET: u32 = 64;
        let channels = &self.live(domid)?.ports.channels;
        let highest = channels.keys().next_back().map_or(0, |port| port.0);
        if port.0 / BUCKET > highest / BUCKET {
            return Err(Errno::EINVAL);
        }
        let (status, words) = match channels.get(&port) {
            None => (0, [0, 0]),
            Some(Channel::Unbound { remote }) => (1, [remote.0.into(), 0]),
            Some(Channel::Interdomain { remote, port }) => (2, [remote.0.into(), port.0]),
            Some(Channel::Virq(virq)) => (4, [*virq, 0]),
        };
        let mut answer = [0; 16];
        put_u32(&mut answer, 0, status);
        put_u32(&mut answer, 8, words[0]);
        put_u32(&mut answer, 12, words[1]);
        Ok(answer)
    }

    /// `EVTCHNOP_send`: signals the other end. An unbound port is no error.
    ///
    /// # Errors
    /// EINVAL for a free port or one that cannot be signalled.
    pub fn evtchn_send(&mut self, domid: DomId, port: EvtchnPort) -> Result<(), Errno> {
        match self.live(domid)?.ports.channels.get(&port).copied() {
            Some(Channel::Interdomain { remote, port }) => self.set_pending(remote, port),
            Some(Channel::Unbound { .. }) => {}
            Some(Channel::Virq(_)) | None => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Consumes a pending event: true if the port was signalled since the last call.
    pub fn evtchn_take(&mut self, domid: DomId, port: EvtchnPort) -> bool {
        self.domains.get_mut(&domid).is_some_and(|domain| domain.ports.pending.remove(&port))
    }

    fn set_pending(&mut self, domid: DomId, port: EvtchnPort) {
        if let Some(domain) = self.domains.get_mut(&domid)
            && domain.dying == Dying::Alive
            && domain.ports.pending.insert(port)
        {
            self.occur(Occurrence::Event(domid, port));
        }
    }

    pub(super) fn close_all_ports(&mut self, domid: DomId) {
        for (port, _) in self.channels(domid) {
            self.evtchn_close(domid, port).expect("it was listed a moment ago");
        }
    }

    /// The port bound to VIRQ_DOM_EXC and its owner.
    pub(super) fn dom_exc_port(&self) -> Option<(DomId, EvtchnPort)> {
        let receiver = self.dom_exc_receiver();
        self.dom_exc_port_of(receiver).map(|port| (receiver, port))
    }

    fn dom_exc_port_of(&self, domid: DomId) -> Option<EvtchnPort> {
        let mut channels = self.domains.get(&domid)?.ports.channels.iter();
        channels
            .find(|(_, channel)| **channel == Channel::Virq(VIRQ_DOM_EXC))
            .map(|(port, _)| *port)
    }

    /// Raises VIRQ_DOM_EXC for its owner, if there is one.
    pub(super) fn raise_dom_exc(&mut self) {
        match self.faults.next_virq() {
            VirqFate::Delivered => self.deliver_dom_exc(),
            VirqFate::Lost => self.trace.note(self.now, format_args!("fault: a VIRQ is lost")),
            VirqFate::Late(nanoseconds) => {
                self.trace.note(self.now, format_args!("fault: a VIRQ is late"));
                self.virq_late.push(self.now.after(nanoseconds));
            }
        }
    }

    pub(super) fn deliver_dom_exc(&mut self) {
        if let Some((domid, port)) = self.dom_exc_port() {
            self.set_pending(domid, port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::test_support::{create, host};

    const DOM0: DomId = DomId::DOM0;

    #[test]
    fn the_lowest_free_port_is_allocated_first() {
        let mut xen = host();
        let guest = create(&mut xen);
        let ports: Vec<u32> =
            (0..3).map(|_| xen.evtchn_alloc_unbound(guest, DOM0).unwrap().0).collect();
        assert_eq!(ports, [1, 2, 3]);
        xen.evtchn_close(guest, EvtchnPort(2)).unwrap();
        assert_eq!(xen.evtchn_alloc_unbound(guest, DOM0), Ok(EvtchnPort(2)));
    }

    #[test]
    fn only_the_expected_peer_binds_and_closing_leaves_the_other_end_unbound() {
        let mut xen = host();
        let (a, b) = (create(&mut xen), create(&mut xen));
        let port = xen.evtchn_alloc_unbound(a, DOM0).unwrap();
        assert_eq!(xen.evtchn_bind_interdomain(b, a, port), Err(Errno::EINVAL));
        let ours = xen.evtchn_bind_interdomain(DOM0, a, port).unwrap();
        assert_eq!(xen.evtchn_bind_interdomain(DOM0, a, port), Err(Errno::EINVAL));
        xen.evtchn_close(DOM0, ours).unwrap();
        assert_eq!(xen.channel(a, port), Some(Channel::Unbound { remote: DOM0 }));
    }

    #[test]
    fn events_merge_until_they_are_consumed() {
        let mut xen = host();
        let guest = create(&mut xen);
        let port = xen.evtchn_alloc_unbound(guest, DOM0).unwrap();
        // The port is unbound: the event is dropped without an error.
        assert_eq!(xen.evtchn_send(guest, port), Ok(()));
        let ours = xen.evtchn_bind_interdomain(DOM0, guest, port).unwrap();
        assert!(xen.evtchn_take(DOM0, ours));
        xen.take_occurrences();
        xen.evtchn_send(guest, port).unwrap();
        xen.evtchn_send(guest, port).unwrap();
        assert_eq!(xen.take_occurrences(), [Occurrence::Event(DOM0, ours)]);
        assert!(xen.evtchn_take(DOM0, ours));
        assert!(!xen.evtchn_take(DOM0, ours));
        assert_eq!(xen.evtchn_send(guest, EvtchnPort(9)), Err(Errno::EINVAL));
    }

    #[test]
    fn the_exception_virq_has_one_consumer() {
        let mut xen = host();
        let port = xen.evtchn_bind_dom_exc(DOM0).unwrap();
        assert_eq!(xen.evtchn_bind_dom_exc(DOM0), Err(Errno::EEXIST));
        // On an old Xen another domain may bind it without effect; a new one refuses.
        let other = create(&mut xen);
        let theirs = xen.evtchn_bind_dom_exc(other).unwrap();
        xen.take_occurrences();
        xen.raise_dom_exc();
        assert!(xen.evtchn_take(DOM0, port) && !xen.evtchn_take(other, theirs));
        xen.evtchn_close(other, theirs).unwrap();
        xen.config.release = crate::machine::Release::Xen4_21;
        assert_eq!(xen.evtchn_bind_dom_exc(other), Err(Errno::EBUSY));
    }
}
