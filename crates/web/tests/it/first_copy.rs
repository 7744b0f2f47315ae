//! Clients that come before the host is known here.

use std::thread;
use std::time::{Duration, Instant};

use api::Role;
use serde_json::json;

use crate::served::{Folder, Web, detail, host_at, limited, said, token};
use crate::xenapi::{call, code};

/// What is read from the copy.
const READS: [&str; 13] = [
    "/v1/vms",
    "/v1/vms/web-0",
    "/v1/vms/web-0/devices",
    "/v1/domains",
    "/v1/srs",
    "/v1/host",
    "/v1/vdis",
    "/v1/networks",
    "/v1/networks/xenbr0",
    "/v1/networks/xenbr0/interfaces",
    "/v1/operations",
    "/v1/objects",
    "/v1/history?of=web-0",
];

#[test]
fn what_is_not_known_yet_is_not_told_to_be_nothing() {
    let folder = Folder::new();
    let web = Web::before(&folder.path("none"), &["--xenapi"]);
    let began = Instant::now();
    thread::scope(|scope| {
        for path in READS {
            let web = &web;
            scope.spawn(move || {
                let response = web.send("GET", path, Some(Role::Viewer), &[], "");
                assert_eq!(response.status(), 503, "{path}");
                assert_eq!(response.headers()["content-type"], "application/problem+json");
                assert_eq!(response.headers()["retry-after"], "1");
                let said = said(response);
                assert!(detail(&said).contains("xylemd"), "{path}: {said:?}");
            });
        }
        let (web, folder) = (&web, &folder);
        scope.spawn(move || {
            let said = web.post("/v1/vms/web-0/start", Role::Operator, "");
            assert_eq!(said.0, 503, "{said:?}");
            assert!(detail(&said).contains(folder.path("none").to_str().unwrap()), "{said:?}");
        });
        scope.spawn(move || {
            let bearer = format!("Bearer {}", limited(Role::Operator));
            let headers = [("authorization", bearer.as_str())];
            let body = r#"{"target":"web-0"}"#;
            let response = web.send("POST", "/v1/requests/pause", None, &headers, body);
            assert_eq!(said(response).0, 503);
        });
        scope.spawn(move || {
            let params = [json!("viewer"), json!(token(Role::Viewer))];
            let session = call(web, "session.login_with_password", &params).unwrap();
            let refused = call(web, "VM.get_all_records", std::slice::from_ref(&session));
            assert_eq!(code(&refused.unwrap_err()), "HOST_STILL_BOOTING");
            let from = [session, json!(["*"]), json!(""), json!(30.0)];
            assert_eq!(code(&call(web, "event.from", &from).unwrap_err()), "HOST_STILL_BOOTING");
        });
    });
    assert!(began.elapsed() < Duration::from_secs(20), "a wait has an end");
}

#[test]
fn who_comes_too_early_is_answered_once_the_host_is_known() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    let web = Web::before(&socket, &["--xenapi"]);
    thread::scope(|scope| {
        let (web, socket) = (&web, &socket);
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(500));
            host_at(socket, 3);
        });
        scope.spawn(move || {
            let said = web.get("/v1/host", Some(Role::Viewer));
            assert_eq!(said.0, 200, "{said:?}");
        });
        scope.spawn(move || {
            let response = web.send("GET", "/metrics", Some(Role::Viewer), &[], "");
            let mut text = String::new();
            std::io::Read::read_to_string(&mut response.into_body().into_reader(), &mut text)
                .unwrap();
            assert!(text.contains("\nxylem_up 1\n"), "{text}");
        });
        scope.spawn(move || {
            let params = [json!("viewer"), json!(token(Role::Viewer))];
            let session = call(web, "session.login_with_password", &params).unwrap();
            let all = call(web, "VM.get_all_records", std::slice::from_ref(&session)).unwrap();
            assert!(!all.as_object().unwrap().is_empty());
            // What is asked for beside the live model is known as well.
            let hosts = call(web, "host.get_all_records", &[session]).unwrap();
            let hosts = hosts.as_object().unwrap();
            let host = hosts.values().next().unwrap();
            assert_ne!(host["cpu_info"]["cpu_count"], "0", "{host}");
        });
    });
    // Now that it is known, what is not there is not there.
    assert_eq!(web.get("/v1/vms/none", Some(Role::Viewer)).0, 404);
}
