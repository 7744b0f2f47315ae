//! Descriptions of SRs and VDIs.

use std::collections::BTreeMap;

use crate::{Kind, StorageError, nbd};

/// A storage repository as the host knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Repository {
    pub name: String,
    pub kind: Kind,
    /// Settings of its kind, by name: XenAPI's `device-config`.
    pub config: BTreeMap<String, String>,
}

impl Repository {
    /// A required setting.
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

    /// Identity of the underlying storage: two SRs on the same would allocate the same space twice.
    pub(crate) fn identity(&self) -> Result<String, StorageError> {
        Ok(match self.kind {
            Kind::File | Kind::Qcow2 | Kind::Sim => self.path("path")?,
            Kind::Nfs => format!("{}:{}", self.setting("server")?, self.path("serverpath")?),
            Kind::Nbd => self.server(nbd::PORT)?,
            Kind::Iscsi => self.setting("target")?.to_owned(),
            Kind::Lvm | Kind::LvmThin | Kind::Program => format!("{:?}", self.config),
        })
    }

    /// Refuses settings that the kind does not have.
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

/// A VDI as described by its SR.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Vdi {
    pub name: String,
    /// Virtual size.
    pub bytes: u64,
    /// Space used in the SR, if known.
    pub used_bytes: Option<u64>,
    /// The VDI that this is a snapshot of; it is read-only then.
    pub snapshot_of: Option<String>,
}
