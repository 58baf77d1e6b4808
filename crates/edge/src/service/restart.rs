//! Restart of a run: another attempt while it lives, a new run when it has ended.

use super::Processes;
use crate::{
    auth::{self, Scope},
    convert::{again, request, run},
    pb,
    trace_context::TraceContext,
};
use kennel_lifecycle::Refusal;
use kennel_supervisor::{CallError, RestartCall, RunView, Supervisor};
use tonic::{Request, Response, Status};

/// Result of a restart request.
enum Restarted {
    /// The run as it is, with another attempt or without.
    InPlace(RunView),
    /// The run has ended: only a new run can follow it.
    Over(RunView),
}

async fn another_attempt(
    supervisor: &Supervisor,
    call: RestartCall,
) -> Result<Restarted, CallError> {
    let (run, meant) = (call.run, call.expected_attempt);
    let refused = match supervisor.restart(call).await {
        Ok(view) => return Ok(Restarted::InPlace(view)),
        Err(refused) => refused,
    };
    let CallError::Refused {
        refusal: Refusal::Ended,
        ..
    } = refused
    else {
        return Err(refused);
    };
    let view = supervisor.get(run).await?;
    if !view.state.is_terminal() {
        // It belongs to another node.
        return Err(refused);
    }
    if meant.is_some_and(|meant| meant < view.attempt) {
        return Ok(Restarted::InPlace(view));
    }
    Ok(Restarted::Over(view))
}

impl Processes {
    pub(super) async fn restart(
        &self,
        request: Request<pb::RestartRequest>,
    ) -> Result<Response<pb::RestartResponse>, Status> {
        let caller = auth::caller(&request)?.clone();
        let trace = TraceContext::of(&request);
        let request = request.into_inner();
        let call = request::restart(&request, caller.principal.clone())?;
        self.in_scope(Scope::of(&caller), call.run).await?;
        // In place or not, a command is started.
        self.shares.spawn(&caller)?;
        let supervisor = self.supervisor.clone();
        let ordered = self.to_its_end(async move { another_attempt(&supervisor, call).await });
        let view = match self.with_keeper(ordered).await? {
            Restarted::InPlace(view) => view,
            Restarted::Over(ended) => {
                let owner = caller.owner.clone();
                let call = again::spawn(request, ended.run, &ended.spec, owner, trace, &self.key)?;
                Box::pin(self.admit_counted(call, &caller)).await?.run
            }
        };
        Ok(Response::new(pb::RestartResponse {
            run: Some(run::run(view)),
        }))
    }
}
