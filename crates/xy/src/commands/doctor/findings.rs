//! What facts about a host mean.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::facts::{EVTCHN, Facts, GNTDEV, HYPERCALL, LOOP, PRIVCMD, SOCKET, Told};

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Level {
    Ok,
    /// Something does not work, or may not later.
    Warning,
    /// VMs cannot be managed, or the host is open to others.
    Problem,
}

use Level::{Ok as Fine, Problem, Warning};

/// One line.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) about: Cow<'static, str>,
    pub(super) text: String,
    /// What to do; empty if there is nothing to do.
    pub(super) advice: String,
}

fn finding(level: Level, about: &'static str, text: impl Into<String>, advice: &str) -> Finding {
    Finding { level, about: about.into(), text: text.into(), advice: advice.to_owned() }
}

fn ok(about: &'static str, text: impl Into<String>) -> Finding {
    finding(Fine, about, text, "")
}

/// Xen's releases whose interfaces are known.
const RELEASES: std::ops::RangeInclusive<(u32, u32)> = (4, 17)..=(4, 22);

/// Free memory below which hardly any VM can be created.
const FREE_MIB_MIN: u64 = 64;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    if !facts.on_xen {
        let text = "this kernel does not run on Xen";
        return vec![finding(Problem, "xen", text, "boot the host's entry for Xen")];
    }
    if !facts.controls {
        let text = "this domain does not control the host";
        return vec![finding(Problem, "xen", text, "run it in domain 0, with /proc/xen mounted")];
    }
    let mut found = vec![release(facts)];
    found.extend(devices(facts));
    found.extend(backends(facts));
    found.push(match &facts.store {
        Ok(()) => ok("store", "answers"),
        Err(problem) => finding(Problem, "store", problem, ""),
    });
    found.push(match facts.consoled {
        true => ok("consoles", "xenconsoled runs"),
        false => {
            let advice = "start it: systemctl start xenconsoled";
            finding(Warning, "consoles", "xenconsoled does not run: VMs have no console", advice)
        }
    });
    match &facts.xylemd {
        Ok(told) => {
            found.push(ok("xylemd", format!("release {} answers", told.release)));
            found.extend(memory(told));
            found.push(bridge(told));
            found.extend(bridge_filter(facts));
            found.extend(leftovers(facts, told));
        }
        Err(problem) => found.push(finding(Problem, "xylemd", problem, "")),
    }
    found
}

fn release(facts: &Facts) -> Finding {
    let Some((major, minor)) = facts.release else {
        let text = "its release is not known: /sys/hypervisor/version cannot be read";
        return finding(Warning, "xen", text, "mount sysfs");
    };
    if RELEASES.contains(&(major, minor)) {
        return ok("xen", format!("release {major}.{minor}"));
    }
    let text =
        format!("release {major}.{minor} is not one of 4.17 to 4.22, whose interfaces are known");
    finding(Warning, "xen", text, "if xylemd does not start, install a release of Xylem for it")
}

fn devices(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, level, module) in [
        (PRIVCMD, Problem, "xen-privcmd"),
        (HYPERCALL, Problem, "xen-privcmd (Linux 4.18 or later)"),
        (EVTCHN, Problem, "xen-evtchn"),
        (GNTDEV, Problem, "xen-gntdev"),
        (LOOP, Warning, "loop"),
    ] {
        if !facts.modes.contains_key(path) {
            let text = format!("{path} is missing");
            found.push(finding(level, "devices", text, &format!("load the module {module}")));
        }
    }
    for (path, what) in [
        (PRIVCMD, "control the host"),
        (HYPERCALL, "lock memory for hypercalls"),
        (EVTCHN, "use event channels"),
        (GNTDEV, "map pages of guests"),
        (SOCKET, "manage all VMs"),
    ] {
        let Some(mode) = facts.modes.get(path).filter(|mode| **mode & 0o007 != 0) else { continue };
        let text = format!("{path} has mode {mode:03o}: every user may {what}");
        let advice = if path == SOCKET { "restart xylemd" } else { "take it away: chmod o= it" };
        found.push(finding(Problem, "devices", text, advice));
    }
    if found.is_empty() {
        found.push(ok("devices", "/dev/xen is complete and closed to users"));
    }
    found
}

fn backends(facts: &Facts) -> Vec<Finding> {
    let has = |name: &str| facts.backends.iter().any(|it| it == name);
    let mut found = Vec::new();
    for (driver, module, what) in
        [("vbd", "xen-blkback", "disks"), ("vif", "xen-netback", "networks")]
    {
        if !has(driver) {
            let text = format!("the kernel has no {module} loaded: VMs get no {what}");
            found.push(finding(Warning, "backends", text, &format!("modprobe {module}")));
        }
    }
    if found.is_empty() {
        found.push(ok("backends", "disks and networks are served by the kernel"));
    }
    found
}

fn memory(told: &Told) -> Option<Finding> {
    let mib = |key: &str| told.info.get(key)?.parse::<u64>().ok();
    let (total, free) = (mib("total_memory")?, mib("free_memory")?);
    let dom0 = told.dom0_kib / 1024;
    if free >= FREE_MIB_MIN {
        return Some(ok("memory", format!("{free} of {total} MiB are free for VMs")));
    }
    // Where VMs have the most of it, the host is merely full.
    if dom0 < total / 2 {
        let text = format!("{free} of {total} MiB are free: no further VM can be created");
        return Some(finding(Warning, "memory", text, "shut a VM down"));
    }
    let text = format!(
        "domain 0 has {dom0} of {total} MiB and {free} are free: each new VM waits for it to give memory, if autoballoon lets it"
    );
    let advice = "limit domain 0 with dom0_mem= of Xen's command line, as in dom0_mem=2G,max:2G";
    Some(finding(Warning, "memory", text, advice))
}

/// As Docker leaves a host: it loads `br_netfilter`, and forwards nothing that it does not know.
fn bridge_filter(facts: &Facts) -> Option<Finding> {
    let text = "packets between guests pass the host's rules for forwarding: where those drop what they do not know, as \
                Docker makes them, guests do not reach each other";
    let advice = "set net.bridge.bridge-nf-call-iptables=0 by sysctl, or accept them (iptables -I FORWARD -m physdev --physdev-is-bridged -j ACCEPT)";
    facts.filters_bridges.then(|| finding(Warning, "bridge", text, advice))
}

fn bridge(told: &Told) -> Finding {
    match &told.bridge {
        Ok(bridge) if bridge.name.is_empty() => ok(
            "bridge",
            "interfaces that say nothing are on another network than a bridge of Linux",
        ),
        Ok(bridge) if bridge.exists => ok("bridge", format!("{} is there", bridge.name)),
        Ok(bridge) => {
            let name = &bridge.name;
            let text = format!("there is no bridge {name}, which interfaces without bridge= join");
            let advice = format!(
                "make it (ip link add {name} type bridge), or name another as vif.default.bridge \
                 in /etc/xen/xl.conf"
            );
            finding(Warning, "bridge", text, &advice)
        }
        Err(problem) => finding(Problem, "bridge", problem, "no VM is created until then"),
    }
}

fn leftovers(facts: &Facts, told: &Told) -> Vec<Finding> {
    let mut found = Vec::new();
    for vm in told.vms.iter().filter(|vm| vm.state == "stuck") {
        let advice = format!("`xy vm-list` says why; `xy destroy {}` tries again", vm.name);
        found.push(finding(Warning, "leftovers", format!("{} is stuck", vm.name), &advice));
    }
    let is_known =
        |uuid: &String| told.domains.contains(uuid) || told.vms.iter().any(|vm| vm.uuid == *uuid);
    for uuid in facts.records.iter().filter(|uuid| !is_known(uuid)) {
        let text = format!("the store has a record of VM {uuid}, which xylemd does not know");
        let advice = "restart xylemd, which takes down what is left";
        found.push(finding(Warning, "leftovers", text, advice));
    }
    for (file, _) in facts.kept.iter().filter(|(_, uuid)| !told.domains.contains(uuid)) {
        let text = format!("/var/lib/xen/{file} is of a domain that is gone");
        found.push(finding(Warning, "leftovers", text, "remove it"));
    }
    if found.is_empty() {
        found.push(ok("leftovers", "nothing is left of VMs that are gone"));
    }
    found
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::super::facts::{Bridge, Vm};
    use super::super::lines;
    use super::*;

    const WEB: &str = "01010101-0101-0101-0101-010101010101";
    const OLD: &str = "02020202-0202-0202-0202-020202020202";

    fn healthy() -> Facts {
        let info = [("total_memory", "8192"), ("free_memory", "4096")];
        let told = Told {
            release: "1.2.3".to_owned(),
            info: info.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            dom0_kib: 2 << 20,
            domains: vec![WEB.to_owned()],
            vms: vec![Vm { name: "web".into(), uuid: WEB.into(), state: "running".into() }],
            bridge: Ok(Bridge { name: "xenbr0".to_owned(), exists: true }),
        };
        Facts {
            on_xen: true,
            controls: true,
            release: Some((4, 17)),
            modes: [PRIVCMD, HYPERCALL, EVTCHN, GNTDEV, LOOP, SOCKET].map(|it| (it, 0o600)).into(),
            backends: vec!["vbd".to_owned(), "vif".to_owned()],
            store: Ok(()),
            consoled: true,
            xylemd: Ok(told),
            records: vec![WEB.to_owned()],
            kept: Vec::new(),
            filters_bridges: false,
        }
    }

    fn check(facts: &Facts, expected: &Expect) {
        expected.assert_eq(&lines(&findings(facts)));
    }

    /// Only what is not as it should be.
    fn faults(change: impl FnOnce(&mut Facts)) -> String {
        let mut facts = healthy();
        change(&mut facts);
        let found = findings(&facts).into_iter();
        lines(&found.filter(|finding| finding.level != Fine).collect::<Vec<_>>())
    }

    fn told(facts: &mut Facts) -> &mut Told {
        facts.xylemd.as_mut().unwrap()
    }

    #[test]
    fn a_healthy_host_has_a_line_for_each_thing() {
        check(
            &healthy(),
            &expect![[r#"
                ok       xen: release 4.17
                ok       devices: /dev/xen is complete and closed to users
                ok       backends: disks and networks are served by the kernel
                ok       store: answers
                ok       consoles: xenconsoled runs
                ok       xylemd: release 1.2.3 answers
                ok       memory: 4096 of 8192 MiB are free for VMs
                ok       bridge: xenbr0 is there
                ok       leftovers: nothing is left of VMs that are gone
            "#]],
        );
    }

    #[test]
    fn without_xen_nothing_else_is_worth_saying() {
        let none = Facts::without_xen();
        check(
            &none,
            &expect![[r#"
                problem  xen: this kernel does not run on Xen; boot the host's entry for Xen
            "#]],
        );
        let guest = Facts { on_xen: true, ..Facts::without_xen() };
        check(
            &guest,
            &expect![[r#"
                problem  xen: this domain does not control the host; run it in domain 0, with /proc/xen mounted
            "#]],
        );
    }

    #[test]
    fn what_the_kernel_lacks_is_named_with_its_module() {
        let found = faults(|facts| {
            facts.modes.remove(GNTDEV);
            facts.modes.remove(LOOP);
            facts.modes.insert(PRIVCMD, 0o666);
            facts.modes.insert(SOCKET, 0o660);
            facts.backends.pop();
            facts.release = Some((4, 23));
        });
        expect![[r#"
            warning  xen: release 4.23 is not one of 4.17 to 4.22, whose interfaces are known; if xylemd does not start, install a release of Xylem for it
            problem  devices: /dev/xen/gntdev is missing; load the module xen-gntdev
            warning  devices: /dev/loop-control is missing; load the module loop
            problem  devices: /dev/xen/privcmd has mode 666: every user may control the host; take it away: chmod o= it
            warning  backends: the kernel has no xen-netback loaded: VMs get no networks; modprobe xen-netback
        "#]]
        .assert_eq(&found);
    }

    #[test]
    fn releases_are_known_from_4_17_to_4_22() {
        for (release, expected) in [
            ((4, 16), Warning),
            ((4, 17), Fine),
            ((4, 22), Fine),
            ((4, 23), Warning),
            ((5, 0), Warning),
        ] {
            let facts = Facts { release: Some(release), ..healthy() };
            assert_eq!(findings(&facts)[0].level, expected, "{release:?}");
        }
    }

    #[test]
    fn daemons_that_do_not_answer_are_problems() {
        let found = faults(|facts| {
            facts.store = Err("no store at /run/xenstored/socket: refused".to_owned());
            facts.consoled = false;
            facts.xylemd = Err("cannot connect to xylemd".to_owned());
        });
        expect![[r#"
            problem  store: no store at /run/xenstored/socket: refused
            warning  consoles: xenconsoled does not run: VMs have no console; start it: systemctl start xenconsoled
            problem  xylemd: cannot connect to xylemd
        "#]]
        .assert_eq(&found);
    }

    #[test]
    fn memory_that_domain_0_owns_is_told_from_a_full_host() {
        let with = |free: &str, dom0_mib: u64| {
            faults(|facts| {
                told(facts).info.insert("free_memory".to_owned(), free.to_owned());
                told(facts).dom0_kib = dom0_mib * 1024;
            })
        };
        assert_eq!(with("64", 8000), "");
        expect![[r#"
            warning  memory: domain 0 has 8000 of 8192 MiB and 63 are free: each new VM waits for it to give memory, if autoballoon lets it; limit domain 0 with dom0_mem= of Xen's command line, as in dom0_mem=2G,max:2G
        "#]]
        .assert_eq(&with("63", 8000));
        expect![[r#"
            warning  memory: 10 of 8192 MiB are free: no further VM can be created; shut a VM down
        "#]]
        .assert_eq(&with("10", 1024));
    }

    #[test]
    fn bridges_and_leftovers_are_named() {
        let found = faults(|facts| {
            facts.records.push(OLD.to_owned());
            facts.kept = vec![
                (format!("userdata-d.3.{WEB}.libxl-json"), WEB.to_owned()),
                (format!("userdata-d.4.{OLD}.libxl-json"), OLD.to_owned()),
            ];
            let told = told(facts);
            told.bridge = Ok(Bridge { name: "br7".to_owned(), exists: false });
            told.vms[0].state = "stuck".to_owned();
        });
        expect![[r#"
            warning  bridge: there is no bridge br7, which interfaces without bridge= join; make it (ip link add br7 type bridge), or name another as vif.default.bridge in /etc/xen/xl.conf
            warning  leftovers: web is stuck; `xy vm-list` says why; `xy destroy web` tries again
            warning  leftovers: the store has a record of VM 02020202-0202-0202-0202-020202020202, which xylemd does not know; restart xylemd, which takes down what is left
            warning  leftovers: /var/lib/xen/userdata-d.4.02020202-0202-0202-0202-020202020202.libxl-json is of a domain that is gone; remove it
        "#]]
        .assert_eq(&found);
        let found = faults(|facts| {
            facts.filters_bridges = true;
            told(facts).bridge = Ok(Bridge::default());
        });
        expect![[r#"
            warning  bridge: packets between guests pass the host's rules for forwarding: where those drop what they do not know, as Docker makes them, guests do not reach each other; set net.bridge.bridge-nf-call-iptables=0 by sysctl, or accept them (iptables -I FORWARD -m physdev --physdev-is-bridged -j ACCEPT)
        "#]].assert_eq(&found);
        let found = faults(|facts| {
            told(facts).bridge = Err("/etc/xen/xl.conf:1: max_grant_frames: bad".to_owned());
        });
        assert_eq!(
            found,
            "problem  bridge: /etc/xen/xl.conf:1: max_grant_frames: bad; no VM is created until then\n"
        );
    }
}
