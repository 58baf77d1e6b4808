//! Runs of other nodes of the same database: their nodes, and whether those have a lease.
//!
//! The end of a node's lease ends none of its runs: the node may be cut off from the database, and its runs may live.

use crate::{
    base::{
        calls::{CallError, RunView},
        clock,
        other_node::Elsewhere,
    },
    registry::Supervisor,
};
use kennel_lifecycle::{NodeId, RunId, Timestamp};
use kennel_store::StoreError;
use std::collections::{BTreeSet, HashMap};

impl Supervisor {
    /// Adds the node, and a stop that is left for it, to the views of runs of other nodes.
    pub(crate) async fn locate(&self, views: &mut [RunView]) -> Result<(), CallError> {
        let own = self.shared.config.node;
        if views.iter().all(|view| view.node == own) {
            return Ok(());
        }
        // Rare, and larger than the futures of most calls.
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
        let nodes = self.shared.store.nodes(Some(&others)).await?;
        let is_open = |view: &&RunView| view.node != own && !view.state.is_terminal();
        let open: Vec<RunId> = views.iter().filter(is_open).map(|view| view.run).collect();
        let mut left = HashMap::new();
        if !open.is_empty() {
            let stops = self.shared.store.left_stops_of(&open).await?;
            left.extend(stops.into_iter().map(|stop| (stop.run, stop)));
        }
        for view in views.iter_mut().filter(|view| view.node != own) {
            view.elsewhere = Some(Elsewhere::of_run(view, &nodes));
            view.left_stop = left.remove(&view.run);
        }
        Ok(())
    }

    /// All nodes of the database, this one too, by their names.
    pub async fn nodes(&self) -> Result<Vec<Elsewhere>, CallError> {
        let rows = self.shared.store.nodes(None).await?;
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
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.config.node
    }

    /// The time by the clock of this node.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        clock::now()
    }

    /// Refuses a run of another node, also one that has ended.
    pub async fn refuse_of_other_node(&self, run: RunId) -> Result<(), CallError> {
        if self.shared.find(run).is_some() {
            return Ok(());
        }
        self.refuse_elsewhere(&self.get(run).await?).await
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
            && let Ok(nodes) = self.shared.store.nodes(Some(&[row.node])).await
        {
            return CallError::RunElsewhere {
                run: row.run,
                elsewhere: Box::new(Elsewhere::of(row.node, &nodes)),
            };
        }
        fault.into()
    }

    /// Returns one run, as [`Self::get`] does, for a caller who may see the runs of this owner alone; `None`: another
    /// owner has it, in a record that this version cannot read.
    pub async fn get_of(&self, run: RunId, owner: &str) -> Result<Option<RunView>, CallError> {
        let error = match self.get(run).await {
            Err(error @ (CallError::RunElsewhere { .. } | CallError::Internal(_))) => error,
            answer => return answer.map(Some),
        };
        // Who cannot be shown to be its owner is not taken for it.
        match self.shared.store.get(run).await {
            Err(StoreError::Unread(row)) if row.owner != owner => Ok(None),
            Err(StoreError::Unread(_)) => Err(error),
            Err(fault) => Err(fault.into()),
            Ok(Some(row)) => self.located(row.into()).await.map(Some),
            Ok(None) => Err(CallError::RunNotFound(run)),
        }
    }

    /// Refuses a call that only the run's own node can carry out.
    pub(crate) async fn refuse_elsewhere(&self, view: &RunView) -> Result<(), CallError> {
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
}
