//! Changes of the file of VMs' tags.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use api::client::Client;
use api::{Reply, Request, VmRow};
use gate::{Tags, tag_line, without_tag};

use crate::clients::{replace, text_of, with_line};
use crate::options::TagChange;

pub(crate) fn run(file: &Path, socket: &Path, what: TagChange) -> Result<()> {
    let text = text_of(file)?;
    let tags = Tags::parse(&text).with_context(|| file.display().to_string())?;
    match what {
        TagChange::List => {
            // Tags are told also if no daemon answers.
            list(&tags, &vms(socket).unwrap_or_default());
            Ok(())
        }
        TagChange::Add(vm, tag) => {
            let vm = uuid_of(socket, vm)?;
            let line = tag_line(&vm, &tag).map_err(anyhow::Error::msg)?;
            if text.lines().any(|it| it == line.trim_end()) {
                return Ok(());
            }
            replace(file, &with_line(&text, &line))
        }
        TagChange::Remove(vm, tag) => {
            let vm = uuid_of(socket, vm)?;
            match without_tag(&text, &vm, &tag) {
                Some(rest) => replace(file, &rest),
                None => bail!("{vm} has no tag {tag}"),
            }
        }
    }
}

fn list(tags: &Tags, vms: &[VmRow]) {
    println!("{:<36} {:<24} tags", "uuid", "name");
    for (uuid, of) in tags.iter() {
        let name = vms.iter().find(|it| it.uuid == uuid).map_or("", |it| &it.name);
        let of = of.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        println!("{uuid} {name:<24} {of}");
    }
}

/// A VM has its tags by its UUID: under another name it is the same one.
fn uuid_of(socket: &Path, vm: String) -> Result<String> {
    if tag_line(&vm, "any").is_ok() {
        return Ok(vm);
    }
    let vms = vms(socket)?;
    let found = vms.into_iter().find(|it| it.name == vm);
    found.map(|it| it.uuid).with_context(|| format!("there is no VM named {vm}"))
}

fn vms(socket: &Path) -> Result<Vec<VmRow>> {
    match Client::connect(socket)?.call(&Request::Vms, |_| ())? {
        Reply::Vms(vms) => Ok(vms),
        _ => bail!("xylemd gave another answer"),
    }
}
