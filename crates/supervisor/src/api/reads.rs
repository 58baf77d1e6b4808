//! Reads: one run, lists, waits, the server itself.

use crate::{
    base::{
        OPEN_ROW_POLL, RUNNING_RECORD_DELAY,
        blocking::blocking,
        calls::{CallError, Condition, RunPage, RunView, ServerInfo, Waited},
        view::{Live, StartAnswer},
    },
    node::recover,
    registry::{Handle, Order, Supervisor},
};
use kennel_keeper::{detached, unreadable};
use kennel_lifecycle::{ApiAccess, NodeId, RunId, RunState, Usage};
use kennel_linux::{
    cgroup,
    peer::{self, Descent, Membership, Peer as PeerSeen},
    usage,
};
use kennel_store::{ListFilter, PageStart, RunRow};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    os::fd::AsFd,
    path::Path,
    sync::{Arc, atomic},
    time::Duration,
};

/// Longest time for the store to answer a ping.
const PING_MAX: Duration = Duration::from_secs(1);
/// Runs of one page of a search for nodes.
const SEARCHED: u32 = 200;

impl Supervisor {
    /// Returns one run.
    pub async fn get(&self, run: RunId) -> Result<RunView, CallError> {
        if let Some(handle) = self.shared.find(run)
            && let Some(live) = settled(&handle).await
            && self.shared.is_announced(run)
        {
            return Ok(live.view);
        }
        let row = self.row(run).await?;
        if let Some(view) = self.live_view(&row) {
            return Ok(view);
        }
        let view = Box::pin(self.located(row.into())).await?;
        if view.state != RunState::Starting || view.elsewhere.is_none() {
            return Ok(view);
        }
        drop(view);
        let read_later = async {
            // Its node writes a little later that it has started, and may have answered its Spawn.
            tokio::time::sleep(2 * RUNNING_RECORD_DELAY).await;
            self.located(self.row(run).await?.into()).await
        };
        Box::pin(read_later).await
    }

    /// Returns the run of an open row as its task shows it, where it has one here: what a row says that an earlier keeper
    /// wrote may long be over.
    fn live_view(&self, row: &RunRow) -> Option<RunView> {
        let handle = self.shared.find(row.new.run);
        let handle = handle.filter(|_| self.is_open_here(row))?;
        let live = handle.live.borrow();
        (!live.over).then(|| live.view.clone())
    }

    /// Whether this is the open row of a run of this node.
    pub(crate) fn is_open_here(&self, row: &RunRow) -> bool {
        row.outcome.is_none() && row.new.node == self.shared.config.node
    }

    /// Returns what a live run of this node has used up to now; absent: it has no control group, or that cannot be read.
    pub async fn usage(&self, view: &RunView) -> Option<Usage> {
        let handle = self.shared.find(view.run)?;
        let group = {
            let live = handle.live.borrow();
            // The directory of an attempt that has ended is being removed.
            let identity = live.view.identity.as_ref();
            identity.filter(|_| live.is_at_work())?.cgroup.clone()?
        };
        blocking(move || usage::live(&group)).await.ok().flatten()
    }

    /// Lists runs, newest first, and where the next page begins, if there is one. A page may have fewer runs than asked
    /// for, or none, also if more follow.
    pub async fn list(
        &self,
        filter: ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<RunPage, CallError> {
        let mut page = self.page(&filter, start, limit.max(1)).await?;
        let wanted = filter.states;
        page.runs
            .retain(|view| wanted.is_empty() || wanted.contains(&view.state));
        self.locate(&mut page.runs).await?;
        Ok(page)
    }

    /// Returns those of these nodes that have, or had, runs that fit a filter, in whatever state. The runs are read once,
    /// however many nodes there are.
    pub async fn nodes_with_runs(
        &self,
        nodes: &BTreeSet<NodeId>,
        filter: &ListFilter,
    ) -> Result<BTreeSet<NodeId>, CallError> {
        let mut filter = ListFilter {
            nodes: nodes.iter().copied().collect(),
            states: Vec::new(),
            ..filter.clone()
        };
        let (mut found, mut start) = (BTreeSet::new(), None);
        while !filter.nodes.is_empty() {
            let page = self.page(&filter, start, SEARCHED).await?;
            found.extend(page.runs.iter().map(|view| view.node));
            found.extend(page.unread.iter().map(|row| row.node));
            filter.nodes.retain(|node| !found.contains(node));
            if page.next.is_none() {
                break;
            }
            start = page.next;
        }
        Ok(found)
    }

    /// Lists at most so many runs that may fit a filter, as they are, and where the next page begins.
    pub(crate) async fn page(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<RunPage, CallError> {
        let filter = ListFilter {
            states: stored_states(&filter.states),
            ..filter.clone()
        };
        let page = self.shared.store.list(&filter, start, limit).await?;
        let mut runs = Vec::new();
        for row in page.rows {
            let age = row.new.age.known();
            let view = self.freshest(row).await;
            runs.push(RunView { age, ..view });
        }
        Ok(RunPage {
            runs,
            unread: page.unread,
            next: page.next,
        })
    }

    /// Waits for a condition, for as long as the caller waits.
    pub async fn wait(&self, run: RunId, condition: Condition) -> Result<Waited, CallError> {
        loop {
            if let Some(handle) = self.shared.find(run) {
                let mut live = handle.live.clone();
                let met = live
                    .wait_for(|live| live.over || live.meets(condition).is_some())
                    .await
                    .map(|live| live.clone());
                if let Ok(live) = met
                    && let Some(reached) = live.meets(condition)
                {
                    return Ok(Waited {
                        reached,
                        run: live.view,
                    });
                }
            }
            let row = self.row(run).await?;
            if self.live_view(&row).is_some() {
                continue;
            }
            let view = RunView::from(row);
            if let Some(reached) = view.meets(condition) {
                let run = Box::pin(self.located(view)).await?;
                return Ok(Waited { reached, run });
            }
            if self.shared.find(run).is_none() {
                tokio::time::sleep(OPEN_ROW_POLL).await;
            }
        }
    }

    /// Describes this server.
    pub async fn info(&self) -> ServerInfo {
        let shared = &self.shared;
        let ping = tokio::time::timeout(PING_MAX, shared.store.ping()).await;
        let mut live = BTreeMap::new();
        for (_, handle) in shared.running() {
            *live.entry(handle.live.borrow().view.state).or_insert(0) += 1;
        }
        ServerInfo {
            node: shared.config.node,
            node_name: shared.config.node_name.clone(),
            generation: shared.store.generation().unwrap_or_default(),
            keeper: shared.hello.clone(),
            keeper_unresponsive: *shared.kernel.unresponsive().borrow(),
            store: shared.store.describe(),
            store_reachable: matches!(ping, Ok(Ok(()))) && !shared.record.has_pending(),
            lease: shared.config.lease,
            fenced_by: shared.store.fenced_by(),
            live,
            started: shared.started,
            runs_max: shared.config.runs_max,
            retention: shared.config.retention,
            audit_lost: self.audit_lost(),
            unreadable_files: unreadable::count(&shared.config.data_dir) as u64,
            unreadable_records: shared.rows_unread.load(atomic::Ordering::Relaxed) as u64,
            drain: self.drain_status(),
        }
    }

    /// Returns the user and process that connected this socket.
    pub fn peer(&self, socket: &impl AsFd) -> io::Result<PeerSeen> {
        peer::credentials(socket)
    }

    /// Whether the process that connected this socket belongs to a run: then it has no rights here.
    #[must_use]
    pub fn descent(&self, socket: &impl AsFd) -> Descent {
        // Where they have ended, their process ids may belong to unrelated processes by now.
        let live = self.shared.running().into_iter();
        let live = live.filter_map(|(_, handle)| {
            let live = handle.live.borrow();
            let identity = live.view.identity.as_ref()?;
            Some(identity.shim.pid)
        });
        let (config, hello) = (&self.shared.config, &self.shared.hello);
        let members = Members {
            data_dir: &config.data_dir,
            groups: cgroup::base_prefix(config.node),
            keeper: hello.keeper.pid,
            adopts_as_init: hello.adopts_as_init(),
            shims: live.collect(),
        };
        peer::descent(socket, &members)
    }

    /// Returns the run with a token from whose shim the process descends that connected this socket, and its owner.
    /// When the shim dies, the process has no token.
    #[must_use]
    pub fn run_with_token(&self, socket: &impl AsFd) -> Option<(RunId, Arc<str>)> {
        self.nearest_run(socket, |view| view.spec.api_access != ApiAccess::None)
    }

    /// Adds a Warning to the run, if any, from whose shim the process descends that connected this socket, and that
    /// `is_due` selects. When the shim dies, no run is found.
    pub fn warn_run_of(&self, socket: &impl AsFd, is_due: impl FnOnce(RunId) -> bool, text: &str) {
        let Some((run, _)) = self.nearest_run(socket, |_| true) else {
            return;
        };
        if is_due(run)
            && let Some(handle) = self.shared.find(run)
        {
            handle.send(Order::Warn(text.to_owned()), &self.shared.background);
        }
    }

    fn nearest_run(
        &self,
        socket: &impl AsFd,
        is_meant: impl Fn(&RunView) -> bool,
    ) -> Option<(RunId, Arc<str>)> {
        let mut runs = Vec::new();
        for (run, handle) in self.shared.running() {
            let live = handle.live.borrow();
            let view = &live.view;
            // The identity of an attempt that has ended may be another process's by now.
            let is_meant = is_meant(view) && live.is_at_work();
            let identity = view.identity.as_ref().filter(|_| is_meant);
            let shim = identity.map(|identity| identity.shim.pid);
            runs.extend(shim.map(|shim| (shim, (run, Arc::clone(&handle.owner)))));
        }
        if runs.is_empty() {
            return None;
        }
        let shims: Vec<i32> = runs.iter().map(|(shim, _)| *shim).collect();
        let shim = peer::nearest_ancestor(socket, &shims)?;
        runs.into_iter()
            .find(|(of, _)| *of == shim)
            .map(|(_, run)| run)
    }

    /// Returns the run while this attempt of it is at work.
    #[must_use]
    pub fn at_work(&self, run: RunId, attempt: u32) -> Option<RunView> {
        let handle = self.shared.find(run)?;
        let live = handle.live.borrow();
        let is_meant = live.view.attempt == attempt && live.is_at_work();
        is_meant.then(|| live.view.clone())
    }

    /// Reads the row of a run that is not live. Recovery takes up an open row of this node that has no task. What an
    /// earlier server reported while the store was unavailable is reported here too, whatever the state of the store.
    pub(crate) async fn row(&self, run: RunId) -> Result<RunRow, CallError> {
        if let Some(row) = self.shared.record.pending_end(run) {
            return Ok(row);
        }
        let read = async || {
            if self.shared.record.has_pending_of(run) {
                return Err(CallError::StoreUnavailable);
            }
            match self.shared.store.get(run).await {
                Ok(row) => row.ok_or(CallError::RunNotFound(run)),
                Err(fault) => Err(Box::pin(self.read_fault(fault)).await),
            }
        };
        let row = read().await?;
        if !self.is_open_here(&row) {
            return Ok(row);
        }
        // The run may have ended between the lookup in the tracker and the read.
        if self.shared.find(run).is_some() {
            return Ok(row);
        }
        let row = read().await?;
        if row.outcome.is_none() && self.shared.record.waits_for_later(run) {
            // No task will come: a later version has said how it goes on.
            return Err(CallError::Pinned {
                run,
                by: "a pending change of a later version".into(),
                state: RunView::from(row).state,
            });
        }
        // Where the node has another server, everything about the row is that server's.
        if row.outcome.is_none() && self.shared.store.is_present().await {
            recover::start_recovery(&self.shared, row.clone());
        }
        Ok(row)
    }

    /// Returns the run of a row that was just read, in its present state.
    async fn freshest(&self, row: RunRow) -> RunView {
        // The live view of an ended run may not have its end yet.
        if row.outcome.is_some() {
            return row.into();
        }
        if let Some(view) = self.live_view(&row) {
            return view;
        }
        if row.new.node != self.shared.config.node {
            return row.into();
        }
        // The run has ended since the row was read, or recovery begins.
        let again = self.row(row.new.run).await.unwrap_or(row);
        self.live_view(&again).unwrap_or_else(|| again.into())
    }
}

/// Processes of runs of this data directory, by whichever keeper they were started.
struct Members<'a> {
    data_dir: &'a Path,
    /// Beginning of the names of the control groups of all keepers of this node.
    groups: String,
    /// Process id of the keeper.
    keeper: i32,
    /// Whether a child of process 1 is the keeper's.
    adopts_as_init: bool,
    /// Shims of live runs.
    shims: Vec<i32>,
}

impl Membership for Members<'_> {
    fn has_group(&self, group: &Path) -> bool {
        let mut names = group.iter().filter_map(OsStr::to_str);
        names.any(|name| name.starts_with(&self.groups))
    }

    /// A process whose shim dies is the keeper's child, until that dies. Then its control group shows where it belongs;
    /// without one it is not known any more, and `detached_identity` is missing.
    fn has_ancestor(&self, pid: i32, start_ticks: u64) -> bool {
        // Process 1 is the ancestor of every process: there, only its own children count.
        (pid == self.keeper && pid > 1)
            || self.shims.contains(&pid)
            || detached::has_shim(self.data_dir, pid, start_ticks)
    }

    /// When the keeper dies as process 1, so do all others.
    fn has_orphans_of_init(&self) -> bool {
        self.adopts_as_init
    }
}

/// Returns the live state, once it is more than a start whose record is not known; `None` when the store decides.
async fn settled(handle: &Handle) -> Option<Live> {
    let mut live = handle.live.clone();
    let live = live
        .wait_for(|live| {
            live.over
                || !matches!(
                    live.start,
                    Some(StartAnswer::Failed(_) | StartAnswer::Taken(_))
                )
        })
        .await
        .map(|live| live.clone())
        .ok()?;
    (!live.over).then_some(live)
}

/// An open state in the store may be another one by now: all open rows are examined where one open state is requested.
fn stored_states(wanted: &[RunState]) -> Vec<RunState> {
    let mut states: Vec<RunState> = wanted.iter().copied().filter(|s| s.is_terminal()).collect();
    if states.len() < wanted.len() {
        states.extend(RunState::OPEN);
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn members_are_known_across_restarts() {
        let data = tempfile::tempdir().expect("a directory");
        let members = |keeper| Members {
            data_dir: data.path(),
            groups: cgroup::base_prefix(NodeId::from_u128(1)),
            keeper,
            adopts_as_init: false,
            shims: vec![30],
        };
        let (now, other) = (NodeId::from_u128(1), NodeId::from_u128(2));
        let group = |node| format!("/c/{}EPOCH/run-R-1/below", cgroup::base_prefix(node));
        assert!(members(20).has_group(Path::new(&group(now))));
        assert!(!members(20).has_group(Path::new(&group(other))));
        assert!(!members(20).has_group(Path::new("/c/kennel-keeper")));

        assert!(members(20).has_ancestor(20, 7) && members(20).has_ancestor(30, 7));
        assert!(!members(1).has_ancestor(1, 7), "it is everyone's");
        assert!(!members(20).has_ancestor(40, 7));
        fs::create_dir(data.path().join("detached")).expect("a directory");
        fs::write(data.path().join("detached/40.7"), "").expect("a file");
        assert!(members(20).has_ancestor(40, 7));
        assert!(!members(20).has_ancestor(40, 8), "a later process");
    }
}
