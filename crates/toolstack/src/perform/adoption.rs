//! Work of adoption: from an earlier daemon, and from other toolstacks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use storage::{Attachment, HostError, VdiName};
use xen::{DomId, DomainRef, Hypervisor, Presence, Uuid};
use xenstore::client::Transport;

use super::{Performer, failure, refused, store};
use crate::config::VmConfig;
use crate::device_model::OwnModel;
use crate::foreign::{ForeignLoop, ForeignReading};
use crate::host::Host;
use crate::layout::{Nodes, Removal};
use crate::network;
use crate::userdata::Userdata;
use crate::work::{
    Failure, IdentityCheck, LOOP_TAG_PREFIX, LeftFiles, Output, OwnLoop, Record, Survey, WorkClass,
    WorkInfo, loop_tag, parse_loop_tag,
};
use crate::xlcfg;

/// Work of adoption.
#[derive(Clone, Debug)]
pub enum AdoptionWork {
    /// Reads the domains, our records, and everything attached for our VMs.
    Observe,
    /// Detaches disks of VMs that no longer exist.
    DetachOrphans { orphans: Vec<OwnLoop> },
    /// Kills device models of domains that no longer exist.
    EndOrphans { models: Vec<OwnModel> },
    /// Reads a domain of another toolstack.
    ReadForeign { domid: DomId, uuid: Uuid, generation: u64 },
    /// Reads the devices of a VM whose record cannot be read.
    ReadLeft { domain: DomainRef, uuid: Uuid },
    /// Adopts such a domain: attached disks first, the record last.
    Adopt {
        domain: DomainRef,
        uuid: Uuid,
        loops: Vec<ForeignLoop>,
        config: Arc<VmConfig>,
        nodes: Nodes,
        removals: Vec<Removal>,
        userdata: Userdata,
    },
    /// Gives a VM to xl.
    Disown {
        domain: DomainRef,
        uuid: Uuid,
        loops: Vec<ForeignLoop>,
        nodes: Nodes,
        userdata: Userdata,
    },
    /// Writes what libxl looks for, of a domain whose nodes were written by an earlier daemon.
    TellLibxl { domain: DomainRef, userdata: Userdata },
}

impl AdoptionWork {
    pub(crate) fn info(&self) -> WorkInfo {
        let info = |name, class, domain| WorkInfo { name, class, domain };
        match self {
            Self::Observe => info("observe", WorkClass::Query, None),
            Self::DetachOrphans { .. } => info("detach-orphans", WorkClass::Release, None),
            Self::EndOrphans { .. } => info("end-orphans", WorkClass::Release, None),
            Self::ReadForeign { .. } => info("read-foreign", WorkClass::Query, None),
            Self::ReadLeft { domain, .. } => info("read-left", WorkClass::Query, Some(*domain)),
            Self::Adopt { domain, .. } => info("adopt", WorkClass::Change, Some(*domain)),
            Self::Disown { domain, .. } => info("disown", WorkClass::Change, Some(*domain)),
            Self::TellLibxl { domain, .. } => info("tell-libxl", WorkClass::Change, Some(*domain)),
        }
    }

    pub(crate) fn perform<H: Hypervisor, T: Transport, O: Host>(
        self,
        by: &mut Performer<H, T, O>,
    ) -> Result<Output, Failure> {
        match self {
            Self::Observe => by.observe(),
            Self::DetachOrphans { orphans } => {
                let detach =
                    |it: OwnLoop| storage::detach(by.host.system(), &it.attachment, &it.tag).err();
                // A failure does not stop the others.
                let failed: Vec<_> = orphans.into_iter().filter_map(detach).collect();
                match failed.into_iter().next() {
                    Some(error) => Err(Failure(error.to_string())),
                    None => Ok(Output::Done),
                }
            }
            Self::EndOrphans { models } => {
                let end = |it: OwnModel| by.end_model(it.domid, it.uuid, Some(it.process)).err();
                // A failure does not stop the others.
                let failed: Vec<Failure> = models.into_iter().filter_map(end).collect();
                failed.into_iter().next().map_or(Ok(Output::Done), Err)
            }
            Self::ReadForeign { domid, uuid, generation } => {
                by.read_foreign(domid, uuid, generation).map(Output::Foreign)
            }
            Self::ReadLeft { domain, uuid } => {
                store::devices_left(&mut by.store, domain.domid, uuid).map(Output::Left)
            }
            Self::Adopt { domain, uuid, loops, config, nodes, removals, userdata } => {
                by.check_identity(domain, IdentityCheck::Needed)?;
                let mut claimed = Vec::new();
                by.claim_adopted(uuid, &config, &mut claimed)
                    .and_then(|()| by.adopt(domain.domid, uuid, &loops, &nodes, &removals))
                    .inspect_err(|_| by.release_all(&claimed))?;
                userdata.keep(&mut by.host);
                Ok(Output::Done)
            }
            Self::Disown { domain, uuid, loops, nodes, userdata } => {
                by.check_identity(domain, IdentityCheck::Needed)?;
                userdata.keep(&mut by.host);
                store::disown(&mut by.store, domain.domid, uuid, &nodes)?;
                for it in loops {
                    // Under either name it is the domain's.
                    let _left = by.host.system().tag_loop(&it.device.path, &it.path);
                }
                Ok(Output::Done)
            }
            Self::TellLibxl { domain, userdata } => {
                userdata.keep(&mut by.host);
                // Nobody removes what is written after the domain's end.
                if by.presence(domain)? != Presence::Here {
                    let _reported = by.host.remove_userdata(domain.domid, userdata.uuid);
                }
                Ok(Output::Done)
            }
        }
    }
}

/// The configuration of a complete VM.
fn recorded(record: &Record) -> Option<(Uuid, VmConfig)> {
    record.complete.as_ref()?;
    let source = xlcfg::Source { file: "record", text: &record.config_text, overrides: &[] };
    Some((record.uuid, xlcfg::parse(source).ok()?))
}

fn lives(survey: &Survey, domid: DomId, uuid: Uuid) -> bool {
    survey.domains.iter().any(|info| info.domid == domid && info.handle == uuid)
}

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    fn observe(&mut self) -> Result<Output, Failure> {
        // Before the domains, of which others may make more.
        let kept = self.host.userdata().unwrap_or_default();
        let survey = self.survey(&BTreeMap::new())?;
        self.drop_userdata(kept, &survey);
        // Nobody waits for it: a port without an interface carries nothing.
        let _left = network::forget_dead(&mut self.host, |domid, uuid| lives(&survey, domid, uuid));
        let records = store::records(&mut self.store)?;
        let unique_ids = self.unique_ids(&survey, &records)?;
        let loops = self.attached(&records)?;
        let models = self.host.models().map_err(|error| failure("the host's processes", error))?;
        let received = store::received(&mut self.store)?;
        let left = LeftFiles {
            checkpoints: self.has_unsettled_checkpoints(),
            host_saves: self.has_host_saves(),
        };
        Ok(Output::Observed { survey, records, loops, unique_ids, models, received, left })
    }

    /// What a host that lost its power has of domains that are no more.
    fn drop_userdata(&mut self, kept: Vec<(DomId, Uuid)>, survey: &Survey) {
        for (domid, uuid) in kept.into_iter().filter(|(domid, uuid)| !lives(survey, *domid, *uuid))
        {
            let _reported = self.host.remove_userdata(domid, uuid);
        }
    }

    /// Xen's unique ids of the domains in our records, if supported.
    fn unique_ids(
        &mut self,
        survey: &Survey,
        records: &[Record],
    ) -> Result<BTreeMap<DomId, u64>, Failure> {
        let mut unique_ids = BTreeMap::new();
        if !self.xen.abi().tells_unique_ids() {
            return Ok(unique_ids);
        }
        let recorded: BTreeSet<Uuid> = records.iter().map(|record| record.uuid).collect();
        for info in survey.domains.iter().filter(|info| recorded.contains(&info.handle)) {
            let domid = info.domid;
            let state = self.xen.life_state(domid).map_err(refused("look up", domid))?;
            // A domain destroyed since the list is noticed when it is looked up.
            unique_ids.extend(state.map(|state| (domid, state.unique_id)));
        }
        Ok(unique_ids)
    }

    /// Everything attached for our VMs, by tag.
    fn attached(&mut self, records: &[Record]) -> Result<Vec<OwnLoop>, Failure> {
        let configs: BTreeMap<Uuid, VmConfig> = records.iter().filter_map(recorded).collect();
        let who = |tag: &str| {
            let (uuid, number) = parse_loop_tag(tag).unwrap_or_default();
            let config = configs.get(&uuid);
            let disk = config.and_then(|it| it.disks.iter().find(|it| it.vdev.number == number));
            match (config, disk) {
                (Some(config), Some(disk)) => disk.user(&config.name),
                _ => format!("VM {uuid} (vbd {number})"),
            }
        };
        let system = self.host.system();
        let mut all: Vec<OwnLoop> = storage::attached(system, LOOP_TAG_PREFIX, &who)
            .map_err(|error| Failure(error.to_string()))?
            .into_iter()
            .map(|it| OwnLoop { attachment: it.attachment, tag: it.owner })
            .collect();
        let known: BTreeSet<String> = all.iter().map(|it| it.tag.clone()).collect();
        for (uuid, config) in &configs {
            for disk in config.disks.iter().filter(|disk| disk.is_attached_first()) {
                let tag = loop_tag(*uuid, disk.vdev.number);
                // An earlier release recorded a block device in the record only.
                if !known.contains(&tag)
                    && let Ok(id @ storage::DiskId::Device(number)) = system.identify(&disk.target)
                {
                    let who = disk.user(&config.name);
                    let (owner, note) = (tag.clone(), disk.target.clone());
                    let claim = storage::Claim { disk: id, mode: disk.mode, owner, who, note };
                    storage::Claims::new(system).note(&claim).map_err(|it| failure(&tag, it))?;
                    let path = disk.target.clone();
                    let device = storage::BlockDevice { path, number };
                    all.push(OwnLoop { attachment: Attachment::Block(device), tag });
                }
            }
        }
        Ok(all)
    }

    fn read_foreign(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        generation: u64,
    ) -> Result<Box<ForeignReading>, Failure> {
        let gone = || Failure(format!("domain {domid} is gone; `xy list` shows what is there"));
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        let info = info.filter(|info| info.handle == uuid).ok_or_else(gone)?;
        let domain =
            self.xen.identify(domid, uuid, generation).map_err(refused("identify", domid))?;
        let mut reading = store::foreign(&mut self.store, domain, info)?;
        for device in &mut reading.devices {
            let Some(path) = device.keys.get("params").filter(|path| !path.is_empty()) else {
                continue;
            };
            device.file = match self.host.system().inspect(path) {
                Ok(kind) => Some(kind),
                Err(HostError::Missing) => None,
                Err(error) => return Err(failure(path, error)),
            };
        }
        Ok(Box::new(reading))
    }

    /// The tags come first: a tag without a record is harmless while the domain lives, but a record
    /// without tags would lose the devices.
    fn adopt(
        &mut self,
        domid: DomId,
        uuid: Uuid,
        loops: &[ForeignLoop],
        nodes: &Nodes,
        removals: &[Removal],
    ) -> Result<(), Failure> {
        let adopted = self
            .tag_loops(uuid, loops)
            .and_then(|()| store::adopt(&mut self.store, domid, uuid, nodes, removals));
        if adopted.is_err() {
            for it in loops {
                // It remains its maker's under either name.
                let _left = self.host.system().tag_loop(&it.device.path, &it.path);
            }
        }
        adopted
    }

    /// Claims the VM's disks, whoever else uses them.
    fn claim_adopted(
        &mut self,
        uuid: Uuid,
        config: &VmConfig,
        claimed: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let system = self.host.system();
        for disk in config.disks.iter().filter(|it| it.is_attached_first()) {
            let owner = loop_tag(uuid, disk.vdev.number);
            let target = &disk.target;
            let failed = |error| failure(target, error);
            if storage::Claims::new(system).of(&owner).map_err(failed)?.is_some()
                || VdiName::parse(target).is_some()
            {
                continue;
            }
            let id = system.identify(target).map_err(failed)?;
            let (who, note) = (disk.user(&config.name), target.clone());
            claimed.push(owner.clone());
            let claim = storage::Claim { disk: id, mode: disk.mode, owner, who, note };
            storage::Claims::new(system).note(&claim).map_err(failed)?;
        }
        Ok(())
    }

    /// The domain remains another toolstack's.
    fn release_all(&mut self, owners: &[String]) {
        for owner in owners {
            // Report the first error.
            let _kept = storage::Claims::new(self.host.system()).release(owner);
        }
    }

    fn tag_loops(&mut self, uuid: Uuid, loops: &[ForeignLoop]) -> Result<(), Failure> {
        loops.iter().try_for_each(|it| {
            let tag = loop_tag(uuid, it.devid);
            let tagged = self.host.system().tag_loop(&it.device.path, &tag);
            tagged.map_err(|error| failure(&it.device.path, error))
        })
    }
}
