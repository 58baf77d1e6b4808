//! No new runs at this node.

use super::{Api, Asked, Context, Fault, How, Verb, Waits};
use crate::{
    convert::{drain, request, time},
    enums::known,
    pb,
    verbs::record::word,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::{DrainAction, DrainCall};
use std::time::Duration;

/// Longest time until remaining runs are ended.
const DEADLINE_MAX: Duration = Duration::from_hours(30 * 24);

impl Verb for pb::DrainRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = DrainCall;
    type Answer = pb::DrainResponse;

    fn logged(&self, record: Asked) -> Asked {
        let action = word(self.action().as_str_name(), "DRAIN_ACTION_");
        let record = record.id(&self.request_id).with("action", action);
        match &self.deadline {
            Some(deadline) => record.with("deadline", time::text(deadline)),
            None => record,
        }
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let request_id = request::request_id(&self.request_id, found);
        let deadline = time::parse_duration("deadline", self.deadline.as_ref(), found);
        if deadline.is_some_and(|wait| wait > DEADLINE_MAX) {
            found.push(Violation::new("deadline", "must be at most 30 days"));
        }
        let action = match known("action", self.action, "DrainAction", found) {
            pb::DrainAction::Unspecified | pb::DrainAction::Finish => DrainAction::Finish,
            pb::DrainAction::Abort => {
                if deadline.is_some() {
                    let why = "runs that are ended at once need no deadline";
                    found.push(Violation::new("deadline", why));
                }
                DrainAction::Abort
            }
        };
        Some(DrainCall {
            action,
            deadline,
            by: context.by(),
            request_id,
        })
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let status = at.supervisor.drain(call).await?;
        Ok(pb::DrainResponse {
            status: Some(drain::status(status)),
        })
    }
}
