//! Devices that QEMU serves in domain 0: `channel`, `vfb`, `vkb`, `p9`, and `vnc` of a PV or PVH domain.
//!
//! Source: xen `tools/xl/xl_parse.c`, `docs/man/xl.cfg.5.pod.in`, `xen/include/public/io/kbdif.h`.

use xen::DomainKind;

use super::hvm::DISPLAY_MAX;
use super::syntax::Place;
use super::vm::{Findings, Reader};
use super::{integer, shown};
use crate::config::{
    ChannelConfig, Connection, FolderConfig, HvmSettings, KeyboardConfig, ModelUser, ScreenConfig,
    SecurityModel, ServedDevices, Vnc,
};

/// The longest path that a socket can have.
const SOCKET_BYTES_MAX: usize = 107;
/// Numbers of keyboards that a record may keep.
const DEVID_MAX: i64 = 0xffff;
/// What the guest's driver keeps of a folder's tag.
const TAG_BYTES_MAX: usize = 31;

/// What a keyboard's parameters with numbers are called.
const KEYBOARD_NUMBERS: [&str; 10] = [
    "feature-disable-keyboard",
    "feature-disable-pointer",
    "feature-abs-pointer",
    "feature-raw-pointer",
    "feature-multi-touch",
    "multi-touch-width",
    "multi-touch-height",
    "multi-touch-num-contacts",
    "width",
    "height",
];
const MULTI_TOUCH: &str = "feature-multi-touch";

const OTHER_BACKEND: &str = "QEMU serves it, which runs in domain 0";

/// `key=value` parameters, spaces around both left out.
struct Parameters<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Parameters<'a> {
    fn parse(text: &'a str) -> std::result::Result<Self, String> {
        let mut found: Vec<(&str, &str)> = Vec::new();
        for parameter in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            let Some((key, value)) = parameter.split_once('=') else {
                return Err(format!("{}: expected key=value", shown(parameter)));
            };
            let (key, value) = (key.trim(), value.trim());
            if found.iter().any(|(other, _)| *other == key) {
                return Err(format!("{} is given twice", shown(key)));
            }
            if value.contains(char::is_control) {
                return Err(format!("{key}: {}: expected no control characters", shown(value)));
            }
            found.push((key, value));
        }
        Ok(Self(found))
    }

    /// An empty value is as good as none.
    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(other, _)| *other == key)?;
        Some(self.0.remove(at).1).filter(|value| !value.is_empty())
    }

    fn number(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> std::result::Result<Option<i64>, String> {
        let Some(text) = self.take(key) else { return Ok(None) };
        match integer(text).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (start, end) = range.into_inner();
                Err(format!("{key}: {}: expected {start} to {end}", shown(text)))
            }
        }
    }

    fn refuse_other_backend(&mut self) -> std::result::Result<(), String> {
        match self.take("backend") {
            None | Some("0" | "Domain-0") => Ok(()),
            Some(other) => Err(format!("backend={other}: {OTHER_BACKEND}")),
        }
    }

    /// What is left is unknown.
    fn finish(self) -> std::result::Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => Err(format!("unknown parameter {}", shown(key))),
        }
    }
}

fn channel(text: &str) -> std::result::Result<ChannelConfig, String> {
    let mut of = Parameters::parse(text)?;
    of.refuse_other_backend()?;
    let name = of.take("name").ok_or("name is missing: the guest finds a channel by it")?;
    let path = of.take("path");
    let connection = match (of.take("connection"), path) {
        (Some("pty"), _) => Connection::Pty,
        (Some("socket"), Some(path)) if path.len() <= SOCKET_BYTES_MAX => {
            Connection::Socket(path.to_owned())
        }
        (Some("socket"), Some(_)) => {
            return Err(format!("path: a socket's has at most {SOCKET_BYTES_MAX} bytes"));
        }
        (Some("socket"), None) => return Err("connection=socket needs path=".to_owned()),
        (Some(other), _) => {
            return Err(format!("connection: {}: expected pty or socket", shown(other)));
        }
        (None, _) => return Err("connection is missing; expected pty or socket".to_owned()),
    };
    of.finish()?;
    Ok(ChannelConfig { name: name.to_owned(), connection })
}

/// A keyboard, as in `vkb=` and as `vkb-attach` names it.
pub(super) fn keyboard(text: &str) -> std::result::Result<KeyboardConfig, String> {
    let mut of = Parameters::parse(text)?;
    of.refuse_other_backend()?;
    match of.take("backend-type") {
        Some("qemu") => {}
        Some("linux") => {
            return Err("backend-type: linux is a program that this host does not have; \
                        use qemu"
                .to_owned());
        }
        Some(other) => return Err(format!("backend-type: {}: expected qemu", shown(other))),
        None => return Err("backend-type is missing; expected qemu".to_owned()),
    }
    let unique_id = of.take("unique-id").map(str::to_owned);
    let mut numbers = Vec::new();
    for key in KEYBOARD_NUMBERS {
        let number = of.number(key, 0..=i64::from(u32::MAX))?;
        let number = number.and_then(|it| u32::try_from(it).ok()).filter(|it| *it != 0);
        numbers.extend(number.map(|it| (key, it)));
    }
    let has_size = numbers.iter().any(|(key, _)| key.starts_with("multi-touch-"));
    let has_touch = numbers.iter().any(|(key, _)| *key == MULTI_TOUCH);
    if has_touch && !has_size {
        return Err(format!(
            "{MULTI_TOUCH} needs multi-touch-width, multi-touch-height and multi-touch-num-contacts"
        ));
    }
    if has_size && !has_touch {
        numbers.push((MULTI_TOUCH, 1));
    }
    numbers.sort_unstable();
    let devid = of.number("devid", 0..=DEVID_MAX)?.and_then(|it| u32::try_from(it).ok());
    of.finish()?;
    Ok(KeyboardConfig { devid, unique_id, numbers })
}

fn folder(text: &str) -> std::result::Result<FolderConfig, String> {
    let mut of = Parameters::parse(text)?;
    of.refuse_other_backend()?;
    match of.take("type") {
        None | Some("qemu") => {}
        Some("xen_9pfsd") => {
            return Err("type: xen_9pfsd is a daemon of Xen 4.19 that is not used here; \
                        leave type out"
                .to_owned());
        }
        Some(other) => return Err(format!("type: {}: expected qemu", shown(other))),
    }
    for key in ["max-files", "max-open-files", "max-space", "auto-delete"] {
        if of.number(key, 0..=i64::MAX)?.is_some_and(|number| number != 0) {
            return Err(format!("{key}: QEMU has no such limit; leave it out"));
        }
    }
    let missing = |key: &str| format!("{key} is missing; expected tag=, path= and security_model=");
    let tag = of.take("tag").ok_or_else(|| missing("tag"))?;
    if tag.len() > TAG_BYTES_MAX {
        return Err(format!("tag: {}: at most {TAG_BYTES_MAX} bytes", shown(tag)));
    }
    let path = of.take("path").ok_or_else(|| missing("path"))?;
    let word = of.take("security_model").ok_or_else(|| missing("security_model"))?;
    // QEMU's older word.
    let known = if word == "mapped" { "mapped-xattr" } else { word };
    let security_model = SecurityModel::ALL.into_iter().find(|it| it.as_str() == known);
    let security_model = security_model.ok_or_else(|| {
        let words = SecurityModel::ALL.map(SecurityModel::as_str).join(", ");
        format!("security_model: {}: expected one of {words}", shown(word))
    })?;
    of.finish()?;
    Ok(FolderConfig { tag: tag.to_owned(), path: path.to_owned(), security_model })
}

/// A screen, and what is ignored of it: xl passes over what it does not know there, and xend knew more.
fn screen(text: &str) -> std::result::Result<(ScreenConfig, Vec<String>), String> {
    const KNOWN: [&str; 10] = [
        "vnc",
        "vnclisten",
        "vncdisplay",
        "vncpasswd",
        "vncunused",
        "keymap",
        "sdl",
        "opengl",
        "display",
        "xauthority",
    ];
    let mut ignored = Vec::new();
    let is_known = |parameter: &&str| {
        let key = parameter.split_once('=').map(|(key, _)| key.trim());
        key.is_some_and(|key| KNOWN.contains(&key))
    };
    let parameters = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    let (known, others): (Vec<&str>, Vec<&str>) = parameters.partition(is_known);
    ignored.extend(others.iter().map(|it| format!("{} is ignored, as xl ignores it", shown(it))));
    let known = known.join(",");
    let mut of = Parameters::parse(&known)?;
    let has_vnc = of.number("vnc", i64::MIN..=i64::MAX)?.is_none_or(|number| number != 0);
    let listen = of.take("vnclisten").unwrap_or("127.0.0.1").to_owned();
    let display = of.number("vncdisplay", 0..=DISPLAY_MAX)?;
    let display = display.and_then(|number| u16::try_from(number).ok());
    let password = of.take("vncpasswd").map(str::to_owned);
    // As for HVM: a domain has a display of its own unless it names one.
    of.number("vncunused", i64::MIN..=i64::MAX)?;
    let keymap = of.take("keymap").map(str::to_owned);
    if of.number("sdl", i64::MIN..=i64::MAX)?.unwrap_or_default() != 0 {
        ignored.push("sdl is ignored: no window is opened in domain 0; it has vnc=1".to_owned());
    }
    let vnc = has_vnc.then_some(Vnc { listen, display, password });
    Ok((ScreenConfig { vnc, keymap }, ignored))
}

impl Reader<'_> {
    pub(super) fn served(
        &self,
        kind: DomainKind,
        hvm: Option<&HvmSettings>,
        found: &mut Findings,
    ) -> ServedDevices {
        let channels = self.channels(found);
        let screen = self.screen_of(kind, found);
        let keyboards = self.keyboards(u32::from(screen.is_some()), found);
        let served = ServedDevices {
            channels,
            screen,
            keyboards,
            folders: self.folders(found),
            arguments: Vec::new(),
            program: None,
        };
        if hvm.is_some_and(|hvm| hvm.model_user != ModelUser::Root) {
            for (key, any) in [
                ("channel", !served.channels.is_empty()),
                ("vkb", !served.keyboards.is_empty()),
                ("p9", !served.folders.is_empty()),
            ] {
                let problem = "an HVM domain's device model serves it only with dm_restrict = 0: \
                               it must reach the store and other grants than its guest's";
                if any {
                    found.faults.push(self.error(key, self.place(key), problem));
                }
            }
            return ServedDevices::default();
        }
        if kind == DomainKind::Hvm {
            return served;
        }
        let program = found.take(self.path("device_model_override")).map(str::to_owned);
        let mut arguments = found.take(self.words("device_model_args"));
        arguments.extend(found.take(self.words("device_model_args_pv")));
        match served.any() {
            true => ServedDevices { arguments, program, ..served },
            false => served,
        }
    }

    /// Each item of a list.
    pub(super) fn each<T>(
        &self,
        key: &str,
        parse: fn(&str) -> std::result::Result<T, String>,
        found: &mut Findings,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for (name, text, place) in found.take(self.list(key)) {
            match parse(text) {
                Ok(one) => all.push(one),
                Err(problem) => found.faults.push(self.error(&name, place, problem)),
            }
        }
        all
    }

    /// Numbers grow, if any are given, which xl does not take: a record keeps them.
    fn keyboards(&self, first: u32, found: &mut Findings) -> Vec<KeyboardConfig> {
        let keyboards = self.each("vkb", keyboard, found);
        let mut next = first;
        for (at, one) in keyboards.iter().enumerate() {
            let devid = one.devid.unwrap_or(next);
            if devid < next {
                let problem = format!("devid={devid} is not after those before it");
                let (name, place) = (format!("vkb[{at}]"), self.place("vkb"));
                found.faults.push(self.error(&name, place, problem));
            }
            next = devid + 1;
        }
        keyboards
    }

    /// Two cannot have one socket; programs of the guest take the first of a name.
    fn channels(&self, found: &mut Findings) -> Vec<ChannelConfig> {
        let channels = self.each("channel", channel, found);
        for (at, one) in channels.iter().enumerate() {
            let before = &channels[..at];
            let same_socket = |other: &ChannelConfig| {
                matches!(one.connection, Connection::Socket(_))
                    && other.connection == one.connection
            };
            let problem = if before.iter().any(|other| other.name == one.name) {
                format!("name {} is used by another channel already", shown(&one.name))
            } else if before.iter().any(same_socket) {
                "its path is another channel's already".to_owned()
            } else {
                continue;
            };
            let key = format!("channel[{at}]");
            found.faults.push(self.error(&key, self.place("channel"), problem));
        }
        channels
    }

    fn folders(&self, found: &mut Findings) -> Vec<FolderConfig> {
        let folders = self.each("p9", folder, found);
        for (at, one) in folders.iter().enumerate() {
            if folders[..at].iter().any(|other| other.tag == one.tag) {
                let problem = format!("tag {} is used by another folder already", shown(&one.tag));
                found.faults.push(self.error(&format!("p9[{at}]"), self.place("p9"), problem));
            }
        }
        folders
    }

    /// By `vfb`, or by `vnc` and its keys as HVM domains have them.
    fn screen_of(&self, kind: DomainKind, found: &mut Findings) -> Option<ScreenConfig> {
        let warn = |found: &mut Findings, key: &str, place: Place, problem: &str| {
            found.warnings.push(self.error(key, place, problem));
        };
        let screens = found.take(self.list("vfb"));
        let wants_vnc = found.take(self.flag("vnc", false));
        if kind == DomainKind::Hvm {
            if let Some((key, _, place)) = screens.first() {
                warn(found, key, *place, "ignored: an HVM domain has a screen of its own; see vnc");
            }
            return None;
        }
        if let Some((key, _, place)) = screens.get(1) {
            warn(found, key, *place, "ignored: QEMU shows the first one only");
        }
        match screens.first() {
            Some((key, text, place)) => {
                if wants_vnc {
                    warn(found, "vnc", self.place("vnc"), "ignored, as xl ignores it beside vfb");
                }
                match screen(text) {
                    Ok((screen, ignored)) => {
                        for problem in ignored {
                            warn(found, key, *place, &problem);
                        }
                        Some(screen)
                    }
                    Err(problem) => {
                        found.faults.push(self.error(key, *place, problem));
                        None
                    }
                }
            }
            None if wants_vnc => {
                let (vnc, keymap) = (found.take(self.vnc()), found.take(self.plain("keymap")));
                Some(ScreenConfig { vnc, keymap })
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_a_name_and_a_connection() {
        let pty = channel("connection=pty, name = org.my.agent").unwrap();
        assert_eq!((pty.name.as_str(), pty.connection), ("org.my.agent", Connection::Pty));
        let socket = channel("connection=socket,path=/run/a b,name=x,backend=0").unwrap();
        assert_eq!(socket.connection, Connection::Socket("/run/a b".to_owned()));
        for (text, problem) in [
            ("", "name is missing: the guest finds a channel by it"),
            ("name=x", "connection is missing; expected pty or socket"),
            ("name=x,connection=tcp", "connection: \"tcp\": expected pty or socket"),
            ("name=x,connection=socket", "connection=socket needs path="),
            ("name=x,connection", "\"connection\": expected key=value"),
            ("name=x,name=y,connection=pty", "\"name\" is given twice"),
            ("name=x,connection=pty,speed=1", "unknown parameter \"speed\""),
            (
                "name=x,connection=pty,backend=net",
                "backend=net: QEMU serves it, which runs in domain 0",
            ),
        ] {
            assert_eq!(channel(text), Err(problem.to_owned()), "{text}");
        }
        let long = format!("name=x,connection=socket,path=/{}", "x".repeat(SOCKET_BYTES_MAX));
        assert!(channel(&long).is_err());
        assert!(channel(&long[..long.len() - 1]).is_ok());
    }

    #[test]
    fn a_keyboard_says_who_serves_it() {
        let one =
            keyboard("backend-type=qemu,width=800,unique-id=k,feature-abs-pointer=0").unwrap();
        assert_eq!((one.unique_id.as_deref(), one.numbers), (Some("k"), vec![("width", 800)]));
        let touch = keyboard("backend-type=qemu,multi-touch-width=5").unwrap();
        assert_eq!(touch.numbers, [(MULTI_TOUCH, 1), ("multi-touch-width", 5)]);
        for text in [
            "",
            "backend-type=linux",
            "backend-type=qemu,feature-multi-touch=1",
            "backend-type=qemu,x=1",
        ] {
            assert!(keyboard(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_folder_has_a_tag_a_path_and_a_model() {
        let one = folder("tag=share,path=/srv/x,security_model=mapped").unwrap();
        assert_eq!(one.security_model, SecurityModel::MappedXattr);
        for text in [
            "tag=share,path=/srv",
            "path=/srv,security_model=none",
            "tag=share,security_model=none",
            "tag=share,path=/srv,security_model=some",
            "tag=share,path=/srv,security_model=none,max-files=5",
            "tag=share,path=/srv,security_model=none,type=xen_9pfsd",
            "tag=0123456789abcdef0123456789abcdef,path=/srv,security_model=none",
        ] {
            assert!(folder(text).is_err(), "{text}");
        }
    }
}
