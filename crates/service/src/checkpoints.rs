//! Checkpoints, returns to them, and copies of saved VMs.

use std::collections::BTreeSet;
use std::path::Path;

use api::{CheckpointRequest, MakeCheckpoint, MakeCopies, Target};
use toolstack::checkpoint::{self, Checkpoint};
use toolstack::config::{Start, VmConfig};
use toolstack::saved::SavedFile;
use toolstack::{Copy, Reply, Request, xlcfg};

use crate::configs::absolute;
use crate::{Failed, News, Progress, Service, render, succeeded, unexpected};

/// Most copies of one request.
const COPIES_MAX: u32 = 4096;

impl Service<'_> {
    pub(crate) fn checkpoint_reply(
        &self,
        request: CheckpointRequest,
    ) -> Result<api::Reply, Failed> {
        match request {
            CheckpointRequest::Checkpoint(make) => self.checkpoint(make),
            CheckpointRequest::CheckpointList { vms } => self.checkpoints(&vms),
            CheckpointRequest::CheckpointDestroy { vm: Target(vm), name } => {
                self.destroy_checkpoint(&vm, name)
            }
            CheckpointRequest::Revert(revert) => self.revert(&revert),
            CheckpointRequest::Clone(make) => self.clone_saved(&make),
        }
    }

    fn checkpoint(&self, make: MakeCheckpoint) -> Result<api::Reply, Failed> {
        let MakeCheckpoint { target, name, progress } = make;
        let name = match name {
            Some(name) => name,
            None => self.next_name(&target)?,
        };
        let id = self.fresh_uuid()?;
        let request = Request::Checkpoint { target: target.0.clone(), name: name.clone(), id };
        self.save_for(target, id, request, progress.into())?;
        Ok(api::Reply::Checkpointed { name })
    }

    /// The next number of a VM's checkpoints.
    fn next_name(&self, Target(target): &Target) -> Result<String, Failed> {
        let uuid = match self.ask(Request::Resolve { target: target.clone() })? {
            Reply::Resolved { uuid, .. } | Reply::Starting { uuid, .. } => uuid,
            other => return Err(unexpected(&other)),
        };
        let all = self.all_checkpoints()?;
        let numbers = all.iter().filter(|it| it.uuid == uuid).filter_map(|it| it.name.parse().ok());
        Ok((numbers.max().unwrap_or(0_u64).saturating_add(1)).to_string())
    }

    fn all_checkpoints(&self) -> Result<Vec<Checkpoint>, Failed> {
        match self.ask(Request::Checkpoints)? {
            Reply::Checkpoints(all) => Ok(all),
            other => Err(unexpected(&other)),
        }
    }

    fn checkpoints(&self, vms: &[Target]) -> Result<api::Reply, Failed> {
        let all = self.all_checkpoints()?;
        let wanted =
            |it: &&Checkpoint| vms.is_empty() || vms.iter().any(|Target(vm)| is_of(it, vm));
        let rows = all.iter().filter(wanted).map(render::checkpoint_row).collect();
        Ok(api::Reply::Checkpoints(rows))
    }

    fn find_checkpoint(&self, vm: &str, name: &str) -> Result<Checkpoint, Failed> {
        let all = self.all_checkpoints()?;
        let mut found = all.into_iter().filter(|it| is_of(it, vm) && it.name == name);
        match (found.next(), found.next()) {
            (Some(checkpoint), None) => Ok(checkpoint),
            (Some(_), Some(_)) => {
                Err(Failed::Told(format!("{vm}: several VMs had this name; give the UUID of one")))
            }
            (None, _) => Err(Failed::Told(format!(
                "{vm}: has no checkpoint {name}; `xy checkpoint-list` shows them all"
            ))),
        }
    }

    fn destroy_checkpoint(&self, vm: &str, name: String) -> Result<api::Reply, Failed> {
        let uuid = self.find_checkpoint(vm, &name)?.uuid;
        self.done(Request::DestroyCheckpoint { uuid, name })
    }

    /// A file and the configuration in it.
    fn saved_vm(&self, path: &str) -> Result<(Box<SavedFile>, VmConfig), Failed> {
        let file = self.read_saved(path)?;
        let source = xlcfg::Source { file: path, text: &file.config_text, overrides: &[] };
        let config = self.recorded(source, "/", false)?;
        Ok((file, config))
    }

    fn revert(&self, revert: &api::Revert) -> Result<api::Reply, Failed> {
        let api::Revert { vm: Target(vm), name, paused, progress } = revert;
        let uuid = self.find_checkpoint(vm, name)?.uuid;
        let (file, config) = self.saved_vm(&checkpoint::path(uuid, name))?;
        let start = if *paused { Start::Paused } else { Start::Running };
        let vm = config.name.clone();
        let request = Request::Revert { file, config: Box::new(config), start };
        self.created(&vm, request, (*progress).into())
    }

    fn clone_saved(&self, make: &MakeCopies) -> Result<api::Reply, Failed> {
        let MakeCopies { of, cwd, count, pattern } = make;
        if !(1..=COPIES_MAX).contains(count) {
            return Err(Failed::Told(format!("{count} copies: expected 1 to {COPIES_MAX}")));
        }
        let path = self.place_of(of, cwd)?;
        let (file, config) = self.saved_vm(&path)?;
        let pattern = pattern.clone().unwrap_or_else(|| format!("{}-%d", config.name));
        let mut copies = Vec::new();
        for name in self.free_names(&pattern, *count)? {
            let copy = checkpoint::copy_of(&file, &config, &name, self.fresh_uuid()?);
            let (config, disks) = copy.map_err(Failed::Told)?;
            copies.push(Copy { config: Box::new(config), disks });
        }
        let mut hear = |news| match news {
            News::Started { vm, done, total, failure } => {
                let step = failure.map_or("cloned".to_owned(), |why| format!("failed: {why}"));
                // They are made even if nobody listens any more.
                let _gone = self.tell_started(vm, done, total, step);
                Ok(())
            }
            News::Progress(_) | News::Told(_) => Ok(()),
        };
        let ask = self.request(Request::Clone { file, copies }, Progress::Unwanted);
        let reply = self.daemon.wait(ask, None, self.door, &mut hear)?.ok_or(Failed::Gone)?;
        match succeeded(reply)? {
            Reply::StartedAll(all) => Ok(api::Reply::StartedAll(render::started_all(&all))),
            other => Err(unexpected(&other)),
        }
    }

    /// The file that is meant by `VM:NAME`, by the name of a checkpoint, or by a path.
    fn place_of(&self, of: &str, cwd: &str) -> Result<String, Failed> {
        if of.contains('/') {
            return Ok(absolute(Path::new(cwd), of));
        }
        if let Some((vm, name)) = of.rsplit_once(':') {
            let checkpoint = self.find_checkpoint(vm, name)?;
            return Ok(checkpoint::path(checkpoint.uuid, name));
        }
        let all = self.all_checkpoints()?;
        let mut found = all.iter().filter(|it| it.name == of);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(checkpoint::path(one.uuid, of)),
            (Some(_), Some(_)) => Err(Failed::Told(format!(
                "{of}: several VMs have a checkpoint of this name; write VM:{of}"
            ))),
            (None, _) => Err(Failed::Told(format!(
                "{of}: no such checkpoint; write VM:NAME, or the path of a file (./{of})"
            ))),
        }
    }

    /// Names for new VMs, with the smallest numbers that are free.
    fn free_names(&self, pattern: &str, count: u32) -> Result<Vec<String>, Failed> {
        let pattern = match pattern.contains("%d") {
            true => pattern.to_owned(),
            false if count == 1 => return Ok(vec![pattern.to_owned()]),
            false => format!("{pattern}-%d"),
        };
        let mut used: BTreeSet<String> =
            self.rows(&[])?.into_iter().filter_map(|row| row.name).collect();
        match self.ask(Request::Vms)? {
            Reply::Vms(rows) => used.extend(rows.into_iter().map(|row| row.name)),
            other => return Err(unexpected(&other)),
        }
        let names = (1_u64..).map(|number| pattern.replace("%d", &number.to_string()));
        Ok(names.filter(|name| !used.contains(name)).take(count as usize).collect())
    }
}

fn is_of(it: &Checkpoint, vm: &str) -> bool {
    it.vm == vm || vm.parse() == Ok(it.uuid)
}
