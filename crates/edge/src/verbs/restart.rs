//! Restart of a run: another attempt while it lives, a new run when it has ended.

use super::{
    Api, Asked, Context, Fault, How, Verb, Waits,
    spawn::{own, permit},
};
use crate::{
    access::Caller,
    convert::{again, request, run, trace_context::TraceContext},
    pb,
};
use kennel_lifecycle::{Refusal, RunId, Violation};
use kennel_supervisor::{CallError, RestartCall, RunView, Supervisor};

/// A restart; the whole request, for the run that may follow; and who calls.
pub(crate) struct Call {
    pub(super) restart: RestartCall,
    request: pb::RestartRequest,
    caller: Caller,
    trace: TraceContext,
}

impl Verb for pb::RestartRequest {
    // Each of the two parts runs to its end: a caller that has left gets no new run.
    const HOW: How = How::order(Waits::Keeper).while_asked().to_others();
    type Call = Box<Call>;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Box<Call>> {
        let run = request::parse_run_id(&self.run_id, found);
        let request_id = request::request_id(&self.request_id, found);
        let grace = request::grace(self.grace.as_ref(), found);
        request::check_attempt(self.expected_attempt, found);
        let restart = RestartCall {
            run: run?,
            grace,
            expected_attempt: self.expected_attempt,
            by: context.by(),
            request_id,
        };
        Some(Box::new(Call {
            restart,
            request: self,
            caller: context.caller.clone(),
            trace: context.trace(),
        }))
    }

    async fn serve(at: Api, call: Box<Call>) -> Result<pb::RestartResponse, Fault> {
        let Call {
            restart,
            request,
            caller,
            trace,
        } = *call;
        // Every restart starts a command, as a spawn does.
        at.shares.spawn(&caller)?;
        let supervisor = at.supervisor.clone();
        let ordered = at.to_its_end(async move { another_attempt(&supervisor, restart).await });
        let view = match ordered.await? {
            Restarted::InPlace(view) => view,
            Restarted::Over(ended) => {
                let (run, owner) = (ended.run, caller.owner.clone());
                let mut call = again::spawn(request, run, &ended.spec, owner, trace, &at.key)?;
                permit(&at, &mut call, &caller)?;
                let supervisor = at.supervisor.clone();
                let spawned = at.to_its_end(async move { supervisor.spawn(call).await });
                let spawned = spawned.await;
                let spawned = spawned.inspect_err(|Fault(status)| at.admission.refused(status))?;
                own(spawned, &caller)?.run
            }
        };
        Ok(pb::RestartResponse {
            run: Some(run::run(view)),
        })
    }

    fn answered(answer: &pb::RestartResponse, record: Asked) -> Asked {
        match &answer.run {
            Some(run) if record.run() != Some(&run.run_id) => record.with("new_run", &run.run_id),
            _ => record,
        }
    }

    fn begun(answer: &pb::RestartResponse) -> Option<RunId> {
        answer.run.as_ref()?.run_id.parse().ok()
    }
}

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
        // The run belongs to another node.
        return Err(refused);
    }
    if meant.is_some_and(|meant| meant < view.attempt) {
        return Ok(Restarted::InPlace(view));
    }
    Ok(Restarted::Over(view))
}
