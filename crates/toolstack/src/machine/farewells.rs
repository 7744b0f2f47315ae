//! The ends of moves: what another host need not remember any more, and the definitions that came with VMs.
//!
//! A host remembers a transfer that came until its sender says that it will not ask. The sender notes in a file that it
//! has to say so, and says it until it was heard.

use std::collections::{BTreeMap, BTreeSet};

use xen::Uuid;

use super::definitions::Definition;
use super::{Action, ClientId, Instant, Purpose, Toolstack, note_failure};
use crate::channel::ChannelId;
use crate::moves::{Farewell, Reach};
use crate::work::{Failure, MoveWork, Output};

/// Seconds to the next try, at first and at most, and tries in all: about half an hour. A host that cannot be reached
/// then remembers a transfer that nobody will ask for.
const TRY_SECONDS: (u64, u64) = (1, 60);
const TRIES: u32 = 30;

/// What is to be said, and what was heard.
#[derive(Debug, Default)]
pub(super) struct Farewells {
    /// Hosts that are to forget a transfer from here, and how often they were told.
    open: BTreeMap<Uuid, (Reach, u32)>,
    pub(super) due: BTreeSet<(Instant, Uuid)>,
    /// Definitions that came with transfers, and are known from the note of the arrival only.
    definitions: BTreeMap<Uuid, (Uuid, String)>,
    /// Those that are being written.
    defining: BTreeSet<Uuid>,
}

/// A host that has perhaps not heard a farewell.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) transfer: Uuid,
    pub(super) peer: Option<Reach>,
}

impl Farewells {
    pub(super) fn beginning(
        gone: Vec<(Uuid, Reach)>,
        definitions: BTreeMap<Uuid, (Uuid, String)>,
    ) -> Self {
        let open = gone.into_iter().map(|(transfer, peer)| (transfer, (peer, 0))).collect();
        Self { open, definitions, ..Self::default() }
    }

    /// The definition that came with a transfer is being written: the note of its arrival is needed.
    pub(super) fn is_defining(&self, transfer: Uuid) -> bool {
        self.defining.contains(&transfer)
    }
}

impl Toolstack {
    /// The last word of a move was said, or could not be.
    pub(super) fn said_farewell(
        &mut self,
        now: Instant,
        (client, channel): (Option<ClientId>, Option<ChannelId>),
        listener: Option<Listener>,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        out.extend(channel.map(|channel| Action::CloseChannel { channel }));
        match (result, listener) {
            (Ok(Output::Farewell(Farewell::Unheard)), Some(Listener { transfer, peer })) => {
                let peer = peer.expect("what can be said again was noted");
                self.farewells.open.insert(transfer, (peer, 0));
                self.farewells.due.insert((now.plus_seconds(TRY_SECONDS.0), transfer));
            }
            (Ok(_), _) => {}
            (Err(Failure(message)), _) => out.push(Action::Note { message }),
        }
        out.extend(client.map(|client| Action::Reply { client, reply: super::Reply::Ok }));
    }

    /// Says the farewells whose time has come.
    pub(super) fn say_farewells(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some((at, transfer)) = self.farewells.due.first().copied() {
            if at > now {
                return;
            }
            self.farewells.due.pop_first();
            let Some((peer, _)) = self.farewells.open.get(&transfer) else { continue };
            let work = MoveWork::SayGone { peer: peer.clone(), transfer };
            self.give_out(Purpose::Gone { transfer }, work, out);
        }
    }

    /// A host was told that it may forget a transfer, or could not be.
    pub(super) fn said_gone(
        &mut self,
        now: Instant,
        transfer: Uuid,
        result: &Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        let Some((_, tries)) = self.farewells.open.get_mut(&transfer) else { return };
        *tries += 1;
        let tries = *tries;
        if result.is_ok() {
            self.farewells.open.remove(&transfer);
        } else if tries >= TRIES {
            self.farewells.open.remove(&transfer);
            self.give_out(Purpose::Aside, MoveWork::EndFarewell { transfer }, out);
        } else {
            let (first, most) = TRY_SECONDS;
            let seconds = (first << tries.min(6)).min(most);
            self.farewells.due.insert((now.plus_seconds(seconds), transfer));
        }
    }

    /// Goes on with an earlier daemon's farewells, and defines the VMs that have come.
    pub(super) fn adopt_farewells(&mut self, now: Instant, out: &mut Vec<Action>) {
        let open = self.farewells.open.keys();
        self.farewells.due = open.map(|transfer| (now, *transfer)).collect();
        self.say_farewells(now, out);
        // Those of VMs that are not complete wait, or are never needed.
        let coming: BTreeSet<Uuid> = self.vms.values().filter_map(|vm| vm.facts.transfer).collect();
        let come: Vec<Uuid> = self.farewells.definitions.keys().copied().collect();
        for transfer in come.into_iter().filter(|it| !coming.contains(it)) {
            self.define_come(now, transfer, out);
        }
    }

    /// A VM has come with a transfer of an earlier daemon.
    pub(super) fn define_come(&mut self, now: Instant, transfer: Uuid, out: &mut Vec<Action>) {
        let Some((uuid, text)) = self.farewells.definitions.remove(&transfer) else { return };
        let definition = match Definition::decode(&uuid.to_string(), &text) {
            Ok((_, definition)) => definition,
            Err(why) => {
                let message = format!("the definition that came with {uuid} is left aside: {why}");
                return out.push(Action::Note { message });
            }
        };
        self.farewells.defining.insert(transfer);
        self.definitions.insert(uuid, definition);
        if !self.vms.contains_key(&uuid) {
            self.changed(now, uuid, super::events::VmState::Down, "defined where it came from");
        }
        let work = MoveWork::Define { transfer, uuid, text };
        self.give_out(Purpose::Defined { transfer }, work, out);
    }

    /// Such a definition was written, or could not be.
    pub(super) fn has_defined(
        &mut self,
        transfer: Uuid,
        result: Result<Output, Failure>,
        out: &mut Vec<Action>,
    ) {
        self.farewells.defining.remove(&transfer);
        note_failure(result, out);
    }
}
