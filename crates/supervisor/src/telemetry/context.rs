//! Trace contexts: W3C parsing, and the contexts and span names of a run, which follow from its id.

use kennel_lifecycle::{RunId, RunKind, Timestamp};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Reads a `traceparent` (<https://www.w3.org/TR/trace-context/>). `None`: it is not valid.
pub fn parse(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let lower_hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    // Later versions may add parts; version 00 has four.
    let surplus = version == "00" && parts.next().is_some();
    let formed = lower_hex(version, 2)
        && version != "ff"
        && !surplus
        && lower_hex(trace, 32)
        && lower_hex(span, 16)
        && lower_hex(flags, 2);
    let flags = u8::from_str_radix(flags, 16).ok().filter(|_| formed)?;
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    context.is_valid().then_some(context)
}

/// Writes a `traceparent`.
pub fn traceparent(context: &SpanContext) -> String {
    let sampled = u8::from(context.is_sampled());
    format!(
        "00-{}-{}-{sampled:02x}",
        context.trace_id(),
        context.span_id()
    )
}

/// Makes a unique span id.
pub(super) fn fresh_span() -> SpanId {
    span_id(fresh(), 0)
}

/// Makes a unique trace id.
pub(super) fn fresh_trace() -> TraceId {
    TraceId::from(fresh())
}

fn fresh() -> u128 {
    ulid::Ulid::generate().into()
}

/// The part of a run that a span covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanPart {
    Run,
    Admit,
    Attempt(u32),
    Prepare(u32),
    Commit(u32),
    Exec(u32),
    Pause(u32, u16),
    Stop(u32),
    Step(u32, u16),
    Drain(u32),
    Reap(u32),
    /// Since this time.
    Recover(u32, Timestamp),
}

impl SpanPart {
    fn number(self) -> u64 {
        if let Self::Recover(attempt, since) = self {
            return mix(since.0.cast_unsigned()).wrapping_add(u64::from(attempt));
        }
        let (kind, attempt, nth) = match self {
            Self::Run => (0, 0, 0),
            Self::Admit => (1, 0, 0),
            Self::Attempt(attempt) => (2, attempt, 0),
            Self::Prepare(attempt) => (3, attempt, 0),
            Self::Commit(attempt) => (4, attempt, 0),
            Self::Exec(attempt) => (5, attempt, 0),
            Self::Pause(attempt, nth) => (6, attempt, nth),
            Self::Stop(attempt) => (7, attempt, 0),
            Self::Step(attempt, nth) => (8, attempt, nth),
            Self::Drain(attempt) => (9, attempt, 0),
            Self::Reap(attempt) | Self::Recover(attempt, _) => (10, attempt, 0),
        };
        u64::from(attempt) << 32 | u64::from(nth) << 8 | kind
    }
}

/// Contexts of a run's spans. They need no state but the row's: a server that resumes the run, or reports its end
/// twice, names the same spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunTrace {
    run: RunId,
    trace: TraceId,
    flags: TraceFlags,
    /// Parent of the run's span.
    pub(super) parent: SpanId,
    /// The call of another trace that began the run.
    pub(super) link: Option<SpanContext>,
}

impl RunTrace {
    /// Makes the contexts of the run that was spawned under this `traceparent`. A run that continues beside its caller
    /// has a trace of its own, linked to the caller's; `decide` decides on a trace without an earlier decision.
    pub(crate) fn of(
        run: RunId,
        kind: RunKind,
        spawned_by: Option<&str>,
        decide: impl FnOnce(TraceId) -> bool,
    ) -> Self {
        let own = TraceId::from(run.as_u128());
        let is_part = kind == RunKind::Heartbeat;
        let (trace, sampled, parent, link) = match spawned_by.and_then(parse) {
            Some(caller) if is_part => (
                caller.trace_id(),
                caller.is_sampled(),
                caller.span_id(),
                None,
            ),
            Some(caller) => (own, caller.is_sampled(), SpanId::INVALID, Some(caller)),
            None => (own, decide(own), SpanId::INVALID, None),
        };
        Self {
            run,
            trace,
            flags: TraceFlags::NOT_SAMPLED.with_sampled(sampled),
            parent,
            link,
        }
    }

    /// Returns the context of one of its spans.
    pub(crate) fn context(&self, part: SpanPart) -> SpanContext {
        let span = span_id(self.run.as_u128(), part.number());
        SpanContext::new(self.trace, span, self.flags, false, TraceState::NONE)
    }

    /// Whether the run has another trace than its caller.
    pub(crate) fn is_own(&self) -> bool {
        self.link.is_some()
    }

    /// Returns the parent of an attempt's spans.
    pub(super) fn above(&self, attempt: u32) -> SpanId {
        let part = if attempt > 1 {
            SpanPart::Attempt(attempt)
        } else {
            SpanPart::Run
        };
        self.context(part).span_id()
    }
}

/// Different for different numbers under one key. Never the invalid one.
#[expect(
    clippy::cast_possible_truncation,
    reason = "each half of 128 bits has 64"
)]
fn span_id(key: u128, number: u64) -> SpanId {
    let [high, low] = [key >> 64, key & u128::from(u64::MAX)].map(|half| half as u64);
    let mixed = mix(mix(mix(high) ^ low).wrapping_add(number));
    SpanId::from(mixed.max(1))
}

/// The finalizer of `SplitMix64` (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): one to one.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn run(number: u128) -> RunId {
        RunId::from_u128(number)
    }

    #[test]
    fn trace_context_round_trips() {
        let context = parse(CALLER).expect("it is valid");
        assert_eq!(traceparent(&context), CALLER);
        // Flags that this version does not know are not passed on.
        let later = parse(&CALLER.replace("-01", "-ff")).expect("it is valid");
        assert_eq!(traceparent(&later), CALLER);
        for bad in [
            "",
            "00",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-+1",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_a_turn_continues_the_callers_trace() {
        let turn = RunTrace::of(run(7), RunKind::Heartbeat, Some(CALLER), |_| false);
        let caller = parse(CALLER).expect("it is valid");
        assert_eq!(turn.context(SpanPart::Run).trace_id(), caller.trace_id());
        assert_eq!((turn.parent, turn.link.as_ref()), (caller.span_id(), None));
        assert!(turn.context(SpanPart::Run).is_sampled());

        for kind in [RunKind::Service, RunKind::Terminal, RunKind::Job] {
            let own = RunTrace::of(run(7), kind, Some(CALLER), |_| false);
            assert_ne!(own.context(SpanPart::Run).trace_id(), caller.trace_id());
            assert_eq!(own.link.as_ref(), Some(&caller));
            assert_eq!(own.parent, SpanId::INVALID);
            assert!(own.context(SpanPart::Run).is_sampled(), "as its caller's");
        }
        let alone = RunTrace::of(run(7), RunKind::Heartbeat, None, |_| false);
        assert!(!alone.context(SpanPart::Run).is_sampled());
    }

    #[test]
    fn span_ids_of_successive_runs_differ() {
        let mut seen = HashSet::new();
        let first = 0x0190_0000_0000_0000_0000_0000_0000_0000_u128;
        for number in first..first + 50 {
            let trace = RunTrace::of(run(number), RunKind::Job, None, |_| true);
            let mut parts = vec![SpanPart::Run, SpanPart::Admit];
            for attempt in 1..4 {
                parts.extend([
                    SpanPart::Attempt(attempt),
                    SpanPart::Prepare(attempt),
                    SpanPart::Commit(attempt),
                    SpanPart::Exec(attempt),
                    SpanPart::Stop(attempt),
                    SpanPart::Drain(attempt),
                    SpanPart::Reap(attempt),
                ]);
                for nth in 0..3 {
                    parts.extend([SpanPart::Pause(attempt, nth), SpanPart::Step(attempt, nth)]);
                }
            }
            for part in parts {
                assert!(seen.insert(trace.context(part).span_id()), "{part:?}");
            }
        }
    }
}
