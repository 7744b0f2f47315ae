//! Servers side by side, measured in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::{Better, Row};
use super::Options;
use crate::demo::median;
use lab::Store;
use store_trials::stores::{Daemon, Placement, Programs};

/// What all sections need.
pub(super) struct Bench {
    programs: Programs,
    stores: Vec<Store>,
    /// A server without a store takes part where that makes sense.
    has_bare: bool,
    pub rounds: u32,
    pub is_quick: bool,
    pub placement: Placement,
    /// How long a load runs in one round.
    pub slice: Duration,
}

/// A server that takes part, and what its variant means to the section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub store: Store,
    pub variant: usize,
    /// Of its command line.
    pub options: &'static [&'static str],
}

impl Entry {
    pub(super) fn new(store: Store, variant: usize) -> Self {
        Self { store, variant, options: &[] }
    }
}

/// Samples by store, variant and column.
pub(super) struct Figures {
    samples: BTreeMap<(Store, usize), Vec<Vec<f64>>>,
}

impl Bench {
    pub(super) fn new(options: &Options, placed: &str) -> Result<Self> {
        let peers = options.peers.iter().copied().filter(|store| *store != Store::Bare);
        let earlier = options.earlier.as_ref().map(|_| Store::Earlier);
        let stores: Vec<Store> =
            std::iter::once(Store::Xylem).chain(peers).chain(earlier).collect();
        let mut programs = Programs::prepare(&stores)?;
        if let Some(folder) = &options.earlier {
            programs = programs.with_earlier(folder);
        }
        Ok(Self {
            programs,
            stores,
            has_bare: options.peers.contains(&Store::Bare),
            rounds: options.rounds,
            is_quick: options.is_quick,
            placement: Placement {
                cpu: placed.contains("pinned").then_some(0),
                is_realtime: placed.contains("realtime"),
            },
            slice: Duration::from_millis(if options.is_quick { 20 } else { 300 }),
        })
    }

    /// `full`, or something small for a quick run.
    pub(super) fn size(&self, full: usize) -> usize {
        if self.is_quick { full.min(300) } else { full }
    }

    pub(super) fn start(&self, store: Store) -> Result<Daemon> {
        self.start_with(store, &[])
    }

    fn start_with(&self, store: Store, options: &[&str]) -> Result<Daemon> {
        Daemon::start(&self.programs, store, self.placement, options)
    }

    pub(super) fn stores(&self) -> impl Iterator<Item = Store> {
        self.stores.iter().copied()
    }

    /// Starts each store once for each variant, prepares it, and takes samples in turn.
    pub(super) fn in_turn<S>(
        &self,
        variants: &[usize],
        prepare: impl Fn(&Daemon, usize) -> Result<S>,
        sample: impl Fn(&Daemon, &mut S) -> Result<Vec<f64>>,
    ) -> Result<Figures> {
        let both = |store| variants.iter().map(move |&variant| Entry::new(store, variant));
        let lineup: Vec<Entry> = self.stores().flat_map(both).collect();
        self.in_turn_for(&lineup, prepare, sample)
    }

    /// Every store, and the server without one, if it takes part: for requests whose replies are not
    /// compared.
    pub(super) fn lineup_with_bare(&self) -> Vec<Entry> {
        let bare = self.has_bare.then_some(Store::Bare);
        self.stores().chain(bare).map(|store| Entry::new(store, 0)).collect()
    }

    /// As [`in_turn`](Self::in_turn), for these servers.
    pub(super) fn in_turn_for<S>(
        &self,
        lineup: &[Entry],
        prepare: impl Fn(&Daemon, usize) -> Result<S>,
        sample: impl Fn(&Daemon, &mut S) -> Result<Vec<f64>>,
    ) -> Result<Figures> {
        let mut field = Vec::new();
        for &Entry { store, variant, options } in lineup {
            let daemon = self.start_with(store, options)?;
            let context = || format!("preparing the {store} server");
            let state = prepare(&daemon, variant).with_context(context)?;
            field.push((daemon, variant, state));
        }
        let mut samples: BTreeMap<_, Vec<Vec<f64>>> = BTreeMap::new();
        for _ in 0..self.rounds {
            for (daemon, variant, state) in &mut field {
                // Whatever else runs here gets its turn now and not during a sample.
                std::thread::sleep(self.slice / 4);
                let values = sample(daemon, state)
                    .with_context(|| format!("measuring the {} server", daemon.store))?;
                let columns = samples.entry((daemon.store, *variant)).or_default();
                columns.resize(values.len(), Vec::new());
                for (column, value) in columns.iter_mut().zip(values) {
                    column.push(value);
                }
            }
        }
        Ok(Figures { samples })
    }
}

impl Figures {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self { samples: BTreeMap::new() }
    }

    /// Adds a sample of the only variant and column.
    pub(super) fn push(&mut self, store: Store, value: f64) {
        let columns = self.samples.entry((store, 0)).or_insert_with(|| vec![Vec::new()]);
        columns[0].push(value);
    }

    pub(super) fn value(&self, store: Store, variant: usize, column: usize) -> Result<f64> {
        let columns = self.samples.get(&(store, variant));
        let samples = columns.and_then(|columns| columns.get(column));
        // A sample that is no number says that the store could not do it.
        let samples = samples.map(|all| all.iter().copied().filter(|value| value.is_finite()));
        samples
            .and_then(|samples| median(&samples.collect::<Vec<_>>()))
            .with_context(|| format!("no sample of {store}, variant {variant}, column {column}"))
    }

    pub(super) fn peers(&self, variant: usize, column: usize) -> BTreeMap<&'static str, f64> {
        let value = |store, name| Some((name, self.value(store, variant, column).ok()?));
        let all = [(Store::C, "c"), (Store::Oxen, "oxen"), (Store::Earlier, "earlier")];
        all.into_iter().filter_map(|(store, name)| value(store, name)).collect()
    }

    /// Ours against the better of the peers.
    pub(super) fn row(
        &self,
        (variant, column): (usize, usize),
        what: &str,
        unit: &'static str,
        better: Better,
    ) -> Result<Row> {
        let ours = self.value(Store::Xylem, variant, column)?;
        let mut row =
            Row::against(what.to_owned(), unit, ours, self.peers(variant, column), better);
        // A lower bound for the operating system's share, not a competitor.
        row.bare = self.value(Store::Bare, variant, column).ok();
        Ok(row)
    }

    /// Ours against ours without what could slow it down; the peers' figures stand beside it.
    pub(super) fn row_with(
        &self,
        with: (usize, usize),
        without: (usize, usize),
        what: &str,
        (unit, better): (&'static str, Better),
        within: f64,
    ) -> Result<Row> {
        let ours = self.value(Store::Xylem, with.0, with.1)?;
        let base = self.value(Store::Xylem, without.0, without.1)?;
        let mut row = self.row(with, what, unit, better)?;
        row.ratio = match better {
            Better::Less => ours / base,
            Better::More => base / ours,
        };
        Ok(row.within(within))
    }
}
