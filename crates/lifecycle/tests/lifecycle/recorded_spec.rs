//! The recorded form of a spec, and what it leaves out.

use crate::spec::{edited, good};
use kennel_lifecycle::{
    Inherited, InputMode, Policy, RecordedSpec, RestartPolicy, RunKind, RunSpec, TerminalSpec,
};
use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
    time::Duration,
};

fn with_secrets() -> RunSpec {
    edited(good(), |s| {
        s.command.argv.push("shown".into());
        s.command.env = [("TOKEN".to_owned(), "hush".to_owned())].into();
        s.command.inherited.env = [("EDITOR".to_owned(), "hush".to_owned())].into();
        s.command.inherited.cwd = Some("/home".into());
        s.command.initial_input = Some(b"hush".to_vec());
        s.labels = [("team".to_owned(), "a".to_owned())].into();
        s.policy.restart = RestartPolicy::agent();
    })
}

// promise: A-13
#[test]
fn recorded_spec_has_names_and_no_values() {
    let recorded = with_secrets().recorded();
    assert_eq!(recorded.command.env["TOKEN"], "");
    let inherited = &recorded.command.inherited;
    assert_eq!(
        (&*inherited.env["EDITOR"], recorded.command.working_dir()),
        ("", Path::new("/home"))
    );
    assert_eq!(
        recorded.compared(),
        edited(with_secrets(), |s| s.command.inherited =
            Inherited::default())
        .recorded()
    );
    assert_eq!(recorded.command.initial_input.as_deref(), Some(&b""[..]));
    assert_eq!(recorded.policy, with_secrets().policy);
    assert_eq!(recorded.labels, with_secrets().labels);
    let text = serde_json::to_string(&recorded).expect("JSON");
    assert!(text.contains("TOKEN") && !text.contains("hush"), "{text}");
    assert!(!text.contains("104,117"), "{text}");
}

#[test]
fn reading_a_recorded_spec_drops_secret_values() {
    let whole = serde_json::to_string(&with_secrets()).expect("JSON");
    assert!(whole.contains("hush"));
    let read: RecordedSpec = serde_json::from_str(&whole).expect("a spec");
    assert_eq!(read, with_secrets().recorded());
    let later = whole.replacen('{', r#"{"of_tomorrow":1,"#, 1);
    let read: RecordedSpec = serde_json::from_str(&later).expect("a spec");
    assert_eq!(
        read,
        with_secrets().recorded(),
        "no text with a value is kept"
    );
}

// promise: A-22l
#[test]
fn spec_of_later_version_is_written_back_unchanged() {
    for (text, unknown) in [
        (
            r#"{"policy":{"of_tomorrow":{"b":1, "a":2}},"labels":{}}"#,
            None,
        ),
        (
            r#"{"policy":{"needs":["of_tomorrow"]}}"#,
            Some("of_tomorrow"),
        ),
        (
            r#"{"labels":{"a":"b"},"policy":{"pause":{"on_max_pause":"of_tomorrow"},"kind":"job"}}"#,
            Some("policy.pause"),
        ),
        (
            r#"{"labels":{"a":"b"},"policy":{"kind":"job"},"parent":"of_tomorrow"}"#,
            Some("parent"),
        ),
    ] {
        let read: RecordedSpec = serde_json::from_str(text).expect("a spec");
        assert_eq!(read.unknown(), unknown, "{text}");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
        if text.contains("job") {
            assert_eq!(read.policy.kind, RunKind::Job);
            assert_eq!(read.labels["a"], "b");
        }
    }
    serde_json::from_str::<RecordedSpec>("7").expect_err("no object");
}

#[test]
fn debug_shows_no_argument_variable_or_input() {
    let shown = format!("{:?}", with_secrets());
    for secret in ["hush", "TOKEN", "shown", "104, 117"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn absent_fields_read_as_their_defaults() {
    let read: RunSpec = serde_json::from_str("{}").expect("a spec");
    assert_eq!(read, RunSpec::default());
    let read: RunSpec = serde_json::from_str(
        r#"{"policy":{"kind":"service","stop":{},"restart":{"mode":"always"},"output":{},"limits":{},"pause":{}}}"#,
    )
    .expect("a spec");
    let wanted = edited(RunSpec::default(), |s| {
        s.policy.kind = RunKind::Service;
        s.policy.restart.mode = kennel_lifecycle::RestartMode::Always;
    });
    assert_eq!(read, wanted);
}

#[test]
fn non_utf8_bytes_round_trip_through_json() {
    let raw = OsString::from_vec(vec![b'a', 0xff]);
    let spec = edited(good(), |s| {
        s.command.argv = vec!["sh".into(), raw.clone()];
        s.command.cwd = Some(OsString::from_vec(b"/\xfe".to_vec()).into());
    });
    let text = serde_json::to_string(&spec).expect("JSON");
    assert!(text.contains(r#""argv":["sh",[97,255]]"#), "{text}");
    let read: RunSpec = serde_json::from_str(&text).expect("a spec");
    assert_eq!(read, spec);
    assert_eq!(read.command.argv[1].as_bytes(), b"a\xff");
}

#[test]
fn stop_plan_depends_on_run_kind() {
    let mut policy = Policy::default();
    policy.stop.grace = Some(Duration::from_secs(2));
    assert_eq!(policy.stop_plan().kill_after, Duration::from_secs(2));
    assert_eq!(policy.stop_plan().steps.len(), 1);
    policy.kind = RunKind::Terminal;
    assert_eq!(policy.stop_plan().steps.len(), 2);
    let within = policy.stop_plan_within(Duration::from_secs(1));
    assert_eq!(within.kill_after, Duration::from_secs(1));
}

#[test]
fn input_is_open_on_terminals_and_open_pipes() {
    assert!(!good().command.has_open_input());
    let open = edited(good(), |s| s.command.input = InputMode::Open);
    assert!(open.command.has_open_input());
    let terminal = edited(good(), |s| {
        s.command.terminal = Some(TerminalSpec::default());
    });
    assert!(terminal.command.has_open_input());
}

#[test]
fn stop_signal_of_spec_begins_each_plan() {
    use kennel_lifecycle::{
        Signal,
        ladder::{Action, StopPlan},
    };
    let mut policy = Policy::default();
    policy.stop.signal = Some(Signal::INT);
    let first = |plan: StopPlan| plan.steps.first().map(|step| step.action.clone());
    let second = Duration::from_secs(1);
    assert_eq!(first(policy.stop_plan()), Some(Action::Signal(Signal::INT)));
    assert_eq!(
        first(policy.adapt(StopPlan::shutdown(second), None)),
        Some(Action::Signal(Signal::INT))
    );
    policy.kind = RunKind::Terminal;
    let plan = policy.stop_plan_within(second);
    assert_eq!(plan.steps.len(), 2);
    assert_eq!(first(plan), Some(Action::Signal(Signal::INT)));
    // Without any grace there is no first signal.
    assert_eq!(first(policy.stop_plan_within(Duration::ZERO)), None);
    for refused in [Signal::KILL, Signal::STOP] {
        let spec = edited(good(), |s| s.policy.stop.signal = Some(refused));
        assert_eq!(spec.violations()[0].field, "spec.stop.signal");
    }
}
