//! Events, over restarts of all that is between.

use std::io::{BufRead as _, BufReader};

use api::Role;
use serde_json::Value;

use crate::served::{Folder, Web, host_at};

struct Events(Box<dyn Iterator<Item = (String, Option<String>, Value)>>);

impl Events {
    fn of(web: &Web, query: &str, last: Option<&str>) -> Self {
        let headers: Vec<_> = last.map(|it| ("last-event-id", it)).into_iter().collect();
        let path = format!("/v1/events{query}");
        let response = web.send("GET", &path, Some(Role::Viewer), &headers, "");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut lines = BufReader::new(response.into_body().into_reader()).lines();
        Self(Box::new(std::iter::from_fn(move || {
            let (mut name, mut id, mut data) = (String::new(), None, Value::Null);
            loop {
                let line = lines.next()?.ok()?;
                match line.split_once(": ") {
                    Some(("event", text)) => name = text.to_owned(),
                    Some(("id", text)) => id = Some(text.to_owned()),
                    Some(("data", text)) => data = serde_json::from_str(text).unwrap(),
                    _ if line.is_empty() && !name.is_empty() => return Some((name, id, data)),
                    _ => {}
                }
            }
        })))
    }

    /// The changes up to the next `current`, and its cursor.
    fn until_current(&mut self) -> (Vec<Value>, String) {
        let mut changes = Vec::new();
        loop {
            let (name, id, data) = self.0.next().expect("it goes on");
            match &*name {
                "change" => changes.push(data),
                "current" => return (changes, id.unwrap()),
                _ => {}
            }
        }
    }

    fn next_name(&mut self) -> String {
        self.0.next().expect("it goes on").0
    }

    /// The first event of the host itself: xylem-web may not have reached it yet when it is asked.
    fn next_of_host(&mut self) -> String {
        loop {
            let name = self.next_name();
            if name != "offline" && name != "online" {
                return name;
            }
        }
    }
}

#[test]
fn a_reader_knows_all_then_hears_of_changes_and_goes_on_where_it_was() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 3);
    let web = Web::before(&socket, &[]);
    let mut events = Events::of(&web, "?class=vm", None);
    assert_eq!(events.next_of_host(), "reset");
    let (all, _) = events.until_current();
    assert_eq!(all.len(), 3);
    assert_eq!(web.post("/v1/vms/web-0/pause", Role::Operator, "").0, 200);
    let (mut changed, mut cursor) = (Vec::new(), String::new());
    while changed.last() != Some(&Value::from("paused")) {
        let (changes, at) = events.until_current();
        assert!(changes.iter().all(|it| it["object"]["name"] == "web-0"), "{changes:?}");
        changed.extend(changes.iter().map(|it| it["object"]["state"].clone()));
        cursor = at;
    }
    drop(events);
    assert_eq!(web.post("/v1/vms/db-1/destroy", Role::Operator, "").0, 200);
    let mut events = Events::of(&web, "?class=vm", Some(&cursor));
    let mut gone = false;
    while !gone {
        let (changes, _) = events.until_current();
        gone = changes.iter().any(|it| it["object"].is_null());
        assert!(changes.len() < 3, "it is told only what is new: {changes:?}");
    }
    // A cursor of another process begins again.
    let other = format!("{}0", cursor);
    assert_eq!(Events::of(&web, "", Some(&other)).next_of_host(), "reset");
}

#[test]
fn a_reader_is_told_that_the_daemon_does_not_answer() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    let web = Web::before(&socket, &[]);
    let mut events = Events::of(&web, "", None);
    assert_eq!(events.next_name(), "offline");
    let (status, health) = web.get("/v1/health", None);
    assert_eq!((status, &health["daemon"]), (200, &Value::Null));
    let (status, said) = web.post("/v1/requests/list", Role::Viewer, "");
    assert_eq!(status, 502, "{said}");
    host_at(&socket, 1);
    // Why it does not answer may change.
    while events.next_name() != "online" {}
    while events.until_current().0.iter().all(|it| it["class"] != "vm") {}
}
