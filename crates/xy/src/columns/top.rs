//! xentop's columns. Source: xen `tools/xentop/xentop.c` and its output.

use std::fmt::Write as _;

use api::{DomainRow, TrafficRow};

use super::name;

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    name: String,
    domid: u16,
    state: String,
    cpu_seconds: u64,
    cpu_percent: f64,
    memory_kib: u64,
    memory_percent: f64,
    memory_max_kib: Option<u64>,
    memory_max_percent: f64,
    vcpus: u32,
    devices: TrafficRow,
}

/// As in xentop: sizes in KiB are well within `f64`'s precision.
fn percent(part: u64, whole: u64) -> f64 {
    let per_mille = part.saturating_mul(1000).checked_div(whole).unwrap_or_default();
    u32::try_from(per_mille).map_or(f64::INFINITY, f64::from) / 10.0
}

impl Line {
    pub(crate) fn new(
        row: &DomainRow,
        cpu_percent: f64,
        host_memory_kib: u64,
        traffic: &[TrafficRow],
    ) -> Self {
        let letter = |is: bool, letter| if is { letter } else { '-' };
        const CRASH: u8 = 3;
        let state = [
            letter(row.dying, 'd'),
            letter(row.shutdown_reason.is_some(), 's'),
            letter(row.blocked, 'b'),
            letter(row.shutdown_reason == Some(CRASH), 'c'),
            letter(row.paused, 'p'),
            letter(row.running, 'r'),
        ];
        // A huge limit means no limit.
        let memory_max_kib = Some(row.mem_max_kib).filter(|kib| *kib < 1 << 40);
        Self {
            name: name(row.name.as_deref()),
            domid: row.domid,
            state: state.iter().collect(),
            cpu_seconds: row.cpu_time_ns / 1_000_000_000,
            cpu_percent,
            memory_kib: row.mem_kib,
            memory_percent: percent(row.mem_kib, host_memory_kib),
            memory_max_kib,
            memory_max_percent: percent(memory_max_kib.unwrap_or_default(), host_memory_kib),
            vcpus: row.vcpus_online,
            devices: traffic.iter().find(|it| it.domid == row.domid).copied().unwrap_or_default(),
        }
    }
}

/// Sort key, descending; names and domids ascending.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Key {
    Name,
    Domid,
    Cpu,
    Time,
    Memory,
    Vcpus,
    Net,
    Disk,
}

impl Key {
    const ALL: [(&'static str, Self); 8] = [
        ("name", Self::Name),
        ("domid", Self::Domid),
        ("cpu", Self::Cpu),
        ("time", Self::Time),
        ("mem", Self::Memory),
        ("vcpus", Self::Vcpus),
        ("net", Self::Net),
        ("disk", Self::Disk),
    ];

    pub(crate) fn find(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == word).map(|(_, key)| key)
    }

    pub(crate) fn word(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, key)| *key == self).map_or("", |(word, _)| word)
    }

    pub(crate) fn words() -> String {
        Self::ALL.map(|(word, _)| word).join(", ")
    }

    /// Equal lines stay ordered by domid.
    pub(crate) fn sort(self, lines: &mut [Line]) {
        use std::cmp::Reverse;
        lines.sort_by_key(|line| line.domid);
        match self {
            Self::Name => lines.sort_by(|a, b| a.name.cmp(&b.name)),
            Self::Domid => {}
            Self::Cpu => lines.sort_by(|a, b| b.cpu_percent.total_cmp(&a.cpu_percent)),
            Self::Time => lines.sort_by_key(|line| Reverse(line.cpu_seconds)),
            Self::Memory => lines.sort_by_key(|line| Reverse(line.memory_kib)),
            Self::Vcpus => lines.sort_by_key(|line| Reverse(line.vcpus)),
            Self::Net => lines
                .sort_by_key(|line| Reverse(line.devices.sent_bytes + line.devices.received_bytes)),
            Self::Disk => lines.sort_by_key(|line| {
                Reverse(line.devices.sectors_read + line.devices.sectors_written)
            }),
        }
    }
}

/// A header and a line for each domain.
pub(crate) fn table(lines: &[Line], is_full_name: bool) -> String {
    const NAME_CHARS: usize = 10;
    let mut out = format!(
        "{:>10}  STATE   CPU(sec) CPU(%)     MEM(k) MEM(%)  MAXMEM(k) MAXMEM(%) VCPUS NETS NETTX(k) \
         NETRX(k) VBDS   VBD_OO   VBD_RD   VBD_WR  VBD_RSECT  VBD_WSECT SSID\n",
        "NAME"
    );
    for line in lines {
        let chars = if is_full_name { usize::MAX } else { NAME_CHARS };
        let name: String = line.name.chars().take(chars).collect();
        let (most, most_percent) = match line.memory_max_kib {
            Some(kib) => (kib.to_string(), format!("{:.1}", line.memory_max_percent)),
            None => ("no limit".to_owned(), "n/a".to_owned()),
        };
        let devices = &line.devices;
        let _ = writeln!(
            out,
            "{name:>10} {:>6} {:>10} {:>6.1} {:>10} {:>6.1} {most:>10} {most_percent:>9} {:>5} \
             {:>4} {:>8} {:>8} {:>4} {:>8} {:>8} {:>8} {:>10} {:>10} {:>4}",
            line.state,
            line.cpu_seconds,
            line.cpu_percent,
            line.memory_kib,
            line.memory_percent,
            line.vcpus,
            devices.nets,
            devices.sent_bytes / 1024,
            devices.received_bytes / 1024,
            devices.vbds,
            devices.out_of_requests,
            devices.reads,
            devices.writes,
            devices.sectors_read,
            devices.sectors_written,
            0,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn row(domid: u16, name: &str, cpu_s: u64, mem_kib: u64) -> DomainRow {
        DomainRow {
            name: Some(name.to_owned()),
            domid,
            cpu_time_ns: cpu_s * 1_000_000_000,
            mem_kib,
            mem_max_kib: mem_kib,
            vcpus_online: 1,
            blocked: true,
            ..DomainRow::default()
        }
    }

    fn lines() -> Vec<Line> {
        let (nets, sent_bytes, received_bytes) = (2, 8192, 2048);
        let traffic =
            [TrafficRow { domid: 7, nets, sent_bytes, received_bytes, ..TrafficRow::default() }];
        let dom0 = DomainRow {
            mem_max_kib: u64::MAX,
            blocked: false,
            running: true,
            ..row(0, "Domain-0", 100, 1 << 20)
        };
        let crashed = DomainRow {
            shutdown_reason: Some(3),
            dying: true,
            ..row(9, "a\u{1b}long-name-indeed", 5, 8192)
        };
        [(dom0, 12.34), (row(7, "web", 5, 65536), 99.96), (crashed, 0.0)]
            .map(|(row, percent)| Line::new(&row, percent, 4 << 20, &traffic))
            .to_vec()
    }

    #[test]
    fn a_table_has_the_columns_of_xentop() {
        expect![[r#"
                  NAME  STATE   CPU(sec) CPU(%)     MEM(k) MEM(%)  MAXMEM(k) MAXMEM(%) VCPUS NETS NETTX(k) NETRX(k) VBDS   VBD_OO   VBD_RD   VBD_WR  VBD_RSECT  VBD_WSECT SSID
              Domain-0 -----r        100   12.3    1048576   25.0   no limit       n/a     1    0        0        0    0        0        0        0          0          0    0
                   web --b---          5  100.0      65536    1.5      65536       1.5     1    2        8        2    0        0        0        0          0          0    0
            a?long-nam dsbc--          5    0.0       8192    0.1       8192       0.1     1    0        0        0    0        0        0        0          0          0    0
        "#]].assert_eq(&table(&lines(), false));
        assert!(table(&lines(), true).contains("a?long-name-indeed d"));
    }

    #[test]
    fn lines_are_sorted_by_what_is_asked_for() {
        for (word, expected) in [
            ("name", [0, 9, 7]),
            ("domid", [0, 7, 9]),
            ("cpu", [7, 0, 9]),
            ("time", [0, 7, 9]),
            ("mem", [0, 7, 9]),
            ("net", [7, 0, 9]),
            ("disk", [0, 7, 9]),
        ] {
            let mut lines = lines();
            let key = Key::find(word).unwrap();
            key.sort(&mut lines);
            let domids: Vec<u16> = lines.iter().map(|line| line.domid).collect();
            assert_eq!(domids, expected, "{word}");
            assert_eq!(key.word(), word);
        }
        assert_eq!(Key::find("colour"), None);
    }
}
