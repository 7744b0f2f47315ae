//! `xy store`: the store itself, without `xylemd` in between.
//!
//! Options, output and exit status are those of the tools in Xen's xenstore-utils
//! (`tools/xs-clients/xenstore_client.c`), so that scripts can use either.

mod escape;
mod live;
mod stats;
mod tree;

use xen::DomId;
use xenstore::client::{Batch, Client, ClientError, Nodes, Transaction};
use xenstore::{Access, Permission};
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
type InTransaction<'a> = Transaction<'a, StoreSocket>;

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

/// An error message as in the tool, followed by the store's.
fn doing(what: &str, path: &str, error: &ClientError) -> Failure {
    match error.refusal() {
        Some(refusal) => Failure::failed(format!("{what} {path}: {refusal}")),
        None => failed(error),
    }
}

fn read(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let mut batch = Batch::new();
    for path in &options.operands {
        batch.read(path);
    }
    let replies = connect()?.run_at_once(&batch)?;
    for (index, path) in options.operands.iter().enumerate() {
        let value =
            replies.get(index).map_err(|error| doing("couldn't read path", path, &error))?;
        if options.has("prefix") {
            session.print(&format!("{path}: "));
        }
        if options.has("raw") {
            session.print_bytes(value);
        } else {
            session.print(&format!("{}\n", escape::escape(value)));
        }
    }
    Ok(())
}

fn write(_session: &mut Session, options: &Options) -> Result<(), Failure> {
    if options.operands.len() % 2 == 1 {
        let path = &options.operands[options.operands.len() - 1];
        return Err(Failure::usage(format!(
            "store write: {path:?} has no value; see 'xy help store write'"
        )));
    }
    let mut batch = Batch::new();
    for pair in options.operands.chunks_exact(2) {
        let (path, value) = (&pair[0], &pair[1]);
        let value =
            if options.has("raw") { value.clone().into_bytes() } else { escape::unescape(value) };
        batch.write(path, value);
    }
    let mut store = connect()?;
    if let [path, _] = &options.operands[..] {
        let replies = store.run(&batch)?;
        replies.get(0).map_err(|error| doing("could not write path", path, &error))?;
        return Ok(());
    }
    store.commit(&batch)?;
    Ok(())
}

fn rm(_session: &mut Session, options: &Options) -> Result<(), Failure> {
    let tidy = options.has("tidy");
    connect()?.transaction(|transaction| {
        options.operands.iter().try_for_each(|path| remove(transaction, path, tidy))
    })
}

fn remove(transaction: &mut InTransaction<'_>, path: &str, tidy: bool) -> Result<(), Failure> {
    let mut path = path;
    loop {
        transaction.rm(path).map_err(|error| doing("could not remove path", path, &error))?;
        match path.rsplit_once('/') {
            Some((parent, _)) if tidy && is_bare(transaction, parent)? => path = parent,
            _ => return Ok(()),
        }
    }
}

/// Whether the node is empty. The root and missing nodes are not.
fn is_bare(transaction: &mut InTransaction<'_>, path: &str) -> Result<bool, Failure> {
    if path.is_empty() || transaction.read_optional(path)?.is_none_or(|value| !value.is_empty()) {
        return Ok(false);
    }
    Ok(transaction.directory(path)?.is_empty())
}

fn exists(_session: &mut Session, options: &Options) -> Result<(), Failure> {
    let mut batch = Batch::new();
    for path in &options.operands {
        batch.read(path);
    }
    let replies = connect()?.run_at_once(&batch)?;
    // Like the tool, it does not report missing nodes, but all other errors.
    for index in 0..batch.len() {
        if replies.get_optional(index)?.is_none() {
            return Err(Failure::Failed(Vec::new()));
        }
    }
    Ok(())
}

fn list(session: &mut Session, options: &Options) -> Result<(), Failure> {
    // What was listed before a failure is printed with it.
    let (listings, failure) = connect()?.transaction(|transaction| {
        let mut listings = Vec::new();
        for path in &options.operands {
            match transaction.directory(path) {
                Ok(names) => listings.push((path, names)),
                Err(error) if error.refusal().is_some() => {
                    return Ok((listings, Some(doing("could not list path", path, &error))));
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok((listings, None))
    })?;
    for (path, names) in listings {
        let prefix = match path.as_str() {
            _ if !options.has("prefix") => String::new(),
            "/" => "/".to_owned(),
            path => format!("{path}/"),
        };
        for name in names {
            session.print(&format!("{prefix}{name}\n"));
        }
    }
    failure.map_or(Ok(()), Err)
}

fn chmod(_session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (path, permissions) = options.operands.split_first().expect("at least two");
    let permissions: Vec<Permission> =
        permissions.iter().map(|text| permission(text)).collect::<Result<_, _>>()?;
    connect()?.transaction(|transaction| {
        set_permissions(transaction, path, &permissions)?;
        if options.has("upto") {
            let mut above = path.as_str();
            while let Some((parent, _)) = above.rsplit_once('/') {
                if !parent.is_empty() {
                    set_permissions(transaction, parent, &permissions)?;
                }
                above = parent;
            }
        }
        if options.has("recurse") {
            let mut below = vec![path.clone()];
            while let Some(path) = below.pop() {
                for name in transaction.directory(&path)? {
                    let child = tree::join(&path, &name);
                    set_permissions(transaction, &child, &permissions)?;
                    below.push(child);
                }
            }
        }
        Ok(())
    })
}

fn set_permissions(
    transaction: &mut InTransaction<'_>,
    path: &str,
    permissions: &[Permission],
) -> Result<(), Failure> {
    transaction
        .set_perms(path, permissions)
        .map_err(|error| doing("could not set permissions of", path, &error))
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
    let mut store = connect()?;
    for path in &options.operands {
        let watched = match depth {
            Some(depth) => store.watch_depth(path, path, depth),
            None => store.watch(path, path),
        };
        watched.map_err(|error| doing("unable to add watch on", path, &error))?;
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
