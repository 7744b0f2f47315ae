//! Devices that QEMU serves, to JSON and from it.

use serde_json::{Map, Value, json};
use xen::DomainKind;

use super::read::{Node, Result};
use super::write::{defbool, set};
use crate::config::{
    ChannelConfig, Connection, FolderConfig, KeyboardConfig, ScreenConfig, SecurityModel,
    ServedDevices, VmConfig, Vnc, numbered,
};

/// libxl's names of a keyboard's numbers.
const KEYBOARD_FIELDS: [(&str, &str); 10] = [
    ("feature-abs-pointer", "feature_abs_pointer"),
    ("feature-disable-keyboard", "feature_disable_keyboard"),
    ("feature-disable-pointer", "feature_disable_pointer"),
    ("feature-multi-touch", "feature_multi_touch"),
    ("feature-raw-pointer", "feature_raw_pointer"),
    ("height", "height"),
    ("multi-touch-height", "multi_touch_height"),
    ("multi-touch-num-contacts", "multi_touch_num_contacts"),
    ("multi-touch-width", "multi_touch_width"),
    ("width", "width"),
];

pub(super) fn put(config: &VmConfig, whole: &mut Value) {
    let served = &config.served;
    let lists: [(&str, Vec<Value>); 4] = [
        ("channels", served.channels.iter().zip(1..).map(channel).collect()),
        ("vfbs", served.screen.iter().map(screen).collect()),
        ("vkbs", served.all_keyboards().iter().map(keyboard).collect()),
        ("p9s", served.folders.iter().zip(0..).map(folder).collect()),
    ];
    for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        whole[key] = list.into();
    }
    if config.hvm.is_some() {
        return;
    }
    if let Some(program) = &served.program {
        whole["b_info"]["device_model"] = json!(program);
    }
    if !served.arguments.is_empty() {
        whole["b_info"]["extra_pv"] = json!(served.arguments);
    }
}

fn channel((channel, devid): (&ChannelConfig, u32)) -> Value {
    let mut fields = json!({ "devid": devid, "name": channel.name });
    match &channel.connection {
        Connection::Pty => fields["connection.pty"] = json!({}),
        Connection::Socket(path) => fields["connection.socket"] = json!({ "path": path }),
    }
    fields
}

fn screen(screen: &ScreenConfig) -> Value {
    let mut vnc = Map::new();
    set(&mut vnc, [("enable", Some(defbool(screen.vnc.is_some())))]);
    if let Some(it) = &screen.vnc {
        set(&mut vnc, [("listen", Some(&*it.listen)), ("passwd", it.password.as_deref())]);
        if let Some(display) = it.display {
            vnc.insert("display".to_owned(), display.into());
            vnc.insert("findunused".to_owned(), "False".into());
        }
    }
    let mut fields = json!({ "devid": 0, "vnc": vnc });
    if let Some(keymap) = &screen.keymap {
        fields["keymap"] = json!(keymap);
    }
    fields
}

fn keyboard((devid, keyboard): &(u32, KeyboardConfig)) -> Value {
    let mut fields = json!({ "devid": devid, "backend_type": "qemu" });
    if let Some(id) = &keyboard.unique_id {
        fields["unique_id"] = json!(id);
    }
    for (key, number) in &keyboard.numbers {
        let field = KEYBOARD_FIELDS.iter().find(|(name, _)| name == key);
        let (_, field) = field.expect("the reader knows no others");
        // libxl has flags for what can be on or off.
        fields[*field] = match key.starts_with("feature-") {
            true => json!(true),
            false => json!(number),
        };
    }
    fields
}

fn folder((folder, devid): (&FolderConfig, u32)) -> Value {
    let FolderConfig { tag, path, security_model } = folder;
    let model = security_model.as_str();
    json!({ "devid": devid, "tag": tag, "path": path, "security_model": model })
}

pub(super) fn read(root: &Node<'_>, build: &Node<'_>, kind: DomainKind) -> Result<ServedDevices> {
    let channels = each(root, "channels", read_channel)?;
    let folders = each(root, "p9s", read_folder)?;
    let screens = root.objects("vfbs")?;
    let screen = screens.first().filter(|_| kind != DomainKind::Hvm);
    let screen = screen.map(read_screen).transpose()?;
    let keyboards = read_keyboards(root, screen.is_some())?;
    let served = ServedDevices { channels, screen, keyboards, folders, ..ServedDevices::default() };
    if kind == DomainKind::Hvm || !served.any() {
        return Ok(served);
    }
    let (arguments, program) = (build.texts("extra_pv")?, build.owned("device_model")?);
    Ok(ServedDevices { arguments, program, ..served })
}

fn read_keyboards(root: &Node<'_>, has_screen: bool) -> Result<Vec<KeyboardConfig>> {
    let mut keyboards = each(root, "vkbs", read_keyboard)?;
    // The screen's own is the first.
    let plain = KeyboardConfig::default();
    if has_screen && keyboards.first().is_some_and(|(_, first)| *first == plain) {
        keyboards.remove(0);
    }
    let first = u32::from(has_screen);
    let devids: Vec<u32> = keyboards.iter().filter_map(|(devid, _)| *devid).collect();
    let are_known = devids.len() == keyboards.len()
        && devids.first().is_none_or(|devid| *devid >= first)
        && devids.is_sorted_by(|one, other| one < other);
    let keyboards = keyboards.into_iter().map(|(_, keyboard)| keyboard);
    Ok(match are_known {
        true => numbered(devids.into_iter().zip(keyboards).collect(), first),
        false => keyboards.collect(),
    })
}

/// The devices of a list, which domain 0 serves.
fn each<T>(root: &Node<'_>, key: &str, read: fn(&Node<'_>) -> Result<T>) -> Result<Vec<T>> {
    let one = |node: Node<'_>| node.refuse_other_backend().and_then(|()| read(&node));
    root.objects(key)?.into_iter().map(one).collect()
}

fn read_channel(node: &Node<'_>) -> Result<ChannelConfig> {
    let name = node.owned("name")?.ok_or_else(|| node.error("name", "is missing"))?;
    let socket = node.object("connection.socket")?;
    let connection = match (socket, node.object("connection.pty")?) {
        (Some(socket), _) => {
            let path = socket.owned("path")?;
            Connection::Socket(path.ok_or_else(|| socket.error("path", "is missing"))?)
        }
        (None, Some(_)) => Connection::Pty,
        (None, None) => return Err(node.error("connection", "expected a pty or a socket")),
    };
    Ok(ChannelConfig { name, connection })
}

fn read_folder(node: &Node<'_>) -> Result<FolderConfig> {
    let text = |key| node.owned(key)?.ok_or_else(|| node.error(key, "is missing"));
    let model = node.choice("security_model", &SecurityModel::ALL, SecurityModel::as_str)?;
    Ok(FolderConfig {
        tag: text("tag")?,
        path: text("path")?,
        security_model: model.ok_or_else(|| node.error("security_model", "is missing"))?,
    })
}

fn read_screen(node: &Node<'_>) -> Result<ScreenConfig> {
    let keymap = node.owned("keymap")?;
    let Some(vnc) = node.object("vnc")? else { return Ok(ScreenConfig { vnc: None, keymap }) };
    if vnc.flag("enable")? == Some(false) {
        return Ok(ScreenConfig { vnc: None, keymap });
    }
    let listen = vnc.owned("listen")?.unwrap_or_else(|| "127.0.0.1".to_owned());
    // A display that xl may change is none that was asked for.
    let is_fixed = vnc.flag("findunused")? == Some(false);
    let display = if is_fixed { vnc.narrow::<u16>("display")? } else { None };
    let password = vnc.owned("passwd")?;
    Ok(ScreenConfig { vnc: Some(Vnc { listen, display, password }), keymap })
}

/// With its number.
fn read_keyboard(node: &Node<'_>) -> Result<(Option<u32>, KeyboardConfig)> {
    let is_linux = node.text("backend_type")? == Some("linux");
    node.refuse_if("backend_type", is_linux, "only QEMU serves keyboards here")?;
    let mut numbers = Vec::new();
    for (key, field) in KEYBOARD_FIELDS {
        let number = match key.starts_with("feature-") {
            true => u32::from(node.flag(field)? == Some(true)),
            false => node.narrow::<u32>(field)?.unwrap_or_default(),
        };
        if number != 0 {
            numbers.push((key, number));
        }
    }
    let keyboard = KeyboardConfig { devid: None, unique_id: node.owned("unique_id")?, numbers };
    // libxl has -1 for one that has none yet.
    let devid = node.get("devid").and_then(Value::as_u64);
    let devid = devid.and_then(|devid| u32::try_from(devid).ok());
    Ok((devid, keyboard))
}

#[cfg(test)]
mod tests {
    use super::super::{from_json, to_json};
    use crate::config::VmConfig;
    use crate::xlcfg;

    #[test]
    fn what_qemu_serves_is_read_back() {
        let text = "name = 'w'\nkernel = '/k'\nmemory = 64\n\
                    uuid = '01234567-89ab-cdef-0123-456789abcdef'\n\
                    channel = ['connection=socket,path=/run/b,name=b', 'connection=pty,name=c']\n\
                    vfb = ['vncpasswd=secret,vncdisplay=5,keymap=de']\n\
                    vkb = ['backend-type=qemu,width=800,feature-raw-pointer=1,unique-id=x']\n\
                    p9 = ['tag=t,path=/srv,security_model=mapped-file']\n\
                    device_model_args_pv = ['-d']\ndevice_model_override = '/q'\n";
        let config = xlcfg::parse(xlcfg::Source { file: "w.cfg", text, overrides: &[] }).unwrap();
        let json = to_json(&config).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let shown =
            ["channels", "vfbs", "vkbs", "p9s"].map(|key| format!("{key}: {}\n", value[key]));
        expect_test::expect![[r#"
            channels: [{"connection.socket":{"path":"/run/b"},"devid":1,"name":"b"},{"connection.pty":{},"devid":2,"name":"c"}]
            vfbs: [{"devid":0,"keymap":"de","vnc":{"display":5,"enable":"True","findunused":"False","listen":"127.0.0.1","passwd":"secret"}}]
            vkbs: [{"backend_type":"qemu","devid":0},{"backend_type":"qemu","devid":1,"feature_raw_pointer":true,"unique_id":"x","width":800}]
            p9s: [{"devid":0,"path":"/srv","security_model":"mapped-file","tag":"t"}]
        "#]].assert_eq(&shown.concat());
        let read: VmConfig = from_json("w", &json).unwrap().config;
        assert_eq!(read.served, config.served);
    }
}
