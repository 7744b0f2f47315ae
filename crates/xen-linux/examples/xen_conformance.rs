//! Runs the conformance cases on the Xen under this machine, then checks the devices of `xen_linux`
//! against it. For a lab host: it creates and destroys domains, loop devices and bridge ports.
//!
//! Arguments: the name of a network interface that may be added to a bridge for a short time, and
//! the name of the bridge. Without them that check is skipped.

use std::fs::{File, remove_file};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xen::conformance::{self, Outcome};
use xen::{
    ARENA_BYTES_FULL, CreateDomain, CreateOptions, DomId, DomainKind, EvtchnPeer, EvtchnPort,
    GrantRef, PAGE_BYTES, Uuid, Xen,
};
use xen_linux::{
    Access, EventChannels, FileLock, ForeignMemory, GrantDevice, Links, LinuxHypervisor,
    LoopDevice, VIRQ_DOM_EXC, block_device,
};

type Checked = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let started = Instant::now();
    let hypervisor = LinuxHypervisor::open(ARENA_BYTES_FULL);
    let mut xen = match hypervisor.map_err(Into::into).and_then(|h| Ok(Xen::probe(h)?)) {
        Ok(xen) => xen,
        Err(error) => {
            let error: Box<dyn std::error::Error> = error;
            eprintln!("xen_conformance: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0;
    let mut report = |Outcome { case, result }: Outcome| match result {
        Ok(()) => println!("ok    {case}"),
        Err(seen) => {
            failed += 1;
            println!("FAIL  {case}: {seen}");
        }
    };
    let outcomes = conformance::run(&mut xen);
    let cases = outcomes.len();
    outcomes.into_iter().for_each(&mut report);

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut check = |case, check: &mut dyn FnMut(&mut Xen<LinuxHypervisor>) -> Checked| {
        let result = check(&mut xen).map_err(|error| error.to_string());
        report(Outcome { case, result });
    };
    check("a large foreign copy reads back", &mut large_copy);
    check("a mapped frame shows what is written to it", &mut mapped_frame);
    check("a seeded grant can be mapped, and pins its domain until unmapped", &mut mapped_grant);
    check("an event channel of a new domain can be bound to", &mut event_channel);
    check("an event sent to an own port arrives once until unmasked", &mut own_event);
    check("the death of a domain is announced", &mut death);
    check("a file is attached to a loop device and found by it", &mut loop_device);
    if let [port, bridge] = &arguments[..] {
        check("a port joins and leaves a bridge", &mut |_| bridge_port(port, bridge));
    }
    println!(
        "{cases} cases and the devices: {failed} failed, {} hypercalls, {} ms",
        xen.counters().total(),
        started.elapsed().as_millis()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ensure(holds: bool, what: &str) -> Checked {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// Runs a check on a PV domain of `pages` pages, passing its frames, and destroys the domain.
fn with_domain(
    xen: &mut Xen<LinuxHypervisor>,
    pages: u64,
    check: impl FnOnce(&mut Xen<LinuxHypervisor>, DomId, &[u64]) -> Checked,
) -> Checked {
    let domid = xen.create_domain(&CreateDomain {
        kind: DomainKind::Pv,
        handle: Uuid(*b"device-check-dom"),
        vcpus_max: 1,
        evtchn_port_max: 127,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    })?;
    let run = |xen: &mut Xen<LinuxHypervisor>| -> Checked {
        xen.set_vcpus_max(domid, 1)?;
        xen.set_memory_max(domid, pages * 4)?;
        let pfns: Vec<u64> = (0..pages).collect();
        let mut frames = Vec::new();
        for part in pfns.chunks(Xen::<LinuxHypervisor>::EXTENTS_MAX) {
            frames.extend(xen.populate(domid, 0, part)?);
        }
        ensure(frames.len() == pfns.len(), "memory is short")?;
        check(xen, domid, &frames)
    };
    let checked = run(xen);
    // The check may have destroyed it.
    match xen.destroy_domain(domid) {
        Ok(()) | Err(xen::Errno::ESRCH) => checked,
        Err(errno) => checked.and(Err(errno.into())),
    }
}

fn large_copy(xen: &mut Xen<LinuxHypervisor>) -> Checked {
    const PAGES: u64 = 5000;
    with_domain(xen, PAGES, |xen, domid, frames| {
        // Neither end is on a page boundary, and there is more than one window.
        let bytes: Vec<u8> =
            (0..frames.len() * PAGE_BYTES - 3000).map(|i| (i / 7 % 253).to_le_bytes()[0]).collect();
        let started = Instant::now();
        xen.write_foreign(domid, frames, 1000, &bytes)?;
        let wrote = started.elapsed();
        // Not zero, so that the pages are present before the read.
        let mut seen = vec![1; bytes.len()];
        let started = Instant::now();
        xen.read_foreign(domid, frames, 1000, &mut seen)?;
        let read = started.elapsed();
        println!("      {} KiB: written in {wrote:?}, read in {read:?}", bytes.len() / 1024);
        ensure(seen == bytes, "the bytes differ")
    })
}

fn mapped_frame(xen: &mut Xen<LinuxHypervisor>) -> Checked {
    with_domain(xen, 4, |xen, domid, frames| {
        let page = ForeignMemory::open()?.map_page(domid, frames[2])?;
        xen.write_foreign(domid, &frames[2..3], 100, b"from outside")?;
        let mut seen = [0; 12];
        page.read(100, &mut seen);
        ensure(&seen == b"from outside", "the mapped frame shows other bytes")?;
        page.store_u32(200, 0xfeed_beef);
        let mut word = [0; 4];
        xen.read_foreign(domid, &frames[2..3], 200, &mut word)?;
        ensure(u32::from_ne_bytes(word) == 0xfeed_beef, "a word written through the map is lost")?;
        let missing = ForeignMemory::open()?.map_page(DomId(0x7fe0), 1);
        ensure(missing.is_err(), "a frame of no domain was mapped")
    })
}

fn mapped_grant(xen: &mut Xen<LinuxHypervisor>) -> Checked {
    let mut pinned = None;
    with_domain(xen, 4, |xen, domid, frames| {
        xen.write_foreign(domid, &frames[1..2], 0, b"granted page")?;
        xen.seed_grant(domid, GrantRef::XENSTORE, DomId::DOM0, frames[1])?;
        let device = GrantDevice::open()?;
        let page = device.map_grant(domid, GrantRef::XENSTORE)?;
        let mut seen = [0; 12];
        page.read(0, &mut seen);
        ensure(&seen == b"granted page", "the grant shows another page")?;
        let missing = device.map_grant(domid, GrantRef(7)).err().map(|error| error.to_string());
        let expected = format!("cannot map grant 7 of domain {domid}");
        ensure(missing.is_some_and(|text| text.starts_with(&expected)), "grant 7 was mapped")?;
        pinned = Some((domid, page));
        Ok(())
    })?;
    let (domid, page) = pinned.ok_or("nothing was mapped")?;
    let zombie = xen.domain(domid)?;
    ensure(zombie.is_some_and(|info| info.flags.dying()), "the mapped domain is not kept dying")?;
    drop(page);
    gone(xen, domid)
}

fn gone(xen: &mut Xen<LinuxHypervisor>, domid: DomId) -> Checked {
    let started = Instant::now();
    while xen.domain(domid)?.is_some() {
        ensure(started.elapsed() < Duration::from_secs(5), "the domain is not destroyed")?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn event_channel(xen: &mut Xen<LinuxHypervisor>) -> Checked {
    with_domain(xen, 4, |xen, domid, _| {
        let mut channels = EventChannels::open()?;
        let theirs = xen.alloc_unbound(EvtchnPeer { owner: domid, remote: DomId::DOM0 })?;
        let ours = channels.bind_interdomain(domid, theirs)?;
        channels.notify(ours)?;
        let again = channels.bind_interdomain(domid, theirs);
        ensure(again.is_err(), "a bound channel was bound to once more")?;
        let foreign = channels.bind_interdomain(domid, EvtchnPort(99)).unwrap_err();
        let expected = format!("cannot bind to event channel 99 of domain {domid}");
        ensure(foreign.to_string().starts_with(&expected), &foreign.to_string())?;
        channels.unbind(ours)?;
        ensure(channels.notify(ours).is_err(), "a closed port takes events")
    })
}

fn own_event(_: &mut Xen<LinuxHypervisor>) -> Checked {
    let (mut one, mut other) = (EventChannels::open()?, EventChannels::open()?);
    let near = one.bind_unbound(DomId::DOM0)?;
    let far = other.bind_interdomain(DomId::DOM0, near)?;
    let mut ports = [EvtchnPort(0); 4];
    // Binding itself may fire the port.
    settle(&mut one)?;
    other.notify(far)?;
    other.notify(far)?;
    wait(&one)?;
    ensure(one.pending(&mut ports)? == 1 && ports[0] == near, "the event did not come once")?;
    other.notify(far)?;
    std::thread::sleep(Duration::from_millis(20));
    ensure(one.pending(&mut ports)? == 0, "a masked port fired")?;
    one.unmask(near)?;
    wait(&one)?;
    ensure(
        one.pending(&mut ports)? == 1 && ports[0] == near,
        "the event sent while masked was lost",
    )
}

/// Clears the events so far.
fn settle(channels: &mut EventChannels) -> Checked {
    let mut ports = [EvtchnPort(0); 4];
    std::thread::sleep(Duration::from_millis(20));
    let found = channels.pending(&mut ports)?;
    for port in &ports[..found] {
        channels.unmask(*port)?;
    }
    Ok(())
}

fn wait(channels: &EventChannels) -> Checked {
    let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(channels, PollFlags::IN)], Some(&limit))?;
    ensure(ready == 1, "no event came within 5 s")
}

fn death(xen: &mut Xen<LinuxHypervisor>) -> Checked {
    let mut channels = EventChannels::open()?;
    let port = match channels.bind_virq(VIRQ_DOM_EXC) {
        Ok(port) => port,
        // The store daemon has bound it; there can be only one.
        Err(error) if error.errno() == xen::Errno::EEXIST => {
            println!("      left out: {error} (a store daemon runs)");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    settle(&mut channels)?;
    let mut doomed = None;
    with_domain(xen, 4, |_, domid, _| {
        doomed = Some(domid);
        Ok(())
    })?;
    let domid = doomed.ok_or("no domain was made")?;
    let mut deliveries = 0;
    while xen.domain(domid)?.is_some() || deliveries == 0 {
        wait(&channels)?;
        let mut ports = [EvtchnPort(0); 4];
        let found = channels.pending(&mut ports)?;
        ensure(ports[..found].iter().all(|fired| *fired == port), "another port fired")?;
        deliveries += 1;
        channels.unmask(port)?;
    }
    println!("      {deliveries} deliveries until domain {domid} was gone");
    Ok(())
}

fn loop_device(_: &mut Xen<LinuxHypervisor>) -> Checked {
    let file = std::env::temp_dir()
        .join("xen_conformance-loop-device-with-a-name-longer-than-the-kernel-keeps.img");
    File::create(&file)?.write_all(&[0x5a; 1 << 20])?;
    let checked = attach_and_detach(&file);
    remove_file(&file)?;
    checked
}

fn attach_and_detach(file: &Path) -> Checked {
    ensure(LoopDevice::backed_by(file)?.is_empty(), "the file is attached already")?;
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let (device, _) = LoopDevice::attach(file, access, "conformance", FileLock::Qemu)?;
        let check = || -> Checked {
            let number = device.number()?;
            ensure(block_device(&device.path())? == number, "two numbers for one device")?;
            let backing = device.backing()?.ok_or("the device has no file")?;
            println!("      {} is {number}: {backing:?}", device.path().display());
            ensure(backing.path == file && backing.access == access, "another file is attached")?;
            ensure(backing.name == "conformance", "the device has another name")?;
            ensure(
                LoopDevice::backed_by(file)? == [device],
                "the device is not found by its file",
            )?;
            let mut bytes = [0; 512];
            File::open(device.path())?.read_exact(&mut bytes)?;
            ensure(bytes == [0x5a; 512], "the device shows other bytes")
        };
        let checked = check();
        device.detach()?;
        checked?;
        ensure(device.backing()?.is_none(), "the file is still attached")?;
        let error = device.detach().unwrap_err().to_string();
        ensure(error.starts_with(&format!("cannot detach {}", device.path().display())), &error)?;
    }
    Ok(())
}

fn bridge_port(port: &str, bridge: &str) -> Checked {
    let mut links = Links::open()?;
    let index = links.bridge(bridge)?.index;
    let before = links.ports(bridge)?;
    ensure(before.iter().all(|link| link.name != port), "the port is in the bridge already")?;
    links.add_port(bridge, port)?;
    let check = |links: &mut Links| -> Checked {
        let link = links.wait_for(port, Duration::from_secs(1))?;
        println!("      {link:?}");
        ensure(link.master == Some(index) && link.up, "the port did not join, or is down")?;
        ensure(links.ports(bridge)?.len() == before.len() + 1, "the bridge has other ports")?;
        links.set_mtu(port, 1400)?;
        ensure(links.find(port)?.is_some_and(|link| link.mtu == 1400), "the MTU is another")
    };
    let checked = check(&mut links);
    links.remove_port(port)?;
    checked?;
    ensure(links.ports(bridge)? == before, "the port did not leave")?;
    let error = links.add_port(port, bridge).unwrap_err().to_string();
    ensure(error.starts_with(&format!("network interface {port} is not a bridge")), &error)?;
    let error = links.add_port(bridge, "vif99.0").unwrap_err().to_string();
    ensure(error.starts_with("there is no network interface vif99.0"), &error)
}
