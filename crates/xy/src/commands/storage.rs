//! Commands for storage repositories and virtual disk images, named as in XenAPI.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use api::{Request, StorageRequest, VdiRow};

use super::lend::{Use, lend};
use super::{expect_done, expect_reply};
use crate::columns;
use crate::options::Options;
use crate::session::{Failure, Session};

pub(super) fn done(session: &mut Session, request: StorageRequest) -> Result<(), Failure> {
    expect_done(&session.call(&Request::Storage(request))?)
}

/// `NAME KIND [KEY=VALUE ...]`
fn new_sr(
    command: &str,
    options: &Options,
) -> Result<(String, String, BTreeMap<String, String>), Failure> {
    let mut operands = options.operands.iter();
    let (Some(name), Some(kind)) = (operands.next(), operands.next()) else {
        return Err(Failure::usage(format!("{command}: name and kind are needed")));
    };
    let setting = |word: &String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("{command}: {word:?} is not KEY=VALUE"))),
    };
    let config = operands.map(setting).collect::<Result<_, _>>()?;
    Ok((name.clone(), kind.clone(), config))
}

/// A size in bytes, or with a unit of K, M, G or T (powers of 1024).
pub(super) fn size(text: &str) -> Option<u64> {
    let (digits, shift) =
        match text.trim_end_matches('B').trim_end_matches('i').split_at_checked(
            text.trim_end_matches('B').trim_end_matches('i').len().checked_sub(1)?,
        )? {
            (digits, "K" | "k") => (digits, 10),
            (digits, "M" | "m") => (digits, 20),
            (digits, "G" | "g") => (digits, 30),
            (digits, "T" | "t") => (digits, 40),
            _ => (text, 0),
        };
    let number: u64 = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))?;
    number.checked_mul(1 << shift)
}

/// `place` is the command, with the option if there is one.
pub(super) fn not_a_size(place: &str, text: &str) -> Failure {
    Failure::usage(format!("{place} {text:?} is not a size; use bytes, or 512M, 10G, 1T"))
}

/// `SR:VDI SIZE`
fn vdi_and_size(command: &str, options: &Options) -> Result<(String, u64), Failure> {
    let [vdi, text] = options.operands.as_slice() else {
        return Err(Failure::usage(format!("{command}: SR:VDI and size are needed")));
    };
    let bytes = size(text).ok_or_else(|| not_a_size(&format!("{command}:"), text))?;
    Ok((vdi.clone(), bytes))
}

/// `SR:VDI NEW`, where the new name may repeat the SR's.
fn vdi_and_copy(command: &str, options: &Options) -> Result<(String, String), Failure> {
    let [vdi, to] = options.operands.as_slice() else {
        return Err(Failure::usage(format!("{command}: SR:VDI and a new name are needed")));
    };
    match (vdi.split_once(':'), to.split_once(':')) {
        (Some((sr, _)), Some((other, _))) if sr != other => Err(Failure::usage(format!(
            "{command}: {to} is in another SR than {vdi}; a copy stays in its SR"
        ))),
        (_, Some((_, to))) => Ok((vdi.clone(), to.to_owned())),
        (_, None) => Ok((vdi.clone(), to.clone())),
    }
}

pub(crate) fn sr_create(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (name, kind, config) = new_sr("sr-create", options)?;
    done(session, StorageRequest::SrCreate { name, kind, config })
}

pub(crate) fn sr_introduce(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (name, kind, config) = new_sr("sr-introduce", options)?;
    done(session, StorageRequest::SrIntroduce { name, kind, config })
}

pub(crate) fn sr_forget(session: &mut Session, options: &Options) -> Result<(), Failure> {
    done(session, StorageRequest::SrForget { name: options.operands[0].clone() })
}

pub(crate) fn sr_destroy(session: &mut Session, options: &Options) -> Result<(), Failure> {
    done(session, StorageRequest::SrDestroy { name: options.operands[0].clone() })
}

pub(crate) fn sr_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let rows = expect_reply!(session.call(&Request::Storage(StorageRequest::SrList))?, Srs);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::storage::sr_list(&rows));
    }
    Ok(())
}

pub(crate) fn sr_info(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = StorageRequest::SrInfo { name: options.operands[0].clone() };
    let rows = expect_reply!(session.call(&Request::Storage(request))?, Srs);
    if options.has("json") {
        session.print_json(&rows);
    } else {
        session.print(&columns::storage::sr_info(&rows));
    }
    Ok(())
}

/// `vdi-list`, and `sr-scan`, which needs at least one SR.
pub(crate) fn vdi_list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = StorageRequest::VdiList { srs: options.operands.clone() };
    let list = expect_reply!(session.call(&Request::Storage(request))?, Vdis);
    if options.has("json") {
        session.print_json(&list);
    } else {
        session.print(&columns::storage::vdi_list(&list.vdis));
    }
    // Print what could be listed.
    if list.problems.is_empty() { Ok(()) } else { Err(Failure::Failed(list.problems)) }
}

pub(crate) fn vdi_create(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (vdi, bytes) = vdi_and_size("vdi-create", options)?;
    done(session, StorageRequest::VdiCreate { vdi, bytes })
}

pub(crate) fn vdi_resize(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (vdi, bytes) = vdi_and_size("vdi-resize", options)?;
    done(session, StorageRequest::VdiResize { vdi, bytes })
}

pub(crate) fn vdi_destroy(session: &mut Session, options: &Options) -> Result<(), Failure> {
    done(session, StorageRequest::VdiDestroy { vdi: options.operands[0].clone() })
}

pub(crate) fn vdi_snapshot(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (vdi, to) = vdi_and_copy("vdi-snapshot", options)?;
    done(session, StorageRequest::VdiSnapshot { vdi, to })
}

pub(crate) fn vdi_clone(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (vdi, to) = vdi_and_copy("vdi-clone", options)?;
    done(session, StorageRequest::VdiClone { vdi, to })
}

/// `vdi-move`: the copy is whole before the original goes. Nobody may use it meanwhile.
pub(crate) fn vdi_move(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (vdi, sr) = (&options.operands[0], &options.operands[1]);
    let row = vdi_row(session, vdi)?;
    let to = format!("{sr}:{}", row.name);
    if row.sr == *sr {
        return Err(Failure::failed(format!("{vdi}: is in {sr} already")));
    }
    if let Some(origin) = row.snapshot_of {
        return Err(Failure::failed(format!(
            "{vdi}: is a snapshot of {origin}; clone it, and move the clone"
        )));
    }
    done(session, StorageRequest::VdiCreate { vdi: to.clone(), bytes: row.bytes })?;
    let remote = session.remote.as_ref();
    let copied = lend(remote, vdi, Use::Read, |from| {
        lend(remote, &to, Use::Write, |into| {
            copy(from, into, row.bytes)
                .map_err(|error| Failure::failed(format!("{vdi}: copying to {to}: {error}")))
        })
    });
    copied
        .and_then(|()| done(session, StorageRequest::VdiDestroy { vdi: vdi.clone() }))
        .inspect_err(|_| {
            let _left = done(session, StorageRequest::VdiDestroy { vdi: to.clone() });
        })?;
    session.tell(&format!("{to}: configurations that name {vdi} have to name this one now"));
    Ok(())
}

/// What its SR says of a VDI.
pub(super) fn vdi_row(session: &mut Session, vdi: &str) -> Result<VdiRow, Failure> {
    let Some((sr, name)) = vdi.split_once(':') else {
        return Err(Failure::failed(format!("{vdi}: names no VDI; it is written SR:VDI")));
    };
    let request = StorageRequest::VdiList { srs: vec![sr.to_owned()] };
    let list = expect_reply!(session.call(&Request::Storage(request))?, Vdis);
    match list.vdis.into_iter().find(|row| row.name == name) {
        Some(row) => Ok(row),
        None if !list.problems.is_empty() => Err(Failure::Failed(list.problems)),
        None => Err(Failure::failed(format!("{vdi}: no such VDI; 'xy vdi-list' shows them all"))),
    }
}

/// Copies all but zeros to a disk that has only zeros.
fn copy(from: &File, into: &File, bytes: u64) -> std::io::Result<()> {
    let mut chunk = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let count = usize::try_from(bytes - at).map_or(chunk.len(), |left| left.min(chunk.len()));
        from.read_exact_at(&mut chunk[..count], at)?;
        if chunk[..count].iter().any(|&byte| byte != 0) {
            into.write_all_at(&chunk[..count], at)?;
        }
        at += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_bytes_or_has_a_unit() {
        for (text, bytes) in [
            ("512", Some(512)),
            ("4K", Some(4096)),
            ("10G", Some(10 << 30)),
            ("1GiB", Some(1 << 30)),
            ("2t", Some(2 << 40)),
            ("0", Some(0)),
            ("", None),
            ("G", None),
            ("+1G", None),
            ("1.5G", None),
            ("-1", None),
            ("99999999999999G", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
