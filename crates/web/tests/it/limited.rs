//! Clients that are limited to VMs with a tag: they see and change nothing of others.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use api::Role;
use serde_json::{Value, json};

use crate::served::{Folder, Said, Web, detail, host_at, limited, limited_line, said, shared_host};

/// Runs `xylem-web tag` with the host's file.
pub(crate) fn tag(web: &Web, socket: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xylem-web"))
        .arg("tag")
        .args(arguments)
        .arg("--tags")
        .arg(web.folder.path("tags"))
        .arg("--socket")
        .arg(socket)
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

fn send(web: &Web, role: Role, method: &str, path: &str, body: &str) -> Said {
    let bearer = format!("Bearer {}", limited(role));
    said(web.send(method, path, None, &[("authorization", &bearer)], body))
}

fn get(web: &Web, path: &str) -> Said {
    send(web, Role::Admin, "GET", path, "")
}

fn ask(web: &Web, role: Role, op: &str, body: &Value) -> Said {
    send(web, role, "POST", &format!("/v1/requests/{op}"), &body.to_string())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_until_seen(web: &Web, count: usize) {
    wait_until("it sees its VMs", || get(web, "/v1/vms").1.as_array().unwrap().len() == count);
}

/// A host where `web-0` and `db-1` are the team's, and others are not.
fn host(folder: &Folder) -> Web {
    let socket = folder.path("sock");
    host_at(&socket, 6);
    let web = Web::before(&socket, &["--xenapi"]);
    for name in ["web-0", "db-1"] {
        tag(&web, &socket, &["add", name, "team-a"]);
    }
    let other =
        vms(&web).iter().find(|it| !is_own(it)).unwrap()["uuid"].as_str().unwrap().to_owned();
    tag(&web, &socket, &["add", &other, "team-b"]);
    wait_until_seen(&web, 2);
    web
}

/// All VMs, as an admin of the host sees them.
fn vms(web: &Web) -> Vec<Value> {
    let mut all = web.get("/v1/vms", Some(Role::Viewer)).1.as_array().unwrap().clone();
    // Operations come and go.
    all.iter_mut().for_each(|it| drop(it.as_object_mut().unwrap().remove("operations")));
    all
}

fn is_own(vm: &Value) -> bool {
    ["web-0", "db-1"].contains(&vm["name"].as_str().unwrap())
}

/// What another VM is called, and what only it is called.
fn others(web: &Web) -> Vec<String> {
    let all = vms(web);
    let others = all.iter().filter(|it| !is_own(it));
    others.flat_map(|it| ["name", "uuid"].map(|key| it[key].as_str().unwrap().to_owned())).collect()
}

#[test]
fn nothing_that_is_read_tells_of_other_vms() {
    let folder = Folder::new();
    let web = host(&folder);
    let hidden = others(&web);
    assert_eq!(hidden.len(), 8);
    let tells_nothing = |what: &str, (status, answer): Said| {
        let text = answer.to_string();
        let told = hidden.iter().find(|it| text.contains(*it));
        assert!(told.is_none(), "{what}: {status} {told:?} in {text}");
        (status, answer)
    };
    let own = ["/v1/vms", "/v1/vms/web-0", "/v1/vms/db-1/devices", "/v1/objects", "/v1/operations"];
    for path in
        own.into_iter().chain(["/v1/tasks", "/metrics", "/v1/history?of=web-0", "/v1/session"])
    {
        let (status, answer) = tells_nothing(path, get(&web, path));
        assert_eq!(status, 200, "{path}: {answer}");
    }
    for path in ["/v1/domains", "/v1/srs", "/v1/vdis", "/v1/networks"] {
        assert_eq!(get(&web, path), (200, json!([])), "{path}");
    }
    let networks = web.get("/v1/networks", Some(Role::Viewer)).1;
    let network = format!("/v1/networks/{}", networks[0]["name"].as_str().unwrap());
    for path in ["/v1/host", &network, &format!("{network}/interfaces")] {
        assert_eq!(web.get(path, Some(Role::Viewer)).0, 200, "{path}");
        assert_eq!(tells_nothing(path, get(&web, path)).0, 404, "{path}");
    }
    for path in ["/v1/doctor", "/v1/bugreport", "/v1/history", "/v1/vdis/main:web-0/data"] {
        let (status, answer) = tells_nothing(path, get(&web, path));
        assert_eq!(status, 403, "{path}: {answer}");
    }
    let operations = get(&web, "/v1/operations").1;
    assert!(!operations.as_array().unwrap().is_empty());
    let id = &operations[0]["id"];
    assert_eq!(get(&web, &format!("/v1/operations/{id}")).0, 200);
    let metrics = get(&web, "/metrics").1;
    wait_until("a sample has come", || get(&web, "/metrics").1.to_string().contains("web-0"));
    assert!(!metrics.to_string().contains("xylem_host_"), "{metrics}");
    for (op, count) in [("list", 2), ("vms", 2), ("configs", 2), ("uptime", 2), ("operations", 2)] {
        let (status, answer) = tells_nothing(op, ask(&web, Role::Admin, op, &json!({})));
        let rows = answer["ok"].as_object().map(|it| it.values().next().unwrap());
        let rows = rows.and_then(|it| it.as_array().or_else(|| it["rows"].as_array()));
        assert!(status == 200 && rows.is_some_and(|it| it.len() >= count), "{op}: {answer}");
        assert!(op == "operations" || rows.unwrap().len() == count, "{op}: {answer}");
    }
    let (status, vcpus) = ask(&web, Role::Viewer, "vcpu-list", &json!({}));
    assert!(status == 200 && vcpus.to_string().contains("web-0"), "{vcpus}");
    tells_nothing("vcpu-list", (status, vcpus));
    assert_eq!(get(&web, "/v1/session").1["tags"], json!(["team-a"]));
    // Revisions and counts are of what it sees.
    let objects = get(&web, "/v1/objects").1;
    let count = objects["changes"].as_array().unwrap().len() as u64;
    let before = objects["cursor"].as_str().unwrap().to_owned();
    assert_eq!(web.post("/v1/vms/cache-2/pause", Role::Operator, "").0, 200);
    wait_until("it is paused", || {
        web.get("/v1/vms/cache-2", Some(Role::Viewer)).1["state"] == "paused"
    });
    let after = get(&web, &format!("/v1/objects?since={before}")).1;
    assert_eq!((&after["changes"], after["cursor"].as_str()), (&json!([]), Some(&*before)));
    assert!(before.starts_with(&format!("{count}-")), "{count} {before}");
}

/// All texts in it, with another name.
fn renamed(it: &Value, name: &str) -> Value {
    match it {
        Value::String(text) => text.replace(name, "nowhere").into(),
        Value::Array(all) => all.iter().map(|it| renamed(it, name)).collect(),
        Value::Object(all) => {
            all.iter().map(|(key, it)| (key.clone(), renamed(it, name))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn another_vm_is_as_one_that_is_not_there_and_stays_as_it_is() {
    let folder = Folder::new();
    let web = host(&folder);
    let before: Vec<_> = vms(&web);
    let others: Vec<_> = before.iter().filter(|it| !is_own(it)).collect();
    let names = |vm: &Value| {
        let domid = vm["domid"].as_u64().unwrap().to_string();
        [vm["name"].as_str().unwrap().to_owned(), vm["uuid"].as_str().unwrap().to_owned(), domid]
    };
    // Words of a VM that is not there, whose name is put in. A status may have the same digits as a domid.
    let like = |of: &str, (status, answer): Said| (status, renamed(&answer, of));
    for of in names(others[0]) {
        for path in ["", "/devices"] {
            let path = |vm: &str| format!("/v1/vms/{vm}{path}");
            let there = like(&of, get(&web, &path(&of)));
            assert_eq!(there.0, 404);
            assert_eq!(there, like("nowhere", get(&web, &path("nowhere"))));
        }
        let history = |vm: &str| get(&web, &format!("/v1/history?of={vm}"));
        assert_eq!(like(&of, history(&of)), like("nowhere", history("nowhere")));
        for action in
            ["start", "shutdown", "reboot", "destroy", "pause", "unpause", "suspend", "resume"]
        {
            let act = |vm: &str| {
                send(&web, Role::Operator, "POST", &format!("/v1/vms/{vm}/{action}"), "")
            };
            let refused = like(&of, act(&of));
            assert_eq!(refused, like("nowhere", act("nowhere")), "{action}");
            assert_eq!(refused.0, 404);
        }
        let requests = |vm: &str| {
            [
                ("pause", json!({ "target": vm })),
                ("list", json!({ "targets": [vm] })),
                ("list", json!({ "targets": ["web-0", vm] })),
                ("shutdown", json!({ "targets": { "these": [vm] } })),
                ("shutdown", json!({ "targets": { "these": ["web-0", vm] } })),
                ("wait-for", json!({ "target": vm, "state": "running" })),
                ("block-list", json!({ "targets": [vm] })),
                ("trace", json!({ "target": vm })),
                ("explain", json!({ "target": vm })),
                ("config-text", json!({ "target": vm })),
                ("undefine", json!({ "target": vm })),
                ("tune", json!({ "do": "sysrq", "target": vm, "key": "h" })),
                ("checkpoint", json!({ "do": "checkpoint-list", "vms": [vm] })),
                ("domid", json!({ "name": vm })),
            ]
        };
        for ((op, body), (_, nowhere)) in requests(&of).into_iter().zip(requests("nowhere")) {
            let refused = like(&of, ask(&web, Role::Admin, op, &body));
            assert_eq!(refused.0, 404, "{op} {refused:?}");
            assert_eq!(refused, like("nowhere", ask(&web, Role::Admin, op, &nowhere)), "{op}");
        }
    }
    let others_operation = web.get("/v1/operations", Some(Role::Viewer)).1;
    let all = others_operation.as_array().unwrap();
    let other = all.iter().find(|it| it["uuid"] == others[0]["uuid"]).unwrap();
    assert_eq!(get(&web, &format!("/v1/operations/{}", other["id"])).0, 404);
    assert_eq!(vms(&web), before, "nothing has changed");
}

#[test]
fn what_is_of_the_host_is_refused_and_all_means_all_of_its_own() {
    let folder = Folder::new();
    let web = host(&folder);
    let create =
        json!({ "file": "n", "config_text": "name='n'\nkernel='/boot/vmlinuz'\n", "cwd": "/" });
    for (op, body) in [
        ("create", create.clone()),
        ("check", create.clone()),
        ("define", create),
        ("start-all", json!({})),
        ("host-shutdown", json!({})),
        ("storage", json!({ "do": "sr-list" })),
        ("storage", json!({ "do": "vdi-destroy", "vdi": "main:web-0" })),
        ("peer", json!({ "do": "list" })),
        ("limits", json!({ "host": 1 })),
        ("limits", json!({})),
        ("info", json!({})),
        ("counters", json!({})),
        ("traffic", json!({})),
        ("events", json!({})),
        ("objects", json!({})),
        ("host", json!({ "do": "console" })),
        ("host", json!({ "do": "pools" })),
        ("store", json!({ "do": "stats" })),
        ("sched", json!({ "do": "pools", "scheduler": "credit2" })),
        ("tune", json!({ "do": "rename", "target": "web-0", "name": "cache-2" })),
        ("tune", json!({ "do": "mem-set", "target": "web-0", "kib": 1 })),
        ("block-attach", json!({ "target": "web-0", "disk": "phy:/dev/sda,xvdz,w", "cwd": "/" })),
        ("save", json!({ "target": "web-0", "path": "/etc/passwd", "cwd": "/" })),
        ("qemu-monitor-command", json!({ "target": "web-0", "command": "info" })),
    ] {
        let refused = ask(&web, Role::Admin, op, &body);
        assert_eq!(refused.0, 403, "{op}: {refused:?}");
        assert!(detail(&refused).ends_with("you are limited to VMs with a tag"), "{refused:?}");
    }
    let log = web.log();
    assert!(
        log.contains(r#""who":"limited-admin","from":"127.0.0.1","what":"start-all""#),
        "{log}"
    );
    // A role is what it is for others.
    let refused = send(&web, Role::Viewer, "POST", "/v1/vms/web-0/pause", "");
    assert_eq!(
        detail(&refused),
        "not permitted: this needs the role operator, and yours is viewer"
    );
    assert_eq!(send(&web, Role::Operator, "POST", "/v1/vms/web-0/pause", "").0, 200);
    let done = ask(&web, Role::Operator, "shutdown", &json!({ "targets": "all", "wait": "asked" }));
    assert_eq!(done.0, 200, "{done:?}");
    wait_until("its own are down", || {
        vms(&web).iter().filter(|it| is_own(it)).all(|it| it["state"] != "running")
    });
    assert!(vms(&web).iter().filter(|it| !is_own(it)).all(|it| it["state"] == "running"));
    let body = json!({ "jsonrpc": "2.0", "method": "session.login_with_password", "id": 1,
        "params": ["limited-admin", limited(Role::Admin)] });
    let refused = said(web.send("POST", "/jsonrpc", None, &[], &body.to_string()));
    assert_eq!(refused.1["error"]["message"], "SESSION_AUTHENTICATION_FAILED");
    assert_eq!(get(&web, "/rrd_updates?start=0").0, 403);
}

#[test]
fn a_vm_that_loses_its_tag_is_gone_for_the_client() {
    let folder = Folder::new();
    let web = host(&folder);
    let bearer = format!("Bearer {}", limited(Role::Operator));
    let keyed = |prefer: &str| {
        let headers =
            [("authorization", &*bearer), ("idempotency-key", prefer), ("prefer", prefer)];
        said(web.send("POST", "/v1/vms/web-0/pause", None, &headers, ""))
    };
    assert_eq!(keyed("wait").0, 200);
    assert_eq!(keyed("respond-async").0, 202);
    let tasks = || send(&web, Role::Operator, "GET", "/v1/tasks", "").1;
    assert_eq!(tasks().as_array().unwrap().len(), 1);
    let uuid = get(&web, "/v1/vms/web-0").1["uuid"].as_str().unwrap().to_owned();
    let response = web.send("GET", "/v1/events", None, &[("authorization", &bearer)], "");
    let mut lines =
        BufReader::new(response.into_body().into_reader()).lines().map_while(Result::ok);
    assert!(lines.any(|it| it == "event: current"));
    let began = Instant::now();
    tag(&web, &folder.path("sock"), &["remove", "web-0", "team-a"]);
    let gone = format!(r#""key":"{uuid}","class":"vm","object":null"#);
    assert!(lines.any(|it| it.contains(&gone)));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(get(&web, "/v1/vms").1.as_array().unwrap().len(), 1);
    for path in
        ["/v1/vms/web-0", &format!("/v1/history?of={uuid}"), &format!("/v1/vms/{uuid}/devices")]
    {
        assert_eq!(get(&web, path).0, 404, "{path}");
    }
    assert_eq!(keyed("wait").0, 404, "it is not told again what it was told");
    assert_eq!(tasks(), json!([]));
    // Who gets other tags reads anew.
    let clients = std::fs::read_to_string(web.folder.path("clients")).unwrap();
    let before = limited_line(Role::Operator, &["team-a"]);
    let after = limited_line(Role::Operator, &["team-b"]);
    std::fs::write(web.folder.path("clients"), clients.replace(&before, &after)).unwrap();
    assert!(lines.all(|it| !it.contains("team-b")), "it ends");
    let vms = || send(&web, Role::Operator, "GET", "/v1/vms", "").1;
    wait_until("it sees the other team's", || vms()[0]["name"] != "db-1" && !vms()[0].is_null());
    std::fs::write(web.folder.path("tags"), "team-a web-0\n").unwrap();
    wait_until("a file that is not understood gives nobody a right", || vms() == json!([]));
}

#[test]
fn a_task_that_waits_for_its_turn_is_not_done_for_a_vm_that_has_lost_its_tag() {
    let folder = Folder::new();
    let web = host(&folder);
    let bearer = format!("Bearer {}", limited(Role::Operator));
    let begin = |op: &str, body: &Value| {
        let headers = [("authorization", &*bearer), ("prefer", "respond-async")];
        let path = format!("/v1/requests/{op}");
        assert_eq!(web.send("POST", &path, None, &headers, &body.to_string()).status(), 202);
    };
    let wait = json!({ "target": "web-0", "state": "paused", "timeout_s": 6 });
    (0..8).for_each(|_| begin("wait-for", &wait));
    begin("pause", &json!({ "target": "web-0" }));
    tag(&web, &folder.path("sock"), &["remove", "web-0", "team-a"]);
    let refused = r#""what":"pause","of":""#;
    let line = || web.log().lines().find(|it| it.contains(refused)).map(str::to_owned);
    wait_until("its turn comes", || line().is_some());
    let line = line().unwrap();
    assert!(line.contains(r#""result":"it is not permitted any more""#), "{line}");
    assert_eq!(web.get("/v1/vms/web-0", Some(Role::Viewer)).1["state"], "running");
}

#[test]
fn tags_are_given_by_name_or_uuid_and_listed() {
    let web = Web::new();
    let run = |arguments: &[&str]| tag(&web, shared_host(), arguments);
    run(&["add", "db-1", "a"]);
    run(&["add", "db-1", "a"]);
    run(&["add", "db-1", "b"]);
    run(&["add", "00000000-0000-0000-0000-00000000ABCD", "a"]);
    let list = run(&["list"]);
    let lines: Vec<_> = list.lines().map(|it| it.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(lines.iter().any(|it| it[1..] == ["db-1", "a,b"]), "{list}");
    assert!(lines.iter().any(|it| *it == ["00000000-0000-0000-0000-00000000abcd", "a"]), "{list}");
    run(&["remove", "db-1", "a"]);
    assert!(run(&["list"]).lines().any(|it| it.ends_with(" b")), "{list}");
}
