//! The store of another host: the same, by requests to its `xylemd`.

use std::ops::ControlFlow;

use api::client::News;
use api::{Request, StoreNode, StoreRequest, StoreTree};
use xenstore::{Permission, unescape};

use super::tree::{Node, Permissions};
use crate::commands::{expect_done, expect_reply};
use crate::remote::Remote;
use crate::session::{Failure, Session, one_line, unexpected};

pub(super) fn done(session: &mut Session, request: StoreRequest) -> Result<(), Failure> {
    expect_done(&session.call(&Request::Store(request))?)
}

/// Values of one moment, as far as the nodes are there.
pub(super) fn values(
    session: &mut Session,
    paths: &[String],
) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    let request = StoreRequest::Read { paths: paths.to_vec() };
    let values = expect_reply!(session.call(&Request::Store(request))?, StoreValues);
    Ok(values.into_iter().map(|value| Some(unescape(&value?))).collect())
}

/// The names of nodes' children, as far as the nodes are there.
pub(super) fn names(
    session: &mut Session,
    paths: &[String],
) -> Result<Vec<Option<Vec<String>>>, Failure> {
    let request = StoreRequest::List { paths: paths.to_vec() };
    Ok(expect_reply!(session.call(&Request::Store(request))?, StoreNames))
}

/// Everything below `top`.
pub(super) fn read_tree(
    remote: &Remote,
    top: &str,
    permissions: Permissions,
) -> Result<Vec<Node>, Failure> {
    let mut tree = Vec::new();
    let mut after = None;
    loop {
        let request = StoreRequest::Tree { path: top.to_owned(), after, depth: None, limit: None };
        let reply = remote.call(&Request::Store(request), |_| ());
        let StoreTree { nodes, next } = match reply {
            Ok(api::Reply::StoreTree(part)) => part,
            Ok(other) => return Err(unexpected(&other)),
            Err(error) => return Err(Failure::failed(one_line(&error.to_string()))),
        };
        let below = nodes.into_iter().filter(|node| node.path != top);
        tree.extend(below.map(|it| node(top, it, permissions)));
        after = next;
        if after.is_none() {
            return Ok(tree);
        }
    }
}

fn node(top: &str, node: StoreNode, permissions: Permissions) -> Node {
    let StoreNode { path, value, permissions: list, .. } = node;
    let below = path.strip_prefix(top).unwrap_or_default().trim_start_matches('/');
    let depth = below.matches('/').count();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let permissions = (permissions == Permissions::Shown)
        .then(|| list.iter().filter_map(|it| Permission::decode(it.as_bytes()).ok()).collect());
    Node { name, path, depth, value: Some(unescape(&value)), permissions }
}

/// Whether this node is there.
pub(super) fn exists(remote: &Remote, path: &str) -> Result<bool, Failure> {
    let request = StoreRequest::Read { paths: vec![path.to_owned()] };
    match remote.call(&Request::Store(request), |_| ()) {
        Ok(api::Reply::StoreValues(values)) => Ok(values.iter().all(Option::is_some)),
        Ok(other) => Err(unexpected(&other)),
        Err(error) => Err(Failure::failed(one_line(&error.to_string()))),
    }
}

/// Tells what changes, until `count` paths were told or the other end or `on_change` ends it.
pub(super) fn watch(
    remote: &Remote,
    (paths, depth, count): (&[String], Option<u32>, Option<u32>),
    mut on_change: impl FnMut(Vec<String>) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let request = StoreRequest::Watch { paths: paths.to_vec(), depth, count };
    let ended = remote.follow(&Request::Store(request), |news| match news {
        News::Changed(paths) => on_change(paths),
        News::Progress(_) | News::Event(_) | News::Warning(_) => ControlFlow::Continue(()),
    });
    ended.map(drop).map_err(|error| Failure::failed(one_line(&error.to_string())))
}
