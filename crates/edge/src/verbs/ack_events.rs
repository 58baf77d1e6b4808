//! Acknowledgements of a consumer.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::consumer::{self, AckCall},
    pb,
};
use kennel_lifecycle::Violation;

impl Verb for pb::AckEventsRequest {
    const HOW: How = How::order(Waits::Brief).summed();
    type Call = AckCall;
    type Answer = pb::AckEventsResponse;

    fn logged(&self, record: Asked) -> Asked {
        let record = record.of_run(&self.run_id);
        record.with("consumer", &self.consumer)
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(consumer::ack(
            &self,
            &context.caller.owner,
            context.key,
            found,
        ))
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Consumer(call.key.clone())
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let (key, point) = (call.key.clone(), call.point);
        let acking = at.supervisor.ack(&key, point, |before| call.cursor(before));
        Ok(pb::AckEventsResponse {
            consumer: Some(consumer::consumer(acking.await?)),
        })
    }
}
