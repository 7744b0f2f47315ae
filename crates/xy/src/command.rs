//! The commands, their lookup by name, and their help.
//!
//! Names, options and output that scripts may depend on are xl's: xen `tools/xl/xl_cmdtable.c`.

mod help;

use crate::commands::{
    self, adopt, create, devices, domains, host, hypercalls, plan, save, shutdown, storage, store,
    top, trace, vms,
};
use crate::options::{Flag, Options};
use crate::session::{Failure, ProgressDisplay, Session};

type Run = fn(&mut Session, &Options) -> Result<(), Failure>;

/// An entry of the table.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) usage: &'static str,
    pub(crate) about: &'static str,
    pub(crate) flags: &'static [Flag],
    /// Minimum and maximum number of operands.
    pub(crate) operands: (usize, usize),
    pub(crate) dry_run: DryRun,
    pub(crate) run: Run,
}

/// Meaning of the global option `-N` for a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DryRun {
    Possible,
    Impossible,
}

pub(crate) const JSON: Flag = Flag::new('\0', "json", "Print JSON.");
const FORCE: Flag = Flag::new('\0', "force", "Detach it without the guest's consent.");
const STRICT: Flag =
    Flag::new('\0', "strict", "Treat unknown and unsupported keys as errors, not warnings.");
pub(crate) const MANY: usize = usize::MAX;

const COMMANDS: &[Command] = &[
    Command {
        name: "create",
        usage: "<ConfigFile> [options] [vars]",
        about: "Create a domain from config file <filename>",
        flags: &[
            Flag::new('c', "", "Connect to the console after the domain is created."),
            Flag::new('d', "", "Enable debug messages."),
            Flag::new(
                'e',
                "",
                "Accepted for xl compatibility, ignored: no process waits for the domain.",
            ),
            Flag::new('F', "", "Run in foreground until death of the domain."),
            Flag::with_value('f', "defconfig", "FILE", "Use the given configuration file."),
            Flag::new(
                'n',
                "dryrun",
                "Dry run - prints the resulting configuration and all that is wrong with it.",
            ),
            Flag::new('p', "", "Leave the domain paused after it is created."),
            Flag::new('q', "quiet", "Quiet."),
            STRICT,
            Flag::new('V', "vncviewer", "Not supported yet."),
            Flag::new('A', "vncviewer-autopass", "Not supported yet."),
            Flag::new(
                'i',
                "ignore-global-affinity-masks",
                "Accepted for xl compatibility, ignored: there are none.",
            ),
            Flag::new('\0', "stages", "Print where the time went and what it cost."),
            Flag::new('\0', "json", "Print what was made, and what it cost, as JSON."),
        ],
        operands: (0, MANY),
        dry_run: DryRun::Possible,
        run: create::create,
    },
    Command {
        name: "check",
        usage: "[options] <ConfigFile ...> [vars]",
        about: "Print all that is wrong with config files, on this host and now",
        flags: &[STRICT, Flag::new('q', "quiet", "Print nothing for a file without faults."), JSON],
        operands: (1, MANY),
        dry_run: DryRun::Possible,
        run: create::check,
    },
    Command {
        name: "list",
        usage: "[options] [Domain ...]",
        about: "List information about all/some domains",
        flags: &[
            Flag::new('l', "long", "Output all VM details."),
            Flag::new('v', "verbose", "Prints out UUIDs and security context."),
            Flag::new('Z', "context", "Prints out security context."),
            Flag::new('c', "cpupool", "Prints the cpupool the domain is in."),
            Flag::new('n', "numa", "Not supported yet."),
            JSON,
        ],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: domains::list,
    },
    Command {
        name: "adopt",
        usage: "[options] <Domain>",
        about: "Take over a running domain that xl or libvirt made",
        flags: &[Flag::with_value(
            '\0',
            "config",
            "FILE",
            "The file it was made from, if xl has kept nothing: a reboot needs its kernel.",
        )],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: adopt::adopt,
    },
    Command {
        name: "destroy",
        usage: "[options] <Domain ...>",
        about: "Terminate a domain immediately",
        flags: &[Flag::new(
            'f',
            "",
            "Accepted for xl compatibility, ignored: domain 0 is never destroyed.",
        )],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: domains::destroy,
    },
    Command {
        name: "shutdown",
        usage: "[options] <-a|Domain ...>",
        about: "Issue a shutdown signal to a domain",
        flags: &[
            Flag::new('a', "all", "Shutdown all domains that xylemd manages."),
            Flag::new('F', "", "Fallback to ACPI power event for HVM guests with no PV drivers."),
            Flag::new('w', "wait", "Wait for guest(s) to shutdown; twice: until they are gone."),
        ],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: shutdown::shutdown,
    },
    Command {
        name: "reboot",
        usage: "[options] <-a|Domain ...>",
        about: "Issue a reboot signal to a domain",
        flags: &[
            Flag::new('a', "all", "Reboot all domains that xylemd manages."),
            Flag::new('F', "", "Fallback to ACPI reset event for HVM guests with no PV drivers."),
            Flag::new('w', "wait", "Wait for guest(s) to reboot; twice: until the old are gone."),
        ],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: shutdown::reboot,
    },
    Command {
        name: "pause",
        usage: "<Domain ...>",
        about: "Pause execution of a domain",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: domains::pause,
    },
    Command {
        name: "unpause",
        usage: "<Domain ...>",
        about: "Unpause a paused domain",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: domains::unpause,
    },
    Command {
        name: "save",
        usage: "[options] <Domain> <CheckpointFile> [<ConfigFile>]",
        about: "Save a domain state to restore later",
        flags: &[
            Flag::new('c', "", "Leave domain running after creating the snapshot."),
            Flag::new('p', "", "Leave domain paused after creating the snapshot."),
            Flag::new(
                'D',
                "",
                "Accepted for xl compatibility, ignored: a domain gets a new domid.",
            ),
            Flag::with_value('\0', "format", "FORMAT", "Of the file: xylem (default) or xl."),
        ],
        operands: (2, 3),
        dry_run: DryRun::Impossible,
        run: save::save,
    },
    Command {
        name: "restore",
        usage: "[options] [<ConfigFile>] <CheckpointFile>",
        about: "Restore a domain from a saved state",
        flags: &[
            Flag::new('p', "", "Do not unpause domain after restoring it."),
            Flag::new(
                'e',
                "",
                "Accepted for xl compatibility, ignored: no process waits for the domain.",
            ),
            Flag::new('d', "", "Enable debug messages."),
            Flag::new('c', "", "Connect to the console after the domain is restored."),
            Flag::new('F', "", "Run in foreground until death of the domain."),
            Flag::new('V', "vncviewer", "Not supported yet."),
            Flag::new('A', "vncviewer-autopass", "Not supported yet."),
            Flag::new('\0', "stages", "Print where the time went and what it cost."),
            Flag::new('\0', "json", "Print what was made, and what it cost, as JSON."),
        ],
        operands: (1, 2),
        dry_run: DryRun::Impossible,
        run: save::restore,
    },
    Command {
        name: "suspend",
        usage: "<Domain ...>",
        about: "Suspend a domain's guest; the domain stays in memory",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: domains::suspend,
    },
    Command {
        name: "resume",
        usage: "<Domain ...>",
        about: "Resume a suspended domain",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: domains::resume,
    },
    Command {
        name: "console",
        usage: "[options] <Domain>",
        about: "Attach to domain's console",
        flags: &[
            Flag::with_value('t', "", "TYPE", "Console type: pv."),
            Flag::with_value('n', "", "NUMBER", "Console number: 0."),
            Flag::with_value('e', "", "ESCAPE", "Escape character, ^] by default."),
        ],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: commands::console::console,
    },
    Command {
        name: "vncviewer",
        usage: "[options] <Domain>",
        about: "Attach to the screen of an HVM domain",
        flags: &[Flag::new('p', "print", "Print its address instead.")],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: commands::vnc::vncviewer,
    },
    Command {
        name: "domid",
        usage: "<DomainName>",
        about: "Convert a domain name to domain id",
        flags: &[],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: domains::domid,
    },
    Command {
        name: "domname",
        usage: "<DomainId>",
        about: "Convert a domain id to domain name",
        flags: &[],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: domains::domname,
    },
    Command {
        name: "vcpu-list",
        usage: "[options] [Domain ...]",
        about: "List the VCPUs for all/some domains",
        flags: &[JSON],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: domains::vcpu_list,
    },
    Command {
        name: "uptime",
        usage: "[-s] [Domain ...]",
        about: "Print uptime for all/some domains",
        flags: &[Flag::new(
            's',
            "",
            "Print one line each, without seconds; the time of day is UTC.",
        )],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: domains::uptime,
    },
    Command {
        name: "block-list",
        usage: "[options] <Domain ...>",
        about: "List virtual block devices for a domain",
        flags: &[JSON],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: devices::block_list,
    },
    Command {
        name: "network-list",
        usage: "[options] <Domain ...>",
        about: "List virtual network interfaces for a domain",
        flags: &[JSON],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: devices::network_list,
    },
    Command {
        name: "sr-create",
        usage: "<SR> <Kind> [Key=Value ...]",
        about: "Create a storage repository",
        flags: &[],
        operands: (2, MANY),
        dry_run: DryRun::Impossible,
        run: storage::sr_create,
    },
    Command {
        name: "sr-introduce",
        usage: "<SR> <Kind> [Key=Value ...]",
        about: "Introduce an existing storage repository",
        flags: &[],
        operands: (2, MANY),
        dry_run: DryRun::Impossible,
        run: storage::sr_introduce,
    },
    Command {
        name: "sr-forget",
        usage: "<SR>",
        about: "Forget a storage repository; its VDIs stay",
        flags: &[],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: storage::sr_forget,
    },
    Command {
        name: "sr-destroy",
        usage: "<SR>",
        about: "Destroy an empty storage repository",
        flags: &[],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: storage::sr_destroy,
    },
    Command {
        name: "sr-list",
        usage: "[options]",
        about: "List the storage repositories",
        flags: &[JSON],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: storage::sr_list,
    },
    Command {
        name: "sr-info",
        usage: "[options] <SR>",
        about: "Print size and free space of a storage repository",
        flags: &[JSON],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: storage::sr_info,
    },
    Command {
        name: "sr-scan",
        usage: "[options] <SR ...>",
        about: "Rescan storage repositories and list their VDIs",
        flags: &[JSON],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: storage::vdi_list,
    },
    Command {
        name: "vdi-list",
        usage: "[options] [SR ...]",
        about: "List the virtual disk images of all/some repositories",
        flags: &[JSON],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: storage::vdi_list,
    },
    Command {
        name: "vdi-create",
        usage: "<SR:VDI> <Size>",
        about: "Create an empty virtual disk image",
        flags: &[],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: storage::vdi_create,
    },
    Command {
        name: "vdi-destroy",
        usage: "<SR:VDI>",
        about: "Destroy a virtual disk image and its data",
        flags: &[],
        operands: (1, 1),
        dry_run: DryRun::Impossible,
        run: storage::vdi_destroy,
    },
    Command {
        name: "vdi-resize",
        usage: "<SR:VDI> <Size>",
        about: "Grow a virtual disk image",
        flags: &[],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: storage::vdi_resize,
    },
    Command {
        name: "vdi-snapshot",
        usage: "<SR:VDI> <VDI>",
        about: "Take a read-only snapshot of a virtual disk image",
        flags: &[],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: storage::vdi_snapshot,
    },
    Command {
        name: "vdi-clone",
        usage: "<SR:VDI> <VDI>",
        about: "Clone a virtual disk image",
        flags: &[],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: storage::vdi_clone,
    },
    Command {
        name: "block-attach",
        usage: "<Domain> <disk-spec-component(s)>...",
        about: "Create a new virtual block device",
        flags: &[],
        operands: (2, MANY),
        dry_run: DryRun::Impossible,
        run: devices::block_attach,
    },
    Command {
        name: "block-detach",
        usage: "[options] <Domain> <DevId>",
        about: "Destroy a domain's virtual block device",
        flags: &[FORCE],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: devices::block_detach,
    },
    Command {
        name: "network-attach",
        usage: "<Domain> [type=<type>] [mac=<mac>] [bridge=<bridge>] ...",
        about: "Create a new virtual network device",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: devices::network_attach,
    },
    Command {
        name: "network-detach",
        usage: "[options] <Domain> <DevId|mac>",
        about: "Destroy a domain's virtual network device",
        flags: &[FORCE],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: devices::network_detach,
    },
    Command {
        name: "cd-insert",
        usage: "<Domain> <VirtualDevice> <path>",
        about: "Insert a CD-ROM into a guest's CD drive",
        flags: &[FORCE],
        operands: (3, 3),
        dry_run: DryRun::Impossible,
        run: devices::cd_insert,
    },
    Command {
        name: "cd-eject",
        usage: "<Domain> <VirtualDevice>",
        about: "Eject a CD-ROM from a guest's CD drive",
        flags: &[FORCE],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: devices::cd_eject,
    },
    Command {
        name: "explain",
        usage: "<Domain ...>",
        about: "Print the operation under way for a domain and what its steps wait for",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: plan::explain,
    },
    Command {
        name: "plan",
        usage: "create FILE [vars] | reboot|shutdown|destroy Domain | block-attach DISK | ...",
        about: "Print the plan of steps that a command would take",
        flags: &[FORCE],
        operands: (2, MANY),
        dry_run: DryRun::Impossible,
        run: plan::plan,
    },
    Command {
        name: "limits",
        usage: "[options]",
        about: "Print or change how many steps run at the same time",
        flags: &[
            Flag::with_value('\0', "host", "N", "On the whole host (worker-pool-size)."),
            Flag::with_value('\0', "vm", "N", "For one VM."),
            Flag::with_value('\0', "sr", "N", "On one storage: a folder or volume group."),
            Flag::with_value('\0', "backend", "N", "On one backend: a domain that serves devices."),
            Flag::with_value('\0', "storage", "N", "Attaches, and detaches."),
            Flag::with_value('\0', "domain", "N", "Domains being made, and being destroyed."),
            Flag::with_value('\0', "scan", "N", "Scans of SRs."),
            Flag::with_value(
                '\0',
                "change",
                "N",
                "Changes of SRs and VDIs; one at a time for each SR.",
            ),
            Flag::with_value('\0', "memory", "N", "Saves, and restores."),
            JSON,
        ],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: plan::limits,
    },
    Command {
        name: "info",
        usage: "[options] [KEY]",
        about: "Get information about Xen host",
        flags: &[Flag::new('n', "numa", "Not supported yet."), JSON],
        operands: (0, 1),
        dry_run: DryRun::Impossible,
        run: host::info,
    },
    Command {
        name: "counters",
        usage: "[options]",
        about: "Print counters of xylemd since its start",
        flags: &[JSON],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: host::counters,
    },
    Command {
        name: "hypercalls",
        usage: "[options]",
        about: "Print hypercall counts and latencies",
        flags: &[
            Flag::new('o', "operations", "Group by operation."),
            Flag::new('q', "queues", "Print the work queues and their waiting times instead."),
            JSON,
        ],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: hypercalls::hypercalls,
    },
    Command {
        name: "top",
        usage: "[options]",
        about: "Monitor the domains, as xentop does",
        flags: &[
            Flag::new('b', "batch", "Batch mode: print one table after the other."),
            Flag::with_value('i', "iterations", "N", "End after so many."),
            Flag::with_value('d', "delay", "SECONDS", "Time between tables, 3 by default."),
            Flag::with_value(
                's',
                "sort",
                "KEY",
                "By name, domid, cpu, time, mem, vcpus, net or disk; cpu by default.",
            ),
            Flag::with_value('F', "filter", "TEXT", "Only domains with this in their names."),
            Flag::with_value('\0', "limit", "N", "Only the first N."),
            Flag::new('f', "full-name", "Names in full instead of ten characters."),
        ],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: top::top,
    },
    Command {
        name: "dominfo",
        usage: "[options] <Domain ...>",
        about: "Print details of a domain",
        flags: &[JSON],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: domains::dominfo,
    },
    Command {
        name: "define",
        usage: "<ConfigFile> [options] [vars]",
        about: "Define a VM that outlives its domain",
        flags: &[
            STRICT,
            Flag::with_value('f', "defconfig", "FILE", "Use the given configuration file."),
            Flag::new('a', "autostart", "Start it with the host."),
            Flag::with_value('o', "order", "N", "Start it with the host, after smaller numbers."),
        ],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: vms::define,
    },
    Command {
        name: "undefine",
        usage: "<VM ...>",
        about: "Remove the definition of a VM; its domain keeps running",
        flags: &[],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: vms::undefine,
    },
    Command {
        name: "vm-list",
        usage: "[options]",
        about: "List all VMs, defined or only running",
        flags: &[JSON],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: vms::vm_list,
    },
    Command {
        name: "start",
        usage: "[options] <-a|VM ...>",
        about: "Start a defined VM",
        flags: &[
            Flag::new('a', "all", "Start all defined VMs that are down, in their order."),
            Flag::new('p', "", "Leave the domain paused after it is created."),
            Flag::new('\0', "stages", "Print where the time went and what it cost."),
        ],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: vms::start,
    },
    Command {
        name: "wait",
        usage: "[options] <VM> <State>",
        about: "Wait until a VM is running, paused, preserved, down or gone",
        flags: &[Flag::with_value('t', "timeout", "SECONDS", "Fail after this time.")],
        operands: (2, 2),
        dry_run: DryRun::Impossible,
        run: vms::wait,
    },
    Command {
        name: "events",
        usage: "[options]",
        about: "Print state changes of VMs",
        flags: &[
            Flag::with_value('s', "since", "REVISION", "Only changes after this revision."),
            Flag::new('f', "follow", "Keep printing changes as they come."),
            Flag::new('\0', "json", "Print JSON, an object in each line."),
        ],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: vms::events,
    },
    Command {
        name: "trace",
        usage: "[options] [Operation|Domain|Kind]",
        about: "List the last operations, or draw where the time of one went",
        flags: &[
            JSON,
            Flag::new('a', "all", "Draw all kept operations, or those of one kind (start)."),
            Flag::with_value('s', "since", "OPERATION", "With --all: only later ones."),
            Flag::new('\0', "chrome", "Print a trace that Perfetto and Chrome open."),
            Flag::new('\0', "svg", "Print an SVG picture."),
        ],
        operands: (0, 1),
        dry_run: DryRun::Impossible,
        run: trace::trace,
    },
    Command {
        name: "store",
        usage: "<command> [args]",
        about: "Read and change the store; see 'xy help store'",
        flags: &[],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: store_alone,
    },
];

/// `xy store` without a command.
fn store_alone(session: &mut Session, _options: &Options) -> Result<(), Failure> {
    session.print(&help::store());
    Err(Failure::usage("store: a command is missing"))
}

/// Runs the command in `arguments`, after the global options.
pub(crate) fn run(session: &mut Session, arguments: Vec<String>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter();
    let word = loop {
        let Some(argument) = arguments.next() else {
            session.print(&help::all());
            return Err(Failure::usage("a command is missing"));
        };
        match argument.as_str() {
            "-h" | "--help" => {
                session.print(&help::all());
                return Ok(());
            }
            "--version" => {
                session.print(concat!("xy ", env!("CARGO_PKG_VERSION"), "\n"));
                return Ok(());
            }
            _ if argument.starts_with('-') => read_global_options(session, &argument)?,
            _ => break argument,
        }
    };
    let mut arguments: Vec<_> = arguments.collect();
    if word == "help" {
        return help(session, &arguments);
    }
    let mut command = lookup(&word)?;
    if command.name == "store" && arguments.first().is_some_and(|first| !first.starts_with('-')) {
        command = lookup_store(&arguments.remove(0))?;
    }
    if arguments.iter().take_while(|a| *a != "--").any(|a| a == "-h" || a == "--help") {
        session.print(&help::of(command));
        return Ok(());
    }
    if session.dry_run && command.dry_run == DryRun::Impossible {
        return Err(Failure::usage(format!("{}: cannot be run dry (-N)", command.name)));
    }
    let options = Options::parse(command, arguments)?;
    (command.run)(session, &options)
}

fn read_global_options(session: &mut Session, letters: &str) -> Result<(), Failure> {
    let unknown = || Failure::usage(format!("{letters}: unknown global option; see 'xy help'"));
    let letters = letters.strip_prefix('-').filter(|rest| !rest.is_empty()).ok_or_else(unknown)?;
    for letter in letters.chars() {
        match letter {
            'v' => session.progress = ProgressDisplay::Lines,
            't' => session.progress = ProgressDisplay::Overwritten,
            'T' => session.timestamps = true,
            'N' => session.dry_run = true,
            // Accepted for xl compatibility (ignore the lock), ignored.
            'f' => {}
            _ => return Err(unknown()),
        }
    }
    Ok(())
}

/// Finds a command by its name or an unambiguous prefix.
fn lookup(word: &str) -> Result<&'static Command, Failure> {
    find(COMMANDS, "", word)
}

/// Finds a command of `xy store`, likewise.
fn lookup_store(word: &str) -> Result<&'static Command, Failure> {
    find(store::COMMANDS, "store ", word)
}

fn find(
    commands: &'static [Command],
    prefix: &str,
    word: &str,
) -> Result<&'static Command, Failure> {
    let short = |command: &Command| command.name.strip_prefix(prefix).unwrap_or(command.name);
    if let Some(command) = commands.iter().find(|command| short(command) == word) {
        return Ok(command);
    }
    let matching: Vec<_> =
        commands.iter().filter(|command| short(command).starts_with(word)).collect();
    match matching.as_slice() {
        [command] if !word.is_empty() => Ok(command),
        [] => {
            let help = format!("xy help {prefix}");
            Err(Failure::usage(format!("{word:?} is no command; see '{}'", help.trim_end())))
        }
        several => {
            let names: Vec<_> = several.iter().map(|command| short(command)).collect();
            Err(Failure::usage(format!("{word:?} is ambiguous: {}", names.join(", "))))
        }
    }
}

fn help(session: &mut Session, words: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = match words[..] {
        [] | ["help", ..] => help::all(),
        ["store", word, ..] => help::one(lookup_store(word)?),
        [word, ..] => help::of(lookup(word)?),
    };
    session.print(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn found(word: &str) -> String {
        match lookup(word) {
            Ok(command) => command.name.to_owned(),
            Err(failure) => failure.messages().join("\n"),
        }
    }

    #[test]
    fn a_beginning_that_is_unambiguous_finds_its_command() {
        for (word, expected) in [
            ("list", "list"),
            ("lis", "list"),
            ("cr", "create"),
            ("unp", "unpause"),
            ("un", "\"un\" is ambiguous: unpause, undefine"),
            ("dom", "\"dom\" is ambiguous: domid, domname, dominfo"),
            ("c", "\"c\" is ambiguous: create, check, console, cd-insert, cd-eject, counters"),
            ("migrate", "\"migrate\" is no command; see 'xy help'"),
            ("lists", "\"lists\" is no command; see 'xy help'"),
        ] {
            assert_eq!(found(word), expected, "{word}");
        }
    }

    #[test]
    fn every_command_is_found_by_its_own_name_and_has_distinct_options() {
        for command in COMMANDS {
            assert_eq!(found(command.name), command.name);
            for (i, flag) in command.flags.iter().enumerate() {
                for other in &command.flags[..i] {
                    assert!(flag.short == '\0' || flag.short != other.short, "{}", command.name);
                    assert!(flag.long.is_empty() || flag.long != other.long, "{}", command.name);
                }
            }
        }
    }

    #[test]
    fn help_reads_like_that_of_xl() {
        expect![[r#"
            Usage: xy [-vtT] shutdown [options] <-a|Domain ...>

            Issue a shutdown signal to a domain.

            Options:

            -a, --all               Shutdown all domains that xylemd manages.
            -F                      Fallback to ACPI power event for HVM guests with no PV drivers.
            -w, --wait              Wait for guest(s) to shutdown; twice: until they are gone.
        "#]]
        .assert_eq(&help::one(lookup("shutdown").unwrap_or(&COMMANDS[0])));
    }

    fn options(command: &str, arguments: &[&str]) -> Result<Options, Failure> {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Options::parse(lookup(command)?, arguments)
    }

    #[test]
    fn options_may_stand_anywhere_and_in_one_word() {
        let given = options("shutdown", &["a", "-aw", "b", "--wait"]).unwrap();
        assert_eq!(given.operands, ["a", "b"]);
        assert!(given.has("all"));
        assert!(!given.has("F"));
        assert_eq!(given.count("wait"), 2);
        let given = options("create", &["-f", "g.cfg", "-pq", "memory=3"]).unwrap();
        assert_eq!(given.value("defconfig"), Some("g.cfg"));
        assert!(given.has("p") && given.has("quiet"));
        let given = options("create", &["--defconfig=g.cfg", "--", "-x"]).unwrap();
        assert_eq!(given.value("defconfig"), Some("g.cfg"));
        assert_eq!(given.operands, ["-x"]);
    }

    #[test]
    fn wrong_options_are_usage_errors_that_name_the_command() {
        for (command, arguments, expected) in [
            ("destroy", &[][..], "destroy: requires at least 1 argument; see 'xy help destroy'"),
            ("domid", &["a", "b"], "domid: \"b\" is one argument too many; see 'xy help domid'"),
            ("list", &["-x"], "list: invalid option '-x'; see 'xy help list'"),
            ("list", &["--lng"], "list: invalid option '--lng'; see 'xy help list'"),
            (
                "list",
                &["--long=3"],
                "list: unexpected argument for option '--long': \"3\"; see 'xy help list'",
            ),
            ("create", &["-f"], "create: missing argument for option '-f'; see 'xy help create'"),
        ] {
            assert_eq!(options(command, arguments), Err(Failure::usage(expected)));
        }
    }
}
