//! Visibility of runs: one of another owner is answered like an absent one.

use super::Processes;
use crate::{
    auth::{self, Scope},
    convert::request,
    pb,
    status::{self, answer_of},
};
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
        let node = answer_of(self.supervisor.node_named(&filter.node)).await?;
        Ok(Some(node.node))
    }

    /// Narrows a filter to what processes of a run may see: the children of that run, or of one below it.
    pub(super) async fn below_scope(
        &self,
        scope: &Scope,
        filter: &mut Option<pb::RunFilter>,
    ) -> Result<(), Status> {
        let Scope::Run { run, .. } = scope else {
            return Ok(());
        };
        let parent = &mut filter.get_or_insert_default().parent_run_id;
        if parent.is_empty() {
            *parent = run.to_string();
            return Ok(());
        }
        let parent = request::run_id(parent)?;
        self.in_scope(scope.clone(), parent).await
    }

    /// Checks that a caller may see this run: one of another owner is answered like an absent one.
    pub(super) async fn in_scope(&self, scope: Scope, run: RunId) -> Result<(), Status> {
        auth::in_scope(&self.supervisor, &scope, run).await
    }

    /// Checks likewise for a call that may name a run before it exists. A run may not: an absent run is not below it.
    pub(super) async fn in_scope_or_absent(&self, scope: Scope, run: RunId) -> Result<(), Status> {
        if let Scope::Run { .. } = scope {
            return self.in_scope(scope, run).await;
        }
        match auth::is_foreign(&self.supervisor, &scope, run).await {
            Ok(false) | Err(CallError::RunNotFound(_)) => Ok(()),
            Ok(true) => Err(status::of(&CallError::RunNotFound(run))),
            Err(error) => Err(status::of(&error)),
        }
    }

    /// Checks likewise for a consumer.
    pub(super) async fn consumer_in_scope(
        &self,
        scope: Scope,
        key: &ConsumerKey,
    ) -> Result<(), Status> {
        if let Some(run) = key.run {
            self.in_scope(scope.clone(), run).await?;
        }
        if scope.owner().is_none_or(|owner| owner == key.owner) {
            return Ok(());
        }
        Err(status::of(&CallError::ConsumerNotFound {
            run: key.run,
            name: key.name.clone(),
        }))
    }

    /// Refuses a run of another node, where that one can be called instead of this one.
    pub(super) async fn at_its_node(&self, asks_node: bool, run: RunId) -> Result<(), Status> {
        if !asks_node {
            return Ok(());
        }
        answer_of(self.supervisor.refuse_of_other_node(run)).await
    }
}
