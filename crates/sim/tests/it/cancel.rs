//! Cancelled starts: the client is answered at once, however slow the kernel or the storage, and
//! abandoned work is released when it ends.

use sim::{AttachTimes, Time};
use toolstack::plan::Start;
use toolstack::{ClientId, Reply, Request, ShutdownRequest, xlcfg};
use xen::Uuid;

use crate::support::{Lab, unikernel};

const SECOND_NS: u64 = 1_000_000_000;

/// A host on which kernels below `/far` take half a minute to read.
fn with_slow_kernels() -> Lab {
    let lab = Lab::seeded(1);
    lab.host.os().add_file("/far/kernel", sim::kernel_image());
    lab.host.os().set_hanging("/far", true);
    lab
}

fn slow(name: &str) -> String {
    unikernel(name, "pv", "normal").replace("'/kernel'", "'/far/kernel'")
}

fn with_disk(name: &str) -> String {
    unikernel(name, "pv", "normal") + "disk = ['/disk.raw,raw,xvda,w']\n"
}

/// A host on which an attach takes 20 s.
fn with_slow_attaches() -> Lab {
    let mut lab = Lab::seeded(1);
    let usual_ns = 20 * SECOND_NS;
    lab.daemon.set_attach_times(AttachTimes { usual_ns, ..AttachTimes::default() });
    lab
}

fn begin(lab: &mut Lab, text: &str) -> ClientId {
    let request = lab.create_request(text);
    let client = lab.daemon.request(request).unwrap();
    pass(lab, 1);
    client
}

fn pass(lab: &mut Lab, seconds: u64) {
    let until = Time(lab.host.now().0 + seconds * SECOND_NS);
    while lab.daemon.step(until).unwrap() {}
    lab.host.sleep_until(until);
}

/// The answer to a request, which must come within a second.
#[track_caller]
fn at_once(lab: &mut Lab, request: Request) -> Reply {
    let client = lab.daemon.request(request).unwrap();
    let until = Time(lab.host.now().0 + SECOND_NS);
    lab.daemon.wait(client, until).unwrap().expect("an answer within a second")
}

#[track_caller]
fn refused(reply: Option<Reply>) -> String {
    match reply {
        Some(Reply::Failed(message)) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn destroy(name: &str) -> Request {
    Request::Destroy { target: name.to_owned() }
}

#[test]
fn a_vm_that_is_starting_is_found_by_its_name_and_a_shutdown_cancels_the_start() {
    let mut lab = with_slow_kernels();
    let create = begin(&mut lab, &slow("a"));
    let found = at_once(&mut lab, Request::Resolve { target: "a".to_owned() });
    assert!(matches!(&found, Reply::Starting { name, .. } if name == "a"), "{found:?}");
    let reboot = Lab::shutdown_request("a", ShutdownRequest::Reboot);
    let message = refused(Some(at_once(&mut lab, reboot)));
    assert_eq!(message, "a: is starting, there is no guest to reboot yet");
    let down = at_once(&mut lab, Lab::shutdown_request("a", ShutdownRequest::Poweroff));
    assert!(matches!(down, Reply::Gone { .. }), "{down:?}");
    let message = refused(lab.daemon.take_reply(create));
    assert_eq!(message, "shut down while it was being created");
    // The name is free at once.
    lab.create(&unikernel("a", "pv", "normal")).unwrap();
    lab.destroy("a");
    lab.assert_nothing_left();
}

#[test]
fn a_destroy_does_not_wait_for_a_slow_kernel() {
    let mut lab = with_slow_kernels();
    let create = begin(&mut lab, &slow("a"));
    let gone = at_once(&mut lab, destroy("a"));
    assert!(matches!(gone, Reply::Gone { .. }), "{gone:?}");
    assert_eq!(refused(lab.daemon.take_reply(create)), "destroyed while it was being created");
    lab.assert_nothing_left();
}

#[test]
fn a_destroy_does_not_wait_for_a_slow_attach_whose_disk_is_detached_later() {
    let mut lab = with_slow_attaches();
    let create = begin(&mut lab, &with_disk("a"));
    let gone = at_once(&mut lab, destroy("a"));
    assert!(matches!(gone, Reply::Gone { .. }), "{gone:?}");
    assert_eq!(refused(lab.daemon.take_reply(create)), "destroyed while it was being created");
    lab.assert_nothing_left();
}

#[test]
fn a_vm_does_not_start_while_a_disk_of_its_cancelled_start_is_being_attached() {
    let mut lab = with_slow_attaches();
    let text = format!("{}uuid = '{}'\n", with_disk("a"), Uuid([7; 16]));
    let source = xlcfg::Source { file: "vm.cfg", text: &text, overrides: &[] };
    let config = Box::new(xlcfg::parse(source).unwrap());
    lab.ask(Request::Define { config, fresh_uuid: Uuid([7; 16]), autostart: None });
    let start = || Request::Start { target: "a".to_owned(), start: Start::Running };
    let first = lab.daemon.request(start()).unwrap();
    pass(&mut lab, 1);
    at_once(&mut lab, destroy("a"));
    refused(lab.daemon.take_reply(first));
    let message = refused(Some(at_once(&mut lab, start())));
    assert_eq!(
        message,
        "a: disk xvda is still being attached for a start that was cancelled; try again when that has ended"
    );
    pass(&mut lab, 20);
    assert!(matches!(lab.ask(start()), Reply::Created(_)));
    lab.destroy("a");
    lab.ask(Request::Undefine { target: "a".to_owned() });
    lab.assert_nothing_left();
}

#[test]
fn slow_kernels_and_disks_do_not_delay_other_starts() {
    let mut lab = with_slow_kernels();
    lab.create(&unikernel("quiet", "pv", "normal")).unwrap();
    for number in 0..20 {
        lab.host.os().add_disk(&format!("/far/{}/{number}.raw", number % 2), 1 << 20);
        begin(&mut lab, &slow(&format!("kernel{number}")));
        let disk = format!("disk = ['/far/{}/{number}.raw,raw,xvda,w']\n", number % 2);
        begin(&mut lab, &(unikernel(&format!("disk{number}"), "pv", "normal") + &disk));
        // By now the first ones are over; more come than end.
        let began = lab.host.now();
        lab.create(&unikernel("neighbour", "pv", "normal")).unwrap();
        let took_ms = (lab.host.now().0 - began.0) / 1_000_000;
        assert!(took_ms < 100, "{took_ms} ms, beside {number} slow kernels and disks");
        lab.destroy("neighbour");
    }
}
