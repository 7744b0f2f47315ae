//! Keys about how Xen runs a guest's machine.

use expect_test::expect;

use crate::xlcfg::{check, check_error};

#[test]
fn words_and_numbers_of_modes_are_taken() {
    check(
        "type = 'pvh'\naltp2m = 'external'\naltp2m_count = 3\ntimer_mode = 'one_missed_tick_pending'\n\
         oos = 0\nvmtrace_buf_kb = 61\nvpmu = 1\nvpt_align = 0\nhvm_pirq = 1\npassthrough = 'disabled'\n",
        &[],
        &expect![[r#"
            kind: Pvh,
            altp2m: External,
            altp2m_count: Some(
            3,
            ),
            timer_mode: OnePending,
            vpmu: true,
            trace_kib: 64,
            out_of_sync: false,
            passthrough: Disabled,
        "#]],
    );
    check(
        "type = 'pvh'\naltp2m = 1\ntimer_mode = 2\n",
        &[],
        &expect![[r#"
        kind: Pvh,
        altp2m: Mixed,
        timer_mode: Dropped,
    "#]],
    );
    // For PV domains xl only checks them.
    check("altp2m = 'mixed'\naltp2m_count = 3\noos = 0\n", &[], &expect![""]);
}

#[test]
fn an_hvm_guest_has_the_earlier_key_too() {
    let config = crate::xlcfg::parse_with(
        "name='g'\ntype='hvm'\nmemory=64\naltp2mhvm=1\nvpt_align=0\nhvm_pirq=1\npassthrough='share_pt'",
        &[],
    );
    expect![[r#"
        MachineOptions {
            altp2m: Mixed,
            altp2m_count: None,
            timer_mode: NoDelay,
            timers_aligned: false,
            pirqs: true,
            vpmu: false,
            trace_kib: 0,
            out_of_sync: true,
            passthrough: Shared,
        }
    "#]]
    .assert_debug_eq(&config.unwrap().options.machine);
}

#[test]
fn what_xl_refuses_is_refused() {
    const GROWS: &str = "needs all of maxmem at the start, as with xl: memory must be as large";
    for (kind, lines, problem) in [
        ("pv", "timer_mode = 1", "timer_mode: not for PV domains, which have no such timers"),
        (
            "hvm",
            "timer_mode = 4",
            "timer_mode: \"4\": expected one of delay_for_missed_ticks, no_delay_for_missed_ticks, \
             no_missed_ticks_pending, one_missed_tick_pending",
        ),
        ("pv", "altp2m = 'x'", "altp2m: \"x\": expected one of disabled, mixed, external, limited"),
        ("pvh", "altp2m = 2; nestedhvm = 1", "altp2m: not together with nestedhvm"),
        ("hvm", "altp2mhvm = 1; nestedhvm = 1", "altp2mhvm: not together with nestedhvm"),
        ("pvh", "altp2m = 2; maxmem = 65", &format!("altp2m: {GROWS}")),
        ("hvm", "passthrough = 'sync_pt'; maxmem = 65", &format!("passthrough: {GROWS}")),
        (
            "pvh",
            "passthrough = 'enabled'",
            "passthrough: not for PVH domains: Xen gives them no devices of the host yet",
        ),
        (
            "pv",
            "passthrough = 'share_pt'",
            "passthrough: share_pt is not for PV domains, which have no tables to be shared",
        ),
        (
            "hvm",
            "passthrough = 'share_pt'; hap = 0",
            "passthrough: share_pt is for guests with hap",
        ),
        (
            "hvm",
            "passthrough = 'on'",
            "passthrough: \"on\": expected one of default, disabled, enabled, sync_pt, share_pt",
        ),
        ("pv", "pci = [ '0:1' ]", "pci[0]: \"0:1\": expected KEY=VALUE"),
        ("hvm", "pci = [ '0:1.0' ]; maxmem = 65", &format!("pci: {GROWS}")),
        (
            "pvh",
            "pci = [ '0:1.0' ]",
            "pci: not for PVH domains: Xen gives them no devices of the host yet",
        ),
        (
            "pv",
            "pci = [ '0:1.0' ]; passthrough = 'disabled'",
            "passthrough: disabled, but pci names devices, which need it",
        ),
        (
            "hvm",
            "rdm = 'strategy=all'",
            "rdm: \"strategy=all\": expected strategy=host and policy=strict or policy=relaxed",
        ),
        (
            "hvm",
            "gfx_passthru = 'igd'",
            "gfx_passthru: pci gives a guest a graphics card as any other device; what makes one its first screen is not there yet",
        ),
        ("pv", "vmtrace_buf_kb = 4", "vmtrace_buf_kb: Xen traces no PV domains"),
        ("hvm", "vmtrace_buf_kb = 12", "vmtrace_buf_kb: 12 KiB: expected a power of two"),
        (
            "hvm",
            "vmtrace_buf_kb = 65537",
            "vmtrace_buf_kb: 65537 is out of range; expected 0 to 65536",
        ),
        ("hvm", "altp2m_count = 65536", "altp2m_count: 65536 is out of range; expected 0 to 65535"),
    ] {
        let text = format!("name='g'\ntype='{kind}'; kernel='/k'\nmemory=64\n{lines}\n");
        check_error(&text, &[], &format!("guest.cfg:4: {problem}"));
    }
}

#[test]
fn a_device_has_what_is_said_for_all_unless_it_says_otherwise() {
    let config = crate::xlcfg::parse_with(
        "name='g'\nkernel='/k'\nmemory=64\npci_permissive=1\npci_msitranslate=1\n\
         pci=['01:00.1,msitranslate=0', 'name=card']",
        &[],
    );
    let devices = config.unwrap().options.pci;
    let told: Vec<_> = devices
        .iter()
        .map(|it| (it.name.to_string(), it.permissive, it.msitranslate, it.seize))
        .collect();
    assert_eq!(
        told,
        [("0000:01:00.1".to_owned(), true, false, false), ("card".to_owned(), true, true, false)]
    );
}

#[test]
fn a_kernel_runs_in_a_shim_or_is_grub() {
    check(
        "type = 'pvh'\npvshim = 1\npvshim_path = '/shim'\npvshim_extra = 'loglvl=all'\n",
        &[],
        &expect![[r#"
            kind: Pvh,
            shim: Some(
            Shim {
            path: Some(
            "/shim",
            ),
            cmdline: "pv-shim console=xen,pv loglvl=all",
            },
            ),
        "#]],
    );
    check("pvshim = 1\npvshim_path = '/shim'\n", &[], &expect![[""]]);
    for (kind, word, path) in [
        ("pv", "pvgrub32", "/usr/lib/grub-xen/grub-i386-xen.bin"),
        ("pv", "pvgrub64", "/usr/lib/grub-xen/grub-x86_64-xen.bin"),
        ("pvh", "pvgrub64", "/usr/lib/grub-xen/grub-i386-xen_pvh.bin"),
    ] {
        let text = format!("name='g'\ntype='{kind}'\nmemory=64\nfirmware='{word}'\n");
        let config = crate::xlcfg::parse_with(&text, &[]).unwrap();
        assert_eq!(config.kernel.as_deref(), Some(path));
    }
    for (line, problem) in [
        ("kernel='/k'; firmware='pvgrub64'", "not together with kernel: it stands for one"),
        (
            "firmware='ovmf'",
            "\"ovmf\": expected pvgrub32 or pvgrub64; name another kernel with kernel=",
        ),
    ] {
        let text = format!("name='g'\ntype='pvh'\nmemory=64\n{line}\n");
        check_error(&text, &[], &format!("guest.cfg:4: firmware: {problem}"));
    }
}
