//! Devices that QEMU serves in domain 0: channels, a screen, keyboards and folders.

use super::{ModelUser, Vnc};

/// They are numbered by their places in these lists; a channel's number is one more, and a keyboard may have one of its own.
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

    /// Keyboards by their numbers, with the one of the screen, which is the first.
    #[must_use]
    pub fn all_keyboards(&self) -> Vec<(u32, KeyboardConfig)> {
        let of_screen = self.screen.iter().map(|_| KeyboardConfig::default());
        let mut next = 0;
        let number = |keyboard: KeyboardConfig| {
            let devid = keyboard.devid.unwrap_or(next);
            next = devid.saturating_add(1);
            (devid, keyboard)
        };
        of_screen.chain(self.keyboards.iter().cloned()).map(number).collect()
    }

    /// The number of the next keyboard.
    #[must_use]
    pub fn next_keyboard(&self) -> u32 {
        self.all_keyboards().last().map_or(0, |(devid, _)| devid.saturating_add(1))
    }

    /// Removes a keyboard that is not the screen's. The others keep their numbers.
    pub fn remove_keyboard(&mut self, devid: u32) {
        let first = u32::from(self.screen.is_some());
        let own = self.all_keyboards().into_iter().skip(usize::from(self.screen.is_some()));
        self.keyboards = numbered(own.filter(|(it, _)| *it != devid).collect(), first);
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

/// Keyboards of these numbers, which grow, after others so many.
#[must_use]
pub fn numbered(keyboards: Vec<(u32, KeyboardConfig)>, first: u32) -> Vec<KeyboardConfig> {
    let mut next = first;
    let number = |(devid, keyboard): (u32, KeyboardConfig)| {
        let devid_or_none = (devid != next).then_some(devid);
        next = devid.saturating_add(1);
        KeyboardConfig { devid: devid_or_none, ..keyboard }
    };
    keyboards.into_iter().map(number).collect()
}

/// A keyboard and pointer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyboardConfig {
    /// Its number, if that is not the next after the one before it.
    pub devid: Option<u32>,
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

#[cfg(test)]
mod tests {
    use crate::xlcfg;

    fn served(vkb: &str) -> Result<super::ServedDevices, String> {
        let text = format!("name = 'w'\nkernel = '/k'\nmemory = 64\nvfb = ['']\nvkb = [{vkb}]\n");
        let source = xlcfg::Source { file: "w.cfg", text: &text, overrides: &[] };
        xlcfg::parse(source).map(|config| config.served).map_err(|error| error.to_string())
    }

    #[test]
    fn a_keyboard_that_goes_leaves_the_others_their_numbers() {
        let of = |more: &str| format!("'backend-type=qemu{more}'");
        let mut three = served(&[of(""), of(",width=7"), of("")].join(",")).unwrap();
        let numbers = |served: &super::ServedDevices| -> Vec<u32> {
            served.all_keyboards().into_iter().map(|(devid, _)| devid).collect()
        };
        assert_eq!(numbers(&three), [0, 1, 2, 3]);
        three.remove_keyboard(2);
        assert_eq!((numbers(&three), three.next_keyboard()), (vec![0, 1, 3], 4));
        // As a record has them.
        assert_eq!(served(&[of(""), of(",devid=3")].join(",")).unwrap(), three);
        three.remove_keyboard(1);
        three.remove_keyboard(0);
        assert_eq!(numbers(&three), [0, 3]);
        three.remove_keyboard(3);
        assert_eq!((numbers(&three), three.next_keyboard()), (vec![0], 1));
        for twice in [of(",devid=0"), [of(",devid=3"), of(",devid=3")].join(",")] {
            let error = served(&twice).unwrap_err();
            assert!(error.contains("is not after those before it"), "{error}");
        }
    }
}
