//! xentop's columns. Source: xen `tools/xentop/xentop.c` and its output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use api::DomainRow;

use super::name;

/// A domain's network and disk I/O through this host's backends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Devices {
    nets: u64,
    sent_bytes: u64,
    received_bytes: u64,
    vbds: u64,
    out_of_requests: u64,
    reads: u64,
    writes: u64,
    sectors_read: u64,
    sectors_written: u64,
}

/// [`Devices`] by domid.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Traffic(BTreeMap<u16, Devices>);

impl Traffic {
    /// From the counters of this host's backends; empty if they cannot be read.
    pub(crate) fn of_this_host() -> Self {
        let net = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
        let mut traffic = Self::default();
        traffic.add_net(&net);
        traffic.add_vbds(Path::new("/sys/bus/xen-backend/devices"));
        traffic
    }

    /// Parses `/proc/net/dev`. What the host receives on `vif3.0` was sent by domain 3.
    fn add_net(&mut self, text: &str) {
        for line in text.lines() {
            let Some((interface, counts)) = line.split_once(':') else { continue };
            let vif = interface.trim().strip_prefix("vif").and_then(|rest| rest.split_once('.'));
            let Some(domid) = vif.and_then(|(domid, _)| domid.parse().ok()) else { continue };
            let counts: Vec<u64> =
                counts.split_whitespace().map(|word| word.parse().unwrap_or_default()).collect();
            let devices = self.0.entry(domid).or_default();
            devices.nets += 1;
            devices.sent_bytes += counts.first().copied().unwrap_or_default();
            devices.received_bytes += counts.get(8).copied().unwrap_or_default();
        }
    }

    /// Reads blkback's statistics: a folder for each device, as `vbd-3-51712`.
    fn add_vbds(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let file = entry.file_name();
            let vbd = file.to_str().and_then(|name| name.strip_prefix("vbd-")?.split_once('-'));
            let Some(domid) = vbd.and_then(|(domid, _)| domid.parse().ok()) else { continue };
            let count = |name: &str| {
                let text = std::fs::read_to_string(entry.path().join("statistics").join(name));
                text.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or_default()
            };
            let devices = self.0.entry(domid).or_default();
            devices.vbds += 1;
            devices.out_of_requests += count("oo_req");
            devices.reads += count("rd_req");
            devices.writes += count("wr_req");
            devices.sectors_read += count("rd_sect");
            devices.sectors_written += count("wr_sect");
        }
    }
}

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
    devices: Devices,
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
        traffic: &Traffic,
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
            devices: traffic.0.get(&row.domid).copied().unwrap_or_default(),
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
        let mut traffic = Traffic::default();
        traffic.add_net(
            "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 1 2 3\n\
             vif7.0:  4096  1 0 0 0 0 0 0 2048 9 0 0 0 0 0 0\nvif7.1: 4096 0 0 0 0 0 0 0 0 0\n",
        );
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

    #[test]
    fn block_devices_are_counted_as_blkback_tells() {
        let folder = std::env::temp_dir().join(format!("xy-top-{}", std::process::id()));
        for (device, count) in [("vbd-3-51712", 1), ("vbd-3-51728", 2), ("vif-3-0", 4)] {
            let statistics = folder.join(device).join("statistics");
            std::fs::create_dir_all(&statistics).unwrap();
            for name in ["oo_req", "rd_req", "wr_req", "rd_sect", "wr_sect"] {
                std::fs::write(statistics.join(name), format!("{count}\n")).unwrap();
            }
        }
        let mut traffic = Traffic::default();
        traffic.add_vbds(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let devices = Devices {
            vbds: 2,
            out_of_requests: 3,
            reads: 3,
            writes: 3,
            sectors_read: 3,
            sectors_written: 3,
            ..Devices::default()
        };
        assert_eq!(traffic.0, BTreeMap::from([(3, devices)]));
    }
}
