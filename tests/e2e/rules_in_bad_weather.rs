//! Every rule, probe and limit of a run, while servers are killed, one is upgraded, and the database dies and comes
//! back: each acts exactly once.

use crate::{
    exec_probe,
    inactivity::limited,
    liveness::Server,
    notify, readiness,
    rules::{annotate, emit, heard, matches, regex, rule, with},
};
use kennel_proto::pb::{
    self, Activity, WaitCondition, end_reason::Reason, line_pattern::Pattern, output_rule::Action,
    readiness::Probe,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, client::duration, eventually, must,
    programs, sh, shell::run_to_end,
};
use std::{path::Path, time::Duration};

/// SIGKILLs of the server, with the cause in the middle of them.
const DEATHS: usize = 20;
const LIMIT: Duration = Duration::from_secs(2);
const RESULT_AFTER: Duration = Duration::from_secs(1);

/// A run, the event that it must show once the file is there, and how often.
struct Scene {
    name: &'static str,
    spec: pb::RunSpec,
    /// Lifecycle events by name, with their count.
    events: &'static [(&'static str, usize)],
    /// The end that it has by itself; absent: it continues.
    ends: Option<fn(&Reason) -> bool>,
}

/// The servers of probes: one is not ready before the cause, the other fails after it.
struct Servers {
    starts: Server,
    fails: Server,
}

impl Servers {
    fn start() -> Self {
        let (starts, fails) = (Server::start(), Server::start());
        starts.says(503);
        Self { starts, fails }
    }
}

fn ready_by(script: &str, readiness: Box<pb::Readiness>) -> pb::RunSpec {
    let mut spec = sh(script);
    spec.readiness = Some(readiness);
    spec
}

fn live_by(script: &str, liveness: pb::Liveness) -> pb::RunSpec {
    let mut spec = sh(script);
    spec.liveness = Some(liveness);
    spec
}

fn now() -> Pattern {
    Pattern::Literal("now".to_owned())
}

fn at_line(script: &str, action: Action) -> pb::RunSpec {
    with(sh(script), vec![rule("line", now(), action)])
}

const QUIET: &str = "exec sleep 1000";

/// Returns a script that does this once the file is there, and continues.
fn then(go: &Path, what: &str) -> String {
    let go = go.display();
    format!("until [ -e {go} ]; do sleep 0.05; done; {what}; {QUIET}")
}

/// Returns runs that become ready, or have the effect of a rule, and continue.
fn that_go_on(go: &Path, servers: &Servers) -> Vec<Scene> {
    let file = go.display();
    let then = |what: &str| then(go, what);
    let by = |script: &str, probe| readiness::with(sh(script), probe, None);
    let line = pb::LinePattern {
        pattern: Some(now()),
    };
    let port = readiness::free_port();
    let listen = format!(
        "exec python3 -c \"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(1000)\""
    );
    let continues = |name, spec, events| Scene {
        name,
        spec,
        events,
        ends: None,
    };
    let ready: &[(&str, usize)] = &[("ready", 1)];
    vec![
        continues("line", by(&then("echo now"), Probe::Line(line)), ready),
        continues(
            "tcp",
            by(
                &then(&listen),
                Probe::Tcp(pb::TcpProbe { port: port.into() }),
            ),
            ready,
        ),
        continues(
            "http",
            by(QUIET, Probe::Http(servers.starts.probe())),
            ready,
        ),
        continues(
            "exec",
            ready_by(QUIET, exec_probe::ready_by(&format!("test -e {file}"))),
            ready,
        ),
        continues(
            "notify",
            ready_by(&then("systemd-notify --ready"), notify::by_notice(None)),
            ready,
        ),
        continues(
            "event",
            at_line(&then("echo now"), emit()),
            &[("output_matched", 1)],
        ),
        continues(
            "activity",
            at_line(&then("echo now"), Action::Activity(Activity::Idle.into())),
            &[("activity_changed", 1)],
        ),
        continues(
            "ready rule",
            at_line(&then("echo now"), Action::Ready(pb::output_rule::Ready {})),
            ready,
        ),
    ]
}

/// Returns runs that are stopped by a rule, a probe or a limit.
fn that_are_stopped(go: &Path, servers: &Servers) -> Vec<Scene> {
    let file = go.display();
    let silent = format!("until [ -e {file} ]; do echo; sleep 0.1; done; {QUIET}");
    let watchdog =
        format!("until [ -e {file} ]; do systemd-notify WATCHDOG=1; sleep 0.2; done; {QUIET}");
    let ends = |name, spec, ends| Scene {
        name,
        spec,
        events: &[("ended", 1)],
        ends: Some(ends),
    };
    vec![
        ends(
            "result",
            at_line(
                &then(go, "echo now"),
                Action::Result(pb::output_rule::Result {
                    after: Some(duration(RESULT_AFTER)),
                    grace: None,
                }),
            ),
            |reason| matches!(reason, Reason::Result(_)),
        ),
        ends(
            "inactivity",
            limited(&silent, LIMIT),
            |reason| matches!(reason, Reason::DeadlineExceeded(exceeded) if exceeded.which() == pb::Deadline::Inactivity),
        ),
        ends(
            "live http",
            live_by(QUIET, servers.fails.liveness(2)),
            |reason| matches!(reason, Reason::NotLive(_)),
        ),
        ends(
            "live exec",
            live_by(
                QUIET,
                exec_probe::live_by(&format!("test ! -e {file}"), Duration::from_secs(1), 2),
            ),
            |reason| matches!(reason, Reason::NotLive(_)),
        ),
        ends(
            "watchdog",
            live_by(&watchdog, notify::watchdog(LIMIT)),
            |reason| matches!(reason, Reason::NotLive(_)),
        ),
    ]
}

/// Returns a run that writes numbered lines to both streams until the file is there; a rule tests each.
fn counts_until(stop: &Path) -> pb::RunSpec {
    let script = format!(
        "i=0; until [ -e {} ]; do i=$((i+1)); echo mark $i; echo noise $i; echo err $i >&2; sleep 0.02; done",
        stop.display()
    );
    let rules = vec![
        rule("mark", regex(r"^mark (?P<n>\d+)$"), emit()),
        rule("err", regex(r"^err (?P<n>\d+)$"), annotate()),
    ];
    with(sh(&script), rules)
}

/// Asserts that each line that matches was reported once, in order.
async fn assert_each_line_once(client: &mut Client, run: &str) {
    let ended = must("end", client.ended(run).await);
    let heard = heard(client, run).await;
    let text = heard.text();
    let written = text.lines().filter_map(|line| line.strip_prefix("mark "));
    let written: Vec<&str> = written.take(1000).collect();
    let seen = matches(&heard)
        .into_iter()
        .filter(|(rule, _)| rule == "mark");
    let seen: Vec<String> = seen.map(|(_, groups)| groups["n"].clone()).collect();
    assert_eq!(seen, written, "{} lines", written.len());
    let errors = String::from_utf8_lossy(&heard.stderr).lines().count();
    assert_eq!(ended.annotations["n"], errors.to_string());
    assert_eq!(ended.annotations_version, errors as u64, "each line once");
}

/// The cause comes while no server lives; servers die before, during and after its effect.
async fn die_and_come_back(kennel: &Kennel, go: &Path, servers: &Servers) {
    for death in 0..DEATHS {
        eventually("a server", Duration::from_mins(1), || kennel.server()).await;
        tokio::time::sleep(Duration::from_millis(53 * (death as u64 % 6))).await;
        if kennel.server().is_some() {
            kennel.kill_server();
        }
        if death == DEATHS / 2 {
            std::fs::write(go, "").expect("own directory");
            servers.starts.says(200);
            servers.fails.says(503);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_probes_and_limits_act_once() {
    let mut postgres = Postgres::start().await;
    let kennel = Kennel::start(Options {
        own_binary: true,
        ..Options::on(&postgres.url())
    })
    .await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let mut runs = Vec::new();
    let servers = Servers::start();
    let scenes = that_go_on(&go, &servers).into_iter();
    for scene in scenes.chain(that_are_stopped(&go, &servers)) {
        let run = must(scene.name, client.spawn(scene.spec.clone()).await).run_id;
        runs.push((run, scene));
    }
    let stop = kennel.scratch().join("stop");
    let counting = must("spawn", client.spawn(counts_until(&stop)).await).run_id;
    die_and_come_back(&kennel, &go, &servers).await;
    std::fs::write(&stop, "").expect("own directory");
    postgres.crash().await;
    tokio::time::sleep(LIMIT).await;
    postgres.run().await;
    kennel.install(&programs::kennel());
    let upgraded = run_to_end(kennel.cli(&["upgrade"]), PATIENCE).await;
    assert!(upgraded.status.success(), "{upgraded:?}\n{}", kennel.log());

    client = kennel.client().await;
    for (run, scene) in &runs {
        if let Some(is) = scene.ends {
            let ended = must(scene.name, client.ended(run).await);
            let reason = ended.end_reason.clone().and_then(|end| end.reason);
            assert!(reason.as_ref().is_some_and(is), "{}: {ended:?}", scene.name);
            assert!(ended.tree_is_empty(), "{}: {ended:?}", scene.name);
        } else if scene.events.iter().any(|(name, _)| *name == "ready") {
            let (seen, reached) = must(scene.name, client.wait(run, WaitCondition::Ready).await);
            assert!(reached, "{}: {seen:?}", scene.name);
        }
    }
    assert_each_line_once(&mut client, &counting).await;
    for (run, scene) in &runs {
        if scene.ends.is_none() {
            must(scene.name, client.abort(run).await);
        }
        let heard = heard(&mut client, run).await;
        let stations = heard.stations();
        for (event, count) in scene.events {
            let seen = stations.iter().filter(|name| *name == event).count();
            assert_eq!(seen, *count, "{}: {event} of {stations:?}", scene.name);
        }
    }
}
