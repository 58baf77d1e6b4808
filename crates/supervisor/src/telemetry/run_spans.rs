//! Spans of one run: one for each phase when that has ended, the run's own at its end, and counters on the way.

mod end;

use super::{
    Span, Telemetry,
    context::{RunTrace, SpanPart},
    names,
    run_events::{self, RunEvents},
};
use crate::telemetry::run_attributes::{containment, identity_attributes};
use end::End;
use kennel_lifecycle::{
    EndReason, Entry, NeverRan, Outcome, RecordedSpec, StopCertificate, Timestamp, TreeVerdict,
};
use kennel_store::{Closure, NewRun, Times};
use opentelemetry::{
    KeyValue,
    trace::{SpanContext, SpanKind, Status},
};
use std::{borrow::Cow, path::Path, time::Duration};

/// Start of a phase; absent: it is not in progress, or an earlier server has seen its beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    preparing: Option<Timestamp>,
    recording: Option<Timestamp>,
    released: Option<Timestamp>,
    paused: Option<Timestamp>,
    stopping: Option<Timestamp>,
    attempt: Option<Timestamp>,
}

/// Attributes of all spans of a recorded run.
#[derive(Debug)]
struct Recorded {
    trace: RunTrace,
    /// The name of the program.
    executable: Option<String>,
}

impl Recorded {
    fn of(telemetry: &Telemetry, new: &NewRun) -> Option<Self> {
        let trace = telemetry.run(new.run, new.policy().kind, new.traceparent.as_deref())?;
        trace.context(SpanPart::Run).is_sampled().then(|| Self {
            trace,
            executable: executable(&new.spec),
        })
    }
}

/// The spans of a live run. It only gets events that have happened.
#[derive(Debug)]
pub(crate) struct RunSpans {
    telemetry: Telemetry,
    recorded: Option<Recorded>,
    /// Span context of its events.
    context: Option<SpanContext>,
    since: Since,
    pauses: u16,
}

impl RunSpans {
    pub(crate) fn new(telemetry: &Telemetry, new: &NewRun) -> Self {
        Self {
            telemetry: telemetry.clone(),
            recorded: Recorded::of(telemetry, new),
            context: run_events::context(telemetry, new),
            since: Since::default(),
            pauses: 0,
        }
    }

    fn events(&self) -> RunEvents<'_> {
        RunEvents {
            telemetry: &self.telemetry,
            context: self.context.as_ref(),
        }
    }

    /// Records that the attempt is ready, so long after its start.
    pub(crate) fn ready(&self, after: Duration) {
        let ready = &self.telemetry.metrics.ready;
        ready.record(after.as_secs_f64(), &[]);
    }

    /// Records how far each stream was read before, and is at present.
    pub(crate) fn read(&self, before: [u64; 2], now: [u64; 2]) {
        for (stream, (before, now)) in before.into_iter().zip(now).enumerate() {
            if now > before {
                self.telemetry.metrics.output(stream, now - before);
            }
        }
    }

    /// Records that the keeper is asked for a child.
    pub(crate) fn prepares(&mut self, new: &NewRun, at: Timestamp) {
        if new.attempt == 1 {
            self.span(
                new,
                SpanPart::Admit,
                names::SPAN_ADMIT,
                (new.created, at),
                None,
            );
        }
        self.since = Since {
            preparing: Some(at),
            attempt: Some(at),
            ..Since::default()
        };
        self.pauses = 0;
    }

    /// Records its answer; with the failure, if there is one.
    pub(crate) fn prepared(&mut self, new: &NewRun, at: Timestamp, failure: Option<String>) {
        let Some(since) = self.since.preparing.take() else {
            return;
        };
        if failure.is_none() {
            let metrics = &self.telemetry.metrics;
            metrics.spawn_phase("prepare", at.since(since));
        }
        let part = SpanPart::Prepare(new.attempt);
        self.span(new, part, names::SPAN_PREPARE, (since, at), failure);
    }

    /// Records that the row is being written.
    pub(crate) fn records(&mut self, at: Timestamp) {
        self.since.recording = Some(at);
    }

    /// Records that the gate is opened.
    pub(crate) fn releases(&mut self, at: Timestamp) {
        self.since.released = Some(at);
    }

    /// Records the adoption or recovery by a server that has not begun the run, since its start.
    pub(crate) fn recovered(
        &self,
        new: &NewRun,
        since: Timestamp,
        at: Timestamp,
        action: &'static str,
    ) {
        self.telemetry.metrics.recovered(action);
        self.events().recovered(new, at, action);
        if let Some(run) = &self.recorded {
            // Each recovery has its own span.
            let part = SpanPart::Recover(new.attempt, since);
            let mut span = phase(run, new, part, names::SPAN_RECOVER, (since, at));
            span.attributes
                .push(KeyValue::new(names::RECOVERY_ACTION, action));
            self.telemetry.emit(span);
        }
    }

    /// Restores the pauses of an earlier server: the start of the present one, and the number of earlier ones.
    pub(crate) fn resume_pauses(&mut self, since: Option<Timestamp>, over: u16) {
        self.since.paused = since;
        self.pauses = over;
    }

    /// Records an entry of the run, except its end: that is [`Self::ends`].
    pub(crate) fn record_entry(&mut self, new: &NewRun, at: Timestamp, entry: &Entry) {
        let attempt = new.attempt;
        self.events().emit_entry(new, at, entry);
        match entry {
            Entry::Recorded { .. } => {
                if let Some(since) = self.since.recording.take() {
                    let metrics = &self.telemetry.metrics;
                    metrics.spawn_phase("commit", at.since(since));
                    let part = SpanPart::Commit(attempt);
                    self.span(new, part, names::SPAN_COMMIT, (since, at), None);
                }
            }
            Entry::Started => {
                let held = containment(new);
                self.telemetry.metrics.started.add(1, held.as_slice());
                if let Some(since) = self.since.released.take() {
                    let metrics = &self.telemetry.metrics;
                    metrics.spawn_phase("exec", at.since(since));
                    let part = SpanPart::Exec(attempt);
                    self.span(new, part, names::SPAN_EXEC, (since, at), None);
                }
            }
            Entry::Paused => self.since.paused = Some(at),
            Entry::Resumed { .. } => self.pause_over(new, at),
            Entry::Stopping { .. } => {
                self.since.stopping.get_or_insert(at);
            }
            Entry::MemoryKills(killed) => {
                self.telemetry.metrics.memory_kills.add(killed.kills, &[]);
            }
            _ => {}
        }
    }

    fn pause_over(&mut self, new: &NewRun, at: Timestamp) {
        if let Some(since) = self.since.paused.take() {
            let part = SpanPart::Pause(new.attempt, self.pauses);
            self.pauses = self.pauses.wrapping_add(1);
            self.span(new, part, names::SPAN_PAUSE, (since, at), None);
        }
    }

    /// Records the end of an attempt; another one follows where it is not the run's `last`.
    pub(crate) fn ends(
        &mut self,
        new: &NewRun,
        times: &Times,
        outcome: &Outcome,
        at: Timestamp,
        last: bool,
    ) {
        self.pause_over(new, times.leader_exited.unwrap_or(at));
        if let Some(since) = self.since.released.take() {
            let why = matches!(outcome.reason, EndReason::StartFailed(_))
                .then(|| outcome.reason.name().to_owned());
            let part = SpanPart::Exec(new.attempt);
            self.span(new, part, names::SPAN_EXEC, (since, at), why);
        }
        let since = std::mem::take(&mut self.since);
        let end = End {
            new,
            times,
            outcome,
            at,
            stopping: since.stopping,
            begun: since.attempt,
            last,
        };
        end.emit(&self.events(), self.recorded.as_ref());
    }

    /// Records a run that is given up before its record: its caller gets the error, and nothing else is left of it.
    pub(crate) fn forgets(&mut self, new: &NewRun, at: Timestamp, why: &NeverRan) {
        let reason = match why {
            NeverRan::Failed(failure) => EndReason::StartFailed(failure.clone()),
            NeverRan::Stopped(order) => order.reason.clone().into(),
            // The key belongs to another run.
            NeverRan::Superseded => return,
        };
        let outcome = Outcome {
            reason,
            exit: None,
            tree: TreeVerdict::NeverRan,
            streams: None,
            certificate: StopCertificate::default(),
        };
        self.ends(new, &Times::default(), &outcome, at, true);
    }

    fn span(
        &self,
        new: &NewRun,
        part: SpanPart,
        name: &'static str,
        times: (Timestamp, Timestamp),
        failure: Option<String>,
    ) {
        if let Some(run) = &self.recorded {
            let mut span = phase(run, new, part, name, times);
            if let Some(why) = failure {
                span.attributes
                    .push(KeyValue::new(names::ERROR_TYPE, "spawn_failed"));
                span.status = Status::error(why);
            }
            self.telemetry.emit(span);
        }
    }
}

/// Emits a fence: a run that has ended before any caller spawned it.
pub(crate) fn emit_fence(telemetry: &Telemetry, new: &NewRun, closure: &Closure) {
    let end = End {
        new,
        times: &closure.times,
        outcome: &closure.outcome,
        at: new.created,
        stopping: None,
        begun: None,
        last: true,
    };
    let context = run_events::context(telemetry, new);
    let events = RunEvents {
        telemetry,
        context: context.as_ref(),
    };
    end.emit(&events, Recorded::of(telemetry, new).as_ref());
}

/// Makes a span of the run, below its attempt.
fn phase(
    run: &Recorded,
    new: &NewRun,
    part: SpanPart,
    name: &'static str,
    (start, end): (Timestamp, Timestamp),
) -> Span {
    Span {
        context: run.trace.context(part),
        parent: run.trace.above(new.attempt),
        parent_is_remote: false,
        name: Cow::Borrowed(name),
        kind: SpanKind::Internal,
        start,
        // Shim, keeper and server each record their own times, and the clock may be set back.
        end: end.max(start),
        attributes: attributes(run, new),
        links: Vec::new(),
        status: Status::Unset,
    }
}

/// Returns the attributes of every run. Arguments and environment are left out.
fn attributes(run: &Recorded, new: &NewRun) -> Vec<KeyValue> {
    let mut attributes = identity_attributes(new);
    let executable = run.executable.clone();
    attributes.extend(executable.map(|n| KeyValue::new(names::PROCESS_EXECUTABLE_NAME, n)));
    attributes
}

/// Returns the name of the program, from the client's spec.
fn executable(spec: &RecordedSpec) -> Option<String> {
    let program = spec.command.argv.first()?;
    let name = Path::new(program).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
