//! Work on Xen as a whole: its console and its CPU pools.

use std::collections::BTreeSet;

use xen::{BitSet, CpuPlace, DomId, Errno, Hypervisor, ParameterError, Scheduler, Uuid};
use xenstore::client::{Batch, Nodes as _, Transport};

use super::{Performer, failure, refused, store};
use crate::config::VmConfig;
use crate::host::Host;
use crate::work::{Failure, Output};
use crate::xen_host::{HostAsk, HostTold, NewPool, Pool, PoolCpus, Topology};

/// How often a CPU is asked for that Xen cannot take out of its pool at this moment.
const TRIES: u32 = 10;

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    pub(super) fn host_work(&mut self, ask: HostAsk) -> Result<Output, Failure> {
        let told = match ask {
            HostAsk::Console { clear } => HostTold::Text(self.console_text(clear)?),
            HostAsk::DebugKeys { keys } => {
                let sent = self.xen.debug_keys(keys.as_bytes());
                sent.map_err(|errno| failure("cannot send debug keys: Xen returned", errno))?;
                HostTold::Done
            }
            HostAsk::Topology { pci } => {
                let unreadable = |errno| failure("the machine's topology", errno);
                let cpus = self.cpu_places()?;
                let nodes = self.xen.numa_nodes().map_err(unreadable)?;
                // As for xl, a Xen that knows no devices is no failure.
                let pci = if pci.is_empty() { Ok(Vec::new()) } else { self.xen.pci_nodes(&pci) };
                let pci = pci.unwrap_or_default();
                HostTold::Topology(Box::new(Topology { cpus, nodes, pci }))
            }
            HostAsk::NodeAffinity { domids } => self.nodes_of(&domids)?,
            HostAsk::Pools => HostTold::Pools(self.pools()?),
            HostAsk::CreatePool { pool, uuid, dry_run } => {
                HostTold::Pool(self.create_pool(*pool, uuid, dry_run)?)
            }
            HostAsk::DestroyPool { pool } => self.destroy_pool(&pool)?,
            HostAsk::RenamePool { pool, name } => self.rename_pool(&pool, &name)?,
            HostAsk::AddCpus { pool, cpus } => {
                let (id, cpus) = (self.pool(&pool)?.id, cpus.named(&self.cpu_places()?));
                let add = |cpu| {
                    let added = self.xen.add_cpu_to_pool(id, cpu);
                    Some(format!("CPU {cpu} is not added to {pool}: {}", not_added(added.err()?)))
                };
                HostTold::Warnings(cpus.into_iter().filter_map(add).collect())
            }
            HostAsk::RemoveCpus { pool, cpus } => {
                let (id, cpus) = (self.pool(&pool)?.id, cpus.named(&self.cpu_places()?));
                let remove = |cpu| {
                    let removed = self.remove_cpu(id, cpu);
                    Some(format!("CPU {cpu} stays in {pool}: {}", not_removed(removed.err()?)))
                };
                HostTold::Warnings(cpus.into_iter().filter_map(remove).collect())
            }
            HostAsk::MoveDomain { domid, handle, name, pool } => {
                self.move_domain(domid, handle, &name, &pool)?
            }
            HostAsk::SetParameters { settings } => self.set_parameters(&settings)?,
            HostAsk::Enforcing => HostTold::Enforcing(match self.xen.flask_enforces() {
                Ok(enforces) => Some(enforces),
                Err(Errno::ENOSYS) => None,
                Err(errno) => return Err(failure("Xen's security module", errno)),
            }),
            HostAsk::SetEnforcing { enforcing } => {
                self.xen.set_flask_enforces(enforcing).map_err(module_failure)?;
                HostTold::Done
            }
            HostAsk::LoadPolicy { policy } => {
                self.xen.load_flask_policy(&policy).map_err(module_failure)?;
                HostTold::Done
            }
            HostAsk::Pci(ask) => self.pci_work(ask)?,
            HostAsk::Psr(ask) => self.psr_work(ask)?,
            HostAsk::SplitByNode { fresh_uuid } => self.split_by_node(fresh_uuid)?,
        };
        Ok(Output::Host(Box::new(told)))
    }

    /// In their order, up to the first that cannot be set.
    fn set_parameters(&mut self, settings: &[(String, String)]) -> Result<HostTold, Failure> {
        for (name, value) in settings {
            self.xen.set_parameter(name, value).map_err(|error| {
                let why = match error {
                    ParameterError::ReadOnly => "Xen does not change it while it runs".to_owned(),
                    ParameterError::Value => format!("{value:?} is no value of it"),
                    ParameterError::Xen(Errno::ENOENT) => {
                        "Xen has no parameter of this name that it shows".to_owned()
                    }
                    ParameterError::Xen(Errno::ENOSYS) => "this Xen has no hypfs".to_owned(),
                    ParameterError::Xen(Errno::EINVAL) => format!("Xen does not take {value:?}"),
                    ParameterError::Xen(errno) => format!("Xen returned {errno}"),
                };
                Failure(format!("cannot set {name}: {why}"))
            })?;
        }
        Ok(HostTold::Done)
    }

    fn console_text(&mut self, clear: bool) -> Result<String, Failure> {
        /// More than any console's ring holds.
        const BYTES_MAX: usize = 64 << 20;
        let (mut bytes, mut next) = (Vec::new(), 0);
        while bytes.len() < BYTES_MAX {
            let text = if clear { self.xen.take_console(next) } else { self.xen.console(next) };
            let text = text.map_err(|errno| failure("Xen's console", errno))?;
            if text.bytes.is_empty() {
                break;
            }
            bytes.extend(text.bytes);
            next = text.next;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn cpu_places(&mut self) -> Result<Vec<Option<CpuPlace>>, Failure> {
        self.xen.cpu_places().map_err(|errno| failure("the machine's CPUs", errno))
    }

    /// Domains that are gone are left out.
    fn nodes_of(&mut self, domids: &[DomId]) -> Result<HostTold, Failure> {
        let physical = self.xen.phys_info().map_err(|errno| failure("the host", errno))?;
        let nodes_of =
            |&domid: &DomId| Some((domid, numbers(&self.xen.node_affinity(domid).ok()?)));
        let by_domain = domids.iter().filter_map(nodes_of).collect();
        Ok(HostTold::Nodes { by_domain, nodes: physical.nodes })
    }

    pub(super) fn pools(&mut self) -> Result<Vec<Pool>, Failure> {
        let (mut pools, mut from) = (Vec::new(), 0);
        while let Some(pool) =
            self.xen.cpupool_from(from).map_err(|errno| failure("the list of CPU pools", errno))?
        {
            from = pool.id + 1;
            let name = match self.store.read(&format!("{}/name", path(pool.id))) {
                Ok(name) => Some(String::from_utf8_lossy(&name).into_owned()),
                // Until someone names it.
                Err(error) if error.is_not_found() => (pool.id == 0).then(|| "Pool-0".to_owned()),
                Err(error) => return Err(error.into()),
            };
            let xen::CpuPool { id, scheduler_id, domains, cpus } = pool;
            pools.push(Pool { id, name, scheduler_id, cpus: numbers(&cpus), domains });
        }
        Ok(pools)
    }

    /// As [`find_pool`], among all.
    pub(super) fn pool(&mut self, wanted: &str) -> Result<Pool, Failure> {
        find_pool(&self.pools()?, wanted).cloned()
    }

    fn create_pool(&mut self, new: NewPool, uuid: Uuid, dry_run: bool) -> Result<Pool, Failure> {
        let NewPool { name, scheduler, cpus } = new;
        let pools = self.pools()?;
        check_name(&name, &pools)?;
        let own = pools.first().and_then(|pool| Scheduler::from_id(pool.scheduler_id));
        let scheduler = scheduler.or(own).ok_or_else(|| {
            Failure(format!("{name}: Xen does not say its scheduler; name one with sched="))
        })?;
        let cpus = self.free_cpus_for(&name, &cpus)?;
        let mut pool =
            Pool { id: 0, name: Some(name), scheduler_id: scheduler as u32, cpus, domains: 0 };
        if !dry_run {
            pool.id = self.make_pool(&pool, scheduler, uuid)?;
        }
        Ok(pool)
    }

    /// The wanted CPUs, all of which must be free.
    fn free_cpus_for(&mut self, name: &str, wanted: &PoolCpus) -> Result<BTreeSet<u32>, Failure> {
        let free = self.xen.free_cpus().map_err(|errno| failure("the list of free CPUs", errno))?;
        let places = self.cpu_places()?;
        match wanted {
            PoolCpus::None => Ok(BTreeSet::new()),
            PoolCpus::OfNodes(nodes) => {
                let of_nodes = nodes.iter().flat_map(|&node| Topology::cpus_of_node(&places, node));
                let cpus: BTreeSet<u32> = of_nodes.filter(|&cpu| free.contains(cpu)).collect();
                if cpus.is_empty() {
                    return Err(Failure(format!(
                        "{name}: no CPU of these nodes is free; take some out of their pool with \
                         `xy cpupool-cpu-remove`"
                    )));
                }
                Ok(cpus)
            }
            PoolCpus::These(list) => {
                let cpus = list.named(&places);
                match cpus.iter().find(|&&cpu| !free.contains(cpu)) {
                    None => Ok(cpus),
                    Some(cpu) => Err(Failure(format!(
                        "{name}: CPU {cpu} is none of the machine's or not free; take it out of its \
                         pool with `xy cpupool-cpu-remove`"
                    ))),
                }
            }
        }
    }

    /// Makes a pool as it is to be; nothing is left of one that could not be made.
    fn make_pool(&mut self, pool: &Pool, scheduler: Scheduler, uuid: Uuid) -> Result<u32, Failure> {
        let name = pool.name.as_deref().unwrap_or_default();
        let id = self.xen.create_cpupool(None, scheduler).map_err(|errno| match errno {
            Errno::EINVAL => {
                let scheduler = crate::xen_host::scheduler_name(scheduler as u32);
                Failure(format!("{name}: this Xen has no scheduler {scheduler}"))
            }
            errno => failure(name, errno),
        })?;
        let mut filled = Ok(());
        for &cpu in &pool.cpus {
            filled = self.xen.add_cpu_to_pool(id, cpu).map_err(|errno| {
                Failure(format!("{name}: CPU {cpu} cannot be added: {}", not_added(errno)))
            });
            if filled.is_err() {
                break;
            }
        }
        let mut batch = Batch::new();
        batch.write(&format!("{}/uuid", path(id)), uuid.to_string());
        batch.write(&format!("{}/name", path(id)), name);
        let made = filled.and_then(|()| Ok(self.store.commit(&batch).map(drop)?));
        if let Err(failure) = made {
            for &cpu in &pool.cpus {
                // It is in the pool, or it is not.
                let _absent = self.remove_cpu(id, cpu);
            }
            let _left = self.xen.destroy_cpupool(id);
            return Err(failure);
        }
        Ok(id)
    }

    fn destroy_pool(&mut self, wanted: &str) -> Result<HostTold, Failure> {
        let pool = self.pool(wanted)?;
        if pool.domains > 0 {
            return Err(Failure(format!(
                "{wanted}: has {} domains; move them with `xy cpupool-migrate`",
                pool.domains
            )));
        }
        for &cpu in &pool.cpus {
            self.remove_cpu(pool.id, cpu).map_err(|errno| {
                Failure(format!("{wanted}: CPU {cpu} cannot be removed: {}", not_removed(errno)))
            })?;
        }
        self.xen.destroy_cpupool(pool.id).map_err(|errno| failure(wanted, errno))?;
        store::remove_tree(&mut self.store, &path(pool.id))?;
        Ok(HostTold::Done)
    }

    fn rename_pool(&mut self, wanted: &str, name: &str) -> Result<HostTold, Failure> {
        let pools = self.pools()?;
        let pool = find_pool(&pools, wanted)?;
        if pool.name.as_deref() != Some(name) {
            check_name(name, &pools)?;
            store::write_one(&mut self.store, &format!("{}/name", path(pool.id)), name)?;
        }
        Ok(HostTold::Done)
    }

    fn remove_cpu(&mut self, pool: u32, cpu: u32) -> Result<(), Errno> {
        let mut removed = self.xen.remove_cpu_from_pool(pool, cpu);
        for _ in 1..TRIES {
            if removed != Err(Errno::EAGAIN) {
                break;
            }
            removed = self.xen.remove_cpu_from_pool(pool, cpu);
        }
        removed
    }

    fn move_domain(
        &mut self,
        domid: DomId,
        handle: Uuid,
        name: &str,
        pool: &str,
    ) -> Result<HostTold, Failure> {
        let info = self.xen.domain(domid).map_err(refused("look up", domid))?;
        if info.is_none_or(|info| info.handle != handle) {
            return Err(Failure(format!("{name}: is gone; `xy list` shows what is there")));
        }
        self.put_in_pool(domid, name, pool)?;
        Ok(HostTold::Done)
    }

    /// Moves a domain into the pool with this number or name.
    pub(super) fn put_in_pool(
        &mut self,
        domid: DomId,
        name: &str,
        pool: &str,
    ) -> Result<(), Failure> {
        let to = self.pool(pool)?;
        self.xen.move_domain_to_pool(to.id, domid).map_err(|errno| match errno {
            Errno::ENOENT => Failure(format!(
                "{name}: {pool} has no CPUs; give it some with `xy cpupool-cpu-add`"
            )),
            errno => Failure(format!("{name}: cannot be moved to {pool}: Xen returned {errno}")),
        })
    }

    /// The pool that a VM is to run in, if it is another than the first; it must have CPUs.
    pub(super) fn wanted_pool(&mut self, config: &VmConfig) -> Result<Option<Pool>, Failure> {
        let Some(pool) = &config.options.pool else { return Ok(None) };
        let place = config.origin.at("pool");
        let found = self.pool(pool).map_err(|error| failure(&place, error.0))?;
        match found.cpus.is_empty() {
            true => Err(Failure(format!(
                "{place}: {pool} has no CPUs; give it some with `xy cpupool-cpu-add`"
            ))),
            false => Ok(Some(found)),
        }
    }

    /// Checks everything first: half a split would be hard to undo.
    fn split_by_node(&mut self, fresh_uuid: Uuid) -> Result<HostTold, Failure> {
        let pools = self.pools()?;
        let [all] = pools.as_slice() else {
            return Err(Failure("cannot split: there are several CPU pools already".to_owned()));
        };
        let scheduler = Scheduler::from_id(all.scheduler_id)
            .ok_or_else(|| Failure("cannot split: Xen does not say its scheduler".to_owned()))?;
        let places = self.cpu_places()?;
        let nodes: BTreeSet<u32> = places.iter().flatten().map(|place| place.node).collect();
        let first = places.iter().flatten().next().map(|place| place.node).unwrap_or_default();
        let own = Topology::cpus_of_node(&places, first);
        let dom0 = self.xen.domain(DomId::DOM0).map_err(refused("look up", DomId::DOM0))?;
        let vcpus = dom0.map(|info| info.vcpus_online).unwrap_or_default();
        if vcpus as usize > own.len() {
            return Err(Failure(format!(
                "cannot split: Domain-0 has {vcpus} vCPUs online, and node {first} only {} CPUs; \
                 take vCPUs offline in it first (echo 0 >/sys/devices/system/cpu/cpuN/online)",
                own.len()
            )));
        }
        let mut not_all = Vec::new();
        for &cpu in own.difference(&all.cpus) {
            if let Err(errno) = self.xen.add_cpu_to_pool(0, cpu) {
                not_all.push(format!("CPU {cpu} is in no pool: {}", not_added(errno)));
            }
        }
        let name = format!("Pool-node{first}");
        store::write_one(&mut self.store, &format!("{}/name", path(0)), &name)?;
        for (index, &node) in (1_u8..).zip(nodes.iter().filter(|&&node| node != first)) {
            let mut cpus = Topology::cpus_of_node(&places, node);
            for cpu in cpus.clone().intersection(&all.cpus) {
                if let Err(errno) = self.remove_cpu(0, *cpu) {
                    cpus.remove(cpu);
                    not_all.push(format!("CPU {cpu} stays in {name}: {}", not_removed(errno)));
                }
            }
            let mut uuid = fresh_uuid;
            uuid.0[15] ^= index;
            let (name, scheduler_id) = (Some(format!("Pool-node{node}")), scheduler as u32);
            let pool = Pool { id: 0, name, scheduler_id, cpus, domains: 0 };
            self.make_pool(&pool, scheduler, uuid)?;
        }
        Ok(HostTold::Warnings(not_all))
    }
}

fn module_failure(errno: Errno) -> Failure {
    Failure(match errno {
        Errno::ENOSYS => "Xen runs without the security module Flask".to_owned(),
        Errno::EINVAL => "Xen does not take it as a policy of Flask".to_owned(),
        errno => format!("the security module Flask refuses: Xen returned {errno}"),
    })
}

/// The pool with this number or name.
pub(super) fn find_pool<'a>(pools: &'a [Pool], wanted: &str) -> Result<&'a Pool, Failure> {
    let number = wanted.parse::<u32>().ok();
    let is_meant = |pool: &&Pool| match number {
        Some(number) => pool.id == number,
        None => pool.name.as_deref() == Some(wanted),
    };
    pools.iter().find(is_meant).ok_or_else(|| {
        Failure(format!("{wanted}: no such CPU pool; `xy cpupool-list` shows them all"))
    })
}

/// As libxl has it.
fn path(pool: u32) -> String {
    format!("/local/pool/{pool}")
}

fn numbers(set: &BitSet) -> BTreeSet<u32> {
    set.iter().collect()
}

fn check_name(name: &str, pools: &[Pool]) -> Result<(), Failure> {
    if name.is_empty() || name.bytes().all(|it| it.is_ascii_digit()) {
        return Err(Failure(format!(
            "{name:?} would be read as a pool's number; name it otherwise"
        )));
    }
    match pools.iter().find(|pool| pool.name.as_deref() == Some(name)) {
        Some(pool) => Err(Failure(format!("{name}: is the name of pool {} already", pool.id))),
        None => Ok(()),
    }
}

/// Why a CPU is not in a pool.
fn not_added(errno: Errno) -> String {
    match errno {
        Errno::EINVAL => "the machine has no such CPU".to_owned(),
        Errno::ENODEV | Errno::EBUSY => {
            "it is not free; take it out of its pool with `xy cpupool-cpu-remove`".to_owned()
        }
        errno => format!("Xen returned {errno}"),
    }
}

/// Why a CPU is still in a pool.
fn not_removed(errno: Errno) -> String {
    match errno {
        Errno::EINVAL => "the machine has no such CPU".to_owned(),
        Errno::ENODEV | Errno::EADDRNOTAVAIL => "it is not in that pool".to_owned(),
        Errno::EBUSY => "it is the last one, and there are domains in the pool".to_owned(),
        Errno::EAGAIN => "Xen cannot take it out at this moment; try again".to_owned(),
        errno => format!("Xen returned {errno}"),
    }
}
