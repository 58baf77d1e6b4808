//! Lifecycle events as events of OpenTelemetry's log: one for each entry, when it is made, under the run's span.

use super::{Telemetry, TelemetryEvent, context::SpanPart, names};
use crate::telemetry::run_attributes;
use kennel_lifecycle::{Entry, Outcome, Timestamp};
use kennel_store::NewRun;
use opentelemetry::{KeyValue, trace::SpanContext};

/// Returns the span of log lines and events about a run: its own, or where spans are not recorded, the caller's.
pub(super) fn context(telemetry: &Telemetry, new: &NewRun) -> Option<SpanContext> {
    let spawned_by = new.traceparent.as_deref();
    let own = telemetry.run(new.run, new.policy().kind, spawned_by);
    own.map(|trace| trace.context(SpanPart::Run))
        .or_else(|| super::context::parse(spawned_by?))
}

/// Returns the span whose fields mark all log lines within it.
pub(crate) fn log_span(telemetry: &Telemetry, new: &NewRun) -> tracing::Span {
    let context = context(telemetry, new);
    let context = context.as_ref();
    // At error level the span exists with any log filter. Without a parent it outlives its call.
    tracing::error_span!(
        parent: None,
        "run",
        run_id = %new.run,
        run_name = new.spec.name.as_deref().map(tracing::field::display),
        trace_id = context.map(|c| tracing::field::display(c.trace_id())),
        span_id = context.map(|c| tracing::field::display(c.span_id())),
    )
}

/// Emits the events of one run.
#[derive(Debug)]
pub(super) struct RunEvents<'a> {
    pub(super) telemetry: &'a Telemetry,
    pub(super) context: Option<&'a SpanContext>,
}

impl RunEvents<'_> {
    /// Emits an entry, except ends of attempts: those are [`Self::ends`].
    pub(super) fn emit_entry(&self, new: &NewRun, at: Timestamp, entry: &Entry) {
        let (name, warns, more) = match entry {
            Entry::Recorded { .. } => (names::EVENT_RECORDED, false, Vec::new()),
            Entry::Started => (names::EVENT_STARTED, false, Vec::new()),
            Entry::Paused => (names::EVENT_PAUSED, false, Vec::new()),
            Entry::Resumed { .. } => (names::EVENT_RESUMED, false, Vec::new()),
            Entry::Stopping { order, .. } => {
                let why = KeyValue::new(names::STOP_REASON, order.reason.name());
                (names::EVENT_STOPPING, false, vec![why])
            }
            Entry::LeaderExited(exit) => {
                let how = run_attributes::exit_attribute(Some(exit));
                (names::EVENT_LEADER_EXITED, false, how.into_iter().collect())
            }
            Entry::StreamsClosed(how) => {
                let how = KeyValue::new(names::STREAMS_END, how.name());
                (names::EVENT_STREAMS_CLOSED, false, vec![how])
            }
            Entry::Stuck(stuck) => {
                let count = stuck.processes.len() as u64 + u64::from(stuck.unlisted);
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                let count = KeyValue::new(names::STUCK_PROCESSES, count);
                (names::EVENT_STUCK, true, vec![count])
            }
            Entry::TreeEnded(tree) => {
                let verdict = KeyValue::new(names::TREE_VERDICT, tree.name());
                (
                    names::EVENT_TREE_ENDED,
                    !run_attributes::is_proved(tree),
                    vec![verdict],
                )
            }
            Entry::MemoryKills(kills) => {
                let count = i64::try_from(kills.kills).unwrap_or(i64::MAX);
                let count = KeyValue::new(names::OOM_KILLS, count);
                (names::EVENT_MEMORY_KILLS, true, vec![count])
            }
            _ => return,
        };
        self.emit(new, at, name, warns, more);
    }

    /// Emits the adoption or recovery by a server that has not begun the run, with its action.
    pub(super) fn recovered(&self, new: &NewRun, at: Timestamp, action: &'static str) {
        let action = KeyValue::new(names::RECOVERY_ACTION, action);
        self.emit(new, at, names::EVENT_RECOVERED, false, vec![action]);
    }

    /// Emits the end of an attempt, and with the `last` one of the run.
    pub(super) fn ends(&self, new: &NewRun, at: Timestamp, outcome: &Outcome, last: bool) {
        let name = if last {
            names::EVENT_ENDED
        } else {
            names::EVENT_ATTEMPT_ENDED
        };
        // Failing commands are common; unknown outcomes and stuck processes are not.
        let warns = matches!(
            run_attributes::error_type(outcome),
            Some("unkillable" | "unverified" | "lost" | "oom")
        );
        let more = run_attributes::outcome_attributes(outcome);
        self.emit(new, at, name, warns, more);
    }

    fn emit(
        &self,
        new: &NewRun,
        at: Timestamp,
        name: &'static str,
        warns: bool,
        more: Vec<KeyValue>,
    ) {
        if !self.telemetry.has_event_sink() {
            return;
        }
        let mut attributes = run_attributes::identity_attributes(new);
        attributes.extend(more);
        self.telemetry.emit_event(TelemetryEvent {
            name,
            at,
            context: self.context.cloned(),
            warns,
            attributes,
        });
    }
}
