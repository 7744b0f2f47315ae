//! Commands that change a running domain.

use crate::command::{Command, DryRun, JSON};
use crate::commands::{sched, tuning};
use crate::options::Flag;

const DOMAIN: Flag = Flag::with_value('d', "domain", "DOMAIN", "Domain to modify.");
const WEIGHT: Flag = Flag::with_value('w', "weight", "WEIGHT", "Weight (int).");
const CAP: Flag = Flag::with_value('c', "cap", "CAP", "Cap (int).");
const SCHEDPARAM: Flag = Flag::new('s', "schedparam", "Query / modify scheduler parameters.");
const RATELIMIT: Flag = Flag::with_value(
    'r',
    "ratelimit_us",
    "RLIMIT",
    "Set the scheduling rate limit, in microseconds.",
);
const OF_CPUPOOL: Flag = Flag::with_value('p', "cpupool", "CPUPOOL", "Restrict output to CPUPOOL.");

pub(super) const MEM_MAX: Command = Command {
    name: "mem-max",
    usage: "<Domain> <MemMB['b'[bytes]|'k'[KB]|'m'[MB]|'g'[GB]|'t'[TB]]>",
    about: "Set the maximum amount reservation for a domain",
    flags: &[],
    operands: (2, 2),
    dry_run: DryRun::Impossible,
    run: tuning::mem_max,
};

pub(super) const MEM_SET: Command = Command {
    name: "mem-set",
    usage: "<Domain> <MemMB['b'[bytes]|'k'[KB]|'m'[MB]|'g'[GB]|'t'[TB]]>",
    about: "Set the current memory usage for a domain",
    flags: &[],
    operands: (2, 2),
    dry_run: DryRun::Impossible,
    run: tuning::mem_set,
};

pub(super) const VCPU_SET: Command = Command {
    name: "vcpu-set",
    usage: "[options] <Domain> <vCPUs>",
    about: "Set the number of active VCPUs allowed for the domain",
    flags: &[Flag::new('i', "ignore-host", "Don't limit the vCPU based on the host CPU count.")],
    operands: (2, 2),
    dry_run: DryRun::Impossible,
    run: tuning::vcpu_set,
};

pub(super) const VCPU_PIN: Command = Command {
    name: "vcpu-pin",
    usage: "[options] <Domain> <VCPU|all> <Hard affinity|-|all> [<Soft affinity|-|all>]",
    about: "Set which CPUs a VCPU can use",
    flags: &[
        Flag::new('f', "force", "Undo an override pinning done by the kernel."),
        Flag::new(
            'i',
            "ignore-global-affinity-masks",
            "Accepted for xl compatibility, ignored: there are none.",
        ),
    ],
    operands: (3, 4),
    dry_run: DryRun::Impossible,
    run: tuning::vcpu_pin,
};

pub(super) const RENAME: Command = Command {
    name: "rename",
    usage: "<Domain> <NewDomainName>",
    about: "Rename a domain",
    flags: &[],
    operands: (2, 2),
    dry_run: DryRun::Impossible,
    run: tuning::rename,
};

pub(super) const TRIGGER: Command = Command {
    name: "trigger",
    usage: "<Domain> <nmi|reset|init|power|sleep|s3resume> [<VCPU>]",
    about: "Send a trigger to a domain",
    flags: &[],
    operands: (2, 3),
    dry_run: DryRun::Impossible,
    run: tuning::trigger,
};

pub(super) const SYSRQ: Command = Command {
    name: "sysrq",
    usage: "<Domain> <letter>",
    about: "Send a sysrq to a domain",
    flags: &[],
    operands: (2, 2),
    dry_run: DryRun::Impossible,
    run: tuning::sysrq,
};

pub(super) const BUTTON_PRESS: Command = Command {
    name: "button-press",
    usage: "<Domain> <power|sleep>",
    about: "Indicate an ACPI button press to the domain",
    flags: &[],
    operands: (2, 2),
    dry_run: DryRun::Impossible,
    run: tuning::button_press,
};

pub(super) const SCHED_CREDIT: Command = Command {
    name: "sched-credit",
    usage: "[-d <Domain> [-w=WEIGHT] [-c=CAP]] [-s [-t TSLICE] [-r RATELIMIT]] [-p CPUPOOL]",
    about: "Get/set credit scheduler parameters",
    flags: &[
        DOMAIN,
        WEIGHT,
        CAP,
        SCHEDPARAM,
        Flag::with_value('t', "tslice_ms", "TSLICE", "Set the timeslice, in milliseconds."),
        RATELIMIT,
        Flag::with_value(
            'm',
            "migration_delay_us",
            "DLY",
            "Set the migration delay, in microseconds.",
        ),
        OF_CPUPOOL,
        JSON,
    ],
    operands: (0, 0),
    dry_run: DryRun::Impossible,
    run: sched::credit,
};

pub(super) const SCHED_CREDIT2: Command = Command {
    name: "sched-credit2",
    usage: "[-d <Domain> [-w=WEIGHT] [-c=CAP]] [-s [-r RATELIMIT]] [-p CPUPOOL]",
    about: "Get/set credit2 scheduler parameters",
    flags: &[DOMAIN, WEIGHT, CAP, SCHEDPARAM, RATELIMIT, OF_CPUPOOL, JSON],
    operands: (0, 0),
    dry_run: DryRun::Impossible,
    run: sched::credit2,
};

pub(super) const SCHED_RTDS: Command = Command {
    name: "sched-rtds",
    usage: "[-d <Domain> [-v=VCPUID|all] [-p=PERIOD] [-b=BUDGET] [-e=EXTRATIME]]",
    about: "Get/set rtds scheduler parameters",
    flags: &[
        DOMAIN,
        Flag::with_value('v', "vcpuid", "VCPUID", "VCPU to modify or output, or all."),
        Flag::with_value('p', "period", "PERIOD", "Period (us)."),
        Flag::with_value('b', "budget", "BUDGET", "Budget (us)."),
        Flag::with_value('e', "extratime", "EXTRATIME", "Extratime (1=yes, 0=no)."),
        Flag::with_value('c', "cpupool", "CPUPOOL", "Restrict output to CPUPOOL."),
        JSON,
    ],
    operands: (0, 0),
    dry_run: DryRun::Impossible,
    run: sched::rtds,
};
