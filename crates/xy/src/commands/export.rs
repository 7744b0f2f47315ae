//! `export` and `import`: a VM with its disks as one file (`disk_image::archive`).
//!
//! The disks are those of one moment: of a VM that is down, or snapshots that are taken while a running one is paused. An
//! imported file is read to its end, by a process that can do nothing else, before anything is made of it.

mod config;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use api::{Define, Request, StorageRequest, Target, VmRow};
use disk_image::archive::{Disk, Header, PIECE_BYTES, Writer};

use super::image::worker;
use super::lend::{Use, lend};
use super::storage::{done, vdi_row};
use super::{expect_done, expect_reply, image, vm_create};
use crate::options::Options;
use crate::remote::Remote;
use crate::session::{Failure, Session};
use config::{Config, has_script, target, with_target};

pub(crate) fn export(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (vm, path) = (&options.operands[0], &options.operands[1]);
    let wanted = Target(vm.clone());
    let request = Request::ConfigText { target: wanted.clone() };
    let config = expect_reply!(session.call(&request)?, Text);
    let disks =
        Config::parse(&config).map_err(|why| Failure::failed(format!("{vm}: {why}")))?.disks();
    if let Some(disk) = disks.iter().find(|disk| has_script(disk)) {
        return Err(Failure::failed(format!(
            "{vm}: its disk {} is connected by a script of this host; only VDIs are exported",
            target(disk)
        )));
    }
    let targets: Vec<&str> =
        disks.iter().map(|disk| target(disk)).filter(|it| !it.is_empty()).collect();
    if let Some(other) = targets.iter().find(|target| !is_vdi(target)) {
        return Err(Failure::failed(format!(
            "{vm}: its disk {other} is in no SR; only VDIs are exported"
        )));
    }
    let rows = expect_reply!(session.call(&Request::Vms)?, Vms);
    let row = rows.into_iter().find(|row| {
        row.name == *vm || row.uuid == *vm || row.domid.is_some_and(|id| id.to_string() == *vm)
    });
    let row = row.ok_or_else(|| Failure::failed(format!("{vm}: no such VM")))?;
    let mut header = Header { name: row.name.clone(), config, disks: Vec::new() };
    for target in &targets {
        let bytes = vdi_row(session, target)?.bytes;
        header.disks.push(Disk { target: (*target).to_owned(), bytes });
    }
    // Never over another file, and gone if it does not become whole.
    let create = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = create.map_err(|error| Failure::failed(format!("{path}: {error}")))?;
    let written = sources(session, &row, &targets).and_then(|sources| {
        let written = write(session.remote.as_ref(), (path, file), &header, &sources);
        for source in sources.iter().filter(|source| !targets.contains(&source.as_str())) {
            done(session, StorageRequest::VdiDestroy { vdi: source.clone() })?;
        }
        written
    });
    written.inspect_err(|_| {
        let _left = std::fs::remove_file(path);
    })
}

fn is_vdi(target: &str) -> bool {
    target.split_once(':').is_some_and(|(sr, vdi)| !sr.contains('/') && !vdi.contains('/'))
}

/// The VDIs to read: the VM's own, or snapshots of them if it runs.
fn sources(session: &mut Session, row: &VmRow, targets: &[&str]) -> Result<Vec<String>, Failure> {
    let is_paused = match row.state.as_str() {
        "down" => return Ok(targets.iter().map(|&target| target.to_owned()).collect()),
        "running" => false,
        "paused" => true,
        state => {
            return Err(Failure::failed(format!(
                "{}: is {state}; a VM is exported when it runs or is down",
                row.name
            )));
        }
    };
    let vm = Target(row.uuid.clone());
    if !is_paused {
        expect_done(&session.call(&Request::Pause { target: vm.clone() })?)?;
    }
    let mut made = Vec::new();
    let taken = targets.iter().try_for_each(|vdi| {
        let (sr, name) = vdi.split_once(':').unwrap_or_default();
        let to = format!("{}-x{}", &name[..name.len().min(28)], std::process::id());
        done(session, StorageRequest::VdiSnapshot { vdi: (*vdi).to_owned(), to: to.clone() })?;
        made.push(format!("{sr}:{to}"));
        Ok(())
    });
    let goes_on = match is_paused {
        true => Ok(()),
        false => session.call(&Request::Unpause { target: vm }).map(drop),
    };
    match taken.and(goes_on) {
        Ok(()) => Ok(made),
        Err(failure) => {
            for vdi in made {
                done(session, StorageRequest::VdiDestroy { vdi })?;
            }
            Err(failure)
        }
    }
}

fn write(
    remote: Option<&Remote>,
    (path, file): (&str, File),
    header: &Header,
    sources: &[String],
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("{path}: {error}"));
    let out = BufWriter::with_capacity(256 << 10, file);
    let mut writer = Writer::begin(out, header).map_err(failed)?;
    for ((source, disk), number) in sources.iter().zip(&header.disks).zip(0..) {
        lend(remote, source, Use::Read, |device| {
            copy(device, disk.bytes, number, &mut writer)
                .map_err(|error| Failure::failed(format!("{source}: {error}")))
        })?;
    }
    let file = writer.end().and_then(|mut out| {
        out.flush()?;
        out.into_inner().map_err(std::io::IntoInnerError::into_error)
    });
    file.and_then(|file| file.sync_all()).map_err(failed)
}

fn copy(
    device: &File,
    bytes: u64,
    number: u16,
    writer: &mut Writer<BufWriter<File>>,
) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < bytes {
        let count = usize::try_from(bytes - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        device.read_exact_at(&mut piece[..count], at)?;
        writer.piece(number, at, &piece[..count])?;
        at += count as u64;
    }
    Ok(())
}

pub(crate) fn import(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let path = &options.operands[0];
    let failed = |why: &dyn std::fmt::Display| Failure::failed(format!("{path}: {why}"));
    let file = File::open(path).map_err(|error| failed(&error))?;
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&"not a regular file"));
    }
    let header = worker::check_vm(path, &file)?;
    let config = Config::parse(&header.config).map_err(|why| failed(&why))?;
    if !options.has("trust") {
        config.check().map_err(|why| failed(&why))?;
    }
    if config.disks().iter().any(|disk| has_script(disk)) {
        return Err(failed(
            &"it has a disk that a script connects, of which nothing is in the file",
        ));
    }
    let name = options.value("name").unwrap_or(&header.name).to_owned();
    vm_create::check_name(&name)?;
    let vms = expect_reply!(session.call(&Request::Vms)?, Vms);
    if vms.iter().any(|vm| vm.name == name) {
        return Err(Failure::failed(format!(
            "{name}: there is a VM of this name; --name gives another"
        )));
    }
    let full = config.disks().into_iter().filter(|disk| !target(disk).is_empty()).count();
    if full != header.disks.len() {
        return Err(failed(&"its configuration has other disks than the file"));
    }
    check_sizes(&header, image::max(options)?).map_err(|why| failed(&why))?;
    let sr = image::sr(session, options.value("sr"))?;
    let found = Found { path, file: &file, header: &header, config: &config };
    let mut made = Vec::new();
    make(session, options, &found, (&name, &sr), &mut made).inspect_err(|_| {
        for vdi in made.drain(..).rev() {
            // The first error is reported.
            let _left = done(session, StorageRequest::VdiDestroy { vdi });
        }
    })
}

/// A small file may be of large disks, and fill an SR.
fn check_sizes(header: &Header, max: u64) -> Result<(), String> {
    match header.disks.iter().map(|disk| disk.bytes).find(|&bytes| bytes > max) {
        None => Ok(()),
        Some(bytes) => {
            Err(format!("has a disk of {bytes} bytes; more than {max} are not taken (--max)"))
        }
    }
}

/// A file whose header has been checked.
struct Found<'a> {
    path: &'a str,
    file: &'a File,
    header: &'a Header,
    config: &'a Config,
}

fn make(
    session: &mut Session,
    options: &Options,
    found: &Found<'_>,
    (name, sr): (&str, &str),
    made: &mut Vec<String>,
) -> Result<(), Failure> {
    let mut disks = Vec::new();
    let mut sizes = found.header.disks.iter().enumerate();
    for disk in found.config.disks() {
        // An empty drive stays one.
        let next = if target(&disk).is_empty() { None } else { sizes.next() };
        let Some((number, size)) = next else {
            disks.push(disk);
            continue;
        };
        let vdi = match number {
            0 => format!("{sr}:{name}"),
            number => format!("{sr}:{name}-{number}"),
        };
        done(session, StorageRequest::VdiCreate { vdi: vdi.clone(), bytes: size.bytes })?;
        made.push(vdi.clone());
        let remote = session.remote.as_ref();
        lend(remote, &vdi, Use::Write, |device| {
            worker::unpack_vm(found.path, found.file, number, device)
        })?;
        disks.push(with_target(&disk, &vdi)?);
    }
    let define = Define {
        file: found.path.to_owned(),
        config_text: found.config.text(&disks, options.has("keep")),
        overrides: vec![format!("name='{name}'")],
        cwd: "/".to_owned(),
        strict: false,
        warnings: true,
        autostart: None,
        replaces: None,
    };
    match session.call(&Request::Define(define))? {
        api::Reply::Defined { uuid } => {
            session.print(&format!("{uuid}\n"));
            Ok(())
        }
        other => Err(crate::session::unexpected(&other)),
    }
}
