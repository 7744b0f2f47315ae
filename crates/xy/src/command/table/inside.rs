//! Commands that look into a running domain.

use super::super::{Command, DryRun};
use crate::commands::dump;
use crate::options::Flag;

pub(super) const COMMANDS: &[Command] = &[Command {
    name: "dump-core",
    usage: "[options] <Domain> <filename>",
    about: "Core dump a domain",
    flags: &[Flag::new('\0', "live", "Do not pause the domain: the file is of no single moment.")],
    operands: (2, 2),
    dry_run: DryRun::Impossible,
    run: dump::dump_core,
}];
