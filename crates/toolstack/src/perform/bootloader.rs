//! Running a bootloader, and reading what it found.

use storage::{FileKind, HostError};
use xen::Hypervisor;
use xenstore::client::Transport;

use super::build::check_images;
use super::{Performer, failure};
use crate::bootloader::{ANSWER_BYTES_MAX, Answer, BootloaderRun, SECONDS};
use crate::config::{Bootloader, VmConfig};
use crate::host::{Host, KernelError};
use crate::work::{Failure, Images};

impl<H: Hypervisor, T: Transport, O: Host> Performer<H, T, O> {
    /// The path of its program. All else that a create needs is looked for beside it.
    pub(crate) fn find_bootloader(&mut self, config: &VmConfig) -> Result<String, Failure> {
        self.wanted_pool(config)?;
        self.check_model(config)?;
        let bootloader = of(config);
        let place = config.origin.at("bootloader");
        let version = self.xen.version_info().map_err(|errno| failure("Xen's version", errno))?;
        let programs = bootloader.programs(&format!("{}.{}", version.major, version.minor));
        for program in &programs {
            match self.host.system().inspect(program) {
                Ok(FileKind::Regular { .. }) => return Ok(program.clone()),
                Ok(_) => return Err(Failure(format!("{place}: {program}: not a file"))),
                Err(HostError::Missing) => {}
                Err(error) => return Err(failure(format!("{place}: {program}"), error)),
            }
        }
        let package = match bootloader.program.rsplit('/').next() {
            Some("pygrub") => "; on Debian it is in xen-utils",
            _ => "",
        };
        Err(Failure(format!(
            "{place}: no bootloader {} on this host, looked for {}{package}",
            bootloader.program,
            programs.join(", ")
        )))
    }

    /// The images that the one at the first path finds on the disk at the second.
    pub(crate) fn run_bootloader(
        &mut self,
        config: &VmConfig,
        program: String,
        disk: String,
    ) -> Result<Images, Failure> {
        let bootloader = of(config);
        let place = format!("{}: {program}", config.origin.at("bootloader"));
        let run = BootloaderRun {
            program,
            arguments: bootloader.arguments(config),
            user: bootloader.user.clone(),
            disk,
            log: format!("/var/log/xen/bootloader-{}.log", config.name),
            seconds: SECONDS,
        };
        let told = |error| failure(&place, error);
        let mut folder = self.host.run_bootloader(&run).map_err(told)?;
        // One byte more shows that it is too long.
        let answer = folder.answer(ANSWER_BYTES_MAX + 1).map_err(told)?;
        let answer = Answer::parse(&answer).map_err(|error| failure(&place, error))?;
        let what = || format!("{place}: the kernel that it found");
        let (kernel, shimmed) = match &config.options.shim {
            None => {
                let kernel = folder.kernel(&answer.kernel).map_err(|error| match error {
                    KernelError::Host(error) => failure(what(), error),
                    KernelError::Image(error) => failure(what(), error),
                })?;
                (kernel, None)
            }
            Some(_) => {
                let bytes = folder.ramdisk(&answer.kernel);
                let bytes = bytes.map_err(|error| failure(what(), error))?;
                (self.load_shim(config)?, Some(bytes))
            }
        };
        let ramdisk =
            match &answer.ramdisk {
                None => None,
                Some(name) => Some(folder.ramdisk(name).map_err(|error| {
                    failure(format!("{place}: the ramdisk that it found"), error)
                })?),
            };
        let images = Images::Kernel { kernel, ramdisk, cmdline: Some(answer.cmdline), shimmed };
        check_images(config, &images)?;
        Ok(images)
    }
}

fn of(config: &VmConfig) -> &Bootloader {
    config.options.bootloader.as_deref().expect("planned for a VM with a bootloader")
}
