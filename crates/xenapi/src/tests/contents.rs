//! Clients that fetch or send the contents of VDIs.

use api::Role;
use xen::Uuid;

use super::World;
use crate::contents::{Broken, Contents, Refusal, Wanted, Way};
use crate::refs::uuid_in;
use crate::{Value, opaque};

impl World {
    fn begin(&mut self, way: Way, role: Role, vdi: &str, task: &str) -> Result<Contents, Refusal> {
        let task = Some(task).filter(|it| !it.is_empty());
        let (vdi, format, bytes) = (Some(vdi), Some("RAW"), None);
        let wanted = Wanted { way, who: "ann", role, vdi, format, task, bytes };
        let moment = self.moment();
        self.facade.begin_contents(&wanted, &moment)
    }

    fn end(&mut self, contents: &Contents, way: Way, ended: Result<(), Broken>) {
        let _answer = self.facade.end_contents(contents, way, ended, self.now_unix_ms);
    }

    fn spare(&mut self) -> String {
        let found = self.value("VDI.get_by_name_label", &["spare".into()]);
        found.as_array().unwrap_or_default()[0].as_str().expect("a reference").to_owned()
    }

    fn own_task(&mut self) -> String {
        let task = self.value("task.create", &["x".into(), "".into()]);
        task.as_str().expect("a reference").to_owned()
    }

    fn task(&mut self, task: &str, field: &str) -> Value {
        self.value(&format!("task.get_{field}"), &[task.into()])
    }

    fn error_of(&mut self, task: &str) -> Vec<String> {
        let Value::Array(parts) = self.task(task, "error_info") else { panic!("it is a set") };
        parts.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect()
    }
}

#[test]
fn a_task_of_the_client_is_moved_on_and_ends() {
    let mut world = World::new(Role::Admin);
    let (vdi, task) = (world.spare(), world.own_task());
    let contents = world.begin(Way::Import, Role::Admin, &vdi, &task).expect("it may");
    assert_eq!((contents.vdi.as_str(), contents.bytes), ("files:spare", 1 << 30));
    assert_eq!(contents.task(), task);
    for (hundredths, progress) in [(7, 0.07), (3, 0.07), (200, 1.0)] {
        world.facade.advance_contents(&contents, hundredths);
        assert_eq!(world.task(&task, "progress"), Value::Float(progress));
    }
    // It is the client's no more.
    assert_eq!(
        world.short("task.set_status", &[task.as_str().into(), "failure".into()]),
        "OPERATION_NOT_ALLOWED"
    );
    let again = world.begin(Way::Import, Role::Admin, &vdi, &task).unwrap_err();
    assert_eq!((again.status, again.failure.code()), (400, "HANDLE_INVALID"));
    world.end(&contents, Way::Import, Ok(()));
    assert_eq!(world.task(&task, "status"), "success".into());
    assert_eq!(world.task(&task, "result"), format!("<value>{vdi}</value>").into());

    // Without one there is another, by the VDI's UUID.
    let uuid = uuid_in(&vdi).expect("a reference").to_string();
    let contents = world.begin(Way::Export, Role::Admin, &uuid, "").expect("it may");
    let task = contents.task();
    assert_eq!(world.task(&task, "name_label"), "Exporting raw VDI".into());
    world.end(&contents, Way::Export, Ok(()));
    assert_eq!(world.task(&task, "result"), "".into());
}

#[test]
fn a_client_that_only_looks_leaves_no_task_of_ours() {
    let mut world = World::new(Role::Admin);
    let (vdi, task) = (world.spare(), world.own_task());
    let now = world.now_unix_ms;
    let contents = world.begin(Way::Import, Role::Admin, &vdi, "").expect("it may");
    world.facade.end_unused_contents(&contents, Way::Import, Ok(()), now);
    assert_eq!(world.short("task.get_status", &[contents.task().into()]), "HANDLE_INVALID");

    let contents = world.begin(Way::Import, Role::Admin, &vdi, &task).expect("it may");
    let gone = Err(Broken::Off("the client went away".to_owned()));
    world.facade.end_unused_contents(&contents, Way::Import, gone, now);
    assert_eq!(world.task(&task, "status"), "failure".into());
}

#[test]
fn each_end_has_its_error() {
    let mut world = World::new(Role::Admin);
    let vdi = world.spare();
    let closed = |why: &str| Broken::Closed(why.to_owned());
    for (broken, code) in [
        (closed("files:spare is in use by web"), "VDI_IN_USE"),
        (closed("cannot open it"), "INTERNAL_ERROR"),
        (Broken::Off("it has gone".to_owned()), "VDI_IO_ERROR"),
    ] {
        let task = world.own_task();
        let contents = world.begin(Way::Export, Role::Admin, &vdi, &task).expect("it may");
        world.end(&contents, Way::Export, Err(broken));
        assert_eq!(world.task(&task, "status"), "failure".into());
        assert_eq!(world.error_of(&task)[0], code);
    }
    let task = world.own_task();
    let contents = world.begin(Way::Export, Role::Admin, &vdi, &task).expect("it may");
    assert_eq!(world.short("task.cancel", &[task.as_str().into()]), "done");
    assert!(world.facade.is_cancelled(&contents));
    world.end(&contents, Way::Export, Err(Broken::Off("it was cancelled".to_owned())));
    assert_eq!(world.task(&task, "status"), "cancelled".into());
    assert_eq!(world.error_of(&task), ["TASK_CANCELLED", &task]);
}

#[test]
fn who_may_not_is_told_and_so_is_the_task() {
    let mut world = World::new(Role::Admin);
    let vdi = world.spare();
    for role in [Role::Viewer, Role::Operator] {
        let task = world.own_task();
        let refusal = world.begin(Way::Import, role, &vdi, &task).unwrap_err();
        assert_eq!((refusal.status, refusal.failure.code()), (403, "RBAC_PERMISSION_DENIED"));
        assert_eq!(world.task(&task, "status"), "failure".into());
        assert_eq!(world.error_of(&task)[1], "http/put_import_raw_vdi");
    }
    for vdi in ["", "x", "OpaqueRef:x", &opaque(Uuid([9; 16]))] {
        let refusal = world.begin(Way::Export, Role::Admin, vdi, "").unwrap_err();
        assert_eq!((refusal.status, refusal.failure.code()), (400, "HANDLE_INVALID"));
    }
    // A VM's task, or one that others have made, is not theirs to move.
    let bob = world.login("bob", Role::Viewer);
    let own = std::mem::replace(&mut world.session, bob);
    let task = world.own_task();
    world.session = own;
    let refusal = world.begin(Way::Export, Role::Operator, &vdi, &task).unwrap_err();
    assert_eq!(refusal.status, 403);
    assert_eq!(world.task(&task, "status"), "pending".into());
}
