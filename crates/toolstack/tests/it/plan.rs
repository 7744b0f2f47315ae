//! Plans as text: what a create and a teardown do, in which order, and what undoes what.

use expect_test::{Expect, expect};
use toolstack::config::VmConfig;
use toolstack::plan::{Reached, Start, plan_create, plan_teardown};
use toolstack::xlcfg::{self, Source};

pub(crate) fn config(text: &str) -> VmConfig {
    let text = format!("type = 'pv'\nkernel = '/kernel'\nmemory = 64\n{text}");
    xlcfg::parse(Source { file: "test.cfg", text: &text, overrides: &[] }).unwrap()
}

fn check(plan: &toolstack::plan::Plan, expected: &Expect) {
    expected.assert_eq(&plan.to_string());
}

#[test]
fn a_domain_without_devices_is_a_chain() {
    check(
        &plan_create(&config("name = 'plain'"), Start::Running),
        &expect![[r#"
            0   load images
            1   record  (after 0)  [undo: remove nodes]
            2   create domain  (after 1)  [undo: destroy domain]
            3   build  (after 2)
            4   write nodes  (after 3)  [undo: remove nodes]
            5   introduce  (after 4)
            6   unpause  (after 5)
        "#]],
    );
}

#[test]
fn devices_go_side_by_side_and_bad_input_is_found_before_anything_is_made() {
    let config =
        config("name = 'full'\ndisk = ['/a,raw,xvda,w', '/b,raw,xvdb,r']\nvif = ['bridge=xenbr0']");
    check(
        &plan_create(&config, Start::Paused),
        &expect![[r#"
            0   load images
            1   check the bridge of vif 0
            2   record  (after 0, 1)  [undo: remove nodes]
            3   attach disk 0  (after 2)  [undo: detach disk 0]
            4   attach disk 1  (after 2)  [undo: detach disk 1]
            5   create domain  (after 2, 3, 4)  [undo: destroy domain]
            6   build  (after 5)
            7   write nodes  (after 6)  [undo: remove nodes]
            8   introduce  (after 7)
            9   await the backend of vbd 51712  (after 7)  [undo: await the end of vbd 51712]
            10  await the backend of vbd 51728  (after 7)  [undo: await the end of vbd 51728]
            11  await the backend of vif 0  (after 7)  [undo: await the end of vif 0]
            12  put vif 0 on its bridge  (after 11)
        "#]],
    );
}

#[test]
fn a_teardown_takes_back_what_was_reached_and_the_record_last() {
    let config = config("name = 'full'\ndisk = ['/a,raw,xvda,w']\nvif = ['bridge=xenbr0']");
    let all = Reached { recorded: true, domain: true, nodes: true, disks: &[0] };
    check(
        &plan_teardown(&config, all),
        &expect![[r#"
            0   pause
            1   close devices  (after 0)
            2   await the end of vbd 51712  (after 1)
            3   await the end of vif 0  (after 1)
            4   destroy domain  (after 0, 2, 3)
            5   detach disk 0  (after 4)
            6   remove nodes  (after 4, 5)
        "#]],
    );
    let early = Reached { recorded: true, domain: false, nodes: false, disks: &[0] };
    check(
        &plan_teardown(&config, early),
        &expect![[r#"
            0   detach disk 0
            1   remove nodes  (after 0)
        "#]],
    );
    check(&plan_teardown(&config, Reached::default()), &expect![[""]]);
}
