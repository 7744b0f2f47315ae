//! Who may ask for what.

use api::{Request, Target};
use service::Role;

use crate::door::Client;

fn request(json: &str) -> Request {
    let line = format!("{{\"version\":1,{json}}}");
    api::decode_request(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn an_operator_turns_vms_on_and_off_and_names_nothing_of_the_host() {
    for (json, role) in [
        (r#""op":"ping""#, Role::Viewer),
        (r#""op":"list""#, Role::Viewer),
        (r#""op":"events""#, Role::Viewer),
        (r#""op":"objects","wait":true"#, Role::Viewer),
        (r#""op":"trace","target":"1""#, Role::Viewer),
        (r#""op":"limits""#, Role::Viewer),
        (r#""op":"limits","vm":3"#, Role::Admin),
        (r#""op":"start","target":"a""#, Role::Operator),
        (r#""op":"destroy","target":"a""#, Role::Operator),
        (r#""op":"shutdown","targets":"all""#, Role::Operator),
        (r#""op":"cd-eject","target":"a","drive":"xvdc""#, Role::Operator),
        (
            r#""op":"cd-insert","target":"a","drive":"xvdc","path":"/etc/shadow","cwd":"/""#,
            Role::Admin,
        ),
        (r#""op":"create","file":"","config_text":"","cwd":"/""#, Role::Admin),
        (r#""op":"check","file":"","config_text":"","cwd":"/""#, Role::Admin),
        (r#""op":"define","file":"","config_text":"","cwd":"/""#, Role::Admin),
        (r#""op":"configs""#, Role::Admin),
        (r#""op":"config-text","target":"a""#, Role::Admin),
        (r#""op":"save","target":"a","path":"/root/x","cwd":"/""#, Role::Admin),
        (r#""op":"dump-core","target":"a","path":"/root/x","cwd":"/""#, Role::Admin),
        (r#""op":"block-attach","target":"a","disk":"/dev/sda,raw,xvdb,w","cwd":"/""#, Role::Admin),
        (r#""op":"network-attach","target":"a","vif":"script=/x""#, Role::Admin),
        (r#""op":"console","target":"a""#, Role::Admin),
        (r#""op":"relay","do":"console","target":"a""#, Role::Admin),
        (r#""op":"relay","do":"screen","target":"a""#, Role::Admin),
        (r#""op":"qemu-monitor-command","target":"a","command":"x""#, Role::Admin),
        (r#""op":"storage","do":"sr-list""#, Role::Viewer),
        (r#""op":"storage","do":"vdi-destroy","vdi":"a:b""#, Role::Admin),
        (r#""op":"storage","do":"vdi-lend","vdi":"a:b""#, Role::Admin),
        (r#""op":"storage","do":"vdi-pass","vdi":"a:b""#, Role::Admin),
        (r#""op":"store","do":"tree","path":"/""#, Role::Admin),
        (r#""op":"store","do":"read","paths":["/a"]"#, Role::Admin),
        (r#""op":"store","do":"watch","paths":["/a"]"#, Role::Admin),
        (r#""op":"store","do":"stats""#, Role::Viewer),
        (r#""op":"store","do":"quota","domid":1"#, Role::Viewer),
        (r#""op":"relay","do":"report","of":"doctor""#, Role::Viewer),
        (r#""op":"relay","do":"report","of":"bugreport""#, Role::Admin),
        (r#""op":"checkpoint","do":"checkpoint-list""#, Role::Viewer),
        (r#""op":"checkpoint","do":"checkpoint-destroy","vm":"a","name":"b""#, Role::Admin),
        (r#""op":"peer","do":"list""#, Role::Viewer),
        (r#""op":"peer","do":"add","name":"a","address":"b","key":"c""#, Role::Admin),
        (r#""op":"host","do":"pools""#, Role::Viewer),
        (r#""op":"host","do":"console""#, Role::Admin),
        (r#""op":"host","do":"debug-keys","keys":"R""#, Role::Admin),
        (r#""op":"host","do":"pci","what":"assignable""#, Role::Viewer),
        (r#""op":"host","do":"pci","what":"attach","target":"a","device":"00:1f.2""#, Role::Admin),
    ] {
        assert_eq!(Role::needed(&request(json)), role, "{json}");
    }
}

#[test]
fn what_a_role_may_not_is_refused_noted_and_not_done() {
    let client = Client::new(16);
    let config_text = "name = 'one'\ntype = 'pvh'\nkernel = 'kernel'\nmemory = 8\n".to_owned();
    let (file, cwd) = ("one.cfg".to_owned(), "/vm".to_owned());
    let create = api::Create { file, config_text, cwd, ..api::Create::default() };
    let (one, two) = (Request::Create(create.clone()), Request::Create(create));
    client.ask(one).unwrap();
    let pause = || Request::Pause { target: Target("one".to_owned()) };
    client.role.replace(Role::Viewer);
    client.ask(Request::Vms).unwrap();
    assert_eq!(
        client.ask(pause()).unwrap_err(),
        "not permitted: this needs the role operator, and yours is viewer; root can add you to the group xylem-operator"
    );
    client.role.replace(Role::Operator);
    client.ask(pause()).unwrap();
    assert_eq!(
        client.ask(two).unwrap_err(),
        "not permitted: this needs the role admin, and yours is operator; root can add you to the group xylem-admin"
    );
    let storage = Request::Storage(api::StorageRequest::VdiDestroy { vdi: "a:b".to_owned() });
    client.ask(storage).unwrap_err();
    assert_eq!(
        client.refused.take(),
        [
            "1000 as viewer: pause",
            "1000 as operator: create",
            "1000 as operator: storage vdi-destroy"
        ]
    );
    client.role.replace(Role::Admin);
    let reply = client.ask(Request::List { targets: Vec::new() }).unwrap();
    assert!(matches!(reply, api::Reply::Domains(rows) if rows.len() == 2));
}
