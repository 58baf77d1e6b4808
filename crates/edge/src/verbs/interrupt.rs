//! One SIGINT, as Ctrl-C gives it.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{request, run, terminal},
    pb,
    verbs::record::word,
};
use kennel_lifecycle::{RunId, Violation};

impl Verb for pb::InterruptRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Call = (RunId, Option<String>);
    type Answer = pb::InterruptResponse;

    fn logged(&self, record: Asked) -> Asked {
        record.of_run(&self.run_id).id(&self.request_id)
    }

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let request_id = request::request_id(&self.request_id, found);
        Some((run?, request_id))
    }

    fn answered(answer: &Self::Answer, record: Asked) -> Asked {
        let method = answer.method().as_str_name();
        record.with("method", word(method, "INTERRUPT_METHOD_"))
    }

    fn scope((run, _): &Self::Call) -> Scope {
        Scope::Run(*run)
    }

    async fn serve(at: Api, (run, request_id): Self::Call) -> Result<Self::Answer, Fault> {
        let (view, way) = at.supervisor.interrupt(run, request_id).await?;
        Ok(pb::InterruptResponse {
            run: Some(run::run(view)),
            method: terminal::method(way).into(),
        })
    }
}
