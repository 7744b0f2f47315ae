//! Attacks by watches and events.

use anyhow::{Result, ensure};
use xenstore::wire::MessageType as M;

use super::Trial;
use super::attacker::message;
use super::others::OPEN;
use super::scene::{FIRST, Scene};

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "long tokens",
        tried: "128 watches with tokens of up to 4080 bytes, then writes below them, answers unread",
        attack: long_tokens,
    },
    Trial {
        name: "special watches",
        tried: "128 watches on @introduceDomain and @releaseDomain while domains come and go",
        attack: special,
    },
    Trial {
        name: "events unread",
        tried: "128 watches on its home, in which dom0 writes; nothing is ever read",
        attack: unread,
    },
    Trial {
        name: "watch races",
        tried: "the same watch set and removed without a pause, with writes between",
        attack: races,
    },
    Trial {
        name: "watches reset",
        tried: "RESET_WATCHES after each watch and transaction, without a pause",
        attack: resets,
    },
    Trial {
        name: "watches on what is open",
        tried: "16 guests with 128 watches each on a node that everybody may read and dom0 writes",
        attack: open_to_all,
    },
    Trial {
        name: "two watch each other",
        tried: "two guests that let each other read, 128 watches each on the other, neither reads",
        attack: mutual,
    },
    Trial {
        name: "names for a sleeping dom0",
        tried: "ever new names below a node that a client of dom0 watches and does not read",
        attack: sleeping_watcher,
    },
    Trial {
        name: "names for dom0",
        tried: "small writes to a node that a client of dom0 watches and reads",
        attack: reading_watcher,
    },
];

fn long_tokens(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let mut set = 0;
    for number in 0..128 {
        let token = format!("{number:04}{}", "t".repeat(4070));
        set += u32::from(attacker.ask(M::Watch, 0, format!("/\0{token}\0").as_bytes())?.is_ok());
    }
    ensure!(set > 100, "{set} watches were set");
    attacker.refused(M::Watch, b"/\0one more\0", &["ENOSPC", "ENOMEM"])?;
    // Path and token together are longer than an event may be.
    let deep = "n".repeat(60);
    let write = message(M::Write, 0, format!("{deep}\0v").as_bytes());
    scene.storm(&mut attacker, |_| write.clone())?;
    ensure!(
        attacker.must(M::Read, 0, format!("{deep}\0").as_bytes())? == b"v",
        "its write is lost"
    );
    Ok(())
}

fn special(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    for number in 0..64 {
        for path in ["@introduceDomain", "@releaseDomain"] {
            attacker.must(M::Watch, 0, format!("{path}\0{number}\0").as_bytes())?;
        }
    }
    attacker.drain()?;
    scene.begin()?;
    let (mut told, mut lives) = (0_u64, 0);
    // That a domain was released everybody may know, but not that one came.
    let mut count = |_, payload: &[u8]| told += u64::from(payload.starts_with(b"@introduce"));
    while !scene.is_over() {
        let visitor = scene.attacker(FIRST + 1)?;
        scene.destroy(&visitor)?;
        lives += 1;
        while attacker.take(&mut count)? > 0 {}
    }
    while attacker.guest.wait(std::time::Duration::from_millis(30))? {
        attacker.take(&mut count)?;
    }
    ensure!(told == 0, "the guest was told {told} times of {lives} domains that came");
    scene.note("domains came and went", lives);
    Ok(())
}

fn unread(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    // These count for the guest, and dom0 has no limit: all are there before its memory is full.
    for node in 0..500 {
        let path = format!("/local/domain/{FIRST}/n{node}");
        scene.dom0.call(M::Write, 0, format!("{path}\0999999").as_bytes())?;
    }
    for number in 0..128 {
        attacker.must(M::Watch, 0, format!("/local/domain/{FIRST}\0{number}\0").as_bytes())?;
    }
    scene.begin()?;
    let mut written = 0_u64;
    while !scene.is_over() {
        let path = format!("/local/domain/{FIRST}/n{}", written % 500);
        scene.dom0.call(M::Write, 0, format!("{path}\0{written}").as_bytes())?;
        written += 1;
    }
    scene.note("writes of dom0", written);
    attacker.drain()
}

fn races(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.storm(&mut attacker, |number| {
        let (kind, payload): (M, &[u8]) = match number % 4 {
            0 => (M::Watch, b"a\0token\0"),
            1 | 3 => (M::Write, b"a/b\0v"),
            _ => (M::Unwatch, b"a\0token\0"),
        };
        message(kind, 0, payload)
    })
}

fn resets(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.storm(&mut attacker, |number| match number % 3 {
        0 => message(M::Watch, 0, b"/\0token\0"),
        1 => message(M::TransactionStart, 0, b"\0"),
        _ => message(M::ResetWatches, 0, b"\0"),
    })
}

fn open_to_all(scene: &mut Scene) -> Result<()> {
    let mut attackers = scene.attackers(16)?;
    for attacker in &mut attackers {
        for number in 0..128 {
            attacker.must(M::Watch, 0, format!("{OPEN}\0{number}\0").as_bytes())?;
        }
    }
    scene.begin()?;
    while !scene.is_over() {
        for attacker in &mut attackers {
            attacker.take(|_, _| ())?;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

fn mutual(scene: &mut Scene) -> Result<()> {
    let mut attackers = scene.attackers(2)?;
    for (attacker, [own, other]) in
        attackers.iter_mut().zip([[FIRST, FIRST + 1], [FIRST + 1, FIRST]])
    {
        attacker.must(M::Mkdir, 0, b"open\0")?;
        let list = format!("/local/domain/{own}/open\0n{own}\0b{other}\0");
        attacker.must(M::SetPerms, 0, list.as_bytes())?;
        for number in 0..128 {
            let watch = format!("/local/domain/{other}/open\0{number}\0");
            attacker.must(M::Watch, 0, watch.as_bytes())?;
        }
    }
    scene.begin()?;
    let mut number = 0_u64;
    while !scene.is_over() {
        for (attacker, other) in attackers.iter_mut().zip([FIRST + 1, FIRST]) {
            let path = format!("/local/domain/{other}/open/{}", number % 200);
            attacker.stuff(&message(M::Write, 0, format!("{path}\0v").as_bytes()))?;
        }
        number += 1;
    }
    Ok(())
}

/// New names below `home/names`, each removed again, so that no limit of nodes is met.
fn new_name(number: u64) -> Vec<u8> {
    let name = format!("names/{}", number / 2);
    match number % 2 {
        0 => message(M::Write, 0, format!("{name}\0v").as_bytes()),
        _ => message(M::Rm, 0, format!("{name}\0").as_bytes()),
    }
}

fn sleeping_watcher(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let mut watcher = scene.daemon.connect()?;
    watcher.call(M::Watch, 0, format!("/local/domain/{FIRST}\0token\0").as_bytes())?;
    scene.storm(&mut attacker, new_name)?;
    let answer = watcher.call(M::Read, 0, format!("{OPEN}\0").as_bytes());
    ensure!(answer.is_ok(), "the watcher is not served any more: {answer:?}");
    let waited = watcher.take_events().len();
    scene.note("events waited for dom0", waited as u64);
    Ok(())
}

fn reading_watcher(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let mut watcher = scene.daemon.connect()?;
    watcher.call(M::Watch, 0, format!("/local/domain/{FIRST}\0token\0").as_bytes())?;
    scene.begin()?;
    let mut number = 0;
    let mut events = 0;
    while !scene.is_over() {
        for _ in 0..20 {
            attacker.send(&new_name(number))?;
            number += 1;
        }
        watcher.call(M::Read, 0, format!("{OPEN}\0").as_bytes())?;
        events += watcher.take_events().len() as u64;
    }
    scene.note("events for dom0", events);
    attacker.drain()
}
