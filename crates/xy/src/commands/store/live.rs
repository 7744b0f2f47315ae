//! `xy store ls --watch`: a tree and its changes.
//!
//! On a terminal the tree is redrawn at each change, with changed nodes in bold. Otherwise each
//! change is a line: `+` for a new node, `~` for a changed one, `-` for a removed one.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::ops::ControlFlow::{Break, Continue};

use rustix::event::{PollFd, PollFlags, Timespec};
use xenstore::client::Nodes as _;

use super::tree::{Layout, Node, Style, read_tree, render, render_node};
use super::{Store, far};
use crate::remote::Remote;
use crate::session::{Failure, Session};

/// How long to wait after a change for related ones, and the maximum.
const QUIET_MS: u32 = 20;
const QUIETS_MAX: u32 = 10;

/// Earlier output stays in the scrollback.
const CLEAR: &str = "\x1b[2J\x1b[H";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

pub(super) fn show(
    session: &mut Session,
    store: &mut Store,
    paths: &[String],
    style: Style,
) -> Result<(), Failure> {
    for path in paths {
        store.watch(path, path)?;
    }
    let mut shown = Shown::new(session, read_trees(store, paths, style)?, style, paths);
    while session.try_flush().is_ok() {
        store.next_event()?;
        settle(store)?;
        shown.change(session, read_trees(store, paths, style)?);
    }
    Ok(())
}

/// The same of another host.
pub(super) fn show_far(
    session: &mut Session,
    remote: &Remote,
    paths: &[String],
    style: Style,
) -> Result<(), Failure> {
    let mut shown: Option<Shown<'_>> = None;
    let mut failed = None;
    let ended = far::watch(remote, (paths, None, None), |_| {
        match (read_far_trees(remote, paths, style), &mut shown) {
            (Err(failure), _) => {
                failed = Some(failure);
                return Break(());
            }
            // What is there already is told first.
            (Ok(tree), None) => shown = Some(Shown::new(session, tree, style, paths)),
            (Ok(tree), Some(shown)) => shown.change(session, tree),
        }
        if session.try_flush().is_ok() { Continue(()) } else { Break(()) }
    });
    failed.map_or(ended, Err)
}

fn read_far_trees(remote: &Remote, paths: &[String], style: Style) -> Result<Vec<Node>, Failure> {
    let mut trees = Vec::new();
    for path in paths {
        // As of this host.
        if far::exists(remote, path)? {
            trees.extend(far::read_tree(remote, path, style.permissions)?);
        }
    }
    Ok(trees)
}

/// What was printed of the trees.
struct Shown<'a> {
    tree: Vec<Node>,
    style: Style,
    paths: &'a [String],
    on_terminal: bool,
}

impl<'a> Shown<'a> {
    fn new(session: &mut Session, tree: Vec<Node>, style: Style, paths: &'a [String]) -> Self {
        let on_terminal = std::io::stdout().is_terminal();
        session.print(&match on_terminal {
            true => draw(&tree, &NodeDiff::default(), style, paths),
            false => render(&tree, style),
        });
        Self { tree, style, paths, on_terminal }
    }

    fn change(&mut self, session: &mut Session, now: Vec<Node>) {
        let changes = compare(&self.tree, &now);
        if !changes.is_empty() {
            session.print(&match self.on_terminal {
                true => draw(&now, &changes, self.style, self.paths),
                false => tell(&changes, self.style),
            });
        }
        self.tree = now;
    }
}

fn read_trees(store: &mut Store, paths: &[String], style: Style) -> Result<Vec<Node>, Failure> {
    let mut trees = Vec::new();
    for path in paths {
        // The path may not exist yet.
        if store.read_optional(path)?.is_some() {
            trees.extend(read_tree(store, path, style.permissions)?);
        }
    }
    Ok(trees)
}

/// Consumes events that follow closely: a device has dozens of nodes.
fn settle(store: &mut Store) -> Result<(), Failure> {
    for _ in 0..QUIETS_MAX {
        while store.poll_event().is_some() {}
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(QUIET_MS) * 1_000_000 };
        let mut fds = [PollFd::new(store.transport(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(()),
            Ok(_) => drop(store.receive()?),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                return Err(Failure::failed(format!("cannot wait for the store: {errno}")));
            }
        }
    }
    while store.poll_event().is_some() {}
    Ok(())
}

#[derive(Debug, Default)]
struct NodeDiff<'a> {
    gone: Vec<&'a Node>,
    new: BTreeMap<&'a str, &'a Node>,
    changed: BTreeMap<&'a str, &'a Node>,
}

impl NodeDiff<'_> {
    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.new.is_empty() && self.changed.is_empty()
    }
}

fn compare<'a>(before: &'a [Node], now: &'a [Node]) -> NodeDiff<'a> {
    let mut known: BTreeMap<&str, &Node> =
        before.iter().map(|node| (node.path.as_str(), node)).collect();
    let mut changes = NodeDiff::default();
    for node in now {
        match known.remove(node.path.as_str()) {
            None => _ = changes.new.insert(&node.path, node),
            Some(old) if old != node => _ = changes.changed.insert(&node.path, node),
            Some(_) => {}
        }
    }
    changes.gone = before.iter().filter(|node| known.contains_key(node.path.as_str())).collect();
    changes
}

fn tell(changes: &NodeDiff<'_>, style: Style) -> String {
    let style = Style { layout: Layout::Flat, ..style };
    let mut text = String::new();
    let gone = changes.gone.iter().copied().map(|node| ("- ", node));
    let new = changes.new.values().copied().map(|node| ("+ ", node));
    let changed = changes.changed.values().copied().map(|node| ("~ ", node));
    for (mark, node) in gone.chain(new).chain(changed) {
        text.push_str(mark);
        if mark == "- " {
            text.push_str(&node.path);
            text.push('\n');
        } else {
            render_node(&mut text, node, style);
        }
    }
    text
}

/// Draws a screen: the watched paths, then as much of the tree as fits.
fn draw(tree: &[Node], changes: &NodeDiff<'_>, style: Style, paths: &[String]) -> String {
    let rows = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(24, |size| size.ws_row);
    let rows = usize::from(rows).saturating_sub(2).max(1);
    let mut text = format!("{CLEAR}{}: {} nodes", paths.join(" "), tree.len());
    let counts = [
        (changes.new.len(), "new"),
        (changes.changed.len(), "changed"),
        (changes.gone.len(), "gone"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!(", {count} {what}"));
    }
    text.push('\n');
    let shown = if tree.len() > rows { rows.saturating_sub(1) } else { tree.len() };
    for node in &tree[..shown] {
        let path = node.path.as_str();
        let is_news = changes.new.contains_key(path) || changes.changed.contains_key(path);
        if is_news {
            text.push_str(BOLD);
        }
        render_node(&mut text, node, style);
        if is_news {
            text.pop();
            text.push_str(PLAIN);
            text.push('\n');
        }
    }
    if shown < tree.len() {
        text.push_str(&format!("... and {} more\n", tree.len() - shown));
    }
    text
}
