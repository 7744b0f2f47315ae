//! Caches and memory bandwidth that CPUs share.

use api::{
    HostRequest, PsrCounter, PsrHardware, PsrRequest, PsrSamples, PsrShares, Reply, Request, Target,
};
use sim::{HostConfig, MachineConfig};

use crate::door::Client;

fn host(has_rdt: bool) -> Client {
    let machine = MachineConfig { has_rdt, ..MachineConfig::default() };
    Client::on(HostConfig { seed: 1, machine, ..HostConfig::default() })
}

fn ask(client: &Client, request: PsrRequest) -> Result<Reply, String> {
    client.ask(Request::Host(HostRequest::Psr(request)))
}

fn dom0() -> Target {
    Target("0".to_owned())
}

fn samples(client: &Client, counter: PsrCounter) -> PsrSamples {
    match ask(client, PsrRequest::CmtShow { counter, targets: Vec::new() }) {
        Ok(Reply::PsrSamples(samples)) => samples,
        other => panic!("{other:?}"),
    }
}

fn shares(client: &Client, request: PsrRequest) -> Vec<PsrShares> {
    match ask(client, request) {
        Ok(Reply::PsrShares(shares)) => shares,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_host_cannot_do_is_said() {
    let client = host(false);
    let Ok(Reply::PsrHardware(PsrHardware { cmt, sockets })) = ask(&client, PsrRequest::Hardware)
    else {
        panic!("no hardware")
    };
    assert!(cmt.is_none() && sockets.len() == 1);
    assert!(sockets[0].l3_cat.is_none() && sockets[0].l2_cat.is_none() && sockets[0].mba.is_none());
    let no_monitoring = "Cache Monitoring Technology is not there, or Xen does not use it; \
                         its command line needs psr=cmt";
    let named = |name: &str| format!("{name}: {no_monitoring}");
    let counter = PsrCounter::CacheOccupancy;
    assert_eq!(
        ask(&client, PsrRequest::CmtShow { counter, targets: Vec::new() }).unwrap_err(),
        named("this host")
    );
    assert_eq!(
        ask(&client, PsrRequest::CmtAttach { target: dom0() }).unwrap_err(),
        named("Domain-0")
    );
    assert_eq!(
        ask(&client, PsrRequest::CatShow { level: 3, targets: Vec::new() }).unwrap_err(),
        "socket 0: L3 CAT is not there, or Xen does not use it; its command line needs psr=cat"
    );
    let set = PsrRequest::MbaSet { target: dom0(), sockets: Vec::new(), thrtl: 10 };
    assert_eq!(
        ask(&client, set).unwrap_err(),
        "Domain-0: socket 0: MBA is not there, or Xen does not use it; its command line needs psr=mba"
    );
}

#[test]
fn a_domain_is_monitored_until_it_is_detached() {
    let client = host(true);
    assert!(samples(&client, PsrCounter::CacheOccupancy).domains.is_empty());
    assert_eq!(ask(&client, PsrRequest::CmtAttach { target: dom0() }), Ok(Reply::Done));
    assert_eq!(
        ask(&client, PsrRequest::CmtAttach { target: dom0() }).unwrap_err(),
        "Domain-0: is monitored already"
    );
    let used = samples(&client, PsrCounter::CacheOccupancy);
    assert_eq!((used.total_rmid, used.sockets[0].l3_cache_kib), (2, 20_480));
    let domain = &used.domains[0];
    assert_eq!((domain.domid, domain.name.as_deref()), (0, Some("Domain-0")));
    assert_eq!(domain.samples[0].unwrap().bytes, 1000 * 64);
    let [before, after] = [(); 2].map(|()| {
        client.settle();
        samples(&client, PsrCounter::TotalMemBandwidth).domains[0].samples[0].unwrap()
    });
    assert_eq!((after.bytes - before.bytes) / 64, (after.ns - before.ns) / 1000);
    let local = PsrRequest::CmtShow { counter: PsrCounter::LocalMemBandwidth, targets: Vec::new() };
    assert_eq!(ask(&client, local).unwrap_err(), "this host: its CPUs do not count that");
    assert_eq!(ask(&client, PsrRequest::CmtDetach { target: dom0() }), Ok(Reply::Done));
    assert_eq!(
        ask(&client, PsrRequest::CmtDetach { target: dom0() }).unwrap_err(),
        "Domain-0: is not monitored"
    );
}

#[test]
fn a_domain_has_the_share_that_it_was_given() {
    let client = host(true);
    let l3 = || PsrRequest::CatShow { level: 3, targets: Vec::new() };
    assert_eq!(shares(&client, l3())[0].domains[0].shares, [Some(0x7ff)]);
    let set = |cbm, part, sockets: &[u32]| {
        let (target, sockets) = (dom0(), sockets.to_vec());
        ask(&client, PsrRequest::CatSet { target, level: 3, part, sockets, cbm })
    };
    assert_eq!(set(0xf, None, &[]), Ok(Reply::Done));
    assert_eq!(shares(&client, l3())[0].domains[0].shares, [Some(0xf)]);
    for (result, why) in [
        (
            set(0x1000, None, &[0]),
            "Domain-0: socket 0: L3 CAT: no such share; `psr-hwinfo` shows the limits",
        ),
        (set(1, None, &[3]), "Domain-0: socket 3: no such socket"),
        (
            set(1, Some(api::CachePart::Code), &[]),
            "Domain-0: socket 0: code and data have one share: CDP is off",
        ),
    ] {
        assert_eq!(result.unwrap_err(), why);
    }
    let set = PsrRequest::MbaSet { target: dom0(), sockets: vec![0], thrtl: 50 };
    assert_eq!(ask(&client, set), Ok(Reply::Done));
    let bandwidth = shares(&client, PsrRequest::MbaShow { targets: vec![dom0()] });
    assert!(bandwidth[0].limits.linear && !bandwidth[0].limits.cdp);
    assert_eq!(bandwidth[0].domains[0].shares, [Some(50)]);
    let l2 = ask(&client, PsrRequest::CatShow { level: 2, targets: Vec::new() });
    assert!(l2.unwrap_err().contains("L2 CAT is not there"));
    let l1 = ask(&client, PsrRequest::CatShow { level: 1, targets: Vec::new() });
    assert_eq!(l1.unwrap_err(), "a cache of level 1: expected 2 or 3");
    assert!(
        ask(&client, PsrRequest::MbaShow { targets: vec![Target("none".to_owned())] }).is_err()
    );
}
