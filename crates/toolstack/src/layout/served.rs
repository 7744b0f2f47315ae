//! Nodes of devices that QEMU serves, as libxl writes them.
//!
//! Source: xen `tools/libs/light/libxl_console.c`, `libxl_vkb.c`, `libxl_9pfs.c`.

use xen::DomId;
use xenstore::{Access, Permission};

use super::hvm::vnc_nodes;
use super::{DOM0_ONLY, DeviceKind, DeviceRef, Nodes, device_ends, device_states};
use crate::config::{ChannelConfig, Connection, KeyboardConfig, ScreenConfig, VmConfig};
use crate::device_model;

/// Bytes that a console's daemon keeps.
const CONSOLE_LIMIT: &str = "1048576";
const CONSOLE_PROTOCOL: &str = "vt100";

/// The devices of a VM that QEMU serves.
#[must_use]
pub fn devices(config: &VmConfig) -> Vec<DeviceRef> {
    let served = &config.served;
    let of = |kind, first, count: usize| {
        (first..).take(count).map(move |devid| DeviceRef { kind, devid })
    };
    // Console 0 is every domain's own.
    of(DeviceKind::Console, 1, served.channels.len())
        .chain(of(DeviceKind::Vfb, 0, usize::from(served.screen.is_some())))
        .chain(
            served
                .all_keyboards()
                .into_iter()
                .map(|(devid, _)| DeviceRef { kind: DeviceKind::Vkbd, devid }),
        )
        .chain(of(DeviceKind::NinePfs, 0, served.folders.len()))
        .collect()
}

pub(super) fn nodes(nodes: &mut Nodes, domid: DomId, config: &VmConfig) {
    let served = &config.served;
    for (channel, devid) in served.channels.iter().zip(1..) {
        channel_nodes(nodes, domid, devid, channel);
    }
    if let Some(screen) = &served.screen {
        screen_nodes(nodes, domid, screen);
        vnc_nodes(nodes, domid, screen.vnc.as_ref());
    }
    for (devid, keyboard) in &served.all_keyboards() {
        keyboard_nodes(nodes, domid, *devid, keyboard);
    }
    for (folder, devid) in served.folders.iter().zip(0..) {
        let device = DeviceRef { kind: DeviceKind::NinePfs, devid };
        let (frontend, backend) = device_ends(nodes, device.in_domain_0(domid));
        nodes.put(format!("{frontend}/tag"), &folder.tag);
        for (key, value) in
            [("path", folder.path.as_str()), ("security_model", folder.security_model.as_str())]
        {
            put_backend(nodes, domid, device, key, value);
        }
        device_states(nodes, &frontend, &backend);
    }
}

/// The nodes of a hotplugged keyboard.
#[must_use]
pub fn plugged_keyboard(domid: DomId, devid: u32, keyboard: &KeyboardConfig) -> Nodes {
    let mut nodes = Nodes::default();
    keyboard_nodes(&mut nodes, domid, devid, keyboard);
    nodes
}

/// In the backend's directory and in libxl's copy of it.
fn put_backend(nodes: &mut Nodes, domid: DomId, device: DeviceRef, key: &str, value: &str) {
    nodes.put(format!("{}/{key}", device.in_domain_0(domid).backend_path()), value);
    nodes.put(format!("{}/{key}", device.libxl(domid)), value);
}

fn channel_nodes(nodes: &mut Nodes, domid: DomId, devid: u32, channel: &ChannelConfig) {
    let device = DeviceRef { kind: DeviceKind::Console, devid };
    let (frontend, backend) = device_ends(nodes, device.in_domain_0(domid));
    nodes.put(format!("{frontend}/protocol"), CONSOLE_PROTOCOL);
    let output = match &channel.connection {
        Connection::Pty => "pty".to_owned(),
        Connection::Socket(_) => format!("chardev:{}", device_model::channel_name(devid)),
    };
    // Programs of domain 0 believe these: the guest may not write them.
    let guest_reads = [DOM0_ONLY, Permission::new(Access::Read, domid)];
    for (key, value) in [
        ("name", channel.name.as_str()),
        ("limit", CONSOLE_LIMIT),
        ("type", "ioemu"),
        ("output", &output),
        ("tty", ""),
    ] {
        nodes.put_with(format!("{frontend}/{key}"), value, &guest_reads);
    }
    put_backend(nodes, domid, device, "name", &channel.name);
    put_backend(nodes, domid, device, "connection", channel.connection.as_str());
    if let Connection::Socket(path) = &channel.connection {
        put_backend(nodes, domid, device, "path", path);
    }
    put_backend(nodes, domid, device, "protocol", CONSOLE_PROTOCOL);
    device_states(nodes, &frontend, &backend);
}

/// The password is QEMU's alone: the guest may read what is here.
fn screen_nodes(nodes: &mut Nodes, domid: DomId, screen: &ScreenConfig) {
    let device = DeviceRef { kind: DeviceKind::Vfb, devid: 0 };
    let (frontend, backend) = device_ends(nodes, device.in_domain_0(domid));
    let flag = |on: bool| if on { "1" } else { "0" };
    put_backend(nodes, domid, device, "vnc", flag(screen.vnc.is_some()));
    if let Some(vnc) = &screen.vnc {
        let display = device_model::vnc_display(vnc, domid);
        put_backend(nodes, domid, device, "vnclisten", &vnc.listen);
        put_backend(nodes, domid, device, "vncdisplay", &display.to_string());
        put_backend(nodes, domid, device, "vncunused", "0");
    }
    put_backend(nodes, domid, device, "sdl", "0");
    put_backend(nodes, domid, device, "opengl", "0");
    device_states(nodes, &frontend, &backend);
}

fn keyboard_nodes(nodes: &mut Nodes, domid: DomId, devid: u32, keyboard: &KeyboardConfig) {
    let device = DeviceRef { kind: DeviceKind::Vkbd, devid };
    let (frontend, backend) = device_ends(nodes, device.in_domain_0(domid));
    if let Some(id) = &keyboard.unique_id {
        put_backend(nodes, domid, device, "unique-id", id);
    }
    for (key, number) in &keyboard.numbers {
        put_backend(nodes, domid, device, key, &number.to_string());
    }
    device_states(nodes, &frontend, &backend);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xlcfg;

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn the_nodes_of_each_kind() {
        let text = "name = 'w'\nkernel = '/k'\nmemory = 64\n\
                    channel = ['connection=socket,path=/run/b,name=b']\nvfb = ['vncpasswd=secret']\n\
                    vkb = ['backend-type=qemu,width=800']\n\
                    p9 = ['tag=t,path=/srv,security_model=none']\n";
        let config = xlcfg::parse(xlcfg::Source { file: "w.cfg", text, overrides: &[] }).unwrap();
        let mut all = Nodes::default();
        nodes(&mut all, DomId(7), &config);
        let line = |node: &super::super::Node| {
            let guest_may_not_write = node
                .permissions
                .as_ref()
                .is_some_and(|permissions| permissions[0].domid == DomId::DOM0);
            let mark = if guest_may_not_write { " (dom0's)" } else { "" };
            format!("{} = {:?}{mark}\n", node.path, node.value)
        };
        let text: String = all.0.iter().map(line).collect();
        // The guest may read its backends.
        assert!(!text.contains("secret"));
        expect_test::expect![[r#"
            /local/domain/7/device/console/1 = ""
            /local/domain/0/backend/console/7/1 = "" (dom0's)
            /local/domain/7/device/console/1/backend = "/local/domain/0/backend/console/7/1"
            /local/domain/7/device/console/1/backend-id = "0"
            /local/domain/0/backend/console/7/1/frontend = "/local/domain/7/device/console/1"
            /local/domain/0/backend/console/7/1/frontend-id = "7"
            /local/domain/0/backend/console/7/1/online = "1"
            /libxl/7/device/console/1/frontend = "/local/domain/7/device/console/1"
            /libxl/7/device/console/1/backend = "/local/domain/0/backend/console/7/1"
            /libxl/7/device/console/1/frontend-id = "7"
            /local/domain/7/device/console/1/protocol = "vt100"
            /local/domain/7/device/console/1/name = "b" (dom0's)
            /local/domain/7/device/console/1/limit = "1048576" (dom0's)
            /local/domain/7/device/console/1/type = "ioemu" (dom0's)
            /local/domain/7/device/console/1/output = "chardev:libxl-channel1" (dom0's)
            /local/domain/7/device/console/1/tty = "" (dom0's)
            /local/domain/0/backend/console/7/1/name = "b"
            /libxl/7/device/console/1/name = "b"
            /local/domain/0/backend/console/7/1/connection = "socket"
            /libxl/7/device/console/1/connection = "socket"
            /local/domain/0/backend/console/7/1/path = "/run/b"
            /libxl/7/device/console/1/path = "/run/b"
            /local/domain/0/backend/console/7/1/protocol = "vt100"
            /libxl/7/device/console/1/protocol = "vt100"
            /local/domain/7/device/console/1/state = "1"
            /local/domain/0/backend/console/7/1/state = "1"
            /local/domain/7/device/vfb/0 = ""
            /local/domain/0/backend/vfb/7/0 = "" (dom0's)
            /local/domain/7/device/vfb/0/backend = "/local/domain/0/backend/vfb/7/0"
            /local/domain/7/device/vfb/0/backend-id = "0"
            /local/domain/0/backend/vfb/7/0/frontend = "/local/domain/7/device/vfb/0"
            /local/domain/0/backend/vfb/7/0/frontend-id = "7"
            /local/domain/0/backend/vfb/7/0/online = "1"
            /libxl/7/device/vfb/0/frontend = "/local/domain/7/device/vfb/0"
            /libxl/7/device/vfb/0/backend = "/local/domain/0/backend/vfb/7/0"
            /libxl/7/device/vfb/0/frontend-id = "7"
            /local/domain/0/backend/vfb/7/0/vnc = "1"
            /libxl/7/device/vfb/0/vnc = "1"
            /local/domain/0/backend/vfb/7/0/vnclisten = "127.0.0.1"
            /libxl/7/device/vfb/0/vnclisten = "127.0.0.1"
            /local/domain/0/backend/vfb/7/0/vncdisplay = "7"
            /libxl/7/device/vfb/0/vncdisplay = "7"
            /local/domain/0/backend/vfb/7/0/vncunused = "0"
            /libxl/7/device/vfb/0/vncunused = "0"
            /local/domain/0/backend/vfb/7/0/sdl = "0"
            /libxl/7/device/vfb/0/sdl = "0"
            /local/domain/0/backend/vfb/7/0/opengl = "0"
            /libxl/7/device/vfb/0/opengl = "0"
            /local/domain/7/device/vfb/0/state = "1"
            /local/domain/0/backend/vfb/7/0/state = "1"
            /local/domain/7/console/vnc-listen = "127.0.0.1"
            /local/domain/7/console/vnc-port = "5907"
            /local/domain/7/device/vkbd/0 = ""
            /local/domain/0/backend/vkbd/7/0 = "" (dom0's)
            /local/domain/7/device/vkbd/0/backend = "/local/domain/0/backend/vkbd/7/0"
            /local/domain/7/device/vkbd/0/backend-id = "0"
            /local/domain/0/backend/vkbd/7/0/frontend = "/local/domain/7/device/vkbd/0"
            /local/domain/0/backend/vkbd/7/0/frontend-id = "7"
            /local/domain/0/backend/vkbd/7/0/online = "1"
            /libxl/7/device/vkbd/0/frontend = "/local/domain/7/device/vkbd/0"
            /libxl/7/device/vkbd/0/backend = "/local/domain/0/backend/vkbd/7/0"
            /libxl/7/device/vkbd/0/frontend-id = "7"
            /local/domain/7/device/vkbd/0/state = "1"
            /local/domain/0/backend/vkbd/7/0/state = "1"
            /local/domain/7/device/vkbd/1 = ""
            /local/domain/0/backend/vkbd/7/1 = "" (dom0's)
            /local/domain/7/device/vkbd/1/backend = "/local/domain/0/backend/vkbd/7/1"
            /local/domain/7/device/vkbd/1/backend-id = "0"
            /local/domain/0/backend/vkbd/7/1/frontend = "/local/domain/7/device/vkbd/1"
            /local/domain/0/backend/vkbd/7/1/frontend-id = "7"
            /local/domain/0/backend/vkbd/7/1/online = "1"
            /libxl/7/device/vkbd/1/frontend = "/local/domain/7/device/vkbd/1"
            /libxl/7/device/vkbd/1/backend = "/local/domain/0/backend/vkbd/7/1"
            /libxl/7/device/vkbd/1/frontend-id = "7"
            /local/domain/0/backend/vkbd/7/1/width = "800"
            /libxl/7/device/vkbd/1/width = "800"
            /local/domain/7/device/vkbd/1/state = "1"
            /local/domain/0/backend/vkbd/7/1/state = "1"
            /local/domain/7/device/9pfs/0 = ""
            /local/domain/0/backend/9pfs/7/0 = "" (dom0's)
            /local/domain/7/device/9pfs/0/backend = "/local/domain/0/backend/9pfs/7/0"
            /local/domain/7/device/9pfs/0/backend-id = "0"
            /local/domain/0/backend/9pfs/7/0/frontend = "/local/domain/7/device/9pfs/0"
            /local/domain/0/backend/9pfs/7/0/frontend-id = "7"
            /local/domain/0/backend/9pfs/7/0/online = "1"
            /libxl/7/device/9pfs/0/frontend = "/local/domain/7/device/9pfs/0"
            /libxl/7/device/9pfs/0/backend = "/local/domain/0/backend/9pfs/7/0"
            /libxl/7/device/9pfs/0/frontend-id = "7"
            /local/domain/7/device/9pfs/0/tag = "t"
            /local/domain/0/backend/9pfs/7/0/path = "/srv"
            /libxl/7/device/9pfs/0/path = "/srv"
            /local/domain/0/backend/9pfs/7/0/security_model = "none"
            /libxl/7/device/9pfs/0/security_model = "none"
            /local/domain/7/device/9pfs/0/state = "1"
            /local/domain/0/backend/9pfs/7/0/state = "1"
        "#]]
        .assert_eq(&text);
        let kept = xlcfg::parse(xlcfg::Source {
            file: "w.cfg",
            text: &config.to_cfg_text(),
            overrides: &[],
        });
        assert_eq!(kept.unwrap().served, config.served);
    }
}
