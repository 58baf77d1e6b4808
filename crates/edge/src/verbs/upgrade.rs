//! Another binary of this server, without an end of any run.

use super::{Api, Asked, Context, Fault, How, Verb, Waits};
use crate::{
    convert::{info, request},
    pb,
};
use kennel_lifecycle::Violation;

impl Verb for pb::UpgradeRequest {
    const HOW: How = How::order(Waits::Keeper).while_asked();
    type Call = Option<String>;
    type Answer = pb::UpgradeResponse;

    fn logged(&self, record: Asked) -> Asked {
        record.id(&self.request_id)
    }

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let request_id = request::request_id(&self.request_id, found);
        Some(request_id)
    }

    fn answered(answer: &Self::Answer, record: Asked) -> Asked {
        match &answer.upgrade {
            Some(upgrade) => record.with("to_version", &upgrade.to_version),
            None => record,
        }
    }

    async fn serve(at: Api, request_id: Self::Call) -> Result<Self::Answer, Fault> {
        let upgrade = at.supervisor.upgrade(request_id).await?;
        Ok(pb::UpgradeResponse {
            upgrade: Some(info::upgrade(upgrade)),
        })
    }
}
