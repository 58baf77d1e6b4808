//! The rows of runs as callers see them: one run, lists, waits; the state of a live one, and the nodes of others.
//!
//! The end of a node's lease ends none of its runs: the node may be cut off from the database, and its runs may live.

use super::{Handle, Supervisor};
use crate::{
    base::{
        OPEN_ROW_POLL, RUNNING_RECORD_DELAY,
        calls::{CallError, Condition, RunPage, RunView, WaitAnswer},
        clock,
        drain::Drain,
        other_node::Elsewhere,
        view::{Live, StartAnswer},
    },
    record::node_store::read,
};
use kennel_lifecycle::{NodeId, RunId, RunState, Timestamp};
use kennel_store::{ListFilter, NodeRow, PageStart, RunRow, StoreError};
use std::collections::{BTreeSet, HashMap};

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
            // The run's node may have answered the Spawn, and records the start a little later.
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

    /// Lists runs, newest first, and where the next page begins, if there is one. A page may have fewer runs than asked
    /// for, or none, also if more follow.
    pub async fn list(
        &self,
        filter: ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<RunPage, CallError> {
        let mut page = self.page(&filter, start, limit.max(1)).await?;
        page.runs.retain(|view| view.fits(&filter));
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
            let age = row.new.age;
            let mut view = self.freshest(row).await;
            view.row.new.age = age;
            runs.push(view);
        }
        Ok(RunPage {
            runs,
            unread: page.unread,
            next: page.next,
        })
    }

    /// Waits for a condition, for as long as the caller waits.
    pub async fn wait(&self, run: RunId, condition: Condition) -> Result<WaitAnswer, CallError> {
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
                    return Ok(WaitAnswer {
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
                return Ok(WaitAnswer { reached, run });
            }
            if self.shared.find(run).is_none() {
                tokio::time::sleep(OPEN_ROW_POLL).await;
            }
        }
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
            // No task will begin: a later version has decided about the run.
            return Err(CallError::Pinned {
                run,
                by: "a pending change of a later version".into(),
                state: Some(RunView::from(row).state),
            });
        }
        // If another server has the node, only that server handles the row.
        if row.outcome.is_none() && self.shared.store.is_present().await {
            (self.shared.start_recovery)(&self.shared, row.clone());
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

    /// Adds the node, and a stop that is left for it, to the views of runs of other nodes.
    pub(crate) async fn locate(&self, views: &mut [RunView]) -> Result<(), CallError> {
        let own = self.shared.config.node;
        if views.iter().all(|view| view.node == own) {
            return Ok(());
        }
        // Boxed: rare, and larger than the futures of most calls.
        Box::pin(self.locate_others(views)).await
    }

    async fn locate_others(&self, views: &mut [RunView]) -> Result<(), CallError> {
        let own = self.shared.config.node;
        let others = views
            .iter()
            .map(|view| view.node)
            .filter(|node| *node != own);
        let others: BTreeSet<NodeId> = others.collect();
        let others: Vec<NodeId> = others.into_iter().collect();
        let nodes = read!(self.shared.store, nodes(Some(&others)))?;
        let is_open = |view: &&RunView| view.node != own && !view.state.is_terminal();
        let open: Vec<RunId> = views.iter().filter(is_open).map(|view| view.run).collect();
        let mut left = HashMap::new();
        if !open.is_empty() {
            let stops = read!(self.shared.store, left_stops_of(&open))?;
            left.extend(stops.into_iter().map(|stop| (stop.run, stop)));
        }
        for view in views.iter_mut().filter(|view| view.node != own) {
            view.elsewhere = Some(elsewhere(view, &nodes));
            view.left_stop = left.remove(&view.run);
        }
        Ok(())
    }

    /// All nodes of the database, this one too, by their names.
    pub async fn nodes(&self) -> Result<Vec<Elsewhere>, CallError> {
        let rows = read!(self.shared.store, nodes(None))?;
        let mut nodes: Vec<_> = rows.into_iter().map(Elsewhere::from).collect();
        nodes.sort_by(|a, b| (&a.name, a.node.as_u128()).cmp(&(&b.name, b.node.as_u128())));
        Ok(nodes)
    }

    /// This node, without its place in the database.
    pub(crate) fn own_node(&self) -> Elsewhere {
        let config = &self.shared.config;
        Elsewhere {
            name: config.node_name.clone(),
            address: config.address.clone(),
            is_reachable: true,
            ..Elsewhere::of(config.node, &[])
        }
    }

    /// The id of this node.
    pub fn node(&self) -> NodeId {
        self.shared.config.node
    }

    /// The time by the clock of this node.
    pub fn now(&self) -> Timestamp {
        clock::now()
    }

    /// Refuses a run of another node, also one that has ended.
    pub async fn refuse_of_other_node(&self, run: RunId) -> Result<(), CallError> {
        if self.shared.find(run).is_some() {
            return Ok(());
        }
        self.refuse_unless_here(&self.get(run).await?).await
    }

    /// Adds the node to one view.
    pub(crate) async fn located(&self, mut view: RunView) -> Result<RunView, CallError> {
        self.locate(std::slice::from_mut(&mut view)).await?;
        Ok(view)
    }

    /// Maps a failed read of a row: one that a later version has written at another node is for that node.
    pub(crate) async fn read_fault(&self, fault: StoreError) -> CallError {
        if let StoreError::Unread(row) = &fault
            && row.node != self.shared.config.node
            && let Ok(nodes) = read!(self.shared.store, nodes(Some(&[row.node])))
        {
            return CallError::RunElsewhere {
                run: row.run,
                elsewhere: Box::new(Elsewhere::of(row.node, &nodes)),
            };
        }
        fault.into()
    }

    /// Whether the row of this run was removed, as far as that is remembered and the store answers.
    pub(crate) async fn is_removed(&self, run: RunId) -> bool {
        let removed = read!(self.shared.store, removed_ids(&[run]));
        removed.is_ok_and(|removed| !removed.is_empty())
    }

    /// Returns one run, as [`Self::get`] does, for a caller who may see the runs of this owner alone; `None`: another
    /// owner has it, in a record that this version cannot read.
    pub async fn get_of(&self, run: RunId, owner: &str) -> Result<Option<RunView>, CallError> {
        let error = match self.get(run).await {
            Err(error @ (CallError::RunElsewhere { .. } | CallError::Internal(_))) => error,
            answer => return answer.map(Some),
        };
        // Only the owner named in an unreadable row learns of it.
        match self.shared.store.get(run).await {
            Err(StoreError::Unread(row)) if row.owner != owner => Ok(None),
            Err(StoreError::Unread(_)) => Err(error),
            Err(fault) => Err(fault.into()),
            Ok(Some(row)) => self.located(row.into()).await.map(Some),
            Ok(None) => Err(CallError::RunNotFound(run)),
        }
    }

    /// Refuses a call that only the run's own node can carry out.
    pub(crate) async fn refuse_unless_here(&self, view: &RunView) -> Result<(), CallError> {
        if view.node == self.shared.config.node {
            return Ok(());
        }
        match Box::pin(self.located(view.clone())).await?.elsewhere {
            Some(elsewhere) => Err(CallError::RunElsewhere {
                run: view.run,
                elsewhere: Box::new(elsewhere),
            }),
            None => Ok(()),
        }
    }

    /// The drain in force.
    pub(crate) fn drained(&self) -> Option<Drain> {
        self.shared.drain.borrow().clone()
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

/// Returns the node of a run by its row. A keeper that has replaced that of an open row has not looked at the run yet; one
/// that waits for its next attempt has nothing to look at.
fn elsewhere(view: &RunView, nodes: &[NodeRow]) -> Elsewhere {
    let row = nodes.iter().find(|row| row.node == view.node);
    let is_its_keeper = row.is_none_or(|row| row.keeper_epoch == view.keeper_epoch);
    let waits = view.state == RunState::Backoff || view.state.is_terminal();
    Elsewhere {
        has_run: waits || is_its_keeper,
        ..Elsewhere::of(view.node, nodes)
    }
}
