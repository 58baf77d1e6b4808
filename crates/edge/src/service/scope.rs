//! Visibility of runs: one of another owner is answered like an absent one.

use super::Processes;
use crate::{auth, pb, status};
use kennel_lifecycle::{NodeId, RunId};
use kennel_supervisor::{CallError, ConsumerKey};
use tonic::Status;

impl Processes {
    /// Returns the node in a filter.
    pub(super) async fn node_of(
        &self,
        filter: Option<&pb::RunFilter>,
    ) -> Result<Option<NodeId>, Status> {
        let named = filter.filter(|filter| !filter.node.is_empty());
        let Some(filter) = named else { return Ok(None) };
        let node = self.supervisor.node_named(&filter.node).await;
        node.map(|node| Some(node.node)).map_err(|e| status::of(&e))
    }

    /// Checks that a caller may see this run: one of another owner is answered like an absent one.
    pub(super) async fn in_scope(&self, scope: Option<String>, run: RunId) -> Result<(), Status> {
        auth::in_scope(&self.supervisor, scope, run).await
    }

    /// Checks likewise for a call that may name a run before it exists.
    pub(super) async fn in_scope_or_absent(
        &self,
        scope: Option<String>,
        run: RunId,
    ) -> Result<(), Status> {
        match auth::is_foreign(&self.supervisor, scope, run).await {
            Ok(false) | Err(CallError::RunNotFound(_)) => Ok(()),
            Ok(true) => Err(status::of(&CallError::RunNotFound(run))),
            Err(error) => Err(status::of(&error)),
        }
    }

    /// Checks likewise for a consumer.
    pub(super) async fn consumer_in_scope(
        &self,
        scope: Option<String>,
        key: &ConsumerKey,
    ) -> Result<(), Status> {
        if let Some(run) = key.run {
            self.in_scope(scope.clone(), run).await?;
        }
        let Some(owner) = scope else { return Ok(()) };
        let view = self.supervisor.consumer(key).await;
        match view.map_err(|e| status::of(&e))? {
            view if view.row.owner == owner => Ok(()),
            _ => Err(status::of(&CallError::ConsumerNotFound {
                run: key.run,
                name: key.name.clone(),
            })),
        }
    }

    /// Refuses a run of another node, where that one can be called instead of this one.
    pub(super) async fn at_its_node(&self, asks_node: bool, run: RunId) -> Result<(), Status> {
        if !asks_node {
            return Ok(());
        }
        let refused = self.supervisor.refuse_of_other_node(run).await;
        refused.map_err(|error| status::of(&error))
    }
}
