//! The emulated machine: QEMU's command line, and a child process that cannot outlive us.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{FORWARDED, Mode, Options, host_tools};

/// SMAP kills the PV dom0 of Xen 4.17, RDTSCP kills PVH Linux, and with AVX state memory of dom0's
/// programs is corrupted now and then, under this emulator. `lab/README.md` says more.
const CPU: &str = "max,-smap,-rdtscp,-xsave,-xsaveopt,-xsavec,-xsaves,\
                   -avx,-avx2,-f16c,-fma,-pku,-vaes,-vpclmulqdq";

/// The second half only saves time: each word is worth 0.3 to 1 s of an emulated boot.
const KERNEL_ARGUMENTS: &str = "console=hvc0 quiet panic=1 oops=panic \
     rodata=off cryptomgr.notests mitigations=off";

/// What a machine boots, the same whenever it is switched on.
#[derive(Debug)]
pub(crate) struct Software {
    /// The hypervisor as a multiboot ELF file.
    pub xen: PathBuf,
    /// dom0's kernel as an ELF file.
    pub kernel: PathBuf,
    /// dom0's first file system.
    pub initrd: PathBuf,
    /// More words for dom0's kernel.
    pub kernel_arguments: &'static str,
    /// Images of its disks, in qcow2.
    pub disks: Vec<PathBuf>,
    /// Whether a host that reboots is switched on again.
    pub reboots: bool,
}

/// Files through which one machine talks to us.
#[derive(Clone, Debug)]
pub(crate) struct Channels {
    /// Xen's and dom0's kernel's messages.
    pub console: PathBuf,
    /// Events from dom0's init.
    pub control: PathBuf,
    /// Archive of the scenario's results.
    pub results: PathBuf,
}

/// What connects a machine of several with the others: sockets whose other ends we hold.
#[derive(Debug, Default)]
pub(crate) struct Wiring {
    /// Network cards, each with its address.
    pub cards: Vec<(UnixStream, String)>,
    /// Takes the scenario's orders about the network and the power.
    pub orders: Option<UnixStream>,
    /// A disk that outlives the machine's power.
    pub disk: Option<PathBuf>,
}

/// A running QEMU; ended, by its process id, when this value goes.
#[derive(Debug)]
pub(crate) struct Machine {
    pub child: Child,
}

impl Machine {
    /// Switches a machine on.
    ///
    /// # Errors
    /// QEMU does not start.
    pub(crate) fn start(
        options: &Options,
        mode: &Mode,
        software: &Software,
        channels: &Channels,
        wiring: &Wiring,
    ) -> Result<Self> {
        let mut command = host_tools::bound("qemu-system-x86_64");
        // Of the two, only the first has a driver in dom0.
        let (machine, cards): (_, &[&str]) = match options.has_iommu {
            true => ("q35,kernel-irqchip=split", &["virtio-rng-pci,addr=0x10", "edu,addr=0x11"]),
            false => ("q35", &[]),
        };
        command.args(["-machine", machine, "-accel", "tcg,thread=multi", "-cpu", CPU]);
        command.args(["-smp", &options.cpus.to_string()]);
        command.args(["-m", &options.memory_mib.to_string()]);
        command.args(["-display", "none", "-vga", "none", "-no-reboot", "-net", "none"]);
        command.args(["-nodefaults", "-monitor", "none"]);
        if options.has_iommu {
            command.args(["-device", "intel-iommu,intremap=on"]);
        }
        command.args(cards.iter().flat_map(|card| ["-device", card]));
        command.arg("-kernel").arg(&software.xen);
        command.args([
            "-append",
            &format!(
                "console=com1 com1=115200,8n1 dom0_mem={0}M,max:{0}M dom0_max_vcpus={1} \
                 loglvl=warning guest_loglvl=warning noreboot {2}",
                options.dom0_memory_mib, options.cpus, options.xen_arguments,
            ),
        ]);
        // QEMU separates modules by commas; a comma inside a name is written twice.
        let escape = |path: &std::path::Path| path.display().to_string().replace(',', ",,");
        command.args([
            "-initrd",
            &format!(
                "{} {KERNEL_ARGUMENTS} {},{}",
                escape(&software.kernel),
                software.kernel_arguments,
                escape(&software.initrd)
            ),
        ]);
        let file =
            |name: &str, path: &std::path::Path| format!("file,id={name},path={}", escape(path));
        // A host that is switched on again writes on.
        command.args(["-chardev", &(file("console", &channels.console) + ",append=on")]);
        command.args(["-serial", "chardev:console"]);
        command.args(["-device", "virtio-serial-pci"]);
        command.args(["-chardev", &(file("control", &channels.control) + ",append=on")]);
        command.args(["-device", "virtserialport,chardev=control,name=xylem.control"]);
        command.args(["-chardev", &file("results", &channels.results)]);
        command.args(["-device", "virtserialport,chardev=results,name=xylem.results"]);
        command.args(["-chardev", "stdio,id=main,signal=off"]);
        match mode {
            Mode::Scenario { .. } => {
                command.args(["-device", "virtserialport,chardev=main,name=xylem.output"]);
                // QEMU takes the end of its input for a peer that hung up, and then holds back
                // what dom0 writes: the pipe stays open, unused, as long as the machine runs.
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
            }
            Mode::Shell { .. } => {
                command.args(["-device", "virtconsole,chardev=main,name=xylem.shell"]);
            }
        }
        for disk in &software.disks {
            // They live as long as we do: nothing is synced.
            let drive = format!("if=virtio,format=qcow2,cache=unsafe,file={}", escape(disk));
            command.args(["-drive", &drive]);
        }
        if let Some(port) = options.forward {
            // Nothing but this one port, and nothing from inside.
            let netdev =
                format!("user,id=door,restrict=on,hostfwd=tcp:127.0.0.1:{port}-{FORWARDED}");
            command.args(["-netdev", &netdev]);
            command.args(["-device", "virtio-net-pci,netdev=door,romfile="]);
        }
        connect(&mut command, wiring)?;
        command.stderr(Stdio::piped());
        let child = command.spawn().context("QEMU does not start")?;
        Ok(Self { child })
    }

    /// Asks dom0's init to end the scenario.
    pub(crate) fn ask_to_stop(&mut self) {
        if let Some(input) = &mut self.child.stdin {
            // If this does not arrive, the caller's patience ends a little later.
            let _ = input.write_all(b"stop\n").and_then(|()| input.flush());
        }
    }

    /// Asks QEMU to end, so that it gives a terminal back in order; insists after two seconds.
    pub(crate) fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds what a host of several has beyond one that is alone.
fn connect(command: &mut Command, wiring: &Wiring) -> Result<()> {
    for (number, (socket, address)) in wiring.cards.iter().enumerate() {
        let fd = inherited(socket)?;
        let netdev = format!("stream,id=net{number},server=off,addr.type=fd,addr.str={fd}");
        command.args(["-netdev", &netdev]);
        let card = format!("virtio-net-pci,netdev=net{number},mac={address},romfile=");
        command.args(["-device", &card]);
    }
    if let Some(socket) = &wiring.orders {
        command.args(["-chardev", &format!("socket,id=orders,fd={}", inherited(socket)?)]);
        command.args(["-device", "virtserialport,chardev=orders,name=xylem.orders"]);
    }
    if let Some(disk) = &wiring.disk {
        let path = disk.display().to_string().replace(',', ",,");
        command.args(["-drive", &format!("if=virtio,format=raw,file={path}")]);
    }
    Ok(())
}

/// The number of a socket that the next process we start shall have. Ours closes with its owner.
fn inherited(socket: &UnixStream) -> Result<i32> {
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())
        .context("a socket cannot be handed on")?;
    Ok(socket.as_raw_fd())
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}
