//! The machine as a whole: its topology and CPU pools.
//!
//! Sources: xen `tools/xl/xl_info.c`, `xl_cpupool.c`, `xl_pci.c`.

use std::fmt::Write as _;

use api::{Info, PciRow, PoolRow, Topology};

use super::{info, name, put, shown};

/// `info -n`: the topology stands before what is known of Xen itself.
pub(crate) fn info_with_topology(lines: &Info, topology: &Topology) -> String {
    let is_of_xen = |(key, _): &(String, String)| key.starts_with("xen_");
    let split = lines.0.iter().position(is_of_xen).unwrap_or(lines.0.len());
    let (machine, xen) = lines.0.split_at(split);
    let text = |lines: &[(String, String)]| info(&Info(lines.to_vec()));
    text(machine) + &self::topology(topology) + &text(xen)
}

/// `pci-assignable-list`. A blank follows each address.
pub(crate) fn assignable(rows: &[PciRow], with_names: bool) -> String {
    rows.iter().fold(String::new(), |mut out, row| {
        let name = row.name.as_deref().filter(|_| with_names).unwrap_or_default();
        put!(out, "{} {}\n", shown(&row.device), shown(name));
        out
    })
}

/// `pci-list`. Without devices nothing is printed.
pub(crate) fn pci_devices(rows: &[PciRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    rows.iter().fold("Vdev Device\n".to_owned(), |mut out, row| {
        put!(out, "{:02x}.{:x} {}\n", row.vdevfn >> 3, row.vdevfn & 7, shown(&row.device));
        out
    })
}

fn topology(topology: &Topology) -> String {
    let mut out = "cpu_topology           :\ncpu:    core    socket     node\n".to_owned();
    for row in &topology.cpus {
        put!(out, "{:>3}:    {:>4}     {:>4}     {:>4}\n", row.cpu, row.core, row.socket, row.node);
    }
    out.push_str("device topology        :\ndevice           node\n");
    for (device, node) in &topology.pci {
        put!(out, "{}      {node}\n", shown(device));
    }
    if topology.pci.is_empty() {
        out.push_str("No device topology data available\n");
    }
    out.push_str("numa_info              :\nnode:    memsize    memfree    distances\n");
    for row in &topology.nodes {
        let distances: Vec<String> = row.distances.iter().map(ToString::to_string).collect();
        let (size, free) = (row.bytes >> 20, row.bytes_free >> 20);
        put!(out, "{:>4}:    {size:>6}     {free:>6}      {}\n", row.node, distances.join(","));
    }
    out
}

/// `cpupool-list`.
pub(crate) fn pools<'a>(rows: impl Iterator<Item = &'a PoolRow>) -> String {
    let mut out = format!("{:<19}CPUs   Sched     Active   Domain count\n", "Name");
    for row in rows {
        let (name, cpus) = (name(row.name.as_deref()), row.cpus.len());
        put!(out, "{name:<19}{cpus:>3} {:>9}       y       {:>4}\n", row.scheduler, row.domains);
    }
    out
}

/// `cpupool-list -c`.
pub(crate) fn cpus_of_pools<'a>(rows: impl Iterator<Item = &'a PoolRow>) -> String {
    let mut out = format!("{:<19}CPU list\n", "Name");
    for row in rows {
        let cpus: Vec<String> = row.cpus.iter().map(ToString::to_string).collect();
        put!(out, "{:<19}{}\n", name(row.name.as_deref()), cpus.join(","));
    }
    out
}

/// What `cpupool-create` makes.
pub(crate) fn new_pool(source: &str, row: &PoolRow) -> String {
    format!(
        "Using config file \"{source}\"\ncpupool name:   {}\nscheduler:      {}\nnumber of cpus: {}\n",
        name(row.name.as_deref()),
        row.scheduler,
        row.cpus.len()
    )
}
