//! What the server says of a run beside its entries: spans, lines of its log, rounds of signals in the audit log.

use super::{attempts::Attempts, audit_log};
use crate::{audit_log::TrailRecord, base::log_words, telemetry::RunSpans};
use kennel_keeper::client::RoundTarget;
use kennel_lifecycle::{Entry, Outcome, Phase, StopStep, Timestamp};
use kennel_store::{NewRun, Times};

/// A reader of the run's entries.
#[derive(Debug)]
pub(super) struct Reporting {
    pub(super) spans: RunSpans,
    /// Targets of the next round of signals to be recorded.
    pub(super) round_targets: Vec<RoundTarget>,
    /// Warnings to report once the run is recorded.
    pub(super) warnings: Vec<String>,
}

impl Reporting {
    pub(super) fn of(spans: RunSpans) -> Self {
        Self {
            spans,
            round_targets: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Reports an entry that is about to be written.
    pub(super) fn see(
        &mut self,
        new: &NewRun,
        (at, times): (Timestamp, &Times),
        attempts: &Attempts,
        entry: &Entry,
    ) {
        let run_id = new.run;
        let ended = times.ended.unwrap_or(at);
        match entry {
            Entry::Stuck(stuck) => {
                tracing::warn!(%run_id, stuck = log_words::stuck(stuck), "SIGKILL does not end them");
            }
            Entry::AttemptEnded { outcome, .. } => {
                log_attempt_end(new, attempts, outcome);
                self.spans.ends(new, times, outcome, ended, false);
            }
            Entry::Ended(outcome) => {
                tracing::info!(%run_id, state = outcome.state().api_name(), reason = outcome.reason.name(), exit.code = log_words::exit_code(outcome.exit), exit.signal = log_words::exit_signal(outcome.exit), tree = outcome.tree.name(), "run ended");
                self.spans.ends(new, times, outcome, ended, true);
            }
            _ => {}
        }
        self.spans.record_entry(new, at, entry);
    }

    /// Makes the record of a round of the stop ladder. A round that a keeper reports again is recorded again: the first
    /// server may have died before it recorded it.
    pub(super) fn round(
        &mut self,
        new: &NewRun,
        phase: &Phase,
        step: &StopStep,
        boot_id: &str,
    ) -> TrailRecord {
        let why = match phase {
            Phase::Stopping { order, .. }
            | Phase::Draining {
                stop: Some(order), ..
            } => audit_log::because(&order.reason),
            Phase::Draining { stop: None, .. } => {
                "the leader had ended, and the rest of its tree was to be stopped".to_owned()
            }
            _ => "its own plan".to_owned(),
        };
        let targets = std::mem::take(&mut self.round_targets);
        audit_log::round(new, step, &targets, why, boot_id)
    }
}

fn log_attempt_end(new: &NewRun, attempts: &Attempts, outcome: &Outcome) {
    let (run_id, attempt, restarts) = (new.run, new.attempt, attempts.restarts);
    if attempts.next() == Some(Timestamp::NEVER) {
        return tracing::warn!(%run_id, attempt, reason = outcome.reason.name(), restarts, "attempt ended after too many restarts, the run is held until a client restarts it");
    }
    tracing::info!(%run_id, attempt, reason = outcome.reason.name(), exit.code = log_words::exit_code(outcome.exit), exit.signal = log_words::exit_signal(outcome.exit), tree = outcome.tree.name(), restarts, "attempt ended, another follows");
}
