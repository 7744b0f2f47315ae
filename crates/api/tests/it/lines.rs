//! Every kind of line, byte for byte: other programs depend on them.

use std::collections::BTreeMap;

use api::{
    Answer, Cost, Create, CreateReport, DomainEvent, DomainRow, EventKind, Info, LINE_BYTES_MAX,
    PeerRequest, Progress, Reply, Request, SchedPool, SchedRequest, SchedRow, Scheduler, Stage,
    Target, Targets, Trigger, TuneRequest, VcpuBudget, Wait, decode_answer, decode_request,
    encode_answer, encode_request,
};
use expect_test::{Expect, expect};

fn check_request(request: &Request, expected: &Expect) {
    let line = encode_request(request);
    expected.assert_eq(&line);
    assert_eq!(&decode_request(line.as_bytes()).unwrap(), request);
}

fn check_answer(answer: &Answer, expected: &Expect) {
    let line = encode_answer(answer);
    expected.assert_eq(&line);
    assert_eq!(&decode_answer(line.as_bytes()).unwrap(), answer);
}

fn target(text: &str) -> Target {
    Target(text.to_owned())
}

#[test]
fn requests_about_peers_read_back() {
    check_request(
        &Request::Peer(PeerRequest::List),
        &expect![[r#"
            {"version":1,"op":"peer","do":"list"}
        "#]],
    );
    check_request(
        &Request::Peer(PeerRequest::Remove { name: "b".into() }),
        &expect![[r#"
            {"version":1,"op":"peer","do":"remove","name":"b"}
        "#]],
    );
}

#[test]
fn requests_about_changes_of_domains_read_back() {
    let pin = TuneRequest::VcpuPin {
        target: target("0"),
        vcpu: None,
        hard: Some("0-3,^1".into()),
        soft: None,
        force: true,
    };
    check_request(
        &Request::Tune(pin),
        &expect![[r#"
        {"version":1,"op":"tune","do":"vcpu-pin","target":"0","vcpu":null,"hard":"0-3,^1","soft":null,"force":true}
    "#]],
    );
    let sysrq = TuneRequest::Sysrq { target: target("g"), key: 's' };
    check_request(
        &Request::Tune(sysrq),
        &expect![[r#"
        {"version":1,"op":"tune","do":"sysrq","target":"g","key":"s"}
    "#]],
    );
    let trigger = TuneRequest::Trigger { target: target("g"), trigger: Trigger::S3resume, vcpu: 1 };
    check_request(
        &Request::Tune(trigger),
        &expect![[r#"
        {"version":1,"op":"tune","do":"trigger","target":"g","trigger":"s3resume","vcpu":1}
    "#]],
    );
    let budget = VcpuBudget { vcpu: Some(1), period_us: 10, budget_us: 9, extra: true };
    let budgets = TuneRequest::Budgets { target: target("g"), budgets: vec![budget] };
    check_request(
        &Request::Tune(budgets),
        &expect![[r#"
        {"version":1,"op":"tune","do":"budgets","target":"g","budgets":[{"vcpu":1,"period_us":10,"budget_us":9,"extra":true}]}
    "#]],
    );
    let pools = SchedRequest::Pools { scheduler: Scheduler::Rtds, pool: None, vcpus: true };
    check_request(
        &Request::Sched(pools),
        &expect![[r#"
        {"version":1,"op":"sched","do":"pools","scheduler":"rtds","pool":null,"vcpus":true}
    "#]],
    );
    let pool = SchedPool {
        name: "Pool-0".into(),
        ratelimit_us: Some(1000),
        rows: vec![SchedRow { weight: Some(256), cap: Some(0), ..SchedRow::default() }],
        ..SchedPool::default()
    };
    check_answer(
        &Answer::Ok(Reply::Sched(vec![pool])),
        &expect![[r#"
        {"ok":{"sched":[{"name":"Pool-0","timeslice_ms":null,"ratelimit_us":1000,"migration_delay_us":null,"rows":[{"name":null,"domid":0,"vcpu":null,"weight":256,"cap":0,"period_us":null,"budget_us":null,"extra":false}]}]}}
    "#]],
    );
}

#[test]
fn requests_read_back() {
    check_request(
        &Request::Ping,
        &expect![[r#"
            {"version":1,"op":"ping"}
        "#]],
    );
    check_request(
        &Request::Create(Create {
            file: "g.cfg".into(),
            config_text: "name = 'g'\n".into(),
            overrides: vec!["memory=8".into()],
            cwd: "/root".into(),
            paused: true,
            progress: true,
            ..Create::default()
        }),
        &expect![[r#"
            {"version":1,"op":"create","file":"g.cfg","config_text":"name = 'g'\n","overrides":["memory=8"],"cwd":"/root","paused":true,"dry_run":false,"progress":true}
        "#]],
    );
    check_request(
        &Request::List { targets: vec![target("g"), target("3")] },
        &expect![[r#"
            {"version":1,"op":"list","targets":["g","3"]}
        "#]],
    );
    check_request(
        &Request::Shutdown {
            targets: Targets::All,
            wait: Wait::Gone,
            acpi: false,
            progress: false,
        },
        &expect![[r#"
            {"version":1,"op":"shutdown","targets":"all","wait":"gone"}
        "#]],
    );
    check_request(
        &Request::Reboot {
            targets: Targets::These(vec![target("g")]),
            wait: Wait::Asked,
            acpi: true,
        },
        &expect![[r#"
            {"version":1,"op":"reboot","targets":{"these":["g"]},"wait":"asked","acpi":true}
        "#]],
    );
    check_request(
        &Request::BlockList { targets: vec![target("g")] },
        &expect![[r#"
            {"version":1,"op":"block-list","targets":["g"]}
        "#]],
    );
}

#[test]
fn optional_fields_may_be_left_out() {
    assert_eq!(
        decode_request(br#"{"version":1,"op":"list"}"#).unwrap(),
        Request::List { targets: Vec::new() }
    );
    assert_eq!(
        decode_request(br#"{"version":1,"op":"create","file":"f","config_text":"","cwd":"/"}"#)
            .unwrap(),
        Request::Create(Create { file: "f".into(), cwd: "/".into(), ..Create::default() })
    );
}

#[test]
fn answers_read_back() {
    check_answer(
        &Answer::Progress(Progress {
            vm: "g".into(),
            done: 2,
            total: 7,
            step: "build".into(),
            waits_for: "introduce".into(),
        }),
        &expect![[r#"
            {"progress":{"vm":"g","done":2,"total":7,"step":"build","waits_for":"introduce"}}
        "#]],
    );
    check_answer(
        &Answer::Event(DomainEvent { domid: 3, kind: EventKind::ShutDown { reason: 0 } }),
        &expect![[r#"
            {"event":{"domid":3,"what":"shut-down","reason":0}}
        "#]],
    );
    check_answer(
        &Answer::Ok(Reply::Done),
        &expect![[r#"
            {"ok":"done"}
        "#]],
    );
    check_answer(
        &Answer::Ok(Reply::Created(CreateReport {
            name: "g".into(),
            domid: 3,
            uuid: "01234567-89ab-cdef-0123-456789abcdef".into(),
            stages: vec![Stage { name: "build".into(), start_us: 120, end_us: 900 }],
            cost: Cost {
                hypercalls: BTreeMap::from([("createdomain".into(), 1)]),
                store_messages: 80,
                store_round_trips: 5,
                transactions: 1,
                ..Cost::default()
            },
        })),
        &expect![[r#"
            {"ok":{"created":{"name":"g","domid":3,"uuid":"01234567-89ab-cdef-0123-456789abcdef","stages":[{"name":"build","start_us":120,"end_us":900}],"cost":{"hypercalls":{"createdomain":1},"store_messages":80,"store_round_trips":5,"transactions":1,"conflicts":0}}}}
        "#]],
    );
    check_answer(
        &Answer::Ok(Reply::Domains(vec![DomainRow {
            name: Some("Domain-0".into()),
            running: true,
            ..DomainRow::default()
        }])),
        &expect![[r#"
            {"ok":{"domains":[{"name":"Domain-0","domid":0,"uuid":"","kind":"","mem_kib":0,"mem_max_kib":0,"vcpus_online":0,"running":true,"blocked":false,"paused":false,"shutdown_reason":null,"dying":false,"cpu_time_ns":0,"cpupool":0,"started_unix_s":null,"managed":false}]}}
        "#]],
    );
    check_answer(
        &Answer::Ok(Reply::Info(Info(vec![("host".into(), "h".into())]))),
        &expect![[r#"
            {"ok":{"info":[["host","h"]]}}
        "#]],
    );
    check_answer(
        &Answer::Warning("g.cfg:8: warning: dhcp: ignored".into()),
        &expect![[r#"
            {"warning":"g.cfg:8: warning: dhcp: ignored"}
        "#]],
    );
    check_answer(
        &Answer::Error("g.cfg:7: memroy: unknown key".into()),
        &expect![[r#"
            {"error":"g.cfg:7: memroy: unknown key"}
        "#]],
    );
}

#[test]
fn a_listed_config_leaves_out_what_is_not_set() {
    let listed = api::ListedConfig { domid: None, ..api::ListedConfig::default() };
    check_answer(
        &Answer::Ok(Reply::Configs(vec![listed])),
        &expect![[r#"
            {"ok":{"configs":[{"domid":null,"config":{"c_info":{"type":"","name":"","uuid":""},"b_info":{"max_vcpus":0,"avail_vcpus":[],"max_memkb":0,"target_memkb":0}}}]}}
        "#]],
    );
}

fn check_refused(line: &[u8], expected: &Expect) {
    expected.assert_eq(&decode_request(line).unwrap_err().to_string());
}

#[test]
fn a_request_that_is_not_understood_says_why() {
    check_refused(
        br#"{"version":2,"op":"teleport"}"#,
        &expect!["protocol version 2, expected 1: use xy and xylemd of the same release"],
    );
    check_refused(
        br#"{"op":"list"}"#,
        &expect!["cannot decode the message: missing field `version` at line 1 column 13"],
    );
    check_refused(
        b"hello",
        &expect!["cannot decode the message: expected value at line 1 column 1"],
    );
    check_refused(
        br#"{"version":1,"op":"destroy"}"#,
        &expect!["cannot decode the message: missing field `target`"],
    );
    check_refused(&vec![b' '; LINE_BYTES_MAX + 1], &expect!["the message exceeds 16777216 bytes"]);
}
