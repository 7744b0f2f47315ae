//! Roles in XAPI's words.

use api::Role;

/// XAPI's name for a role of this sort.
pub(crate) fn name(role: Role) -> &'static str {
    match role {
        Role::Viewer => "read-only",
        Role::Operator => "vm-operator",
        Role::Admin => "pool-admin",
    }
}

pub(crate) fn what(role: Role) -> &'static str {
    match role {
        Role::Viewer => "Sees everything but secrets",
        Role::Operator => "Starts, stops and pauses VMs that are there",
        Role::Admin => "Does everything",
    }
}
