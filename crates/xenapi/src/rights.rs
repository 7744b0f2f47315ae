//! What a session may do.

/// The part that a client's user has; each may do what those before it may.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Role {
    Viewer,
    Operator,
    Admin,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// XAPI's name for a role of this sort.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "read-only",
            Self::Operator => "vm-operator",
            Self::Admin => "pool-admin",
        }
    }

    /// By Xylem's own name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "viewer" => Some(Self::Viewer),
            "operator" => Some(Self::Operator),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }

    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Viewer => "Sees everything but secrets",
            Self::Operator => "Starts, stops and pauses VMs that are there",
            Self::Admin => "Does everything",
        }
    }
}
