//! Classes of sessions and of what happens.

use super::{Def, Kind};
use Kind::{Bool, Date, Enum, Float, Int, Map, Ref, Set, Str};

pub(super) const SESSION: Def = Def {
    name: "session",
    fields: &[
        (Str, "uuid auth_user_sid auth_user_name originator"),
        (Bool, "pool is_local_superuser client_certificate"),
        (Date, "last_active validation_time"),
        (Ref, "this_host this_user subject parent"),
        (Set, "rbac_permissions tasks"),
        (Map, "other_config"),
    ],
    labels: "other_config",
};

pub(super) const TASK: Def = Def {
    name: "task",
    fields: &[
        (Str, "uuid name_label name_description type result backtrace"),
        (Float, "progress"),
        (Date, "created finished"),
        (Ref, "resident_on subtask_of"),
        (Set, "allowed_operations error_info subtasks"),
        (Map, "current_operations other_config"),
        (Enum("pending"), "status"),
    ],
    labels: "other_config",
};

pub(super) const MESSAGE: Def = Def {
    name: "message",
    fields: &[
        (Str, "uuid name obj_uuid body"),
        (Int, "priority"),
        (Date, "timestamp"),
        (Enum("VM"), "cls"),
    ],
    labels: "",
};

pub(super) const EVENT: Def = Def {
    name: "event",
    fields: &[
        (Str, "class ref obj_uuid"),
        (Int, "id"),
        (Date, "timestamp"),
        (Map, "snapshot"),
        (Enum("add"), "operation"),
    ],
    labels: "",
};

pub(super) const ROLE: Def = Def {
    name: "role",
    fields: &[(Str, "uuid name_label name_description"), (Bool, "is_internal"), (Set, "subroles")],
    labels: "",
};

pub(super) const SUBJECT: Def = Def {
    name: "subject",
    fields: &[(Str, "uuid subject_identifier"), (Set, "roles"), (Map, "other_config")],
    labels: "other_config",
};

pub(super) const BLOB: Def = Def {
    name: "blob",
    fields: &[
        (Str, "uuid name_label name_description mime_type"),
        (Int, "size"),
        (Bool, "public"),
        (Date, "last_updated"),
    ],
    labels: "",
};
