//! What requests are answered, and what the log says of them.

use std::collections::BTreeMap;

use api::{
    AfterSave, Answer, ConfigUpdate, ConsoleKind, Create, DumpCore, HostRequest, RelayRequest,
    Reply, Request, Restore, Save, SavedFormat, SchedRequest, Scheduler, StorageRequest, Target,
    Targets, TuneRequest, Wait,
};

use expect_test::expect;
use service::Place;

use crate::door::Client;

fn target(name: &str) -> Target {
    Target(name.to_owned())
}

/// Paths begin at the client's folder.
fn linux(name: &str) -> Create {
    let config_text = format!(
        "name = '{name}'\ntype = 'pv'\nkernel = 'kernel'\nramdisk = 'initrd'\nmemory = 16\n\
         extra = 'sim.kind=linux'\ndisk = ['cd.iso,raw,xvdc,r,cdrom']\nvif = ['bridge=xenbr0']\n"
    );
    let file = format!("{name}.cfg");
    Create { file, config_text, cwd: "/vm".to_owned(), ..Create::default() }
}

fn names(client: &Client, targets: &[&str]) -> Result<Vec<String>, String> {
    let targets = targets.iter().map(|it| target(it)).collect();
    match client.ask(Request::List { targets })? {
        Reply::Domains(rows) => Ok(rows.into_iter().filter_map(|row| row.name).collect()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn targets_are_names_numbers_or_uuids_and_answered_in_their_order() {
    let client = Client::new(1);
    for name in ["one", "two"] {
        client.ask(Request::Create(linux(name))).unwrap();
    }
    let uuid = "01010101-0101-0101-0101-010101010101";
    assert_eq!(names(&client, &["two", uuid, "0"]).unwrap(), ["two", "one", "Domain-0"]);
    assert_eq!(names(&client, &[uuid]).unwrap(), ["one"]);
    assert_eq!(names(&client, &[]).unwrap(), ["Domain-0", "one", "two"]);
    let refused = "7: no such domain; `xy list` shows them all";
    assert_eq!(names(&client, &["7"]).unwrap_err(), refused);
    assert_eq!(names(&client, &["one", "7"]).unwrap_err(), refused);
    assert_eq!(client.ask(Request::Domid { name: "two".to_owned() }), Ok(Reply::Domid(2)));
    assert_eq!(client.ask(Request::Domname { domid: 2 }), Ok(Reply::Domname("two".to_owned())));
    assert_eq!(client.ask(Request::Domname { domid: 7 }).unwrap_err(), refused);
}

#[test]
fn a_vm_is_given_another_configuration_that_is_printed_first() {
    let client = Client::new(12);
    client.ask(Request::Create(linux("one"))).unwrap();
    let update = |dry_run, text: &str| {
        Request::Tune(TuneRequest::ConfigUpdate(ConfigUpdate {
            target: target("one"),
            file: "next.cfg".to_owned(),
            config_text: text.to_owned(),
            overrides: vec!["memory=24".to_owned()],
            cwd: "/vm".to_owned(),
            dry_run,
        }))
    };
    let text = linux("one").config_text;
    match client.ask(update(true, &text)) {
        Ok(Reply::Configs(configs)) => assert_eq!(configs[0].domid, None),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.ask(update(false, &text)), Ok(Reply::Done));
    let refused = client.ask(update(false, "name = 'one'\nmemroy = 3\n")).unwrap_err();
    assert!(refused.starts_with("next.cfg:"), "{refused}");
    let told = client.logged();
    let expected = "one: config-update by uid 1000 (pid 77), T s: done";
    assert_eq!(told.iter().filter(|it| it.contains("config-update")).count(), 1, "{told:#?}");
    assert!(told.iter().any(|it| it == expected), "{told:#?}");
}

#[test]
fn a_dry_run_makes_nothing_and_a_check_tells_all_faults() {
    let client = Client::new(2);
    let dry = Create { dry_run: true, ..linux("one") };
    match client.ask(Request::Create(dry.clone())) {
        Ok(Reply::Configs(configs)) => assert_eq!(configs.len(), 1),
        other => panic!("{other:?}"),
    }
    let text = dry.config_text.replace("cd.iso", "none.iso").replace("initrd", "none");
    let bad = Create { config_text: text, ..dry };
    let Ok(Reply::Checked(checked)) = client.ask(Request::Check(bad.clone())) else { panic!() };
    assert_eq!(checked.faults.len(), 2, "{checked:?}");
    assert!(checked.faults.iter().all(|it| it.contains("/vm/none")), "{checked:?}");
    assert_eq!(client.ask(Request::Create(bad)).unwrap_err(), checked.faults[0]);
    assert_eq!(names(&client, &[]).unwrap(), ["Domain-0"]);
    assert!(client.logged().is_empty());
}

#[test]
fn a_client_hears_warnings_and_steps_only_if_it_wants_them() {
    let client = Client::new(3);
    let text = linux("one").config_text + "parallel = 'none'\n";
    let quiet = Create { config_text: text.clone(), ..linux("one") };
    client.ask(Request::Create(quiet)).unwrap();
    assert!(client.heard().is_empty());
    let config_text = text.replace("'one'", "'two'");
    let create = Create { config_text, progress: true, warnings: true, ..linux("two") };
    client.ask(Request::Create(create)).unwrap();
    let heard = client.heard();
    assert!(matches!(&heard[0], Answer::Warning(line) if line.contains("parallel")), "{heard:?}");
    let is_progress = |it: &Answer| matches!(it, Answer::Progress(it) if it.vm == "two");
    assert!(heard.len() > 2 && heard[1..].iter().all(is_progress), "{heard:?}");
}

#[test]
fn devices_come_and_go_by_the_names_that_clients_have_for_them() {
    let client = Client::new(4);
    client.ask(Request::Create(linux("one"))).unwrap();
    let (disk, cwd) = ("disk.raw,raw,xvdb,w".to_owned(), "/vm".to_owned());
    let attach = Request::BlockAttach { target: target("one"), disk, cwd, progress: false };
    client.ask(attach).unwrap();
    let vif = "bridge=xenbr0".to_owned();
    client.ask(Request::NetworkAttach { target: target("one"), vif }).unwrap();
    let blocks =
        |client: &Client| match client.ask(Request::BlockList { targets: vec![target("one")] }) {
            Ok(Reply::Blocks(rows)) => rows.iter().map(|row| row.vdev).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
    assert_eq!(blocks(&client), [51744, 51728]);
    let (disk, force) = ("xvdb".to_owned(), false);
    let detach = Request::BlockDetach { target: target("one"), disk, force, progress: false };
    client.ask(detach).unwrap();
    assert_eq!(blocks(&client), [51744]);
    let (drive, force) = ("xvdb".to_owned(), false);
    let refused = client.ask(Request::CdEject { target: target("one"), drive, force });
    assert!(refused.unwrap_err().contains("xvdb"));
    let drive = "xvdc".to_owned();
    client.ask(Request::CdEject { target: target("one"), drive, force }).unwrap();
    let vif = "9".to_owned();
    let refused = client.ask(Request::NetworkDetach { target: target("one"), vif, force });
    assert!(refused.unwrap_err().starts_with("one: "));
    let mut logged = client.logged();
    logged.retain(|line| line.contains(" by "));
    assert_eq!(
        logged[1..6],
        [
            "one: attach vbd 51728 by uid 1000 (pid 77), T s: done",
            "one: attach vif 1 by uid 1000 (pid 77), T s: done",
            "one: detach vbd 51728 by uid 1000 (pid 77), T s: done",
            "one: eject vbd 51728 by uid 1000 (pid 77), T s: failed: one: has no CD drive xvdb",
            "one: eject vbd 51744 by uid 1000 (pid 77), T s: done",
        ]
    );
}

#[test]
fn a_shutdown_tells_of_each_domain_before_its_answer() {
    let client = Client::new(5);
    client.ask(Request::Create(linux("one"))).unwrap();
    client.ask(Request::Create(linux("two"))).unwrap();
    let (targets, wait) = (Targets::All, Wait::Gone);
    let shutdown = Request::Shutdown { targets, wait, acpi: false, progress: false };
    assert_eq!(client.ask(shutdown), Ok(Reply::Done));
    let gone =
        |it: &Answer| matches!(it, Answer::Event(it) if it.kind == api::EventKind::Destroyed);
    let heard = client.heard();
    assert_eq!(heard.iter().filter(|it| gone(it)).count(), 2, "{heard:?}");
    assert_eq!(names(&client, &[]).unwrap(), ["Domain-0"]);
}

#[test]
fn whoever_changes_storage_is_in_the_log() {
    let client = Client::new(6);
    let ask = |request| client.ask(Request::Storage(request));
    let config = BTreeMap::from([("path".to_owned(), "/srv/vdis".to_owned())]);
    let (name, kind) = ("s".to_owned(), "file".to_owned());
    ask(StorageRequest::SrCreate { name: name.clone(), kind, config }).unwrap();
    let create = StorageRequest::VdiCreate { vdi: "s:one".to_owned(), bytes: 1 << 20 };
    ask(create.clone()).unwrap();
    let why = ask(create).unwrap_err();
    // What only reads leaves no line.
    ask(StorageRequest::SrInfo { name }).unwrap();
    ask(StorageRequest::VdiList { srs: Vec::new() }).unwrap();
    assert_eq!(
        client.logged(),
        [
            "s: sr-create by uid 1000 (pid 77), T s: done".to_owned(),
            "s:one: vdi-create by uid 1000 (pid 77), T s: done".to_owned(),
            format!("s:one: vdi-create by uid 1000 (pid 77), T s: failed: {why}"),
        ]
    );
    let limits = Request::Limits(api::LimitChanges { vm: Some(3), ..Default::default() });
    client.ask(limits).unwrap();
    assert_eq!(client.logged(), ["this host: change limits by uid 1000 (pid 77), T s: done"]);
    // No permit is kept.
    match client.ask(Request::Limits(api::LimitChanges::default())) {
        Ok(Reply::Limits(limits)) => assert_eq!((limits.waiting, limits.under_way), (0, 0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_vm_is_saved_and_restored_under_its_own_or_another_configuration() {
    let client = Client::new(9);
    client.ask(Request::Create(linux("one"))).unwrap();
    client.settle();
    let save = |after, format| {
        Request::Save(Save {
            target: target("one"),
            path: "one.saved".to_owned(),
            cwd: "/vm".to_owned(),
            after,
            format,
            file: String::new(),
            config_text: None,
            progress: true,
        })
    };
    let restore =
        Restore { path: "one.saved".to_owned(), cwd: "/vm".to_owned(), ..Restore::default() };
    assert_eq!(client.ask(save(AfterSave::Running, SavedFormat::Xylem)), Ok(Reply::Done));
    assert_eq!(names(&client, &[]).unwrap(), ["Domain-0", "one"]);
    let refused = client.ask(Request::Restore(restore.clone())).unwrap_err();
    assert_eq!(refused, "/vm/one.saved:1: name: a domain named one exists already");
    assert_eq!(client.ask(save(AfterSave::Destroyed, SavedFormat::Xl)), Ok(Reply::Done));
    assert_eq!(names(&client, &[]).unwrap(), ["Domain-0"]);
    let renamed = Restore {
        file: "other.cfg".to_owned(),
        config_text: Some(linux("other").config_text),
        ..restore
    };
    let Ok(Reply::Created(report)) = client.ask(Request::Restore(renamed)) else { panic!() };
    assert_eq!((report.name.as_str(), report.domid), ("other", 2));
    let dump = |path: &str| DumpCore {
        target: target("other"),
        path: path.to_owned(),
        cwd: "/vm".to_owned(),
        live: false,
        progress: true,
    };
    assert_eq!(client.ask(Request::DumpCore(dump("other.core"))), Ok(Reply::Done));
    let none = DumpCore { target: target("none"), ..dump("x") };
    let refused = client.ask(Request::DumpCore(none)).unwrap_err();
    assert_eq!(refused, "none: no such domain; `xy list` shows them all");
    let told = client.logged();
    let expected = [
        "other: dump by uid 1000 (pid 77), T s: done",
        "one: save by uid 1000 (pid 77), T s: done",
        "one: restore by uid 1000 (pid 77), T s: failed: /vm/one.saved:1: name: a domain named one \
         exists already",
        "one: save by uid 1000 (pid 77), T s: done",
        "other: restore by uid 1000 (pid 77), T s: done",
    ];
    for line in expected {
        assert!(told.iter().any(|it| it == line), "{line}: {told:#?}");
    }
    assert!(told.iter().any(|it| it.ends_with("saved to /vm/one.saved")), "{told:#?}");
}

#[test]
fn changes_of_a_vm_are_logged_with_what_was_asked_and_a_bad_list_is_told() {
    let client = Client::new(9);
    client.ask(Request::Create(linux("one"))).unwrap();
    client.logged();
    let tune = |request| client.ask(Request::Tune(request));
    let kib = 12 << 10;
    assert_eq!(tune(TuneRequest::MemSet { target: target("one"), kib }), Ok(Reply::Done));
    let pin = |hard: &str| TuneRequest::VcpuPin {
        target: target("0"),
        vcpu: Some(0),
        hard: Some(hard.to_owned()),
        soft: None,
        force: false,
    };
    assert_eq!(tune(pin("0-1,^1")), Ok(Reply::Done));
    let refused = tune(pin("0-x")).unwrap_err();
    assert_eq!(refused, "\"0-x\" is no list of CPUs: \"0-x\" is no number and no range");
    let name = "web".to_owned();
    assert_eq!(tune(TuneRequest::Rename { target: target("one"), name }), Ok(Reply::Done));
    assert_eq!(names(&client, &[]).unwrap(), ["Domain-0", "web"]);
    let shares =
        SchedRequest::Domain { scheduler: Scheduler::Credit2, target: target("web"), vcpus: None };
    let Ok(Reply::Sched(pools)) = client.ask(Request::Sched(shares)) else { panic!("no shares") };
    let row = &pools[0].rows[0];
    assert_eq!((row.name.as_deref(), row.weight, row.cap), (Some("web"), Some(256), Some(0)));
    let mut logged = client.logged();
    logged.retain(|line| line.contains(" by "));
    assert_eq!(
        logged,
        [
            "one: mem-set to 12 MiB by uid 1000 (pid 77), T s: done",
            "0: vcpu-pin by uid 1000 (pid 77), T s: done",
            "one: rename to web by uid 1000 (pid 77), T s: done",
        ]
    );
}

#[test]
fn what_xl_conf_says_holds_for_new_vms_and_interfaces_only() {
    let client = Client::new(20);
    for bridge in ["br1", "br2"] {
        client.host.os().add_bridge(bridge);
    }
    client.xl_conf.replace("vif.default.bridge = 'br1'\nmax_grant_frames = 40\n".to_owned());
    let config_text = linux("one").config_text.replace("bridge=xenbr0", "");
    client
        .ask(Request::Create(Create { config_text: config_text.clone(), ..linux("one") }))
        .unwrap();
    client.settle();
    client.xl_conf.replace("vif.default.bridge = 'br2'\n".to_owned());
    let attach = Request::NetworkAttach { target: target("one"), vif: String::new() };
    client.ask(attach).unwrap();
    // A restored VM is as it was, whatever the file says by then.
    let (path, cwd) = ("one.save".to_owned(), "/vm".to_owned());
    let save = Save {
        target: target("one"),
        path: path.clone(),
        cwd: cwd.clone(),
        after: AfterSave::Destroyed,
        format: SavedFormat::Xylem,
        file: String::new(),
        config_text: None,
        progress: false,
    };
    client.ask(Request::Save(save)).unwrap();
    client.xl_conf.replace("max_grant_frames = 50\nvif.default.bridge = 'br3'\n".to_owned());
    client.ask(Request::Restore(Restore { path, cwd, ..Restore::default() })).unwrap();
    let Ok(Reply::Configs(configs)) = client.ask(Request::Configs { targets: vec![target("one")] })
    else {
        panic!()
    };
    let config = &configs[0].config;
    let bridges: Vec<_> = config.nics.iter().map(|nic| nic.bridge.as_str()).collect();
    assert_eq!(bridges, ["br1", "br2"]);
    assert_eq!(config.b_info.max_grant_frames, Some(40));
    let defaults = || client.ask(Request::Host(HostRequest::Defaults));
    assert_eq!(defaults(), Ok(Reply::Defaults { bridge: "br3".to_owned() }));
    // With a file that cannot be read nothing new is made, and nothing else is hindered.
    client.xl_conf.replace("max_grant_frames = lots\n".to_owned());
    let refused = client.ask(Request::Create(Create { config_text, ..linux("two") })).unwrap_err();
    assert!(refused.starts_with("/etc/xen/xl.conf:1: max_grant_frames: "), "{refused}");
    assert_eq!(defaults().unwrap_err(), refused);
    client.ask(Request::Destroy { target: target("one") }).unwrap();
}

/// The client waits for the end of a connection that nobody took.
#[test]
fn a_disk_that_cannot_be_lent_leaves_the_connection() {
    let client = Client::new(1);
    let ask = |request| client.ask(Request::Storage(request));
    let lend = |vdi: &str| StorageRequest::VdiLend { vdi: vdi.to_owned(), write: true };
    let error = ask(lend("local:none")).unwrap_err();
    assert!(error.starts_with("local: no such SR"), "{error}");
    assert_eq!(client.channels_taken.get(), 0);

    let config = BTreeMap::from([("path".to_owned(), "/srv/lent".to_owned())]);
    let (name, kind) = ("local".to_owned(), "file".to_owned());
    ask(StorageRequest::SrCreate { name, kind, config }).unwrap();
    ask(StorageRequest::VdiCreate { vdi: "local:one".to_owned(), bytes: 1 << 20 }).unwrap();
    let error = ask(lend("local:one")).unwrap_err();
    assert!(error.starts_with("nobody takes /dev/loop"), "{error}");
    assert_eq!(client.channels_taken.get(), 1);
    // It is detached again.
    ask(StorageRequest::VdiDestroy { vdi: "local:one".to_owned() }).unwrap();
}

#[test]
#[expect(clippy::too_many_lines, reason = "one text")]
fn a_listed_config_has_the_fields_that_libxl_keeps() {
    let client = Client::new(3);
    let mut create = linux("one");
    create
        .config_text
        .push_str("localtime = 1\ncpus = '0'\non_crash = 'preserve'\ncpu_weight = 99\n");
    client.ask(Request::Create(create)).unwrap();
    let Ok(Reply::Configs(configs)) = client.ask(Request::Configs { targets: vec![target("one")] })
    else {
        panic!()
    };
    let text = serde_json::to_string_pretty(&configs[0].config).unwrap();
    expect![[r#"
        {
          "c_info": {
            "type": "pv",
            "name": "one",
            "uuid": "01010101-0101-0101-0101-010101010101",
            "run_hotplug_scripts": "True"
          },
          "b_info": {
            "max_vcpus": 1,
            "avail_vcpus": [
              0
            ],
            "max_memkb": 16384,
            "target_memkb": 16384,
            "kernel": "/vm/kernel",
            "cmdline": "sim.kind=linux",
            "ramdisk": "/vm/initrd",
            "arch_arm": {},
            "arch_x86": {},
            "disable_migrate": "False",
            "localtime": "True",
            "sched_params": {
              "weight": 99
            },
            "type.pv": {},
            "vcpu_hard_affinity": [
              [
                0
              ]
            ],
            "video_memkb": 0
          },
          "disks": [
            {
              "pdev_path": "/vm/cd.iso",
              "vdev": "xvdc",
              "backend": "phy",
              "format": "raw",
              "is_cdrom": 1,
              "removable": 1
            }
          ],
          "nics": [
            {
              "devid": 0,
              "bridge": "xenbr0"
            }
          ],
          "on_reboot": "restart",
          "on_crash": "preserve",
          "on_soft_reset": "soft_reset"
        }"#]]
    .assert_eq(&text);
    // What is printed is read again by whoever is older or newer.
    let again: api::DomainConfig = serde_json::from_str(&text).unwrap();
    assert_eq!(again, configs[0].config);
    // Each field is there once.
    let keys = text.lines().filter_map(|line| line.strip_prefix("    \"")?.split('"').next());
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    let all = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), all, "{text}");
}

fn read(client: &Client, cursor: Option<String>, classes: &[&str]) -> api::Objects {
    let classes = classes.iter().map(ToString::to_string).collect();
    match client.ask(Request::Objects { cursor, classes, wait: false }) {
        Ok(Reply::Objects(objects)) => objects,
        other => panic!("{other:?}"),
    }
}

/// Objects without revisions and times.
fn lines(objects: &api::Objects) -> String {
    let line = |change: &api::ObjectChange| {
        let mut json = serde_json::to_value(change).unwrap();
        json.as_object_mut().unwrap().remove("revision");
        if let Some(object) = json["object"].as_object_mut() {
            object.retain(|key, _| !key.ends_with("_ns") && !key.ends_with("_ms"));
        }
        json.to_string() + "\n"
    };
    objects.changes.iter().map(line).collect()
}

#[test]
fn objects_are_told_by_class_and_key_and_a_cursor_goes_on() {
    let client = Client::new(13);
    client.ask(Request::Create(linux("one"))).unwrap();
    client.settle();
    let all = read(&client, None, &[]);
    assert!(all.is_last && all.starts_again);
    expect![[r#"
        {"class":"domain","key":"0","object":{"domid":0,"name":"Domain-0","uuid":"00000000-0000-0000-0000-000000000000"}}
        {"class":"vm","key":"01010101-0101-0101-0101-010101010101","object":{"autostart":null,"config":{"kind":"pv","memory_max_mib":16,"memory_mib":16,"vcpus":1,"vcpus_max":1},"defined":false,"domid":1,"name":"one","state":"running","uuid":"01010101-0101-0101-0101-010101010101"}}
        {"class":"device","key":"01010101-0101-0101-0101-010101010101/vbd/51744","object":{"config":"format=raw,vdev=xvdc,access=r,devtype=cdrom,target=/vm/cd.iso","devid":51744,"kind":"vbd","name":"xvdc","state":"attached","vm":"01010101-0101-0101-0101-010101010101"}}
        {"class":"device","key":"01010101-0101-0101-0101-010101010101/vif/0","object":{"config":"devid=0,bridge=xenbr0","devid":0,"kind":"vif","network":"xenbr0","state":"attached","vm":"01010101-0101-0101-0101-010101010101"}}
        {"class":"operation","key":"1","object":{"done":12,"failure":null,"id":1,"steps":12,"uuid":"01010101-0101-0101-0101-010101010101","vm":"one","what":"start"}}
        {"class":"host","key":"host","object":{"cores_per_socket":2,"cpu_mhz":2400,"cpus":2,"dom0_memory_mib":1024,"dom0_vcpus":2,"kernel":"","machine":"","memory_free_mib":64495,"memory_mib":65536,"name":"sim","nodes":1,"release":"1.2.3","scheduler":"credit2","threads_per_core":1,"xen_version":"4.17.0-sim"}}
        {"class":"network","key":"xenbr0","object":{"exists":true,"interfaces":1,"kind":"bridge","mtu":1500,"name":"xenbr0","ports":[],"up":true}}
    "#]]
    .assert_eq(&lines(&all));
    let none = read(&client, Some(all.cursor.clone()), &[]);
    assert_eq!((none.changes.len(), &none.cursor), (0, &all.cursor));
    client.ask(Request::Pause { target: target("one") }).unwrap();
    let paused = read(&client, Some(all.cursor), &["vm"]);
    assert!(!paused.starts_again);
    expect![[r#"
        {"class":"vm","key":"01010101-0101-0101-0101-010101010101","object":{"autostart":null,"config":{"kind":"pv","memory_max_mib":16,"memory_mib":16,"vcpus":1,"vcpus_max":1},"defined":false,"domid":1,"name":"one","state":"paused","uuid":"01010101-0101-0101-0101-010101010101"}}
    "#]]
    .assert_eq(&lines(&paused));
    client.ask(Request::Destroy { target: target("one") }).unwrap();
    expect![[r#"
        {"class":"vm","key":"01010101-0101-0101-0101-010101010101","object":null}
        {"class":"device","key":"01010101-0101-0101-0101-010101010101/vbd/51744","object":null}
        {"class":"device","key":"01010101-0101-0101-0101-010101010101/vif/0","object":null}
    "#]]
    .assert_eq(&lines(&read(&client, Some(paused.cursor), &["vm", "device"])));
}

#[test]
fn an_sr_is_told_when_it_its_images_or_their_users_change() {
    let client = Client::new(14);
    let before = read(&client, None, &["sr"]);
    assert_eq!(before.changes, []);
    let storage = |request| client.ask(Request::Storage(request)).unwrap();
    let config = BTreeMap::from([("path".to_owned(), "/srs/files".to_owned())]);
    let (name, kind) = ("files".to_owned(), "file".to_owned());
    storage(StorageRequest::SrCreate { name, kind, config });
    let made = read(&client, Some(before.cursor), &["sr"]);
    storage(StorageRequest::VdiCreate { vdi: "files:disk".to_owned(), bytes: 1 << 20 });
    let with_disk = read(&client, Some(made.cursor.clone()), &["sr"]);
    let text = linux("two").config_text.replace("cd.iso,raw,xvdc,r,cdrom", "files:disk,,xvda,w");
    client.ask(Request::Create(Create { config_text: text, ..linux("two") })).unwrap();
    let used = read(&client, Some(with_disk.cursor.clone()), &["sr"]);
    client.ask(Request::Destroy { target: target("two") }).unwrap();
    let unused = read(&client, Some(used.cursor.clone()), &["sr"]);
    storage(StorageRequest::SrForget { name: "files".to_owned() });
    let gone = read(&client, Some(unused.cursor.clone()), &["sr"]);
    expect![[r#"
        {"class":"sr","key":"files","object":{"bytes":null,"config":{"path":"/srs/files"},"free_bytes":null,"in_use":0,"kind":"file","name":"files","vdis":null}}
        {"class":"sr","key":"files","object":{"bytes":null,"config":{"path":"/srs/files"},"free_bytes":null,"in_use":0,"kind":"file","name":"files","vdis":null}}
        {"class":"sr","key":"files","object":{"bytes":null,"config":{"path":"/srs/files"},"free_bytes":null,"in_use":1,"kind":"file","name":"files","vdis":null}}
        {"class":"sr","key":"files","object":{"bytes":null,"config":{"path":"/srs/files"},"free_bytes":null,"in_use":0,"kind":"file","name":"files","vdis":null}}
        {"class":"sr","key":"files","object":null}
    "#]]
    .assert_eq(&[made, with_disk, used, unused, gone].iter().map(lines).collect::<String>());
}

#[test]
fn a_cursor_or_class_that_is_none_is_refused() {
    let client = Client::new(15);
    let refused = |cursor: Option<&str>, classes: &[&str]| {
        let classes = classes.iter().map(ToString::to_string).collect();
        let cursor = cursor.map(ToOwned::to_owned);
        client.ask(Request::Objects { cursor, classes, wait: false }).unwrap_err()
    };
    assert_eq!(
        refused(Some("12"), &[]),
        "\"12\" is no cursor: give one of an earlier answer, or none"
    );
    assert_eq!(
        refused(None, &["vms"]),
        "\"vms\" is no class of objects; there are vm, device, domain, operation, sr, vdi, network, host"
    );
}

#[test]
fn a_connection_is_joined_to_a_console_or_a_screen_where_there_is_one() {
    let client = Client::new(9);
    sim::add_hvm_files(client.host.os(), "sim.kind=linux");
    client.ask(Request::Create(linux("one"))).unwrap();
    let hvm = "name = 'two'\ntype = 'hvm'\nmemory = 64\nvnclisten = '::1'\n".to_owned();
    client.ask(Request::Create(Create { config_text: hvm, ..linux("two") })).unwrap();
    client.settle();
    let relay = |request: RelayRequest| client.ask(Request::Relay(request));
    let console =
        |name: &str, kind| relay(RelayRequest::Console { target: target(name), kind, number: 0 });
    assert_eq!(console("one", None), Ok(Reply::Done));
    assert_eq!(console("2", Some(ConsoleKind::Pv)), Ok(Reply::Done));
    assert_eq!(relay(RelayRequest::Screen { target: target("two") }), Ok(Reply::Done));
    let relayed = client.relayed.take();
    let places: Vec<_> = relayed.iter().map(|it| (it.domid, it.place.clone())).collect();
    let terminal = |path: &str| Place::Terminal(path.to_owned());
    let screen = Place::Server("[::1]:5902".to_owned());
    assert_eq!(places, [(1, terminal("/dev/pts/0")), (2, terminal("/dev/pts/1")), (2, screen)]);
    assert!(relayed[0].vm != relayed[1].vm && relayed[1].vm == relayed[2].vm);
    // One that is not there takes no connection.
    let taken = client.channels_taken.get();
    assert_eq!(
        relay(RelayRequest::Screen { target: target("one") }).unwrap_err(),
        "domain 1 has no screen; HVM domains have one unless their vnc = 0"
    );
    console("none", None).unwrap_err();
    assert_eq!(client.channels_taken.get(), taken);
}
