//! Answers as text, in xl's columns, byte for byte, for scripts that parse them.
//!
//! Sources: xen `tools/xl/xl_info.c`, `xl_vcpu.c`, `xl_block.c`, `xl_nic.c`.

pub(crate) mod activity;
pub(crate) mod host;
pub(crate) mod psr;
pub(crate) mod sched;
pub(crate) mod storage;
pub(crate) mod top;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::{
    BlockRow, ChannelRow, Cost, CreateReport, DomainRow, Info, KeyboardRow, NetworkRow, Stage,
    VcpuRow,
};

/// Additional columns of `list`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ListColumns<'a> {
    pub(crate) verbose: bool,
    pub(crate) context: bool,
    pub(crate) claims: bool,
    /// Names of CPU pools.
    pub(crate) pools: Option<&'a BTreeMap<u32, String>>,
    /// NUMA nodes of domains.
    pub(crate) nodes: Option<&'a BTreeMap<u16, String>>,
}

/// Writing to a String cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{
        let _ = write!($out, $($arg)*);
    }};
}

use put;

/// A name as in the store.
fn name(name: Option<&str>) -> String {
    shown(name.unwrap_or("(null)"))
}

/// Untrusted text: control characters are escaped.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

/// The letters of `list`'s State column.
fn state(row: &DomainRow) -> String {
    let letter = |is: bool, letter| if is { letter } else { '-' };
    let reason = match row.shutdown_reason {
        None => '-',
        Some(code) => "-rscwS".chars().nth(usize::from(code)).unwrap_or('?'),
    };
    [
        letter(row.running, 'r'),
        letter(row.blocked, 'b'),
        letter(row.paused, 'p'),
        letter(row.shutdown_reason.is_some(), 's'),
        reason,
        letter(row.dying, 'd'),
    ]
    .iter()
    .collect()
}

pub(crate) fn list(rows: &[DomainRow], columns: ListColumns<'_>) -> String {
    let mut out =
        "Name                                        ID   Mem VCPUs\tState\tTime(s)".to_owned();
    if columns.verbose {
        out.push_str("   UUID                            Reason-Code\tSecurity Label");
    }
    if columns.context && !columns.verbose {
        out.push_str("   Security Label");
    }
    if columns.claims {
        out.push_str("  Claimed");
    }
    if columns.pools.is_some() {
        out.push_str("         Cpupool");
    }
    if columns.nodes.is_some() {
        out.push_str(" NODE Affinity");
    }
    out.push('\n');
    for row in rows {
        put!(
            out,
            "{:<40} {:>5} {:>5} {:>5}     {}  {:>8.1}",
            name(row.name.as_deref()),
            row.domid,
            row.mem_kib / 1024,
            row.vcpus_online,
            state(row),
            seconds(row.cpu_time_ns),
        );
        if columns.verbose {
            put!(out, " {}", row.uuid);
            match row.shutdown_reason {
                Some(code) => put!(out, " {code:>8x}"),
                None => put!(out, " {:>8}", "-"),
            }
        }
        if columns.claims {
            put!(out, " {:>5}", row.claimed_kib / 1024);
        }
        if columns.verbose || columns.context {
            put!(out, " {:>16}", "-");
        }
        if let Some(pools) = columns.pools {
            let name = pools.get(&row.cpupool).map(|name| shown(name));
            put!(out, "{:>16}", name.unwrap_or_else(|| format!("Pool-{}", row.cpupool)));
        }
        if let Some(nodes) = columns.nodes {
            put!(out, " {}", nodes.get(&row.domid).map_or("-", String::as_str));
        }
        out.push('\n');
    }
    out
}

/// `dominfo`: a line for each property of a domain.
pub(crate) fn dominfo(row: &DomainRow, kernel: Option<&str>) -> String {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let most =
        if row.mem_max_kib < 1 << 40 { row.mem_max_kib.to_string() } else { "no limit".into() };
    let reason = row.shutdown_reason.map_or("-".to_owned(), |code| {
        let words = ["poweroff", "reboot", "suspend", "crash", "watchdog", "soft_reset"];
        words.get(usize::from(code)).map_or_else(|| code.to_string(), |&word| word.to_owned())
    });
    let lines = [
        ("name", name(row.name.as_deref())),
        ("domid", row.domid.to_string()),
        ("uuid", row.uuid.clone()),
        ("type", row.kind.clone()),
        ("state", state(row)),
        ("shutdown_reason", reason),
        ("vcpus", row.vcpus_online.to_string()),
        ("memory_kb", row.mem_kib.to_string()),
        ("max_memory_kb", most),
        ("cpu_time", format!("{:.3}", seconds(row.cpu_time_ns))),
        ("cpupool", format!("Pool-{}", row.cpupool)),
        ("managed", yes(row.managed)),
        ("kernel", name(Some(kernel.unwrap_or("-")))),
    ];
    lines.iter().fold(String::new(), |mut out, (key, value)| {
        put!(out, "{key:<23}: {value}\n");
        out
    })
}

pub(crate) fn vcpu_list(rows: &[VcpuRow]) -> String {
    let mut out = format!(
        "{:<32} {:>5} {:>5} {:>5} {:>5} {:>9} Affinity (Hard / Soft)\n",
        "Name", "ID", "VCPU", "CPU", "State", "Time(s)"
    );
    for row in rows {
        put!(out, "{:<32} {:>5} {:>5}", name(row.name.as_deref()), row.domid, row.vcpu);
        if row.online {
            let running = if row.running { 'r' } else { '-' };
            let blocked = if row.blocked { 'b' } else { '-' };
            put!(out, "{:>5} {running:>3}{blocked}- ", row.cpu);
        } else {
            put!(out, "{:>5} {:>3}-p ", '-', '-');
        }
        let time = seconds(row.cpu_time_ns);
        put!(out, "{time:>9.1}  {} / {}\n", row.affinity_hard, row.affinity_soft);
    }
    out
}

/// xl's `vm-list`.
pub(crate) fn vm_list_of_xl(rows: &[DomainRow]) -> String {
    let mut out = "UUID                                  ID    name\n".to_owned();
    for row in rows {
        put!(out, "{}  {}    {:<30}\n", row.uuid, row.domid, name(row.name.as_deref()));
    }
    out
}

/// A number from the frontend, or -1 as in xl if there is none yet.
fn or_minus_one(number: Option<u32>) -> i64 {
    number.map_or(-1, i64::from)
}

pub(crate) fn block_list(rows: &[BlockRow]) -> String {
    let mut out = format!(
        "{:<5} {:<3} {:<6} {:<5} {:<6} {:<8} {:<30}\n",
        "Vdev", "BE", "handle", "state", "evt-ch", "ring-ref", "BE-path"
    );
    for row in rows {
        put!(
            out,
            "{:<5} {:<3} {:<6} {:<5} {:<6} {:<8} {:<30}\n",
            row.vdev,
            row.backend_domid,
            row.frontend_domid,
            row.state,
            or_minus_one(row.evtchn),
            or_minus_one(row.ring_ref),
            row.backend_path,
        );
    }
    out
}

pub(crate) fn network_list(rows: &[NetworkRow]) -> String {
    let mut out = format!(
        "{:<3} {:<2} {:<17} {:<6} {:<5} {:<6} {:>5}/{:<5} {:<30}\n",
        "Idx", "BE", "Mac Addr.", "handle", "state", "evt-ch", "tx-", "rx-ring-ref", "BE-path"
    );
    for row in rows {
        put!(
            out,
            "{:<3} {:<2} {}{:>6} {:>5} {:>6} {:>5}/{:<11} {:<30}\n",
            row.devid,
            row.backend_domid,
            row.mac,
            row.devid,
            row.state,
            or_minus_one(row.evtchn),
            or_minus_one(row.tx_ring_ref),
            or_minus_one(row.rx_ring_ref),
            row.backend_path,
        );
    }
    out
}

pub(crate) fn channel_list(rows: &[ChannelRow]) -> String {
    let mut out = format!(
        "{:<3} {:<2} {:<5} {:<6} {:>8} {:<10} {:<30}\n",
        "Idx", "BE", "state", "evt-ch", "ring-ref", "connection", ""
    );
    for row in rows {
        put!(
            out,
            "{:<3} {:<2} {:<5} {:<6} {:<8} {:<10} ",
            row.devid,
            row.backend_domid,
            row.state,
            or_minus_one(row.evtchn),
            or_minus_one(row.ring_ref),
            row.connection,
        );
        if row.connection == "pty" {
            put!(out, "{:<30} ", row.tty.as_deref().unwrap_or_default());
        }
        out.push('\n');
    }
    out
}

pub(crate) fn vkb_list(rows: &[KeyboardRow]) -> String {
    let mut out = format!(
        "{:<3} {:<2} {:<6} {:<5} {:<6} {:>6} {:<10} {:<10} {:<30}\n",
        "Idx", "BE", "handle", "state", "evt-ch", "ref", "ID", "BE-type", "BE-path"
    );
    for row in rows {
        put!(
            out,
            "{:<3} {:<2} {:>6} {:>5} {:>6} {:>6} {:<10} {:<10} {:<30}\n",
            row.devid,
            row.backend_domid,
            row.devid,
            row.state,
            or_minus_one(row.evtchn),
            or_minus_one(row.ring_ref),
            // As C prints none.
            row.unique_id.as_deref().unwrap_or("(null)"),
            "qemu",
            row.backend_path,
        );
    }
    out
}

pub(crate) fn info(info: &Info) -> String {
    info.0.iter().fold(String::new(), |mut out, (key, value)| {
        put!(out, "{key:<23}: {value}\n");
        out
    })
}

/// `uptime`; rows without a known start are omitted, as in xl.
pub(crate) fn uptime(rows: &[DomainRow], now_unix_s: u64) -> String {
    let mut out = format!("{:<33} {:>4} Uptime\n", "Name", "ID");
    for row in rows {
        if let Some(start) = row.started_unix_s {
            let time = days_and_time(now_unix_s.saturating_sub(start));
            put!(out, "{:<33} {:>4} {time}\n", name(row.name.as_deref()), row.domid);
        }
    }
    out
}

/// `uptime -s`.
pub(crate) fn uptime_short(rows: &[DomainRow], now_unix_s: u64) -> String {
    let now = now_unix_s % 86400;
    let now = format!("{:02}:{:02}:{:02}", now / 3600, now / 60 % 60, now % 60);
    let mut out = String::new();
    for row in rows {
        if let Some(start) = row.started_unix_s {
            let minutes = now_unix_s.saturating_sub(start) / 60;
            let up = with_days(minutes / 1440, &hours_and_minutes(minutes % 1440));
            put!(out, " {now} up {up}, {} ({})\n", name(row.name.as_deref()), row.domid);
        }
    }
    out
}

fn hours_and_minutes(minutes: u64) -> String {
    format!("{:>2}:{:02}", minutes / 60, minutes % 60)
}

fn days_and_time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    with_days(days, &format!("{}:{:02}", hours_and_minutes(rest / 60), rest % 60))
}

fn with_days(days: u64, time: &str) -> String {
    match days {
        0 => time.to_owned(),
        1 => format!("1 day, {time}"),
        _ => format!("{days} days, {time}"),
    }
}

/// Microseconds as milliseconds.
fn millis(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}

/// Timing and cost of a create.
pub(crate) fn stages(report: &CreateReport) -> String {
    let CreateReport { name: vm, domid, uuid, stages, cost } = report;
    let mut out = format!("{} is domain {domid}, {uuid}\n", name(Some(vm)));
    put!(out, "{:<28} {:>10} {:>10} {:>10}\n", "Stage", "start ms", "end ms", "took ms");
    for Stage { name, start_us, end_us } in stages {
        let took = end_us.saturating_sub(*start_us);
        put!(
            out,
            "{name:<28} {:>10} {:>10} {:>10}\n",
            millis(*start_us),
            millis(*end_us),
            millis(took)
        );
    }
    let start = stages.iter().map(|stage| stage.start_us).min().unwrap_or(0);
    let end = stages.iter().map(|stage| stage.end_us).max().unwrap_or(0);
    put!(
        out,
        "{:<28} {:>10} {:>10} {:>10}\n\n",
        "total",
        millis(start),
        millis(end),
        millis(end - start)
    );
    out.push_str(&self::cost(cost));
    out
}

pub(crate) fn cost(cost: &Cost) -> String {
    let mut rows = vec![
        ("store messages", cost.store_messages),
        ("store round trips", cost.store_round_trips),
        ("transactions", cost.transactions),
        ("conflicts", cost.conflicts),
        ("hypercalls", cost.hypercalls.values().sum()),
    ];
    let mut by_call: Vec<_> = cost.hypercalls.iter().map(|(name, &n)| (name.as_str(), n)).collect();
    by_call.sort_by_key(|&(name, n)| (std::cmp::Reverse(n), name));
    let indented: Vec<_> = by_call.into_iter().map(|(name, n)| (format!("  {name}"), n)).collect();
    rows.extend(indented.iter().map(|(name, n)| (name.as_str(), *n)));
    counts(rows)
}

pub(crate) fn counts<'a>(rows: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    rows.into_iter().fold(String::new(), |mut out, (name, count)| {
        put!(out, "{name:<28} {count:>10}\n");
        out
    })
}

/// `sharing`.
pub(crate) fn sharing(rows: &[DomainRow]) -> String {
    let mut text = "Name                                        ID   Mem Shared\n".to_owned();
    for row in rows {
        let name = name(row.name.as_deref());
        let (mem, shared) = (row.mem_kib / 1024, row.shared_kib / 1024);
        let _ = writeln!(text, "{name:<40} {:>5} {mem:>5}  {shared:>5}", row.domid);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use expect_test::expect;

    use super::*;

    fn domains() -> Vec<DomainRow> {
        vec![
            DomainRow {
                name: Some("Domain-0".into()),
                domid: 0,
                uuid: "00000000-0000-0000-0000-000000000000".into(),
                mem_kib: 1 << 20,
                vcpus_online: 2,
                running: true,
                cpu_time_ns: 12_340_000_000,
                ..DomainRow::default()
            },
            DomainRow {
                name: Some("web".into()),
                domid: 17,
                uuid: "01234567-89ab-cdef-0123-456789abcdef".into(),
                mem_kib: 512 * 1024 + 1023,
                vcpus_online: 1,
                blocked: true,
                cpu_time_ns: 60_000_000,
                started_unix_s: Some(1000),
                ..DomainRow::default()
            },
            DomainRow {
                domid: 18,
                uuid: "fedcba98-7654-3210-fedc-ba9876543210".into(),
                paused: true,
                dying: true,
                shutdown_reason: Some(1),
                cpupool: 1,
                ..DomainRow::default()
            },
            DomainRow {
                name: Some("a\x1b[2Jname-that-is-longer-than-its-forty-columns".into()),
                domid: 32751,
                mem_kib: 123_456_789,
                vcpus_online: 128,
                shutdown_reason: Some(255),
                cpu_time_ns: 1_234_567_890_123_456,
                started_unix_s: Some(0),
                ..DomainRow::default()
            },
        ]
    }

    #[test]
    fn list_has_the_columns_of_xl() {
        expect![[r#"
            Name                                        ID   Mem VCPUs	State	Time(s)
            Domain-0                                     0  1024     2     r-----      12.3
            web                                         17   512     1     -b----       0.1
            (null)                                      18     0     0     --psrd       0.0
            a?[2Jname-that-is-longer-than-its-forty-columns 32751 120563   128     ---s?-  1234567.9
        "#]]
        .assert_eq(&list(&domains(), ListColumns::default()));
    }

    #[test]
    fn dominfo_tells_all_in_the_form_of_info() {
        expect![[r#"
            name                   : (null)
            domid                  : 18
            uuid                   : fedcba98-7654-3210-fedc-ba9876543210
            type                   : 
            state                  : --psrd
            shutdown_reason        : reboot
            vcpus                  : 0
            memory_kb              : 0
            max_memory_kb          : 0
            cpu_time               : 0.000
            cpupool                : Pool-1
            managed                : no
            kernel                 : /boot/k
        "#]]
        .assert_eq(&dominfo(&domains()[2], Some("/boot/k")));
    }

    #[test]
    fn each_shutdown_reason_has_its_letter() {
        let letters: String = (0..7)
            .map(|code| {
                let row = DomainRow { shutdown_reason: Some(code), ..DomainRow::default() };
                state(&row).chars().nth(4).unwrap()
            })
            .collect();
        assert_eq!(letters, "-rscwS?");
    }

    #[test]
    fn list_has_more_columns_on_demand() {
        let rows = &domains()[1..3];
        let verbose = ListColumns { verbose: true, ..ListColumns::default() };
        expect![[r#"
            Name                                        ID   Mem VCPUs	State	Time(s)   UUID                            Reason-Code	Security Label
            web                                         17   512     1     -b----       0.1 01234567-89ab-cdef-0123-456789abcdef        -                -
            (null)                                      18     0     0     --psrd       0.0 fedcba98-7654-3210-fedc-ba9876543210        1                -
        "#]]
        .assert_eq(&list(rows, verbose));
        let named = BTreeMap::from([(1, "lab".to_owned())]);
        let pools = ListColumns { context: true, pools: Some(&named), ..ListColumns::default() };
        expect![[r#"
            Name                                        ID   Mem VCPUs	State	Time(s)   Security Label         Cpupool
            web                                         17   512     1     -b----       0.1                -          Pool-0
            (null)                                      18     0     0     --psrd       0.0                -             lab
        "#]]
        .assert_eq(&list(rows, pools));
    }

    #[test]
    fn vcpu_list_has_the_columns_of_xl() {
        let on = VcpuRow {
            name: Some("web".into()),
            domid: 17,
            online: true,
            running: true,
            cpu: 3,
            cpu_time_ns: 1_500_000_000,
            affinity_hard: "all".into(),
            affinity_soft: "0-3".into(),
            ..VcpuRow::default()
        };
        let off = VcpuRow { vcpu: 1, online: false, ..on.clone() };
        expect![[r#"
            Name                                ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)
            web                                 17     0    3   r--       1.5  all / 0-3
            web                                 17     1    -   --p       1.5  all / 0-3
        "#]]
        .assert_eq(&vcpu_list(&[on, off]));
    }

    #[test]
    fn block_list_has_the_columns_of_xl() {
        let connected = BlockRow {
            vdev: 51712,
            frontend_domid: 17,
            state: 4,
            evtchn: Some(11),
            ring_ref: Some(8),
            backend_path: "/local/domain/0/backend/vbd/17/51712".into(),
            ..BlockRow::default()
        };
        let fresh = BlockRow {
            vdev: 51728,
            state: 1,
            evtchn: None,
            ring_ref: None,
            backend_path: "/b".into(),
            ..connected.clone()
        };
        // `|` shows trailing spaces.
        let text = block_list(&[connected, fresh]).replace('\n', "|\n");
        expect![[r#"
            Vdev  BE  handle state evt-ch ring-ref BE-path                       |
            51712 0   17     4     11     8        /local/domain/0/backend/vbd/17/51712|
            51728 0   17     1     -1     -1       /b                            |
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn network_list_has_the_columns_of_xl() {
        let connected = NetworkRow {
            mac: "00:16:3e:01:02:03".into(),
            state: 4,
            evtchn: Some(12),
            tx_ring_ref: Some(768),
            rx_ring_ref: Some(769),
            backend_path: "/local/domain/0/backend/vif/17/0".into(),
            ..NetworkRow::default()
        };
        let fresh = NetworkRow {
            devid: 1,
            state: 1,
            evtchn: None,
            tx_ring_ref: None,
            rx_ring_ref: None,
            backend_path: "/b".into(),
            ..connected.clone()
        };
        let text = network_list(&[connected, fresh]).replace('\n', "|\n");
        expect![[r#"
            Idx BE Mac Addr.         handle state evt-ch   tx-/rx-ring-ref BE-path                       |
            0   0  00:16:3e:01:02:03     0     4     12   768/769         /local/domain/0/backend/vif/17/0|
            1   0  00:16:3e:01:02:03     1     1     -1    -1/-1          /b                            |
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn info_and_uptime_have_the_columns_of_xl() {
        let lines = Info(vec![
            ("host".into(), "lab".into()),
            ("xen_commandline".into(), String::new()),
            ("sharing_freed_memory".into(), "0".into()),
        ]);
        expect![[r#"
            host                   : lab
            xen_commandline        : 
            sharing_freed_memory   : 0
        "#]]
        .assert_eq(&info(&lines));
        expect![[r#"
            Name                                ID Uptime
            web                                 17 54 days, 20:04:16
            a?[2Jname-that-is-longer-than-its-forty-columns 32751 54 days, 20:20:56
        "#]]
        .assert_eq(&uptime(&domains(), 4_738_856));
        // With a blank before the time, as uptime(1) has it.
        assert_eq!(
            uptime_short(&domains(), 4_738_856),
            " 20:20:56 up 54 days, 20:04, web (17)\n \
             20:20:56 up 54 days, 20:20, a?[2Jname-that-is-longer-than-its-forty-columns (32751)\n"
        );
        for (seconds, text) in [
            (0, " 0:00:00"),
            (86399, "23:59:59"),
            (86400, "1 day,  0:00:00"),
            (172_861, "2 days,  0:01:01"),
        ] {
            assert_eq!(days_and_time(seconds), text);
        }
    }

    #[test]
    fn stages_show_times_and_cost() {
        let report = CreateReport {
            name: "web".into(),
            domid: 17,
            uuid: "01234567-89ab-cdef-0123-456789abcdef".into(),
            stages: vec![
                Stage { name: "parse".into(), start_us: 40, end_us: 300 },
                Stage { name: "build".into(), start_us: 300, end_us: 12_345 },
            ],
            cost: Cost {
                hypercalls: BTreeMap::from([("createdomain".into(), 1), ("mmu_update".into(), 70)]),
                store_messages: 80,
                store_round_trips: 5,
                transactions: 1,
                conflicts: 0,
            },
        };
        expect![[r#"
            web is domain 17, 01234567-89ab-cdef-0123-456789abcdef
            Stage                          start ms     end ms    took ms
            parse                             0.040      0.300      0.260
            build                             0.300     12.345     12.045
            total                             0.040     12.345     12.305

            store messages                       80
            store round trips                     5
            transactions                          1
            conflicts                             0
            hypercalls                           71
              mmu_update                         70
              createdomain                        1
        "#]]
        .assert_eq(&stages(&report));
    }
}
