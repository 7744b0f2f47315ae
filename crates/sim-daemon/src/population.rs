//! VMs for a simulated host, and something for them to do.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use api::client::{CallError, Client};
use api::{Create, Reply, Request, StorageRequest, Target, Targets, Wait};
use sim::Prng;

/// The SR that disks are in.
const SR: &str = "files";
const DISK_BYTES: u64 = 1 << 30;
/// One VM of so many has a disk in the SR.
const VMS_PER_DISK: u32 = 10;
/// VMs that reboot at once.
const STORM: u32 = 40;
/// Time between two deeds, at most.
const DEED_EVERY_MS: u64 = 1000;

/// A client that makes VMs and changes them.
pub struct Population {
    client: Client,
    prng: Prng,
    vms: u32,
}

/// The name of the VM with this number.
fn name(number: u32) -> String {
    let role = ["web", "db", "cache", "queue", "worker"][number as usize % 5];
    format!("{role}-{number}")
}

/// A VM of each sort in turn: unikernels, and Linux guests with disks and interfaces.
fn config(number: u32) -> String {
    let name = name(number);
    let of_linux = "ramdisk = '/boot/initrd.img'\nextra = 'sim.kind=linux'\n";
    let disk = match number % VMS_PER_DISK {
        0 => format!("disk = ['{SR}:{name},,xvda,w']\n"),
        _ => String::new(),
    };
    let (kind, rest) = match number % 3 {
        0 => ("pv", format!("memory = 32\nvcpus = 2\nvif = ['']\n{disk}{of_linux}")),
        1 => ("pvh", format!("memory = 8\n{disk}")),
        _ => ("pvh", format!("memory = 16\nvif = ['']\n{disk}")),
    };
    format!("name = '{name}'\ntype = '{kind}'\nkernel = '/boot/vmlinuz'\n{rest}")
}

impl Population {
    /// # Errors
    /// Nobody serves the socket.
    pub fn at(socket: &Path, seed: u64) -> Result<Self, CallError> {
        Ok(Self { client: Client::connect(socket)?, prng: Prng::new(seed), vms: 0 })
    }

    fn call(&mut self, request: &Request) -> Result<Reply, CallError> {
        self.client.call(request, |_| ())
    }

    /// Makes an SR and so many VMs; `made` is told of each.
    ///
    /// # Errors
    /// One could not be made.
    pub fn make(&mut self, vms: u32, mut made: impl FnMut(u32)) -> Result<(), CallError> {
        let config = BTreeMap::from([("path".to_owned(), format!("/srv/{SR}"))]);
        let (name, kind) = (SR.to_owned(), "file".to_owned());
        self.call(&Request::Storage(StorageRequest::SrCreate { name, kind, config }))?;
        for number in 0..vms {
            self.make_one(number)?;
            made(number + 1);
        }
        self.vms = vms;
        Ok(())
    }

    fn make_one(&mut self, number: u32) -> Result<(), CallError> {
        if number.is_multiple_of(VMS_PER_DISK) {
            let vdi = format!("{SR}:{}", name(number));
            let bytes = DISK_BYTES;
            self.call(&Request::Storage(StorageRequest::VdiCreate { vdi, bytes }))?;
        }
        self.create(number)
    }

    fn create(&mut self, number: u32) -> Result<(), CallError> {
        let (file, config_text) = (format!("{}.cfg", name(number)), config(number));
        let cwd = "/".to_owned();
        let create = Create { file, config_text, cwd, ..Create::default() };
        self.call(&Request::Create(create)).map(drop)
    }

    /// Does something to one VM or another, and rests for a while.
    ///
    /// # Errors
    /// The daemon has gone. What it refuses is not an error: a VM may be as it is already.
    pub fn live_on(&mut self) -> Result<(), CallError> {
        let number = u32::try_from(self.prng.below(u64::from(self.vms.max(1)))).unwrap_or_default();
        let target = Target(name(number));
        let targets = Targets::These(vec![target.clone()]);
        let done = match self.prng.below(6) {
            0 => self.call(&Request::Pause { target: target.clone() }).and_then(|_| {
                std::thread::sleep(Duration::from_millis(200));
                self.call(&Request::Unpause { target })
            }),
            1 => {
                let (wait, acpi) = (Wait::Asked, false);
                self.call(&Request::Reboot { targets, wait, acpi })
            }
            2 => {
                let vif = "bridge=xenbr0".to_owned();
                self.call(&Request::NetworkAttach { target, vif })
            }
            3 => {
                let (vif, force) = ("1".to_owned(), false);
                self.call(&Request::NetworkDetach { target, vif, force })
            }
            // Many at once, so that some wait for others.
            4 => {
                let last = number.saturating_add(STORM).min(self.vms);
                let targets = Targets::These((number..last).map(|it| Target(name(it))).collect());
                let (wait, acpi) = (Wait::Asked, false);
                self.call(&Request::Reboot { targets, wait, acpi })
            }
            _ => self
                .call(&Request::Destroy { target })
                .and_then(|_| self.create(number).map(|()| Reply::Done)),
        };
        match done {
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        std::thread::sleep(Duration::from_millis(self.prng.below(DEED_EVERY_MS)));
        Ok(())
    }
}
