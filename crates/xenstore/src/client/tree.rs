//! Trees of nodes: read a part at a time, removed, and their permissions set.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::client::{Batch, ClientError, Nodes};
use crate::permission::Permission;
use crate::{Error, wire};

/// Nodes that are read in one round trip.
const AT_ONCE: usize = 32;
/// What a node costs in a part besides its path and value.
const NODE_BYTES: usize = 64;

/// Why something could not be done with a tree, in the words of Xen's tools.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct TreeFailed(String);

impl TreeFailed {
    /// As `could not list /a: ENOENT`, or the error itself if the store has not refused it.
    #[must_use]
    pub fn new(what: &str, path: &str, error: &ClientError) -> Self {
        Self(match error.refusal() {
            Some(refusal) => format!("{what} {path}: {refusal}"),
            None => error.to_string(),
        })
    }
}

impl From<ClientError> for TreeFailed {
    fn from(error: ClientError) -> Self {
        Self(error.to_string())
    }
}

/// A node of a tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TreeNode {
    pub path: String,
    pub value: Vec<u8>,
    pub permissions: Vec<Permission>,
    pub children: usize,
}

/// A part of a tree: each node before those below it, siblings in the order of the store.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Part {
    pub nodes: Vec<TreeNode>,
    /// Where the next part begins, if there is one.
    pub next: Option<Cursor>,
}

/// The last node of a part.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Cursor {
    path: String,
    /// Of it, and of the nodes above it, among their siblings: should it not be there any more.
    places: Vec<usize>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.places.iter().map(ToString::to_string).collect();
        write!(f, "{}:{}", places.join("."), self.path)
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (places, path) = text.split_once(':').ok_or(())?;
        let places = places.split('.').filter(|it| !it.is_empty());
        let places = places.map(str::parse).collect::<Result<_, _>>().map_err(drop)?;
        Ok(Self { path: path.to_owned(), places })
    }
}

/// How large a part may become.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PartMax {
    pub nodes: usize,
    pub bytes: usize,
    /// Levels below the top.
    pub depth: usize,
}

/// A child's path.
#[must_use]
pub fn join(path: &str, name: &str) -> String {
    if path.ends_with('/') { format!("{path}{name}") } else { format!("{path}/{name}") }
}

/// A node that is still to be read.
struct Pending {
    path: String,
    depth: usize,
    /// Among its siblings.
    place: usize,
}

/// A node's children from this place on, the first of them last.
fn push(
    pending: &mut Vec<Pending>,
    parent: &str,
    names: &[String],
    (first, depth): (usize, usize),
) {
    let left = names.iter().enumerate().skip(first).rev();
    pending.extend(left.map(|(place, name)| Pending { path: join(parent, name), depth, place }));
}

/// What comes after a node in the tree below `top`.
fn go_on(
    nodes: &mut impl Nodes,
    top: &str,
    after: &Cursor,
    depth_max: usize,
) -> Result<Vec<Pending>, ClientError> {
    let below = after.path.strip_prefix(top).unwrap_or_default();
    let steps = below.split('/').filter(|it| !it.is_empty()).map(Some).chain([None]);
    let (mut pending, mut parent) = (Vec::new(), top.to_owned());
    for (step, depth) in steps.zip(1..=depth_max) {
        let names = match nodes.directory(&parent) {
            Ok(names) => names,
            // It was removed meanwhile, and with it all below it.
            Err(error) if error.is_not_found() => break,
            Err(error) => return Err(error),
        };
        let Some(step) = step else {
            push(&mut pending, &parent, &names, (0, depth));
            break;
        };
        let place = names.iter().position(|name| name == step).map(|place| place + 1);
        // Without it, the next one has its place.
        let place = place.or_else(|| after.places.get(depth - 1).copied()).unwrap_or_default();
        push(&mut pending, &parent, &names, (place, depth));
        parent = join(&parent, step);
    }
    Ok(pending)
}

/// A part of the tree at `top`: from that node on, or from the one after `after`. Nodes that come and go between parts are in
/// it or not.
///
/// # Errors
/// There is no such node, or [`ClientError`].
pub fn part(
    nodes: &mut impl Nodes,
    top: &str,
    after: Option<&Cursor>,
    max: PartMax,
) -> Result<Part, ClientError> {
    let mut pending = match after {
        Some(after) => go_on(nodes, top, after, max.depth)?,
        None => {
            // It has to be there.
            nodes.read(top)?;
            Vec::from([Pending { path: top.to_owned(), depth: 0, place: 0 }])
        }
    };
    let mut places = after.map(|it| it.places.clone()).unwrap_or_default();
    let (mut part, mut bytes) = (Part::default(), 0);
    let mut known = BTreeMap::new();
    while let Some(next) = pending.last() {
        if part.nodes.len() >= max.nodes || bytes >= max.bytes {
            let last: Option<&TreeNode> = part.nodes.last();
            part.next = last.map(|last| Cursor { path: last.path.clone(), places });
            break;
        }
        if !known.contains_key(&next.path) {
            look(nodes, pending.iter().rev().map(|it| &it.path).take(AT_ONCE), &mut known)?;
        }
        let Some(Pending { path, depth, place }) = pending.pop() else { break };
        // Without it, it was removed meanwhile.
        let Some(Some((node, names))) = known.remove(&path) else { continue };
        if depth > 0 {
            places.truncate(depth - 1);
            places.push(place);
        }
        if depth < max.depth {
            push(&mut pending, &path, &names, (0, depth + 1));
        }
        bytes += node.path.len() + node.value.len() + NODE_BYTES;
        part.nodes.push(node);
    }
    Ok(part)
}

type Looked = Option<(TreeNode, Vec<String>)>;

/// Reads those of these nodes that are not known yet.
fn look<'a>(
    nodes: &mut impl Nodes,
    paths: impl Iterator<Item = &'a String>,
    known: &mut BTreeMap<String, Looked>,
) -> Result<(), ClientError> {
    let paths: Vec<&String> = paths.filter(|&path| !known.contains_key(path)).collect();
    let mut batch = Batch::new();
    for path in &paths {
        batch.directory(path);
        batch.read(path);
        batch.get_perms(path);
    }
    let replies = nodes.run(&batch)?;
    for (index, path) in paths.into_iter().enumerate() {
        let first = 3 * index;
        let names = match replies.get(first) {
            Ok(payload) => wire::strings(payload)
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect(),
            Err(error) if error.refusal() == Some(Error::E2BIG) => nodes.directory(path)?,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let value = replies.get_optional(first + 1)?;
        let permissions = replies.get_optional(first + 2)?;
        let looked = value.zip(permissions).map(|(value, permissions)| {
            let permissions = Permission::decode_list(permissions).unwrap_or_default();
            let (path, value) = (path.clone(), value.to_vec());
            (TreeNode { path, value, permissions, children: names.len() }, names)
        });
        known.insert(path.clone(), looked);
    }
    Ok(())
}

/// The names of the children of these nodes, as far as they are there.
///
/// # Errors
/// In words.
pub fn list(
    nodes: &mut impl Nodes,
    paths: &[String],
) -> Result<Vec<Option<Vec<String>>>, TreeFailed> {
    let one = |path: &String| match nodes.directory(path) {
        Ok(names) => Ok(Some(names)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(TreeFailed::new("could not list path", path, &error)),
    };
    paths.iter().map(one).collect()
}

/// What becomes of a removed node's parents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Parents {
    Kept,
    /// Those that are left without a value and children go, too.
    RemovedIfBare,
}

/// Removes a node and all below it.
///
/// # Errors
/// In words.
pub fn remove(nodes: &mut impl Nodes, path: &str, parents: Parents) -> Result<(), TreeFailed> {
    let mut path = path;
    loop {
        let removed = nodes.rm(path);
        removed.map_err(|error| TreeFailed::new("could not remove path", path, &error))?;
        match path.rsplit_once('/') {
            Some((parent, _)) if parents == Parents::RemovedIfBare && is_bare(nodes, parent)? => {
                path = parent;
            }
            _ => return Ok(()),
        }
    }
}

/// Whether the node is empty. The root and missing nodes are not.
fn is_bare(nodes: &mut impl Nodes, path: &str) -> Result<bool, ClientError> {
    if path.is_empty() || nodes.read_optional(path)?.is_none_or(|value| !value.is_empty()) {
        return Ok(false);
    }
    Ok(nodes.directory(path)?.is_empty())
}

/// Which nodes get permissions besides the one that is named.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Extent {
    /// All above it but the root.
    pub above: bool,
    /// All below it.
    pub below: bool,
}

/// Sets the permissions of a node, and of others around it.
///
/// # Errors
/// In words.
pub fn set_permissions(
    nodes: &mut impl Nodes,
    path: &str,
    permissions: &[Permission],
    extent: Extent,
) -> Result<(), TreeFailed> {
    set_those_of(nodes, path, permissions)?;
    if extent.above {
        let mut above = path;
        while let Some((parent, _)) = above.rsplit_once('/') {
            if !parent.is_empty() {
                set_those_of(nodes, parent, permissions)?;
            }
            above = parent;
        }
    }
    if extent.below {
        let mut below = Vec::from([path.to_owned()]);
        while let Some(path) = below.pop() {
            for name in nodes.directory(&path)? {
                let child = join(&path, &name);
                set_those_of(nodes, &child, permissions)?;
                below.push(child);
            }
        }
    }
    Ok(())
}

fn set_those_of(
    nodes: &mut impl Nodes,
    path: &str,
    permissions: &[Permission],
) -> Result<(), TreeFailed> {
    let set = nodes.set_perms(path, permissions);
    set.map_err(|error| TreeFailed::new("could not set permissions of", path, &error))
}
