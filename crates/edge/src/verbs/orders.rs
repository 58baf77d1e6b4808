//! Orders to a run. An abort is also of one that is not known yet, and of one whose node is away.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{request, rules, run, terminal, time},
    enums::parsed,
    pb,
    verbs::record::word,
};
use kennel_lifecycle::{AnnotationChange, Deadline, RunId, Violation, limits::TIMEOUT_MAX};
use kennel_supervisor::{AbortCall, AbortWait, AnnotateCall, ExtendCall, IfUnknown};

/// The call, and whether the run's node can be asked.
pub(crate) struct Abort(pub(super) AbortCall, bool);

parsed! { fn wait(AbortWait) -> AbortWait { Unspecified | TreeEmpty => TreeEmpty, None, LeaderExited } }
parsed! { fn if_unknown(AbortUnknown) -> IfUnknown { Unspecified | Fence => Fence, Refuse } }

impl Verb for pb::AbortRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller);
    type Call = Abort;

    fn logged(&self, record: Asked) -> Asked {
        record.with_time("grace", self.grace.as_ref())
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let request_id = request::request_id(&self.request_id, found);
        let grace = request::grace(self.grace.as_ref(), found);
        let wait = wait("wait", self.wait, found);
        let if_unknown = if_unknown("if_unknown", self.if_unknown, found);
        let call = AbortCall {
            run: run?,
            grace,
            wait,
            if_unknown,
            by: context.by(),
            owner: context.caller.owner.clone(),
            request_id,
        };
        Some(Abort(call, context.asks_node))
    }

    fn waits(Abort(call, _): &Abort) -> Waits {
        match call.wait {
            AbortWait::None => Waits::Keeper,
            AbortWait::LeaderExited | AbortWait::TreeEmpty => Self::HOW.waits,
        }
    }

    fn scope(Abort(call, _): &Abort) -> Option<Scope> {
        Some(Scope::RunOrAbsent(call.run))
    }

    async fn serve(at: Api, Abort(call, asks_node): Abort) -> Result<Self::Answer, Fault> {
        let view = if asks_node {
            at.supervisor.abort(call).await
        } else {
            at.supervisor.abort_or_leave(call).await
        };
        Ok(pb::AbortResponse {
            run: Some(run::run(view?)),
        })
    }
}

impl Verb for pb::InterruptRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Call = (RunId, Option<String>);

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let request_id = request::request_id(&self.request_id, found);
        Some((run?, request_id))
    }

    fn answered(answer: &Self::Answer, record: Asked) -> Asked {
        let method = answer.method().as_str_name();
        record.with("method", word(method, "INTERRUPT_METHOD_"))
    }

    async fn serve(at: Api, (run, request_id): Self::Call) -> Result<Self::Answer, Fault> {
        let (view, way) = at.supervisor.interrupt(run, request_id).await?;
        Ok(pb::InterruptResponse {
            run: Some(run::run(view)),
            method: terminal::method(way).into(),
        })
    }
}

impl Verb for pb::AnnotateRunRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = AnnotateCall;

    /// Records keys alone: values may be for the run's clients only.
    fn logged(&self, record: Asked) -> Asked {
        let set: Vec<&str> = self.set.keys().map(String::as_str).collect();
        let record = record.with("set", set.join(","));
        let record = record.with("remove", self.remove.join(","));
        match self.activity() {
            pb::Activity::Unspecified => record,
            activity => record.with("activity", activity.as_str_name()),
        }
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let activity = rules::activity_of(self.activity());
        if activity.is_none() && self.activity != 0 {
            let why = "must be an Activity that this server knows";
            found.push(Violation::new("activity", why));
        }
        let change = AnnotationChange {
            set: self.set,
            remove: self.remove.into_iter().collect(),
            expected_version: self.expected_version,
        };
        change.check(found);
        if self.question_text.len() > kennel_lifecycle::limits::QUESTION_BYTES_MAX {
            found.push(Violation::new(
                "question_text",
                "must be at most 4096 bytes",
            ));
        } else if !self.question_text.is_empty()
            && activity != Some(kennel_lifecycle::Activity::AwaitingInput)
        {
            let why = "needs the activity AWAITING_INPUT";
            found.push(Violation::new("question_text", why));
        }
        if change.is_empty() && activity.is_none() && found.is_empty() {
            let why = "must be given, or `remove`, or `activity`";
            found.push(Violation::new("set", why));
        }
        Some(AnnotateCall {
            run: run?,
            change,
            activity,
            question: self.question_text,
            by: context.by(),
        })
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.annotate(call).await?;
        Ok(pb::AnnotateRunResponse {
            run: Some(run::run(view)),
        })
    }
}

impl Verb for pb::ExtendTimeoutsRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Call = ExtendCall;

    fn logged(&self, record: Asked) -> Asked {
        let limits: Vec<&str> = self.limits().map(|limit| limit.as_str_name()).collect();
        let record = record.with("limits", limits.join(","));
        record.with_time("duration", self.duration.as_ref())
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

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.extend(call).await?;
        Ok(pb::ExtendTimeoutsResponse {
            run: Some(run::run(view)),
        })
    }
}
