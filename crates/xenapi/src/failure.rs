//! How calls fail: a code that clients know, and what it is about.

use core::fmt;

use xen::Uuid;

use crate::model::Class;
use crate::refs::opaque;

/// A code and its parameters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure(Vec<String>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

impl Failure {
    pub fn new<S: Into<String>>(code: &str, about: impl IntoIterator<Item = S>) -> Self {
        let code = std::iter::once(code.to_owned());
        Self(code.chain(about.into_iter().map(Into::into)).collect())
    }

    #[must_use]
    pub fn code(&self) -> &str {
        &self.0[0]
    }

    /// Its code, then what that is about.
    #[must_use]
    pub fn parts(&self) -> &[String] {
        &self.0
    }

    #[must_use]
    pub fn no_handle(class: Class, reference: &str) -> Self {
        Self::new("HANDLE_INVALID", [class.name(), reference])
    }

    #[must_use]
    pub fn no_uuid(class: Class, uuid: &str) -> Self {
        Self::new("UUID_INVALID", [class.name(), uuid])
    }

    #[must_use]
    pub fn no_session(reference: &str) -> Self {
        Self::new("SESSION_INVALID", [reference])
    }

    #[must_use]
    pub fn unknown_method(method: &str) -> Self {
        Self::new("MESSAGE_METHOD_UNKNOWN", [method])
    }

    #[must_use]
    pub fn parameter_count(method: &str, expected: usize, got: usize) -> Self {
        let (expected, got) = (expected.to_string(), got.to_string());
        Self::new("MESSAGE_PARAMETER_COUNT_MISMATCH", [method, &expected, &got])
    }

    #[must_use]
    pub fn wrong_type(parameter: &str) -> Self {
        Self::new("FIELD_TYPE_ERROR", [parameter])
    }

    /// Something that Xylem does not do.
    #[must_use]
    pub fn not_implemented(method: &str) -> Self {
        Self::new("NOT_IMPLEMENTED", [method])
    }

    /// Something that Xylem does not do with this, or not now.
    #[must_use]
    pub fn not_allowed(why: &str) -> Self {
        Self::new("OPERATION_NOT_ALLOWED", [why])
    }

    #[must_use]
    pub fn permission(method: &str) -> Self {
        let permission = method.to_ascii_lowercase();
        Self::new("RBAC_PERMISSION_DENIED", [permission.as_str(), "No permission in user session"])
    }

    #[must_use]
    pub fn power_state(vm: Uuid, expected: &str, actual: &str) -> Self {
        let (expected, actual) = (expected.to_lowercase(), actual.to_lowercase());
        Self::new("VM_BAD_POWER_STATE", [opaque(vm), expected, actual])
    }

    #[must_use]
    pub fn other_operation(class: Class, uuid: Uuid) -> Self {
        Self::new("OTHER_OPERATION_IN_PROGRESS", [class.name().to_owned(), opaque(uuid)])
    }

    #[must_use]
    pub fn internal(text: &str) -> Self {
        Self::new("INTERNAL_ERROR", [text])
    }
}
