//! Devices that QEMU serves in domain 0: channels, a screen, keyboards and folders.

use super::{ModelUser, Vnc};

/// They are numbered by their places in these lists; a channel's number is one more.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServedDevices {
    pub channels: Vec<ChannelConfig>,
    /// Of a PV or PVH domain. It comes with a keyboard and a pointer.
    pub screen: Option<ScreenConfig>,
    pub keyboards: Vec<KeyboardConfig>,
    pub folders: Vec<FolderConfig>,
    /// Arguments for QEMU of a PV or PVH domain.
    pub arguments: Vec<String>,
    /// QEMU of a PV or PVH domain instead of the host's.
    pub program: Option<String>,
}

impl ServedDevices {
    /// Whether there is one.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.channels.is_empty()
            || self.screen.is_some()
            || !self.keyboards.is_empty()
            || !self.folders.is_empty()
    }

    /// Keyboards, with the one of the screen, which is the first.
    #[must_use]
    pub fn all_keyboards(&self) -> Vec<KeyboardConfig> {
        let of_screen = self.screen.iter().map(|_| KeyboardConfig::default());
        of_screen.chain(self.keyboards.iter().cloned()).collect()
    }

    /// As whom QEMU of a PV or PVH domain runs: who owns the files of a folder is root's to say.
    #[must_use]
    pub fn user(&self) -> ModelUser {
        if self.folders.is_empty() { ModelUser::Restricted } else { ModelUser::Root }
    }
}

/// A console beside the first one, by whose name programs in the guest find it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChannelConfig {
    pub name: String,
    pub connection: Connection,
}

/// Domain 0's end of a channel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Connection {
    Pty,
    /// The path of a socket, which takes one connection at a time.
    Socket(String),
}

impl Connection {
    /// The word in a configuration file and in the store.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pty => "pty",
            Self::Socket(_) => "socket",
        }
    }
}

/// A frame buffer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScreenConfig {
    pub vnc: Option<Vnc>,
    pub keymap: Option<String>,
}

/// A keyboard and pointer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyboardConfig {
    pub unique_id: Option<String>,
    /// Numbers by their names in the store.
    pub numbers: Vec<(&'static str, u32)>,
}

/// A folder of domain 0.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FolderConfig {
    /// The name by which the guest mounts it.
    pub tag: String,
    pub path: String,
    pub security_model: SecurityModel,
}

/// How owners and modes of a folder's files are kept. Source: QEMU's manual, `-fsdev`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SecurityModel {
    None,
    Passthrough,
    MappedXattr,
    MappedFile,
}

impl SecurityModel {
    pub const ALL: [Self; 4] = [Self::None, Self::Passthrough, Self::MappedXattr, Self::MappedFile];

    /// The word in a configuration file and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Passthrough => "passthrough",
            Self::MappedXattr => "mapped-xattr",
            Self::MappedFile => "mapped-file",
        }
    }
}
