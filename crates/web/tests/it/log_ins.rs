//! Who gets in, and how far.

use api::Role;

use crate::served::{Web, detail, said};

#[test]
fn nobody_gets_in_without_a_token_and_each_role_as_far_as_it_goes() {
    let web = Web::new();
    let nobody = web.get("/v1/vms", None);
    assert_eq!(nobody.0, 401);
    assert_eq!(detail(&nobody), "log in first: send a token as \"Authorization: Bearer TOKEN\"");
    for path in ["/v1/events", "/v1/objects", "/v1/tasks", "/v1/session", "/v1/vms/web-0"] {
        assert_eq!(web.get(path, None).0, 401, "{path}");
    }
    assert_eq!(web.get("/v1/health", None).0, 200);
    let (status, who) = web.get("/v1/session", Some(Role::Operator));
    assert_eq!((status, &who["who"], &who["role"]), (200, &"operator".into(), &"operator".into()));
    let list = |role| web.post("/v1/requests/list", role, "{}").0;
    assert_eq!(list(Role::Viewer), 200);
    let refused = web.post("/v1/vms/web-0/pause", Role::Viewer, "");
    assert_eq!(refused.0, 403);
    assert_eq!(
        detail(&refused),
        "not permitted: this needs the role operator, and yours is viewer"
    );
    let refused = web.post(
        "/v1/requests/create",
        Role::Operator,
        r#"{"file":"x","config_text":"","cwd":"/"}"#,
    );
    assert_eq!(refused.0, 403);
    let log = web.log();
    assert_eq!(gate::check_chain(&log, None), Ok(2), "{log}");
    assert!(log.contains(r#""who":"viewer","from":"127.0.0.1","what":"pause""#), "{log}");
}

#[test]
fn whoever_guesses_tokens_is_locked_out_and_whoever_has_one_is_not() {
    let web = Web::new();
    let guess = || {
        let headers = [("authorization", "Bearer xylem-00")];
        said(web.send("GET", "/v1/vms", None, &headers, ""))
    };
    let statuses: Vec<_> = (0..6).map(|_| guess().0).collect();
    assert_eq!(statuses[..4], [401; 4]);
    assert_eq!(statuses[5], 429);
    assert_eq!(web.get("/v1/session", Some(Role::Viewer)).0, 200);
}

#[test]
fn clients_who_are_added_and_removed_are_let_in_and_put_out_at_once() {
    let web = Web::new();
    let file = web.folder.path("clients");
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_xylem-web"))
            .arg("client")
            .args(arguments)
            .arg("--clients")
            .arg(&file)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let token = run(&["add-token", "backup", "--role", "operator", "--days", "3"]);
    let bearer = format!("Bearer {}", token.trim());
    let is_in = || {
        let headers = [("authorization", bearer.as_str())];
        web.send("GET", "/v1/session", None, &headers, "").status() == 200
    };
    let becomes = |expected: bool| {
        for _ in 0..50 {
            if is_in() == expected {
                return true;
            }
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        false
    };
    assert!(becomes(true));
    let list = run(&["list"]);
    assert!(list.contains("backup                   token        operator  in 3 days"), "{list}");
    run(&["remove", "backup"]);
    assert!(becomes(false));
}

#[test]
fn a_client_that_asks_without_end_is_slowed_and_others_are_not() {
    let web = Web::new();
    let slowed = (0..2000).find_map(|_| {
        let response = web.send("GET", "/v1/vms/web-0", Some(Role::Viewer), &[], "");
        (response.status() == 429).then(|| response.headers()["retry-after"].clone())
    });
    assert_eq!(slowed.expect("it asks too often"), "1");
    assert_eq!(web.get("/v1/vms/web-0", Some(Role::Operator)).0, 200);
}
