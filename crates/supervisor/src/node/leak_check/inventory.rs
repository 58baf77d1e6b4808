//! Known state of the runs that findings point to: from the tracker, the keeper and the store.

use crate::{
    record::node_store::read,
    registry::{Shared, Supervisor},
};
use kennel_keeper::client::LeakScan;
use kennel_lifecycle::{
    RecordedSpec, RunId, Timestamp, TreeVerdict,
    audit::{HostInventory, KnownRun, RunStatus, on_this_host},
};
use kennel_store::{RunRow, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Deref,
    sync::Arc,
};

/// Labels of a run, in its spec.
#[derive(Clone, Debug)]
pub struct Labels(Arc<RecordedSpec>);

impl From<Arc<RecordedSpec>> for Labels {
    fn from(spec: Arc<RecordedSpec>) -> Self {
        Self(spec)
    }
}

impl Deref for Labels {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0.labels
    }
}

/// Most keys or numbers in one query.
const ASKED_MAX: usize = 500;
/// Most rows of ended runs compared by their numbers, for each query.
const NUMBERED_MAX: u32 = 5_000;

/// A live run.
pub(super) struct Tracked {
    known: KnownRun,
    labels: Labels,
}

/// Asserts that all of it is damaged.
#[derive(Default)]
pub(super) struct Compiled {
    pub(super) inventory: HostInventory,
    pub(super) labels: HashMap<RunId, Labels>,
    pub(super) live: u32,
    pub(super) unattended: Vec<RunId>,
    pub(super) unknown_run_dirs: u32,
    pub(super) newest: Option<Timestamp>,
    pub(super) store_away: Option<String>,
    pub(super) rows_cut: bool,
}

impl Supervisor {
    /// Returns all runs that have a task here, those under recovery among them.
    pub(super) fn live(&self) -> HashMap<RunId, Tracked> {
        let host = &self.shared.hello.host;
        let all = self.shared.all().into_iter();
        let tracked = all.map(|(run, handle)| {
            let live = handle.live.borrow();
            let known = KnownRun {
                standing: RunStatus::Live,
                identity: on_this_host(live.view.identity.clone(), host),
            };
            let labels = Arc::clone(&live.view.spec).into();
            (run, Tracked { known, labels })
        });
        tracked.collect()
    }

    /// Asks tracker, keeper and store. `before`: runs that were live before the scan.
    pub(super) async fn compile(
        &self,
        look: &LeakScan,
        before: HashMap<RunId, Tracked>,
    ) -> Compiled {
        let live = self.live();
        let mut compiled = Compiled {
            live: u32::try_from(live.len()).unwrap_or(u32::MAX),
            ..Compiled::default()
        };
        compiled.inventory = HostInventory {
            keeper: self.shared.hello.keeper.pid,
            service: std::iter::once(look.inventory.server)
                .chain(look.inventory.spare_shims.iter().copied())
                .collect(),
            shims: look.inventory.shims.iter().copied().collect(),
            rows_compared: true,
            ..HostInventory::default()
        };
        for (run, tracked) in live {
            compiled.labels.insert(run, tracked.labels);
            compiled.inventory.runs.insert(run, tracked.known);
        }
        if let Err(error) = self.ask_store(look, &before, &mut compiled).await {
            compiled.inventory.rows_compared = false;
            compiled.store_away = Some(error.to_string());
        }
        compiled
    }

    async fn ask_store(
        &self,
        look: &LeakScan,
        before: &HashMap<RunId, Tracked>,
        compiled: &mut Compiled,
    ) -> Result<(), StoreError> {
        let store = &self.shared.store;
        // A run's age is at least its creation time and that of every earlier run.
        let newest = read!(store, newest_age())?.known();
        compiled.newest = newest.map(|age| Timestamp(age.0));
        for run in pointed_to(look)
            .difference(&compiled.live_runs())
            .copied()
            .collect::<Vec<_>>()
            .chunks(ASKED_MAX)
        {
            let found = read!(store, get_all(run))?;
            // An unreadable row hides what the run may keep and how it ended: no process may count as leaked.
            if let Some(unread) = found.unread.first() {
                let why = format!(
                    "the row of run {} cannot be read: {}",
                    unread.run, unread.why
                );
                return Err(StoreError::Corrupt(why));
            }
            for row in found.rows {
                compiled.add(&self.shared, row);
            }
        }
        for numbers in numbers(look, compiled).chunks(ASKED_MAX) {
            let (node, host) = (self.shared.config.node, &self.shared.hello.host);
            let rows = read!(store, ended_with_pids(node, host, numbers, NUMBERED_MAX))?;
            compiled.rows_cut |= rows.len() >= NUMBERED_MAX as usize;
            for row in rows {
                compiled.add(&self.shared, row);
            }
        }
        let open = read!(store, open_runs(self.shared.config.node))?;
        let unattended = open
            .runs()
            .filter(|run| !before.contains_key(run) && self.shared.find(*run).is_none());
        let unattended: Vec<RunId> = unattended.collect();
        // A listed run may have ended since: its row is read again.
        for runs in unattended.chunks(ASKED_MAX) {
            let found = read!(store, get_all(runs))?;
            compiled.unattended.extend(found.open_runs());
        }
        self.ask_for_run_dirs(look, compiled).await
    }

    /// Asks for runs by their directories: a directory has a row, or is being made for one.
    async fn ask_for_run_dirs(
        &self,
        look: &LeakScan,
        compiled: &mut Compiled,
    ) -> Result<(), StoreError> {
        for runs in look.belongings.run_dirs.chunks(ASKED_MAX) {
            let rows = read!(self.shared.store, get_all(runs))?;
            let known: HashSet<RunId> = rows.runs().collect();
            let unknown = runs.iter().filter(|run| {
                !known.contains(run)
                    && !compiled.inventory.runs.contains_key(run)
                    && self.shared.find(**run).is_none()
            });
            compiled.unknown_run_dirs += u32::try_from(unknown.count()).unwrap_or(u32::MAX);
        }
        Ok(())
    }
}

impl Compiled {
    fn live_runs(&self) -> BTreeSet<RunId> {
        self.inventory.runs.keys().copied().collect()
    }

    /// A run of another node is not of this installation, as far as this host is concerned.
    fn add(&mut self, shared: &Shared, row: RunRow) {
        let run = row.new.run;
        if row.new.node != shared.config.node || self.inventory.runs.contains_key(&run) {
            return;
        }
        let standing = match row.outcome.as_ref().map(|outcome| &outcome.tree) {
            None => RunStatus::Open,
            Some(TreeVerdict::Kept(_)) => RunStatus::Kept,
            Some(_) => RunStatus::Ended,
        };
        let identity = on_this_host(row.new.identity, &shared.hello.host);
        let known = KnownRun { standing, identity };
        self.inventory.runs.insert(run, known);
        self.labels.insert(run, row.new.spec.into());
    }
}

/// Returns the runs that a directory, a marker or a shim names.
fn pointed_to(look: &LeakScan) -> BTreeSet<RunId> {
    let mut runs = BTreeSet::new();
    for process in &look.scan.processes {
        runs.extend(process.marker);
        runs.extend(process.cgroup.as_ref().map(|group| group.run));
    }
    runs.extend(look.scan.empty_directories.iter().map(|(run, _)| *run));
    runs.extend(look.inventory.shims.iter().map(|(_, run)| *run));
    runs
}

/// Returns the numbers of present groups and sessions, except those of live runs: an ended run may have had one.
fn numbers(look: &LeakScan, compiled: &Compiled) -> Vec<i32> {
    let mut numbers = BTreeSet::new();
    for process in look.scan.processes.iter().filter(|p| !p.has_ended) {
        numbers.insert(process.identity.pgid);
        numbers.insert(process.identity.sid);
    }
    for known in compiled.inventory.runs.values() {
        if let (RunStatus::Live, Some(identity)) = (known.standing, &known.identity) {
            numbers.remove(&identity.command.pid);
            numbers.remove(&identity.shim.pid);
        }
    }
    numbers.remove(&0);
    numbers.into_iter().collect()
}
