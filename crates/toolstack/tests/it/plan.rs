//! Plans as text: what a create and a teardown do, in which order, and what undoes what.

use expect_test::{Expect, expect};
use toolstack::config::VmConfig;
use toolstack::layout::{DeviceKind, DeviceRef};
use toolstack::plan::{
    ComesWith, ConnectedBy, Reached, Start, Unplug, plan_change, plan_create, plan_plug,
    plan_reboot, plan_receive, plan_teardown, plan_undo_insert, plan_unplug,
};
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
            3   create domain  (after 2)  [undo: destroy domain]
            4   build  (after 3)
            5   attach disk 51712  (after 2)  [undo: detach disk 51712]
            6   attach disk 51728  (after 2)  [undo: detach disk 51728]
            7   write nodes  (after 4, 5, 6)  [undo: remove nodes]
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
    let all = Reached {
        recorded: true,
        domain: true,
        nodes: true,
        condemned: true,
        coming: false,
        made: false,
        disks: &[51712],
    };
    check(
        &plan_teardown(&config, all),
        &expect![[r#"
            0   condemn
            1   pause  (after 0)
            2   close devices  (after 1)
            3   await the end of vbd 51712  (after 2)
            4   await the end of vif 0  (after 2)
            5   destroy domain  (after 1, 3, 4)
            6   detach disk 51712  (after 5)
            7   remove nodes  (after 5, 6)
        "#]],
    );
    let early = Reached {
        recorded: true,
        domain: false,
        nodes: false,
        condemned: false,
        coming: false,
        made: false,
        disks: &[51712],
    };
    check(
        &plan_teardown(&config, early),
        &expect![[r#"
            0   detach disk 51712
            1   remove nodes  (after 0)
        "#]],
    );
    check(&plan_teardown(&config, Reached::default()), &expect![[""]]);
}

#[test]
fn only_a_reader_of_a_volume_that_is_written_too_waits_for_another_disk() {
    let config = config(
        "name = 'shared'\ndisk = ['/b,raw,xvda,r', '/a,raw,xvdb,r', '/a,raw,xvdc,w', '/c,raw,xvdd,w']",
    );
    check(
        &plan_create(&config, Start::Running),
        &expect![[r#"
        0   load images
        1   record  (after 0)  [undo: remove nodes]
        2   create domain  (after 1)  [undo: destroy domain]
        3   build  (after 2)
        4   attach disk 51744  (after 1)  [undo: detach disk 51744]
        5   attach disk 51760  (after 1)  [undo: detach disk 51760]
        6   attach disk 51712  (after 1)  [undo: detach disk 51712]
        7   attach disk 51728  (after 1, 4)  [undo: detach disk 51728]
        8   write nodes  (after 3, 4, 5, 6, 7)  [undo: remove nodes]
        9   introduce  (after 8)
        10  await the backend of vbd 51712  (after 8)  [undo: await the end of vbd 51712]
        11  await the backend of vbd 51728  (after 8)  [undo: await the end of vbd 51728]
        12  await the backend of vbd 51744  (after 8)  [undo: await the end of vbd 51744]
        13  await the backend of vbd 51760  (after 8)  [undo: await the end of vbd 51760]
        14  unpause  (after 9, 10, 11, 12, 13)
    "#]],
    );
}

#[test]
fn a_reboot_keeps_record_and_disks_and_looks_ahead() {
    let config = config("name = 'full'\ndisk = ['/a,raw,xvda,w']\nvif = ['bridge=xenbr0']");
    let all = Reached {
        recorded: true,
        domain: true,
        nodes: true,
        condemned: true,
        coming: false,
        made: false,
        disks: &[51712],
    };
    check(
        &plan_reboot(&config, Start::Running, all),
        &expect![[r#"
        0   pause
        1   close devices  (after 0)
        2   await the end of vbd 51712  (after 1)
        3   await the end of vif 0  (after 1)
        4   destroy domain  (after 0, 2, 3)
        5   remove the domain's nodes  (after 4)
        6   load images
        7   check the bridge of vif 0
        8   create domain  (after 5, 6, 7)  [undo: destroy domain]
        9   build  (after 8)
        10  write nodes  (after 9)  [undo: remove nodes]
        11  introduce  (after 10)
        12  await the backend of vbd 51712  (after 10)  [undo: await the end of vbd 51712]
        13  await the backend of vif 0  (after 10)  [undo: await the end of vif 0]
        14  put vif 0 on its bridge  (after 13)
        15  unpause  (after 11, 12, 13, 14)
    "#]],
    );
}

#[test]
fn a_reboot_lets_go_of_a_disk_that_was_being_detached() {
    let config = config("name = 'full'\ndisk = ['/a,raw,xvda,w']");
    let disks = [51712, 51728];
    let reached = Reached {
        recorded: true,
        domain: true,
        nodes: true,
        condemned: false,
        coming: false,
        made: false,
        disks: &disks,
    };
    check(
        &plan_reboot(&config, Start::Running, reached),
        &expect![[r#"
        0   pause
        1   close devices  (after 0)
        2   await the end of vbd 51712  (after 1)
        3   destroy domain  (after 0, 2)
        4   detach disk 51728  (after 3)
        5   remove the domain's nodes  (after 3)
        6   load images
        7   create domain  (after 5, 6)  [undo: destroy domain]
        8   build  (after 7)
        9   write nodes  (after 8)  [undo: remove nodes]
        10  introduce  (after 9)
        11  await the backend of vbd 51712  (after 9)  [undo: await the end of vbd 51712]
        12  unpause  (after 10, 11)
    "#]],
    );
}

#[test]
fn devices_come_and_go_alone() {
    let vif = DeviceRef { kind: DeviceKind::Vif, devid: 1 };
    let vbd = DeviceRef { kind: DeviceKind::Vbd, devid: 51728 };
    check(
        &plan_plug(vif, ConnectedBy::Us),
        &expect![[r#"
        0   check the bridge of vif 1
        1   add vif 1  (after 0)  [undo: remove vif 1]
        2   await the backend of vif 1  (after 1)  [undo: await the end of vif 1]
        3   put vif 1 on its bridge  (after 2)
        4   settle vif 1  (after 3)
    "#]],
    );
    check(
        &plan_plug(vbd, ConnectedBy::Us),
        &expect![[r#"
        0   attach disk 51728  [undo: detach disk 51728]
        1   add vbd 51728  (after 0)  [undo: remove vbd 51728]
        2   await the backend of vbd 51728  (after 1)  [undo: await the end of vbd 51728]
    "#]],
    );
    check(
        &plan_unplug(vbd, Unplug::Clean, true, ConnectedBy::Us),
        &expect![[r#"
        0   await that vbd 51728 is connected
        1   ask the guest for vbd 51728  (after 0)
        2   await that the guest lets go of vbd 51728  (after 1)
        3   remove vbd 51728  (after 2)
        4   detach disk 51728  (after 3)
    "#]],
    );
    check(
        &plan_unplug(vbd, Unplug::Forced, true, ConnectedBy::Us),
        &expect![[r#"
        0   close vbd 51728
        1   await the end of vbd 51728  (after 0)
        2   remove vbd 51728  (after 1)
        3   detach disk 51728  (after 2)
    "#]],
    );
}

#[test]
fn the_cd_of_an_emulated_drive_is_its_device_models_too() {
    let drive = DeviceRef { kind: DeviceKind::Vbd, devid: 5632 };
    check(
        &plan_change(drive, Unplug::Clean, true),
        &expect![[r#"
            0   check disk 5632
            1   eject the CD of vbd 5632  (after 0)
            2   close vbd 5632  (after 1)
            3   await the end of vbd 5632  (after 2)
            4   remove vbd 5632  (after 3)
            5   detach disk 5632  (after 4)
            6   attach disk 5632  (after 5)  [undo: detach disk 5632]
            7   insert the CD of vbd 5632  (after 6)
            8   add vbd 5632  (after 7)  [undo: remove vbd 5632]
            9   await the backend of vbd 5632  (after 8)  [undo: await the end of vbd 5632]
        "#]],
    );
    check(
        &plan_undo_insert(drive, false, true),
        &expect![[r#"
            0   eject the CD of vbd 5632
            1   detach disk 5632  (after 0)
        "#]],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_device_model_starts_beside_the_build_after_the_disks_that_it_emulates() {
    let text = "name = 'hvm'\ntype = 'hvm'\nmemory = 64\n\
                disk = ['/a,raw,hda,w', '/b,raw,xvdb,r', '/c,raw,xvde,w']\n\
                vif = ['', 'type=vif']";
    let config = xlcfg::parse(Source { file: "test.cfg", text, overrides: &[] }).unwrap();
    check(
        &plan_create(&config, Start::Running),
        &expect![[r#"
        0   load images
        1   check the bridge of vif 0
        2   check the bridge of vif 1
        3   record  (after 0, 1, 2)  [undo: remove nodes]
        4   create domain  (after 3)  [undo: destroy domain]
        5   build  (after 4)
        6   attach disk 768  (after 3)  [undo: detach disk 768]
        7   attach disk 51776  (after 3)  [undo: detach disk 51776]
        8   attach disk 51728  (after 3)  [undo: detach disk 51728]
        9   start device model  (after 4, 6)  [undo: end device model]
        10  write nodes  (after 5, 6, 7, 8)  [undo: remove nodes]
        11  introduce  (after 10)
        12  await device model  (after 9)
        13  await the backend of vbd 768  (after 10)  [undo: await the end of vbd 768]
        14  await the backend of vbd 51728  (after 10)  [undo: await the end of vbd 51728]
        15  await the backend of vbd 51776  (after 10)  [undo: await the end of vbd 51776]
        16  await the backend of vif 0  (after 10)  [undo: await the end of vif 0]
        17  put vif 0 on its bridge  (after 16, 12)
        18  await the backend of vif 1  (after 10)  [undo: await the end of vif 1]
        19  put vif 1 on its bridge  (after 18)
        20  unpause  (after 11, 12, 13, 14, 15, 16, 17, 18, 19)
    "#]],
    );
    let disks = [768];
    let reached = Reached {
        recorded: true,
        domain: true,
        nodes: false,
        condemned: false,
        coming: false,
        made: false,
        disks: &disks,
    };
    check(
        &plan_teardown(&config, reached),
        &expect![[r#"
        0   pause
        1   end device model  (after 0)
        2   destroy domain  (after 0, 1)
        3   detach disk 768  (after 2)
        4   remove nodes  (after 2, 3)
    "#]],
    );
    check(
        &plan_reboot(&config, Start::Running, reached),
        &expect![[r#"
            0   pause
            1   end device model  (after 0)
            2   destroy domain  (after 0, 1)
            3   remove the domain's nodes  (after 2)
            4   load images
            5   check the bridge of vif 0
            6   check the bridge of vif 1
            7   attach disk 51728  [undo: detach disk 51728]
            8   attach disk 51776  [undo: detach disk 51776]
            9   create domain  (after 3, 4, 5, 6)  [undo: destroy domain]
            10  build  (after 9)
            11  start device model  (after 9)  [undo: end device model]
            12  write nodes  (after 10, 7, 8)  [undo: remove nodes]
            13  introduce  (after 12)
            14  await device model  (after 11)
            15  await the backend of vbd 768  (after 12)  [undo: await the end of vbd 768]
            16  await the backend of vbd 51728  (after 12)  [undo: await the end of vbd 51728]
            17  await the backend of vbd 51776  (after 12)  [undo: await the end of vbd 51776]
            18  await the backend of vif 0  (after 12)  [undo: await the end of vif 0]
            19  put vif 0 on its bridge  (after 18, 14)
            20  await the backend of vif 1  (after 12)  [undo: await the end of vif 1]
            21  put vif 1 on its bridge  (after 20)
            22  unpause  (after 13, 14, 15, 16, 17, 18, 19, 20, 21)
        "#]],
    );
}

#[test]
fn what_a_stopped_guest_need_not_wait_for_is_ready_before_the_word_to_run_it() {
    let text = "name = 'comes'\ntype = 'pvh'\nkernel = '/k'\nmemory = 64\n\
                disk = ['/a,raw,xvda,w']\nvif = ['']";
    let config = xlcfg::parse(Source { file: "test.cfg", text, overrides: &[] }).unwrap();
    check(
        &plan_receive(&config, Start::Running, ComesWith::Nothing),
        &expect![[r#"
        0   check the bridge of vif 0
        1   check disk 51712
        2   record  (after 0, 1)  [undo: remove nodes]
        3   create domain  (after 2)  [undo: destroy domain]
        4   attach disk 51712 early  (after 2)  [undo: detach disk 51712]
        5   receive  (after 3, 4)
        6   write early nodes  (after 3)  [undo: remove nodes]
        7   await the backend of vif 0  (after 6)  [undo: await the end of vif 0]
        8   put vif 0 on its bridge  (after 7)
        9   await the word  (after 6, 8, 5)
        10  note the arrival  (after 9)
        11  attach disk 51712  (after 9)  [undo: detach disk 51712]
        12  write nodes  (after 10, 11)  [undo: remove nodes]
        13  introduce  (after 12)
        14  await the backend of vbd 51712  (after 12)  [undo: await the end of vbd 51712]
        15  unpause  (after 13, 14)
        16  report  (after 12, 13, 14, 15)
    "#]],
    );
    // An emulated card's other interface is its device model's, which has to wait.
    let text = "name = 'hvm'\ntype = 'hvm'\nmemory = 64\nvif = ['']";
    let config = xlcfg::parse(Source { file: "test.cfg", text, overrides: &[] }).unwrap();
    check(
        &plan_receive(&config, Start::Running, ComesWith::Nothing),
        &expect![[r#"
        0   check the bridge of vif 0
        1   record  (after 0)  [undo: remove nodes]
        2   create domain  (after 1)  [undo: destroy domain]
        3   receive  (after 2)
        4   write early nodes  (after 2)  [undo: remove nodes]
        5   await the backend of vif 0  (after 4)  [undo: await the end of vif 0]
        6   await the word  (after 4, 5, 3)
        7   note the arrival  (after 6)
        8   start device model  (after 6)  [undo: end device model]
        9   write nodes  (after 7)  [undo: remove nodes]
        10  introduce  (after 9)
        11  await device model  (after 8)
        12  put vif 0 on its bridge  (after 5, 11)
        13  unpause  (after 10, 11, 5, 12)
        14  report  (after 9, 10, 11, 12, 13)
    "#]],
    );
}
