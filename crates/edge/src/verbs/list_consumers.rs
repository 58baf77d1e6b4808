//! Consumers, by the page.

use super::{Api, Context, Fault, How, Verb, Waits};
use crate::{
    convert::consumer::{self, ListCall},
    pb,
};
use kennel_lifecycle::Violation;

impl Verb for pb::ListConsumersRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = ListCall;
    type Answer = pb::ListConsumersResponse;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(consumer::list(&self, context.seen_owner(), found))
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let views = at.supervisor.consumers(&call.filter, call.limit).await?;
        Ok(consumer::page(views, call.limit))
    }
}
