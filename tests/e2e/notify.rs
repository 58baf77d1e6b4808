//! Notices of a run's command by `sd_notify(3)`: received by the keeper, with any server.

use crate::{
    play_apart, play_at_once,
    run_as::{self, with_user},
    with_and_without_cgroup,
};
use kennel_proto::pb::{self, Activity, RunState, WaitCondition, liveness, readiness};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, argv,
    client::{complaint, duration},
    eventually, eventually_async, must, sh,
    shell::run_to_end,
};
use std::{
    fs,
    os::unix::{fs::MetadataExt, net::UnixDatagram},
    path::{Path, PathBuf},
    time::Duration,
};

with_and_without_cgroup!(notice_of_another_process_is_refused);

/// A service that sends each line of its input as a notice, `;` for a line end, and answers with it.
const SERVICE: &str = r#"
import os, socket, sys
assert "WATCHDOG_PID" not in os.environ
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ["NOTIFY_SOCKET"])
print("up", os.environ.get("WATCHDOG_USEC", "-"), flush=True)
for line in sys.stdin:
    manager.send(line.strip().replace(";", "\n").encode())
    print("sent", line, end="", flush=True)
"#;

pub(crate) fn service() -> pb::RunSpec {
    let mut spec = argv(&["/usr/bin/env", "python3", "-c", SERVICE]).open_input();
    spec.readiness = Some(by_notice(None));
    spec
}

pub(crate) fn by_notice(start_timeout: Option<Duration>) -> Box<pb::Readiness> {
    Box::new(pb::Readiness {
        probe: Some(readiness::Probe::Notify(pb::NotifyProbe {})),
        start_timeout: start_timeout.map(duration),
        ..pb::Readiness::default()
    })
}

pub(crate) fn watchdog(time: Duration) -> pb::Liveness {
    pb::Liveness {
        probe: Some(liveness::Probe::Watchdog(duration(time))),
        ..pb::Liveness::default()
    }
}

/// A service that runs.
pub(crate) struct Service {
    pub(crate) run: String,
    said: u32,
}

impl Service {
    pub(crate) async fn start(client: &mut Client, spec: pb::RunSpec) -> Self {
        let run = must("spawn", client.spawn(spec).await).run_id;
        client.hear_text(&run, "up").await;
        Self { run, said: 0 }
    }

    /// Lets it send this, and waits until it has.
    pub(crate) async fn says(&mut self, client: &mut Client, notice: &str) {
        let line = self.write_notice(client, notice).await;
        client.hear_text(&self.run, &format!("sent {line}")).await;
    }

    /// Lets it send this, which may end it before it answers. Returns its line of input.
    async fn write_notice(&mut self, client: &mut Client, notice: &str) -> String {
        self.said += 1;
        let line = format!("{notice};X={}\n", self.said);
        let id = self.said.to_string();
        must(
            "write",
            client.write(&self.run, &id, None, line.as_bytes()).await,
        );
        line
    }

    /// Waits until the run shows this.
    pub(crate) async fn shows(
        &self,
        client: &Client,
        what: &str,
        is: impl Fn(&pb::Run) -> bool,
    ) -> pb::Run {
        eventually_async(what, PATIENCE, async || {
            let run = client.clone().get(&self.run).await.ok()?;
            is(&run).then_some(run)
        })
        .await
    }
}

async fn stations(client: &mut Client, run: &str, wanted: &str) -> usize {
    let heard = must("hear", client.hear_all(run, 0).await);
    heard
        .stations()
        .iter()
        .filter(|name| **name == wanted)
        .count()
}

async fn notices_of_a_command_are_heard() {
    let kennel = Kennel::on_sqlite().await;
    play_at_once! {
        &kennel;
        command_says_that_it_is_ready,
        command_reports_its_own_failure,
        missed_watchdog_is_restarted_by_policy,
        start_timeout_is_extended_by_the_command,
        systemd_notify_of_a_script_is_heard,
        ended_senders_are_known_by_their_group,
        faults_of_notices_are_named,
    };
}

// promise: RW-70
async fn command_says_that_it_is_ready(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut service = Service::start(&mut client, service()).await;
    service.says(&mut client, "STATUS=warming up").await;
    let seen = service
        .shows(&client, "a status", |run| run.status == "warming up")
        .await;
    assert!(seen.ready_time.is_none());
    service
        .says(
            &mut client,
            "READY=1;STATUS=serving 3;X_KENNEL_ACTIVITY=idle",
        )
        .await;
    let (run, reached) = must(
        "wait",
        client.wait(&service.run, WaitCondition::Ready).await,
    );
    assert!(reached);
    assert_eq!(run.ready_by, "notify");
    let idle = |run: &pb::Run| run.activity() == Activity::Idle && run.status == "serving 3";
    service.shows(&client, "what it does", idle).await;
    service.says(&mut client, "STOPPING=1").await;
    service
        .shows(&client, "its end", |run| run.is_ending_itself)
        .await;
    for (words, wanted) in [
        (["get", &service.run], "serving 3"),
        (["why", &service.run], "It says: serving 3"),
    ] {
        let shown = run_to_end(kennel.cli(&words), PATIENCE).await;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains(wanted), "{shown}");
    }
    must("abort", client.abort(&service.run).await);
    assert_eq!(stations(&mut client, &service.run, "ready").await, 1);
    assert!(!kennel.run_dir(&service.run).join("notify").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_messages_are_received_without_server() {
    play_apart! {
        notices_of_a_command_are_heard,
        missing_sign_ends_a_run_without_a_server,
        notice_waits_for_the_next_keeper,
        ready_is_heard_over_deaths_of_the_server,
    };
}

/// The notice is sent while no server lives, at its death, and before it; each time it is handled once.
// promise: RW-70
async fn ready_is_heard_over_deaths_of_the_server() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut services = Vec::new();
    for at in 0..4 {
        let script = format!(
            "echo up; sleep {}; exec python3 -c \"
import os, socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendto(b'READY=1\\nSTATUS=serves', os.environ['NOTIFY_SOCKET'])
time.sleep(300)\"",
            0.3 * f64::from(at)
        );
        let mut spec = sh(&script);
        spec.readiness = Some(by_notice(Some(Duration::from_mins(1))));
        services.push(must("spawn", client.spawn(spec).await).run_id);
    }
    for _ in 0..3 {
        eventually("a server", PATIENCE, || kennel.server()).await;
        kennel.kill_server();
        client = kennel.client().await;
    }
    for run in &services {
        let (seen, reached) = must("wait", client.wait(run, WaitCondition::Ready).await);
        assert!(reached && seen.ready_by == "notify", "{seen:?}");
        must("abort", client.abort(run).await);
        assert_eq!(stations(&mut client, run, "ready").await, 1);
        assert_eq!(stations(&mut client, run, "status_changed").await, 1);
    }
}

/// The keeper reports the last notice to each server.
#[tokio::test(flavor = "multi_thread")]
async fn latest_activity_survives_server_death() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut service = Service::start(&mut client, service()).await;
    service
        .says(&mut client, "READY=1;X_KENNEL_ACTIVITY=working")
        .await;
    let is = |activity| move |run: &pb::Run| run.activity() == activity;
    service
        .shows(&client, "its word", is(Activity::Working))
        .await;
    let words = ["annotate", &service.run, "--activity", "idle"];
    let annotated = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert!(annotated.status.success(), "{annotated:?}");
    kennel.kill_server();
    client = kennel.client().await;
    // This status follows all earlier keeper reports.
    service.says(&mut client, "STATUS=here").await;
    let seen = service
        .shows(&client, "a status", |run| run.status == "here")
        .await;
    assert_eq!(seen.activity(), Activity::Idle);
    service.says(&mut client, "X_KENNEL_ACTIVITY=working").await;
    // For the keeper, `working` was no change.
    service
        .says(&mut client, "X_KENNEL_ACTIVITY=awaiting_input")
        .await;
    service
        .shows(&client, "the next", is(Activity::AwaitingInput))
        .await;
    must("abort", client.abort(&service.run).await);
}

/// Returns a command that says READY at this socket, and prints whether it could.
fn thief(socket: &Path) -> pb::RunSpec {
    let script = format!(
        "import socket, time\n\
         sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
         try: sender.sendto(b'READY=1', '{}')\n\
         except PermissionError: print('closed', flush=True)\n\
         print('up', flush=True)\n\
         time.sleep(1000)",
        socket.display()
    );
    argv(&["/usr/bin/env", "python3", "-c", &script])
}

/// Returns the processes whose notices to this run were refused, from the audit log.
async fn refused_senders(client: &mut Client, run: &str) -> Vec<i32> {
    let logged = must("audit", client.logged_requests(run).await).into_iter();
    let requests = logged.filter(|request| request.rpc == "sd_notify");
    let pids = requests.map(|request| {
        assert_eq!(request.code, "PERMISSION_DENIED");
        assert_eq!(request.reason, "CALLER_UNVERIFIED");
        request.pid()
    });
    pids.collect()
}

/// A process of the test itself, and of another run.
// promise: RW-71
async fn notice_of_another_process_is_refused(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let mut service = Service::start(&mut client, service()).await;
    let socket = kennel.run_dir(&service.run).join("notify");
    let other = UnixDatagram::unbound().expect("a socket");
    other
        .send_to(b"READY=1\nSTATUS=forged", &socket)
        .expect("it can be reached");
    let thief = thief(&socket);
    let thief = must("spawn", client.spawn(thief).await);
    client.hear_up(&thief.run_id).await;
    // The forged messages arrived before this one.
    service.says(&mut client, "STATUS=own").await;
    let seen = service
        .shows(&client, "its own status", |run| run.status == "own")
        .await;
    assert!(seen.ready_time.is_none());
    let refused = refused_senders(&mut client, &service.run).await;
    let me = std::process::id().cast_signed();
    let thief_pid = must("get", client.get(&thief.run_id).await).attempt().pid;
    assert_eq!(refused, [me, thief_pid]);
    must("abort", client.abort(&thief.run_id).await);
    must("abort", client.abort(&service.run).await);
    let heard = must("hear", client.hear_all(&service.run, 0).await);
    let is_refusal = |payload: &pb::event::Payload| match payload {
        pb::event::Payload::Warning(warning) => {
            warning.message.contains("it is no process of this run")
        }
        _ => false,
    };
    let refusals = heard
        .events
        .iter()
        .filter(|(_, payload)| is_refusal(payload));
    assert_eq!(refusals.count(), 2, "{heard:?}");
}

/// By the keeper alone: no server lives when the time is over.
// promise: RW-72
async fn missing_sign_ends_a_run_without_a_server() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = service();
    let time = Duration::from_secs(2);
    spec.liveness = Some(watchdog(time));
    let mut service = Service::start(&mut client, spec).await;
    client.hear_text(&service.run, "up 2000000").await;
    service.says(&mut client, "READY=1").await;
    // Keep-alives delay the watchdog beyond its interval; a pause does not count.
    let until = std::time::Instant::now() + time * 5 / 4;
    while std::time::Instant::now() < until {
        service.says(&mut client, "WATCHDOG=1").await;
        tokio::time::sleep(time / 4).await;
    }
    must("pause", client.pause(&service.run).await);
    tokio::time::sleep(time * 5 / 4).await;
    must("resume", client.resume(&service.run).await);
    let leader = must("get", client.get(&service.run).await).attempt().pid;
    let leader = kennel_tests::procfs::Proc::read(leader).expect("it runs");
    let server = kennel.server().expect("one serves");
    kennel_tests::kennel::kill_exactly(&server, nix::sys::signal::Signal::SIGSTOP);
    eventually("its end", PATIENCE, || (!leader.is_alive()).then_some(())).await;
    kennel_tests::kennel::kill_exactly(&server, nix::sys::signal::Signal::SIGKILL);
    client = kennel.client().await;
    let ended = must("wait", client.ended(&service.run).await);
    assert_eq!(
        (ended.state(), ended.reason()),
        (RunState::Failed, "watchdog")
    );
    let why = run_to_end(kennel.cli(&["why", &service.run]), PATIENCE).await;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("its command gave no sign for 2s;"), "{why}");
    Footprint::of_id(&service.run).assert_nothing_left();
}

// promise: RW-72
async fn command_reports_its_own_failure(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = service();
    spec.liveness = Some(watchdog(Duration::from_hours(1)));
    let mut service = Service::start(&mut client, spec).await;
    service.says(&mut client, "READY=1").await;
    service.write_notice(&mut client, "WATCHDOG=trigger").await;
    let ended = must("wait", client.ended(&service.run).await);
    assert_eq!(ended.reason(), "watchdog");
    let why = run_to_end(kennel.cli(&["why", &service.run]), PATIENCE).await;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("(WATCHDOG=trigger)"), "{why}");

    // Restart policies count a watchdog end as failure.
    let mut spec = self::service();
    spec.liveness = Some(watchdog(Duration::from_hours(1)));
    spec.restart = Some(pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        max_restarts: Some(1),
        ..pb::RestartPolicy::default()
    });
    let mut again = Service::start(&mut client, spec).await;
    again.says(&mut client, "READY=1").await;
    again.write_notice(&mut client, "WATCHDOG=trigger").await;
    let is_second = |run: &pb::Run| run.attempt().number == 2;
    again.shows(&client, "a second attempt", is_second).await;
    must("abort", client.abort(&again.run).await);
}

// promise: RW-119
async fn missed_watchdog_is_restarted_by_policy(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = service();
    spec.liveness = Some(watchdog(Duration::from_millis(500)));
    spec.restart = Some(pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        max_restarts: Some(1),
        delay: Some(duration(Duration::from_millis(10))),
        ..pb::RestartPolicy::default()
    });
    let mut silent = Service::start(&mut client, spec).await;
    silent.says(&mut client, "READY=1").await;
    let is_second = |run: &pb::Run| run.attempt().number == 2 && run.previous_attempts.len() == 1;
    let seen = silent.shows(&client, "a second attempt", is_second).await;
    let first = seen.previous_attempts[0].end_reason.clone();
    let first = first.and_then(|end| end.reason);
    assert!(
        matches!(first, Some(pb::end_reason::Reason::Watchdog(_))),
        "{seen:?}"
    );
    must("abort", client.abort(&silent.run).await);
}

// promise: RW-72a
async fn start_timeout_is_extended_by_the_command(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = service();
    spec.readiness = Some(by_notice(Some(Duration::from_secs(3))));
    let mut extended = Service::start(&mut client, spec.clone()).await;
    extended
        .says(&mut client, "EXTEND_TIMEOUT_USEC=600000000")
        .await;
    let silent = Service::start(&mut client, spec).await;
    let ended = must("wait", client.ended(&silent.run).await);
    assert_eq!(ended.reason(), "not_ready");
    extended.says(&mut client, "READY=1").await;
    let (_, reached) = must(
        "wait",
        client.wait(&extended.run, WaitCondition::Ready).await,
    );
    assert!(reached);
    must("abort", client.abort(&extended.run).await);
}

/// A short process of the run, by the program of systemd: it waits until its notice was received.
// promise: RW-70
async fn systemd_notify_of_a_script_is_heard(kennel: &Kennel) {
    let words = ["spawn", "--ready-notify", "--", "sh", "-c"];
    let script = "systemd-notify --ready --status='by a script' && sleep 1000";
    let words: Vec<&str> = words.into_iter().chain([script]).collect();
    let spawned = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert!(spawned.status.success(), "{spawned:?}");
    let run = String::from_utf8_lossy(&spawned.stdout).trim().to_owned();
    let mut client = kennel.client().await;
    let (seen, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(reached);
    assert_eq!(seen.ready_by, "notify");
    let service = Service { run, said: 0 };
    service
        .shows(&client, "its status", |run| run.status == "by a script")
        .await;
    must("abort", client.abort(&service.run).await);
}

/// Each of these is a process of its own, which ends at once.
const SENDERS: u32 = 100;

async fn ended_senders_are_known_by_their_group(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let send = "socket(S, AF_UNIX, SOCK_DGRAM, 0); \
                send(S, 'X=1', 0, sockaddr_un($ENV{NOTIFY_SOCKET})) or die";
    let script = format!(
        "for n in $(seq {SENDERS}); do perl -MSocket -e \"$0\"; done; echo all; sleep 1000"
    );
    let mut spec = argv(&["/bin/sh", "-c", &script, send]);
    spec.readiness = Some(by_notice(None));
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "all").await;
    must("abort", client.abort(&run).await);
    let host = client.server_info().await.and_then(|info| info.host);
    let host = host.expect("it says where it runs");
    let mut release = host.kernel.split(['.', '-']).map(|part| part.parse().ok());
    let mut number = || release.next().flatten();
    // Kernels before 6.16 report nothing about a reaped sender.
    if !host.cgroup_base.is_empty() && (number(), number()) >= (Some(6), Some(16)) {
        assert!(refused_senders(&mut client, &run).await.is_empty());
    }
}

/// A notice sent while neither keeper nor server lives waits in the socket, which the shim holds. It was sent in time,
/// also where the next keeper comes after the limit.
// promise: RW-70
async fn notice_waits_for_the_next_keeper() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "import os, socket, time\n\
         s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
         print('up', flush=True)\n\
         while not os.path.exists('{0}'): time.sleep(0.02)\n\
         s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n\
         os.rename('{0}', '{0}ne')\n\
         time.sleep(1000)",
        go.display()
    );
    let mut spec = argv(&["/usr/bin/env", "python3", "-c", &script]);
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    let limit = Duration::from_secs(5);
    spec.readiness = Some(by_notice(Some(limit)));
    let run = must("spawn", client.spawn(spec).await).run_id;
    let limit_is_over = tokio::time::Instant::now() + limit;
    client.hear_up(&run).await;
    kennel.kill_service_after(|| {});
    kennel.wait_for_exit(PATIENCE).await;
    fs::write(&go, "").expect("own directory");
    let gone = kennel.scratch().join("gone");
    eventually("it has sent it", PATIENCE, || gone.exists().then_some(())).await;
    tokio::time::sleep_until(limit_is_over).await;
    kennel.restart().await;
    client = kennel.client().await;
    let (seen, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(reached && seen.ready_by == "notify", "{seen:?}");
    must("abort", client.abort(&run).await);
    assert_eq!(stations(&mut client, &run, "ready").await, 1);
}

// promise: RW-70
async fn faults_of_notices_are_named(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = service();
    spec.output_rules = vec![pb::OutputRule {
        name: "up".into(),
        pattern: Some(pb::LinePattern {
            pattern: Some(pb::line_pattern::Pattern::Literal("up".into())),
        }),
        action: Some(pb::output_rule::Action::Ready(pb::output_rule::Ready {})),
        ..pb::OutputRule::default()
    }];
    spec.liveness = Some(watchdog(Duration::from_millis(1)));
    let status = client.spawn(spec).await.expect_err("faults");
    let mut fields = complaint(&status).fields;
    fields.sort();
    let expected = ["spec.liveness.watchdog", "spec.readiness.notify"];
    assert_eq!(fields, expected);
}

/// Returns the socket that the command of a run was given.
async fn socket_of(client: &mut Client, run: &str) -> PathBuf {
    let leader = must("get", client.get(run).await).attempt().pid;
    let environ = fs::read(format!("/proc/{leader}/environ")).expect("it runs");
    let environ = String::from_utf8_lossy(&environ).into_owned();
    let mut variables = environ.split('\0');
    let socket = variables.find_map(|pair| pair.strip_prefix("NOTIFY_SOCKET="));
    PathBuf::from(socket.expect("it has one"))
}

/// Its socket is open to its user alone, and only to processes of the run; it outlives server and keeper. That of a run
/// which ends with its keeper is removed by the next start.
// promise: RW-100, RW-101
#[tokio::test(flavor = "multi_thread")]
async fn command_of_another_user_sends_notices() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = with_user(service());
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    let mut service = Service::start(&mut client, spec).await;
    let socket = socket_of(&mut client, &service.run).await;
    let found = fs::metadata(&socket).expect("it is there");
    assert_eq!((found.uid(), found.mode() & 0o777), (run_as::UID, 0o600));
    let namesake = must("spawn", client.spawn(with_user(thief(&socket))).await).run_id;
    let mut stranger = with_user(thief(&socket));
    let user = stranger.privileges.as_mut().and_then(|p| p.user.as_mut());
    user.expect("it has one").user_id += 10;
    let stranger = must("spawn", client.spawn(stranger).await).run_id;
    client.hear_text(&namesake, "up\n").await;
    client.hear_text(&stranger, "closed\nup\n").await;

    kennel.kill_server();
    client = kennel.client().await;
    service.says(&mut client, "READY=1;STATUS=serves").await;
    let (seen, reached) = must(
        "wait",
        client.wait(&service.run, WaitCondition::Ready).await,
    );
    assert!(reached && seen.ready_by == "notify", "{seen:?}");
    let thief_pid = must("get", client.get(&namesake).await).attempt().pid;
    let refused = refused_senders(&mut client, &service.run).await;
    assert_eq!(refused, [thief_pid]);
    let other = Service::start(&mut client, with_user(self::service())).await;
    let left = socket_of(&mut client, &other.run).await;
    kennel.kill_service_after(|| {});
    kennel.wait_for_exit(PATIENCE).await;
    assert!(left.exists(), "no other user removes it");
    kennel.restart().await;
    client = kennel.client().await;
    must("wait", client.ended(&other.run).await);
    assert!(!left.exists());
    service.says(&mut client, "STATUS=again").await;
    let again = |run: &pb::Run| run.status == "again";
    service.shows(&client, "the next keeper", again).await;
    must("abort", client.abort(&service.run).await);
    assert_eq!(stations(&mut client, &service.run, "ready").await, 1);
    assert!(!socket.parent().expect("it has one").exists());
}
