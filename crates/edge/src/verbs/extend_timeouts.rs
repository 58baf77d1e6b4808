//! More time for a live run's limits.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{request, run, time},
    pb,
};
use kennel_lifecycle::{Deadline, Violation, limits::TIMEOUT_MAX};
use kennel_supervisor::ExtendCall;

impl Verb for pb::ExtendTimeoutsRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Call = ExtendCall;
    type Answer = pb::ExtendTimeoutsResponse;

    fn logged(&self, record: Asked) -> Asked {
        let limits: Vec<&str> = self.limits().map(|limit| limit.as_str_name()).collect();
        let record = record.of_run(&self.run_id).with("limits", limits.join(","));
        match &self.duration {
            Some(time) => record.with("duration", time::text(time)),
            None => record,
        }
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let mut limits = Vec::new();
        for (at, limit) in self.limits.iter().enumerate() {
            let limit = match pb::Deadline::try_from(*limit) {
                Ok(pb::Deadline::MaxRuntime) => Deadline::MaxRuntime,
                Ok(pb::Deadline::Inactivity) => Deadline::Inactivity,
                Ok(pb::Deadline::StartTimeout) => Deadline::StartTimeout,
                Ok(pb::Deadline::MaxPause | pb::Deadline::Unspecified) | Err(_) => {
                    let why = "must be DEADLINE_MAX_RUNTIME, DEADLINE_INACTIVITY or DEADLINE_START_TIMEOUT";
                    found.push(Violation::new(format!("limits[{at}]"), why));
                    continue;
                }
            };
            if limits.contains(&limit) {
                found.push(Violation::new(format!("limits[{at}]"), "is named twice"));
            }
            limits.push(limit);
        }
        let time = time::parse_duration("duration", self.duration.as_ref(), found);
        let time = time.unwrap_or_default();
        if found.is_empty() && (time.is_zero() || time > TIMEOUT_MAX) {
            let why = "must be more than zero and at most 10 years (87,600 hours)";
            found.push(Violation::new("duration", why));
        }
        Some(ExtendCall {
            run: run?,
            limits,
            time,
            by: context.by(),
        })
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Run(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.extend(call).await?;
        Ok(pb::ExtendTimeoutsResponse {
            run: Some(run::run(view)),
        })
    }
}
