//! The end of a consumer.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{convert::consumer, pb};
use kennel_lifecycle::Violation;
use kennel_supervisor::ConsumerKey;

impl Verb for pb::DeleteConsumerRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = ConsumerKey;
    type Answer = pb::DeleteConsumerResponse;

    fn logged(&self, record: Asked) -> Asked {
        let record = record.of_run(&self.run_id);
        record.with("consumer", &self.consumer)
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let owner = consumer::owner(&self.owner, &context.caller);
        Some(consumer::key(&self.run_id, &self.consumer, owner, found))
    }

    fn scope(key: &Self::Call) -> Scope {
        Scope::Consumer(key.clone())
    }

    async fn serve(at: Api, key: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.delete_consumer(&key).await?;
        Ok(pb::DeleteConsumerResponse {
            consumer: Some(consumer::consumer(view)),
        })
    }
}
