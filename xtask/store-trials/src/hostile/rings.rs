//! Attacks by the ring page itself: its indexes, its words, bytes that change while they are read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use xenstore::ring::{RING_BYTES, RingPage, field};
use xenstore::wire::MessageType as M;

use super::Trial;
use super::attacker::{Attacker, message};
use super::scene::{FIRST, Scene};

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "index runs backwards",
        tried: "a request producer behind its consumer, in one domain after the other",
        attack: |scene| broken_index(scene, field::REQUEST_PRODUCER, 0_u32.wrapping_sub(1)),
    },
    Trial {
        name: "more than the ring holds",
        tried: "a request producer 1025 and 2^31 bytes ahead",
        attack: |scene| broken_index(scene, field::REQUEST_PRODUCER, 1025),
    },
    Trial {
        name: "reply index of nonsense",
        tried: "a reply consumer ahead of the producer",
        attack: |scene| broken_index(scene, field::REPLY_CONSUMER, 1 << 31),
    },
    Trial {
        name: "page changes as it is read",
        tried: "a second CPU that writes random words over indexes, features and requests",
        attack: flipping_page,
    },
    Trial {
        name: "header changes as it is read",
        tried: "a second CPU that changes length and type of good requests under way",
        attack: flipping_header,
    },
    Trial {
        name: "the store's own words",
        tried: "features, error and port of the page overwritten between good requests",
        attack: own_words,
    },
    Trial {
        name: "reconnects in a loop",
        tried: "a new start asked for by the page again and again, in the middle of requests",
        attack: reconnects,
    },
    Trial {
        name: "lengths",
        tried: "payloads of 4096, 4097 and 4294967295 bytes",
        attack: lengths,
    },
    Trial {
        name: "events without bytes",
        tried: "its event channel fired without a pause, the ring empty",
        attack: empty_kicks,
    },
    Trial {
        name: "byte by byte",
        tried: "requests one byte at a time, each with an event",
        attack: byte_by_byte,
    },
];

/// Breaks rings of ever new domains by one word of the page; each is out of service, and says so.
fn broken_index(scene: &mut Scene, word: usize, value: u32) -> Result<()> {
    scene.begin()?;
    let mut broken = 0;
    while !scene.is_over() {
        let mut attacker = scene.attacker(FIRST)?;
        attacker.must(M::Write, 0, b"a\0v")?;
        let page = attacker.guest.page();
        let base = match word {
            field::REPLY_CONSUMER => page.load_u32(field::REPLY_PRODUCER),
            _ => page.load_u32(field::REQUEST_CONSUMER),
        };
        page.store_u32(word, base.wrapping_add(value));
        attacker.guest.kick()?;
        if word == field::REPLY_CONSUMER {
            // A reply has to be put for the store to see it.
            let request = message(M::Read, 0, b"a\0");
            attacker.guest.ring().put_requests(&request)?;
            attacker.guest.kick()?;
        }
        expect_error(&attacker, 2)?;
        let again = scene.dom0.call_raw(M::Introduce.code(), 0, b"10\x005\x007\0")?;
        ensure!(again == Err("EIO".into()), "a broken ring was introduced again: {again:?}");
        scene.destroy(&attacker)?;
        broken += 1;
    }
    scene.note("rings out of service, each until its domain died", broken);
    Ok(())
}

fn expect_error(attacker: &Attacker, error: u32) -> Result<()> {
    let begun = Instant::now();
    while attacker.guest.ring().error() != error {
        ensure!(
            begun.elapsed() < Duration::from_secs(10),
            "the ring's error is {}, not {error}",
            attacker.guest.ring().error()
        );
        attacker.guest.wait(Duration::from_millis(5))?;
    }
    Ok(())
}

/// Runs `flip` on a CPU of its own while requests go through the ring; starts a new domain when the ring is broken.
fn beside(
    scene: &mut Scene,
    flip: impl Fn(&file_host::Page, u64) + Sync,
    request: &[u8],
) -> Result<()> {
    scene.begin()?;
    let (mut lives, mut asked) = (0, 0);
    while !scene.is_over() {
        let attacker = scene.attacker(FIRST)?;
        let begins = lives;
        let (host, domid) = (&scene.host, attacker.guest.domid());
        let over = AtomicBool::new(false);
        std::thread::scope(|threads| -> Result<()> {
            threads.spawn(|| {
                let page = host.map_ring(domid).expect("its ring is there as long as it lives");
                let mut round = begins + 1_u64;
                while !over.load(Ordering::Relaxed) {
                    round = round.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    flip(&page, round);
                }
            });
            let begun = Instant::now();
            while !scene.is_over()
                && attacker.guest.ring().error() == 0
                && begun.elapsed() < Duration::from_millis(300)
            {
                // Its own indexes may make no sense to it, either.
                let _sent = attacker.guest.ring().put_requests(request);
                let _taken = attacker.guest.ring().take_replies(&mut [0; RING_BYTES]);
                attacker.guest.kick()?;
                asked += 1;
                std::thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
            Ok(())
        })?;
        scene.destroy(&attacker)?;
        lives += 1;
    }
    scene.note("requests", asked);
    scene.note("lives", lives);
    Ok(())
}

fn flipping_page(scene: &mut Scene) -> Result<()> {
    let flip = |page: &file_host::Page, round: u64| {
        let bytes = round.to_le_bytes();
        let word = u32::from_le_bytes([bytes[3], bytes[4], bytes[5], bytes[6]]);
        match round >> 60 {
            // Most of the time something that could be.
            0 => page.store_u32(field::REQUEST_PRODUCER, word),
            1 => page.store_u32(field::REPLY_CONSUMER, word),
            2 => page.store_u32(field::CONNECTION, word & 3),
            3 => page.store_u32(field::SERVER_FEATURES, word),
            4..=7 => {
                let consumer = page.load_u32(field::REQUEST_CONSUMER);
                page.store_u32(field::REQUEST_PRODUCER, consumer.wrapping_add(word & 1023));
            }
            _ => page.write(usize::from(bytes[3]) * 4, &word.to_le_bytes()),
        }
    };
    beside(scene, flip, &message(M::Write, 0, b"a\0v"))
}

fn flipping_header(scene: &mut Scene) -> Result<()> {
    let flip = |page: &file_host::Page, round: u64| {
        let bytes = round.to_le_bytes();
        // Requests of 32 bytes: each header lies at a multiple of that.
        let header = usize::from(bytes[4] & 31) * 32;
        match bytes[5] & 7 {
            0 => page.write(header, &u32::from(bytes[6]).to_le_bytes()),
            1 => page.write(header + 12, &4097_u32.to_le_bytes()),
            2..=4 => page.write(header + 12, &u32::from(bytes[6] & 31).to_le_bytes()),
            _ => page.write(header + 12, &16_u32.to_le_bytes()),
        }
    };
    beside(scene, flip, &message(M::Write, 0, b"a\0bcdefghijklmn"))
}

fn own_words(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let mut round = 0_u32;
    while !scene.is_over() {
        round += 1;
        let page = attacker.guest.page();
        page.store_u32(field::SERVER_FEATURES, round.wrapping_mul(2_654_435_761));
        page.store_u32(field::PORT, round);
        page.store_u32(field::CONNECTION, if round.is_multiple_of(2) { 2 } else { u32::MAX });
        let answer = attacker.ask(M::Write, 0, format!("a\0{round}").as_bytes())?;
        ensure!(answer.is_ok(), "{answer:?}");
        let page = attacker.guest.page();
        page.store_u32(field::CONNECTION, 0);
        page.store_u32(field::ERROR, round % 4);
        page.store_u32(field::ERROR, 0);
    }
    Ok(())
}

fn reconnects(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let mut starts = 0;
    while !scene.is_over() {
        let requests: Vec<u8> = (0..10)
            .flat_map(|number| message(M::Watch, 0, format!("w\0{number}\0").as_bytes()))
            .collect();
        // The last one is cut off.
        attacker.stuff(&requests[..requests.len() - 7])?;
        attacker.guest.ring().ask_reconnect();
        attacker.guest.kick()?;
        let begun = Instant::now();
        while !attacker.guest.ring().is_connected() {
            ensure!(begun.elapsed() < Duration::from_secs(10), "no new start");
            attacker.guest.wait(Duration::from_millis(1))?;
        }
        starts += 1;
    }
    scene.note("new starts", starts);
    let mut attacker = Attacker::new(attacker.guest, std::rc::Rc::clone(&scene.tally));
    attacker.must(M::Write, 0, b"a\0v")?;
    Ok(())
}

fn lengths(scene: &mut Scene) -> Result<()> {
    scene.begin()?;
    while !scene.is_over() {
        let mut attacker = scene.attacker(FIRST)?;
        let longest = [b"a\0", &[b'v'; 4094][..]].concat();
        attacker.refused(M::Write, &longest, &["ENOSPC"])?;
        attacker.must(M::Write, 0, b"a\0v")?;
        for length in [4097, u32::MAX] {
            let mut header = message(M::Read, 0, b"");
            header[12..16].copy_from_slice(&length.to_ne_bytes());
            attacker.guest.try_send(&header)?;
            expect_error(&attacker, 3)?;
            scene.destroy(&attacker)?;
            scene.note("rings out of service, each until its domain died", 1);
            attacker = scene.attacker(FIRST)?;
        }
        scene.destroy(&attacker)?;
    }
    Ok(())
}

fn empty_kicks(scene: &mut Scene) -> Result<()> {
    let attackers = scene.attackers(2)?;
    scene.begin()?;
    let mut kicks = 0_u64;
    while !scene.is_over() {
        for attacker in &attackers {
            attacker.guest.kick()?;
            kicks += 1;
        }
    }
    scene.note("events of nothing", kicks);
    Ok(())
}

fn byte_by_byte(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let request = message(M::Write, 0, &[b"a\0", &[b'v'; 1500][..]].concat());
    let mut bytes = 0_u64;
    while !scene.is_over() {
        for byte in &request {
            while attacker.guest.try_send(std::slice::from_ref(byte))? == 0 {
                attacker.guest.wait(Duration::from_millis(5))?;
            }
            bytes += 1;
        }
        attacker.take(|_, _| ())?;
    }
    scene.note("bytes", bytes);
    attacker.drain()
}
