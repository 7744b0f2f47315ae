//! What is attached of a VDI, for whom, and what each request changes about it.
//!
//! Each user of a VDI has a state of its own; the VDI is as far as the furthest of them. A change of the
//! VDI's own stage is what a driver has to do something for.
//!
//! | | detached | attached r | attached w | activated r or w |
//! |---|---|---|---|---|
//! | attach r | attached r | nothing | nothing | nothing |
//! | attach w | attached w | refused | nothing | w: nothing, r: refused |
//! | activate | refused | activated r | activated w | nothing |
//! | deactivate | nothing | nothing | nothing | attached |
//! | detach | nothing | detached | detached | refused |
//!
//! Many may read, or one may write: somebody who wants to write finds nobody else, and whoever comes while
//! somebody writes is refused.

use std::collections::BTreeMap;

use crate::Access;

/// How far a VDI has come.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Stage {
    #[default]
    Detached,
    Attached,
    Activated,
}

/// What one user has of a VDI.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Use {
    pub access: Access,
    pub stage: Stage,
}

/// Why a request does not fit the state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Unfit {
    /// Somebody else writes, or reads what is to be written.
    Other(String),
    /// It is attached for reading, which cannot become writing.
    ReadOnly,
    NotAttached,
    StillActivated,
}

/// All users of a VDI.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Uses(pub(crate) BTreeMap<String, Use>);

impl Uses {
    /// How far the VDI itself is.
    pub(crate) fn stage(&self) -> Stage {
        self.0.values().map(|it| it.stage).max().unwrap_or_default()
    }

    /// Somebody who may write to it.
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
    fn each_request_in_each_state_is_as_the_table_says() {
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

    /// Every sequence of requests by three users, to a depth: the promises hold in each state.
    #[test]
    fn many_read_or_one_writes_whatever_is_asked() {
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
                    // Asked once more, nothing changes.
                    open.push(next);
                }
            }
        }
        // Per user: detached, attached or activated for reading (27), or one of them writes (6).
        assert_eq!(seen.len(), 33);
    }
}
