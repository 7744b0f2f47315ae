//! Requests that are sent twice, and those that nobody waits for.

use std::time::{Duration, Instant};

use api::Role;
use serde_json::Value;

use crate::served::{Folder, Web, host_at, said};

const CREATE: &str = r#"{"file":"n.cfg","config_text":"name = 'n'\nkernel = '/boot/vmlinuz'\nmemory = 8\n","cwd":"/"}"#;

#[test]
fn a_request_with_a_key_is_done_once() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 1);
    let web = Web::before(&socket, &[]);
    let create = |key: &str, body: &str| {
        let headers = [("idempotency-key", key)];
        web.send("POST", "/v1/requests/create", Some(Role::Admin), &headers, body)
    };
    let first = create("k1", CREATE);
    assert!(first.headers().get("idempotency-replayed").is_none());
    let first = said(first);
    assert_eq!(first.0, 200, "{first:?}");
    let again = create("k1", CREATE);
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    assert_eq!(said(again), first);
    let other = said(create("k1", &CREATE.replace("'n'", "'m'")));
    assert_eq!(other.0, 422, "{other:?}");
    // Without it a second one is refused, and so may be sent again.
    assert_eq!(web.post("/v1/requests/create", Role::Admin, CREATE).0, 409);
    assert_eq!(said(create("k2", CREATE)).0, 409);
    assert_eq!(said(create("k2", CREATE)).0, 409);
    let log = web.log();
    assert_eq!(log.lines().filter(|it| it.contains(r#""result":"ok""#)).count(), 1, "{log}");
}

fn ended(web: &Web, task: &str, role: Role) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (status, said) = web.get(task, Some(role));
        assert_eq!(status, 200, "{said}");
        if said["status"] != "pending" {
            return said;
        }
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_task_is_followed_and_cancelled() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 1);
    let web = Web::before(&socket, &[]);
    let begin = |path: &str, role: Role, body: &str| {
        let headers = [("prefer", "respond-async")];
        let response = web.send("POST", path, Some(role), &headers, body);
        assert_eq!(response.status(), 202);
        response.headers()["location"].to_str().unwrap().to_owned()
    };
    let task = ended(&web, &begin("/v1/requests/create", Role::Admin, CREATE), Role::Admin);
    assert_eq!((&task["status"], &task["what"]), (&"success".into(), &"create".into()));
    assert_eq!(task["result"]["created"]["name"], "n");
    let task = ended(&web, &begin("/v1/requests/create", Role::Admin, CREATE), Role::Admin);
    assert_eq!(task["status"], "failure");
    assert!(task["detail"].as_str().unwrap().contains('n'), "{task}");
    let wait = r#"{"target":"n","state":"paused"}"#;
    let waits = begin("/v1/requests/wait-for", Role::Viewer, wait);
    assert_eq!(web.get(&waits, Some(Role::Operator)).0, 404, "it is not the operator's");
    assert_eq!(web.send("DELETE", &waits, Some(Role::Viewer), &[], "").status(), 204);
    assert_eq!(ended(&web, &waits, Role::Viewer)["status"], "cancelled");
    assert_eq!(web.send("DELETE", &waits, Some(Role::Viewer), &[], "").status(), 409);
    assert_eq!(web.get("/v1/tasks", Some(Role::Admin)).1.as_array().unwrap().len(), 3);
    assert_eq!(web.get("/v1/tasks", Some(Role::Viewer)).1.as_array().unwrap().len(), 1);
}

#[test]
fn the_lines_of_the_local_protocol_come_as_they_are() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 1);
    let web = Web::before(&socket, &[]);
    let headers = [("accept", "application/x-ndjson")];
    let body = CREATE.replace("\"cwd\"", "\"progress\":true,\"cwd\"");
    let response = web.send("POST", "/v1/requests/create", Some(Role::Admin), &headers, &body);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.into_body().read_to_string().unwrap();
    let lines: Vec<_> = text.lines().map(|it| api::decode_answer(it.as_bytes()).unwrap()).collect();
    let (last, first) = lines.split_last().unwrap();
    assert!(matches!(last, api::Answer::Ok(api::Reply::Created(_))), "{last:?}");
    assert!(first.iter().any(|it| matches!(it, api::Answer::Progress(_))), "{first:?}");
}

#[test]
fn a_client_reads_what_it_has_changed() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 1);
    let web = Web::before(&socket, &[]);
    assert_eq!(web.post("/v1/requests/create", Role::Admin, CREATE).0, 200);
    let state = |role: Role| {
        let (status, vm) = web.get("/v1/vms/n", Some(role));
        assert_eq!(status, 200, "{vm}");
        vm["state"].clone()
    };
    for (action, becomes) in [("pause", "paused"), ("unpause", "running")].repeat(4) {
        assert_eq!(web.post(&format!("/v1/vms/n/{action}"), Role::Admin, "").0, 200);
        assert_eq!(state(Role::Admin), becomes);
    }
    let headers = [("prefer", "respond-async")];
    let begun = web.send("POST", "/v1/vms/n/pause", Some(Role::Admin), &headers, "");
    let task = begun.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(ended(&web, &task, Role::Admin)["status"], "success");
    assert_eq!(state(Role::Admin), "paused");
}
