//! `kennel why`: each possible end is named correctly in the first line, and on its span and in its metric.

use kennel_proto::pb;
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, SpecExt, argv,
    client::duration,
    collector::{Collector, Manner, SpanRow},
    eventually,
    kennel::{kill_exactly, reap_orphans},
    must, new_run_id,
    procfs::Proc,
    programs, sh,
};
use nix::sys::signal::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::{Deref, DerefMut},
    os::unix::fs::PermissionsExt,
    time::Duration,
};

/// Reasons without a scene here, and why. Their spans are tested by `telemetry/run_spans/tests.rs`.
const NOT_HERE: [(&str, &str); 4] = [
    (
        "node_forgotten",
        "written at another node, which has no span of the run; its line is held by e2e/forgotten.rs",
    ),
    (
        "oom_killed",
        "needs the memory controller of cgroup v2; its line is held by cli/why/answer/tests.rs",
    ),
    (
        "memory_reserve",
        "needs a memory limit of cgroup v2 above Kennel: vm/memory.rs; its line is held by cli/why/answer/tests.rs",
    ),
    (
        "restarted",
        "of a run only where nothing could prove that its tree is gone; of an attempt it is in the story below",
    ),
];

/// A server with a collector for everything.
struct Stage {
    kennel: Kennel,
    collector: Collector,
}

impl Deref for Stage {
    type Target = Kennel;

    fn deref(&self) -> &Kennel {
        &self.kennel
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Kennel {
        &mut self.kennel
    }
}

async fn stage(words: &[&'static str]) -> Stage {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(Options {
        env: collector.env(),
        words: words.to_vec(),
        ..Options::default()
    })
    .await;
    Stage { kennel, collector }
}

/// A run that has ended, the expected first line, and its expected span.
struct Scene {
    run: String,
    reason: &'static str,
    says: &'static str,
    marks: Marks,
}

/// Attributes of an end: outcome, class of the error, verdict on the tree, and the exit.
#[derive(Clone, Copy)]
struct Marks {
    outcome: &'static str,
    error: Option<&'static str>,
    verdict: &'static str,
    exit: Option<(&'static str, &'static str)>,
}

const CODE: &str = "process.exit.code";
const SIGNAL: &str = "kennel.exit.signal";

impl Scene {
    /// Returns the attributes of the series in which it is counted.
    fn counted(&self) -> BTreeMap<String, String> {
        let Marks {
            outcome,
            error,
            verdict,
            ..
        } = self.marks;
        let fixed = [
            ("kennel.run.end_reason", self.reason),
            ("kennel.run.outcome", outcome),
            ("kennel.tree.verdict", verdict),
        ];
        let error = error.map(|error| ("error.type", error));
        owned(fixed.into_iter().chain(error))
    }

    /// Checks that the run's span agrees with the row, once, and has nothing else.
    async fn check_span(&self, collector: &Collector) {
        let spans = || -> Vec<SpanRow> {
            let spans = collector.spans().into_iter().map(SpanRow::from);
            let whole = spans.filter(|span| {
                span.name == "run" && span.attribute("kennel.run.id") == Some(&self.run)
            });
            whole.collect()
        };
        let what = format!("{} is reported", self.says);
        eventually(&what, PATIENCE, || (!spans().is_empty()).then_some(())).await;
        let found = spans();
        let [span] = &found[..] else {
            panic!("{}: reported more than once: {found:#?}", self.says);
        };
        let mut expected = self.counted();
        let exit = self.marks.exit;
        expected.extend(exit.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let mut marks = span.attributes.clone();
        let all = [
            "kennel.run.end_reason",
            "kennel.run.outcome",
            "kennel.tree.verdict",
            "error.type",
            CODE,
            SIGNAL,
        ];
        marks.retain(|name, _| all.contains(&name.as_str()));
        assert_eq!(marks, expected, "{}: {span:#?}", self.says);
        let wrong = self.marks.error.map(|_| self.reason);
        assert_eq!(span.error.as_deref(), wrong, "{}", self.says);
    }
}

/// Checks the first lines of all runs of a server, their spans, and that each is counted once. Returns their reasons.
async fn check(stage: &Stage, scenes: &[Scene]) -> BTreeSet<&'static str> {
    let mut expected: BTreeMap<BTreeMap<String, String>, u64> = BTreeMap::new();
    for scene in scenes {
        let Scene {
            run, reason, says, ..
        } = scene;
        let ended = must("get", stage.client().await.get(run).await);
        assert_eq!(ended.reason(), *reason, "{says}: {ended:?}");
        let answer = answer(stage, run, &[]);
        let first = answer.lines().next().unwrap_or_default();
        assert!(first.starts_with(says), "{reason}: {answer}");
        let json: serde_json::Value =
            serde_json::from_str(&why_json(stage, run)).expect("it is JSON");
        assert_eq!(json["answer"], first);
        scene.check_span(&stage.collector).await;
        *expected.entry(scene.counted()).or_default() += 1;
    }
    let counted = || {
        let mut series: BTreeMap<BTreeMap<String, String>, u64> = BTreeMap::new();
        for (mut attributes, count) in stage.collector.series("kennel.run.ended") {
            attributes.remove("kennel.containment");
            *series.entry(attributes).or_default() += count;
        }
        series
    };
    let total: u64 = expected.values().sum();
    eventually("all are counted", PATIENCE, || {
        (counted().values().sum::<u64>() >= total).then_some(())
    })
    .await;
    assert_eq!(counted(), expected);
    scenes.iter().map(|scene| scene.reason).collect()
}

fn owned<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.collect()
}

// promise: AU-5, M-13, R-11, RW-8, RW-80
#[tokio::test(flavor = "multi_thread")]
async fn why_explains_each_end_reason() {
    let stage = stage(&[]).await;
    let mut scenes = Vec::new();
    for (script, says, marks) in [
        (
            "exit 0",
            "Ended by itself: its command exited with code 0 at 2",
            marks("succeeded", None, "empty").exit(CODE, "0"),
        ),
        (
            "exit 3",
            "Ended by itself: its command exited with code 3 at 2",
            marks("failed", Some("exit_nonzero"), "empty").exit(CODE, "3"),
        ),
        (
            "kill -SEGV $$",
            "Ended by SIGSEGV at 2",
            marks("failed", Some("signal"), "empty").exit(SIGNAL, "SIGSEGV"),
        ),
    ] {
        let run = end(&stage, sh(script)).await;
        scenes.push(scene(run, "exited", says, marks));
    }
    scenes.extend([
        Box::pin(killed_from_outside(&stage)).await,
        Box::pin(signalled_by_a_client(&stage)).await,
        Box::pin(aborted(&stage)).await,
        Box::pin(not_executable(&stage)).await,
        Box::pin(fenced(&stage)).await,
        Box::pin(shim_was_lost(&stage)).await,
        Box::pin(ran_too_long(&stage)).await,
        Box::pin(paused_too_long(&stage)).await,
        Box::pin(wrote_too_much(&stage)).await,
        Box::pin(crashed_too_often(&stage)).await,
        Box::pin(never_ready(&stage)).await,
        Box::pin(hung_after_its_result(&stage)).await,
        Box::pin(was_not_live(&stage)).await,
        Box::pin(gave_no_sign(&stage)).await,
        Box::pin(exited_with_a_code_of_success(&stage)).await,
    ]);
    scenes.extend(Box::pin(lost_its_parent(&stage)).await);
    let mut seen = check(&stage, &scenes).await;
    drop(stage);
    for (stage, scene) in [
        Box::pin(shut_down()).await,
        Box::pin(service_died()).await,
        Box::pin(host_started_anew()).await,
        Box::pin(no_server_came_back()).await,
    ] {
        seen.extend(check(&stage, &[scene]).await);
    }
    let not_here: BTreeSet<&str> = NOT_HERE.iter().map(|(reason, _)| *reason).collect();
    let accounted: BTreeSet<&str> = seen.union(&not_here).copied().collect();
    let all = reasons();
    let all: BTreeSet<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(
        accounted, all,
        "each reason has a scene, or it is said why not"
    );
    assert!(seen.is_disjoint(&not_here));
}

/// The fields of the oneof of `EndReason`, as the contract has them.
fn reasons() -> Vec<String> {
    let path = programs::repository().join("proto/kennel/v1/run.proto");
    let text = fs::read_to_string(path).expect("the contract");
    let (_, message) = text.split_once("message EndReason {").expect("it is there");
    let (_, oneof) = message.split_once("oneof reason {").expect("it is there");
    let (fields, _) = oneof.split_once("  }").expect("it ends");
    let fields = fields.lines().map(str::trim);
    let fields = fields.filter(|line| line.contains('=') && !line.starts_with("//"));
    let names = fields.filter_map(|line| line.split_whitespace().nth(1));
    names.map(str::to_owned).collect()
}

// promise: AU-6
#[tokio::test(flavor = "multi_thread")]
async fn why_timeline_is_ordered_with_callers_and_signals() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = r"trap '' TERM; printf 'last \033[31mwords\033]0;title\007\n'; echo up; while :; do sleep 0.02; done";
    let spec = sh(script).grace(Duration::from_millis(200));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    must("pause", client.pause(&run.run_id).await);
    must("resume", client.resume(&run.run_id).await);
    must("abort", client.abort(&run.run_id).await);
    let answer = answer(&kennel, &run.run_id, &[]);
    let mut rest = answer.as_str();
    for part in [
        "Ended because uid:",
        "after SIGTERM, SIGKILL its command was ended by SIGKILL",
        "grace       200ms between",
        " requested /bin/sh -c ",
        " recorded: pid ",
        "Pause by uid:",
        " paused",
        "Resume by uid:",
        " resumed",
        "Abort by uid:",
        " stopping: abort by uid:",
        "SIGTERM by keeper",
        " all was known and written: CANCELLED, aborted by uid:",
        "last lines of its output:",
        "  | last words",
    ] {
        let (_, after) = rest
            .split_once(part)
            .unwrap_or_else(|| panic!("{part:?} is not there, or not in its place: {answer}"));
        rest = after;
    }
    // Timestamps of keeper and shim allow either order.
    for part in ["SIGKILL by keeper (", " leader exited: signal SIGKILL (9)"] {
        assert!(answer.contains(part), "{answer}");
    }
    assert!(
        !answer.contains('\x1b') && !answer.contains('\x07'),
        "{answer:?}"
    );

    let spec = sh("exec sleep 1000").restart(pb::RestartPolicy {
        mode: pb::RestartMode::Always.into(),
        ..pb::RestartPolicy::default()
    });
    let run = must("spawn", client.spawn(spec).await);
    must("restart", client.restart(&run.run_id, Some(1)).await);
    let first_line = self::answer(&kennel, &run.run_id, &[]);
    assert!(first_line.starts_with("Not ended: "), "{first_line}");
    assert!(
        first_line.contains("attempt 1 was over: to be started again, asked by uid:"),
        "{first_line}"
    );
    must("abort", client.abort(&run.run_id).await);
}

async fn killed_from_outside(kennel: &Kennel) -> Scene {
    let run = up(kennel, sh("echo up; exec sleep 1000")).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    kill_exactly(&leader, Signal::SIGKILL);
    ended(kennel, &run.run_id).await;
    let says = "Ended by SIGKILL from outside at 2";
    let marks = marks("failed", Some("signal"), "empty").exit(SIGNAL, "SIGKILL");
    scene(run.run_id, "exited", says, marks)
}

async fn signalled_by_a_client(kennel: &Kennel) -> Scene {
    let run = up(kennel, sh("echo up; exec sleep 1000")).await;
    let sent = kennel.cli(&["signal", "USR1", &run.run_id]).output();
    let sent = sent.expect("it runs");
    assert!(sent.status.success(), "{sent:?}");
    ended(kennel, &run.run_id).await;
    let says = "Ended by SIGUSR1, which uid:";
    let marks = marks("failed", Some("signal"), "empty").exit(SIGNAL, "SIGUSR1");
    scene(run.run_id, "exited", says, marks)
}

async fn aborted(kennel: &Kennel) -> Scene {
    let run = up(kennel, sh("echo up; exec sleep 1000")).await;
    must("abort", kennel.client().await.abort(&run.run_id).await);
    let marks = marks("cancelled", None, "empty").exit(SIGNAL, "SIGTERM");
    scene(run.run_id, "aborted", "Ended because uid:", marks)
}

async fn not_executable(kennel: &Kennel) -> Scene {
    let noise = kennel.scratch().join("noise");
    fs::write(&noise, [0_u8; 64]).expect("written");
    fs::set_permissions(&noise, fs::Permissions::from_mode(0o755)).expect("changed");
    let run = new_run_id();
    let spec = argv(&[noise.to_str().expect("UTF-8")]);
    let refused = kennel.client().await.spawn_as(&run, spec).await;
    refused.expect_err("it cannot be executed");
    let says = "Never started: start failed at exec";
    let marks = marks("failed", Some("spawn_failed"), "never_ran");
    scene(run, "start_failed", says, marks)
}

async fn fenced(kennel: &Kennel) -> Scene {
    let run = new_run_id();
    must("abort", kennel.client().await.abort(&run).await);
    let marks = marks("cancelled", None, "never_ran");
    scene(run, "fenced", "Never started: uid:", marks)
}

async fn shut_down() -> (Stage, Scene) {
    let mut kennel = stage(&[]).await;
    let run = up(&kennel, sh("echo up; exec sleep 1000")).await;
    kennel.terminate(PATIENCE).await;
    kennel.restart().await;
    let says = "Ended because the service was shut down: after SIG";
    let marks = marks("cancelled", None, "empty").exit(SIGNAL, "SIGINT");
    (kennel, scene(run.run_id, "server_shutdown", says, marks))
}

async fn service_died() -> (Stage, Scene) {
    let mut kennel = stage(&[]).await;
    let run = up(&kennel, sh("echo up; exec sleep 1000")).await;
    kennel.kill_service_after(|| {});
    kennel.wait_until_all_is_gone(PATIENCE).await;
    kennel.restart().await;
    ended(&kennel, &run.run_id).await;
    let says = "Ended while its service was dead: its shim ended it by its own plan";
    let marks = marks("lost", Some("lost"), "empty").exit(SIGNAL, "SIGTERM");
    (kennel, scene(run.run_id, "service_lost", says, marks))
}

async fn host_started_anew() -> (Stage, Scene) {
    let mut kennel = stage(&[]).await;
    let run = up(&kennel, sh("echo up; exec sleep 1000")).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for shim in shims {
            kill_exactly(&shim, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    kennel.seem_rebooted();
    kennel.restart().await;
    ended(&kennel, &run.run_id).await;
    kill_exactly(&leader, Signal::SIGKILL);
    eventually("it is reaped", PATIENCE, || {
        reap_orphans();
        (!leader.is_alive()).then_some(())
    })
    .await;
    let says = "Ended with its host, which was started anew";
    let marks = marks("lost", Some("unverified"), "unverified");
    (kennel, scene(run.run_id, "rebooted", says, marks))
}

async fn no_server_came_back() -> (Stage, Scene) {
    let kennel = stage(&["--orphan-ttl", "100ms"]).await;
    let script = "trap 'echo asked; exit 9' TERM; echo up; while :; do sleep 0.02; done";
    let run = up(&kennel, sh(script)).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let lock = kennel.data_dir().join("server.lock");
    fs::remove_file(&lock).expect("it is there");
    fs::create_dir(&lock).expect("no server can lock a directory");
    kennel.kill_server();
    eventually("the run is ended", PATIENCE, || {
        (!leader.is_alive()).then_some(())
    })
    .await;
    fs::remove_dir(&lock).expect("own directory");
    ended(&kennel, &run.run_id).await;
    let mut client = kennel.client().await;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "up\nasked\n");
    let says = "Ended by Kennel, which could not continue it";
    let marks = marks("lost", Some("lost"), "empty").exit(CODE, "9");
    (kennel, scene(run.run_id, "orphan_terminated", says, marks))
}

async fn shim_was_lost(kennel: &Kennel) -> Scene {
    let run = up(kennel, sh("echo up; exec sleep 1000")).await;
    let shim = Proc::read(run.attempt().shim_pid).expect("it lives");
    kill_exactly(&shim, Signal::SIGKILL);
    ended(kennel, &run.run_id).await;
    let says = "Ended by Kennel, which had lost the run's shim, its own process beside the command; after SIGTERM its command was ended by SIGTERM";
    let (error, verdict) = if kennel.cgroup_bases().is_empty() {
        ("unverified", "unverified")
    } else {
        ("shim_lost", "empty")
    };
    let marks = marks("failed", Some(error), verdict).exit(SIGNAL, "SIGTERM");
    scene(run.run_id, "shim_lost", says, marks)
}

async fn ran_too_long(kennel: &Kennel) -> Scene {
    let spec = sh("exec sleep 1000").max_runtime(Duration::from_millis(100));
    let run = end(kennel, spec).await;
    let says = "Ended by its limit of time: it had run for longer than max_runtime allows (100ms); after SIGTERM";
    let marks = marks("failed", Some("timeout"), "empty").exit(SIGNAL, "SIGTERM");
    scene(run, "deadline_exceeded", says, marks)
}

fn line(text: &str) -> pb::LinePattern {
    pb::LinePattern {
        pattern: Some(pb::line_pattern::Pattern::Literal(text.to_owned())),
    }
}

async fn never_ready(kennel: &Kennel) -> Scene {
    let mut spec = sh("exec sleep 1000");
    spec.readiness = Some(Box::new(pb::Readiness {
        probe: Some(pb::readiness::Probe::Line(line("ready"))),
        start_timeout: Some(duration(Duration::from_millis(100))),
        ..pb::Readiness::default()
    }));
    let run = end(kennel, spec).await;
    let says = "Ended because it was not ready within its start timeout (100ms); after SIGTERM";
    let marks = marks("failed", Some("not_ready"), "empty").exit(SIGNAL, "SIGTERM");
    scene(run, "not_ready", says, marks)
}

async fn exited_with_a_code_of_success(kennel: &Kennel) -> Scene {
    let mut spec = sh("exit 143");
    spec.success_exit_codes = vec![143];
    let run = end(kennel, spec).await;
    let says = "Ended by itself: its command exited with code 143";
    let marks = marks("succeeded", None, "empty").exit(CODE, "143");
    scene(run, "success_exit", says, marks)
}

/// The parent is aborted, as another run was.
async fn lost_its_parent(kennel: &Kennel) -> [Scene; 2] {
    let mut client = kennel.client().await;
    let mut spec = sh("exec sleep 1000");
    let parent = must("spawn", client.spawn(sh("exec sleep 1000")).await).run_id;
    spec.parent = Some(pb::Parent {
        run_id: parent.clone(),
        ..pb::Parent::default()
    });
    let run = must("spawn", client.spawn(spec).await).run_id;
    must("abort", client.abort(&parent).await);
    must("ended", client.ended(&run).await);
    let marks = marks("cancelled", None, "empty").exit(SIGNAL, "SIGTERM");
    let says = "Ended because its parent, run 0";
    [
        scene(parent, "aborted", "Ended because uid:", marks),
        scene(run, "parent_ended", says, marks),
    ]
}

async fn was_not_live(kennel: &Kennel) -> Scene {
    let mut spec = sh("exec sleep 1000");
    // No process serves this port.
    let tcp = pb::TcpProbe { port: 1 };
    spec.liveness = Some(pb::Liveness {
        probe: Some(pb::liveness::Probe::Tcp(tcp)),
        interval: Some(duration(Duration::from_millis(20))),
        failure_threshold: Some(2),
        ..pb::Liveness::default()
    });
    let run = end(kennel, spec).await;
    let says = "Ended because it was not live: 2 probes failed in a row, the last with: Connection refused";
    let marks = marks("failed", Some("not_live"), "empty").exit(SIGNAL, "SIGTERM");
    scene(run, "not_live", says, marks)
}

async fn gave_no_sign(kennel: &Kennel) -> Scene {
    let mut spec = sh("exec sleep 1000");
    spec.liveness = Some(crate::notify::watchdog(Duration::from_millis(300)));
    let run = end(kennel, spec).await;
    let says = "Ended by its watchdog: its command gave no sign for 300ms; after SIGTERM its command was ended by SIGTERM";
    let marks = marks("failed", Some("watchdog"), "empty").exit(SIGNAL, "SIGTERM");
    scene(run, "watchdog", says, marks)
}

async fn hung_after_its_result(kennel: &Kennel) -> Scene {
    let mut spec = sh("echo result; exec sleep 1000");
    let after = Some(duration(Duration::from_millis(100)));
    spec.output_rules = vec![pb::OutputRule {
        name: "done".to_owned(),
        pattern: Some(line("result")),
        action: Some(pb::output_rule::Action::Result(pb::output_rule::Result {
            after,
            ..pb::output_rule::Result::default()
        })),
        ..pb::OutputRule::default()
    }];
    let run = end(kennel, spec).await;
    let says = "Ended after its result: the output rule done had seen it, and the run did not end by itself; after SIGTERM";
    let marks = marks("succeeded", None, "empty").exit(SIGNAL, "SIGTERM");
    scene(run, "result", says, marks)
}

async fn paused_too_long(kennel: &Kennel) -> Scene {
    let spec = sh("echo up; exec sleep 1000");
    let spec = spec.max_pause(Duration::from_millis(50), pb::OnMaxPause::Abort);
    let run = up(kennel, spec).await;
    must("pause", kennel.client().await.pause(&run.run_id).await);
    ended(kennel, &run.run_id).await;
    let says =
        "Ended by its limit of time: it had been paused for longer than max_pause allows (50ms)";
    let marks = marks("failed", Some("timeout"), "empty").exit(SIGNAL, "SIGTERM");
    scene(run.run_id, "deadline_exceeded", says, marks)
}

async fn wrote_too_much(kennel: &Kennel) -> Scene {
    let spec = sh("while :; do echo 0123456789012345678901234567890123456789; done");
    let spec = spec.kept_output(1024 * 1024, pb::OutputOverflow::Abort);
    let run = end(kennel, spec).await;
    let says =
        "Ended by its limit of output: it had written more than is kept of it (1048576 bytes)";
    let marks = marks("failed", Some("limit"), "empty").exit(SIGNAL, "SIGTERM");
    scene(run, "limit_exceeded", says, marks)
}

async fn crashed_too_often(kennel: &Kennel) -> Scene {
    let spec = sh("exit 3").restart(pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        delay: Duration::from_millis(10).try_into().ok(),
        max_restarts: Some(1),
        ..pb::RestartPolicy::default()
    });
    let run = end(kennel, spec).await;
    let says = "Ended because it had been started again as often as it may: after 1 restart in a row the last attempt exited with code 3";
    let marks = marks("failed", Some("restarts_exhausted"), "empty").exit(CODE, "3");
    scene(run, "restarts_exhausted", says, marks)
}

fn scene(run: String, reason: &'static str, says: &'static str, marks: Marks) -> Scene {
    Scene {
        run,
        reason,
        says,
        marks,
    }
}

fn marks(outcome: &'static str, error: Option<&'static str>, verdict: &'static str) -> Marks {
    Marks {
        outcome,
        error,
        verdict,
        exit: None,
    }
}

impl Marks {
    fn exit(self, name: &'static str, value: &'static str) -> Self {
        Self {
            exit: Some((name, value)),
            ..self
        }
    }
}

async fn up(kennel: &Kennel, spec: pb::RunSpec) -> pb::Run {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    run
}

async fn end(kennel: &Kennel, spec: pb::RunSpec) -> String {
    let run = must("spawn", kennel.client().await.spawn(spec).await);
    ended(kennel, &run.run_id).await;
    run.run_id
}

async fn ended(kennel: &Kennel, run: &str) {
    must("wait", kennel.client().await.ended(run).await);
}

fn why_json(kennel: &Kennel, run: &str) -> String {
    answer(kennel, run, &["-o", "json"])
}

fn answer(kennel: &Kennel, run: &str, more: &[&str]) -> String {
    let words: Vec<&str> = ["why", run].iter().chain(more).copied().collect();
    let output = kennel.cli(&words).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("it is text")
}
