//! Output rules: the actions of a line, and faults of rules and probes. Across deaths of the server:
//! `rules_in_bad_weather`; ends after a result: `supervisor/tests/runs/rules.rs`.

use kennel_proto::pb::{
    self, Activity, RestartMode, RunState, event::Payload, lifecycle::Station,
    line_pattern::Pattern, liveness, output_rule::Action, readiness,
};
use kennel_tests::{
    Client, Heard, Kennel, PATIENCE, RunExt, SpecExt, client::complaint, client::duration,
    eventually_async, must, sh,
};
use std::{collections::BTreeMap, time::Duration};
use tonic::Code;

pub(crate) fn rule(name: &str, pattern: Pattern, action: Action) -> pb::OutputRule {
    pb::OutputRule {
        name: name.to_owned(),
        pattern: Some(pb::LinePattern {
            pattern: Some(pattern),
        }),
        action: Some(action),
        ..pb::OutputRule::default()
    }
}

pub(crate) fn regex(text: &str) -> Pattern {
    Pattern::Regex(text.to_owned())
}

fn json(pointer: &str, equals: &str, captures: &[(&str, &str)]) -> Pattern {
    let captures = captures.iter();
    let captures = captures.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    Pattern::Json(pb::JsonPattern {
        pointer: pointer.to_owned(),
        equals: equals.to_owned(),
        captures: captures.collect(),
    })
}

pub(crate) fn emit() -> Action {
    Action::Event(pb::output_rule::Emit {})
}

pub(crate) fn annotate() -> Action {
    Action::Annotate(pb::output_rule::Annotate {})
}

fn result(after: Duration, grace: Duration) -> Action {
    Action::Result(pb::output_rule::Result {
        after: Some(duration(after)),
        grace: Some(duration(grace)),
    })
}

pub(crate) fn with(mut spec: pb::RunSpec, rules: Vec<pb::OutputRule>) -> pb::RunSpec {
    spec.output_rules = rules;
    spec
}

/// Returns each match as (rule, groups), in order.
pub(crate) fn matches(heard: &Heard) -> Vec<(String, BTreeMap<String, String>)> {
    let matched = heard
        .events
        .iter()
        .filter_map(|(_, payload)| match payload {
            Payload::Lifecycle(pb::Lifecycle {
                station: Some(Station::OutputMatched(matched)),
            }) => Some(&matched.rules),
            _ => None,
        });
    let rules = matched.flatten();
    rules
        .map(|of| (of.rule.clone(), of.groups.clone()))
        .collect()
}

pub(crate) async fn heard(client: &mut Client, run: &str) -> Heard {
    must("hear", client.hear_all(run, 0).await)
}

// promise: RW-11
#[tokio::test(flavor = "multi_thread")]
async fn lines_set_activity_annotations_and_events() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = r#"echo '{"type":"system","session_id":"s-1"}'; echo working
        printf 'waiting for '; sleep 0.2; echo you; read x; echo 'tool bash'; echo working; printf done"#;
    let rules = vec![
        rule(
            "session",
            json("/type", "\"system\"", &[("session", "/session_id")]),
            annotate(),
        ),
        rule(
            "work",
            regex("^working$"),
            Action::Activity(Activity::Working.into()),
        ),
        rule(
            "ask",
            regex("^waiting for you$"),
            Action::Activity(Activity::AwaitingInput.into()),
        ),
        rule("tool", regex("^tool (?P<name>.*)$"), emit()),
        rule("last", regex("^done$"), emit()),
    ];
    let run = must(
        "spawn",
        client.spawn(with(sh(script).open_input(), rules)).await,
    )
    .run_id;
    let waits = eventually_async("it waits for input", PATIENCE, async || {
        let run = client.clone().get(&run).await.ok()?;
        (run.activity() == Activity::AwaitingInput).then_some(run)
    });
    let waits = waits.await;
    assert_eq!(
        waits.annotations.get("session").map(String::as_str),
        Some("s-1")
    );
    assert_eq!(waits.annotations_version, 1);
    must("write", client.write(&run, "1", None, b"go\n").await);
    let ended = must("end", client.ended(&run).await);
    assert_eq!(
        (ended.code(), ended.activity()),
        (Some(0), Activity::Working)
    );
    let heard = heard(&mut client, &run).await;
    let seen: Vec<String> = matches(&heard).into_iter().map(|(rule, _)| rule).collect();
    // The unterminated last line was tested before the run ended. Either the answer or the line made the agent work
    // again.
    let [before, after] = [&["session", "work", "ask", "tool"][..], &["last"][..]];
    let by_answer = [before, after].concat();
    let by_line = [before, &["work"], after].concat();
    assert!(seen == by_answer || seen == by_line, "{seen:?}");
    let tool = matches(&heard).into_iter().find(|(rule, _)| rule == "tool");
    assert_eq!(tool.expect("it is there").1["name"], "bash");
    assert_eq!(heard.stations().last(), Some(&"ended"));
}

/// A stream-json agent that writes its result in odd chunks, 5 MiB long, and then hangs.
// promise: RW-13
#[tokio::test(flavor = "multi_thread")]
async fn agent_that_hangs_after_its_result_succeeds() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = r#"
import os, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
line = b'{"type":"result","pad":"' + b"x" * (5 << 20) + b'","session_id":"s-9","cost":{"usd":0.25}}\n'
at = 0
size = 1
while at < len(line):
    at += os.write(1, line[at:at + size])
    size = size * 7 % 65521 + 1
os.write(1, b'{"type":"result","session_id":"late"}\n')
time.sleep(1000)
"#;
    let agent = kennel_tests::argv(&["/usr/bin/env", "python3", "-c", script]);
    let after = Duration::from_secs(1);
    let of_result = || {
        json(
            "/type",
            "\"result\"",
            &[("session", "/session_id"), ("usd", "/cost/usd")],
        )
    };
    let rules = vec![
        rule(
            "result",
            of_result(),
            result(after, Duration::from_millis(300)),
        ),
        rule("keep", of_result(), annotate()),
    ];
    let run = must("spawn", client.spawn(with(agent, rules)).await).run_id;
    eventually_async("the result is there", PATIENCE, async || {
        let run = client.clone().get(&run).await.ok()?;
        (run.annotations_version == 2).then_some(())
    })
    .await;
    // The next server carries out a due stop.
    kennel.kill_server();
    client = kennel.client().await;
    let ended = must("end", client.ended(&run).await);
    assert_eq!(
        (ended.state(), ended.reason()),
        (RunState::Succeeded, "result")
    );
    let exit = ended
        .attempt()
        .exit
        .as_ref()
        .and_then(|exit| exit.result.clone());
    let Some(pb::exit::Result::Signal(signal)) = exit else {
        panic!("SIGKILL after the grace: {ended:?}");
    };
    assert_eq!(signal.name, "SIGKILL");
    assert_eq!(ended.annotations["usd"], "0.25");
    let heard = heard(&mut client, &run).await;
    let signals = heard.signals();
    let ends = (
        signals.first().map(String::as_str),
        signals.last().map(String::as_str),
    );
    assert_eq!(ends, (Some("SIGTERM"), Some("SIGKILL")));
    let results = matches(&heard)
        .into_iter()
        .filter(|(rule, _)| rule == "result");
    assert_eq!(results.count(), 1, "the first counts");
}

/// A spec, and the names of its faulty fields below `spec.`, in order.
type Faulty = (pb::RunSpec, &'static [&'static str]);

fn faulty_rules() -> Faulty {
    let mut none = rule("none", regex("x"), emit());
    none.action = None;
    let rules = vec![
        rule("a b", regex("x"), emit()),
        rule("twice", regex("("), emit()),
        rule("twice", regex("x"), Action::Activity(9)),
        none,
        rule(
            "long",
            regex("x"),
            result(Duration::from_hours(25), Duration::ZERO),
        ),
        rule("no-key", regex("(?P<_n>.)"), annotate()),
        rule("no-json-key", json("", "", &[("a b", "/a")]), emit()),
    ];
    let fields = &[
        "output_rules[0].name",
        "output_rules[1].pattern.regex",
        "output_rules[2].activity",
        "output_rules[2].name",
        "output_rules[3]",
        "output_rules[4].result.after",
        "output_rules[5].pattern.regex",
        "output_rules[6].pattern.json",
    ];
    (with(sh("true"), rules), fields)
}

fn faulty_probes() -> [Faulty; 4] {
    let too_short = Some(duration(Duration::from_millis(1)));
    let zero = Some(duration(Duration::ZERO));
    let ready_by = |readiness: pb::Readiness| pb::RunSpec {
        readiness: Some(Box::new(readiness)),
        ..sh("true")
    };
    let live_by = |liveness: pb::Liveness| pb::RunSpec {
        liveness: Some(liveness),
        ..sh("true")
    };
    let by_port = pb::Readiness {
        probe: Some(readiness::Probe::Tcp(pb::TcpProbe { port: 0 })),
        interval: too_short,
        start_timeout: zero,
        ..pb::Readiness::default()
    };
    let by_line = pb::Readiness {
        probe: Some(readiness::Probe::Line(pb::LinePattern {
            pattern: Some(regex("(")),
        })),
        ..pb::Readiness::default()
    };
    let liveness = pb::Liveness {
        probe: Some(liveness::Probe::Tcp(pb::TcpProbe { port: 70_000 })),
        interval: too_short,
        timeout: zero,
        failure_threshold: Some(0),
    };
    [
        (
            ready_by(by_port),
            &[
                "readiness.interval",
                "readiness.start_timeout",
                "readiness.tcp.port",
            ],
        ),
        (ready_by(by_line), &["readiness.line.regex"]),
        (
            live_by(liveness),
            &[
                "liveness.failure_threshold",
                "liveness.interval",
                "liveness.tcp.port",
                "liveness.timeout",
            ],
        ),
        (live_by(pb::Liveness::default()), &["liveness"]),
    ]
}

fn faulty_ends() -> [Faulty; 4] {
    let succeeds_with = |codes: Vec<u32>| pb::RunSpec {
        success_exit_codes: codes,
        ..sh("true")
    };
    let restart = pb::RestartPolicy {
        mode: RestartMode::Always.into(),
        factor: Some(11),
        max_restarts: Some(0),
        ..pb::RestartPolicy::default()
    };
    let restarted = sh("true").restart(restart);
    [
        (succeeds_with(vec![0]), &["success_exit_codes"]),
        (succeeds_with(vec![7, 256]), &["success_exit_codes[1]"]),
        (succeeds_with((1..=17).collect()), &["success_exit_codes"]),
        (
            restarted.on_leader_exit(pb::LeaderExitAction::Keep, None),
            &[
                "on_leader_exit.action",
                "restart.factor",
                "restart.max_restarts",
            ],
        ),
    ]
}

// promise: RW-7, RW-11, RW-54, RW-57, RW-162
#[tokio::test(flavor = "multi_thread")]
async fn invalid_rules_and_probes_are_reported_by_field() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let all = [faulty_rules()].into_iter();
    let all = all.chain(faulty_probes()).chain(faulty_ends());
    for (faulty, wanted) in all {
        let status = client.spawn(faulty).await.expect_err("faults");
        let complaint = complaint(&status);
        assert_eq!(complaint.code, Code::InvalidArgument);
        let mut fields = complaint.fields;
        fields.sort();
        let wanted = wanted.iter().map(|field| format!("spec.{field}"));
        assert_eq!(fields, wanted.collect::<Vec<_>>());
    }
}
