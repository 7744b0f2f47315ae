//! Caches and memory bandwidth that CPUs share.
//!
//! Source: xen `tools/xl/xl_psr.c`.

use std::fmt::Write as _;

use api::{PsrCounter, PsrHardware, PsrLimits, PsrSample, PsrSamples, PsrShares};

use super::{name, put};

/// As the command line and xl name it.
pub(crate) fn counter_name(counter: PsrCounter) -> &'static str {
    match counter {
        PsrCounter::CacheOccupancy => "cache-occupancy",
        PsrCounter::TotalMemBandwidth => "total-mem-bandwidth",
        PsrCounter::LocalMemBandwidth => "local-mem-bandwidth",
    }
}

fn line(out: &mut String, key: &str, value: impl std::fmt::Display) {
    put!(out, "{key:<16}: {value}\n");
}

/// `psr-hwinfo --cmt`.
pub(crate) fn monitoring(hardware: &PsrHardware) -> String {
    let mut out = "Cache Monitoring Technology (CMT):\n".to_owned();
    line(&mut out, "Enabled", u8::from(hardware.cmt.is_some()));
    if let Some(cmt) = &hardware.cmt {
        line(&mut out, "Total RMID", cmt.total_rmid);
        out.push_str("Supported monitor types:\n");
        for counter in &cmt.counters {
            put!(out, "{}\n", counter_name(*counter));
        }
    }
    out
}

fn mask(limits: &PsrLimits) -> String {
    let all = 1_u64.checked_shl(limits.limit).map_or(u64::MAX, |bit| bit - 1);
    format!("{all:#x}")
}

/// `psr-hwinfo --cat`. Nothing of caches that cannot be shared out.
pub(crate) fn caches(hardware: &PsrHardware) -> String {
    let mut out = String::new();
    for (socket, l3) in hardware.sockets.iter().filter_map(|it| Some((it, it.l3_cat.as_ref()?))) {
        if out.is_empty() {
            out.push_str("Cache Allocation Technology (CAT):\n");
        }
        line(&mut out, "Socket ID", socket.socket);
        if let Some(kib) = socket.l3_cache_kib {
            line(&mut out, "L3 Cache", format_args!("{kib}KB"));
        }
        line(&mut out, "CDP Status", if l3.cdp { "Enabled" } else { "Disabled" });
        line(&mut out, "Maximum COS", l3.cos_max);
        line(&mut out, "CBM length", l3.limit);
        line(&mut out, "Default CBM", mask(l3));
    }
    let of_l2 = hardware.sockets.iter().filter_map(|it| Some((it.socket, it.l2_cat.as_ref()?)));
    for (index, (socket, l2)) in of_l2.enumerate() {
        if index == 0 {
            out.push_str("Cache Allocation Technology (CAT): L2\n");
        }
        line(&mut out, "Socket ID", socket);
        line(&mut out, "Maximum COS", l2.cos_max);
        line(&mut out, "CBM length", l2.limit);
        line(&mut out, "Default CBM", mask(l2));
    }
    out
}

/// `psr-hwinfo --mba`.
pub(crate) fn bandwidth(hardware: &PsrHardware) -> String {
    let mut out = String::new();
    for (socket, mba) in hardware.sockets.iter().filter_map(|it| Some((it.socket, it.mba?))) {
        if out.is_empty() {
            out.push_str("Memory Bandwidth Allocation (MBA):\n");
        }
        for (key, value) in [
            ("Socket ID", socket.to_string()),
            ("Linear Mode", if mba.linear { "Enabled" } else { "Disabled" }.to_owned()),
            ("Maximum COS", mba.cos_max.to_string()),
            ("Maximum Throttling Value", mba.limit.to_string()),
            ("Default Throttling Value", "0".to_owned()),
        ] {
            put!(out, "{key:<24}: {value}\n");
        }
    }
    out
}

/// `psr-cmt-show`. For bandwidth there are samples of a short time before.
pub(crate) fn samples(samples: &PsrSamples, before: Option<&PsrSamples>) -> String {
    let mut out = format!("Total RMID: {}\n{:<40} {:>5}", samples.total_rmid, "Name", "ID");
    for cache in &samples.sockets {
        put!(out, "{:>14} {}", "Socket", cache.socket);
    }
    out.push('\n');
    if before.is_none() {
        put!(out, "{:<46}", "Total L3 Cache Size");
        for cache in &samples.sockets {
            put!(out, "{:>13} KB", cache.l3_cache_kib);
        }
        out.push('\n');
    }
    for used in &samples.domains {
        put!(out, "{:<40} {:>5}", name(used.name.as_deref()), used.domid);
        let earlier = before.map(|it| it.domains.iter().find(|it| it.domid == used.domid));
        for (index, sample) in used.samples.iter().enumerate() {
            match (sample, earlier) {
                (None, _) => {}
                (Some(sample), None) => put!(out, "{:>13} KB", sample.bytes >> 10),
                (Some(sample), Some(earlier)) => {
                    let earlier = earlier.and_then(|it| it.samples.get(index).copied().flatten());
                    if let Some(rate) = earlier.and_then(|earlier| rate_kib(earlier, *sample)) {
                        put!(out, "{rate:>11} KB/s");
                    }
                }
            }
        }
        out.push('\n');
    }
    out
}

/// `None` if the count or the clock has begun anew meanwhile.
pub(crate) fn rate_kib(before: PsrSample, after: PsrSample) -> Option<u64> {
    let ns = after.ns.checked_sub(before.ns).filter(|ns| *ns > 0)?;
    let bytes = after.bytes.checked_sub(before.bytes)?;
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(ns) / 1024).ok()
}

/// What `psr-cat-show` and `psr-mba-show` show.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Shared {
    Cache,
    Bandwidth,
}

/// `psr-cat-show` and `psr-mba-show`.
pub(crate) fn shares(rows: &[PsrShares], what: Shared) -> String {
    let mut out = String::new();
    for row in rows {
        line(&mut out, "Socket ID", row.socket);
        if let Some(kib) = row.l3_cache_kib {
            line(&mut out, "L3 Cache", format_args!("{kib}KB"));
        }
        let titles: &[&str] = match (what, row.limits.cdp) {
            (Shared::Bandwidth, _) => &["THRTL"],
            (Shared::Cache, true) => &["CBM (code)", "CBM (data)"],
            (Shared::Cache, false) => &["CBM"],
        };
        match what {
            Shared::Cache => line(&mut out, "Default CBM", mask(&row.limits)),
            Shared::Bandwidth => line(&mut out, "Default THRTL", 0),
        }
        put!(out, "{:>5}{:>25}", "ID", "NAME");
        titles.iter().for_each(|title| put!(out, "{title:>16}"));
        out.push('\n');
        for share in &row.domains {
            put!(out, "{:>5}{:>25}", share.domid, name(share.name.as_deref()));
            for value in &share.shares {
                match value {
                    None => put!(out, "{:>16}", "error"),
                    Some(value) if row.limits.linear => put!(out, "{value:>16}"),
                    // As C's `%#x`.
                    Some(0) => put!(out, "{:>16}", 0),
                    Some(value) => put!(out, "{:>16}", format!("{value:#x}")),
                }
            }
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use api::{PsrCache, PsrCmt, PsrShare, PsrSocket, PsrUse};

    use super::*;

    const L3: PsrLimits = PsrLimits { limit: 11, cos_max: 15, cdp: false, linear: false };

    #[test]
    fn hardware_is_shown_as_by_xl() {
        let socket = PsrSocket {
            socket: 0,
            l3_cache_kib: Some(20_480),
            l3_cat: Some(L3),
            l2_cat: Some(PsrLimits { limit: 8, cos_max: 3, ..L3 }),
            mba: Some(PsrLimits { limit: 90, linear: true, ..L3 }),
        };
        let counters = vec![PsrCounter::CacheOccupancy, PsrCounter::TotalMemBandwidth];
        let cmt = Some(PsrCmt { total_rmid: 63, counters });
        let hardware = PsrHardware { cmt, sockets: vec![socket] };
        let all = monitoring(&hardware) + &caches(&hardware) + &bandwidth(&hardware);
        expect_test::expect![[r#"
            Cache Monitoring Technology (CMT):
            Enabled         : 1
            Total RMID      : 63
            Supported monitor types:
            cache-occupancy
            total-mem-bandwidth
            Cache Allocation Technology (CAT):
            Socket ID       : 0
            L3 Cache        : 20480KB
            CDP Status      : Disabled
            Maximum COS     : 15
            CBM length      : 11
            Default CBM     : 0x7ff
            Cache Allocation Technology (CAT): L2
            Socket ID       : 0
            Maximum COS     : 3
            CBM length      : 8
            Default CBM     : 0xff
            Memory Bandwidth Allocation (MBA):
            Socket ID               : 0
            Linear Mode             : Enabled
            Maximum COS             : 15
            Maximum Throttling Value: 90
            Default Throttling Value: 0
        "#]]
        .assert_eq(&all);
        let nothing = PsrHardware::default();
        assert_eq!(caches(&nothing) + &bandwidth(&nothing), "");
        expect_test::expect![[r#"
            Cache Monitoring Technology (CMT):
            Enabled         : 0
        "#]]
        .assert_eq(&monitoring(&nothing));
    }

    #[test]
    fn what_domains_use_is_shown_as_by_xl() {
        let at = |bytes, ns| {
            let samples = vec![Some(PsrSample { bytes, ns }), None];
            PsrSamples {
                total_rmid: 63,
                sockets: [0, 1].map(|socket| PsrCache { socket, l3_cache_kib: 20_480 }).to_vec(),
                domains: vec![PsrUse { domid: 7, name: Some("web1".to_owned()), samples }],
            }
        };
        expect_test::expect![[r#"
            Total RMID: 63
            Name                                        ID        Socket 0        Socket 1
            Total L3 Cache Size                                   20480 KB        20480 KB
            web1                                         7         3072 KB
        "#]]
        .assert_eq(&samples(&at(3 << 20, 5), None));
        let before = at(1 << 20, 1_000_000_000);
        let text = samples(&at(3 << 20, 1_500_000_000), Some(&before));
        expect_test::expect![[r#"
            Total RMID: 63
            Name                                        ID        Socket 0        Socket 1
            web1                                         7       4096 KB/s
        "#]]
        .assert_eq(&text);
        let [first, second] = [(9, 5), (8, 6)].map(|(bytes, ns)| PsrSample { bytes, ns });
        assert_eq!([rate_kib(first, second), rate_kib(second, first)], [None, None]);
    }

    #[test]
    fn what_domains_may_use_is_shown_as_by_xl() {
        let row = |limits, shares: &[Option<u64>]| PsrShares {
            socket: 0,
            l3_cache_kib: Some(20_480),
            limits,
            domains: vec![PsrShare {
                domid: 7,
                name: Some("web1".to_owned()),
                shares: shares.to_vec(),
            }],
        };
        let split = PsrLimits { cdp: true, ..L3 };
        let caches = [row(L3, &[Some(0x7ff)]), row(split, &[Some(0xf), None])];
        expect_test::expect![[r#"
            Socket ID       : 0
            L3 Cache        : 20480KB
            Default CBM     : 0x7ff
               ID                     NAME             CBM
                7                     web1           0x7ff
            Socket ID       : 0
            L3 Cache        : 20480KB
            Default CBM     : 0x7ff
               ID                     NAME      CBM (code)      CBM (data)
                7                     web1             0xf           error
        "#]]
        .assert_eq(&shares(&caches, Shared::Cache));
        let linear = PsrLimits { limit: 90, linear: true, ..L3 };
        let mut bandwidth = [row(linear, &[Some(50)]), row(L3, &[Some(0)])];
        bandwidth.iter_mut().for_each(|row| row.l3_cache_kib = None);
        expect_test::expect![[r#"
            Socket ID       : 0
            Default THRTL   : 0
               ID                     NAME           THRTL
                7                     web1              50
            Socket ID       : 0
            Default THRTL   : 0
               ID                     NAME           THRTL
                7                     web1               0
        "#]]
        .assert_eq(&shares(&bandwidth, Shared::Bandwidth));
    }
}
