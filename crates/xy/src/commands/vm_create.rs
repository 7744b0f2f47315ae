//! `xy vm-create`: a VM from an image, and the settings of its first boot.
//!
//! Its disk is a clone of the image, its second one a small volume that cloud-init reads (`disk_image::seed`). It becomes a
//! VM as by `xy define` and `xy start`; on an error nothing of it is left.

mod boot;
mod seed;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use api::{Define, HostRequest, ImageRow, Request, StorageRequest, Target};

use super::lend::{Use, lend};
use super::storage::{done, not_a_size, size};
use super::{console, create, expect_reply, export, image};
use crate::command::{Command, DryRun};
use crate::options::{Flag, Options};
use crate::session::{Failure, Session};
use boot::{Host, Kind};

const TEMPLATES: &str = "/etc/xylem/templates";
/// So that the names of its VDIs are valid.
const NAME_BYTES_MAX: usize = 35;
const MEMORY_MIB_DEFAULT: u64 = 512;

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "vm-create",
        usage: "[options] <Name>",
        about: "Create a VM from an image, and start it",
        flags: &[
            Flag::with_value(
                '\0',
                "image",
                "Image",
                "What its disk is a clone of; see 'xy help image'.",
            ),
            Flag::with_value('\0', "memory", "SIZE", "In MiB, or with a unit; 512 by default."),
            Flag::with_value('\0', "vcpus", "N", "1 by default."),
            Flag::with_value('\0', "disk", "SIZE", "Of its disk; by default the image's."),
            Flag::with_value('\0', "bridge", "BRIDGE", "By default that of xl.conf, or xenbr0."),
            Flag::new('\0', "no-network", "No network interface."),
            Flag::with_value(
                '\0',
                "type",
                "pvh|pv|hvm",
                "By default the first that this host can boot from a disk.",
            ),
            Flag::with_value(
                '\0',
                "ssh-key",
                "FILE",
                "Public keys that may log in; may be repeated.",
            ),
            Flag::with_value(
                '\0',
                "password-file",
                "FILE",
                "The password of the image's user, in the first line.",
            ),
            Flag::with_value('\0', "user-data", "FILE", "For cloud-init, as it is."),
            Flag::with_value('\0', "ip", "ADDRESS/LEN", "Its address; by default it asks by DHCP."),
            Flag::with_value('\0', "gateway", "ADDRESS", "Where its packets go."),
            Flag::with_value('\0', "dns", "ADDRESS", "A name server; may be repeated."),
            Flag::with_value(
                '\0',
                "template",
                "NAME|FILE",
                "Further settings, as in xl.cfg; see template-list.",
            ),
            Flag::new('\0', "autostart", "Start it with the host."),
            Flag::new('\0', "no-start", "Only define it."),
            Flag::new('c', "", "Connect to its console."),
        ],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: vm_create,
    },
    Command {
        name: "export",
        usage: "[options] <VM> <path>",
        about: "Write a VM with its disks to one file; see 'xy help import'",
        flags: &[],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: export::export,
    },
    Command {
        name: "import",
        usage: "[options] <path>",
        about: "Make a VM of a file that 'xy export' has written; it is defined, and down",
        flags: &[
            Flag::with_value('\0', "name", "NAME", "Its name; by default that in the file."),
            Flag::with_value(
                '\0',
                "sr",
                "SR",
                "Where its disks go; not needed if there is one SR.",
            ),
            image::MAX,
            Flag::new('\0', "keep", "Keep its UUID and MAC addresses, which others could have."),
            Flag::new(
                '\0',
                "trust",
                "Take all of its configuration, also what names files and programs of this host.",
            ),
        ],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: export::import,
    },
    Command {
        name: "template-list",
        usage: "",
        about: "List the templates for vm-create, with their first comments",
        flags: &[],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: template_list,
    },
];

fn usage(what: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("vm-create: {what}"))
}

/// What the options ask for, all of it checked.
struct Plan {
    name: String,
    image: ImageRow,
    disk_bytes: Option<u64>,
    seed: Vec<u8>,
    file: String,
    config_text: String,
    overrides: Vec<String>,
}

impl Plan {
    fn disk(&self) -> String {
        format!("{}:{}", self.image.sr, self.name)
    }

    fn seed_vdi(&self) -> String {
        format!("{}:{}-seed", self.image.sr, self.name)
    }
}

fn vm_create(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let plan = plan(session, options)?;
    let mut made = Vec::new();
    let uuid = make(session, options, &plan, &mut made).inspect_err(|_| {
        for undo in made.iter().rev() {
            if let Err(failure) = session.call(undo).map(drop) {
                session.tell(&format!("xy: {}", failure.messages().join("; ")));
            }
        }
    })?;
    session.print(&format!("{uuid}\n"));
    if options.has("c") && !options.has("no-start") {
        session.flush();
        let target = Target(uuid);
        let unpause = |session: &mut Session| {
            session.call(&Request::Unpause { target: target.clone() }).map(|_| ())
        };
        console::attach(
            session,
            &console::primary(&target),
            crate::console::ESCAPE_DEFAULT,
            unpause,
        )?;
    }
    Ok(())
}

fn plan(session: &mut Session, options: &Options) -> Result<Plan, Failure> {
    let name = options.operands[0].clone();
    check_name(&name)?;
    let wanted = options
        .value("image")
        .ok_or_else(|| usage("--image is missing; 'xy image list' shows what there is"))?;
    let image = image::images(session)?.into_iter().find(|image| image.name == wanted);
    let image = image.ok_or_else(|| {
        Failure::failed(format!("{wanted}: no such image; 'xy image list' shows them all"))
    })?;
    let disk_bytes = options.value("disk").map(|text| bytes("--disk", text)).transpose()?;
    if let Some(bytes) = disk_bytes.filter(|&bytes| bytes < image.bytes) {
        return Err(Failure::failed(format!(
            "--disk: {bytes} bytes are less than the {} of the image {wanted}",
            image.bytes
        )));
    }
    let vms = expect_reply!(session.call(&Request::Vms)?, Vms);
    if vms.iter().any(|vm| vm.name == name) {
        return Err(Failure::failed(format!("{name}: there is a VM of this name")));
    }
    let mut seed = seed::read(&name, options)?;
    let (file, config_text) = template(options.value("template"))?;
    let mut overrides = settings(session, options, &name, &image, &config_text)?;
    if let Some(spec) = vif(options, &config_text)? {
        let mac = seed::fresh_mac()?;
        overrides.push(format!("vif = ['mac={mac}{spec}']"));
        seed.mac = Some(mac);
    }
    let seed = seed.volume();
    Ok(Plan { name, image, disk_bytes, seed, file, config_text, overrides })
}

pub(super) fn check_name(name: &str) -> Result<(), Failure> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    match plain && begins && name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{name:?} cannot name a VM with disks of its name: expected up to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -, a letter or digit first"
        ))),
    }
}

fn bytes(option: &str, text: &str) -> Result<u64, Failure> {
    let bytes = size(text).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| not_a_size(&format!("vm-create: {option}"), text))
}

/// Plain digits are MiB, as in xl.cfg.
fn memory_mib(text: &str) -> Result<u64, Failure> {
    match text.parse::<u64>() {
        Ok(mib) => Ok(mib),
        Err(_) => Ok(bytes("--memory", text)?.div_ceil(1 << 20)),
    }
}

/// Whether a template sets one of these keys.
fn sets(template: &str, keys: &[&str]) -> bool {
    template.lines().any(|line| {
        let key = line.split('=').next().unwrap_or_default().trim();
        line.contains('=') && keys.contains(&key)
    })
}

/// The settings that the options and the image decide.
fn settings(
    session: &mut Session,
    options: &Options,
    name: &str,
    image: &ImageRow,
    template: &str,
) -> Result<Vec<String>, Failure> {
    let mut settings = vec![format!("name = '{name}'")];
    let mut vdev = "xvda";
    let kind = options.value("type").map(|text| {
        Kind::parse(text).ok_or_else(|| usage(format!("--type {text:?}: expected pvh, pv or hvm")))
    });
    let kind = kind.transpose()?;
    if kind.is_some() || !sets(template, &["kernel", "firmware", "bootloader", "type", "builder"]) {
        let info = expect_reply!(session.call(&Request::Info)?, Info);
        let row = session.call(&Request::Host(HostRequest::Boot))?;
        let host = Host::of(expect_reply!(row, Boot), &info.0);
        let boot = host.boot(kind).map_err(Failure::failed)?;
        settings.extend(boot.settings);
        vdev = boot.disk;
    }
    if let Some(text) = options.value("memory") {
        settings.push(format!("memory = {}", memory_mib(text)?));
    } else if !sets(template, &["memory"]) {
        settings.push(format!("memory = {MEMORY_MIB_DEFAULT}"));
    }
    if let Some(text) = options.value("vcpus") {
        let vcpus: u32 =
            text.parse().map_err(|_| usage(format!("--vcpus {text:?} is not a number")))?;
        settings.push(format!("vcpus = {vcpus}"));
    }
    let sr = &image.sr;
    settings.push(format!("disk = ['{sr}:{name},,{vdev},w', '{sr}:{name}-seed,,xvdz,r']"));
    if options.has("no-network") {
        settings.push("vif = []".to_owned());
    }
    Ok(settings)
}

/// What follows the MAC address of its interface; nothing if it has none, or the template's.
fn vif(options: &Options, template: &str) -> Result<Option<String>, Failure> {
    match options.value("bridge") {
        _ if options.has("no-network") => Ok(None),
        Some(bridge) if bridge.is_empty() || bridge.contains(['\'', ',', '\\']) => {
            Err(usage(format!("--bridge {bridge:?}: no name of a bridge")))
        }
        Some(bridge) => Ok(Some(format!(",bridge={bridge}"))),
        None if sets(template, &["vif"]) => Ok(None),
        None => Ok(Some(String::new())),
    }
}

/// A template's file and its text; nothing without one.
fn template(named: Option<&str>) -> Result<(String, String), Failure> {
    let Some(named) = named else { return Ok(("vm-create".to_owned(), String::new())) };
    let path = match named.contains('/') {
        true => named.to_owned(),
        false => format!("{TEMPLATES}/{}.cfg", named.strip_suffix(".cfg").unwrap_or(named)),
    };
    let text = create::text(&path)?;
    if sets(&text, &["disk", "name"]) {
        return Err(Failure::failed(format!(
            "{path}: a template for vm-create has no name and no disk; both come from the command"
        )));
    }
    Ok((path, text))
}

/// Makes all of it. `made` has the requests that undo what was made.
fn make(
    session: &mut Session,
    options: &Options,
    plan: &Plan,
    made: &mut Vec<Request>,
) -> Result<String, Failure> {
    let (disk, seed) = (plan.disk(), plan.seed_vdi());
    let destroy = |vdi: &str| Request::Storage(StorageRequest::VdiDestroy { vdi: vdi.to_owned() });
    let origin = format!("{}:{}{}", plan.image.sr, image::PREFIX, plan.image.name);
    done(session, StorageRequest::VdiClone { vdi: origin, to: plan.name.clone() })?;
    made.push(destroy(&disk));
    if let Some(bytes) = plan.disk_bytes {
        let bytes = bytes.next_multiple_of(512);
        done(session, StorageRequest::VdiResize { vdi: disk, bytes })?;
    }
    let bytes = plan.seed.len() as u64;
    done(session, StorageRequest::VdiCreate { vdi: seed.clone(), bytes })?;
    made.push(destroy(&seed));
    lend(session.remote.as_ref(), &seed, Use::Write, |device| {
        device.write_all_at(&plan.seed, 0).map_err(|e| Failure::failed(format!("{seed}: {e}")))
    })?;
    let define = Define {
        file: plan.file.clone(),
        config_text: plan.config_text.clone(),
        overrides: plan.overrides.clone(),
        cwd: "/".to_owned(),
        strict: false,
        warnings: true,
        autostart: options.has("autostart").then_some(0),
        replaces: None,
    };
    let uuid = match session.call(&Request::Define(define))? {
        api::Reply::Defined { uuid } => uuid,
        other => return Err(crate::session::unexpected(&other)),
    };
    let target = Target(uuid.clone());
    made.push(Request::Undefine { target: target.clone() });
    if !options.has("no-start") {
        let progress = session.draws_progress();
        let paused = options.has("c");
        let reply = session.call(&Request::Start { target, paused, progress })?;
        let _report = expect_reply!(reply, Created);
    }
    Ok(uuid)
}

fn template_list(session: &mut Session, _options: &Options) -> Result<(), Failure> {
    let mut all = Vec::new();
    for entry in fs::read_dir(TEMPLATES).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "cfg") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.push((name, first_comment(&path)));
        }
    }
    all.sort();
    for (name, about) in all {
        session.print(&format!(
            "{:<24} {}\n",
            crate::columns::shown(&name),
            crate::columns::shown(&about)
        ));
    }
    Ok(())
}

fn first_comment(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let comment = text.lines().find_map(|line| line.strip_prefix('#'));
    comment.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_says_what_it_sets() {
        let template = "# vif = ['']\nmemory=2048\nkernel = '/boot/k'\n";
        assert!(sets(template, &["memory"]) && sets(template, &["type", "kernel"]));
        assert!(!sets(template, &["vif"]) && !sets(template, &["disk", "name"]));
    }

    #[test]
    fn memory_is_in_mib_or_has_a_unit() {
        for (text, mib) in [("512", 512), ("1G", 1024), ("1000K", 1)] {
            assert_eq!(memory_mib(text), Ok(mib), "{text}");
        }
        assert!(memory_mib("much").is_err());
    }
}
