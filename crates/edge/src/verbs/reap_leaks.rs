//! The end of processes that runs have left behind.

use super::{Api, Asked, Context, Fault, How, Verb, Waits};
use crate::{convert::audit, pb, verbs::record::word};
use kennel_lifecycle::Violation;
use kennel_supervisor::{LoggedProcess, LoggedSignal, ReapCall};

impl Verb for pb::ReapLeaksRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller);
    type Call = ReapCall;
    type Answer = pb::ReapLeaksResponse;

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
