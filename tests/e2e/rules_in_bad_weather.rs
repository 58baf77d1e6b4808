//! Every rule, probe and limit of a run, while servers are killed, while the database is gone, and while the server is
//! upgraded: each acts exactly once.

use crate::{
    exec_probe,
    inactivity::limited,
    liveness::{Server, ready_line, serve_health},
    notify, readiness,
    rules::{annotate, emit, heard, matches, regex, rule, with},
};
use kennel_proto::pb::{
    self, Activity, RunState, WaitCondition, end_reason::Reason, line_pattern::Pattern, liveness,
    output_rule::Action, readiness::Probe,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, client::duration, eventually,
    eventually_async, lent::Lent, must, programs, sh, shell::run_to_end,
};
use nix::{sys::stat::Mode, unistd::mkfifo};
use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tonic_health::{ServingStatus, server::HealthReporter};

/// SIGKILLs of the server, with the cause in the middle of them.
const DEATHS: usize = 4;
/// And of `make soak`.
const MANY_DEATHS: usize = 20;
/// Limits of silence: above what a busy machine takes.
const LIMIT: Duration = Duration::from_secs(5);
const RESULT_AFTER: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(200);
/// Runs that may wait for one cause.
const WAITING_MAX: usize = 64;
/// Limit of a liveness probe: a slow answer of a busy machine is no failure, which comes at once.
const PROBE_MAX: Duration = Duration::from_secs(20);
/// Services of the server of gRPC health.
const STARTS: &str = "starts";
const FAILS: &str = "fails";

/// A run, what it must show once its cause is there, and how often.
struct Scene {
    name: &'static str,
    spec: pb::RunSpec,
    /// Whether the run shows that it has acted.
    has_acted: fn(&pb::Run) -> bool,
    /// Name of a lifecycle event that it then has, once.
    event: &'static str,
    /// The end that it has by itself; absent: it continues.
    ends: Option<fn(&Reason) -> bool>,
}

/// The causes of one kind of weather: a pipe with a line for each run, a file, and the state of servers that are probed.
struct Cause {
    go: PathBuf,
    /// The named pipe, open at both ends.
    lines: File,
    /// Not ready before it.
    starts: Server,
    /// Fails after it.
    fails: Server,
    /// Has a service of each kind.
    grpc: (HealthReporter, u16, Lent),
}

impl Cause {
    async fn prepare(go: PathBuf) -> Self {
        let (reporter, port, lent) = serve_health().await;
        reporter
            .set_service_status(STARTS, ServingStatus::NotServing)
            .await;
        reporter
            .set_service_status(FAILS, ServingStatus::Serving)
            .await;
        let (starts, fails) = (Server::start(), Server::start());
        starts.says(503);
        let pipe = pipe_of(&go);
        mkfifo(&pipe, Mode::S_IRWXU).expect("own directory");
        let lines = File::options().read(true).write(true).open(&pipe);
        Self {
            go,
            lines: lines.expect("own pipe"),
            starts,
            fails,
            grpc: (reporter, port, lent),
        }
    }

    async fn come(&mut self) {
        std::fs::write(&self.go, "").expect("own directory");
        let lines = [b'\n'; WAITING_MAX];
        self.lines.write_all(&lines).expect("it fits into the pipe");
        self.starts.says(200);
        self.fails.says(503);
        let reporter = &self.grpc.0;
        reporter
            .set_service_status(STARTS, ServingStatus::Serving)
            .await;
        reporter
            .set_service_status(FAILS, ServingStatus::NotServing)
            .await;
    }

    fn grpc_probe(&self, service: &str) -> pb::GrpcProbe {
        pb::GrpcProbe {
            port: self.grpc.1.into(),
            service: service.to_owned(),
        }
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

/// Returns a run that is probed once it holds its socket.
fn live_by_state(mut spec: pb::RunSpec, probe: liveness::Probe) -> pb::RunSpec {
    let liveness = pb::Liveness {
        probe: Some(probe),
        interval: Some(duration(EVERY)),
        timeout: Some(duration(PROBE_MAX)),
        failure_threshold: Some(2),
    };
    spec.readiness = Some(ready_line("listens"));
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

fn pipe_of(go: &Path) -> PathBuf {
    go.with_extension("pipe")
}

/// Returns a script that does this once the cause is there, and continues.
fn then(go: &Path, what: &str) -> String {
    format!("read x <{}; {what}; {QUIET}", pipe_of(go).display())
}

/// Returns runs that become ready, and continue.
fn that_become_ready(cause: &Cause) -> Vec<Scene> {
    let file = cause.go.display();
    let then = |what: &str| then(&cause.go, what);
    let by = |script: &str, probe| readiness::with(sh(script), probe, None);
    let line = pb::LinePattern {
        pattern: Some(now()),
    };
    let port = readiness::free_port();
    let listen = format!(
        "exec python3 -c \"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(1000)\""
    );
    let tcp = Probe::Tcp(pb::TcpProbe { port: port.into() });
    let says_ready = Action::Ready(pb::output_rule::Ready {});
    let all = [
        ("line", by(&then("echo now"), Probe::Line(line))),
        ("ready rule", at_line(&then("echo now"), says_ready)),
        ("tcp", by(&then(&listen), tcp)),
        (
            "http",
            readiness::with(
                cause.starts.sh(QUIET),
                Probe::Http(cause.starts.probe()),
                None,
            ),
        ),
        (
            "grpc",
            readiness::with(
                cause.grpc.2.sh(QUIET),
                Probe::Grpc(cause.grpc_probe(STARTS)),
                None,
            ),
        ),
        (
            "exec",
            ready_by(QUIET, exec_probe::ready_by(&format!("test -e {file}"))),
        ),
        (
            "notify",
            ready_by(&then("systemd-notify --ready"), notify::by_notice(None)),
        ),
    ];
    let scenes = all.into_iter().map(|(name, spec)| Scene {
        name,
        spec,
        has_acted: |run| run.ready_time.is_some(),
        event: "ready",
        ends: None,
    });
    scenes.collect()
}

/// Returns runs that have another effect of a rule, and continue.
fn that_go_on(cause: &Cause) -> Vec<Scene> {
    let then = |what: &str| then(&cause.go, what);
    let goes_on = |name, spec, has_acted, event| Scene {
        name,
        spec,
        has_acted,
        event,
        ends: None,
    };
    let groups = with(
        sh(&then("echo now 7")),
        vec![rule("line", regex(r"^now (?P<n>\d)$"), annotate())],
    );
    vec![
        goes_on(
            "event",
            at_line(&then("echo now"), emit()),
            |_| true,
            "output_matched",
        ),
        goes_on(
            "annotate",
            groups,
            |run| run.annotations.contains_key("n"),
            "annotated",
        ),
        goes_on(
            "activity",
            at_line(&then("echo now"), Action::Activity(Activity::Idle.into())),
            |run| run.activity() == Activity::Idle,
            "activity_changed",
        ),
    ]
}

fn ending(name: &'static str, spec: pb::RunSpec, ends: fn(&Reason) -> bool) -> Scene {
    Scene {
        name,
        spec,
        has_acted: |run| run.state() != RunState::Running,
        event: "ended",
        ends: Some(ends),
    }
}

fn is_not_live(reason: &Reason) -> bool {
    matches!(reason, Reason::NotLive(_))
}

fn is_not_ready(reason: &Reason) -> bool {
    matches!(reason, Reason::NotReady(_))
}

/// Returns runs that are stopped by a rule, a probe or a limit.
fn that_are_stopped(cause: &Cause) -> Vec<Scene> {
    let file = cause.go.display();
    let silent = format!("until [ -e {file} ]; do echo; sleep 0.5; done; {QUIET}");
    let watchdog =
        format!("until [ -e {file} ]; do systemd-notify WATCHDOG=1; sleep 0.5; done; {QUIET}");
    let result = Action::Result(pb::output_rule::Result {
        after: Some(duration(RESULT_AFTER)),
        grace: None,
    });
    let exec = exec_probe::live_by(&format!("test ! -e {file}"), PROBE_MAX, 2);
    let listens = format!("echo listens; {QUIET}");
    let port = readiness::free_port();
    let closes = format!(
        "exec python3 -c \"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print('listens', flush=True); open('{}').readline(); s.close(); time.sleep(1000)\"",
        pipe_of(&cause.go).display()
    );
    let tcp = pb::TcpProbe { port: port.into() };
    vec![
        ending(
            "result",
            at_line(&then(&cause.go, "echo now"), result),
            |reason| matches!(reason, Reason::Result(_)),
        ),
        ending(
            "inactivity",
            limited(&silent, LIMIT),
            |reason| matches!(reason, Reason::DeadlineExceeded(exceeded) if exceeded.which() == pb::Deadline::Inactivity),
        ),
        ending(
            "live http",
            live_by_state(
                cause.fails.sh(&listens),
                liveness::Probe::Http(cause.fails.probe()),
            ),
            is_not_live,
        ),
        ending(
            "live tcp",
            live_by_state(sh(&closes), liveness::Probe::Tcp(tcp)),
            is_not_live,
        ),
        ending(
            "live grpc",
            live_by_state(
                cause.grpc.2.sh(&listens),
                liveness::Probe::Grpc(cause.grpc_probe(FAILS)),
            ),
            is_not_live,
        ),
        ending("live exec", live_by(QUIET, exec), is_not_live),
        ending(
            "watchdog",
            live_by(&watchdog, notify::watchdog(LIMIT)),
            |reason| matches!(reason, Reason::Watchdog(_)),
        ),
    ]
}

/// Returns runs that are stopped by a limit that began with them.
fn that_are_late() -> Vec<Scene> {
    let limit = Duration::from_secs(5);
    let line = pb::LinePattern {
        pattern: Some(now()),
    };
    let mut runs_long = sh(QUIET);
    runs_long.timeouts.get_or_insert_default().max_runtime = Some(duration(limit));
    vec![
        ending(
            "start timeout",
            readiness::with(sh(QUIET), Probe::Line(line), Some(limit)),
            is_not_ready,
        ),
        ending(
            "start timeout of notify",
            ready_by(QUIET, notify::by_notice(Some(limit))),
            is_not_ready,
        ),
        ending(
            "max runtime",
            runs_long,
            |reason| matches!(reason, Reason::DeadlineExceeded(exceeded) if exceeded.which() == pb::Deadline::MaxRuntime),
        ),
    ]
}

/// Returns a run that writes numbered lines to both streams until the file is there; a rule tests each.
fn counts_until(stop: &Path) -> pb::RunSpec {
    let script = format!(
        "i=0; until [ -e {} ]; do i=$((i+1)); echo mark $i; echo noise $i; echo err $i >&2; sleep 0.1; done",
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

/// Runs, each with its scene.
type Played = Vec<(String, Scene)>;

async fn spawn(client: &mut Client, scenes: Vec<Scene>) -> Played {
    let mut runs = Vec::new();
    for scene in scenes {
        let run = must(scene.name, client.spawn(scene.spec.clone()).await).run_id;
        runs.push((run, scene));
    }
    runs
}

/// Returns scenes of every kind, of all causes or of some.
fn all_of(cause: &Cause, is_wanted: impl Fn(&str) -> bool) -> Vec<Scene> {
    let scenes = that_become_ready(cause).into_iter();
    let scenes = scenes.chain(that_go_on(cause));
    let scenes = scenes.chain(that_are_stopped(cause));
    scenes.filter(|scene| is_wanted(scene.name)).collect()
}

/// Whether it is one of those that stand for the way in which they act: by a line, by a probe, by a notice, at a limit.
fn stands_for_others(name: &str) -> bool {
    ["line", "http", "notify", "annotate", "result", "live grpc"].contains(&name)
}

/// The cause comes while no server lives; servers die before, during and after its effect.
async fn die_and_come_back(kennel: &Kennel, cause: &mut Cause, deaths: usize) {
    for death in 0..deaths {
        eventually("a server", Duration::from_mins(1), || kennel.server()).await;
        tokio::time::sleep(Duration::from_millis(53 * (death as u64 % 6))).await;
        if kennel.server().is_some() {
            kennel.kill_server();
        }
        if death == deaths / 2 {
            cause.come().await;
        }
    }
}

/// Waits until each run shows that it has acted.
async fn act(client: &Client, runs: &Played) {
    for (run, scene) in runs {
        let acted = eventually_async(scene.name, Duration::from_mins(1), async || {
            let run = client.clone().get(run).await.ok()?;
            (scene.has_acted)(&run).then_some(())
        });
        acted.await;
    }
}

/// Asserts that each run has acted once, and ends those that continue.
async fn assert_acted_once(client: &mut Client, runs: &Played) {
    for (run, scene) in runs {
        if let Some(is) = scene.ends {
            let ended = must(scene.name, client.ended(run).await);
            let reason = ended.end_reason.clone().and_then(|end| end.reason);
            assert!(reason.as_ref().is_some_and(is), "{}: {ended:?}", scene.name);
            assert!(ended.tree_is_empty(), "{}: {ended:?}", scene.name);
        } else if scene.event == "ready" {
            let (seen, reached) = must(scene.name, client.wait(run, WaitCondition::Ready).await);
            assert!(reached, "{}: {seen:?}", scene.name);
        }
    }
    for (run, scene) in runs {
        if scene.ends.is_none() {
            must(scene.name, client.abort(run).await);
        }
        let heard = heard(client, run).await;
        let stations = heard.stations();
        let seen = stations.iter().filter(|name| **name == scene.event);
        assert_eq!(seen.count(), 1, "{}: {stations:?}", scene.name);
    }
}

// promise: RW-7, RW-10, RW-12
#[tokio::test(flavor = "multi_thread")]
async fn rules_probes_and_limits_act_once() {
    assert_all_act_once(DEATHS, stands_for_others).await;
}

// promise: RW-12
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make soak` runs it"]
async fn rules_act_once_over_twenty_deaths() {
    assert_all_act_once(MANY_DEATHS, |_| true).await;
}

/// Plays every scene over so many deaths, and those that are wanted without the database and at an upgrade.
async fn assert_all_act_once(deaths: usize, is_wanted: fn(&str) -> bool) {
    let mut postgres = Postgres::start().await;
    let kennel = Kennel::start(Options {
        own_binary: Some(programs::kennel()),
        ..Options::on(&postgres.url())
    })
    .await;
    let mut client = kennel.client().await;
    let cause = |name: &str| Cause::prepare(kennel.scratch().join(name));
    let (mut dead, mut gone, mut replaced) = (
        cause("deaths").await,
        cause("gone").await,
        cause("replaced").await,
    );
    let mut runs = spawn(&mut client, all_of(&gone, is_wanted)).await;
    let at_upgrade = spawn(&mut client, all_of(&replaced, is_wanted)).await;
    let stop = kennel.scratch().join("stop");
    let counting = must("spawn", client.spawn(counts_until(&stop)).await).run_id;
    let mut scenes = all_of(&dead, |_| true);
    scenes.extend(that_are_late());
    let at_deaths = spawn(&mut client, scenes).await;

    die_and_come_back(&kennel, &mut dead, deaths).await;
    client = kennel.client().await;
    act(&client, &at_deaths).await;
    postgres.crash().await;
    gone.come().await;
    act(&client, &runs).await;
    postgres.run().await;
    kennel.install(&programs::kennel());
    let (upgraded, ()) = tokio::join!(
        run_to_end(kennel.cli(&["upgrade"]), PATIENCE),
        replaced.come()
    );
    assert!(upgraded.status.success(), "{upgraded:?}\n{}", kennel.log());

    client = kennel.client().await;
    act(&client, &at_upgrade).await;
    // The server starts without a database that does not answer within two seconds.
    client.has_node_after(0).await;
    runs.extend(at_deaths);
    runs.extend(at_upgrade);
    assert_acted_once(&mut client, &runs).await;
    std::fs::write(&stop, "").expect("own directory");
    assert_each_line_once(&mut client, &counting).await;
}
