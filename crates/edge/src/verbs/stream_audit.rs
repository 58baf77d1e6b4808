//! The audit log, from its file.

use super::{Api, Context, Fault, How, Scope, Verb, Waits};
use crate::{convert::trail, limits, pb, status};
use futures_util::stream;
use kennel_lifecycle::Violation;
use kennel_supervisor::{Serving, TrailAsk, TrailReader};
use tonic::{Status, codegen::BoxStream};

impl Verb for pb::StreamAuditRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = TrailAsk;
    type Answer = BoxStream<pb::StreamAuditResponse>;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<TrailAsk> {
        Some(trail::ask(&self, found))
    }

    fn scope(_: &TrailAsk) -> Scope {
        Scope::Nothing
    }

    async fn serve(at: Api, ask: TrailAsk) -> Result<Self::Answer, Fault> {
        let place = at.audit_places.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            status::too_many("open streams of the audit trail", limits::AUDIT_STREAMS_MAX)
        })?;
        let reader = at.supervisor.audit_trail(ask).await;
        let begun = Some((reader, at.going.clone(), place));
        let records = stream::unfold(begun, |open| async move {
            let (mut reader, going, place) = open?;
            match records(&mut reader, &going).await {
                Ok(Some(records)) => Some((Ok(records), Some((reader, going, place)))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Box::pin(records))
    }
}

/// Returns the next records of the audit log; `None` at its end.
async fn records(
    reader: &mut TrailReader,
    going: &Serving,
) -> Result<Option<pb::StreamAuditResponse>, Status> {
    let next = tokio::select! {
        biased;
        next = reader.next() => next,
        () = going.until_leaving() => return Err(status::leaving()),
        () = going.until_closing() => return Err(status::draining()),
    };
    let next = next.map_err(|error| status::internal(&error.to_string()))?;
    Ok(next.map(|records| pb::StreamAuditResponse {
        records: records.into_iter().map(trail::record).collect(),
    }))
}
