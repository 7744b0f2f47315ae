//! The JSON files: the SRs of the host, and the users of each attached VDI.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::vdi::{Stage, Use, Uses};
use crate::{Access, BlockDevice, DeviceNumber, Kind, Repository, StorageError};

#[derive(Deserialize, Serialize)]
struct RepositoryRecord {
    kind: String,
    config: BTreeMap<String, String>,
}

#[derive(Deserialize, Serialize)]
struct UsesRecord {
    /// By owner: access and stage.
    uses: BTreeMap<String, (String, String)>,
    /// Path, major, minor.
    device: Option<(String, u32, u32)>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    leaving: BTreeSet<String>,
}

/// A VDI's users, and its device if it is activated.
///
/// The file never says less than what is attached: it is written before a step up and after a step
/// down.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Attached {
    pub(crate) uses: Uses,
    pub(crate) device: Option<BlockDevice>,
    /// Former users, for whom the SR could not detach it yet.
    pub(crate) leaving: BTreeSet<String>,
}

fn text(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string(value).expect("maps of strings always serialise");
    text.push('\n');
    text
}

fn unreadable(path: &str, what: impl std::fmt::Display) -> StorageError {
    StorageError::refused(format!("{path} cannot be read: {what}"))
}

impl Repository {
    pub(crate) fn to_text(&self) -> String {
        text(&RepositoryRecord { kind: self.kind.to_string(), config: self.config.clone() })
    }

    pub(crate) fn from_text(name: &str, path: &str, text: &str) -> Result<Self, StorageError> {
        let record: RepositoryRecord =
            serde_json::from_str(text).map_err(|error| unreadable(path, error))?;
        let kind = Kind::parse(&record.kind)?;
        Ok(Self { name: name.to_owned(), kind, config: record.config })
    }
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Detached => "detached",
        Stage::Attached => "attached",
        Stage::Activated => "activated",
    }
}

impl Attached {
    /// After a step.
    pub(crate) fn with(&self, uses: Uses, device: Option<BlockDevice>) -> Self {
        let mut leaving = self.leaving.clone();
        leaving.retain(|owner| uses.0.contains_key(owner));
        Self { uses, device, leaving }
    }

    pub(crate) fn to_text(&self) -> String {
        let uses = self.uses.0.iter().map(|(owner, it)| {
            (owner.clone(), (it.access.as_str().to_owned(), stage_word(it.stage).to_owned()))
        });
        let device = self.device.as_ref();
        let device = device.map(|it| (it.path.clone(), it.number.major, it.number.minor));
        text(&UsesRecord { uses: uses.collect(), device, leaving: self.leaving.clone() })
    }

    pub(crate) fn from_text(path: &str, text: &str) -> Result<Self, StorageError> {
        let record: UsesRecord =
            serde_json::from_str(text).map_err(|error| unreadable(path, error))?;
        let mut uses = Uses::default();
        for (owner, (access, stage)) in record.uses {
            let access = [Access::ReadOnly, Access::ReadWrite]
                .into_iter()
                .find(|it| it.as_str() == access)
                .ok_or_else(|| unreadable(path, format!("access {access:?}")))?;
            let stage = [Stage::Attached, Stage::Activated]
                .into_iter()
                .find(|it| stage_word(*it) == stage)
                .ok_or_else(|| unreadable(path, format!("stage {stage:?}")))?;
            uses.0.insert(owner, Use { access, stage });
        }
        let device = record.device.map(|(path, major, minor)| BlockDevice {
            path,
            number: DeviceNumber { major, minor },
        });
        Ok(Self { uses, device, leaving: record.leaving })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let number = DeviceNumber { major: 7, minor: 3 };
        let device = Some(BlockDevice { path: "/dev/loop3".to_owned(), number });
        let uses = Uses::default().attach("a", Access::ReadWrite).unwrap();
        let uses = uses.activate("a").unwrap();
        let mut attached = Attached::default().with(uses, device);
        let text = attached.to_text();
        assert_eq!(
            text,
            "{\"uses\":{\"a\":[\"w\",\"activated\"]},\"device\":[\"/dev/loop3\",7,3]}\n"
        );
        assert_eq!(Attached::from_text("p", &text), Ok(attached.clone()));
        attached.leaving.insert("a".to_owned());
        assert_eq!(Attached::from_text("p", &attached.to_text()), Ok(attached));
        for damaged in ["", "{}", "{\"uses\":{\"a\":[\"x\",\"attached\"]},\"device\":null}"] {
            let error = Attached::from_text("/run/p", damaged).unwrap_err();
            assert!(error.to_string().starts_with("/run/p cannot be read: "), "{error}");
        }
    }
}
