//! Who may reach which node.

use alloc::sync::Arc;

use crate::Error;
use crate::acl::{Right, Subject};
use crate::path::Path;
use crate::tree::{Node, Tree};

/// The node, if there is one and the right is granted. Whether it exists is told only to those who
/// have the right on the nearest node above it; of the owner's right, its writing half will do.
pub(crate) fn lookup<'t>(
    tree: &'t Tree,
    path: Path<'_>,
    subject: Subject,
    right: Right,
) -> Result<&'t Arc<Node>, Error> {
    judge(tree.nearest(path), subject, right)
}

/// As [`lookup`], of the nearest node and how many names are missing below it.
pub(crate) fn judge(
    (nearest, missing): (&Arc<Node>, usize),
    subject: Subject,
    right: Right,
) -> Result<&Arc<Node>, Error> {
    let wanted = match right {
        Right::Own if missing > 0 => Right::Write,
        right => right,
    };
    match (nearest.acl().allows(subject, wanted), missing) {
        (true, 0) => Ok(nearest),
        (true, _) => Err(Error::ENOENT),
        (false, _) => Err(Error::EACCES),
    }
}
