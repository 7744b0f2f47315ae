//! Tables of SRs and VDIs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::{CheckpointRow, ImageRow, SrRow, VdiRow, VdiUser};

use super::{name, put};

const MIB: u64 = 1 << 20;

/// MiB, rounded up, so that only nothing is 0.
fn mib(bytes: u64) -> String {
    bytes.div_ceil(MIB).to_string()
}

fn settings(config: &BTreeMap<String, String>) -> String {
    let settings: Vec<String> =
        config.iter().map(|(key, value)| name(Some(&format!("{key}={value}")))).collect();
    settings.join(" ")
}

pub(crate) fn sr_list(rows: &[SrRow]) -> String {
    let mut out = format!("{:<16} {:<8} {:>6} Config\n", "SR", "Kind", "In-use");
    for row in rows {
        let SrRow { name: sr, kind, config, in_use, .. } = row;
        put!(
            out,
            "{:<16} {:<8} {in_use:>6} {}\n",
            name(Some(sr)),
            name(Some(kind)),
            settings(config)
        );
    }
    out
}

pub(crate) fn sr_info(rows: &[SrRow]) -> String {
    let mut out = String::new();
    for row in rows {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        for (key, value) in [
            ("sr", name(Some(&row.name))),
            ("kind", name(Some(&row.kind))),
            ("config", settings(&row.config)),
            ("vdis", number(row.vdis)),
            ("in_use", row.in_use.to_string()),
            ("bytes", number(row.bytes)),
            ("free_bytes", number(row.free_bytes)),
        ] {
            put!(out, "{key:<23}: {value}\n");
        }
    }
    out
}

/// An image in a few words.
pub(crate) fn image(row: &ImageRow) -> String {
    format!("{} MiB, {}, in {}", mib(row.bytes), name(Some(&row.format)), name(Some(&row.sr)))
}

pub(crate) fn image_list(rows: &[ImageRow]) -> String {
    let mut out =
        format!("{:<34} {:<16} {:>9} {:<6} Origin\n", "Image", "SR", "Size(MiB)", "Format");
    for row in rows {
        put!(
            out,
            "{:<34} {:<16} {:>9} {:<6} {}\n",
            name(Some(&row.name)),
            name(Some(&row.sr)),
            mib(row.bytes),
            name(Some(&row.format)),
            name(Some(&row.origin))
        );
    }
    out
}

fn user(user: &VdiUser) -> String {
    let VdiUser { owner, access, active, .. } = user;
    name(Some(&format!("{owner}({access}{})", if *active { "" } else { ",inactive" })))
}

pub(crate) fn vdi_list(rows: &[VdiRow]) -> String {
    let mut out = format!(
        "{:<32} {:>9} {:>9} {:<16} Used-by\n",
        "VDI", "Size(MiB)", "Used(MiB)", "Snapshot-of"
    );
    for row in rows {
        let users: Vec<String> = row.users.iter().map(user).collect();
        put!(
            out,
            "{:<32} {:>9} {:>9} {:<16} {}\n",
            name(Some(&format!("{}:{}", row.sr, row.name))),
            mib(row.bytes),
            row.used_bytes.map_or_else(|| "-".to_owned(), mib),
            name(Some(row.snapshot_of.as_deref().unwrap_or("-"))),
            if users.is_empty() { "-".to_owned() } else { users.join(" ") },
        );
    }
    out
}

/// A day and time of day in UTC, from seconds since 1970. Algorithm: Howard Hinnant, `civil_from_days`.
fn utc(unix_s: u64) -> String {
    let (days, clock) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    format!(
        "{:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z",
        400 * era + year + u64::from(month <= 2),
        of_year - (153 * from_march + 2) / 5 + 1,
        clock / 3600,
        clock / 60 % 60,
        clock % 60
    )
}

pub(crate) fn checkpoint_list(rows: &[CheckpointRow]) -> String {
    let mut out = format!("{:<32} {:<16} {:<20} {:>9} Disks\n", "VM", "Name", "Time", "Size(MiB)");
    for row in rows {
        let disks: Vec<&str> = row.disks.iter().map(|disk| disk.vdi.as_str()).collect();
        let disks = if disks.is_empty() { "-".to_owned() } else { disks.join(" ") };
        let (time, disks) = match row.fault.is_empty() {
            true => (utc(row.created), disks),
            false => ("-".to_owned(), format!("-  {}", row.fault)),
        };
        put!(
            out,
            "{:<32} {:<16} {time:<20} {:>9} {}\n",
            name(Some(&row.vm)),
            name(Some(&row.name)),
            mib(row.bytes),
            name(Some(&disks))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use api::CheckpointDisk;

    use super::*;

    #[test]
    fn checkpoints_have_a_line_each() {
        let row = CheckpointRow {
            vm: "web".to_owned(),
            name: "before".to_owned(),
            created: 1_795_564_800 + 3723,
            bytes: (3 << 20) + 1,
            disks: vec![CheckpointDisk { vdi: "fast:web".to_owned(), ..CheckpointDisk::default() }],
            ..CheckpointRow::default()
        };
        let broken = CheckpointRow { fault: "is damaged".to_owned(), ..row.clone() };
        expect_test::expect![[r#"
            VM                               Name             Time                 Size(MiB) Disks
            web                              before           2026-11-25T01:02:03Z         4 fast:web
            web                              before           -                            4 -  is damaged
        "#]]
        .assert_eq(&checkpoint_list(&[row, broken]));
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    }
}
