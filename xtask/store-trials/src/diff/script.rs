//! Random steps for two servers: who asks what, what happens to domains.
//!
//! A script knows just enough of what it did to stay where both servers promise the same: which
//! transactions may have seen changes from outside, which domains live.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use xenstore::wire::MessageType as M;

use crate::stores::Transition;

/// One thing to do on both servers.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Ask {
        who: String,
        slot: Option<u32>,
        code: u32,
        payload: Vec<u8>,
        why: Care,
    },
    Start {
        who: String,
        slot: u32,
    },
    End {
        who: String,
        slot: u32,
        verdict: char,
    },
    /// A socket client goes; one of the same name comes.
    Reconnect(String),
    Create(u16),
    Adopt(u16),
    Transition(Transition, Vec<u16>),
}

/// What is known of a request before it is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Care {
    Exact,
    /// Inside a transaction that may have seen a change from outside.
    Tainted,
    /// Of a wrong form.
    Malformed,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask { who, slot, code, payload, .. } => {
                let inside = slot.map(|slot| format!(":t{slot}")).unwrap_or_default();
                let name = M::from_code(*code).map_or("unknown", M::label);
                let text = String::from_utf8_lossy(payload).replace('\0', "|");
                let cut: String = text.chars().take(80).collect();
                write!(f, "{who}{inside} {name}({code}) {cut}")
            }
            Self::Start { who, slot } => write!(f, "{who} start t{slot}"),
            Self::End { who, slot, verdict } => write!(f, "{who} end t{slot} {verdict}"),
            Self::Reconnect(who) => write!(f, "{who} reconnects"),
            Self::Create(domid) => write!(f, "xen create {domid}"),
            Self::Adopt(domid) => write!(f, "xen ring {domid}"),
            Self::Transition(change, domids) => write!(f, "xen {change:?} {domids:?}"),
        }
    }
}

/// Numbers that look random and are the same for the same seed (`SplitMix64`).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "taken modulo a small number")]
        let number = self.next() as usize;
        number % limit
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A transaction as the script sees it.
#[derive(Clone, Debug)]
struct Open {
    who: String,
    /// Parts of the tree that it read or changed.
    seen: BTreeSet<String>,
    /// Parts that others changed since it began.
    outside: BTreeSet<String>,
    is_tainted: bool,
}

#[derive(Debug)]
pub(super) struct Script {
    random: Random,
    queue: VecDeque<Step>,
    alive: BTreeSet<u16>,
    /// Domains that are shut down, but not gone.
    stopped: BTreeSet<u16>,
    next_domid: u16,
    open: BTreeMap<u32, Open>,
    next_slot: u32,
    watches: BTreeMap<String, Vec<Vec<u8>>>,
}

/// Guests are `d1`, `d2`, as their domains.
fn is_guest(who: &str) -> bool {
    !SOCKETS.contains(&who)
}

const SOCKETS: [&str; 3] = ["dom0", "s1", "s2"];
const GUESTS_MAX: usize = 4;
/// Domids are used again after so many.
const DOMIDS: u16 = 12;
/// The parts of the tree beside the domains' homes. They are made first and stay.
const TOPS: [&str; 4] = ["/open", "/shut", "/mine", "/deep"];
const NAMES: [&str; 6] = ["a", "b", "c", "state", "backend-id", "x"];

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        let mut script = Self {
            random: Random(seed),
            queue: VecDeque::new(),
            alive: BTreeSet::new(),
            stopped: BTreeSet::new(),
            next_domid: 1,
            open: BTreeMap::new(),
            next_slot: 0,
            watches: BTreeMap::new(),
        };
        for (top, perms) in TOPS.into_iter().zip(["b0", "n0", "r0", "w0"]) {
            script.ask_later("dom0", M::Write, format!("{top}\0top"));
            script.ask_later("dom0", M::SetPerms, format!("{top}\0{perms}\0"));
        }
        script.ask_later("dom0", M::Write, "/local/domain/0/name\0dom0".to_owned());
        script
    }

    fn ask_later(&mut self, who: &str, kind: M, payload: impl Into<Vec<u8>>) {
        self.queue.push_back(Step::Ask {
            who: who.to_owned(),
            slot: None,
            code: kind.code(),
            payload: payload.into(),
            why: Care::Exact,
        });
    }

    /// The next step.
    pub(super) fn step(&mut self) -> Step {
        loop {
            if let Some(step) = self.queue.pop_front() {
                return step;
            }
            self.plan();
        }
    }

    fn plan(&mut self) {
        match self.random.below(100) {
            0..=1 => self.plan_domain(),
            2 => self.plan_end_of_domains(),
            3 => self.plan_introduction_again(),
            4 => {
                let who = (*self.random.pick(&SOCKETS[1..])).to_owned();
                self.forget(&who);
                self.queue.push_back(Step::Reconnect(who));
            }
            5..=12 => self.plan_start(),
            13..=20 => self.plan_end(),
            21..=30 => self.plan_watch(),
            31..=33 => self.plan_malformed(),
            34..=37 => self.plan_domain_question(),
            _ => self.plan_node_request(),
        }
    }

    fn clients(&self) -> Vec<String> {
        let guests = self.alive.iter().map(|domid| format!("d{domid}"));
        SOCKETS.iter().map(|name| (*name).to_owned()).chain(guests).collect()
    }

    fn client(&mut self) -> String {
        let clients = self.clients();
        self.random.pick(&clients).clone()
    }

    // Domains

    fn plan_domain(&mut self) {
        if self.alive.len() >= GUESTS_MAX {
            return self.plan_end_of_domains();
        }
        let domid = self.next_domid;
        self.next_domid = domid % DOMIDS + 1;
        if !self.alive.insert(domid) {
            return;
        }
        self.taint_all();
        self.queue.push_back(Step::Create(domid));
        self.ask_later("dom0", M::Introduce, format!("{domid}\x005\x007\0"));
        self.queue.push_back(Step::Adopt(domid));
        let home = format!("/local/domain/{domid}");
        self.ask_later("dom0", M::Write, format!("{home}\0"));
        let perms = *self.random.pick(&["n", "r", "b", "w"]);
        self.ask_later("dom0", M::SetPerms, format!("{home}\0{perms}{domid}\0"));
        let top = *self.random.pick(&TOPS);
        self.ask_later("dom0", M::SetPerms, format!("{top}\0n0\0b{domid}\0"));
    }

    fn plan_end_of_domains(&mut self) {
        let alive: Vec<u16> = self.alive.iter().copied().collect();
        if alive.is_empty() {
            return;
        }
        let domid = *self.random.pick(&alive);
        self.taint_all();
        if self.random.percent(30) && self.stopped.insert(domid) {
            return self.queue.push_back(Step::Transition(Transition::Shutdown, vec![domid]));
        }
        self.alive.remove(&domid);
        self.stopped.remove(&domid);
        self.forget(&format!("d{domid}"));
        if self.random.percent(20) {
            self.queue.push_back(Step::Transition(Transition::Dying, vec![domid]));
        }
        self.queue.push_back(Step::Transition(Transition::Destroyed, vec![domid]));
        // 4.17 tells a domid's lives apart by what was written in between.
        self.ask_later("dom0", M::Write, "/deep\0after a death");
    }

    fn plan_introduction_again(&mut self) {
        let alive: Vec<u16> = self.alive.iter().copied().collect();
        if alive.is_empty() {
            return;
        }
        let domid = *self.random.pick(&alive);
        self.taint_all();
        self.forget(&format!("d{domid}"));
        self.ask_later("dom0", M::Introduce, format!("{domid}\x005\x008\0"));
    }

    fn plan_domain_question(&mut self) {
        let who = self.client();
        let domid = self.random.below(14);
        let kind = *self.random.pick(&[M::GetDomainPath, M::IsDomainIntroduced]);
        self.ask_later(&who, kind, format!("{domid}\0"));
        if self.random.percent(10) {
            let kind = *self.random.pick(&[M::Release, M::Resume, M::SetTarget, M::Introduce]);
            // Of guests, which may not; of the control domain they are steps of their own.
            if is_guest(&who) {
                self.ask_later(&who, kind, format!("{domid}\x001\x001\0"));
            }
        }
    }

    /// A client's transactions and watches are gone.
    fn forget(&mut self, who: &str) {
        self.open.retain(|_, open| open.who != who);
        self.watches.remove(who);
    }

    // Transactions

    fn taint_all(&mut self) {
        self.open.values_mut().for_each(|open| open.is_tainted = true);
    }

    fn plan_start(&mut self) {
        let who = self.client();
        if self.open.values().filter(|open| open.who == who).count() >= 3 {
            return;
        }
        self.next_slot += 1;
        let open = Open {
            who: who.clone(),
            seen: BTreeSet::new(),
            outside: BTreeSet::new(),
            is_tainted: false,
        };
        self.open.insert(self.next_slot, open);
        self.queue.push_back(Step::Start { who, slot: self.next_slot });
        // Some run through; others meet what happens outside.
        if self.random.percent(50) {
            let slot = self.next_slot;
            for _ in 0..self.random.below(8) {
                self.plan_node_request_in(Some(slot));
            }
            self.plan_end_of(slot);
        }
    }

    fn plan_end(&mut self) {
        let slots: Vec<u32> = self.open.keys().copied().collect();
        if !slots.is_empty() {
            let slot = *self.random.pick(&slots);
            self.plan_end_of(slot);
        }
    }

    fn plan_end_of(&mut self, slot: u32) {
        let Some(open) = self.open.remove(&slot) else { return };
        let commits = !open.is_tainted && self.random.percent(80);
        if commits {
            for other in self.open.values_mut() {
                other.outside.extend(open.seen.iter().cloned());
                other.is_tainted |= !other.seen.is_disjoint(&other.outside);
            }
        }
        let verdict = if commits { 'T' } else { 'F' };
        self.queue.push_back(Step::End { who: open.who, slot, verdict });
    }

    // Requests

    /// A path, and the part of the tree that it is in.
    fn path(&mut self, who: &str) -> (String, String) {
        let domid = who.strip_prefix('d').and_then(|id| id.parse::<u16>().ok()).unwrap_or(0);
        let (mut path, part) = match self.random.below(10) {
            0..=5 => {
                let top = *self.random.pick(&TOPS);
                (top.to_owned(), top.to_owned())
            }
            6 => {
                let domids: Vec<u16> = self.alive.iter().copied().chain([0]).collect();
                let home = format!("/local/domain/{}", self.random.pick(&domids));
                (home.clone(), home)
            }
            _ => {
                // Relative to home.
                let home = format!("/local/domain/{domid}");
                return ((*self.random.pick(&NAMES)).to_owned(), home);
            }
        };
        for _ in 0..self.random.below(4) {
            path += "/";
            path += *self.random.pick(&NAMES);
        }
        (path, part)
    }

    fn value(&mut self) -> String {
        let length = *self.random.pick(&[0, 1, 5, 30, 100, 1900, 2100]);
        (0..length).map(|_| *self.random.pick(&['a', 'b', '7', '\0'])).collect()
    }

    fn perms(&mut self) -> String {
        let mut perms = String::new();
        for _ in 0..=self.random.below(3) {
            let alive: Vec<u16> = self.alive.iter().copied().chain([0]).collect();
            let domid = *self.random.pick(&alive);
            let letter = *self.random.pick(&["n", "r", "w", "b"]);
            perms += &format!("{letter}{domid}\0");
        }
        perms
    }

    fn plan_node_request(&mut self) {
        let slots: Vec<u32> = self.open.keys().copied().collect();
        let slot = if !slots.is_empty() && self.random.percent(30) {
            Some(*self.random.pick(&slots))
        } else {
            None
        };
        self.plan_node_request_in(slot);
    }

    fn plan_node_request_in(&mut self, slot: Option<u32>) {
        let who = match slot.and_then(|slot| self.open.get(&slot)) {
            Some(open) => open.who.clone(),
            None => self.client(),
        };
        let (path, part) = self.path(&who);
        let is_top = path == part;
        let kinds = [
            M::Read,
            M::Read,
            M::Write,
            M::Write,
            M::Write,
            M::Mkdir,
            M::Rm,
            M::Directory,
            M::DirectoryPart,
            M::GetPerms,
            M::SetPerms,
        ];
        let mut kind = *self.random.pick(&kinds);
        // The parts stay, so that what is in one of them never shows in another.
        if is_top && kind == M::Rm {
            kind = M::Read;
        }
        let payload = match kind {
            M::Write => format!("{path}\0{}", self.value()),
            M::SetPerms => format!("{path}\0{}", self.perms()),
            M::DirectoryPart => format!("{path}\x000\0"),
            _ => format!("{path}\0"),
        };
        let changes = matches!(kind, M::Write | M::Mkdir | M::Rm | M::SetPerms);
        let mut why = Care::Exact;
        if let Some(open) = slot.and_then(|slot| self.open.get_mut(&slot)) {
            open.seen.insert(part);
            open.is_tainted |= !open.seen.is_disjoint(&open.outside);
            if open.is_tainted {
                why = Care::Tainted;
            }
        } else if changes {
            for open in self.open.values_mut() {
                open.outside.insert(part.clone());
                open.is_tainted |= !open.seen.is_disjoint(&open.outside);
            }
        }
        let payload = payload.into_bytes();
        self.queue.push_back(Step::Ask { who, slot, code: kind.code(), payload, why });
    }

    fn plan_watch(&mut self) {
        let who = self.client();
        let held = self.watches.get(&who).map_or(0, Vec::len);
        if held > 20 {
            self.forget(&who);
            return self.ask_later(&who, M::ResetWatches, "\0");
        }
        if held > 0 && self.random.percent(30) {
            let index = self.random.below(held);
            let watches = self.watches.entry(who.clone()).or_default();
            let payload = watches.swap_remove(index);
            return self.ask_later(&who, M::Unwatch, payload);
        }
        let path = match self.random.below(10) {
            0 => "/".to_owned(),
            1 => "@introduceDomain".to_owned(),
            // Guests are not told by 4.17.
            2 if !is_guest(&who) => "@releaseDomain".to_owned(),
            _ => self.path(&who).0,
        };
        let token = self.random.below(3);
        let payload = format!("{path}\0token-{token}\0").into_bytes();
        // One that exists is refused, and stays.
        let watches = self.watches.entry(who.clone()).or_default();
        if !watches.contains(&payload) {
            watches.push(payload.clone());
        }
        self.ask_later(&who, M::Watch, payload);
    }

    fn plan_malformed(&mut self) {
        let who = self.client();
        let code = match self.random.below(4) {
            0 => 15 + 5 * u32::from(self.random.percent(50)),
            1 => 27,
            _ => {
                let kinds = [M::Read, M::Directory, M::Write, M::Rm, M::Watch, M::Unwatch];
                self.random.pick(&kinds).code()
            }
        };
        // Without a NUL they may be the end of 4.17: it then sends no answer, and fails an assertion.
        let payloads = ["//\0", "a//b\0", "/open/\0", "/op en\0", "/open.x\0", "@x\0", "\0"];
        let payload = self.random.pick(&payloads).as_bytes().to_vec();
        self.queue.push_back(Step::Ask { who, slot: None, code, payload, why: Care::Malformed });
    }
}
