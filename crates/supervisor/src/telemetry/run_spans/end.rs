//! The spans and counts of an attempt that has ended.

use super::{Recorded, phase};
use crate::telemetry::{
    Span, Telemetry,
    context::SpanPart,
    names,
    run_attributes::{containment, error_type, is_proved, outcome_attributes},
    run_events::RunEvents,
};
use kennel_lifecycle::{EndReason, Outcome, Signal, Timestamp};
use kennel_store::{NewRun, Times};
use opentelemetry::{
    KeyValue,
    trace::{Link, Status},
};

/// Facts of an end.
pub(super) struct End<'a> {
    pub(super) new: &'a NewRun,
    pub(super) times: &'a Times,
    pub(super) outcome: &'a Outcome,
    pub(super) at: Timestamp,
    pub(super) stopping: Option<Timestamp>,
    pub(super) begun: Option<Timestamp>,
    pub(super) last: bool,
}

impl End<'_> {
    pub(super) fn emit(&self, events: &RunEvents<'_>, run: Option<&Recorded>) {
        let telemetry = events.telemetry;
        self.count(telemetry);
        events.ends(self.new, self.at, self.outcome, self.last);
        let Some(run) = run else {
            return;
        };
        for span in self.phases(run) {
            telemetry.emit(span);
        }
        let Self { new, times, .. } = self;
        if new.attempt > 1 {
            let begun = self.begun.or(times.started).unwrap_or(self.at);
            let part = SpanPart::Attempt(new.attempt);
            let mut span = phase(run, new, part, names::SPAN_ATTEMPT, (begun, self.at));
            span.parent = run.trace.context(SpanPart::Run).span_id();
            self.conclude(&mut span);
            telemetry.emit(span);
        }
        if self.last {
            let times = (new.created, self.at);
            let mut span = phase(run, new, SpanPart::Run, names::SPAN_RUN, times);
            span.parent = run.trace.parent;
            span.parent_is_remote = false;
            span.links = run
                .trace
                .link
                .iter()
                .cloned()
                .map(Link::with_context)
                .collect();
            span.attributes
                .push(KeyValue::new(names::RUN_OWNER, new.owner.clone()));
            span.attributes
                .push(KeyValue::new(names::RUN_KIND, new.policy().kind.name()));
            self.conclude(&mut span);
            telemetry.emit(span);
        }
    }

    /// Returns when the verdict on the tree was known.
    fn verdict_at(&self) -> Timestamp {
        let certificate = &self.outcome.certificate;
        let known = self.times.tree_empty.or(certificate.census);
        known.unwrap_or(self.at)
    }

    fn stop_begun(&self) -> Option<Timestamp> {
        let first = self.outcome.certificate.steps.first();
        self.stopping.or(first.map(|step| step.at))
    }

    fn escalated(&self) -> bool {
        let mut steps = self.outcome.certificate.steps.iter();
        steps.any(|step| step.signal == Signal::KILL && step.targets() > 0)
    }

    fn count(&self, telemetry: &Telemetry) {
        let Self { new, outcome, .. } = self;
        let metrics = &telemetry.metrics;
        let verdict = || KeyValue::new(names::TREE_VERDICT, outcome.tree.name());
        if let Some(begun) = self.stop_begun() {
            let escalated = KeyValue::new(names::STOP_ESCALATED, self.escalated());
            let took = self.verdict_at().since(begun);
            metrics
                .stop
                .record(took.as_secs_f64(), &[verdict(), escalated]);
        }
        if !is_proved(&outcome.tree) {
            metrics.unverified.add(1, &[]);
        }
        let left = &outcome.certificate.leftovers;
        let left = left.processes.len() as u64 + u64::from(left.unlisted);
        if left > 0 {
            metrics.leftovers.add(left, containment(new).as_slice());
        }
        if let EndReason::OomKilled(killed) = &outcome.reason {
            metrics.memory_kills.add(killed.kills, &[]);
        }
        if !self.last {
            metrics.restarts.add(1, &[]);
            return;
        }
        let state = KeyValue::new(names::RUN_OUTCOME, outcome.state().name());
        let reason = KeyValue::new(names::RUN_END_REASON, outcome.reason.name());
        let mut attributes = vec![state.clone(), reason, verdict()];
        attributes.extend(error_type(outcome).map(|word| KeyValue::new(names::ERROR_TYPE, word)));
        attributes.extend(containment(new));
        metrics.ended.add(1, &attributes);
        if let Some(started) = self.times.started {
            let took = self.at.since(started);
            metrics.duration.record(took.as_secs_f64(), &[state]);
        }
    }

    fn phases(&self, run: &Recorded) -> Vec<Span> {
        let Self { new, times, .. } = self;
        let attempt = new.attempt;
        let mut spans = Vec::new();
        if let Some(begun) = self.stop_begun() {
            let over = self.verdict_at();
            let part = SpanPart::Stop(attempt);
            let mut stop = phase(run, new, part, names::SPAN_STOP, (begun, over));
            let verdict = self.outcome.tree.name();
            stop.attributes.extend([
                KeyValue::new(names::RUN_END_REASON, self.outcome.reason.name()),
                KeyValue::new(names::TREE_VERDICT, verdict),
                KeyValue::new(names::STOP_ESCALATED, self.escalated()),
            ]);
            if !is_proved(&self.outcome.tree) {
                stop.attributes
                    .push(KeyValue::new(names::ERROR_TYPE, verdict));
                stop.status = Status::error(verdict);
            }
            spans.push(stop);
            spans.extend(self.steps(run, over));
        }
        if let Some(exited) = times.leader_exited {
            if let Some(empty) = times.tree_empty {
                let part = SpanPart::Reap(attempt);
                spans.push(phase(run, new, part, names::SPAN_REAP, (exited, empty)));
            }
            if let Some(closed) = times.streams_closed {
                let part = SpanPart::Drain(attempt);
                spans.push(phase(run, new, part, names::SPAN_DRAIN, (exited, closed)));
            }
        }
        spans
    }

    /// Returns a span for each round of signals, until the next one.
    fn steps(&self, run: &Recorded, over: Timestamp) -> Vec<Span> {
        let attempt = self.new.attempt;
        let steps = &self.outcome.certificate.steps;
        let ends = steps.iter().skip(1).map(|next| next.at);
        let above = run.trace.context(SpanPart::Stop(attempt)).span_id();
        let steps = steps.iter().zip(ends.chain([over])).zip(0u16..);
        let steps = steps.map(|((step, end), nth)| {
            let part = SpanPart::Step(attempt, nth);
            let times = (step.at, end);
            let mut span = phase(run, self.new, part, names::SPAN_STOP_STEP, times);
            span.parent = above;
            span.attributes.extend([
                KeyValue::new(names::STOP_SIGNAL, step.signal.to_string()),
                KeyValue::new(names::STOP_DELIVERED, i64::from(step.delivered)),
                KeyValue::new(names::STOP_GONE, i64::from(step.gone)),
                KeyValue::new(names::STOP_REFUSED, i64::from(step.refused)),
            ]);
            span
        });
        steps.collect()
    }

    fn conclude(&self, span: &mut Span) {
        let outcome = self.outcome;
        span.attributes.extend(outcome_attributes(outcome));
        if let Some(word) = error_type(outcome) {
            span.attributes.push(KeyValue::new(names::ERROR_TYPE, word));
            span.status = Status::error(outcome.reason.name());
        }
    }
}
