//! Visibility of runs and consumers: one of another owner is answered like an absent one.

use super::{At, Context};
use crate::{
    auth,
    convert::request,
    pb,
    status::{self, answer_of},
};
use kennel_lifecycle::RunId;
use kennel_supervisor::{CallError, ConsumerKey};
use tonic::Status;

/// What a caller must be able to see.
#[derive(Debug)]
pub(crate) enum Scope {
    Nothing,
    Run(RunId),
    /// The same, and its node answers where it can be asked.
    RunAtItsNode(RunId),
    /// A run that may be named before it exists.
    RunOrAbsent(RunId),
    Consumer(ConsumerKey),
}

impl Scope {
    /// Whether anything must be read to know that the caller may see this: an operator sees all.
    pub(super) fn must_look(&self, own: &auth::Scope, asks_node: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::RunAtItsNode(_) if asks_node => true,
            _ => *own != auth::Scope::All,
        }
    }
}

impl At {
    /// Checks that a caller who sees `own` may see this.
    pub(super) async fn sees(
        &self,
        own: &auth::Scope,
        asks_node: bool,
        scope: Scope,
    ) -> Result<(), Status> {
        match scope {
            Scope::Nothing => Ok(()),
            Scope::Run(run) => self.sees_run(own, run).await,
            Scope::RunAtItsNode(run) => {
                self.sees_run(own, run).await?;
                if !asks_node {
                    return Ok(());
                }
                // The caller can call that node instead of this one.
                answer_of(self.supervisor.refuse_of_other_node(run)).await
            }
            Scope::RunOrAbsent(run) => self.sees_run_or_absent(own, run).await,
            Scope::Consumer(key) => self.sees_consumer(own, &key).await,
        }
    }

    pub(super) async fn sees_run(&self, own: &auth::Scope, run: RunId) -> Result<(), Status> {
        auth::in_scope(&self.supervisor, own, run).await
    }

    /// Checks for a call that may name a run before it exists. A run may not: an absent run is not below it.
    async fn sees_run_or_absent(&self, own: &auth::Scope, run: RunId) -> Result<(), Status> {
        if let auth::Scope::Run { .. } = own {
            return self.sees_run(own, run).await;
        }
        match auth::is_foreign(&self.supervisor, own, run).await {
            Ok(false) | Err(CallError::RunNotFound(_)) => Ok(()),
            Ok(true) => Err(status::of(&CallError::RunNotFound(run))),
            Err(error) => Err(status::of(&error)),
        }
    }

    async fn sees_consumer(&self, own: &auth::Scope, key: &ConsumerKey) -> Result<(), Status> {
        if let Some(run) = key.run {
            self.sees_run(own, run).await?;
        }
        if own.owner().is_none_or(|owner| owner == key.owner) {
            return Ok(());
        }
        Err(status::of(&CallError::ConsumerNotFound {
            run: key.run,
            name: key.name.clone(),
        }))
    }

    /// Prepares a filter of runs: narrows it to what processes of a run may see, the children of that run or of one
    /// below it, and looks up the node that it names.
    pub(super) async fn prepare_filter(
        &self,
        context: &mut Context<'_>,
        filter: &mut Option<pb::RunFilter>,
    ) -> Result<(), Status> {
        let own = context.scope();
        context.now = self.supervisor.now();
        if let auth::Scope::Run { run, .. } = &own {
            let filter = filter.get_or_insert_default();
            if filter.parent_run_id.is_empty() && filter.below_run_id.is_empty() {
                filter.parent_run_id = run.to_string();
            }
            let above = [&filter.parent_run_id, &filter.below_run_id];
            for above in above.into_iter().filter(|run| !run.is_empty()) {
                self.sees_run(&own, request::run_id(above)?).await?;
            }
        }
        let named = filter.as_ref().filter(|filter| !filter.node.is_empty());
        if let Some(filter) = named {
            let node = answer_of(self.supervisor.node_named(&filter.node)).await?;
            context.node = Some(node.node);
        }
        Ok(())
    }
}
