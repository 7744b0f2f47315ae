//! Hotplug scripts: programs of the host that connect a device to it, and disconnect it.
//!
//! Which is run when, with what, and what came of it. Sources: xen `tools/libs/light/libxl_linux.c`, `libxl_device.c`,
//! `docs/misc/block-scripts.txt` and `tools/hotplug/Linux`.

use storage::{BlockDevice, DeviceNumber};
use xen::DomId;

use crate::config::{VifConfig, VmConfig};
use crate::device_model;
use crate::layout::{self, DeviceKind, DeviceRef};
use crate::plan::ConnectedBy;

/// Where scripts are that are named without a path.
pub const FOLDER: &str = "/etc/xen/scripts";
/// The one whose work is done without it.
pub const VIF_BRIDGE: &str = "/etc/xen/scripts/vif-bridge";
/// The same for disks.
pub const BLOCK: &str = "/etc/xen/scripts/block";
/// How long a script may take, as for libxl.
pub const SECONDS: u64 = 40;

/// The path of a script, as libxl has it.
#[must_use]
pub fn path(name: &str) -> String {
    match name.starts_with('/') {
        true => name.to_owned(),
        false => format!("{FOLDER}/{name}"),
    }
}

/// What a script is to do with its device.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Way {
    Connect,
    Disconnect,
}

/// One run of a script.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScriptRun {
    /// Its path.
    pub program: String,
    pub arguments: Vec<&'static str>,
    /// In addition to the usual.
    pub environment: Vec<(&'static str, String)>,
    pub seconds: u64,
}

/// How a run has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScriptEnd {
    /// `None` if it succeeded; otherwise as in `failed with status 1`.
    pub problem: Option<String>,
    /// The end of what it said.
    pub words: String,
}

/// The runs that connect a device, and those that disconnect it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Scripts {
    pub connect: Vec<ScriptRun>,
    pub disconnect: Vec<ScriptRun>,
}

impl Scripts {
    pub(crate) fn of(&self, way: Way) -> &[ScriptRun] {
        match way {
            Way::Connect => &self.connect,
            Way::Disconnect => &self.disconnect,
        }
    }
}

/// The path of a device's script, if it has one that is run here. A driver domain runs those of its devices, and the networks
/// that Xen's scripts make are ours.
#[must_use]
pub fn script_of(config: &VmConfig, device: DeviceRef) -> Option<String> {
    if ConnectedBy::of(config, device) != ConnectedBy::Script {
        return None;
    }
    let name = match device.kind {
        DeviceKind::Vif => config.vifs.iter().find(|it| it.devid == device.devid)?.script.as_ref(),
        DeviceKind::Vbd => {
            let disk = config.disks.iter().find(|it| it.vdev.number == device.devid)?;
            disk.script.as_ref()
        }
        DeviceKind::Console
        | DeviceKind::Vfb
        | DeviceKind::Vkbd
        | DeviceKind::NinePfs
        | DeviceKind::Pci => None,
    };
    name.map(|name| path(name))
}

/// Why a VM that another host sends may not have its scripts run here: they are run as root, and only what this host's
/// operator has put in place is.
#[must_use]
pub fn foreign_problem(config: &VmConfig) -> Option<String> {
    layout::devices(config).into_iter().find_map(|device| {
        let script = script_of(config, device)?;
        let name = script.strip_prefix(FOLDER).and_then(|it| it.strip_prefix('/'));
        let is_in_place = name.is_some_and(|name| !name.contains('/'));
        (!is_in_place).then(|| {
            format!(
                "{}: the script {script} of its {} is not in {FOLDER}, where those of VMs of other hosts have to be",
                config.name,
                device.spoken()
            )
        })
    })
}

/// The runs for a device of a domain; `None` if it has no script.
#[must_use]
pub fn scripts(config: &VmConfig, domid: DomId, device: DeviceRef) -> Option<Scripts> {
    let program = script_of(config, device)?;
    let vif = config.vifs.iter().find(|it| it.devid == device.devid);
    let runs = |way| match vif.filter(|_| device.kind == DeviceKind::Vif) {
        Some(vif) => vif_runs(&program, domid, device, vif, way),
        None => vec![disk_run(&program, domid, device, way)],
    };
    Some(Scripts { connect: runs(Way::Connect), disconnect: runs(Way::Disconnect) })
}

/// What all scripts have in their environment.
fn environment(program: &str, domid: DomId, device: DeviceRef) -> Vec<(&'static str, String)> {
    let kind = device.kind.as_str();
    vec![
        ("script", program.to_owned()),
        ("XENBUS_TYPE", kind.to_owned()),
        ("XENBUS_PATH", format!("backend/{kind}/{domid}/{}", device.devid)),
        ("XENBUS_BASE_PATH", "backend".to_owned()),
    ]
}

/// An emulated card has an interface of its own, for which the script is run once more.
fn vif_runs(
    program: &str,
    domid: DomId,
    device: DeviceRef,
    vif: &VifConfig,
    way: Way,
) -> Vec<ScriptRun> {
    let mut environment = environment(program, domid, device);
    environment.push(("netdev", vif.gateway.clone().unwrap_or_default()));
    if vif.model.is_some() {
        environment.push(("INTERFACE", device_model::vif_link(domid, vif)));
    }
    environment.push(("vif", layout::vif_link(domid, vif)));
    let run = |arguments: [&'static str; 2]| ScriptRun {
        program: program.to_owned(),
        arguments: arguments.to_vec(),
        environment: environment.clone(),
        seconds: SECONDS,
    };
    let (of_vif, of_tap) = match way {
        Way::Connect => ("online", "add"),
        Way::Disconnect => ("offline", "remove"),
    };
    let tap = vif.model.is_some().then(|| run([of_tap, "type_if=tap"]));
    std::iter::once(run([of_vif, "type_if=vif"])).chain(tap).collect()
}

/// What the disk is, its script reads in the store, and writes there.
fn disk_run(program: &str, domid: DomId, device: DeviceRef, way: Way) -> ScriptRun {
    let argument = match way {
        Way::Connect => "add",
        Way::Disconnect => "remove",
    };
    ScriptRun {
        program: program.to_owned(),
        arguments: vec![argument],
        environment: environment(program, domid, device),
        seconds: SECONDS,
    }
}

/// The block device that a script has connected, of what it wrote to the store: a number is what the backend needs, and a
/// path what a device model needs.
#[must_use]
pub fn connected_device(number: &str, path: &str) -> Option<BlockDevice> {
    let number = device_number(number)?;
    let path = match path {
        "" => format!("/dev/block/{}:{}", number.major, number.minor),
        path => path.to_owned(),
    };
    Some(BlockDevice { path, number })
}

/// `7:0`, both parts in hexadecimal.
pub(crate) fn device_number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.split_once(':')?;
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    Some(DeviceNumber { major: hex(major)?, minor: hex(minor)? })
}

/// How far a device's script is, as a node of the device says. It is written before a script begins and after it has ended,
/// and goes with the device's nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mark {
    /// It may be connected, or half so.
    Begun,
    Connected,
    Disconnected,
}

impl Mark {
    const ALL: [Self; 3] = [Self::Begun, Self::Connected, Self::Disconnected];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
        }
    }

    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str().as_bytes() == bytes)
    }
}

/// What has to be run to get there. A script that a killed daemon had begun is undone before it is run again: nothing says
/// that a script may be run twice.
#[must_use]
pub fn needed(mark: Option<Mark>, way: Way) -> &'static [Way] {
    match (mark, way) {
        (None | Some(Mark::Disconnected), Way::Connect) => &[Way::Connect],
        (Some(Mark::Begun), Way::Connect) => &[Way::Disconnect, Way::Connect],
        (Some(Mark::Connected), Way::Connect) | (Some(Mark::Disconnected), Way::Disconnect) => &[],
        // Without a mark another toolstack may have run it.
        (None | Some(Mark::Begun | Mark::Connected), Way::Disconnect) => &[Way::Disconnect],
    }
}

/// The message of a failed run. Its reason is what the script wrote to the store, or else what it said last.
#[must_use]
pub fn failure(device: DeviceRef, run: &ScriptRun, end: &ScriptEnd, noted: &str) -> Option<String> {
    const CHARS_MAX: usize = 300;
    let problem = end.problem.as_ref()?;
    let last = end.words.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let reason = if noted.trim().is_empty() { last } else { noted.trim() };
    let mut message = format!(
        "{}: the script {} {} {problem}",
        device.spoken(),
        run.program,
        run.arguments.first().copied().unwrap_or_default()
    );
    if !reason.is_empty() {
        // A guest may have said some of it.
        message.push_str(": ");
        message.extend(reason.chars().take(CHARS_MAX).flat_map(char::escape_debug));
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xlcfg;

    const VIF: DeviceRef = DeviceRef { kind: DeviceKind::Vif, devid: 0 };

    fn told(config: &str, device: DeviceRef) -> Vec<String> {
        let source = xlcfg::Source { file: "a.cfg", text: config, overrides: &[] };
        let config = xlcfg::parse(source).unwrap();
        let Some(scripts) = scripts(&config, DomId(7), device) else { return Vec::new() };
        let runs = scripts.connect.iter().chain(&scripts.disconnect);
        let line = |run: &ScriptRun| {
            let environment = run.environment.iter().map(|(key, value)| format!("{key}={value} "));
            environment.collect::<String>() + &run.program + " " + &run.arguments.join(" ")
        };
        runs.map(line).collect()
    }

    #[test]
    fn a_script_is_told_what_libxl_tells_it() {
        let pv = "name='a'\nkernel='/k'\nmemory=8\nvif=['script=vif-mine,gatewaydev=eth0']\n";
        let common = "script=/etc/xen/scripts/vif-mine XENBUS_TYPE=vif XENBUS_PATH=backend/vif/7/0 \
                      XENBUS_BASE_PATH=backend";
        let mine = "/etc/xen/scripts/vif-mine";
        assert_eq!(
            told(pv, VIF),
            [
                format!("{common} netdev=eth0 vif=vif7.0 {mine} online type_if=vif"),
                format!("{common} netdev=eth0 vif=vif7.0 {mine} offline type_if=vif"),
            ]
        );
        // An emulated card's interface comes after netback's.
        let hvm = "name='a'\ntype='hvm'\nmemory=8\nvif=['script=vif-mine']\n";
        let rest = format!("{common} netdev= INTERFACE=vif7.0-emu vif=vif7.0 {mine}");
        assert_eq!(
            told(hvm, VIF),
            [
                format!("{rest} online type_if=vif"),
                format!("{rest} add type_if=tap"),
                format!("{rest} offline type_if=vif"),
                format!("{rest} remove type_if=tap"),
            ]
        );
    }

    #[test]
    fn the_script_of_a_disk_is_told_where_to_read_what_it_is() {
        let disk = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };
        let text =
            "name='a'\nkernel='/k'\nmemory=8\ndisk=['vdev=xvda,script=block-mine,target=x']\n";
        let common = "script=/etc/xen/scripts/block-mine XENBUS_TYPE=vbd \
                      XENBUS_PATH=backend/vbd/7/51712 XENBUS_BASE_PATH=backend";
        let mine = "/etc/xen/scripts/block-mine";
        assert_eq!(
            told(text, disk),
            [format!("{common} {mine} add"), format!("{common} {mine} remove")]
        );
        for script in ["", ",script=block", ",script=/etc/xen/scripts/block"] {
            let text =
                format!("name='a'\nkernel='/k'\nmemory=8\ndisk=['vdev=xvda{script},target=/x']\n");
            assert!(told(&text, disk).is_empty(), "{script}");
        }
    }

    #[test]
    fn a_device_has_a_number_in_hexadecimal_and_a_path() {
        let device = |number, path| connected_device(number, path).map(|it| it.path);
        assert_eq!(device("fd:1a", "/dev/mapper/a"), Some("/dev/mapper/a".to_owned()));
        assert_eq!(device("fd:1a", ""), Some("/dev/block/253:26".to_owned()));
        assert_eq!(device("", "/dev/sda"), None);
        assert_eq!(device("8", "/dev/sda"), None);
    }

    #[test]
    fn the_networks_of_xens_scripts_need_none() {
        for vif in [
            "",
            "script=vif-bridge",
            "script=/etc/xen/scripts/vif-bridge",
            "script=vif-route",
            "script=vif-nat",
            "script=vif-openvswitch,bridge=ovs0.5",
        ] {
            let text = format!("name='a'\nkernel='/k'\nmemory=8\nvif=['{vif}']\n");
            assert!(told(&text, VIF).is_empty(), "{vif}");
        }
    }

    #[test]
    fn scripts_of_vms_of_other_hosts_are_in_their_folder() {
        for (script, is_taken) in [
            ("vif-bridge", true),
            ("vif-mine", true),
            ("/etc/xen/scripts/mine", true),
            ("../../../tmp/evil", false),
            ("/etc/xen/scripts", false),
            ("/tmp/evil", false),
        ] {
            let text = format!("name='a'\nkernel='/k'\nmemory=8\nvif=['', 'script={script}']\n");
            let source = xlcfg::Source { file: "a.cfg", text: &text, overrides: &[] };
            let problem = foreign_problem(&xlcfg::parse(source).unwrap());
            assert_eq!(problem.is_none(), is_taken, "{problem:?}");
        }
    }

    #[test]
    fn a_script_that_was_begun_is_undone_before_it_is_run_again() {
        use Way::{Connect, Disconnect};
        for (mark, connect, disconnect) in [
            (None, vec![Connect], vec![Disconnect]),
            (Some(Mark::Begun), vec![Disconnect, Connect], vec![Disconnect]),
            (Some(Mark::Connected), vec![], vec![Disconnect]),
            (Some(Mark::Disconnected), vec![Connect], vec![]),
        ] {
            assert_eq!(needed(mark, Connect), connect, "{mark:?}");
            assert_eq!(needed(mark, Disconnect), disconnect, "{mark:?}");
            assert_eq!(mark.and_then(|it| Mark::decode(it.as_str().as_bytes())), mark);
        }
    }

    #[test]
    fn a_failure_has_the_reason_that_the_script_gave() {
        let run = ScriptRun {
            program: path("vif-mine"),
            arguments: vec!["online", "type_if=vif"],
            environment: Vec::new(),
            seconds: SECONDS,
        };
        let end = |problem: Option<&str>, words: &str| ScriptEnd {
            problem: problem.map(str::to_owned),
            words: words.to_owned(),
        };
        let failed = end(Some("failed with status 1"), "+ ip route\nno such\x1b route\n\n");
        assert_eq!(
            failure(VIF, &run, &failed, "").unwrap(),
            "vif 0: the script /etc/xen/scripts/vif-mine online failed with status 1: no such\\u{1b} route"
        );
        assert_eq!(
            failure(VIF, &run, &failed, "eth0 is not up\n").unwrap(),
            "vif 0: the script /etc/xen/scripts/vif-mine online failed with status 1: eth0 is not up"
        );
        let silent = end(Some("did not end within 40 s"), "");
        assert_eq!(
            failure(VIF, &run, &silent, "").unwrap(),
            "vif 0: the script /etc/xen/scripts/vif-mine online did not end within 40 s"
        );
        assert_eq!(failure(VIF, &run, &end(None, "done"), "old"), None);
    }
}
