//! Consumers: their acknowledgements, their lists and their end.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::consumer::{self, AckCall, ConsumersCall},
    pb,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::ConsumerKey;

impl Verb for pb::AckEventsRequest {
    const HOW: How = How::order(Waits::Brief).summed();
    type Call = AckCall;

    fn logged(&self, record: Asked) -> Asked {
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

    fn scope(call: &Self::Call) -> Option<Scope> {
        Some(Scope::Consumer(call.key.clone()))
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let (key, point) = (call.key.clone(), call.point);
        let acking = at.supervisor.ack(&key, point, |before| call.cursor(before));
        Ok(pb::AckEventsResponse {
            consumer: Some(consumer::consumer(acking.await?)),
        })
    }
}

impl Verb for pb::GetConsumerRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = ConsumerKey;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let named = (&*self.run_id, &*self.consumer, &*self.owner);
        Some(consumer::named(named, &context.caller, found))
    }

    fn scope(key: &Self::Call) -> Option<Scope> {
        Some(Scope::Consumer(key.clone()))
    }

    async fn serve(at: Api, key: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.consumer(&key).await?;
        Ok(pb::GetConsumerResponse {
            consumer: Some(consumer::consumer(view)),
        })
    }
}

impl Verb for pb::ListConsumersRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = ConsumersCall;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(consumer::list(&self, context.seen_owner(), found))
    }

    /// The page has only consumers that the caller may see.
    fn scope(_: &Self::Call) -> Option<Scope> {
        Some(Scope::Nothing)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let views = at.supervisor.consumers(&call.filter, call.limit).await?;
        Ok(consumer::page(views, call.limit))
    }
}

impl Verb for pb::DeleteConsumerRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = ConsumerKey;

    fn logged(&self, record: Asked) -> Asked {
        record.with("consumer", &self.consumer)
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let named = (&*self.run_id, &*self.consumer, &*self.owner);
        Some(consumer::named(named, &context.caller, found))
    }

    fn scope(key: &Self::Call) -> Option<Scope> {
        Some(Scope::Consumer(key.clone()))
    }

    async fn serve(at: Api, key: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.delete_consumer(&key).await?;
        Ok(pb::DeleteConsumerResponse {
            consumer: Some(consumer::consumer(view)),
        })
    }
}
