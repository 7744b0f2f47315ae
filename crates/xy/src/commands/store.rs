//! `xy store`: the store itself, without `xylemd` in between; that of another host by its `xylemd`.
//!
//! Options, output and exit status are those of the tools in Xen's xenstore-utils
//! (`tools/xs-clients/xenstore_client.c`), so that scripts can use either.

mod far;
mod live;
mod stats;
mod tree;

use std::ops::ControlFlow::{Break, Continue};

use api::{StoreRequest, StoreValue};
use xen::DomId;
use xenstore::client::{
    Batch, Client, ClientError, Extent, Nodes as _, Parents, TreeFailed, list as tree_list, remove,
    set_permissions,
};
use xenstore::{Access, Error, Permission, escape, unescape};
use xenstore_socket::StoreSocket;

use crate::command::{Command, DryRun, JSON, MANY};
use crate::options::{Flag, Options};
use crate::session::{Failure, Session};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "store ls",
        usage: "[options] [Path ...]",
        about: "Print a tree with its values",
        flags: &[
            Flag::new('f', "flat", "Print whole paths, and values uncut."),
            Flag::new('p', "prefix", "Print permissions, too."),
            Flag::new('w', "watch", "Keep printing changes until interrupted."),
            SOCKET,
        ],
        operands: (0, MANY),
        dry_run: DryRun::Impossible,
        run: tree::ls,
    },
    Command {
        name: "store list",
        usage: "[options] <Path ...>",
        about: "Print the names of a node's children",
        flags: &[Flag::new('p', "prefix", "Print whole paths."), SOCKET],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: list,
    },
    Command {
        name: "store read",
        usage: "[options] <Path ...>",
        about: "Print values",
        flags: &[
            Flag::new('p', "prefix", "Print the path before each value."),
            Flag::new('R', "raw", "Print the bytes as they are, and nothing between them."),
            SOCKET,
        ],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: read,
    },
    Command {
        name: "store write",
        usage: "[options] <Path> <Value> [<Path> <Value> ...]",
        about: "Set values; missing nodes are created",
        flags: &[
            Flag::new('R', "raw", "Take the value as it is: \\n, \\x0a and \\012 are no newlines."),
            SOCKET,
        ],
        operands: (2, MANY),
        dry_run: DryRun::Impossible,
        run: write,
    },
    Command {
        name: "store rm",
        usage: "[options] <Path ...>",
        about: "Remove nodes and all below them",
        flags: &[
            Flag::new('t', "tidy", "Also remove parents that are left without value and children."),
            SOCKET,
        ],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: rm,
    },
    Command {
        name: "store exists",
        usage: "<Path ...>",
        about: "Exit with 0 if all the nodes exist, with 1 if not",
        flags: &[SOCKET],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: exists,
    },
    Command {
        name: "store chmod",
        usage: "[options] <Path> <Permission ...>",
        about: "Set permissions: n, r, w or b and a domain's number, the owner's first",
        flags: &[
            Flag::new('r', "recurse", "Set those of all below, too."),
            Flag::new('u', "upto", "Set those of all above but the root, too."),
            SOCKET,
        ],
        operands: (2, MANY),
        dry_run: DryRun::Impossible,
        run: chmod,
    },
    Command {
        name: "store watch",
        usage: "[options] <Path ...>",
        about: "Print the path of each change, until interrupted",
        flags: &[
            Flag::with_value('n', "number", "NUMBER", "End after so many."),
            Flag::with_value('d', "depth", "LEVELS", "Leave out changes further below."),
            SOCKET,
        ],
        operands: (1, MANY),
        dry_run: DryRun::Impossible,
        run: watch,
    },
    Command {
        name: "store stats",
        usage: "[options]",
        about: "Print counters and resources of xylem-xenstored",
        flags: &[JSON, Flag::new('\0', "metrics", "Print Prometheus' text.")],
        operands: (0, 0),
        dry_run: DryRun::Impossible,
        run: stats::stats,
    },
];

const SOCKET: Flag =
    Flag::new('s', "socket", "Accepted for xenstore-utils compatibility, ignored.");

/// Timeout for a store that is being restarted.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

type Store = Client<StoreSocket>;

pub(super) fn connect() -> Result<Store, Failure> {
    let path = xenstore_socket::default_path();
    StoreSocket::connect_patiently(&path, PATIENCE).map_err(|error| {
        Failure::failed(format!(
            "no store at {}: {error}; is xylem-xenstored running? XENSTORED_PATH names another \
             socket",
            path.display()
        ))
    })
}

pub(super) fn failed(error: &ClientError) -> Failure {
    Failure::failed(error.to_string())
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        failed(&error)
    }
}

impl From<TreeFailed> for Failure {
    fn from(error: TreeFailed) -> Self {
        Self::failed(error.to_string())
    }
}

fn read(session: &mut Session, options: &Options) -> Result<(), Failure> {
    for (path, value) in options.operands.iter().zip(values(session, &options.operands)?) {
        let missing = || Failure::failed(format!("couldn't read path {path}: {}", Error::ENOENT));
        let value = value.ok_or_else(missing)?;
        if options.has("prefix") {
            session.print(&format!("{path}: "));
        }
        if options.has("raw") {
            session.print_bytes(&value);
        } else {
            session.print(&format!("{}\n", escape(&value)));
        }
    }
    Ok(())
}

/// Values of one moment, as far as the nodes are there.
fn values(session: &mut Session, paths: &[String]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    if session.remote.is_some() {
        return far::values(session, paths);
    }
    let mut batch = Batch::new();
    for path in paths {
        batch.read(path);
    }
    let replies = connect()?.run_at_once(&batch)?;
    let value = |(index, path): (usize, &String)| match replies.get_optional(index) {
        Ok(value) => Ok(value.map(<[u8]>::to_vec)),
        Err(error) => Err(TreeFailed::new("couldn't read path", path, &error).into()),
    };
    paths.iter().enumerate().map(value).collect()
}

fn write(session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.operands.len() % 2 == 1 {
        let path = &options.operands[options.operands.len() - 1];
        return Err(Failure::usage(format!(
            "store write: {path:?} has no value; see 'xy help store write'"
        )));
    }
    let value = |value: &str| match options.has("raw") {
        true => value.as_bytes().to_vec(),
        false => unescape(value),
    };
    let pairs = options.operands.chunks_exact(2).map(|pair| (&pair[0], value(&pair[1])));
    if session.remote.is_some() {
        let value = |(path, value): (&String, Vec<u8>)| StoreValue {
            path: path.clone(),
            value: escape(&value),
        };
        return far::done(session, StoreRequest::Write { values: pairs.map(value).collect() });
    }
    let mut batch = Batch::new();
    for (path, value) in pairs {
        batch.write(path, value);
    }
    let mut store = connect()?;
    if let [path, _] = &options.operands[..] {
        let replies = store.run(&batch)?;
        replies.get(0).map_err(|error| TreeFailed::new("could not write path", path, &error))?;
        return Ok(());
    }
    store.commit(&batch)?;
    Ok(())
}

fn rm(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (paths, tidy) = (&options.operands, options.has("tidy"));
    if session.remote.is_some() {
        return far::done(session, StoreRequest::Rm { paths: paths.clone(), tidy });
    }
    let parents = if tidy { Parents::RemovedIfBare } else { Parents::Kept };
    connect()?.transaction(|transaction| {
        paths.iter().try_for_each(|path| Ok(remove(transaction, path, parents)?))
    })
}

fn exists(session: &mut Session, options: &Options) -> Result<(), Failure> {
    // Like the tool, it does not report missing nodes, but all other errors.
    match values(session, &options.operands)?.iter().all(Option::is_some) {
        true => Ok(()),
        false => Err(Failure::Failed(Vec::new())),
    }
}

fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let paths = &options.operands;
    let listings = match session.remote {
        Some(_) => far::names(session, paths)?,
        None => connect()?.transaction(|transaction| tree_list(transaction, paths))?,
    };
    // What was listed before a node that is not there is printed with the failure.
    for (path, names) in paths.iter().zip(listings) {
        let missing = || Failure::failed(format!("could not list path {path}: {}", Error::ENOENT));
        let prefix = match path.as_str() {
            _ if !options.has("prefix") => String::new(),
            "/" => "/".to_owned(),
            path => format!("{path}/"),
        };
        for name in names.ok_or_else(missing)? {
            session.print(&format!("{prefix}{name}\n"));
        }
    }
    Ok(())
}

fn chmod(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (path, permissions) = options.operands.split_first().expect("at least two");
    let permissions: Vec<Permission> =
        permissions.iter().map(|text| permission(text)).collect::<Result<_, _>>()?;
    let extent = Extent { above: options.has("upto"), below: options.has("recurse") };
    if session.remote.is_some() {
        let permissions = permissions.iter().map(Permission::to_string).collect();
        let Extent { above: upto, below: recurse } = extent;
        let path = path.clone();
        return far::done(session, StoreRequest::Chmod { path, permissions, recurse, upto });
    }
    let set = connect()?
        .transaction(|transaction| set_permissions(transaction, path, &permissions, extent));
    Ok(set?)
}

fn permission(text: &str) -> Result<Permission, Failure> {
    let wrong = || {
        Failure::failed(format!(
            "{text:?} is not a permission: n (none), r (read), w (write) or b (both), and a domain's \
             number, as in r3"
        ))
    };
    let mut characters = text.chars();
    let access = match characters.next() {
        Some('n') => Access::None,
        Some('r') => Access::Read,
        Some('w') => Access::Write,
        Some('b') => Access::ReadWrite,
        _ => return Err(wrong()),
    };
    let domid = characters.as_str().parse().map_err(|_| wrong())?;
    Ok(Permission::new(access, DomId(domid)))
}

fn watch(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let number = |name: &str| -> Result<Option<u32>, Failure> {
        let Some(text) = options.value(name) else { return Ok(None) };
        let wrong = || Failure::usage(format!("store watch: {text:?} is not a number"));
        // As in the tool: negative means unlimited.
        let number: i64 = text.parse().map_err(|_| wrong())?;
        if number < 0 { Ok(None) } else { number.try_into().map(Some).map_err(|_| wrong()) }
    };
    let (events_max, depth) = (number("number")?, number("depth")?);
    if let Some(remote) = session.remote.take() {
        let asked = (&options.operands[..], depth, events_max);
        return far::watch(&remote, asked, |paths| {
            paths.iter().for_each(|path| session.print(&format!("{path}\n")));
            if session.try_flush().is_ok() { Continue(()) } else { Break(()) }
        });
    }
    let mut store = connect()?;
    for path in &options.operands {
        let watched = match depth {
            Some(depth) => store.watch_depth(path, path, depth),
            None => store.watch(path, path),
        };
        watched.map_err(|error| TreeFailed::new("unable to add watch on", path, &error))?;
    }
    let mut events = 0;
    while events_max.is_none_or(|max| events < max) {
        let event = store.next_event()?;
        session.print(&format!("{}\n", event.path));
        if session.try_flush().is_err() {
            return Ok(());
        }
        events += 1;
    }
    Ok(())
}
