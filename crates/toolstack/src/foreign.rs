//! Adoption of a running domain of another toolstack: what is read of it, and the resulting
//! configuration.
//!
//! Only nodes that no guest can write are trusted. The domain's devices come from Xen and the
//! backends' nodes; the configuration in the request supplies only the rest: what it boots from,
//! and its policies. Source: what libxl (xen `tools/libs/light/`) and `/etc/xen/scripts/block` of
//! 4.17 write.

use std::collections::BTreeMap;

use storage::{Attachment, BlockDevice, FileKind, ImageFormat, Mode};
use xen::{DomainInfo, DomainKind, DomainRef, EvtchnPort, Uuid};

use crate::config::{DiskConfig, Rate, Trust, Vdev, VifConfig, VmConfig};
use crate::device_model::Process;
use crate::hotplug;
use crate::layout::{self, Backends, Completion, DeviceKind, DeviceRef, Ends, kind_name};
use crate::plan::Start;
use crate::xlcfg;

/// Keys read from the backends of disks and interfaces.
pub(crate) const VBD_KEYS: [&str; 7] =
    ["dev", "mode", "device-type", "params", "script", "physical-device", "node"];
pub(crate) const VIF_KEYS: [&str; 9] =
    ["mac", "bridge", "script", "mtu", "rate", "type", "vifname", "ip", "gatewaydev"];

/// Major number of loop devices.
const LOOP_MAJOR: u32 = 7;

/// A device of a foreign domain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForeignDevice {
    pub device: DeviceRef,
    /// The backend's directory, as recorded by libxl.
    pub backend: String,
    /// The existing keys of the backend.
    pub keys: BTreeMap<&'static str, String>,
    /// The file at a disk's path.
    pub file: Option<FileKind>,
}

/// All that is known of a foreign domain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForeignReading {
    pub domain: DomainRef,
    pub info: DomainInfo,
    pub name: String,
    /// libxl's name of the domain type.
    pub kind: String,
    pub static_max_kib: Option<u64>,
    pub target_kib: Option<u64>,
    pub store_port: Option<u32>,
    pub store_gfn: Option<u64>,
    /// Device kinds that are not supported here.
    pub other_devices: Vec<String>,
    pub devices: Vec<ForeignDevice>,
}

/// A loop device made by another tool: it gets our tag, and its original name back if the adoption
/// fails.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ForeignLoop {
    pub device: BlockDevice,
    pub devid: u32,
    /// The file's path, which is its original name.
    pub path: String,
}

impl ForeignLoop {
    /// One of ours that is given away gets the name that it would have without us.
    pub(crate) fn given(disk: &DiskConfig, attachment: &Attachment) -> Option<Self> {
        match attachment {
            Attachment::Loop(device) => {
                let (device, path) = (device.clone(), disk.target.clone());
                Some(Self { device, devid: disk.vdev.number, path })
            }
            _ => None,
        }
    }
}

/// A foreign domain as a VM of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Adoption {
    pub(crate) config: VmConfig,
    pub(crate) uuid: Uuid,
    pub(crate) domain: DomainRef,
    pub(crate) completion: Completion,
    pub(crate) disks: BTreeMap<u32, Attachment>,
    pub(crate) backends: Backends,
    /// The device model of a domain that was ours before.
    pub(crate) model: Option<Process>,
}

impl Adoption {
    /// The domain as a VM of ours. `base` is its boot configuration.
    ///
    /// # Errors
    /// What is not supported, in one line that names it.
    pub(crate) fn of(reading: &ForeignReading, base: &VmConfig) -> Result<Self, String> {
        let name = &reading.name;
        check_kind(reading, base)?;
        if let Some(other) = reading.other_devices.first() {
            return Err(format!(
                "{name}: has a device of kind {other}, which cannot be taken down here; \
                 leave it to the toolstack that made it"
            ));
        }
        let (Some(port), Some(store_gfn)) = (reading.store_port, reading.store_gfn) else {
            return Err(format!("{name}: has no xenstore ring in the store; it is incomplete"));
        };
        let (mut disks, mut vifs, mut attached) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut backends = Backends::default();
        for device in &reading.devices {
            let told = |problem: String| format!("{name}: {}: {problem}", device.device);
            let ends = Ends::of_backend(device.device, reading.domain.domid, &device.backend);
            let Some(ends) = ends else {
                return Err(told(format!(
                    "served by {}, which cannot be taken over; detach it first",
                    device.backend
                )));
            };
            let backend = (!ends.is_in_domain_0()).then(|| {
                backends.insert(device.device, ends.backend);
                // By its name, if that is known: its next domain has another number.
                let named = layout::wanted_backend(base, device.device);
                named.map_or_else(|| ends.backend.to_string(), str::to_owned)
            });
            match device.device.kind {
                DeviceKind::Vbd if backend.is_some() => {
                    disks.push(DiskConfig { backend, ..described(device).map_err(told)? });
                }
                DeviceKind::Vif if backend.is_some() => {
                    vifs.push(VifConfig { backend, ..vif(device).map_err(told)? });
                }
                DeviceKind::Vbd => {
                    let (disk, attachment) = disk(device).map_err(told)?;
                    attached.extend(attachment.map(|it| (disk.vdev.number, it)));
                    disks.push(disk);
                }
                DeviceKind::Vif => vifs.push(vif(device).map_err(told)?),
                DeviceKind::Console
                | DeviceKind::Vfb
                | DeviceKind::Vkbd
                | DeviceKind::NinePfs
                | DeviceKind::Pci => {
                    unreachable!("of these only the kinds are read")
                }
            }
        }
        let config = configuration(reading, base, disks, vifs)?;
        let start = match reading.info.flags.paused() {
            true => Start::Paused,
            false => Start::Running,
        };
        let completion = Completion { start, store_port: EvtchnPort(port), store_gfn };
        let (uuid, domain) = (reading.info.handle, reading.domain);
        Ok(Self { config, uuid, domain, completion, disks: attached, backends, model: None })
    }

    /// The loop devices that get a tag of ours.
    pub(crate) fn loops(&self) -> Vec<ForeignLoop> {
        let of = |(devid, attachment): (&u32, &Attachment)| match attachment {
            Attachment::Loop(device) => {
                let disk = self.config.disks.iter().find(|disk| disk.vdev.number == *devid)?;
                let (device, path) = (device.clone(), disk.target.clone());
                Some(ForeignLoop { device, devid: *devid, path })
            }
            _ => None,
        };
        self.disks.iter().filter_map(of).collect()
    }
}

fn check_kind(reading: &ForeignReading, base: &VmConfig) -> Result<(), String> {
    let name = &reading.name;
    let wanted = kind_name(base.kind);
    if reading.kind == kind_name(DomainKind::Hvm) {
        return Err(format!("{name}: is an HVM guest, whose device model cannot be taken over"));
    }
    if reading.kind.is_empty() {
        return Err(format!("{name}: was not made by libxl, and nothing else is known here"));
    }
    if reading.kind != wanted {
        return Err(format!(
            "{}: {name} is a {} guest; `--config FILE` names the file it was made from",
            base.origin.at("type"),
            reading.kind
        ));
    }
    if reading.info.flags.dying() || reading.info.flags.shutdown().is_some() {
        return Err(format!("{name}: has stopped; there is nothing to take over"));
    }
    Ok(())
}

/// One that a script has connected has no attachment.
fn disk(device: &ForeignDevice) -> Result<(DiskConfig, Option<Attachment>), String> {
    let key = |name: &str| device.keys.get(name).map(String::as_str).unwrap_or_default();
    let disk = described(device)?;
    let script = disk.script.as_ref();
    let path = disk.target.as_str();
    let number = hotplug::device_number(key("physical-device"));
    let attachment = match (device.file, number) {
        (_, Some(_)) if script.is_some() => None,
        (Some(FileKind::Regular { .. }), Some(number)) if number.major == LOOP_MAJOR => {
            let made = key("node");
            let path = match made.is_empty() {
                true => format!("/dev/loop{}", number.minor),
                false => made.to_owned(),
            };
            Some(Attachment::Loop(BlockDevice { path, number }))
        }
        (Some(FileKind::Block(found)), Some(number)) if found == number => {
            Some(Attachment::Block(BlockDevice { path: path.to_owned(), number }))
        }
        _ if script.is_some() => return Err("its script has not connected it".into()),
        _ if path.is_empty() => return Err("is a drive without a medium; detach it first".into()),
        _ => return Err(format!("what is served is not what lies at {path}")),
    };
    if script.is_none() && !path.starts_with('/') {
        return Err(format!("{path:?} is not a path on this host"));
    }
    Ok((disk, attachment))
}

/// What its nodes say of a disk.
fn described(device: &ForeignDevice) -> Result<DiskConfig, String> {
    let key = |name: &str| device.keys.get(name).map(String::as_str).unwrap_or_default();
    let dev = key("dev");
    let vdev: Vdev = dev.parse().map_err(|_| format!("{dev:?} is not the name of a disk"))?;
    if vdev.number != device.device.devid {
        return Err(format!("is called {dev}, which is {}", vdev.number));
    }
    let script = Some(key("script")).filter(|it| !it.is_empty());
    let script = script.map(hotplug::path).filter(|it| it != hotplug::BLOCK);
    let mode = match key("mode") {
        shared if shared.contains('!') => Mode::Shared,
        written if written.starts_with('w') => Mode::ReadWrite,
        _ => Mode::ReadOnly,
    };
    let cdrom = key("device-type") == "cdrom";
    Ok(DiskConfig {
        vdev,
        target: key("params").to_owned(),
        format: ImageFormat::Raw,
        mode,
        cdrom,
        discard: key("discard-enable") != "0",
        script,
        // Its frontend has been told.
        trust: Trust::Trusted,
        backend: None,
    })
}

fn vif(device: &ForeignDevice) -> Result<VifConfig, String> {
    let key = |name: &str| device.keys.get(name).map(String::as_str).filter(|it| !it.is_empty());
    let script = key("script").filter(|it| hotplug::path(it) != hotplug::VIF_BRIDGE);
    let bridge = key("bridge").ok_or("is on no bridge; detach it first")?.to_owned();
    let mac = key("mac").map(str::parse).transpose().map_err(|_| "its MAC address is invalid")?;
    let mtu = key("mtu").and_then(|text| text.parse().ok());
    let rate = key("rate").and_then(|text| {
        let (bytes, interval_us) = text.split_once(',')?;
        Some(Rate { bytes: bytes.parse().ok()?, interval_us: interval_us.parse().ok()? })
    });
    let text = |name| key(name).map(str::to_owned);
    Ok(VifConfig {
        devid: device.device.devid,
        mac,
        bridge,
        name: text("vifname"),
        ip: text("ip"),
        mtu,
        rate,
        model: None,
        script: script.map(str::to_owned),
        gateway: text("gatewaydev"),
        // Its frontend has been told.
        antispoof: false,
        trust: Trust::Trusted,
        backend: None,
    })
}

fn configuration(
    reading: &ForeignReading,
    base: &VmConfig,
    disks: Vec<DiskConfig>,
    vifs: Vec<VifConfig>,
) -> Result<VmConfig, String> {
    let mib = |kib: Option<u64>, other: u64| kib.map_or(other, |kib| kib.div_ceil(1024));
    let memory_max_mib = mib(reading.static_max_kib, base.memory_max_mib);
    let memory_mib = mib(reading.target_kib, base.memory_mib).min(memory_max_mib);
    let vcpus_max = reading.info.vcpu_id_max.map_or(base.vcpus_max, |highest| highest + 1);
    let config = VmConfig {
        name: reading.name.clone(),
        uuid: Some(reading.info.handle),
        memory_mib,
        memory_max_mib,
        vcpus: reading.info.vcpus_online.clamp(1, vcpus_max),
        vcpus_max,
        disks,
        vifs,
        ..base.clone()
    };
    // A restarted daemon must be able to read it back.
    let text = config.to_cfg_text();
    let read = xlcfg::parse(xlcfg::Source { file: &reading.name, text: &text, overrides: &[] });
    read.map(|_| config).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::DeviceNumber;
    use xen::{DomId, Life};

    fn base() -> VmConfig {
        let text =
            "name = 'other'\ntype = 'pv'\nkernel = '/boot/k'\nmemory = 64\ncmdline = 'quiet'\n";
        xlcfg::parse(xlcfg::Source { file: "web.cfg", text, overrides: &[] }).unwrap()
    }

    fn keys(pairs: &[(&'static str, &str)]) -> BTreeMap<&'static str, String> {
        pairs.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
    }

    fn reading() -> ForeignReading {
        let domid = DomId(7);
        let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51712 };
        let vif = DeviceRef { kind: DeviceKind::Vif, devid: 0 };
        let handle = Uuid([3; 16]);
        let info = DomainInfo {
            domid,
            handle,
            vcpus_online: 2,
            vcpu_id_max: Some(3),
            ..DomainInfo::default()
        };
        let disk = keys(&[
            ("dev", "xvda"),
            ("mode", "w"),
            ("device-type", "disk"),
            ("params", "/root/web.img"),
            ("script", "/etc/xen/scripts/block"),
            ("physical-device", "7:b"),
            ("node", "/dev/loop11"),
        ]);
        let net = keys(&[
            ("mac", "00:16:3e:01:02:03"),
            ("bridge", "xenbr0"),
            ("script", "/etc/xen/scripts/vif-bridge"),
            ("rate", "1000,50000"),
        ]);
        ForeignReading {
            domain: DomainRef { domid, life: Life::Counted { handle, generation: 1 } },
            info,
            name: "web".to_owned(),
            kind: "pv".to_owned(),
            static_max_kib: Some(256 << 10),
            target_kib: Some(128 << 10),
            store_port: Some(1),
            store_gfn: Some(0x1234),
            other_devices: Vec::new(),
            devices: vec![
                ForeignDevice {
                    device: vbd,
                    backend: vbd.in_domain_0(domid).backend_path(),
                    keys: disk,
                    file: Some(FileKind::Regular { bytes: 1 << 20 }),
                },
                ForeignDevice {
                    device: vif,
                    backend: vif.in_domain_0(domid).backend_path(),
                    keys: net,
                    file: None,
                },
            ],
        }
    }

    fn refusal(change: impl FnOnce(&mut ForeignReading)) -> String {
        let mut reading = reading();
        change(&mut reading);
        Adoption::of(&reading, &base()).unwrap_err()
    }

    #[test]
    fn what_the_domain_has_is_believed_and_what_it_starts_from_is_the_files() {
        let adoption = Adoption::of(&reading(), &base()).unwrap();
        let config = &adoption.config;
        assert_eq!((config.name.as_str(), config.kernel.as_deref()), ("web", Some("/boot/k")));
        assert_eq!((config.memory_mib, config.memory_max_mib), (128, 256));
        assert_eq!((config.vcpus, config.vcpus_max), (2, 4));
        assert_eq!((config.disks.len(), config.vifs.len()), (1, 1));
        assert_eq!(config.vifs[0].rate, Some(Rate { bytes: 1000, interval_us: 50000 }));
        let number = DeviceNumber { major: 7, minor: 11 };
        let device = BlockDevice { path: "/dev/loop11".to_owned(), number };
        assert_eq!(adoption.disks[&51712], Attachment::Loop(device.clone()));
        let path = "/root/web.img".to_owned();
        assert_eq!(adoption.loops(), [ForeignLoop { device, devid: 51712, path }]);
        assert_eq!(adoption.completion.start, Start::Running);
    }

    #[test]
    fn the_script_of_a_disk_comes_with_it_and_what_it_connected_stays_its_own() {
        let mut reading = reading();
        let keys = &mut reading.devices[0].keys;
        keys.insert("script", "/etc/xen/scripts/block-drbd".to_owned());
        keys.insert("params", "web".to_owned());
        let adoption = Adoption::of(&reading, &base()).unwrap();
        let disk = &adoption.config.disks[0];
        assert_eq!(disk.script.as_deref(), Some("/etc/xen/scripts/block-drbd"));
        assert_eq!(disk.target, "web");
        assert!(adoption.disks.is_empty());
    }

    #[test]
    fn the_script_of_an_interface_comes_with_it() {
        for (named, script) in [
            ("/etc/xen/scripts/vif-bridge", None),
            ("/etc/xen/scripts/vif-route", Some("/etc/xen/scripts/vif-route")),
        ] {
            let mut reading = reading();
            reading.devices[1].keys.insert("script", named.to_owned());
            let adoption = Adoption::of(&reading, &base()).unwrap();
            assert_eq!(adoption.config.vifs[0].script.as_deref(), script);
        }
    }

    #[test]
    fn what_cannot_be_taken_down_is_not_taken_over() {
        let script = |it: &mut ForeignReading| {
            it.devices[0].keys.insert("script", "/etc/xen/scripts/block-drbd".to_owned());
            it.devices[0].keys.remove("physical-device");
        };
        assert!(refusal(script).contains("vbd 51712: its script has not connected it"));
        let qdisk = |it: &mut ForeignReading| {
            it.devices[0].backend = "/local/domain/0/backend/qdisk/7/51712".to_owned();
        };
        assert!(refusal(qdisk).contains("backend/qdisk"));
        let other = |it: &mut ForeignReading| {
            it.devices[0].file = Some(FileKind::Block(DeviceNumber { major: 253, minor: 1 }));
        };
        assert!(refusal(other).contains("is not what lies at /root/web.img"));
        let drive = |it: &mut ForeignReading| {
            it.devices[0].keys.retain(|key, _| *key == "dev");
        };
        assert!(refusal(drive).contains("without a medium"));
        assert!(refusal(|it| it.kind = "hvm".to_owned()).contains("device model"));
        assert!(refusal(|it| it.kind = "pvh".to_owned()).contains("web is a pvh guest"));
        assert!(refusal(|it| it.kind = String::new()).contains("not made by libxl"));
        assert!(refusal(|it| it.other_devices.push("vfb".to_owned())).contains("vfb"));
    }
}
