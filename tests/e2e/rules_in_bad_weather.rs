//! Every rule, probe and limit of a run, while servers are killed, one is upgraded, and the database dies and comes back:
//! each acts exactly once.

use crate::rules::{annotate, emit, heard, matches, regex, rule, with};
use kennel_proto::pb::{
    self, Activity, WaitCondition, end_reason::Reason, line_pattern::Pattern, liveness,
    output_rule::Action, readiness::Probe,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, client::duration, eventually, must,
    programs, sh, shell::run_to_end,
};
use std::{io::Write as _, net::TcpListener, path::Path, time::Duration};

/// SIGKILLs of the server, of which the cause comes in the middle.
const DEATHS: usize = 20;
const LIMIT: Duration = Duration::from_secs(2);
const RESULT_AFTER: Duration = Duration::from_secs(1);

/// A run, what it must show once the file is there, and how often.
struct Scene {
    name: &'static str,
    spec: pb::RunSpec,
    /// Lifecycle events by name, with their count.
    events: &'static [(&'static str, usize)],
    /// The end that it has by itself; absent: it goes on.
    ends: Option<fn(&Reason) -> bool>,
}

fn literal(text: &str) -> pb::LinePattern {
    pb::LinePattern {
        pattern: Some(Pattern::Literal(text.to_owned())),
    }
}

fn ready_by(script: &str, probe: Probe) -> pb::RunSpec {
    let mut spec = sh(script);
    spec.readiness = Some(Box::new(pb::Readiness {
        probe: Some(probe),
        interval: Some(duration(Duration::from_millis(50))),
        ..pb::Readiness::default()
    }));
    spec
}

fn live_by(script: &str, probe: liveness::Probe) -> pb::RunSpec {
    let mut spec = sh(script);
    spec.liveness = Some(pb::Liveness {
        probe: Some(probe),
        interval: Some(duration(Duration::from_millis(50))),
        failure_threshold: Some(2),
        ..pb::Liveness::default()
    });
    spec
}

fn at_line(script: &str, action: Action) -> pb::RunSpec {
    let mut spec = sh(script);
    spec.output_rules = vec![pb::OutputRule {
        name: "line".into(),
        pattern: Some(literal("now")),
        action: Some(action),
        ..pb::OutputRule::default()
    }];
    spec
}

fn exec(script: &str) -> pb::ExecProbe {
    pb::ExecProbe {
        args: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
    }
}

/// A server of HTTP whose answer is 503 until the file is there, and 200 from then on; or the other way round.
fn http_server(go: &Path, before: u16, after: u16) -> pb::HttpProbe {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let go = go.to_owned();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let status = if go.exists() { after } else { before };
            let _ = std::io::Read::read(&mut stream, &mut [0; 1024]);
            let _ = write!(stream, "HTTP/1.1 {status} Status\r\n\r\n");
        }
    });
    pb::HttpProbe {
        port: u32::from(port),
        path: "/".into(),
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

const QUIET: &str = "exec sleep 1000";

/// Does this once the file is there, and goes on.
fn then(go: &Path, what: &str) -> String {
    let go = go.display();
    format!("until [ -e {go} ]; do sleep 0.05; done; {what}; {QUIET}")
}

/// Runs that become ready, or do what a rule reports, and go on.
fn that_go_on(go: &Path) -> Vec<Scene> {
    let file = go.display();
    let then = |what: &str| then(go, what);
    let port = free_port();
    let listen = format!(
        "exec python3 -c \"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(1000)\""
    );
    let goes_on = |name, spec, events| Scene {
        name,
        spec,
        events,
        ends: None,
    };
    let ready: &[(&str, usize)] = &[("ready", 1)];
    vec![
        goes_on(
            "line",
            ready_by(&then("echo now"), Probe::Line(literal("now"))),
            ready,
        ),
        goes_on(
            "tcp",
            ready_by(
                &then(&listen),
                Probe::Tcp(pb::TcpProbe { port: port.into() }),
            ),
            ready,
        ),
        goes_on(
            "http",
            ready_by(QUIET, Probe::Http(http_server(go, 503, 200))),
            ready,
        ),
        goes_on(
            "exec",
            ready_by(QUIET, Probe::Exec(exec(&format!("test -e {file}")))),
            ready,
        ),
        goes_on(
            "notify",
            ready_by(
                &then("systemd-notify --ready"),
                Probe::Notify(pb::NotifyProbe {}),
            ),
            ready,
        ),
        goes_on(
            "event",
            at_line(&then("echo now"), Action::Event(pb::output_rule::Emit {})),
            &[("output_matched", 1)],
        ),
        goes_on(
            "activity",
            at_line(&then("echo now"), Action::Activity(Activity::Idle.into())),
            &[("activity_changed", 1)],
        ),
        goes_on(
            "ready rule",
            at_line(&then("echo now"), Action::Ready(pb::output_rule::Ready {})),
            ready,
        ),
    ]
}

/// Runs that are stopped by a rule, a probe or a limit.
fn that_are_stopped(go: &Path) -> Vec<Scene> {
    let file = go.display();
    let mut silent = sh(&format!(
        "until [ -e {file} ]; do echo; sleep 0.1; done; {QUIET}"
    ));
    silent.timeouts.get_or_insert_default().inactivity = LIMIT.try_into().ok();
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
            silent,
            |reason| matches!(reason, Reason::DeadlineExceeded(exceeded) if exceeded.which() == pb::Deadline::Inactivity),
        ),
        ends(
            "live http",
            live_by(QUIET, liveness::Probe::Http(http_server(go, 200, 503))),
            |reason| matches!(reason, Reason::NotLive(_)),
        ),
        ends(
            "live exec",
            live_by(
                QUIET,
                liveness::Probe::Exec(exec(&format!("test ! -e {file}"))),
            ),
            |reason| matches!(reason, Reason::NotLive(_)),
        ),
        ends(
            "watchdog",
            {
                let mut spec = sh(&watchdog);
                spec.liveness = Some(pb::Liveness {
                    probe: Some(liveness::Probe::Watchdog(duration(LIMIT))),
                    ..pb::Liveness::default()
                });
                spec
            },
            |reason| matches!(reason, Reason::NotLive(_)),
        ),
    ]
}

/// Writes numbered lines to both streams until the file is there; a rule looks at each.
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

/// Each line that matches was reported once, in order.
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

/// The cause comes while no server lives; servers die before, while and after it is acted upon.
async fn die_and_come_back(kennel: &Kennel, go: &Path) {
    for death in 0..DEATHS {
        eventually("a server", Duration::from_mins(1), || kennel.server()).await;
        tokio::time::sleep(Duration::from_millis(53 * (death as u64 % 6))).await;
        if kennel.server().is_some() {
            kennel.kill_server();
        }
        if death == DEATHS / 2 {
            std::fs::write(go, "").expect("own directory");
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
    for scene in that_go_on(&go).into_iter().chain(that_are_stopped(&go)) {
        let run = must(scene.name, client.spawn(scene.spec.clone()).await).run_id;
        runs.push((run, scene));
    }
    let stop = kennel.scratch().join("stop");
    let counting = must("spawn", client.spawn(counts_until(&stop)).await).run_id;
    die_and_come_back(&kennel, &go).await;
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
