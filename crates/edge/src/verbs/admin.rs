//! The node and its server: drain, upgrade, leaks, the audit log.

use super::{Api, Asked, Context, Fault, How, Verb, Waits};
use crate::{
    convert::{audit, drain, info, request, run, time, trail},
    enums::known,
    limits, pb, status,
    verbs::record::word,
};
use futures_util::stream;
use kennel_lifecycle::Violation;
use kennel_supervisor::{
    DrainAction, DrainCall, LoggedProcess, LoggedSignal, ReapCall, Serving, TrailAsk, TrailReader,
};
use std::time::Duration;
use tonic::Status;

/// Longest time until remaining runs are ended.
const DEADLINE_MAX: Duration = Duration::from_hours(30 * 24);

impl Verb for pb::DrainRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = DrainCall;

    fn logged(&self, record: Asked) -> Asked {
        let action = word(self.action().as_str_name(), "DRAIN_ACTION_");
        let record = record.with("action", action);
        record.with_time("deadline", self.deadline.as_ref())
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let request_id = request::request_id(&self.request_id, found);
        let deadline = time::parse_duration("deadline", self.deadline.as_ref(), found);
        if deadline.is_some_and(|wait| wait > DEADLINE_MAX) {
            found.push(Violation::new("deadline", "must be at most 30 days"));
        }
        let action = match known("action", self.action, "DrainAction", found) {
            pb::DrainAction::Unspecified | pb::DrainAction::Finish => DrainAction::Finish,
            pb::DrainAction::Abort => {
                if deadline.is_some() {
                    let why = "runs that are ended at once need no deadline";
                    found.push(Violation::new("deadline", why));
                }
                DrainAction::Abort
            }
        };
        Some(DrainCall {
            action,
            deadline,
            by: context.by(),
            request_id,
        })
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let status = at.supervisor.drain(call).await?;
        Ok(pb::DrainResponse {
            status: Some(drain::status(status)),
        })
    }
}

impl Verb for pb::UpgradeRequest {
    const HOW: How = How::order(Waits::Keeper).while_asked();
    type Call = Option<String>;

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

/// The node, by its id or name.
pub(crate) struct Forget {
    node: String,
    remove: bool,
    by: String,
}

impl Verb for pb::ForgetNodeRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = Forget;

    fn logged(&self, record: Asked) -> Asked {
        record.with("node", &self.node)
    }

    fn parse(self, context: &Context<'_>, _: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(Forget {
            node: self.node,
            remove: self.remove,
            by: context.by(),
        })
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let forgetting = at.supervisor.forget_node(&call.node, &call.by, call.remove);
        let (node, ended_runs) = forgetting.await?;
        Ok(pb::ForgetNodeResponse {
            node: Some(run::node(node)),
            ended_runs,
        })
    }
}

impl Verb for pb::ReapLeaksRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller);
    type Call = ReapCall;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(audit::reap(&self, context.by(), found))
    }

    fn is_dry(&self) -> bool {
        self.mode() != pb::ReapMode::Execute
    }

    fn answered(answer: &Self::Answer, record: Asked) -> Asked {
        let reaped = answer.processes.iter().filter_map(|process| {
            let signal = reaped(process, record.by())?;
            let run = process.found.as_ref().map(|found| found.run_id.clone());
            Some((run.filter(|run| !run.is_empty()), signal))
        });
        let reaped: Vec<_> = reaped.collect();
        let record = record.with("signalled", reaped.len().to_string());
        let add = |record: Asked, (run, signal)| record.signalled(run, signal);
        reaped.into_iter().fold(record, add)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        Ok(audit::reaped(at.supervisor.reap(call).await?))
    }
}

/// Describes a leaked process that was signalled. `None`: none was.
fn reaped(process: &pb::ReapedProcess, by: &str) -> Option<LoggedSignal> {
    let (delivered, gone, refused) = match process.outcome() {
        pb::ReapOutcome::Ended | pb::ReapOutcome::Survived => (1, 0, 0),
        pb::ReapOutcome::Gone => (0, 1, 0),
        pb::ReapOutcome::Failed => (0, 0, 1),
        _ => return None,
    };
    let found = process.found.as_ref();
    let named = process.process.as_ref();
    let evidence = found.map(|found| word(found.evidence().as_str_name(), "LEAK_EVIDENCE_"));
    Some(LoggedSignal {
        signal: match process.outcome() {
            pb::ReapOutcome::Survived => "SIGKILL".into(),
            _ => process.signal.clone(),
        },
        scope: "reap".into(),
        sender: "keeper".into(),
        why: format!("{by} asked that what was left behind be ended"),
        delivered,
        gone,
        refused,
        errno: process.error_number,
        processes: vec![LoggedProcess {
            pid: named.map_or(0, |process| process.pid),
            start_ticks: named.map_or(0, |process| process.start_ticks),
            evidence: evidence.into_iter().collect(),
            result: word(process.outcome().as_str_name(), "REAP_OUTCOME_"),
        }],
        ..LoggedSignal::default()
    })
}

impl Verb for pb::StreamAuditRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = TrailAsk;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<TrailAsk> {
        Some(trail::ask(&self, found))
    }

    async fn serve(at: Api, ask: TrailAsk) -> Result<Self::Answer, Fault> {
        let place = at.audit_places.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            status::too_many("open streams of the audit trail", limits::AUDIT_STREAMS_MAX)
        })?;
        let reader = at.supervisor.audit_log().read(ask).await;
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
