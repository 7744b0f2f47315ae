//! Builds and runs one domain without a toolstack, and prints its console. If a store is running,
//! the domain is introduced to it.
//!
//! For trying the builder on a real Xen: `boot pv|pvh KERNEL RAMDISK|- MIB VCPUS SECONDS
//! [CMDLINE]`, with `native:` before the kind for the native time stamp counter; or `boot hvm
//! HVMLOADER FIRMWARE MIB VCPUS SECONDS QEMU ARGUMENTS...`, where the device model gets the domid.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xen::{CreateDomain, CreateOptions, DomId, DomainKind, EvtchnPeer, Uuid, Xen};
use xen_build::{
    BuildConfig, BuildError, Built, Channel, Channels, HvmConfig, HvmLoader, KernelImage, TscMode,
};
use xen_linux::LinuxHypervisor;

fn main() {
    if let Err(error) = run() {
        eprintln!("boot: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, kernel, ramdisk, mib, vcpus, seconds, cmdline @ ..] = args.as_slice() else {
        return Err("usage: boot pv|pvh KERNEL RAMDISK|- MIB VCPUS SECONDS [CMDLINE], or boot hvm HVMLOADER FIRMWARE MIB VCPUS SECONDS QEMU ARGUMENTS...".into());
    };
    let (tsc_mode, kind) = match kind.strip_prefix("native:") {
        Some(kind) => (TscMode::Native, kind),
        None => (TscMode::Default, kind.as_str()),
    };
    let seconds = Duration::from_secs(seconds.parse()?);
    let memory_pages = mib.parse::<u64>()? * 256;
    let vcpus: u32 = vcpus.parse()?;
    if kind == "hvm" {
        let loader = HvmLoader::parse(&std::fs::read(kernel)?)?;
        let firmware = std::fs::read(ramdisk)?;
        let config = HvmConfig {
            loader: &loader,
            firmware: &firmware,
            memory_pages,
            memory_pages_max: memory_pages,
            video_pages: 8 * 256,
            vcpus,
            tsc_mode,
            apic: true,
            viridian: 0,
            hole_pages: None,
            acpi_tables: &[],
            smbios_structures: &[],
        };
        println!("boot: needs {:?}", xen_build::check_hvm(&config)?);
        return run_domain(DomainKind::Hvm, vcpus, seconds, cmdline, |xen, domid, channels| {
            xen_build::prepare_hvm(xen, domid, &config)?;
            xen_build::build_hvm(xen, domid, &config, channels, &mut ())
        });
    }
    let kind = if kind == "pv" { DomainKind::Pv } else { DomainKind::Pvh };
    let start = Instant::now();
    let kernel = KernelImage::parse(&std::fs::read(kernel)?)?;
    println!("boot: kernel parsed in {:?} ({})", start.elapsed(), kernel.compression());
    let ramdisk = if ramdisk == "-" { None } else { Some(std::fs::read(ramdisk)?) };
    let cmdline = cmdline.join(" ");
    let config = BuildConfig {
        shimmed: None,
        kind,
        kernel: &kernel,
        ramdisk: ramdisk.as_deref(),
        cmdline: &cmdline,
        memory_pages,
        memory_pages_max: memory_pages,
        vcpus,
        tsc_mode,
    };
    println!("boot: needs {:?}", xen_build::check(&config)?);
    run_domain(kind, vcpus, seconds, &[], |xen, domid, channels| {
        xen_build::build(xen, domid, &config, channels, &mut ())
    })
}

type Build<'a> =
    dyn Fn(&mut Xen<LinuxHypervisor>, DomId, &Channels) -> Result<Built, BuildError> + 'a;

/// Creates a domain, lets it run for a while and destroys it.
fn run_domain(
    kind: DomainKind,
    vcpus: u32,
    runtime: Duration,
    device_model: &[String],
    build: impl Fn(&mut Xen<LinuxHypervisor>, DomId, &Channels) -> Result<Built, BuildError>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut xen = Xen::probe(LinuxHypervisor::open(xen::ARENA_BYTES_MIN)?)?;
    xen.take_counters();
    let start = Instant::now();
    let domid = xen.create_domain(&CreateDomain {
        kind,
        handle: Uuid([0xb0; 16]),
        vcpus_max: vcpus,
        evtchn_port_max: 1023,
        grant_frames_max: None,
        maptrack_frames_max: None,
        options: CreateOptions::default(),
    })?;
    xen.set_vcpus_max(domid, vcpus)?;
    let mut qemu = None;
    let outcome = build_and_run(&mut xen, domid, &build, start, runtime, device_model, &mut qemu);
    xen.destroy_domain(domid)?;
    if let Some(mut qemu) = qemu {
        qemu.kill()?;
        println!("boot: the device model ended: {}", qemu.wait()?);
    }
    outcome
}

fn build_and_run(
    xen: &mut Xen<LinuxHypervisor>,
    domid: DomId,
    build: &Build<'_>,
    start: Instant,
    runtime: Duration,
    device_model: &[String],
    qemu: &mut Option<Child>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut channel = || {
        let port = xen.alloc_unbound(EvtchnPeer { owner: domid, remote: DomId::DOM0 })?;
        Ok::<_, xen::Errno>(Channel { port, backend: DomId::DOM0 })
    };
    let channels = Channels { store: channel()?, console: channel()? };
    let built = build(xen, domid, &channels)?;
    println!("boot: domain {domid} built in {:?}: {built:x?}", start.elapsed());
    let counts = xen.take_counters();
    println!("boot: {} calls: {:?}", counts.total(), counts.iter().collect::<Vec<_>>());
    if let Err(error) = introduce(domid, built.store_frame, channels.store.port.0) {
        println!("boot: domain {domid} has no store: {error}");
    }
    if let [program, arguments @ ..] = device_model {
        *qemu = Some(start_device_model(domid, program, arguments)?);
        println!("boot: the device model runs, {:?} after the start", start.elapsed());
    }
    xen.unpause_domain(domid)?;

    let end = Instant::now() + runtime;
    let mut console = Console { frame: built.console_frame, line: Vec::new() };
    while Instant::now() < end {
        console.print(xen, domid)?;
        std::thread::sleep(Duration::from_millis(50));
        let info = xen.domain(domid)?.ok_or("the domain is gone")?;
        if let Some(reason) = info.flags.shutdown() {
            console.print(xen, domid)?;
            println!("boot: domain {domid} shut down: {reason}");
            return Ok(());
        }
    }
    let info = xen.domain(domid)?.ok_or("the domain is gone")?;
    println!(
        "boot: vCPUs online {}, CPU time {} ms",
        info.vcpus_online,
        info.cpu_time_ns / 1_000_000
    );
    Ok(())
}

/// Starts QEMU for the domain and waits until it reports that it is running.
fn start_device_model(
    domid: DomId,
    program: &str,
    arguments: &[String],
) -> Result<Child, Box<dyn std::error::Error>> {
    let loader = format!("/local/domain/{domid}/hvmloader");
    for (name, value) in [("bios", "seabios"), ("allow-memory-relocate", "0")] {
        Command::new("xenstore-write").args([&format!("{loader}/{name}"), value]).status()?;
    }
    let mut qemu = Command::new(program)
        .args(["-xen-domid", &domid.to_string(), "-no-shutdown", "-nodefaults", "-no-user-config"])
        .args(["-display", "none", "-machine", "xenfv,suppress-vmdesc=on"])
        .args(arguments)
        .env("XEN_DOMAIN_ID", domid.to_string())
        .stdin(Stdio::null())
        .spawn()?;
    let state = format!("/local/domain/0/device-model/{domid}/state");
    loop {
        let output = Command::new("xenstore-read").arg(&state).stderr(Stdio::null()).output()?;
        if output.stdout == b"running\n" {
            return Ok(qemu);
        }
        if let Some(status) = qemu.try_wait()? {
            return Err(format!("the device model ended: {status}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Creates the domain's home node in the store and connects its ring. Source:
/// `docs/misc/xenstore.txt`.
fn introduce(domid: DomId, frame: u64, port: u32) -> Result<(), Box<dyn std::error::Error>> {
    const XS_INTRODUCE: u32 = 8;
    const HEADER_BYTES: usize = 16;
    let mut socket = UnixStream::connect("/run/xenstored/socket")?;
    let home = format!("/local/domain/{domid}");
    let node = |name: &str| format!("{home}/{name}");
    for (path, value) in
        [(node("domid"), domid.to_string()), (node("control/shutdown"), String::new())]
    {
        Command::new("xenstore-write").args([path, value]).status()?;
    }
    Command::new("xenstore-chmod").args(["-r", &home, &format!("n{domid}")]).status()?;
    let payload = format!("{domid}\0{frame}\0{port}\0");
    let mut message = Vec::new();
    for word in [XS_INTRODUCE, 0, 0, u32::try_from(payload.len())?] {
        message.extend_from_slice(&word.to_le_bytes());
    }
    message.extend_from_slice(payload.as_bytes());
    socket.write_all(&message)?;
    let mut answer = [0; HEADER_BYTES];
    socket.read_exact(&mut answer)?;
    if answer[0] == 8 { Ok(()) } else { Err("the store refuses the introduction".into()) }
}

/// The output half of a console ring. Source: `xen/include/public/io/console.h`.
struct Console {
    frame: u64,
    line: Vec<u8>,
}

impl Console {
    fn print(
        &mut self,
        xen: &mut Xen<LinuxHypervisor>,
        domid: DomId,
    ) -> Result<(), Box<dyn std::error::Error>> {
        const OUT: usize = 1024;
        const OUT_BYTES: u32 = 2048;
        const OUT_CONS: usize = 3080;
        const OUT_PROD: usize = 3084;
        let mut page = vec![0; 4096];
        xen.read_foreign(domid, &[self.frame], 0, &mut page)?;
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        let (mut consumed, produced) = (word(OUT_CONS), word(OUT_PROD));
        while consumed != produced {
            let byte = page[OUT + (consumed % OUT_BYTES) as usize];
            self.line.push(byte);
            consumed = consumed.wrapping_add(1);
            if byte == b'\n' {
                let mut stdout = std::io::stdout();
                stdout.write_all(b"| ")?;
                stdout.write_all(&self.line)?;
                self.line.clear();
            }
        }
        xen.write_foreign(domid, &[self.frame], OUT_CONS, &consumed.to_le_bytes())?;
        Ok(())
    }
}
