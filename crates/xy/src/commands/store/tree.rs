//! `xy store ls`: a tree as text, as xenstore-ls prints it.

use std::fmt::Write as _;

use xenstore::client::{Batch, Nodes as _, TreeFailed, join};
use xenstore::{Error, Permission, escape};

use super::{Store, connect, far, live};
use crate::options::Options;
use crate::session::{Failure, Session};

/// Decoration of a truncated value: ` = "..."`.
const AROUND_VALUE: i64 = 8;
/// The column in which permissions begin.
const PERMISSIONS_AT: i64 = 60;

/// How a tree is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Style {
    pub(super) layout: Layout,
    pub(super) permissions: Permissions,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Layout {
    /// Names, indented by a space per level, in lines of at most `columns`.
    Indented { columns: i64 },
    /// Full paths, never truncated.
    Flat,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Permissions {
    Shown,
    Hidden,
}

/// A node and its data.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) depth: usize,
    /// `None` if it was removed while the tree was read.
    pub(super) value: Option<Vec<u8>>,
    pub(super) permissions: Option<Vec<Permission>>,
}

pub(super) fn ls(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let permissions = if options.has("prefix") { Permissions::Shown } else { Permissions::Hidden };
    let layout = if options.has("flat") {
        Layout::Flat
    } else {
        Layout::Indented { columns: terminal_columns().unwrap_or(80) }
    };
    let style = Style { layout, permissions };
    let mut paths = options.operands.clone();
    if paths.is_empty() {
        paths.push("/".to_owned());
    }
    if let Some(remote) = session.remote.take() {
        if options.has("watch") {
            return live::show_far(session, &remote, &paths, style);
        }
        for path in &paths {
            let tree = far::read_tree(&remote, path, permissions)?;
            session.print(&render(&tree, style));
        }
        return Ok(());
    }
    let mut store = connect()?;
    if options.has("watch") {
        return live::show(session, &mut store, &paths, style);
    }
    for path in &paths {
        let tree = read_tree(&mut store, path, permissions)?;
        session.print(&render(&tree, style));
    }
    Ok(())
}

fn terminal_columns() -> Option<i64> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(i64::from(size.ws_col) - 2)
}

/// Everything below `top`, in the order of the store, level by level from the store.
pub(super) fn read_tree(
    store: &mut Store,
    top: &str,
    permissions: Permissions,
) -> Result<Vec<Node>, Failure> {
    let root = Node { path: top.to_owned(), ..Node::default() };
    let children = read_level(store, &[&root], Permissions::Hidden, Top::Yes)?.remove(0).1;
    let mut level: Vec<Branch> = vec![Branch { node: root, children: Vec::new() }];
    level[0].children = children.into_iter().map(|name| branch(&level[0].node, name, 0)).collect();
    let mut root = level.remove(0);
    let mut open: Vec<&mut Branch> = root.children.iter_mut().collect();
    while !open.is_empty() {
        let nodes: Vec<&Node> = open.iter().map(|branch| &branch.node).collect();
        let read = read_level(store, &nodes, permissions, Top::No)?;
        let mut next = Vec::new();
        for (branch_ref, (node, names)) in open.into_iter().zip(read) {
            let depth = node.depth + 1;
            branch_ref.children =
                names.into_iter().map(|name| branch(&node, name, depth)).collect();
            branch_ref.node = node;
            next.extend(branch_ref.children.iter_mut());
        }
        open = next;
    }
    let mut flat = Vec::new();
    let mut rest: Vec<Branch> = root.children.into_iter().rev().collect();
    while let Some(branch) = rest.pop() {
        flat.push(branch.node);
        rest.extend(branch.children.into_iter().rev());
    }
    Ok(flat)
}

/// A node with the nodes below it, while a tree is read.
struct Branch {
    node: Node,
    children: Vec<Branch>,
}

fn branch(parent: &Node, name: String, depth: usize) -> Branch {
    let path = join(&parent.path, &name);
    Branch { node: Node { name, path, depth, ..Node::default() }, children: Vec::new() }
}

/// Whether a node is the requested one, which must exist.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Top {
    Yes,
    No,
}

/// Reads values and names of children of many nodes at once.
fn read_level(
    store: &mut Store,
    nodes: &[&Node],
    permissions: Permissions,
    top: Top,
) -> Result<Vec<(Node, Vec<String>)>, Failure> {
    let mut batch = Batch::new();
    for node in nodes {
        batch.directory(&node.path);
        batch.read(&node.path);
        if permissions == Permissions::Shown {
            batch.get_perms(&node.path);
        }
    }
    let requests_each = batch.len() / nodes.len().max(1);
    let replies = store.run(&batch)?;
    let mut read = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let first = index * requests_each;
        let names = match replies.get(first) {
            Ok(payload) => names(payload),
            Err(error) if error.refusal() == Some(Error::E2BIG) => store.directory(&node.path)?,
            Err(error) if error.is_not_found() && top == Top::No => Vec::new(),
            Err(error) => {
                return Err(TreeFailed::new("could not list", &node.path, &error).into());
            }
        };
        let value = replies.get_optional(first + 1)?.map(<[u8]>::to_vec);
        let permissions = match permissions {
            Permissions::Shown => {
                let list = replies.get_optional(first + 2)?;
                list.map(|list| Permission::decode_list(list).unwrap_or_default())
            }
            Permissions::Hidden => None,
        };
        read.push((Node { value, permissions, ..(*node).clone() }, names));
    }
    Ok(read)
}

fn names(payload: &[u8]) -> Vec<String> {
    xenstore::wire::strings(payload)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

pub(super) fn render(tree: &[Node], style: Style) -> String {
    let mut text = String::new();
    for node in tree {
        render_node(&mut text, node, style);
    }
    text
}

/// Truncation and padding are those of xenstore-ls, byte for byte.
pub(super) fn render_node(text: &mut String, node: &Node, style: Style) {
    // Current column; full paths do not count.
    let mut at: i64 = 0;
    match style.layout {
        Layout::Flat => text.push_str(&node.path),
        Layout::Indented { columns } => {
            at = i64::try_from(node.depth).unwrap_or(i64::MAX);
            text.extend(std::iter::repeat_n(' ', node.depth));
            let name = cut(&node.name, columns - AROUND_VALUE - at);
            text.push_str(name);
            at += length(name);
        }
    }
    let columns = match style.layout {
        Layout::Flat => i64::MAX,
        Layout::Indented { columns } => columns,
    };
    // Without a known width nothing is truncated.
    let columns_to_cut = if columns < 0 { i64::MAX } else { columns };
    match &node.value {
        None => text.push_str(":\n"),
        Some(value) => {
            let bytes = i64::try_from(value.len()).unwrap_or(i64::MAX / 4);
            let value = escape(value);
            if columns_to_cut < at + bytes + AROUND_VALUE {
                let value = cut(&value, columns - AROUND_VALUE - at);
                // Writing to a String cannot fail.
                let _ = write!(text, " = \"{value}\\...\"");
            } else {
                let _ = write!(text, " = \"{value}\"");
                at += length(&value) + 5;
                if style.permissions == Permissions::Shown {
                    text.push(' ');
                    let end = if style.layout == Layout::Flat { 0 } else { PERMISSIONS_AT };
                    at += 1;
                    while at < end.min(columns) {
                        text.push(if at % 2 == 1 { '.' } else { ' ' });
                        at += 1;
                    }
                }
            }
        }
    }
    if let Some(permissions) = &node.permissions {
        let list: Vec<String> = permissions.iter().map(Permission::to_string).collect();
        let _ = write!(text, "  ({})", list.join(","));
    }
    text.push('\n');
}

/// As the precision of C's printf: negative means no truncation.
fn cut(text: &str, bytes_max: i64) -> &str {
    match usize::try_from(bytes_max) {
        // Names and escaped values are ASCII.
        Ok(max) => text.get(..max).unwrap_or(text),
        Err(_) => text,
    }
}

fn length(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX / 4)
}
