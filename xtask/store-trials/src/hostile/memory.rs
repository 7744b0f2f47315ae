//! What guests that fill every limit cost in memory, beside what is accounted for them.

use anyhow::{Context, Result, ensure};
use xenstore::wire::MessageType as M;

use super::Trial;
use super::scene::Scene;

pub(super) const TRIALS: &[Trial] = &[Trial {
    name: "every limit full",
    tried: "24 guests with 128 long watches, 1000 nodes with 5 permissions, 10 transactions of 500 nodes",
    attack: every_limit,
}];

const GUESTS: u16 = 24;

/// So much of what the daemon's memory grew by must be accounted for, in percent.
const ACCOUNTED_MIN: u64 = 90;

fn every_limit(scene: &mut Scene) -> Result<()> {
    // Each with its home and ring, so that only what follows is counted.
    let mut attackers = scene.attackers(GUESTS)?;
    scene.begin()?;
    for attacker in &mut attackers {
        let domid = attacker.guest.domid();
        for watch in 0..128 {
            let names = (0..8).map(|name| format!("{watch}-{name}-{}", "n".repeat(20)));
            let path = names.collect::<Vec<_>>().join("/");
            attacker.must(M::Watch, 0, format!("{path}\0token\0").as_bytes())?;
        }
        for node in 0..490 {
            attacker.must(M::Write, 0, format!("{node}/x\0v").as_bytes())?;
            let list = format!("{node}/x\0n{domid}\0r1\0r2\0r3\0r4\0");
            attacker.must(M::SetPerms, 0, list.as_bytes())?;
        }
        for _ in 0..10 {
            let number = attacker.begin_transaction()?;
            for node in 0..490 {
                // Beyond its memory it is refused, which is what is looked for.
                if attacker.ask(M::Write, number, format!("{node}/x\0w").as_bytes())?.is_err() {
                    break;
                }
            }
        }
    }
    let grown = scene.daemon.resident_bytes()?.saturating_sub(scene.rss_before());
    let report = scene.dom0.call(M::Control, 0, b"memreport\0")?;
    let report = String::from_utf8_lossy(&report).into_owned();
    let mut accounted = 0;
    for line in report.lines() {
        if let Some((domid, rest)) = line.strip_prefix("domain ").and_then(|l| l.split_once(": "))
            && domid != "0"
        {
            let bytes = rest.split(' ').next().context("no number")?;
            accounted += bytes.parse::<u64>()?;
        }
    }
    let guests = u64::from(GUESTS);
    scene.note("KiB accounted for each", accounted / 1024 / guests);
    scene.note("KiB held for each", grown / 1024 / guests);
    ensure!(
        accounted * 100 >= grown * ACCOUNTED_MIN,
        "{accounted} bytes are accounted for {grown} that are held"
    );
    scene.rest();
    Ok(())
}
