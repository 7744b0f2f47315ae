//! Tables of SRs and VDIs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::{SrRow, VdiRow, VdiUser};

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
