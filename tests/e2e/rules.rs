//! Output rules: the actions of a line. Across deaths of the server: `rules_in_bad_weather`.

use kennel_proto::pb::{
    self, Activity, RunState, event::Payload, lifecycle::Station, line_pattern::Pattern,
    output_rule::Action,
};
use kennel_tests::{
    Client, Heard, Kennel, PATIENCE, RunExt, SpecExt, client::complaint, client::duration,
    eventually_async, must, sh,
};
use std::{collections::BTreeMap, time::Duration};

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
    // The last line has no end, and was tested before the run ended.
    assert_eq!(seen, ["session", "work", "ask", "tool", "work", "last"]);
    let tool = matches(&heard).into_iter().find(|(rule, _)| rule == "tool");
    assert_eq!(tool.expect("it is there").1["name"], "bash");
    assert_eq!(heard.stations().last(), Some(&"ended"));
}

/// A stream-json agent that writes its result in odd chunks, 5 MiB long, and then hangs.
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
    let after = Duration::from_millis(1500);
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
    // A due stop is due at the next server.
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

#[tokio::test(flavor = "multi_thread")]
async fn run_ended_after_its_result_has_own_end() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    for (script, state, reason) in [
        (
            "echo result; sleep 0.2; exit 0",
            RunState::Succeeded,
            "exited",
        ),
        ("echo result; sleep 0.2; exit 3", RunState::Failed, "exited"),
        (
            "echo result; trap 'exit 4' TERM; sleep 300 & wait",
            RunState::Succeeded,
            "result",
        ),
    ] {
        let rules = vec![rule(
            "result",
            regex("^result$"),
            result(Duration::from_secs(1), Duration::from_secs(5)),
        )];
        let run = must("spawn", client.spawn(with(sh(script), rules)).await).run_id;
        let ended = must("end", client.ended(&run).await);
        assert_eq!((ended.state(), ended.reason()), (state, reason), "{script}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_rules_are_named() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
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
    ];
    let status = client
        .spawn(with(sh("true"), rules))
        .await
        .expect_err("faults");
    let mut fields = complaint(&status).fields;
    fields.sort();
    let wanted = [
        "spec.output_rules[0].name",
        "spec.output_rules[1].pattern.regex",
        "spec.output_rules[2].activity",
        "spec.output_rules[2].name",
        "spec.output_rules[3]",
        "spec.output_rules[4].result.after",
    ];
    assert_eq!(fields, wanted);
}
