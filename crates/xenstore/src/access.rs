//! Access checks of nodes.

use alloc::sync::Arc;

use crate::Error;
use crate::acl::{Right, Subject};
use crate::path::Path;
use crate::tree::{Node, Tree};

/// The node, if it exists and access is granted. Its existence is revealed only with access to the
/// nearest existing node above it; instead of ownership, write access is sufficient there.
pub(crate) fn lookup<'t>(
    tree: &'t Tree,
    path: Path<'_>,
    subject: Subject,
    right: Right,
) -> Result<&'t Arc<Node>, Error> {
    judge(tree.nearest(path), subject, right)
}

/// As [`lookup`], for the nearest existing node and the number of missing names below it.
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
