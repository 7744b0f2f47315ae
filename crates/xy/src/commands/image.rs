//! `xy image`: images of disks that VMs are made from.

mod checksum;
pub(crate) mod fetch;
pub(super) mod worker;

use std::fs::File;
use std::path::{Path, PathBuf};

use api::{ImageRow, Request, StorageRequest};

use super::lend::{Use, lend};
use super::storage::{done, not_a_size, size};
use super::{create, expect_reply};
use crate::columns;
use crate::command::{Command, DryRun, JSON, MANY};
use crate::options::{Flag, Options};
use crate::session::{Failure, Session};
use checksum::{Checksum, LISTS};

/// Begins the names of images' VDIs, in their SRs.
pub(super) const PREFIX: &str = "image-";
const NAME_BYTES_MAX: usize = 34;
/// Largest disk of an image, if nothing else is said.
const BYTES_MAX: u64 = 100 << 30;

const NAME: Flag = Flag::with_value('\0', "name", "NAME", "Its name; by default the file's.");
const SR: Flag =
    Flag::with_value('\0', "sr", "SR", "Where it is kept; not needed if there is one SR.");
const CHECKSUM: Flag = Flag::with_value(
    '\0',
    "checksum",
    "DIGITS",
    "The file's SHA-256 or SHA-512. Otherwise a file SHA256SUMS or SHA512SUMS beside it is used.",
);
const SUMS: Flag =
    Flag::with_value('\0', "sums", "FILE", "A list of checksums, as sha256sum writes it.");
const UNVERIFIED: Flag =
    Flag::new('\0', "unverified", "Take it even if nothing says what its checksum is.");
pub(super) const MAX: Flag =
    Flag::with_value('\0', "max", "SIZE", "Refuse a larger disk; 100G by default.");

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "image import",
        usage: "[options] <File>",
        about: "Make an image of a file: raw, also packed by gzip, xz or zstd, or qcow2",
        flags: &[NAME, SR, CHECKSUM, SUMS, MAX],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: import,
    },
    Command {
        name: "image pull",
        usage: "[options] <URL>",
        about: "Download an image, http or https, and import it; what was interrupted goes on",
        flags: &[NAME, SR, CHECKSUM, SUMS, MAX, UNVERIFIED],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: pull,
    },
    Command {
        name: "image list",
        usage: "[options]",
        about: "List the images",
        flags: &[JSON],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: list,
    },
    Command {
        name: "image remove",
        usage: "<Image ...>",
        about: "Destroy images; VMs that share an image's data keep it",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: remove,
    },
];

fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let rows = images(session)?;
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::storage::image_list(&rows));
    }
    Ok(())
}

pub(super) fn images(session: &mut Session) -> Result<Vec<ImageRow>, Failure> {
    Ok(expect_reply!(session.call(&Request::Storage(StorageRequest::ImageList))?, Images))
}

fn remove(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for name in &options.operands {
        done(session, StorageRequest::ImageRemove { name: name.clone() })?;
    }
    Ok(())
}

fn import(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let path = &options.operands[0];
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("{path}: {error}"));
    let file = File::open(path).map_err(|error| failed(&error))?;
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&"not a regular file"));
    }
    let expected = expected_of(path, options)?;
    let origin = std::fs::canonicalize(path).map_err(|error| failed(&error))?;
    take(
        session,
        options,
        &Found { path, origin: &origin.to_string_lossy(), file: &file, expected },
    )
}

/// If this process was started to do a part of an import, it does that; the status is its exit status.
pub(crate) fn become_worker() -> Option<std::process::ExitCode> {
    let arguments = std::env::args_os;
    worker::become_reader(arguments()).or_else(|| fetch::become_fetcher(arguments()))
}

/// Downloads, then imports. The file is removed after that, and kept after an interruption.
fn pull(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let url = &options.operands[0];
    fetch::check_url(url)?;
    let max = max(options)?;
    let name = fetch::file_name(url);
    let expected = match options.value("checksum").or(options.value("sums")) {
        Some(_) => expected_of(&name, options)?,
        None => fetch::published(url, &name)?,
    };
    match &expected {
        None if !options.has("unverified") => {
            return Err(Failure::failed(format!(
                "{url}: there is no {} beside it; --checksum says its checksum, --unverified takes it without",
                LISTS.join(" or ")
            )));
        }
        Some((_, who)) if url.starts_with("http://") && LISTS.contains(&who.as_str()) => {
            session.tell("the image and its checksum come by http: whoever is on the way could have changed both");
        }
        _ => {}
    }
    // An SR that is missing is said before the download.
    sr(session, options.value("sr"))?;
    let download = fetch::Download::of(url)?;
    let file = download.complete(max)?;
    let taken = take(session, options, &Found { path: &name, origin: url, file: &file, expected });
    download.remove();
    taken
}

pub(super) fn max(options: &Options) -> Result<u64, Failure> {
    let size = |text| size(text).ok_or_else(|| not_a_size("image:", text));
    options.value("max").map_or(Ok(BYTES_MAX), size)
}

/// A file that is to become an image.
struct Found<'a> {
    path: &'a str,
    origin: &'a str,
    file: &'a File,
    expected: Option<(Checksum, String)>,
}

/// The checksum that a file must have, and who says so.
fn expected_of(path: &str, options: &Options) -> Result<Option<(Checksum, String)>, Failure> {
    if let Some(text) = options.value("checksum") {
        let wrong = || {
            Failure::usage(format!(
                "image: --checksum {text:?}: expected the 64 digits of a SHA-256 or the 128 of a SHA-512"
            ))
        };
        return Ok(Some((Checksum::parse(text).ok_or_else(wrong)?, "--checksum".to_owned())));
    }
    let path = Path::new(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(list) = options.value("sums") {
        let found = Checksum::in_list(&create::text(list)?, &name);
        let missing = || Failure::failed(format!("{list}: has no checksum of {name}"));
        return Ok(Some((found.ok_or_else(missing)?, list.to_owned())));
    }
    for list in LISTS {
        let beside = path.with_file_name(list);
        if let Ok(text) = std::fs::read_to_string(&beside)
            && let Some(found) = Checksum::in_list(&text, &name)
        {
            return Ok(Some((found, list.to_owned())));
        }
    }
    Ok(None)
}

/// A name for an image, from that of its file.
fn name_of(path: &str) -> String {
    let mut name =
        PathBuf::from(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    for suffix in [".xz", ".gz", ".zst", ".qcow2", ".img", ".raw"] {
        name = name.strip_suffix(suffix).unwrap_or(&name).to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' };
    let name: String = name.chars().map(plain).collect();
    name.trim_start_matches(['.', '-', '_']).chars().take(NAME_BYTES_MAX).collect()
}

/// Makes an image of a file that is open.
fn take(session: &mut Session, options: &Options, found: &Found<'_>) -> Result<(), Failure> {
    let path = found.path;
    let max = max(options)?;
    let name = options.value("name").map_or_else(|| name_of(path), str::to_owned);
    let sr = sr(session, options.value("sr"))?;
    if images(session)?.iter().any(|image| image.name == name) {
        return Err(Failure::failed(format!(
            "{name}: there is an image of this name; --name gives another, 'xy image remove {name}' removes it"
        )));
    }
    let (expected, who) = match &found.expected {
        Some((expected, who)) => (Some(expected), who.as_str()),
        None => (None, ""),
    };
    let sha256 = checksum::verified(found.file, expected)
        .map_err(|e| Failure::failed(format!("{path}: {e}")))?
        .map_err(|why| Failure::failed(format!("{path}: {who}: {why}")))?;
    let measured = worker::measure(path, found.file, max)?;
    let image = ImageRow {
        name,
        sr,
        bytes: measured.bytes,
        format: measured.format,
        origin: found.origin.to_owned(),
        checksum: format!("sha256:{sha256}"),
    };
    fill(session, &image, found, max)?;
    let verified = match &found.expected {
        Some((_, who)) => format!("as {who} says"),
        None => "not compared with any".to_owned(),
    };
    session.print(&format!(
        "{}: {}; checksum {verified}\n",
        image.name,
        columns::storage::image(&image)
    ));
    Ok(())
}

/// Creates the VDI and makes it an image, or leaves nothing.
fn fill(
    session: &mut Session,
    image: &ImageRow,
    found: &Found<'_>,
    max: u64,
) -> Result<(), Failure> {
    let short = format!("{PREFIX}{}", image.name);
    let vdi = format!("{}:{short}", image.sr);
    let request = StorageRequest::VdiList { srs: vec![image.sr.clone()] };
    let list = expect_reply!(session.call(&Request::Storage(request))?, Vdis);
    if list.vdis.iter().any(|row| row.name == short) {
        // An import was interrupted. One that goes on has the VDI in use.
        done(session, StorageRequest::VdiDestroy { vdi: vdi.clone() })?;
    }
    done(session, StorageRequest::VdiCreate { vdi: vdi.clone(), bytes: image.bytes })?;
    let remote = session.remote.as_ref();
    lend(remote, &vdi, Use::Write, |disk| worker::write(found.path, found.file, disk, max))
        .and_then(|()| done(session, StorageRequest::ImageAdd(image.clone())))
        .inspect_err(|_| {
            // If it stays, the next import of this name removes it.
            let _left = done(session, StorageRequest::VdiDestroy { vdi: vdi.clone() });
        })
}

/// The SR that was named, or the only one.
pub(super) fn sr(session: &mut Session, named: Option<&str>) -> Result<String, Failure> {
    if let Some(sr) = named {
        return Ok(sr.to_owned());
    }
    let rows = expect_reply!(session.call(&Request::Storage(StorageRequest::SrList))?, Srs);
    match rows.as_slice() {
        [sr] => Ok(sr.name.clone()),
        [] => Err(Failure::failed(
            "there is no SR to keep it in; 'xy sr-create local file path=/var/lib/xylem/disks' makes one",
        )),
        several => {
            let names: Vec<_> = several.iter().map(|sr| sr.name.as_str()).collect();
            Err(Failure::failed(format!("--sr says in which SR: {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_files_name() {
        for (path, name) in [
            ("/srv/debian-12-genericcloud-amd64.qcow2", "debian-12-genericcloud-amd64"),
            ("disk.raw.xz", "disk"),
            ("https://example.org/a/noble server.img", "noble-server"),
            (".hidden.img", "hidden"),
            ("/", ""),
        ] {
            assert_eq!(name_of(path), name);
        }
        assert_eq!(name_of(&"x".repeat(50)).len(), NAME_BYTES_MAX);
    }
}
