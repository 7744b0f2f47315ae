//! The users of a VDI, and what each request changes.
//!
//! Each user of a VDI has a stage; the VDI's is the highest of them. Only a change of the VDI's own
//! stage needs the driver.
//!
//! | | detached | attached r | attached w | activated r or w |
//! |---|---|---|---|---|
//! | attach r | attached r | nothing | nothing | nothing |
//! | attach w | attached w | refused | nothing | w: nothing, r: refused |
//! | activate | refused | activated r | activated w | nothing |
//! | deactivate | nothing | nothing | nothing | attached |
//! | detach | nothing | detached | detached | refused |
//!
//! Many readers or one writer: a writer must be the only user, and while there is one all others
//! are refused.

use std::collections::BTreeMap;

use crate::Access;

/// Stage of a VDI.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Stage {
    #[default]
    Detached,
    Attached,
    Activated,
}

/// One user's access and stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Use {
    pub access: Access,
    pub stage: Stage,
}

/// Why a request is invalid in the current state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Unfit {
    /// Another user writes, or reads what is to be written.
    Other(String),
    /// It is attached read-only, which cannot be changed.
    ReadOnly,
    NotAttached,
    StillActivated,
}

/// All users of a VDI.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Uses(pub(crate) BTreeMap<String, Use>);

impl Uses {
    /// The VDI's own stage.
    pub(crate) fn stage(&self) -> Stage {
        self.0.values().map(|it| it.stage).max().unwrap_or_default()
    }

    /// The user that may write, if there is one.
    pub(crate) fn writer(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|(_, it)| it.access == Access::ReadWrite)
            .map(|(owner, _)| owner.as_str())
    }

    pub(crate) fn attach(&self, owner: &str, access: Access) -> Result<Self, Unfit> {
        if let Some(known) = self.0.get(owner) {
            return match (known.access, access) {
                (Access::ReadOnly, Access::ReadWrite) => Err(Unfit::ReadOnly),
                _ => Ok(self.clone()),
            };
        }
        let in_the_way = match access {
            Access::ReadWrite => self.0.keys().next().map(String::as_str),
            Access::ReadOnly => self.writer(),
        };
        match in_the_way {
            Some(other) => Err(Unfit::Other(other.to_owned())),
            None => Ok(self.with(owner, Use { access, stage: Stage::Attached })),
        }
    }

    pub(crate) fn activate(&self, owner: &str) -> Result<Self, Unfit> {
        let known = self.0.get(owner).ok_or(Unfit::NotAttached)?;
        Ok(self.with(owner, Use { stage: Stage::Activated, ..*known }))
    }

    pub(crate) fn deactivate(&self, owner: &str) -> Self {
        match self.0.get(owner) {
            Some(known) => self.with(owner, Use { stage: Stage::Attached, ..*known }),
            None => self.clone(),
        }
    }

    pub(crate) fn detach(&self, owner: &str) -> Result<Self, Unfit> {
        if self.0.get(owner).is_some_and(|known| known.stage == Stage::Activated) {
            return Err(Unfit::StillActivated);
        }
        let mut uses = self.clone();
        uses.0.remove(owner);
        Ok(uses)
    }

    fn with(&self, owner: &str, its: Use) -> Self {
        let mut uses = self.clone();
        uses.0.insert(owner.to_owned(), its);
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Access = Access::ReadOnly;
    const WRITE: Access = Access::ReadWrite;

    fn in_stage(access: Option<Access>, stage: Stage) -> Uses {
        let uses = Uses::default();
        access.map_or_else(Uses::default, |access| uses.with("a", Use { access, stage }))
    }

    #[test]
    fn each_request_in_each_state_matches_the_table() {
        use Stage::{Activated, Attached, Detached};
        let states = [
            (None, Detached),
            (Some(READ), Attached),
            (Some(WRITE), Attached),
            (Some(READ), Activated),
            (Some(WRITE), Activated),
        ];
        let text = |result: Result<Uses, Unfit>| match result {
            Err(error) => format!("{error:?}"),
            Ok(uses) => uses.0.get("a").map_or("-".to_owned(), |it| {
                format!(
                    "{}{}",
                    if it.stage == Attached { "att " } else { "act " },
                    it.access.as_str()
                )
            }),
        };
        type Request = fn(&Uses) -> Result<Uses, Unfit>;
        let rows: [(&str, Request, [&str; 5]); 5] = [
            ("attach r", |u| u.attach("a", READ), ["att r", "att r", "att w", "act r", "act w"]),
            (
                "attach w",
                |u| u.attach("a", WRITE),
                ["att w", "ReadOnly", "att w", "ReadOnly", "act w"],
            ),
            ("activate", |u| u.activate("a"), ["NotAttached", "act r", "act w", "act r", "act w"]),
            ("deactivate", |u| Ok(u.deactivate("a")), ["-", "att r", "att w", "att r", "att w"]),
            ("detach", |u| u.detach("a"), ["-", "-", "-", "StillActivated", "StillActivated"]),
        ];
        for (name, request, expected) in rows {
            for ((access, stage), expected) in states.into_iter().zip(expected) {
                let uses = in_stage(access, stage);
                assert_eq!(text(request(&uses)), expected, "{name} in {access:?} {stage:?}");
            }
        }
    }

    /// All sequences of requests by three users: the invariants hold in each state.
    #[test]
    fn many_readers_or_one_writer_after_any_requests() {
        let mut seen = std::collections::BTreeMap::new();
        let mut open = vec![Uses::default()];
        while let Some(uses) = open.pop() {
            if seen.insert(format!("{uses:?}"), ()).is_some() {
                continue;
            }
            let writers = uses.0.values().filter(|it| it.access == WRITE).count();
            assert!(writers == 0 || uses.0.len() == 1, "{uses:?}");
            assert!(uses.0.values().all(|it| it.stage != Stage::Detached), "{uses:?}");
            for owner in ["a", "b", "c"] {
                let next = [
                    uses.attach(owner, READ),
                    uses.attach(owner, WRITE),
                    uses.activate(owner),
                    Ok(uses.deactivate(owner)),
                    uses.detach(owner),
                ];
                for next in next.into_iter().flatten() {
                    // Repeating the request changes nothing.
                    open.push(next);
                }
            }
        }
        // Per user: detached, attached or activated for reading (27), or one of them writes (6).
        assert_eq!(seen.len(), 33);
    }
}
