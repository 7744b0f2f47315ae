//! Attacks by single requests: what they say, and how often.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xenstore::wire::MessageType as M;

use super::Trial;
use super::attacker::{message, raw};
use super::scene::{FIRST, NEIGHBOUR, Scene};

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "unknown types",
        tried: "message types that there are not, replies and our own for sockets among them",
        attack: unknown_types,
    },
    Trial {
        name: "privileged requests",
        tried: "CONTROL, INTRODUCE, RELEASE, RESUME, SET_TARGET, IS_DOMAIN_INTRODUCED, quotas, features",
        attack: privileged,
    },
    Trial {
        name: "malformed payloads",
        tried: "no NUL, NULs inside, //, trailing /, .., control bytes, bytes above 127, strange @ paths",
        attack: malformed,
    },
    Trial {
        name: "path limits",
        tried: "paths of 2048 and 2049, 3072 and 3073 bytes, 32 and 33 names, in all requests",
        attack: path_limits,
    },
    Trial {
        name: "nodes given away",
        tried: "its nodes given to dom0, to a neighbour and to a domid in no use, to evade its limits (XSA-322)",
        attack: give_away,
    },
    Trial {
        name: "permission lists",
        tried: "lists of 5, 6 and 1000 entries, changed without a pause under its own watches",
        attack: permission_lists,
    },
    Trial {
        name: "at the limit of nodes",
        tried: "1000 nodes, then one removed and made again, and one more tried, without a pause",
        attack: node_limit,
    },
    Trial {
        name: "request ids",
        tried: "the same, none, the largest request id, answers matched",
        attack: request_ids,
    },
    Trial {
        name: "10,000 names",
        tried: "DIRECTORY and DIRECTORY_PART of a directory of dom0's with 10,000 names",
        attack: many_names,
    },
    Trial {
        name: "parts of what changes",
        tried: "DIRECTORY_PART at every offset of its own directory, which it changes meanwhile",
        attack: changing_parts,
    },
    Trial {
        name: "a node of dom0's, open",
        tried: "the largest values and 1500 names in a node of dom0's that it may write",
        attack: writable_dom0_node,
    },
    Trial {
        name: "large values unread",
        tried: "READs of its largest value, 20 in flight, of which nothing is ever read",
        attack: values_unread,
    },
    Trial {
        name: "hidden nodes probed",
        tried: "READ, GET_PERMS, RM, WRITE of hidden and of absent nodes of dom0 and a neighbour",
        attack: probe,
    },
    Trial {
        name: "deep chains of long names",
        tried: "chains of 30 names of 60 bytes until nodes or memory run out, removed, again",
        attack: long_chains,
    },
];

fn unknown_types(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let unknown = [15, 16, 20, 27, 100, 128, 0x584c_0001, 0x584c_0002, u32::MAX - 1, u32::MAX];
    for code in unknown {
        let answer = attacker.ask_raw(code, 0, b"x\0y\0")?;
        ensure!(answer == Err("ENOSYS".into()), "type {code}: {answer:?}");
    }
    scene.storm(&mut attacker, |number| {
        let code = unknown[usize::try_from(number).unwrap_or(0) % unknown.len()];
        raw(code, 1, 0, b"")
    })
}

fn privileged(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let requests: [(M, &[u8]); 12] = [
        (M::Control, b"check\0"),
        (M::Control, b"live-update\0-s\0"),
        (M::Control, b"quota\0set\0nodes\x009999\0"),
        (M::Introduce, b"11\x005\x007\0"),
        (M::Release, b"2\0"),
        (M::Resume, b"2\0"),
        (M::SetTarget, b"10\x002\0"),
        (M::IsDomainIntroduced, b"2\0"),
        (M::GetFeature, b"2\0"),
        (M::SetFeature, b"10\x0015\0"),
        (M::GetQuota, b"2\0nodes\0"),
        (M::SetQuota, b"10\0nodes\x009999\0"),
    ];
    for (kind, payload) in requests {
        attacker.refused(kind, payload, &["EACCES"])?;
    }
    attacker.refused(M::SetPerms, b"@releaseDomain\0n10\0", &["EACCES"])?;
    scene.storm(&mut attacker, |number| {
        let (kind, payload) = requests[usize::try_from(number).unwrap_or(0) % requests.len()];
        message(kind, 0, payload)
    })
}

fn malformed(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let bad: [&[u8]; 15] = [
        b"",
        b"no-nul",
        b"\0",
        b"//\0",
        b"a//b\0",
        b"a/\0",
        b"/a/\0",
        b"../x\0",
        b"/local/domain/10/../2/kept\0",
        b"a b\0",
        b"\x1b[2J\0",
        b"\xff\xfe\0",
        b"@nobody\0",
        b"@\0",
        b"a\0b\0c\0d\0",
    ];
    for kind in [M::Read, M::Directory, M::GetPerms, M::Mkdir, M::Rm] {
        for payload in bad {
            attacker.refused(kind, payload, &["EINVAL", "ENOENT", "EACCES"]).context("as it is")?;
        }
    }
    for kind in [M::Write, M::SetPerms, M::Watch, M::Unwatch, M::DirectoryPart] {
        for payload in bad {
            let whole = [payload, b"n10\0"].concat();
            // Some of these are good ones for some kinds; none may be a write outside its home.
            let _any = attacker.ask(kind, 0, &whole)?;
        }
    }
    scene.storm(&mut attacker, |number| {
        let at = usize::try_from(number).unwrap_or(0);
        message(M::ALL[at % 15], 0, bad[at % bad.len()])
    })
}

fn path_limits(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    // Names of 99 bytes: few of them make a long path.
    let of_length = |bytes: usize| -> String {
        (0..bytes).map(|at| if at % 100 == 99 && at + 1 < bytes { '/' } else { 'n' }).collect()
    };
    let read = |path: &str| format!("{path}\0").into_bytes();
    attacker.refused(M::Read, &read(&of_length(2048)), &["ENOENT"])?;
    for bytes in [2049, 3056, 3057, 3072, 3073, 4095] {
        for kind in [M::Read, M::Mkdir, M::Rm, M::Directory, M::GetPerms] {
            attacker.refused(kind, &read(&of_length(bytes)), &["EINVAL"])?;
        }
    }
    attacker.refused(M::Read, &read(&format!("{}x", "d/".repeat(28))), &["ENOENT"])?;
    attacker.refused(M::Mkdir, &read(&format!("{}x", "d/".repeat(29))), &["EINVAL"])?;
    attacker.refused(M::Mkdir, &read(&format!("{}x", "d/".repeat(1000))), &["EINVAL"])?;
    let longest = of_length(2048);
    scene.storm(&mut attacker, |_| message(M::Read, 0, &read(&longest)))
}

fn give_away(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    attacker.must(M::Write, 0, b"gift\0v")?;
    for owner in ["n0", "n2", "n999", "n32751", "n32756"] {
        let list = format!("gift\0{owner}\0");
        attacker.refused(M::SetPerms, list.as_bytes(), &["EPERM", "EINVAL"])?;
    }
    // In a transaction as well.
    let number = attacker.begin_transaction()?;
    let answer = attacker.ask(M::SetPerms, number, b"gift\0n0\0")?;
    ensure!(answer == Err("EPERM".into()), "in a transaction: {answer:?}");
    attacker.must(M::TransactionEnd, number, b"T\0")?;
    scene.storm(&mut attacker, |number| {
        let owner = number % 20;
        message(M::SetPerms, 0, format!("gift\0n{owner}\0r2\0").as_bytes())
    })
}

fn permission_lists(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    attacker.must(M::Mkdir, 0, b"p\0")?;
    attacker.must(M::Watch, 0, b"p\0token\0")?;
    let list = |entries: usize| format!("p\0n{FIRST}\0{}", "r2\0".repeat(entries - 1)).into_bytes();
    attacker.must(M::SetPerms, 0, &list(5))?;
    attacker.refused(M::SetPerms, &list(6), &["ENOSPC"])?;
    attacker.refused(M::SetPerms, &list(1000), &["ENOSPC"])?;
    for nonsense in ["p\0", "p\0x10\0", "p\0n\0", "p\0n99999999999\0", "p\0n-1\0", "p\0r\0"] {
        attacker.refused(M::SetPerms, nonsense.as_bytes(), &["EINVAL", "EPERM"])?;
    }
    scene.storm(&mut attacker, |number| {
        message(M::SetPerms, 0, &list(1 + usize::try_from(number).unwrap_or(0) % 5))
    })
}

fn node_limit(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let mut made = 0_u32;
    while attacker.ask(M::Mkdir, 0, format!("{}/{}\0", made / 50, made % 50).as_bytes())?.is_ok() {
        made += 1;
        ensure!(made <= 1000, "there is no limit");
    }
    attacker.refused(M::Mkdir, b"more\0", &["ENOSPC"])?;
    scene.storm(&mut attacker, |number| match number % 4 {
        0 => message(M::Rm, 0, b"0/1\0"),
        1 => message(M::Mkdir, 0, b"0/1\0"),
        2 => message(M::Mkdir, 0, b"more\0"),
        _ => message(M::Write, 0, b"a/b/c/d\0v"),
    })
}

fn request_ids(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let ids = [0, 1, 1, u32::MAX, 1 << 31, 7, 7];
    let requests = ids.map(|id| raw(M::Read.code(), id, 0, b"none\0")).concat();
    let mut rounds = 0_u64;
    while !scene.is_over() {
        ensure!(attacker.stuff(&requests)? == requests.len(), "an empty ring has no room");
        let mut came = Vec::new();
        let begun = Instant::now();
        while came.len() < ids.len() {
            if attacker.take(|header, _| came.push(header.request_id))? == 0 {
                ensure!(begun.elapsed() < Duration::from_secs(10), "{} answers came", came.len());
                attacker.guest.wait(Duration::from_millis(100))?;
            }
        }
        ensure!(came == ids, "answered as {came:?}");
        rounds += 1;
    }
    scene.note("rounds in order", rounds);
    Ok(())
}

fn many_names(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.dom0.call(M::Mkdir, 0, b"/tool/hostile/many\0")?;
    scene.dom0.call(M::SetPerms, 0, b"/tool/hostile/many\0r0\0")?;
    let names = (0..10_000).map(|name| format!("/tool/hostile/many/name-{name}\0v").into_bytes());
    scene.dom0.call_all(M::Write, names)?;
    attacker.refused(M::Directory, b"/tool/hostile/many\0", &["E2BIG"])?;
    scene.storm(&mut attacker, |number| {
        let offset = (number * 3000) % 150_000;
        message(M::DirectoryPart, 0, format!("/tool/hostile/many\0{offset}\0").as_bytes())
    })
}

fn changing_parts(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    for name in 0..150 {
        attacker.must(M::Mkdir, 0, format!("d/name-{name}\0").as_bytes())?;
    }
    for nonsense in ["d\0-1\0", "d\0x\0", "d\0\0", "d\0", "d\x0099999999999999999999\0"] {
        attacker.refused(M::DirectoryPart, nonsense.as_bytes(), &["EINVAL"])?;
    }
    scene.storm(&mut attacker, |number| match number % 4 {
        0 => message(M::Mkdir, 0, b"d/more\0"),
        2 => message(M::Rm, 0, b"d/more\0"),
        _ => message(M::DirectoryPart, 0, format!("d\0{}\0", number % 2000).as_bytes()),
    })
}

fn writable_dom0_node(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.dom0.call(M::Mkdir, 0, b"/tool/hostile/box\0")?;
    let list = format!("/tool/hostile/box\0n0\0b{FIRST}\0");
    scene.dom0.call(M::SetPerms, 0, list.as_bytes())?;
    let value = |bytes| [b"/tool/hostile/box\0", &vec![b'v'; bytes][..]].concat();
    attacker.refused(M::Write, &value(2048), &["ENOSPC"])?;
    attacker.refused(M::Write, &value(4070), &["ENOSPC"])?;
    attacker.must(M::Write, 0, &value(2000))?;
    scene.storm(&mut attacker, |number| match number % 2 {
        0 => message(M::Write, 0, &value(1000)),
        _ => message(M::Write, 0, format!("/tool/hostile/box/{}\0v", number % 3000).as_bytes()),
    })
}

fn values_unread(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    attacker.must(M::Write, 0, &[b"v\0", &[b'v'; 2000][..]].concat())?;
    scene.begin()?;
    let read = message(M::Read, 0, b"v\0");
    let mut rest = &read[..];
    while !scene.is_over() {
        let sent = attacker.stuff(rest)?;
        rest = if sent == rest.len() { &read } else { &rest[sent..] };
    }
    // Who reads again is served again.
    attacker.send(rest)?;
    attacker.drain()?;
    ensure!(attacker.must(M::Read, 0, b"v\0")?.len() == 2000, "another value");
    Ok(())
}

fn probe(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    let neighbour = format!("/local/domain/{NEIGHBOUR}");
    let hidden = ["/tool/hostile/secret/node".to_owned(), format!("{neighbour}/kept")];
    let absent = ["/tool/hostile/secret/none".to_owned(), format!("{neighbour}/none")];
    for kind in [M::Read, M::Directory, M::GetPerms, M::Mkdir, M::Rm] {
        for path in hidden.iter().chain(&absent) {
            attacker.refused(kind, format!("{path}\0").as_bytes(), &["EACCES"])?;
        }
    }
    for path in hidden.iter().chain(&absent) {
        attacker.refused(M::Write, format!("{path}\0v").as_bytes(), &["EACCES"])?;
        attacker.refused(M::SetPerms, format!("{path}\0n{FIRST}\0").as_bytes(), &["EACCES"])?;
    }
    scene.storm(&mut attacker, |number| {
        let at = usize::try_from(number % 2).unwrap_or(0);
        let path = if number % 4 < 2 { &hidden[at] } else { &absent[at] };
        message(M::Read, 0, format!("{path}\0").as_bytes())
    })
}

fn long_chains(scene: &mut Scene) -> Result<()> {
    let mut attacker = scene.attacker(FIRST)?;
    scene.begin()?;
    let mut full = 0;
    while !scene.is_over() {
        for chain in 0..40 {
            let names: Vec<String> =
                (0..28).map(|name| format!("{chain}-{name}-{}", "n".repeat(55))).collect();
            let answer = attacker.ask(M::Mkdir, 0, format!("{}\0", names.join("/")).as_bytes())?;
            if answer.is_err() {
                full += 1;
                break;
            }
        }
        for chain in 0..40 {
            let name = format!("{chain}-0-{}", "n".repeat(55));
            attacker.must(M::Rm, 0, format!("{name}\0").as_bytes())?;
        }
    }
    scene.note("times at a limit", full);
    Ok(())
}
