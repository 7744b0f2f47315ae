//! Of histories.

use api::{DiskTraffic, DomainRow, Traffic, VifTraffic};
use serde_json::Value;

use super::*;
use crate::ring::ARCHIVES;
use crate::sample::Host;
use crate::updates::{Ask, Form, updates};

const BEGAN_S: u64 = 1_700_000_000;

fn row(domid: u16, cpu_time_ns: u64) -> DomainRow {
    let uuid = format!("00000000-0000-4000-8000-{domid:012x}");
    DomainRow { domid, uuid, mem_kib: 1024, vcpus_online: 2, cpu_time_ns, ..DomainRow::default() }
}

fn sample(after_s: u64, domains: Vec<DomainRow>) -> Sample {
    let host = Some(Host { cpus: 4, memory_bytes: 1 << 30, memory_free_bytes: 1 << 29 });
    let (unix_s, at_ns) = (BEGAN_S + after_s, 1 + after_s * 1_000_000_000);
    Sample { unix_s, at_ns, host, domains, ..Sample::default() }
}

/// Two domains, of which the second is busy for a second of each five.
fn two(after_s: u64) -> Sample {
    sample(after_s, vec![row(0, 0), row(1, 7), row(2, after_s * 200_000_000)])
}

fn filled(samples: u64) -> History {
    let mut history = History::default();
    (0..samples).for_each(|at| history.take(&two(at * 5)));
    history
}

#[test]
fn cpu_time_becomes_a_share_of_the_vcpus_and_of_the_host() {
    let history = filled(4);
    let finest = ARCHIVES[0];
    let vm = row(2, 0).uuid;
    let span = history.read(Of::Vm(&vm), BEGAN_S, finest).unwrap();
    assert_eq!((span.from_unix_s, span.step_s), (BEGAN_S + 5, 5));
    let cpu = &span.series[0];
    assert_eq!((&*cpu.name, &*cpu.values), ("cpu", &[None, Some(0.1), Some(0.1), Some(0.1)][..]));
    let memory = &span.series[1];
    assert_eq!((&*memory.name, memory.values[0]), ("memory", Some(1_048_576.0)));
    let host = history.read(Of::Host, BEGAN_S, finest).unwrap();
    assert_eq!(host.series[0].values[3], Some(0.05));
    assert_eq!(history.read(Of::Vm("none"), 0, finest), None);
    // Domain 0 is part of the host.
    assert_eq!(history.vms(), 2);
}

#[test]
fn a_counter_that_falls_or_is_anothers_gives_no_rate() {
    let mut history = filled(2);
    // Domid 2 is used again, and domid 1 counts from the beginning.
    let other = DomainRow { uuid: "other".to_owned(), ..row(2, u64::MAX / 2) };
    history.take(&sample(10, vec![row(1, 3), other]));
    for uuid in [&row(1, 0).uuid, "other"] {
        let span = history.read(Of::Vm(uuid), BEGAN_S + 10, ARCHIVES[0]).unwrap();
        assert_eq!(span.series[0].values, [None], "{uuid}");
    }
    // Nor does one that was not looked at for long.
    history.take(&sample(1000, vec![row(1, 9_000_000_000)]));
    let span = history.read(Of::Vm(&row(1, 0).uuid), BEGAN_S + 1000, ARCHIVES[0]).unwrap();
    assert_eq!(span.series[0].values, [None]);
}

/// A disk and an interface of a domain, after so many bytes.
fn moved(after_s: u64, domid: u16, bytes: u64) -> Sample {
    let disk = DiskTraffic {
        domid,
        device: "xvda".to_owned(),
        read_bytes: bytes,
        written_bytes: 2 * bytes,
        ..DiskTraffic::default()
    };
    let vif = VifTraffic {
        domid,
        devid: 3,
        received_bytes: 3 * bytes,
        sent_bytes: 4 * bytes,
        ..VifTraffic::default()
    };
    let traffic = Traffic { disks: vec![disk], vifs: vec![vif], ..Traffic::default() };
    let sample = sample(after_s, vec![row(domid, 0)]);
    Sample { traffic, traffic_at_ns: sample.at_ns, ..sample }
}

fn rates(history: &History, uuid: &str) -> BTreeMap<String, Vec<Option<f32>>> {
    let span = history.read(Of::Vm(uuid), BEGAN_S, ARCHIVES[0]).unwrap();
    span.series.into_iter().map(|it| (it.name.into_owned(), it.values)).collect()
}

#[test]
fn devices_have_rates_under_the_names_of_xapi() {
    let mut history = History::default();
    for at in 0..3 {
        history.take(&moved(at * 5, 1, 1_000_000 + at * 500));
    }
    let rates = rates(&history, &row(1, 0).uuid);
    for (name, rate) in [
        ("vbd_xvda_read", 100.0),
        ("vbd_xvda_write", 200.0),
        ("vif_3_rx", 300.0),
        ("vif_3_tx", 400.0),
    ] {
        assert_eq!(rates[name], [None, Some(rate), Some(rate)], "{name}");
    }
    let said: Value =
        serde_json::from_str(&updates(&history, &ask(BEGAN_S + 5, 5), Form::Json)).unwrap();
    let read = format!("AVERAGE:vm:{}:vbd_xvda_read", row(1, 0).uuid);
    assert!(said["meta"]["legend"].as_array().unwrap().contains(&read.into()), "{said}");
}

#[test]
fn counters_of_devices_that_begin_anew_give_no_rate() {
    let mut history = History::default();
    let mut samples = vec![moved(0, 1, 1000), moved(5, 1, 1500)];
    // It was unplugged and plugged again, and then it is read from.
    samples.extend([moved(10, 1, 10), moved(15, 1, 510)]);
    // The VM boots anew: another domain.
    let uuid = row(1, 0).uuid;
    let mut rebooted = moved(20, 2, 1_000_000);
    rebooted.domains[0].uuid.clone_from(&uuid);
    samples.push(rebooted);
    // Its domid is another VM's.
    samples.push(moved(25, 2, 2_000_000));
    for sample in &samples {
        history.take(sample);
    }
    let of_first = rates(&history, &uuid);
    let expected = [None, Some(100.0), None, Some(100.0), None];
    assert_eq!(of_first["vbd_xvda_read"][..5], expected);
    // The daemon did not answer for long.
    history.take(&moved(1000, 2, 900_000_000));
    let of_second = rates(&history, &row(2, 0).uuid);
    assert!(of_second["vif_3_tx"].iter().all(Option::is_none), "{of_second:?}");
}

#[test]
fn devices_that_come_and_go_have_room_for_so_many_only() {
    let mut history = History::default();
    let all = |at: u64| Traffic {
        vifs: (0..30)
            .map(|devid| VifTraffic {
                domid: 1,
                devid: devid + 20 * u32::try_from(at).unwrap(),
                ..VifTraffic::default()
            })
            .collect(),
        ..Traffic::default()
    };
    for at in 0..5 {
        let traffic = all(at);
        history.take(&Sample { traffic, ..sample(at * 5, vec![row(1, 0)]) });
    }
    assert_eq!(history.devices(), 32);
    let names = rates(&history, &row(1, 0).uuid);
    assert!(names.contains_key("vif_109_rx") && !names.contains_key("vif_5_rx"));
    // Many VMs with as many each: no more than there may be in all.
    let vif = |domid: u16, devid: u32| VifTraffic { domid, devid, ..VifTraffic::default() };
    let many = |from: u16| Traffic {
        vifs: (from..from + 400).flat_map(|domid| (0..30).map(move |it| vif(domid, it))).collect(),
        ..Traffic::default()
    };
    for (at, from) in [(25, 2), (30, 1002), (35, 1002)] {
        let domains = (from..from + 400).map(|domid| row(domid, 0)).collect();
        history.take(&Sample { traffic: many(from), ..sample(at, domains) });
        assert!((8000..=DEVICES_MAX).contains(&history.devices()), "{}", history.devices());
    }
    // Those that are there have made room for themselves.
    assert!(rates(&history, &row(1400, 0).uuid).contains_key("vif_0_rx"));
    assert!(history.bytes() < 64_000_000, "{}", history.bytes());
}

#[test]
fn a_vm_that_is_gone_is_forgotten_after_a_day() {
    let mut history = filled(1);
    history.take(&sample(86_400, vec![row(1, 0)]));
    assert_eq!(history.vms(), 2);
    history.take(&sample(86_405, vec![row(1, 0)]));
    assert_eq!(history.vms(), 1);
}

#[test]
fn memory_is_bounded_however_many_vms_come_and_go() {
    let mut history = History::default();
    let thousand = (1..=1000).map(|it| row(it, 0)).collect();
    history.take(&sample(0, thousand));
    assert!(history.bytes() < 7_000_000, "{}", history.bytes());
    for at in 1..=4 {
        let others = (1..=900).map(|it| row(at * 1000 + it, 0)).collect();
        history.take(&sample(u64::from(at) * 5, others));
    }
    assert_eq!(history.vms(), VMS_MAX);
    assert!(history.bytes() < 28_000_000, "{}", history.bytes());
    // Those that are there have made room for themselves.
    assert!(history.entity(Of::Vm(&row(4900, 0).uuid)).is_some());
    assert!(history.entity(Of::Vm(&row(1, 0).uuid)).is_none());
    assert_eq!(Ring::new().averages_bytes() + size_of::<Ring>(), Ring::BYTES);
}

fn ask(start_unix_s: u64, interval_s: u64) -> Ask {
    Ask { start_unix_s, interval_s, host: Some("h".to_owned()), vm: None }
}

#[test]
fn updates_are_as_clients_of_xapi_read_them() {
    let history = filled(4);
    let text = updates(&history, &ask(BEGAN_S + 5, 5), Form::Json);
    let said: Value = serde_json::from_str(&text).unwrap();
    let meta = &said["meta"];
    assert_eq!(
        (&meta["step"], &meta["rows"], &meta["columns"]),
        (&5.into(), &3.into(), &13.into())
    );
    assert_eq!(
        (meta["start"].as_u64(), meta["end"].as_u64()),
        (Some(BEGAN_S + 10), Some(BEGAN_S + 20))
    );
    let legend: Vec<_> =
        meta["legend"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    let cpu = format!("AVERAGE:vm:{}:cpu_usage", row(2, 0).uuid);
    let at = legend.iter().position(|it| *it == cpu).unwrap();
    assert_eq!(said["data"].as_array().unwrap().len(), 3);
    assert_eq!(said["data"][0]["t"], meta["end"], "the newest first");
    assert_eq!(said["data"][0]["values"][at], "0.1");
    assert!(legend.contains(&"AVERAGE:host:h:memory_free_kib"));
    // CPUs are known together only.
    let all = legend.iter().position(|it| *it == "AVERAGE:host:h:cpu_avg").unwrap();
    let last = legend.iter().position(|it| *it == "AVERAGE:host:h:cpu3").unwrap();
    assert_eq!(said["data"][0]["values"][last], said["data"][0]["values"][all]);
    let free = legend.iter().position(|it| it.ends_with("memory_free_kib")).unwrap();
    assert_eq!(said["data"][0]["values"][free], "524288");
    // Of one VM, without the host.
    let alone = Ask { host: None, vm: Some(row(1, 0).uuid), ..ask(0, 5) };
    let said: Value = serde_json::from_str(&updates(&history, &alone, Form::Json)).unwrap();
    assert_eq!(said["meta"]["columns"], 3);
    // So long ago only the coarsest reaches, and of today it has nothing whole.
    assert_eq!(said["meta"]["step"], 86_400);
    assert_eq!(said["data"][0]["values"][0], "NaN");
}

#[test]
fn the_classic_form_has_the_same() {
    let history = filled(2);
    let ask = Ask { host: None, vm: Some(row(2, 0).uuid), ..ask(BEGAN_S + 5, 5) };
    let uuid = row(2, 0).uuid;
    let expected = format!(
        "<?xml version=\"1.0\"?><xport><meta><start>{t}</start><step>5</step><end>{t}</end><rows>1</rows>\
         <columns>3</columns><legend><entry>AVERAGE:vm:{uuid}:cpu_usage</entry><entry>AVERAGE:vm:{uuid}:cpu0</entry>\
         <entry>AVERAGE:vm:{uuid}:memory</entry>\
         </legend></meta><data><row><t>{t}</t><v>0.1</v><v>0.1</v><v>1048576</v></row></data></xport>",
        t = BEGAN_S + 10,
    );
    assert_eq!(updates(&history, &ask, Form::Xml), expected);
}

#[test]
fn a_start_in_the_future_gives_nothing() {
    let said = updates(&filled(2), &ask(u64::MAX, 5), Form::Json);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["data"], Value::Array(Vec::new()));
    let span = filled(2).read(Of::Host, u64::MAX, ARCHIVES[0]).unwrap();
    assert!(span.series[0].values.is_empty());
}
