//! Prints version and interface of the hypervisor of this machine, and its domains.

use std::process::ExitCode;

use xen::{ARENA_BYTES_FULL, DomainInfo, Xen};
use xen_linux::LinuxHypervisor;

fn main() -> ExitCode {
    match print() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xen_probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print() -> Result<(), Box<dyn std::error::Error>> {
    let mut xen = Xen::probe(LinuxHypervisor::open(ARENA_BYTES_FULL)?)?;
    let abi = xen.abi();
    println!(
        "xen {}.{}  domctl {:#x}  sysctl {:#x}",
        abi.xen.0, abi.xen.1, abi.domctl.0, abi.sysctl.0
    );
    println!("get_domain_state {}", if xen.has_domain_state() { "yes" } else { "no" });
    println!("{:#?}", xen.version_info()?);
    println!("{:#?}", xen.phys_info()?);
    let probing = xen.take_counters();
    println!("hypercalls so far: {}", probing.total());
    let domains = xen.domains()?;
    println!("list of {} domains by {} hypercall", domains.len(), xen.counters().total());
    for DomainInfo { domid, handle, pages, vcpus_online, cpu_time_ns, flags, .. } in &domains {
        println!(
            "{domid:>5} {handle} {pages:>8} pages {vcpus_online:>2} vcpus {cpu_time_ns:>14} ns {flags:?}"
        );
    }
    Ok(())
}
