//! Each call that is documented, and what it answers.

use std::collections::BTreeSet;

use api::Role;
use serde_json::{Value, json};

use crate::served::{Folder, Web, detail, host_at, said};

/// What is sent with a request that needs more than nothing.
fn body_of(op: &str) -> Value {
    let target = json!({ "target": "db-1" });
    let create = json!({
        "file": "new.cfg",
        "config_text": "name = 'new'\nkernel = '/boot/vmlinuz'\nmemory = 8\n",
        "cwd": "/",
    });
    match op {
        "create" | "check" => create,
        "define" => json!({
            "file": "other.cfg",
            "config_text": "name = 'other'\nkernel = '/boot/vmlinuz'\nmemory = 8\n",
            "cwd": "/",
        }),
        "start" | "undefine" => json!({ "target": "other" }),
        "pause" | "unpause" | "suspend" | "resume" => json!({ "target": "web-0" }),
        "reboot" => json!({ "targets": { "these": ["web-0"] } }),
        "shutdown" => json!({ "targets": { "these": ["cache-2"] } }),
        "disown" => json!({ "target": "queue-3" }),
        "save" => json!({ "target": "web-0", "path": "/srv/saved", "cwd": "/" }),
        "dump-core" => json!({ "target": "db-1", "path": "/srv/core", "cwd": "/" }),
        "restore" => json!({ "path": "/srv/saved", "cwd": "/" }),
        "adopt" => json!({ "target": "0", "config_text": "", "cwd": "/" }),
        "block-list" | "network-list" | "channel-list" | "keyboard-list" => {
            json!({ "targets": ["web-0"] })
        }
        "domid" => json!({ "name": "web-0" }),
        "domname" => json!({ "domid": 1 }),
        "plan" => json!({ "of": { "destroy": { "target": "db-1" } } }),
        "tune" => json!({ "do": "vcpu-set", "target": "db-1", "vcpus": 1 }),
        "sched" => json!({ "do": "pools", "scheduler": "credit2" }),
        "migrate" => json!({ "target": "db-1", "to": "peer" }),
        "migrate-settle" => json!({ "target": "db-1", "runs": "here" }),
        "peer" => json!({ "do": "list" }),
        "checkpoint" => json!({ "do": "checkpoint-list" }),
        "qemu-monitor-command" => json!({ "target": "db-1", "command": "info block" }),
        "storage" => json!({ "do": "sr-list" }),
        "store" => json!({ "do": "tree", "path": "/local/domain", "depth": 1 }),
        "block-attach" => json!({ "target": "web-0", "disk": "/srv/none,raw,xvdz,w", "cwd": "/" }),
        "block-detach" => json!({ "target": "web-0", "disk": "xvdz" }),
        "cd-eject" => json!({ "target": "web-0", "drive": "hdc" }),
        "cd-insert" => json!({ "target": "web-0", "drive": "hdc", "path": "/srv/cd", "cwd": "/" }),
        "network-attach" => json!({ "target": "web-0", "vif": "bridge=xenbr0" }),
        "network-detach" => json!({ "target": "web-0", "vif": "1" }),
        "keyboard-attach" => json!({ "target": "web-0", "keyboard": "" }),
        "keyboard-detach" => json!({ "target": "web-0", "keyboard": "0" }),
        "host" => json!({ "do": "defaults" }),
        "wait-for" => json!({ "target": "web-0", "state": "running", "timeout_s": 1 }),
        "trace" => json!({ "target": "1" }),
        "relay" => json!({ "do": "console", "target": "web-0" }),
        "migrate-receive" => json!({ "speaks": "own" }),
        "ping" | "list" | "configs" | "info" | "counters" | "activity" | "traffic" | "vms"
        | "start-all" | "events" | "objects" | "operations" | "limits" | "vcpu-list" | "uptime"
        | "host-shutdown" => json!({}),
        _ => target,
    }
}

/// What comes before all others, and after them.
const FIRST: [&str; 6] = ["define", "start", "pause", "unpause", "suspend", "resume"];
const LAST: [&str; 9] = [
    "undefine",
    "dump-core",
    "reboot",
    "shutdown",
    "disown",
    "save",
    "restore",
    "destroy",
    "host-shutdown",
];

/// Requests that a simulated host cannot grant, or that mean what is not there.
const REFUSED: [&str; 13] = [
    "adopt",
    "block-attach",
    "block-detach",
    "cd-eject",
    "cd-insert",
    "keyboard-attach",
    "keyboard-detach",
    "migrate",
    "migrate-receive",
    "migrate-settle",
    "peer",
    "qemu-monitor-command",
    "relay",
];

#[test]
fn each_documented_request_is_answered() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 5);
    let web = Web::before(&socket, &[]);
    let (status, document) = web.get("/v1/openapi.json", None);
    assert_eq!(status, 200);
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let ops: Vec<_> = paths.keys().filter_map(|it| it.strip_prefix("/v1/requests/")).collect();
    assert!(ops.len() > 55, "{ops:?}");
    let rest = ops.iter().filter(|op| !FIRST.contains(op) && !LAST.contains(op));
    let mut refused = BTreeSet::new();
    for op in FIRST.iter().chain(rest).chain(&LAST) {
        assert!(ops.contains(op), "{op} is not described");
        let (status, said) =
            web.post(&format!("/v1/requests/{op}"), Role::Admin, &body_of(op).to_string());
        match status {
            200 => assert!(said["ok"] != Value::Null, "{op}: {said}"),
            400 | 409 => {
                let why = said["detail"].as_str().unwrap();
                println!("{op}: {why}");
                refused.insert(*op);
            }
            other => panic!("{op}: {other} {said}"),
        }
    }
    assert_eq!(refused, BTreeSet::from(REFUSED));
}

#[test]
fn objects_are_read_by_class_part_and_field() {
    let web = Web::new();
    let get = |path: &str| web.get(path, Some(Role::Viewer));
    let (_, all) = get("/v1/vms?fields=name,uuid");
    let all = all.as_array().unwrap().clone();
    assert_eq!(all.len(), 12);
    assert_eq!(all[0].as_object().unwrap().len(), 2);
    // In parts.
    let (mut path, mut read) = ("/v1/vms?fields=name,uuid&limit=5".to_owned(), Vec::new());
    loop {
        let response = web.send("GET", &path, Some(Role::Viewer), &[], "");
        let next = response.headers().get("xylem-next").map(|it| it.to_str().unwrap().to_owned());
        read.extend(said(response).1.as_array().unwrap().clone());
        let Some(next) = next else { break };
        path = format!("/v1/vms?fields=name,uuid&limit=5&after={next}");
    }
    assert_eq!(read, all);
    let (_, vm) = get("/v1/vms/web-0");
    let uuid = vm["uuid"].as_str().unwrap();
    assert_eq!(get(&format!("/v1/vms/{uuid}")).1, vm);
    assert_eq!(get(&format!("/v1/vms/{}", vm["domid"])).1, vm);
    let (_, devices) = get("/v1/vms/web-0/devices");
    let kinds: Vec<_> = devices.as_array().unwrap().iter().map(|it| it["kind"].clone()).collect();
    assert_eq!(kinds, ["vbd", "vif"]);
    assert_eq!(get("/v1/domains").1[0]["name"], "Domain-0");
    assert_eq!(get("/v1/srs").1[0]["name"], "files");
    let (_, networks) = get("/v1/networks?fields=name,kind,ports,exists");
    let names: Vec<_> = networks.as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["inside", "xenbr0"]);
    let ports = json!({ "name": "xenbr0", "kind": "bridge", "exists": true, "ports": ["eno1"] });
    assert_eq!(networks[1], ports);
    let (_, network) = get("/v1/networks/xenbr0");
    let (_, interfaces) = get("/v1/networks/xenbr0/interfaces");
    let interfaces = interfaces.as_array().unwrap();
    assert_eq!(network["interfaces"], interfaces.len());
    assert!(interfaces.contains(&devices[1]), "{interfaces:?}");
    assert_eq!(get("/v1/networks/inside/interfaces").1, json!([]));
    let missing = get("/v1/networks/nowhere/interfaces");
    assert_eq!((missing.0, detail(&missing)), (404, "nowhere is not a network here"));
    let (_, host) = get("/v1/host");
    assert_eq!((&host["name"], &host["cpus"]), (&json!("simulated"), &json!(4)));
    assert!(host["memory_free_mib"].as_u64() < host["memory_mib"].as_u64(), "{host}");
    assert_eq!(get("/v1/host?fields=cpus").1, json!({ "cpus": 4 }));
    let (_, operations) = get("/v1/operations?limit=1");
    let id = &operations[0]["id"];
    let (status, trace) = get(&format!("/v1/operations/{id}"));
    assert_eq!((status, &trace["operation"]["id"]), (200, id));
    let missing = get("/v1/vms/nobody");
    assert_eq!((missing.0, detail(&missing)), (404, "nobody is not a VM here"));
    assert_eq!(get("/v1/operations/999999").0, 404);
    assert_eq!(get("/v1/nothing").0, 404);
    let wrong = get("/v1/objects?class=cow");
    assert_eq!(wrong.0, 400);
    assert_eq!(said(web.send("PUT", "/v1/vms", Some(Role::Admin), &[], "")).0, 405);
}

#[test]
fn vdis_are_objects_and_whoever_has_made_one_sees_it() {
    let web = Web::new();
    let get = |path: &str| said(web.send("GET", path, Some(Role::Admin), &[], ""));
    let ask = |body: Value| web.post("/v1/requests/storage", Role::Admin, &body.to_string()).0;
    let before = get("/v1/vdis").1.as_array().unwrap().len();
    assert_eq!(ask(json!({ "do": "vdi-create", "vdi": "files:new", "bytes": 1 << 20 })), 200);
    let (_, vdi) = get("/v1/vdis/files:new?fields=sr,name,bytes,users");
    let expected = json!({ "sr": "files", "name": "new", "bytes": 1 << 20, "users": [] });
    assert_eq!(vdi, expected);
    assert_eq!(get("/v1/vdis").1.as_array().unwrap().len(), before + 1);
    let changes = get("/v1/objects?class=vdi").1;
    let keys: Vec<_> = changes["changes"].as_array().unwrap().iter().map(|it| &it["key"]).collect();
    assert!(keys.contains(&&json!("files:new")), "{keys:?}");
    assert_eq!(ask(json!({ "do": "vdi-destroy", "vdi": "files:new" })), 200);
    let missing = get("/v1/vdis/files:new");
    let words = "files:new is not a VDI here; it is written SR:VDI";
    assert_eq!((missing.0, detail(&missing)), (404, words));
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    let web = Web::new();
    for path in ["/v1/vms", "/v1/vms/web-0", "/v1/networks", "/v1/networks/xenbr0"] {
        let answer = |tag: &str| {
            let response = web.send("GET", path, Some(Role::Viewer), &[("if-none-match", tag)], "");
            let tag = response.headers()["etag"].to_str().unwrap().to_owned();
            (response.status().as_u16(), tag)
        };
        let (mut status, mut tag) = answer("\"x\"");
        assert_eq!(status, 200);
        // What changes meanwhile, as on a host whose VMs have just begun, has another tag.
        for _ in 0..50 {
            let (again, next) = answer(&tag);
            assert_eq!(again == 304, next == tag, "{path}: {again}");
            (status, tag) = (again, next);
            if status == 304 {
                break;
            }
        }
        assert_eq!(status, 304, "{path} changes all the time");
    }
}

#[test]
fn reports_and_disks_are_refused_with_their_reasons() {
    let web = Web::new();
    let ask = |method: &str, path: &str, role, body: &str| {
        let said = said(web.send(method, path, Some(role), &[], body));
        (said.0, detail(&said).to_owned())
    };
    let small = "this needs the role admin, and yours is operator";
    let nobody = "nobody makes reports about a simulated host";
    for (method, path, role, status, words) in [
        ("GET", "/v1/doctor", Role::Viewer, 409, nobody),
        ("GET", "/v1/bugreport", Role::Operator, 403, small),
        ("GET", "/v1/bugreport", Role::Admin, 409, nobody),
        ("GET", "/v1/vdis/local:x/data", Role::Operator, 403, small),
        ("PUT", "/v1/vdis/local:x/data", Role::Operator, 403, small),
        ("GET", "/v1/vdis/none:x/data", Role::Admin, 409, "none: no such SR"),
        ("PUT", "/v1/vdis/none:x/data", Role::Admin, 409, "none: no such SR"),
        ("GET", "/v1/vdis/x/data", Role::Admin, 409, "it is written SR:VDI"),
    ] {
        let (got, why) = ask(method, path, role, "");
        assert_eq!(got, status, "{method} {path}: {why}");
        assert!(why.contains(words), "{method} {path}: {why}");
    }
}

#[test]
fn the_store_is_read_in_parts_and_written_by_admins() {
    let web = Web::new();
    let ask = |role, body: Value| web.post("/v1/requests/store", role, &body.to_string());
    let values: Vec<Value> =
        (0..30).map(|it| json!({ "path": format!("/t/{it}"), "value": "a\\n" })).collect();
    assert_eq!(ask(Role::Admin, json!({ "do": "write", "values": values })).0, 200);
    let (mut after, mut paths) = (Value::Null, Vec::new());
    loop {
        let (_, said) =
            ask(Role::Admin, json!({ "do": "tree", "path": "/t", "limit": 7, "after": after }));
        let part = &said["ok"]["store-tree"];
        let nodes = part["nodes"].as_array().unwrap();
        assert!(nodes.len() <= 7);
        paths.extend(nodes.iter().map(|it| it["path"].as_str().unwrap().to_owned()));
        after = part["next"].clone();
        // What is removed meanwhile, also the last of a part, does not stop it.
        if paths.len() == 14 {
            ask(Role::Admin, json!({ "do": "rm", "paths": [paths[13], "/t/29"] }));
        }
        if after.is_null() {
            break;
        }
    }
    let all: Vec<String> = (0..29).map(|it| format!("/t/{it}")).collect();
    assert_eq!((paths[0].as_str(), &paths[1..]), ("/t", &all[..]));
    let (_, said) = ask(Role::Admin, json!({ "do": "tree", "path": "/t/0" }));
    let node = json!({ "path": "/t/0", "value": "a\\n", "permissions": ["n0"], "children": 0 });
    assert_eq!(said["ok"]["store-tree"], json!({ "nodes": [node], "next": null }));
    // Bounds, and roles.
    let many: Vec<String> = (0..65).map(|it| format!("/t/{it}")).collect();
    for (role, body, status, words) in [
        (Role::Admin, json!({ "do": "read", "paths": many }), 409, "64 at most"),
        (Role::Admin, json!({ "do": "read", "paths": [] }), 409, "no path"),
        (Role::Admin, json!({ "do": "tree", "path": "/t", "after": "x" }), 409, "not the next"),
        (Role::Admin, json!({ "do": "chmod", "path": "/t", "permissions": ["x"] }), 409, "not a"),
        (Role::Operator, json!({ "do": "read", "paths": ["/t"] }), 403, "role admin"),
        (Role::Operator, json!({ "do": "tree", "path": "/" }), 403, "role admin"),
    ] {
        let (got, said) = ask(role, body.clone());
        assert_eq!(got, status, "{body}: {said}");
        assert!(said["detail"].as_str().unwrap().contains(words), "{body}: {said}");
    }
    let (status, said) = ask(Role::Viewer, json!({ "do": "quota", "domid": 1 }));
    assert_eq!(status, 200, "{said}");
    let rows = said["ok"]["store-quota"].as_array().unwrap();
    let nodes = rows.iter().find(|it| it["name"] == "nodes").unwrap();
    assert!(nodes["used"].as_u64().unwrap() > 0 && nodes["limit"].as_u64().unwrap() > 0, "{said}");
}
