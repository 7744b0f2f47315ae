//! Arguments, requests, output and exit status of every command.

use expect_test::{Expect, expect};

use crate::daemon::{Daemon, Said, run_alone};

const DONE: &str = r#"{"ok":"done"}"#;

/// Runs one command of one request; the request and everything said are compared.
pub(crate) fn check(arguments: &[&str], answers: &[&str], request: &str, expected: &Expect) {
    let (said, requests) = Daemon::new(&[answers]).run(arguments);
    assert_eq!(requests, [request]);
    expected.assert_eq(&render(&said));
}

pub(crate) fn render(said: &Said) -> String {
    let Said { status, stdout, stderr } = said;
    let err: String = stderr.lines().map(|line| format!("! {line}\n")).collect();
    format!("{stdout}{err}= {}\n", status.unwrap_or(-1))
}

#[test]
fn list_prints_the_columns_of_xl() {
    let answer = r#"{"ok":{"domains":[{"name":"Domain-0","mem_kib":1048576,"vcpus_online":2,"running":true,"cpu_time_ns":12300000000},{"name":"web","domid":3,"mem_kib":524288,"vcpus_online":1,"blocked":true}]}}"#;
    check(
        &["list"],
        &[answer],
        r#"{"version":1,"op":"list","targets":[]}"#,
        &expect![[r#"
            Name                                        ID   Mem VCPUs	State	Time(s)
            Domain-0                                     0  1024     2     r-----      12.3
            web                                          3   512     1     -b----       0.0
            = 0
        "#]],
    );
}

#[test]
fn list_takes_names_and_prints_json() {
    check(
        &["lis", "--json", "web", "3"],
        &[r#"{"ok":{"domains":[{"name":"web","domid":3,"managed":true}]}}"#],
        r#"{"version":1,"op":"list","targets":["web","3"]}"#,
        &expect![[r#"
            [
                {
                    "name": "web",
                    "domid": 3,
                    "uuid": "",
                    "kind": "",
                    "mem_kib": 0,
                    "mem_max_kib": 0,
                    "vcpus_online": 0,
                    "running": false,
                    "blocked": false,
                    "paused": false,
                    "shutdown_reason": null,
                    "dying": false,
                    "cpu_time_ns": 0,
                    "cpupool": 0,
                    "started_unix_s": null,
                    "managed": true
                }
            ]
            = 0
        "#]],
    );
}

#[test]
fn list_long_is_the_json_of_xl() {
    check(
        &["list", "-l", "web"],
        &[
            r#"{"ok":{"configs":[{"domid":3,"config":{"c_info":{"type":"pv","name":"web","uuid":"u"},"b_info":{"max_vcpus":1,"avail_vcpus":[0],"max_memkb":65536,"target_memkb":65536,"kernel":"/k"},"disks":[{"pdev_path":"/a","vdev":"xvda","backend":"phy","format":"raw","readwrite":1}],"on_reboot":"restart"}}]}}"#,
        ],
        r#"{"version":1,"op":"configs","targets":["web"]}"#,
        &expect![[r#"
            [
                {
                    "domid": 3,
                    "config": {
                        "c_info": {
                            "type": "pv",
                            "name": "web",
                            "uuid": "u"
                        },
                        "b_info": {
                            "max_vcpus": 1,
                            "avail_vcpus": [
                                0
                            ],
                            "max_memkb": 65536,
                            "target_memkb": 65536,
                            "kernel": "/k"
                        },
                        "disks": [
                            {
                                "pdev_path": "/a",
                                "vdev": "xvda",
                                "backend": "phy",
                                "format": "raw",
                                "readwrite": 1
                            }
                        ],
                        "on_reboot": "restart"
                    }
                }
            ]
            = 0
        "#]],
    );
}

#[test]
fn a_refusal_of_the_daemon_is_one_line_and_status_1() {
    check(
        &["list", "nosuch"],
        &[r#"{"error":"domain nosuch: no such domain"}"#],
        r#"{"version":1,"op":"list","targets":["nosuch"]}"#,
        &expect![[r#"
            ! xy: domain nosuch: no such domain
            = 1
        "#]],
    );
}

#[test]
fn an_answer_to_another_question_is_an_error() {
    check(
        &["list"],
        &[DONE],
        r#"{"version":1,"op":"list","targets":[]}"#,
        &expect![[r#"
            ! xy: unexpected answer from xylemd: Done
            = 1
        "#]],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn small_commands_ask_and_print() {
    check(
        &["domid", "web"],
        &[r#"{"ok":{"domid":3}}"#],
        r#"{"version":1,"op":"domid","name":"web"}"#,
        &expect![[r#"
            3
            = 0
        "#]],
    );
    check(
        &["domname", "3"],
        &[r#"{"ok":{"domname":"web"}}"#],
        r#"{"version":1,"op":"domname","domid":3}"#,
        &expect![[r#"
            web
            = 0
        "#]],
    );
    check(
        &["info"],
        &[r#"{"ok":{"info":[["host","lab"],["xen_major","4"]]}}"#],
        r#"{"version":1,"op":"info"}"#,
        &expect![[r#"
            host                   : lab
            xen_major              : 4
            = 0
        "#]],
    );
    check(
        &["info", "xen_major"],
        &[r#"{"ok":{"info":[["host","lab"],["xen_major","4"]]}}"#],
        r#"{"version":1,"op":"info"}"#,
        &expect![[r#"
            4
            = 0
        "#]],
    );
    check(
        &["info", "colour"],
        &[r#"{"ok":{"info":[]}}"#],
        r#"{"version":1,"op":"info"}"#,
        &expect![[r#"
            ! xy: info has no "colour"
            = 1
        "#]],
    );
    check(
        &["block-list", "web", "3"],
        &[r#"{"ok":{"blocks":[]}}"#],
        r#"{"version":1,"op":"block-list","targets":["web","3"]}"#,
        &expect![[r#"
            Vdev  BE  handle state evt-ch ring-ref BE-path                       
            = 0
        "#]],
    );
    check(
        &["block-detach", "--force", "web", "xvdb"],
        &[r#"{"ok":"done"}"#],
        r#"{"version":1,"op":"block-detach","target":"web","disk":"xvdb","force":true}"#,
        &expect![[r#"
            = 0
        "#]],
    );
    check(
        &["network-attach", "web", "bridge=xenbr0", "mac=00:16:3e:01:02:03"],
        &[r#"{"error":"web: no such domain"}"#],
        r#"{"version":1,"op":"network-attach","target":"web","vif":"bridge=xenbr0,mac=00:16:3e:01:02:03"}"#,
        &expect![[r#"
            ! xy: web: no such domain
            = 1
        "#]],
    );
    check(
        &["plan", "reboot", "web"],
        &[r#"{"ok":{"text":"0   pause\n"}}"#],
        r#"{"version":1,"op":"plan","of":{"reboot":{"target":"web"}}}"#,
        &expect![[r#"
            0   pause
            = 0
        "#]],
    );
    check(
        &["network-list", "web"],
        &[r#"{"ok":{"networks":[]}}"#],
        r#"{"version":1,"op":"network-list","targets":["web"]}"#,
        &expect![[r#"
            Idx BE Mac Addr.         handle state evt-ch   tx-/rx-ring-ref BE-path                       
            = 0
        "#]],
    );
    check(
        &["vcpu-list"],
        &[r#"{"ok":{"vcpus":[]}}"#],
        r#"{"version":1,"op":"vcpu-list","targets":[]}"#,
        &expect![[r#"
            Name                                ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)
            = 0
        "#]],
    );
    check(
        &["counters"],
        &[
            r#"{"ok":{"counters":{"cost":{"hypercalls":{"getdomaininfolist":2}},"counts":{"ignored: gone":1}}}}"#,
        ],
        r#"{"version":1,"op":"counters"}"#,
        &expect![[r#"
            store messages                        0
            store round trips                     0
            transactions                          0
            conflicts                             0
            hypercalls                            2
              getdomaininfolist                   2
            ignored: gone                         1
            = 0
        "#]],
    );
}

#[test]
fn uptime_of_domains_whose_start_is_not_known_is_left_out() {
    check(
        &["uptime", "web"],
        &[r#"{"ok":{"domains":[{"name":"web","domid":3}]}}"#],
        r#"{"version":1,"op":"uptime","targets":["web"]}"#,
        &expect![[r#"
            Name                                ID Uptime
            = 0
        "#]],
    );
}

#[test]
fn several_domains_are_each_tried() {
    let refused = r#"{"error":"domain a: no such domain"}"#;
    let (said, requests) = Daemon::new(&[&[refused], &[DONE]]).run(&["destroy", "a", "b"]);
    said.assert(1, "", "xy: domain a: no such domain\n");
    assert_eq!(
        requests,
        [
            r#"{"version":1,"op":"destroy","target":"a"}"#,
            r#"{"version":1,"op":"destroy","target":"b"}"#,
        ]
    );
    for command in ["pause", "unpause"] {
        let (said, requests) = Daemon::new(&[&[DONE]]).run(&[command, "a"]);
        said.assert(0, "", "");
        assert_eq!(requests, [format!(r#"{{"version":1,"op":"{command}","target":"a"}}"#)]);
    }
}

#[test]
fn shutdown_speaks_as_xl_does() {
    check(
        &["shutdown", "-w", "web"],
        &[
            r#"{"event":{"domid":3,"what":"shutdown-requested"}}"#,
            r#"{"event":{"domid":3,"what":"shut-down","reason":0}}"#,
            DONE,
        ],
        r#"{"version":1,"op":"shutdown","targets":{"these":["web"]},"wait":"shutdown"}"#,
        &expect![[r#"
            ! Shutting down domain 3
            ! Waiting for 1 domains
            ! Domain 3 has been shut down, reason code 0
            = 0
        "#]],
    );
    check(
        &["shutdown", "-aww"],
        &[DONE],
        r#"{"version":1,"op":"shutdown","targets":"all","wait":"gone"}"#,
        &expect![[r#"
            = 0
        "#]],
    );
    check(
        &["reboot", "-F", "3"],
        &[r#"{"event":{"domid":3,"what":"reboot-requested"}}"#, DONE],
        r#"{"version":1,"op":"reboot","targets":{"these":["3"]},"wait":"asked","acpi":true}"#,
        &expect![[r#"
            ! Rebooting domain 3
            = 0
        "#]],
    );
    run_alone(&["shutdown"]).assert(2, "", "xy: You must specify -a or a domain id.\n");
    run_alone(&["shutdown", "-a", "web"]).assert(
        2,
        "",
        "xy: -a means all domains; do not name any\n",
    );
}

const CREATED: &str = r#"{"ok":{"created":{"name":"web","domid":3,"uuid":"01234567-89ab-cdef-0123-456789abcdef","stages":[{"name":"build","start_us":100,"end_us":2100}],"cost":{"store_messages":80}}}}"#;

fn create(arguments: &[&str], answers: &[&str]) -> (String, String) {
    let daemon = Daemon::new(&[answers]);
    std::fs::write(daemon.directory().join("web.cfg"), "name = 'web'\n").unwrap();
    let directory = daemon.directory().canonicalize().unwrap();
    let (said, requests) = daemon.run(arguments);
    let request = requests.join("\n").replace(&directory.display().to_string(), "CWD");
    (render(&said), request)
}

#[test]
fn create_sends_the_file_and_where_it_is() {
    let (said, request) = create(&["create", "web.cfg"], &[CREATED]);
    assert_eq!(said, "! Parsing config from web.cfg\n= 0\n");
    assert_eq!(
        request,
        r#"{"version":1,"op":"create","file":"web.cfg","config_text":"name = 'web'\n","overrides":[],"cwd":"CWD","paused":false,"dry_run":false,"warnings":true,"progress":false}"#
    );
}

#[test]
fn create_takes_options_and_settings_in_any_order() {
    let (said, request) =
        create(&["cre", "-pq", "memory=64", "-f", "web.cfg", "name=a b", "-e"], &[CREATED]);
    assert_eq!(said, "= 0\n");
    assert_eq!(
        request,
        r#"{"version":1,"op":"create","file":"web.cfg","config_text":"name = 'web'\n","overrides":["memory=64","name=a b"],"cwd":"CWD","paused":true,"dry_run":false,"warnings":true,"progress":false}"#
    );
}

#[test]
fn create_prints_stages_or_json_on_demand() {
    let (said, _) = create(&["create", "-q", "--stages", "web.cfg"], &[CREATED]);
    expect![[r#"
        web is domain 3, 01234567-89ab-cdef-0123-456789abcdef
        Stage                          start ms     end ms    took ms
        build                             0.100      2.100      2.000
        total                             0.100      2.100      2.000

        store messages                       80
        store round trips                     0
        transactions                          0
        conflicts                             0
        hypercalls                            0
        = 0
    "#]]
    .assert_eq(&said);
    let (said, _) = create(&["create", "-q", "--json", "web.cfg"], &[CREATED]);
    assert!(said.starts_with("{\n    \"name\": \"web\",\n    \"domid\": 3,\n"), "{said}");
}

#[test]
fn create_shows_progress_when_told() {
    let progress = r#"{"progress":{"vm":"web","done":1,"total":4,"step":"build"}}"#;
    let (said, _) = create(&["-v", "create", "-q", "web.cfg"], &[progress, CREATED]);
    assert_eq!(said, "! web: 1/4 build\n= 0\n");
    let (said, _) = create(&["create", "-q", "web.cfg"], &[progress, CREATED]);
    assert_eq!(said, "= 0\n");
    let (said, _) = create(&["-t", "create", "-q", "web.cfg"], &[progress, CREATED]);
    assert_eq!(said, format!("! \r{:<70}\n= 0\n", "web: 1/4 build"));
    let (said, _) = create(&["-vT", "create", "-q", "web.cfg"], &[progress, CREATED]);
    let (stamp, rest) = said.split_at("! [    0.000] ".len());
    assert!(stamp.starts_with("! [  ") && stamp.ends_with("] "), "{stamp}");
    assert_eq!(rest, "web: 1/4 build\n= 0\n");
}

#[test]
fn text_from_elsewhere_stays_on_its_line() {
    check(
        &["list"],
        &[r#"{"error":"two\nlines \u001b[2J"}"#],
        r#"{"version":1,"op":"list","targets":[]}"#,
        &expect![[r#"
            ! xy: two lines  [2J
            = 1
        "#]],
    );
}

#[test]
fn warnings_are_told_beside_the_result() {
    let warning = r#"{"warning":"web.cfg:2: warning: dhcp: ignored,\nas xl ignores it"}"#;
    let (said, _) = create(&["create", "-q", "web.cfg"], &[warning, CREATED]);
    assert_eq!(said, "! web.cfg:2: warning: dhcp: ignored, as xl ignores it\n= 0\n");
    let (_, request) = create(&["create", "-q", "--strict", "web.cfg"], &[CREATED]);
    assert!(request.contains(r#""strict":true"#), "{request}");
}

#[test]
fn a_dry_run_prints_the_configuration_and_all_that_is_wrong() {
    let fine = r#"{"ok":{"checked":{"config":{"config":{"c_info":{"name":"web"}}}}}}"#;
    for arguments in [&["create", "-qn", "web.cfg"][..], &["-N", "create", "-q", "web.cfg"]] {
        let (said, request) = create(arguments, &[fine]);
        assert!(request.starts_with(r#"{"version":1,"op":"check","file":"web.cfg","#), "{request}");
        assert!(said.starts_with("{\n    \"c_info\": {\n"), "{said}");
        assert!(said.ends_with("\n= 0\n"), "{said}");
    }
    let faulty =
        r#"{"ok":{"checked":{"faults":["web.cfg:1: a: b","web.cfg:2: c: d"],"warnings":["w"]}}}"#;
    let (said, _) = create(&["create", "-qn", "web.cfg"], &[faulty]);
    assert_eq!(said, "! w\n! xy: web.cfg:1: a: b\n! xy: web.cfg:2: c: d\n= 1\n");
}

#[test]
fn check_tells_all_faults_of_all_files() {
    let fine = r#"{"ok":{"checked":{"warnings":["a.cfg:9: warning: dhcp: ignored"]}}}"#;
    let faulty = r#"{"ok":{"checked":{"faults":["b.cfg:1: a: b","b.cfg:2: c: d"]}}}"#;
    let daemon = Daemon::new(&[&[fine], &[faulty]]);
    for file in ["a.cfg", "b.cfg"] {
        std::fs::write(daemon.directory().join(file), "name = 'web'\n").unwrap();
    }
    let (said, requests) = daemon.run(&["check", "a.cfg", "vcpus=2", "no-such.cfg", "b.cfg"]);
    expect![[r#"
        a.cfg:9: warning: dhcp: ignored
        a.cfg: ok
        cannot read no-such.cfg: No such file or directory (os error 2)
        b.cfg:1: a: b
        b.cfg:2: c: d
        ! xy: check: 2 files have faults
        = 1
    "#]]
    .assert_eq(&render(&said));
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|it| it.contains(r#""overrides":["vcpus=2"]"#)), "{requests:?}");
}

#[test]
fn in_the_foreground_create_stays_until_the_domain_is_gone() {
    let here = r#"{"ok":{"domains":[{"domid":0},{"domid":3}]}}"#;
    let gone = r#"{"ok":{"domains":[{"domid":0},{"domid":4}]}}"#;
    let daemon = Daemon::new(&[&[CREATED], &[here], &[gone]]);
    std::fs::write(daemon.directory().join("web.cfg"), "").unwrap();
    let (said, requests) = daemon.run(&["create", "-qF", "web.cfg"]);
    said.assert(0, "", "");
    assert_eq!(requests.len(), 3);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    run_alone(&["create", "/nonexistent/web.cfg"]).assert(
        1,
        "",
        "xy: cannot read /nonexistent/web.cfg: No such file or directory (os error 2)\n",
    );
    run_alone(&["create", "/proc/self/exe"]).assert(1, "", "xy: /proc/self/exe: not UTF-8 text\n");
}

#[test]
fn without_a_daemon_the_socket_is_named() {
    run_alone(&["list"]).assert(
        1,
        "",
        "xy: cannot reach xylemd at /nonexistent/sock: No such file or directory (os error 2); is it running?\n",
    );
}

#[test]
fn a_daemon_that_goes_away_is_a_failure() {
    check(
        &["list"],
        &[r#"{"ok":"#],
        r#"{"version":1,"op":"list","targets":[]}"#,
        &expect![[r#"
            ! xy: bad answer from xylemd: cannot decode the message: EOF while parsing a value at line 1 column 6
            = 1
        "#]],
    );
}

#[test]
fn wrong_usage_is_status_2() {
    for (arguments, message) in [
        (&["frobnicate"][..], "\"frobnicate\" is no command; see 'xy help'"),
        (
            &["d", "web"],
            "\"d\" is ambiguous: disown, destroy, domid, domname, dump-core, dmesg, debug-keys, doctor, dominfo, define",
        ),
        (&["-x", "list"], "-x: unknown global option; see 'xy help'"),
        (&["-N", "pause", "web"], "pause: cannot be run dry (-N)"),
        (&["pause"], "pause: requires at least 1 argument; see 'xy help pause'"),
        (&["domname", "web"], "domname: \"web\" is not a domain ID"),
        (&["create"], "create: a configuration file is missing; see 'xy help create'"),
        (&["create", "a", "b"], "create: \"b\" is one file too many; see 'xy help create'"),
        (&["top", "-i", "0"], "top: --iterations 0: not a valid number"),
        (&["top", "-d", "never"], "top: --delay takes seconds, up to a day"),
        (
            &["top", "-s", "colour"],
            "top: cannot sort by \"colour\"; by name, domid, cpu, time, mem, vcpus, net, disk",
        ),
        (&["info", "-n", "--json"], "info: -n prints a table; use it without KEY and --json"),
        (
            &["cpupool-create", "a", "b"],
            "cpupool-create: \"b\" is one argument too many; see 'xy help cpupool-create'",
        ),
        (&["console", "-t", "vnc", "a"], "console: type \"vnc\" is none of pv, serial and vuart"),
        (&["console", "-e", "xx", "a"], "console: \"xx\" is not an escape character such as ^]"),
        (&["help", "frobnicate"], "\"frobnicate\" is no command; see 'xy help'"),
    ] {
        run_alone(arguments).assert(2, "", &format!("xy: {message}\n"));
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn help_is_there_without_a_daemon() {
    let said = run_alone(&["help"]);
    assert_eq!(said.status, Some(0));
    expect![[r#"
        Usage xy [-vfNtT] <subcommand> [args]

        xy full list of subcommands:

         create              Create a domain from config file <filename>
         check               Print all that is wrong with config files, on this host and now
         list                List information about all/some domains
         adopt               Take over a running domain that xl or libvirt made
         disown              Give running VMs to xl
         destroy             Terminate a domain immediately
         shutdown            Issue a shutdown signal to a domain
         reboot              Issue a reboot signal to a domain
         pause               Pause execution of a domain
         unpause             Unpause a paused domain
         save                Save a domain state to restore later
         restore             Restore a domain from a saved state
         host-shutdown       Shut down or save all VMs, before the host is shut down
         checkpoint          Keep a domain's memory and disks as they are now
         checkpoint-list     List checkpoints of all VMs or of these
         checkpoint-destroy  Destroy checkpoints and their snapshots
         revert              Take a VM and its disks back to a checkpoint
         clone               Run copies of a checkpoint or saved VM
         suspend             Suspend a domain's guest; the domain stays in memory
         resume              Resume a suspended domain
         migrate             Migrate a domain to another host
         migrate-receive     Receive a domain from another host, on standard input and output
         console             Attach to domain's console
         vncviewer           Attach to the screen of an HVM domain
         domid               Convert a domain name to domain id
         domname             Convert a domain id to domain name
         vcpu-list           List the VCPUs for all/some domains
         mem-max             Set the maximum amount reservation for a domain
         mem-set             Set the current memory usage for a domain
         vcpu-set            Set the number of active VCPUs allowed for the domain
         vcpu-pin            Set which CPUs a VCPU can use
         rename              Rename a domain
         trigger             Send a trigger to a domain
         sysrq               Send a sysrq to a domain
         button-press        Indicate an ACPI button press to the domain
         sched-credit        Get/set credit scheduler parameters
         sched-credit2       Get/set credit2 scheduler parameters
         sched-rtds          Get/set rtds scheduler parameters
         uptime              Print uptime for all/some domains
         block-list          List virtual block devices for a domain
         network-list        List virtual network interfaces for a domain
         channel-list        List virtual channel devices for a domain
         vkb-list            List virtual keyboard devices for a domain
         sr-create           Create a storage repository
         sr-introduce        Introduce an existing storage repository
         sr-forget           Forget a storage repository; its VDIs stay
         sr-destroy          Destroy an empty storage repository
         sr-list             List the storage repositories
         sr-info             Print size and free space of a storage repository
         sr-scan             Rescan storage repositories and list their VDIs
         vdi-list            List the virtual disk images of all/some repositories
         vdi-create          Create an empty virtual disk image
         vdi-destroy         Destroy a virtual disk image and its data
         vdi-resize          Grow a virtual disk image
         vdi-snapshot        Take a read-only snapshot of a virtual disk image
         vdi-clone           Clone a virtual disk image
         vdi-move            Move a virtual disk image that nobody uses to another repository
         block-attach        Create a new virtual block device
         block-detach        Destroy a domain's virtual block device
         network-attach      Create a new virtual network device
         network-detach      Destroy a domain's virtual network device
         vkb-attach          Create a new virtual keyboard device
         vkb-detach          Destroy a domain's virtual keyboard device
         cd-insert           Insert a CD-ROM into a guest's CD drive
         cd-eject            Eject a CD-ROM from a guest's CD drive
         explain             Print the operation under way for a domain and what its steps wait for
         plan                Print the plan of steps that a command would take
         limits              Print or change how many steps run at the same time
         dump-core           Core dump a domain
         config-update       Update a running domain's saved configuration, used when rebuilding the domain after reboot
         qemu-monitor-command Issue a qemu monitor command to the device model of a domain
         vm-create           Create a VM from an image, and start it
         export              Write a VM with its disks to one file; see 'xy help import'
         import              Make a VM of a file that 'xy export' has written; it is defined, and down
         template-list       List the templates for vm-create, with their first comments
         info                Get information about Xen host
         dmesg               Read and/or clear dmesg buffer
         debug-keys          Send debug keys to Xen
         set-parameters      Set parameters of Xen while it runs: 'name=value noname'
         getenforce          Print whether Xen's security module Flask enforces its policy
         setenforce          Make Xen's security module Flask enforce its policy, or only log
         loadpolicy          Load a policy into Xen's security module Flask
         pci-assignable-add  Make a device assignable for PCI passthrough
         pci-assignable-remove Remove a device from being assignable
         pci-assignable-list List all the assignable PCI devices
         psr-hwinfo          Show hardware information for Platform Shared Resource
         psr-cmt-attach      Attach Cache Monitoring Technology service to a domain
         psr-cmt-detach      Detach Cache Monitoring Technology service from a domain
         psr-cmt-show        Show Cache Monitoring Technology information
         psr-cat-set         Set cache capacity bitmasks(CBM) for a domain
         psr-cat-show        Show Cache Allocation Technology information
         psr-mba-set         Set throttling value (THRTL) for a domain
         psr-mba-show        Show Memory Bandwidth Allocation information
         pci-attach          Insert a new pass-through pci device
         pci-detach          Remove a domain's pass-through pci device
         pci-list            List the PCI devices that a domain has
         sharing             List how much memory domains share with others
         claims              List outstanding claim information about all domains
         cpupool-create      Create a new CPU pool
         cpupool-list        List CPU pools on host
         cpupool-destroy     Deactivates a CPU pool
         cpupool-rename      Renames a CPU pool
         cpupool-cpu-add     Adds a CPU to a CPU pool
         cpupool-cpu-remove  Removes a CPU from a CPU pool
         cpupool-migrate     Moves a domain into a CPU pool
         cpupool-numa-split  Splits up the machine into one CPU pool per NUMA node
         doctor              Print what of this host is not as it should be, and what to do
         bugreport           Write a tar file of versions, states, counters and logs, without passwords
         counters            Print counters of xylemd since its start
         hypercalls          Print hypercall counts and latencies
         top                 Monitor the domains, as xentop does
         dominfo             Print details of a domain
         define              Define a VM that outlives its domain
         undefine            Remove the definition of a VM; its domain keeps running
         vm-list             List all VMs, defined or only running
         start               Start a defined VM
         wait                Wait until a VM is running, paused, preserved, down or gone
         events              Print state changes of VMs, or what has changed of objects
         objects             Print what the daemon knows, and with -f each change of it
         trace               List the last operations, or draw where the time of one went
         xl                  Take xl's place: its commands, messages and exit status, for scripts
         image               Images of disks that VMs are made from; see 'xy help image'
         peer                Hosts to and from which VMs move by TLS; see 'xy help peer'
         store               Read and change the store; see 'xy help store'
         completion          Print the script that completes words of xy in a shell
         complete            Print what may stand in place of the last word, for that script
         manual              Print the manual page, for man(1)

        A subcommand may be shortened as long as it stays unambiguous.

        Global options:

        -v                      Print each step.
        -t                      Print each step on one line, with carriage returns.
        -T                      Prefix messages with the time since the start.
        -N                      Dry run: check everything, do nothing.
        -f                      Accepted for xl compatibility, ignored.
        --host URL              Ask another host, by its xylem-web (XYLEM_HOST).
        --token-file FILE       Its token (XYLEM_TOKEN, or ~/.config/xylem/token).
        --ca FILE               Who signs its certificate, in PEM (XYLEM_CA).
    "#]]
    .assert_eq(&said.stdout);
    assert_eq!(run_alone(&[]).stdout, said.stdout);
    assert_eq!(run_alone(&[]).status, Some(2));
    assert_eq!(run_alone(&["list", "-h"]), run_alone(&["help", "list"]));
    assert_eq!(run_alone(&["--version"]).stdout, concat!("xy ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn top_prints_as_many_tables_as_were_asked_for() {
    let info = r#"{"ok":{"info":[["total_memory","4096"]]}}"#;
    let list = |time: u64| {
        format!(
            r#"{{"ok":{{"domains":[{{"name":"Domain-0","mem_kib":1048576,"mem_max_kib":1048576,"vcpus_online":2,"running":true,"cpu_time_ns":{time}}},{{"name":"web","domid":3,"cpu_time_ns":5000000000}}]}}}}"#
        )
    };
    let (first, second) = (list(1_000_000_000), list(1_000_000_001));
    let traffic = r#"{"ok":{"traffic":{"vifs":[{"domid":0,"sent_bytes":4096}]}}}"#;
    let daemon = Daemon::new(&[&[info], &[&first], &[traffic], &[&second], &[traffic]]);
    let arguments = ["top", "-b", "-i", "2", "-d", "0", "-s", "time", "-F", "Domain"];
    let (said, requests) = daemon.run(&arguments);
    assert_eq!(requests.len(), 5);
    assert_eq!(requests[2], r#"{"version":1,"op":"traffic"}"#);
    let text = render(&said);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].contains("NAME  STATE   CPU(sec) CPU(%)"), "{text}");
    assert!(
        lines[1].starts_with("  Domain-0 -----r          1    0.0    1048576   25.0"),
        "{text}"
    );
    assert_eq!((lines[2], lines[4]), (lines[0], "= 0"));
}

#[test]
fn dominfo_and_hypercalls_ask_and_print() {
    check(
        &["dominfo", "--json", "web"],
        &[r#"{"ok":{"domains":[]}}"#],
        r#"{"version":1,"op":"list","targets":["web"]}"#,
        &expect![[r#"
            []
            = 0
        "#]],
    );
    let answer = r#"{"ok":{"activity":{"seconds":9,"hypercalls":[{"hypercall":"domctl","count":4,"latency":{"count":4,"total_ns":8000}}]}}}"#;
    check(
        &["hypercalls"],
        &[answer],
        r#"{"version":1,"op":"activity"}"#,
        &expect![[r#"
        Hypercall                         calls    mean us     p50 us     p99 us     max us   total ms
        domctl                                4        2.0        0.0        0.0        0.0        0.0
        all                                   4   in 9 s
        = 0
    "#]],
    );
}
