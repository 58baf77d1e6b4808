//! Ends that not every host can produce. All others are in `tests/e2e/why.rs`.

use super::*;
use crate::{
    registry::tests::new_run,
    telemetry::{Sampling, SpanSink, Tracing},
};
use kennel_lifecycle::{Exit, MemoryKills, MemoryShortage, Proof, Signal};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{Arc, Mutex},
};

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Span>>);

impl SpanSink for Kept {
    fn take(&self, span: Span) {
        self.0.lock().expect("no panic").push(span);
    }
}

/// Returns the only span of a run that ends like this.
fn span_of(reason: EndReason, exit: Option<Exit>, tree: TreeVerdict) -> Span {
    let sink = Arc::new(Kept::default());
    let tracing = Tracing {
        sink: Arc::clone(&sink) as Arc<dyn SpanSink>,
        sampling: Sampling::default(),
        baggage: BTreeSet::new(),
    };
    let telemetry = Telemetry::new(Some(tracing), None, opentelemetry::global::meter("test"));
    let outcome = Outcome {
        reason,
        exit,
        tree,
        streams: None,
        certificate: StopCertificate::default(),
    };
    let new = new_run();
    let mut spans = RunSpans::new(&telemetry, &new);
    spans.ends(&new, &Times::default(), &outcome, Timestamp(1), true);
    let mut emitted = sink.0.lock().expect("no panic");
    assert_eq!(emitted.len(), 1, "{emitted:?}");
    emitted.remove(0)
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let named = span.attributes.iter().find(|a| a.key.as_str() == name);
    named.map(|attribute| attribute.value.to_string())
}

// promise: M-13
#[test]
fn span_names_oom_and_final_end_reasons() {
    let killed = MemoryKills {
        kills: 1,
        memory_max: None,
    };
    let signal = Exit::Signal {
        signal: Signal::KILL,
        core_dumped: false,
    };
    let restarted = EndReason::Restarted {
        by: "uid:0".into(),
        request_id: None,
    };
    let oom = span_of(
        EndReason::OomKilled(killed),
        Some(signal),
        TreeVerdict::Empty(Proof::CgroupAndEchild),
    );
    let short = span_of(
        EndReason::MemoryReserve(MemoryShortage {
            limit: 1000,
            used: 950,
            reserve: 100,
        }),
        Some(signal),
        TreeVerdict::Empty(Proof::CgroupAndEchild),
    );
    let unknown = TreeVerdict::Unverified("no check was made".into());
    let restarted = span_of(restarted, None, unknown);
    for (span, word, error, signal) in [
        (oom, "oom_killed", "oom", Some("SIGKILL")),
        (short, "memory_reserve", "memory_reserve", Some("SIGKILL")),
        (restarted, "restarted", "unverified", None),
    ] {
        assert_eq!(span.name, names::SPAN_RUN);
        assert_eq!(span.status, Status::error(word));
        for (name, expected) in [
            (names::RUN_END_REASON, Some(word)),
            (names::ERROR_TYPE, Some(error)),
            (names::EXIT_SIGNAL, signal),
        ] {
            assert_eq!(attribute(&span, name).as_deref(), expected, "{name}");
        }
    }
}

#[test]
fn executable_name_with_non_utf8_bytes_is_lossy() {
    let of = |program: &[u8]| {
        let mut spec = kennel_lifecycle::RunSpec::default();
        spec.command.argv = vec![OsStr::from_bytes(program).into(), "-c".into()];
        executable(&spec.into())
    };
    assert_eq!(of(b"/bin/sh").as_deref(), Some("sh"));
    assert_eq!(of(b"/bin/a\xff").as_deref(), Some("a\u{fffd}"));
    assert_eq!(executable(&RecordedSpec::default()), None);
}
