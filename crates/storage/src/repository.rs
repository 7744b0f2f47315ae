//! SRs and VDIs as they are described.

use std::collections::BTreeMap;

use crate::{Kind, StorageError, nbd};

/// A storage repository as the host knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Repository {
    pub name: String,
    pub kind: Kind,
    /// What its kind needs to know, by name: XenAPI's `device-config`.
    pub config: BTreeMap<String, String>,
}

impl Repository {
    /// A setting that its kind cannot do without.
    pub(crate) fn setting(&self, key: &str) -> Result<&str, StorageError> {
        self.config.get(key).map(String::as_str).ok_or_else(|| {
            StorageError::refused(format!(
                "{}: an SR of kind {} needs {key}=..; it has {}",
                self.name,
                self.kind,
                self.kind.settings().join(", ")
            ))
        })
    }

    /// A setting that is an absolute path without `.` and `..`.
    pub(crate) fn path(&self, key: &str) -> Result<String, StorageError> {
        let path = self.setting(key)?.trim_end_matches('/');
        let plain = path.starts_with('/')
            && !path.split('/').any(|part| part == "." || part == "..")
            && !path.contains(char::is_control);
        if plain {
            let parts = path.split('/').filter(|part| !part.is_empty());
            return Ok(parts.map(|part| format!("/{part}")).collect());
        }
        Err(StorageError::refused(format!(
            "{}: {key}={path:?}: expected an absolute path without . and ..",
            self.name
        )))
    }

    /// The setting `server` as `HOST:PORT`.
    pub(crate) fn server(&self, port: u16) -> Result<String, StorageError> {
        let server = self.setting("server")?;
        let letter = |b: u8| {
            b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'_' | b'[' | b']')
        };
        if server.is_empty() || server.starts_with('-') || !server.bytes().all(letter) {
            return Err(StorageError::refused(format!(
                "{}: server={server:?}: expected a host's name or address, and :PORT if it is not {port}",
                self.name
            )));
        }
        let has_port = match server.rsplit_once(':') {
            None => false,
            Some((host, _)) => !host.contains(':') || host.ends_with(']'),
        };
        Ok(if has_port { server.to_owned() } else { format!("{server}:{port}") })
    }

    /// What there may be one SR of: two that have the same would each give away what the other has given away.
    pub(crate) fn identity(&self) -> Result<String, StorageError> {
        Ok(match self.kind {
            Kind::File | Kind::Qcow2 | Kind::Sim => self.path("path")?,
            Kind::Nfs => format!("{}:{}", self.setting("server")?, self.path("serverpath")?),
            Kind::Nbd => self.server(nbd::PORT)?,
            Kind::Iscsi => self.setting("target")?.to_owned(),
            Kind::Lvm | Kind::LvmThin | Kind::Program => format!("{:?}", self.config),
        })
    }

    /// Sees that there are no settings that the kind does not know.
    pub(crate) fn check_settings(&self) -> Result<(), StorageError> {
        if self.kind == Kind::Program {
            return Ok(());
        }
        let known = self.kind.settings();
        match self.config.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(StorageError::refused(format!(
                "{}: {key:?} is no setting of an SR of kind {}; it has {}",
                self.name,
                self.kind,
                known.join(", ")
            ))),
        }
    }
}

/// A VDI as its SR tells it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Vdi {
    pub name: String,
    /// What a guest sees.
    pub bytes: u64,
    /// What it takes in the SR, where that can be told.
    pub used_bytes: Option<u64>,
    /// The VDI that this is a snapshot of; it is read-only then.
    pub snapshot_of: Option<String>,
}
