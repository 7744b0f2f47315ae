//! The host's own hardware for guests, and the memory of their second page tables.

use xen::DomId;

use crate::support::{Lab, linux};

fn created(lines: &str, kind: &str) -> Result<(Lab, DomId), String> {
    let mut lab = Lab::seeded(1);
    let domid = lab.create(&format!("{}{lines}\n", linux("one", kind, "boot")))?;
    lab.settle();
    Ok((lab, domid))
}

#[test]
fn a_guest_with_hardware_starts_and_leaves_nothing() {
    let lines = "ioports = ['378-37f']\nirqs = [7]\niomem = ['fd0000,2@f0000']";
    for kind in ["pv", "pvh"] {
        let (mut lab, _) = created(lines, kind).unwrap();
        lab.destroy("one");
        lab.settle();
        lab.assert_nothing_left();
    }
}

#[test]
fn what_xen_refuses_is_named_by_its_key_and_leaves_nothing() {
    let mut lab = Lab::seeded(1);
    let vm = format!("{}irqs = [7, 60000]\n", linux("one", "pv", "boot"));
    let error = lab.create(&vm).unwrap_err();
    assert!(error.contains("irqs[1]: interrupt 60000: Xen returned EINVAL"), "{error}");
    lab.settle();
    lab.assert_nothing_left();
}
