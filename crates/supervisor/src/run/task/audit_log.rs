//! Signals of a run in the audit log.

use super::RunTask;
use crate::audit_log::{LoggedProcess, LoggedSignal, TrailEntry, TrailRecord};
use kennel_keeper::client::{MembershipEvidence, RoundTarget, SignalOutcome};
use kennel_lifecycle::{Deadline, Entry, Limit, MemoryShortage, Signal, StopReason, StopStep};
use kennel_store::NewRun;

impl RunTask {
    /// Notes the targets of the next round of signals. A warning names each process in the control group that is not of
    /// the run, once.
    pub(super) fn note_targets(&mut self, targets: Vec<RoundTarget>) {
        for target in targets
            .iter()
            .filter(|target| target.evidence == MembershipEvidence::Unrelated)
        {
            let (pid, start_ticks) = (target.pid, target.start_ticks);
            let record = self.machine.record();
            if !record.spared.contains(&(pid, start_ticks)) {
                tracing::warn!(run_id = %self.run, pid, start_ticks, "skipping a process in the control group of the run that does not belong to the run");
                self.note(&Entry::ProcessSpared { pid, start_ticks });
            }
        }
        self.reporting.round_targets = targets;
    }

    /// Records a round of the stop ladder.
    pub(super) fn record_round(&mut self, step: &StopStep) {
        let boot_id = &self.shared.hello.host.boot_id;
        let phase = self.machine.phase();
        let record = self.reporting.round(&self.new, phase, step, boot_id);
        self.shared.trail.record(record);
    }
}

/// Makes the record of one round of signals.
pub(crate) fn round(
    new: &NewRun,
    step: &StopStep,
    targets: &[RoundTarget],
    why: String,
    boot_id: &str,
) -> TrailRecord {
    let why = match step.signal {
        Signal::CONT => format!("{why}; so that those who were held can act on it"),
        _ => why,
    };
    let listed = targets
        .iter()
        .filter(|target| target.evidence != MembershipEvidence::Unrelated)
        .count();
    let listed = u32::try_from(listed).unwrap_or(u32::MAX);
    let logged = LoggedSignal {
        owner: new.owner.clone(),
        attempt: new.attempt,
        signal: step.signal.to_string(),
        scope: step.scope.name().to_owned(),
        sender: step.sender.name().to_owned(),
        why,
        delivered: step.delivered,
        gone: step.gone,
        refused: step.refused,
        errno: step.errno,
        processes: targets.iter().map(process).collect(),
        unlisted: step.targets().saturating_sub(listed),
        boot_id: boot_id.to_owned(),
    };
    TrailRecord::at(
        step.at,
        Some(new.run.to_string()),
        TrailEntry::Signal(logged),
    )
}

fn process(target: &RoundTarget) -> LoggedProcess {
    let evidence = match target.evidence {
        MembershipEvidence::Group => vec!["group"],
        MembershipEvidence::Cgroup => vec!["cgroup"],
        MembershipEvidence::Namespace => vec!["namespace"],
        MembershipEvidence::Unrelated => vec![],
        MembershipEvidence::Held(holds) => [
            (holds.cgroup, "cgroup"),
            (holds.shim, "shim"),
            (holds.keeper, "keeper"),
        ]
        .into_iter()
        .filter_map(|(holds, word)| holds.then_some(word))
        .collect(),
    };
    let result = match (target.evidence, target.result) {
        (MembershipEvidence::Unrelated, _) => "spared",
        (_, SignalOutcome::Delivered) => "delivered",
        (_, SignalOutcome::Gone) => "gone",
        (_, SignalOutcome::Failed(_)) => "refused",
    };
    LoggedProcess {
        pid: target.pid,
        start_ticks: target.start_ticks,
        evidence: evidence.into_iter().map(str::to_owned).collect(),
        result: result.to_owned(),
    }
}

pub(super) fn because(reason: &StopReason) -> String {
    let of = |request_id: &Option<String>| {
        let id = request_id.as_ref();
        id.map_or_else(String::new, |id| format!(", request {id}"))
    };
    match reason {
        StopReason::Abort { by, request_id } => {
            format!("{by} requested its end{}", of(request_id))
        }
        StopReason::Restart { by, request_id } => {
            format!("{by} requested another attempt{}", of(request_id))
        }
        StopReason::ParentEnded => "the run that it belongs to has ended".into(),
        StopReason::ServerShutdown => "the service was shutting down".into(),
        StopReason::DeadlineExceeded(Deadline::MaxRuntime) => {
            "it exceeded its longest run time (max_runtime)".into()
        }
        StopReason::DeadlineExceeded(Deadline::MaxPause) => {
            "it exceeded its longest pause (max_pause)".into()
        }
        StopReason::DeadlineExceeded(Deadline::StartTimeout) => {
            "it was not ready in time (start_timeout)".into()
        }
        StopReason::DeadlineExceeded(Deadline::Inactivity) => {
            "it exceeded its time without activity (inactivity)".into()
        }
        StopReason::Orphaned => "no server came back within the orphan time (orphan_ttl)".into(),
        StopReason::ShimLost => "its shim was lost".into(),
        StopReason::LimitExceeded(Limit::OutputBytes) => {
            "it had written more than is kept of it".into()
        }
        StopReason::LimitExceeded(Limit::Disk) => "there was no room for its output".into(),
        StopReason::NotReady => "it was not ready within its start timeout".into(),
        StopReason::NotLive { failures, error } => {
            format!("{failures} probes of its liveness had failed in a row, the last: {error}")
        }
        StopReason::Watchdog { triggered: true } => {
            "its command reported that it does not work (WATCHDOG=trigger)".into()
        }
        StopReason::Watchdog { triggered: false } => {
            "its command gave no sign in its watchdog time".into()
        }
        StopReason::Result { rule } => {
            format!("its result was there (rule {rule}), and it did not end by itself")
        }
        StopReason::MemoryReserve(MemoryShortage {
            limit,
            used,
            reserve,
        }) => format!(
            "it was the largest run when {used} of {limit} bytes of memory were used, with a reserve of {reserve}"
        ),
    }
}
