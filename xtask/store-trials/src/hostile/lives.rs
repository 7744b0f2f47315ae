//! Attacks by domains that come and go.

use anyhow::{Result, ensure};
use file_host::State;
use xenstore::wire::MessageType as M;

use super::Trial;
use super::scene::{FIRST, Scene};

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "full domains die",
        tried: "domains with 900 nodes, 128 watches and 10 transactions that die and come again",
        attack: full_deaths,
    },
    Trial {
        name: "a number used again",
        tried: "a domain that was given rights dies, and the next of its number tries them (XSA-322)",
        attack: inherit,
    },
    Trial {
        name: "stopped and running",
        tried: "shutdown and running again without a pause, the exception raised each time",
        attack: flapping,
    },
    Trial {
        name: "introduced again",
        tried: "INTRODUCE of a domain in the middle of its requests, again and again",
        attack: introduced_again,
    },
];

fn full_deaths(scene: &mut Scene) -> Result<()> {
    scene.begin()?;
    let mut deaths = 0;
    while !scene.is_over() {
        let mut attackers = scene.attackers(4)?;
        for attacker in &mut attackers {
            for node in 0..900 {
                attacker.must(M::Write, 0, format!("{}/{}\0v", node / 60, node % 60).as_bytes())?;
            }
            for number in 0..128 {
                attacker.must(M::Watch, 0, format!("/\0{number}\0").as_bytes())?;
            }
            for _ in 0..10 {
                let number = attacker.begin_transaction()?;
                attacker.must(M::Write, number, b"0/1\0w")?;
            }
        }
        for attacker in &attackers {
            scene.destroy(attacker)?;
            deaths += 1;
            let home = format!("/local/domain/{}\0", attacker.guest.domid());
            let left = scene.dom0.call_raw(M::Rm.code(), 0, home.as_bytes())?;
            ensure!(
                left.is_ok() || left == Err("ENOENT".into()),
                "the home of a dead domain: {left:?}"
            );
        }
    }
    scene.note("deaths", deaths);
    Ok(())
}

fn inherit(scene: &mut Scene) -> Result<()> {
    let mut giver = scene.attacker(FIRST)?;
    giver.must(M::Write, 0, b"gift\0for the first one")?;
    let list = format!("gift\0n{FIRST}\0b{}\0", FIRST + 1);
    scene.dom0.call(M::Write, 0, b"/tool/hostile/gift\0for the first one")?;
    scene.begin()?;
    let gift = format!("/local/domain/{FIRST}/gift\0");
    let mut lives = 0;
    while !scene.is_over() {
        let mut first = scene.attacker(FIRST + 1)?;
        giver.must(M::SetPerms, 0, list.as_bytes())?;
        let dom0s = format!("/tool/hostile/gift\0n0\0b{}\0", FIRST + 1);
        scene.dom0.call(M::SetPerms, 0, dom0s.as_bytes())?;
        for path in [gift.as_bytes(), b"/tool/hostile/gift\0"] {
            first.must(M::Read, 0, path)?;
        }
        first.must(M::Write, 0, b"left-behind\0v")?;
        first.must(M::Write, 0, format!("{}/below\0v", gift.trim_end_matches('\0')).as_bytes())?;
        scene.destroy(&first)?;
        let mut second = scene.attacker(FIRST + 1)?;
        for path in [gift.as_bytes(), b"/tool/hostile/gift\0"] {
            second.refused(M::Read, path, &["EACCES"])?;
        }
        let below = format!("{}/below\0", gift.trim_end_matches('\0'));
        second.refused(M::Read, below.as_bytes(), &["EACCES"])?;
        second.refused(M::Read, b"left-behind\0", &["ENOENT"])?;
        second.refused(M::SetPerms, list.as_bytes(), &["ENOENT"])?;
        scene.destroy(&second)?;
        lives += 2;
    }
    scene.note("lives", lives);
    Ok(())
}

fn flapping(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let mut flips = 0;
    while !scene.is_over() {
        for state in [State::Shutdown, State::Running] {
            attacker.guest.set_state(state)?;
            scene.daemon.raise()?;
            flips += 1;
        }
        attacker.must(M::Write, 0, b"a\0v")?;
    }
    scene.note("changes of state", flips);
    Ok(())
}

fn introduced_again(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let mut times = 0;
    while !scene.is_over() {
        for number in 0..5 {
            attacker.must(M::Watch, 0, format!("w\0{number}\0").as_bytes())?;
        }
        let _open = attacker.begin_transaction()?;
        attacker.drain()?;
        scene.introduce(FIRST)?;
        times += 1;
    }
    scene.note("introductions", times);
    Ok(())
}
