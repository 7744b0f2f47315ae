//! Attacks by transactions.

use anyhow::{Result, ensure};
use xenstore::wire::MessageType as M;

use super::Trial;
use super::attacker::{Attacker, message};
use super::scene::{FIRST, Scene};

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "transactions held open",
        tried: "10 transactions that saw and wrote 90 nodes each, never ended; writes beside them",
        attack: held_open,
    },
    Trial {
        name: "conflicts for dom0",
        tried: "writes without a pause to what every transaction of dom0 reads (XSA-206)",
        attack: conflicts,
    },
    Trial {
        name: "removal and abort",
        tried: "a subtree of 900 nodes removed in a transaction that is aborted, again and again",
        attack: removal_and_abort,
    },
    Trial {
        name: "numbers of others",
        tried: "requests in transactions that it has not, dom0's numbers among them",
        attack: foreign_numbers,
    },
    Trial {
        name: "deep commits of 16",
        tried: "16 guests commit transactions of 1000 paths, 32 names each, at the same time",
        attack: deep_commits,
    },
    Trial {
        name: "conflicts with itself",
        tried: "transactions that read what it writes beside them, without a pause",
        attack: self_conflicts,
    },
    Trial {
        name: "beyond the touched nodes",
        tried: "transactions that go on after their limit of 1024 nodes, and commit",
        attack: beyond_touched,
    },
];

fn held_open(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    for _ in 0..10 {
        let number = attacker.begin_transaction()?;
        for node in 0..45 {
            // Memory may run out first; that is a limit, too.
            let _seen = attacker.ask(M::Read, number, format!("t/{node}/none\0").as_bytes())?;
            let _written = attacker.ask(M::Write, number, format!("t/{node}\0v").as_bytes())?;
        }
    }
    attacker.refused(M::TransactionStart, b"\0", &["ENOSPC"])?;
    scene.storm(&mut attacker, |number| {
        message(M::Write, 0, format!("w/{}\0{number}", number % 50).as_bytes())
    })
}

fn conflicts(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.storm(&mut attacker, |number| message(M::Write, 0, format!("flag\0{number}").as_bytes()))
}

fn fill(attacker: &mut Attacker, nodes: u32) -> Result<()> {
    for node in 0..nodes {
        attacker.must(M::Write, 0, format!("t/{}/{}\0v", node / 100, node % 100).as_bytes())?;
    }
    Ok(())
}

fn removal_and_abort(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    fill(&mut attacker, 900)?;
    scene.begin()?;
    while !scene.is_over() {
        let number = attacker.begin_transaction()?;
        attacker.must(M::Rm, number, b"t\0")?;
        attacker.must(M::TransactionEnd, number, b"F\0")?;
    }
    ensure!(attacker.must(M::Read, 0, b"t/8/99\0")? == b"v", "an aborted removal took effect");
    Ok(())
}

fn foreign_numbers(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let number = scene.dom0.call(M::TransactionStart, 0, b"\0")?;
    let theirs: u32 = std::str::from_utf8(&number)?.trim_end_matches('\0').parse()?;
    scene.dom0.call(M::Write, theirs, b"/tool/hostile/theirs\0v")?;
    for number in [theirs, theirs + 1, u32::MAX] {
        for (kind, payload) in
            [(M::Read, &b"/\0"[..]), (M::Write, b"a\0v"), (M::TransactionEnd, b"T\0")]
        {
            let answer = attacker.ask(kind, number, payload)?;
            ensure!(answer == Err("ENOENT".into()), "{} in {number}: {answer:?}", kind.label());
        }
    }
    scene.storm(&mut attacker, |number| {
        let id = u32::try_from(number % 5000).unwrap_or(1).max(1);
        message(M::TransactionEnd, id, b"T\0")
    })?;
    scene.dom0.call(M::TransactionEnd, theirs, b"T\0")?;
    Ok(())
}

fn deep_commits(scene: &mut Scene) -> Result<()> {
    let mut attackers = scene.attackers(16)?;
    let deep = "d/".repeat(28);
    let mut numbers = Vec::new();
    for attacker in &mut attackers {
        attacker.must(M::Write, 0, format!("{deep}x\0v").as_bytes())?;
    }
    while !scene.is_over() {
        numbers.clear();
        for attacker in &mut attackers {
            let number = attacker.begin_transaction()?;
            for node in 0..1000 {
                let read = message(M::Read, number, format!("{deep}{node}\0").as_bytes());
                attacker.send(&read)?;
            }
            attacker.must(M::Write, number, b"own\0v")?;
            numbers.push(number);
        }
        if !scene.has_begun() {
            scene.begin()?;
        }
        // Something else changed, so the commits have to look; all at once.
        scene.dom0.call(M::Write, 0, b"/tool/hostile/other\0v")?;
        for (attacker, number) in attackers.iter_mut().zip(&numbers) {
            attacker.send(&message(M::TransactionEnd, *number, b"T\0"))?;
        }
        for attacker in &mut attackers {
            attacker.must(M::Read, 0, b"own\0")?;
        }
    }
    Ok(())
}

fn self_conflicts(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let (mut committed, mut refused) = (0, 0);
    while !scene.is_over() {
        let number = attacker.begin_transaction()?;
        let _not_there_at_first = attacker.ask(M::Read, number, b"a\0")?;
        attacker.must(M::Write, 0, format!("a\0{number}").as_bytes())?;
        attacker.must(M::Write, number, b"b\0v")?;
        match attacker.ask(M::TransactionEnd, number, b"T\0")? {
            Ok(_) => committed += 1,
            Err(_) => refused += 1,
        }
    }
    ensure!(committed == 0 && refused > 0, "{committed} commits saw an inconsistent state");
    Ok(())
}

fn beyond_touched(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    while !scene.is_over() {
        let number = attacker.begin_transaction()?;
        for node in 0..1100 {
            attacker.send(&message(M::Read, number, format!("n/{node}\0").as_bytes()))?;
        }
        let _refused = attacker.ask(M::Write, number, b"a\0v")?;
        let end = attacker.ask(M::TransactionEnd, number, b"T\0")?;
        ensure!(end == Err("ENOMEM".into()), "a commit beyond the limit: {end:?}");
    }
    Ok(())
}
