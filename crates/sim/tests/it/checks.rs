//! Checks of a configuration: they find all errors of a create, and create nothing.

use expect_test::expect;
use toolstack::{Reply, Request, xlcfg};
use xen::Uuid;

use crate::support::{Lab, unikernel};

/// Everything that is wrong with a file on this host, its own faults first.
fn faults(lab: &mut Lab, text: &str) -> Vec<String> {
    let source = xlcfg::Source { file: "vm.cfg", text, overrides: &[] };
    let reading = xlcfg::read(source, xlcfg::Strictness::Tolerant);
    let mut faults: Vec<_> = reading.faults.iter().map(ToString::to_string).collect();
    let Some(config) = reading.config else { return faults };
    let request = Request::Check {
        config: Box::new(config),
        fresh_uuid: Uuid([7; 16]),
        is_whole: faults.is_empty(),
    };
    match lab.ask(request) {
        Reply::Checked { faults: more } => faults.extend(more),
        other => panic!("{other:?}"),
    }
    faults
}

#[test]
fn a_check_finds_all_errors_of_a_create_and_creates_nothing() {
    let mut lab = Lab::seeded(50);
    let domid = lab.create(&unikernel("web", "pv", "idle")).unwrap();
    lab.settle();
    let before = lab.host.snapshot().unwrap();
    let text = "name = 'web'\nkernel = '/no-such-kernel'\nmemory = 8\non_crash = 'rename-restart'\n\
                disk = [ '/no-such-disk,raw,xvda,w', '/directory,raw,xvdb,w', 'sr:vdi,raw,xvdc,w' ]\n\
                vif = [ 'bridge=nobr', 'vifname=xenbr0', 'bridge=xenbr0' ]\n";
    expect![[r#"
        vm.cfg:4: on_crash: rename-restart is not supported; "preserve" keeps the domain, "restart" starts the VM again
        vm.cfg:1: name: a domain named web exists already
        vm.cfg:2: kernel: /no-such-kernel: no such file or directory
        vm.cfg:5: disk[0]: /no-such-disk: no such file or directory
        vm.cfg:5: disk[1]: /directory: neither a regular file nor a block device
        vm.cfg:5: disk[2]: sr: no such SR; `xy sr-list` shows them all
        vm.cfg:6: vif[0]: no bridge named nobr on this host; `ip link add nobr type bridge` makes one
        vm.cfg:6: vif[1]: vifname=xenbr0: this host has an interface of that name already"#]]
    .assert_eq(&faults(&mut lab, text).join("\n"));
    let memory = unikernel("db", "pvh", "idle").replace("memory = 8", "memory = 4000000");
    let told = faults(&mut lab, &memory).join("\n");
    assert!(told.starts_with("vm.cfg:4: memory: VM db needs 40"), "{told}");
    // Faults of the file itself keep none of the host's from being told.
    expect![[r#"
        vm.cfg:3: memroy: unknown key; did you mean memory?
        vm.cfg:2: kernel: /directory: not a regular file with contents"#]]
    .assert_eq(&faults(&mut lab, "name = 'db'\nkernel = '/directory'\nmemroy = 8\n").join("\n"));
    assert_eq!(faults(&mut lab, &unikernel("db", "pv", "idle")), Vec::<String>::new());
    lab.settle();
    assert_eq!(lab.host.snapshot().unwrap().differences(&before), Vec::<String>::new());
    assert!(matches!(lab.destroy(&domid.to_string()), Reply::Gone { .. }));
    lab.assert_nothing_left();
}

#[test]
fn a_check_and_a_create_report_the_same_error() {
    let mut lab = Lab::seeded(51);
    for text in [
        "name = 'a'\nkernel = '/no-kernel'\nmemory = 8\n",
        "name = 'a'\nkernel = '/kernel'\nramdisk = '/nothing'\nmemory = 8\n",
        "name = 'a'\nkernel = '/kernel'\nmemory = 4000000\n",
        "name = 'a'\nkernel = '/kernel'\nmemory = 8\ndisk = [ '/directory,raw,xvda,w' ]\n",
        "name = 'a'\nkernel = '/kernel'\nmemory = 8\nvif = [ 'bridge=nobr' ]\n",
        "name = 'a'\nkernel = '/kernel'\nmemory = 8\non_crash = 'rename-restart'\n",
    ] {
        let refused = lab.create(text).unwrap_err();
        assert_eq!(faults(&mut lab, text), [refused], "{text}");
    }
    lab.assert_nothing_left();
}
