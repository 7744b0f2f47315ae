//! Commands that look into a running domain.

use super::super::{Command, DryRun, MANY};
use crate::commands::inside;
use crate::options::Flag;

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "dump-core",
        usage: "[options] <Domain> <filename>",
        about: "Core dump a domain",
        flags: &[Flag::new(
            '\0',
            "live",
            "Do not pause the domain: the file is of no single moment.",
        )],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: inside::dump_core,
    },
    Command {
        name: "config-update",
        usage: "<Domain> <ConfigFile> [options] [vars]",
        about: "Update a running domain's saved configuration, used when rebuilding the domain after reboot",
        flags: &[
            Flag::with_value('f', "defconfig", "FILE", "Use the given configuration file."),
            Flag::new('d', "", "Print the resulting configuration."),
            Flag::new('q', "quiet", "Accepted for xl compatibility, ignored."),
        ],
        operands: (1, MANY),
        dry_run: DryRun::Possible,
        run: inside::config_update,
    },
    Command {
        name: "qemu-monitor-command",
        usage: "<Domain> <Command>",
        about: "Issue a qemu monitor command to the device model of a domain",
        flags: &[],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: inside::qemu_monitor_command,
    },
];
