//! Changes of a run's annotations and activity.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{request, rules, run},
    pb,
};
use kennel_lifecycle::{AnnotationChange, Violation};
use kennel_supervisor::AnnotateCall;

impl Verb for pb::AnnotateRunRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = AnnotateCall;
    type Answer = pb::AnnotateRunResponse;

    /// Records keys alone: values may be for the run's clients only.
    fn logged(&self, record: Asked) -> Asked {
        let set: Vec<&str> = self.set.keys().map(String::as_str).collect();
        let record = record.of_run(&self.run_id).with("set", set.join(","));
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
        if change.is_empty() && activity.is_none() && found.is_empty() {
            let why = "must be given, or `remove`, or `activity`";
            found.push(Violation::new("set", why));
        }
        Some(AnnotateCall {
            run: run?,
            change,
            activity,
            by: context.by(),
        })
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Run(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.annotate(call).await?;
        Ok(pb::AnnotateRunResponse {
            run: Some(run::run(view)),
        })
    }
}
