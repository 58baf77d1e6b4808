//! An order for another attempt, of a run that lives or has ended.

use kennel_lifecycle::Refusal;
use kennel_supervisor::{CallError, RestartCall, RunView, Supervisor};

/// What an order for another attempt came to.
pub(super) enum Restarted {
    /// The run as it is, with another attempt or without.
    InPlace(RunView),
    /// It has ended: only a new run can follow it.
    Over(RunView),
}

pub(super) async fn another_attempt(
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
        // It is another node's.
        return Err(refused);
    }
    if meant.is_some_and(|meant| meant < view.attempt) {
        return Ok(Restarted::InPlace(view));
    }
    Ok(Restarted::Over(view))
}
