//! An operation on one VM costs as many hypercalls on a full host as on an empty one.
//!
//! A toolstack that listed all domains for every lookup took half a million hypercalls for a thousand
//! VMs. Here all hypercalls on the host are counted, the store's with the toolstack's, for each
//! operation, beside more and more domains of somebody else.

use std::collections::BTreeMap;

use sim::{HostConfig, Release};
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::Unplug;
use toolstack::{Device, Reply, Request, ShutdownRequest, xlcfg};
use xen::{DomId, ShutdownReason, Uuid};

use crate::support::{Lab, linux, unikernel};

/// Other domains on the host.
const OTHERS: [u16; 5] = [1, 100, 1000, 10_000, 32_000];
/// With more than that, one kind of VM must do: the simulated Xen writes out each listing in full.
const MANY: u16 = 1000;

const UUID: &str = "11111111-1111-4111-8111-111111111111";

fn plug() -> Request {
    let device = xlcfg::parse_disk("/more.raw,raw,xvdb,w").map(Device::Disk).unwrap();
    Request::Plug { target: "one".to_owned(), device: Box::new(device) }
}

fn unplug() -> Request {
    let device = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };
    Request::Unplug { target: "one".to_owned(), device, how: Unplug::Clean }
}

/// Hypercalls on the host so far, by name.
fn counts(lab: &Lab) -> BTreeMap<&'static str, u64> {
    lab.host.machine().get().calls().collect()
}

/// A host with that many domains of another toolstack, idle ones.
fn host_with(others: u16, release: Release) -> Lab {
    let machine = sim::MachineConfig { release, ..sim::MachineConfig::default() };
    let lab = Lab::new(HostConfig { machine, ..HostConfig::default() });
    let mut xen = lab.host.machine().get_mut();
    for number in 1..=others {
        let mut handle = [0xee; 16];
        handle[..2].copy_from_slice(&number.to_le_bytes());
        xen.take_number(DomId(number), Uuid(handle)).unwrap();
    }
    drop(xen);
    lab
}

/// What each operation of a VM's life takes, in order, with whatever else happens until all is quiet.
fn costs(lab: &mut Lab, others: u16) -> Vec<(String, BTreeMap<&'static str, u64>)> {
    let mut costs = Vec::new();
    let target = || "one".to_owned();
    let mut vms = vec![("linux", linux("one", "pvh", "normal"))];
    if others <= MANY {
        vms.push(("unikernel", unikernel("one", "pv", "normal")));
    }
    lab.host.os().add_disk("/more.raw", 1 << 20);
    for (kind, text) in vms {
        let text = format!("{text}uuid = '{UUID}'\n");
        let mut step = |name: &str, lab: &mut Lab, request: Request| {
            let before = counts(lab);
            let reply = lab.ask(request);
            lab.settle();
            let mut used = counts(lab);
            used.retain(|call, count| {
                *count -= before.get(call).copied().unwrap_or_default();
                *count > 0
            });
            costs.push((format!("{name} of a {kind}"), used));
            reply
        };
        let request = lab.create_request(&text);
        let Reply::Created(_) = step("create", lab, request) else { panic!("no create") };
        let Reply::Domains(_) = step("list", lab, Request::List) else { panic!("no list") };
        let resolved = step("lookup", lab, Request::Resolve { target: target() });
        let Reply::Resolved { domid, uuid, .. } = resolved else { panic!("{resolved:?}") };
        let by_uuid = Request::Resolve { target: UUID.to_owned() };
        let Reply::Resolved { .. } = step("lookup by UUID", lab, by_uuid) else {
            panic!("not found")
        };
        let nobody = Request::Resolve { target: UUID.replace('1', "2") };
        let Reply::Failed(_) = step("lookup of nobody", lab, nobody) else { panic!("found") };
        step("plug of a disk", lab, plug());
        step("unplug of a disk", lab, unplug());
        step("look at devices", lab, Request::Devices { target: target() });
        step("pause", lab, Request::Pause { target: target() });
        step("unpause", lab, Request::Unpause { target: target() });
        step("look at vCPUs", lab, Request::Vcpus { of: vec![(domid, uuid)] });
        let request = Lab::shutdown_request("one", ShutdownRequest::Reboot);
        let Reply::Gone { reason: Some(ShutdownReason::Reboot), .. } = step("reboot", lab, request)
        else {
            panic!("no reboot")
        };
        let request = Lab::shutdown_request("one", ShutdownRequest::Poweroff);
        let Reply::Gone { .. } = step("shutdown", lab, request) else { panic!("no shutdown") };
        let request = lab.create_request(&text);
        step("second create", lab, request);
        step("destroy", lab, Request::Destroy { target: target() });
    }
    costs
}

fn check(release: Release, others: &[u16]) {
    let mut alone = Vec::new();
    for &others in others {
        let costs = costs(&mut host_with(others, release), others);
        if alone.is_empty() {
            alone = costs;
            continue;
        }
        for ((operation, seen), (_, wanted)) in costs.iter().zip(&alone) {
            assert_eq!(seen, wanted, "{operation} beside {others} domains on {release:?}");
        }
    }
    let total: u64 = alone.iter().flat_map(|(_, counts)| counts.values()).sum();
    assert!(total > 100, "the operations were counted: {total}");
    for (operation, counts) in &alone {
        if operation.starts_with("list ") {
            assert_eq!(counts, &BTreeMap::from([("getdomaininfolist", 1)]), "{operation}");
        }
    }
}

#[test]
fn an_operation_takes_as_many_hypercalls_beside_32000_domains_as_beside_one() {
    check(Release::Xen4_17, &OTHERS);
}

#[test]
fn and_so_it_does_where_xen_tells_which_domains_changed() {
    check(Release::Xen4_22, &[1, MANY]);
}
