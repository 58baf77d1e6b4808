//! A consumer as it is.

use super::{Api, Context, Fault, How, Scope, Verb, Waits};
use crate::{convert::consumer, pb};
use kennel_lifecycle::Violation;
use kennel_supervisor::ConsumerKey;

impl Verb for pb::GetConsumerRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = ConsumerKey;
    type Answer = pb::GetConsumerResponse;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let owner = consumer::owner(&self.owner, &context.caller);
        Some(consumer::key(&self.run_id, &self.consumer, owner, found))
    }

    fn scope(key: &Self::Call) -> Scope {
        Scope::Consumer(key.clone())
    }

    async fn serve(at: Api, key: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.consumer(&key).await?;
        Ok(pb::GetConsumerResponse {
            consumer: Some(consumer::consumer(view)),
        })
    }
}
