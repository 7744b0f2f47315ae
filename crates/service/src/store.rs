//! Requests about the xenstore.

use core::time::Duration;

use api::{Answer, Reply, StoreNode, StoreQuotaRow, StoreRequest, StoreTree, StoreValue};
use xenstore::client::{
    Batch, Client, ClientError, Cursor, Extent, Nodes as _, Parents, Part, PartMax, Transport,
    TreeFailed, TreeNode, list, part, remove, set_permissions,
};
use xenstore::{Permission, escape, unescape};

use crate::{Failed, Service};

/// Paths of a request.
const PATHS_MAX: usize = 64;
/// Bytes of values in an answer, before they are escaped.
const BYTES_MAX: usize = 1 << 20;
/// Nodes of a part of a tree.
const NODES_MAX: usize = 1000;
/// Paths of changes that are told at once.
const CHANGES_MAX: usize = 1000;
/// How often it is looked whether a client that watches is still there.
const LOOK: Duration = Duration::from_millis(500);
/// What changes within this time is told together, at most so many times: a device has dozens of nodes.
const QUIET: Duration = Duration::from_millis(20);
const QUIETS_MAX: usize = 10;

/// A connection to the store.
pub trait StoreLink: Transport {
    /// Waits until there is something to receive, for this time at most; whether there is.
    ///
    /// # Errors
    /// Says why it cannot wait.
    fn wait(&mut self, time: Duration) -> Result<bool, String>;
}

type Store = Client<Box<dyn StoreLink>>;

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        Self::Told(error.to_string())
    }
}

impl From<TreeFailed> for Failed {
    fn from(error: TreeFailed) -> Self {
        Self::Told(error.to_string())
    }
}

impl Service<'_> {
    pub(crate) fn store(&self, request: StoreRequest) -> Result<Reply, Failed> {
        match request {
            StoreRequest::Tree { path, after, depth, limit } => {
                let tree = tree(&mut self.link()?, &path, after.as_deref(), depth, limit)?;
                Ok(Reply::StoreTree(tree))
            }
            StoreRequest::Read { paths } => {
                check_count(paths.len())?;
                read(&mut self.link()?, &paths).map(Reply::StoreValues)
            }
            StoreRequest::List { paths } => {
                check_count(paths.len())?;
                let names = self.link()?.transaction(|transaction| list(transaction, &paths))?;
                check_size(names.iter().flatten().flatten().map(String::len).sum())?;
                Ok(Reply::StoreNames(names))
            }
            StoreRequest::Write { values } => {
                check_count(values.len())?;
                write(&mut self.link()?, &values)
            }
            StoreRequest::Rm { paths, tidy } => {
                check_count(paths.len())?;
                let parents = if tidy { Parents::RemovedIfBare } else { Parents::Kept };
                self.link()?.transaction(|transaction| {
                    paths.iter().try_for_each(|path| remove(transaction, path, parents))
                })?;
                Ok(Reply::Done)
            }
            StoreRequest::Chmod { path, permissions, recurse, upto } => {
                let permissions = permissions_of(&permissions)?;
                let extent = Extent { above: upto, below: recurse };
                self.link()?.transaction(|transaction| {
                    set_permissions(transaction, &path, &permissions, extent)
                })?;
                Ok(Reply::Done)
            }
            StoreRequest::Watch { paths, depth, count } => self.watch(&paths, depth, count),
            StoreRequest::Quota { domid } => quota(&mut self.link()?, domid),
            StoreRequest::Stats => self.stats(),
            StoreRequest::Metrics => {
                let none = "the store has no status socket that tells metrics";
                let text = self.daemon.store_status("metrics");
                text.map(Reply::Text).ok_or_else(|| Failed::Told(none.to_owned()))
            }
        }
    }

    fn link(&self) -> Result<Store, Failed> {
        self.daemon.store().map(Client::new).map_err(Failed::Told)
    }

    /// The full form of the status socket, or what the store itself tells.
    fn stats(&self) -> Result<Reply, Failed> {
        let unknown =
            || Failed::Told("this store tells no statistics: it is not xylem-xenstored".to_owned());
        let text = match self.daemon.store_status("json") {
            Some(text) => text,
            None => match self.link()?.control(&["stats"]) {
                Err(error) if error.refusal().is_some() => return Err(unknown()),
                text => text?,
            },
        };
        serde_json::from_str(&text).map(Reply::StoreStats).map_err(|_| unknown())
    }

    fn watch(
        &self,
        paths: &[String],
        depth: Option<u32>,
        count: Option<u32>,
    ) -> Result<Reply, Failed> {
        check_count(paths.len())?;
        let mut store = self.link()?;
        for path in paths {
            let watched = match depth {
                Some(depth) => store.watch_depth(path, path, depth),
                None => store.watch(path, path),
            };
            watched.map_err(|error| TreeFailed::new("unable to add watch on", path, &error))?;
        }
        let mut left = count.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        while left != Some(0) {
            let max = left.unwrap_or(usize::MAX).min(CHANGES_MAX);
            let changes = changes(&mut store, max)?;
            if changes.is_empty() {
                if self.door.has_gone() {
                    return Err(Failed::Gone);
                }
                continue;
            }
            left = left.map(|left| left - changes.len());
            self.door.tell(&Answer::Changed(changes))?;
        }
        Ok(Reply::Done)
    }
}

/// What has changed; nothing if that takes too long.
fn changes(store: &mut Store, max: usize) -> Result<Vec<String>, Failed> {
    let mut changes = Vec::new();
    let mut patience = LOOK;
    for _ in 0..QUIETS_MAX {
        while changes.len() < max
            && let Some(event) = store.poll_event()
        {
            changes.push(event.path);
        }
        if changes.len() == max {
            break;
        }
        if !changes.is_empty() {
            patience = QUIET;
        }
        if !store.transport_mut().wait(patience).map_err(Failed::Told)? {
            break;
        }
        store.receive()?;
    }
    Ok(changes)
}

fn check_count(paths: usize) -> Result<(), Failed> {
    match paths {
        0 => Err(Failed::Told("no path is named".to_owned())),
        1..=PATHS_MAX => Ok(()),
        _ => Err(Failed::Told(format!("{paths} paths; {PATHS_MAX} at most in one request"))),
    }
}

fn check_size(bytes: usize) -> Result<(), Failed> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    Err(Failed::Told(format!("more than {BYTES_MAX} bytes; ask for less, or for a tree in parts")))
}

fn tree(
    store: &mut Store,
    path: &str,
    after: Option<&str>,
    depth: Option<u32>,
    limit: Option<u32>,
) -> Result<StoreTree, Failed> {
    let after = after.map(|text| {
        let wrong = || Failed::Told(format!("{text:?} is not the next of a part of a tree"));
        text.parse::<Cursor>().map_err(|()| wrong())
    });
    let after = after.transpose()?;
    let most = |wanted: Option<u32>, max: usize| {
        wanted.and_then(|it| usize::try_from(it).ok()).map_or(max, |it| it.min(max))
    };
    let nodes = most(limit, NODES_MAX).max(1);
    let max = PartMax { nodes, bytes: BYTES_MAX, depth: most(depth, usize::MAX) };
    let Part { nodes, next } = part(store, path, after.as_ref(), max)
        .map_err(|error| TreeFailed::new("could not list", path, &error))?;
    let node = |it: TreeNode| StoreNode {
        value: escape(&it.value),
        permissions: it.permissions.iter().map(Permission::to_string).collect(),
        children: it.children,
        path: it.path,
    };
    let nodes = nodes.into_iter().map(node).collect();
    Ok(StoreTree { nodes, next: next.map(|it| it.to_string()) })
}

fn read(store: &mut Store, paths: &[String]) -> Result<Vec<Option<String>>, Failed> {
    let mut batch = Batch::new();
    for path in paths {
        batch.read(path);
    }
    let replies = store.run_at_once(&batch)?;
    let value = |(index, path): (usize, &String)| match replies.get_optional(index) {
        Ok(value) => Ok(value.map(escape)),
        Err(error) => Err(TreeFailed::new("couldn't read path", path, &error).into()),
    };
    paths.iter().enumerate().map(value).collect()
}

fn write(store: &mut Store, values: &[StoreValue]) -> Result<Reply, Failed> {
    let mut batch = Batch::new();
    for StoreValue { path, value } in values {
        batch.write(path, unescape(value));
    }
    if let [StoreValue { path, .. }] = values {
        let replies = store.run(&batch)?;
        let written = replies.get(0).map(drop);
        written.map_err(|error| TreeFailed::new("could not write path", path, &error))?;
    } else {
        store.commit(&batch)?;
    }
    Ok(Reply::Done)
}

fn permissions_of(texts: &[String]) -> Result<Vec<Permission>, Failed> {
    check_count(texts.len())?;
    let one = |text: &String| {
        Permission::decode(text.as_bytes())
            .map_err(|_| Failed::Told(format!("{text:?} is not a permission such as n0 or r3")))
    };
    texts.iter().map(one).collect()
}

/// Both reports have a line for each limit: `nodes : 7 (max 9)`, and `nodes : 1000 what it limits`.
fn quota(store: &mut Store, domid: Option<u16>) -> Result<Reply, Failed> {
    let mut report = |words: &[&str]| match store.control(words) {
        Err(error) if error.refusal().is_some() && words.len() == 1 => {
            Err(Failed::Told("this store tells no quota".to_owned()))
        }
        Err(error) => Err(Failed::from(error)),
        Ok(text) => Ok(lines(&text)),
    };
    let mut rows: Vec<StoreQuotaRow> = report(&["quota"])?
        .into_iter()
        .map(|(name, limit)| StoreQuotaRow {
            name,
            limit: limit.first().copied(),
            ..Default::default()
        })
        .collect();
    if let Some(domid) = domid {
        for (name, counts) in report(&["quota", &domid.to_string()])? {
            let (used, used_max) = (counts.first().copied(), counts.get(1).copied());
            match rows.iter_mut().find(|row| row.name == name) {
                Some(row) => (row.used, row.used_max) = (used, used_max),
                None => rows.push(StoreQuotaRow { name, used, used_max, limit: None }),
            }
        }
    }
    Ok(Reply::StoreQuota(rows))
}

/// The names and numbers of a report.
fn lines(report: &str) -> Vec<(String, Vec<u64>)> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let words = rest.split([' ', '(', ')']).filter(|it| !it.is_empty());
        let numbers: Vec<u64> = words.filter_map(|it| it.parse().ok()).collect();
        (!numbers.is_empty()).then(|| (name.trim().to_owned(), numbers))
    };
    report.lines().filter_map(line).collect()
}
