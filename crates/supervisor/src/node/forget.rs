//! Forgetting a node that does not come back: an operator decides that its open runs have ended.
//!
//! First the node is acquired for no keeper, which fences any keeper that has it; then its open rows are closed, under
//! the generation that this gave. Where the server dies in between, the rows stay open, and a repeat closes them. A
//! node that comes back meanwhile has a higher generation, and keeps the rows that are not closed.

use crate::{
    base::{calls::CallError, clock, other_node::Elsewhere},
    node::ROWS_MAX,
    record::node_store::read,
    registry::{Order, Shared, Supervisor},
};
use kennel_lifecycle::{
    EndReason, Exit, KeeperEpoch, NodeId, Outcome, RunId, StopCertificate, StopOrder, StopReason,
    StreamsEnd, TreeVerdict,
};
use kennel_store::{
    Change, Closure, LeftStop, NodeRemoval, RunRow, Store, StoreError, StoredState, Times,
    UnreadRow,
};
use std::{collections::HashSet, sync::Arc};
use tokio::{sync::oneshot, task::JoinSet};

impl Supervisor {
    /// Finds the node of this name or id.
    pub async fn node_named(&self, name: &str) -> Result<Elsewhere, CallError> {
        let is_meant = |node: &Elsewhere| node.name == name || node.node.to_string() == name;
        let mut found = self.nodes().await?.into_iter().filter(is_meant);
        let why = match (found.next(), found.next()) {
            (Some(node), None) => return Ok(node),
            (None, _) => match self.ended_node(name).await? {
                Some(node) => return Ok(node),
                None => "no node of this database has this name or id",
            },
            (Some(_), Some(_)) => "several nodes have this name: use the id",
        };
        let name = name.to_owned();
        Err(CallError::NodeNotFound { name, why })
    }

    /// Finds a node that has ended, which has left the list of nodes.
    async fn ended_node(&self, id: &str) -> Result<Option<Elsewhere>, CallError> {
        let Ok(id) = id.parse() else {
            return Ok(None);
        };
        let found = read!(self.shared.store, nodes(Some(&[id])))?.pop();
        Ok(found.map(Elsewhere::from))
    }

    /// Ends the open runs of a node whose lease has ended, as lost, in the name of an operator. A repeat ends the
    /// remaining ones. Returns the node, and how many runs this call has ended. `removes`: the node is then removed.
    pub async fn forget_node(
        &self,
        name: &str,
        by: &str,
        removes: bool,
    ) -> Result<(Elsewhere, u32), CallError> {
        let node = self.node_named(name).await?;
        let store = &self.shared.store;
        let vacant = KeeperEpoch::from_u128(self.shared.next_id().as_u128());
        let fault = |error: StoreError| match error {
            // The node's server has acquired it again.
            StoreError::Held | StoreError::Fenced(_) => {
                CallError::NodeHasLease(Box::new(node.clone()))
            }
            error => error.into(),
        };
        let forgotten = store.raw().forget_node(node.node, vacant).await;
        let generation = forgotten.map_err(fault)?;
        let found = read!(store, open_runs(node.node)).map_err(fault)?;
        for row in &found.unread {
            tracing::error!(run_id = %row.run, why = row.why, "cannot read the row of a run of the forgotten node: a server of the version that wrote it can forget the node again");
        }
        let mut ended = 0;
        for rows in found.rows.chunks(ROWS_MAX) {
            let mut closing = JoinSet::new();
            for row in rows {
                let (run, raw) = (row.new.run, Arc::clone(store.raw()));
                let (new, closure) = (Box::new(row.new.clone()), Box::new(closure(row, by)));
                let closed = Change::Closed(new, closure);
                let of = node.node;
                closing.spawn(async move { raw.change(of, generation, run, &closed).await });
            }
            while let Some(closed) = closing.join_next().await {
                let closed = closed.map_err(|error| CallError::Internal(error.to_string()))?;
                closed.map_err(fault)?;
                ended += 1;
            }
        }
        let moot = remove_moot_stops(store.raw().as_ref(), node.node).await;
        moot.map_err(fault)?;
        tracing::warn!(node = %node.node, by, ended, "node forgotten, its open runs are closed as lost");
        let facts = [
            ("node", node.node.to_string()),
            ("by", by.to_owned()),
            ("runs", ended.to_string()),
        ];
        self.shared.trail.note("node_forgotten", facts);
        let forgotten = self.node_named(&node.node.to_string()).await?;
        if removes {
            let removal = NodeRemoval::Node(node.node);
            if !store.raw().remove_nodes(removal).await.map_err(fault)? {
                let unread = found.unread.into_iter().next();
                let pinned = |UnreadRow { run, why: by, .. }| CallError::Pinned {
                    run,
                    by,
                    state: None,
                };
                return Err(unread.map_or(CallError::NodeHasLease(Box::new(node)), pinned));
            }
            let facts = [("node", node.node.to_string()), ("by", by.to_owned())];
            self.shared.trail.note("node_removed", facts);
        }
        Ok((forgotten, ended))
    }
}

/// Removes the stops of ended runs that are left for a node, which may never come to carry them out.
pub(crate) async fn remove_moot_stops(store: &dyn Store, node: NodeId) -> Result<(), StoreError> {
    loop {
        let stops = store.left_stops(node).await?;
        let runs: Vec<RunId> = stops.iter().map(|stop| stop.run).collect();
        let found = store.get_all(&runs).await?;
        let open: HashSet<RunId> = found.open_runs().collect();
        let moot = stops.iter().filter(|stop| !open.contains(&stop.run));
        let moot: Vec<&LeftStop> = moot.collect();
        if moot.is_empty() {
            return Ok(());
        }
        for stop in moot {
            store.remove_left_stop(node, stop).await?;
        }
    }
}

/// Makes the end of a run of which only the row is known.
fn closure(row: &RunRow, by: &str) -> Closure {
    let reason = EndReason::NodeForgotten { by: by.to_owned() };
    let waits = row.past.last();
    let waits = waits.filter(|_| row.state == StoredState::Backoff);
    let outcome = match waits {
        // A run in backoff has a known outcome.
        Some(last) => Outcome {
            reason,
            ..last.outcome.clone()
        },
        None => Outcome {
            reason,
            exit: Some(Exit::Unknown),
            tree: TreeVerdict::Unverified("its node was not reachable".into()),
            streams: Some(StreamsEnd::Lost),
            certificate: StopCertificate::default(),
        },
    };
    Closure {
        outcome,
        times: Times {
            ended: Some(clock::now()),
            ..row.times
        },
        entries: None,
        has_files: row.new.identity.is_some() || row.new.attempt > 1,
    }
}

/// Returns the operator who ended this run by forgetting its node, if one did.
pub(crate) fn forgotten_by(row: &RunRow) -> Option<&str> {
    match &row.outcome.as_ref()?.reason {
        EndReason::NodeForgotten { by } => Some(by),
        _ => None,
    }
}

/// Ends a run that was forgotten with this node but lives here, as the operator decided.
pub(crate) fn end(shared: &Shared, run: RunId, by: &str) {
    let Some(handle) = shared.find(run) else {
        return;
    };
    tracing::error!(run_id = %run, by, "the run was forgotten with its node and is alive: ending it");
    let order = StopOrder {
        reason: StopReason::Abort {
            by: by.to_owned(),
            request_id: None,
        },
        grace: handle.live.borrow().view.policy().grace(),
    };
    let (reply, _) = oneshot::channel();
    handle.send(Order::Stop(order, reply), &shared.background);
}
