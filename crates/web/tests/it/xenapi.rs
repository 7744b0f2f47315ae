//! XenAPI by JSON-RPC and XML-RPC. What real clients do is tried in `cargo xtask ci`.

use std::time::{Duration, Instant};

use api::Role;
use serde_json::{Value, json};

use crate::served::{Folder, PASSWORD, Web, host_at, said, token};

pub(crate) struct Client<'a> {
    pub(crate) web: &'a Web,
    pub(crate) session: String,
}

impl<'a> Client<'a> {
    pub(crate) fn log_in(web: &'a Web, name: &str, password: &str) -> Result<Self, Value> {
        let session = call(web, "session.login_with_password", &[name.into(), password.into()])?;
        Ok(Self { web, session: session.as_str().unwrap().to_owned() })
    }

    pub(crate) fn call(&self, method: &str, params: &[Value]) -> Result<Value, Value> {
        let params = [&[Value::from(self.session.as_str())], params].concat();
        call(self.web, method, &params)
    }

    fn vm(&self, name: &str) -> String {
        let found = self.call("VM.get_by_name_label", &[name.into()]).unwrap();
        found[0].as_str().unwrap().to_owned()
    }
}

pub(crate) fn call(web: &Web, method: &str, params: &[Value]) -> Result<Value, Value> {
    let body = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": 1 });
    let response = web.send("POST", "/jsonrpc", None, &[], &body.to_string());
    assert_eq!(response.status(), 200, "{method}");
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.headers()["access-control-allow-origin"], "*");
    let (_, mut said) = said(response);
    match said.get_mut("error") {
        Some(error) => Err(error.take()),
        None => Ok(said["result"].take()),
    }
}

pub(crate) fn code(failure: &Value) -> &str {
    failure["message"].as_str().unwrap_or_else(|| panic!("{failure}"))
}

#[test]
fn a_client_of_xapi_sees_vms_and_turns_them_on_and_off() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 3);
    let web = Web::before(&socket, &["--xenapi"]);
    let client = Client::log_in(&web, "ann", PASSWORD).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let all = loop {
        let all = client.call("VM.get_all_records", &[]).unwrap();
        // Domain 0 is one of them.
        if all.as_object().unwrap().len() == 4 {
            break all;
        }
        assert!(Instant::now() < deadline, "{all}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let vm = client.vm("web-0");
    assert_eq!(all[&vm]["power_state"], "Running");
    let from = |token: &str, timeout: f64| {
        let params = [json!(["VM"]), json!(token), json!(timeout)];
        client.call("event.from", &params).unwrap()
    };
    let first = from("", 5.0);
    assert_eq!(first["events"].as_array().unwrap().len(), 4);
    let at = first["token"].as_str().unwrap();
    let task = client.call("Async.VM.pause", &[json!(vm)]).unwrap();
    let next = from(at, 10.0);
    let event =
        next["events"].as_array().unwrap().iter().find(|it| it["ref"] == json!(vm)).cloned();
    assert_eq!(event.expect("the VM has changed")["operation"], "mod");
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.call("task.get_status", std::slice::from_ref(&task)).unwrap() != "success" {
        assert!(Instant::now() < deadline, "the task does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.call("VM.get_power_state", &[json!(vm)]).unwrap(), "Paused");
    let refused = client.call("VM.resume", &[json!(vm), json!(false), json!(false)]).unwrap_err();
    assert_eq!(code(&refused), "VM_BAD_POWER_STATE");
    assert!(web.log().contains(r#""who":"ann","from":"127.0.0.1","what":"pause""#));
}

#[test]
fn sessions_are_those_of_clients_who_are_let_in() {
    let web = Web::before(crate::served::shared_host(), &["--xenapi"]);
    let wrong = Client::log_in(&web, "ann", "wrong").map(|it| it.session).unwrap_err();
    assert_eq!(code(&wrong), "SESSION_AUTHENTICATION_FAILED");
    // A token in place of a password, of the client that has that name.
    Client::log_in(&web, "ann", &token(Role::Viewer)).map(|it| it.session).unwrap_err();
    let viewer = Client::log_in(&web, "viewer", &token(Role::Viewer)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let found = |name: &str| {
        let found = viewer.call("VM.get_by_name_label", &[name.into()]).unwrap();
        found.as_array().unwrap().len()
    };
    while found("web-0") == 0 {
        assert!(Instant::now() < deadline, "it knows no VM");
        std::thread::sleep(Duration::from_millis(50));
    }
    let vm = viewer.vm("web-0");
    let refused = viewer.call("VM.hard_shutdown", &[json!(vm)]).unwrap_err();
    assert_eq!(code(&refused), "RBAC_PERMISSION_DENIED");
    let nobody = call(&web, "VM.get_all", &["OpaqueRef:no".into()]).unwrap_err();
    assert_eq!(code(&nobody), "SESSION_INVALID");
    // Whoever is removed from the file is out.
    let file = web.folder.path("clients");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, gate::without(&text, "viewer").unwrap()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let ended = loop {
        match viewer.call("VM.get_all", &[]) {
            Err(failure) => break failure,
            Ok(_) => std::thread::sleep(Duration::from_millis(200)),
        }
        assert!(Instant::now() < deadline, "the session goes on");
    };
    assert_eq!(code(&ended), "SESSION_INVALID");
}

#[test]
fn any_path_takes_xml_and_nonsense_is_refused() {
    let web = Web::before(crate::served::shared_host(), &["--xenapi"]);
    let xml = "<?xml version='1.0'?><methodCall><methodName>system.listMethods</methodName><params/></methodCall>";
    for path in ["/", "/RPC2", "/xmlrpc"] {
        let response = web.send("POST", path, None, &[("content-type", "text/xml")], xml);
        assert_eq!(response.headers()["content-type"], "text/xml");
        let (status, text) = said(response);
        assert_eq!(status, 200);
        assert!(text.as_str().unwrap().contains("VM.get_all_records"), "{path}");
    }
    let deep = "<a>".repeat(50_000);
    for body in ["", "<", "<methodCall>", &deep, "\0", &"x".repeat(4 << 20)] {
        let (status, _) = said(web.send("POST", "/", None, &[], body));
        assert!([413, 500].contains(&status), "{status}");
    }
    let (status, _) = said(web.send("OPTIONS", "/jsonrpc", None, &[], ""));
    assert_eq!(status, 200);
    // Without the option there is none of this.
    let plain = Web::new();
    assert_eq!(said(plain.send("POST", "/", None, &[], xml)).0, 404);
}

/// A VM that is down, and what defines it.
fn on_paper(web: &Web) -> Value {
    let text = "name = 'paper'\ntype = 'pv'\nkernel = '/boot/vmlinuz'\nmemory = 32\nvcpus = 2\n";
    let define = json!({ "file": "paper.cfg", "config_text": text, "cwd": "/", "autostart": 3 });
    let said = web.post("/v1/requests/define", Role::Admin, &define.to_string());
    assert_eq!(said.0, 200, "{said:?}");
    define
}

fn text_of(web: &Web) -> String {
    let said = web.post("/v1/requests/config-text", Role::Admin, r#"{"target":"paper"}"#);
    said.1["ok"]["text"].as_str().unwrap_or_else(|| panic!("{said:?}")).to_owned()
}

#[test]
fn disks_that_are_made_at_once_are_all_there() {
    const DISKS: usize = 6;
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 1);
    let web = Web::before(&socket, &["--xenapi"]);
    on_paper(&web);
    let client = Client::log_in(&web, "admin", &token(Role::Admin)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.call("VM.get_by_name_label", &["paper".into()]).unwrap() == json!([]) {
        assert!(Instant::now() < deadline, "the VM does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
    let vm = client.vm("paper");
    let sr = client.call("SR.get_all", &[]).unwrap()[0].take();
    let vdi = |number: usize| {
        let record = json!({
            "SR": sr, "virtual_size": 8 << 20, "name_label": format!("d{number}"), "type": "user",
            "sharable": false, "read_only": false, "other_config": {},
        });
        client.call("VDI.create", &[record]).unwrap()
    };
    let vdis: Vec<Value> = (0..DISKS).map(vdi).collect();
    std::thread::scope(|scope| {
        let (client, vm) = (&client, &vm);
        for vdi in &vdis {
            scope.spawn(move || {
                let record = json!({
                    "VM": vm, "VDI": vdi, "userdevice": "autodetect", "bootable": false,
                    "mode": "RW", "type": "Disk", "empty": false, "other_config": {},
                    "qos_algorithm_type": "", "qos_algorithm_params": {},
                });
                client.call("VBD.create", &[record]).unwrap();
            });
        }
        scope.spawn(move || client.call("VM.set_VCPUs_max", &[json!(vm), json!(7)]).unwrap());
    });
    let text = text_of(&web);
    assert_eq!(text.matches("vdev=xvd").count(), DISKS, "{text}");
    assert!(text.contains("maxvcpus = 7"), "{text}");
    // One after the other they go again, and what else was changed stays.
    let vbds = client.call("VM.get_VBDs", &[json!(vm)]).unwrap();
    std::thread::scope(|scope| {
        let client = &client;
        for vbd in vbds.as_array().unwrap() {
            scope.spawn(move || client.call("VBD.destroy", std::slice::from_ref(vbd)).unwrap());
        }
    });
    let text = text_of(&web);
    assert_eq!((text.matches("vdev=").count(), vbds.as_array().unwrap().len()), (0, DISKS));
    assert!(text.contains("maxvcpus = 7"), "{text}");
}

#[test]
fn a_definition_is_replaced_only_if_nobody_else_has_replaced_it() {
    let folder = Folder::new();
    let socket = folder.path("sock");
    host_at(&socket, 1);
    let web = Web::before(&socket, &[]);
    let mut define = on_paper(&web);
    let text = text_of(&web);
    define["config_text"] = json!(text);
    define["replaces"] = json!(text);
    define["autostart"] = Value::Null;
    define["overrides"] = json!(["vcpus=1"]);
    let send = |define: &Value| web.post("/v1/requests/define", Role::Admin, &define.to_string());
    let done = send(&define);
    assert_eq!(done.0, 200, "{done:?}");
    define["overrides"] = json!(["memory=16"]);
    let refused = send(&define);
    assert_eq!(refused.0, 409, "{refused:?}");
    assert!(refused.1["detail"].as_str().unwrap().contains(api::REPLACED), "{refused:?}");
    let text = text_of(&web);
    assert!(text.contains("memory = 32") && text.contains("vcpus = 1"), "{text}");
    let vm = web.get("/v1/vms/paper", Some(Role::Admin)).1;
    assert_eq!(vm["autostart"], 3, "the rest of it stays");
}
