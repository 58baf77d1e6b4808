//! Leak checks of real leaks, planted by hand: leaked processes are found with their run and the evidence, a reap ends
//! them alone, and no unrelated process is ever signalled.

use kennel_proto::pb::{
    self, LeakCertainty, LeakEvidence, LeakedRunStanding, ReapMode, ReapOutcome, SpareReason,
    UnverifiedKind,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, User, argv, cases, complaint,
    eventually,
    kennel::{bare_command, kill_exactly, reap_orphans},
    must, new_run_id,
    procfs::Proc,
    programs, sh,
    shell::run_to_end,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::Instant,
};

/// Runs that live during leak checks.
const LIVE: u32 = 100;

/// A process of the test's own; ended with it.
pub(crate) struct Planted(Child);

impl Planted {
    /// Starts a sleep in a session of its own, with this marker.
    pub(crate) fn marked(run_id: &str) -> Self {
        Self::with(|command| {
            command.env("KENNEL_RUN_ID", run_id);
        })
    }

    fn with(prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(programs::naughty());
        command
            .arg("in-own-session")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        prepare(&mut command);
        let planted = Self(command.spawn().expect("it starts"));
        // Right after exec, /proc/PID/environ is empty for a moment.
        let environ = format!("/proc/{}/environ", planted.pid());
        while std::fs::read(&environ).is_ok_and(|bytes| bytes.is_empty()) {
            std::thread::yield_now();
        }
        planted
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().expect("own child").is_none()
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a run that has ended.
async fn over(client: &mut Client) -> String {
    let spec = argv(&["true"]).label("team", "blue");
    let run = must("spawn", client.spawn(spec).await);
    must("wait", client.ended(&run.run_id).await).run_id
}

/// Moves a process into a control group with a name as that of this run. `None`: this host lets no server make control
/// groups.
async fn plant_in_group(client: &mut Client, run_id: &str, child: &Planted) -> Option<PathBuf> {
    let host = client.server_info().await?.host?;
    if host.cgroup_base.is_empty() {
        assert!(!host.cgroup_refused.is_empty(), "it is not said why");
        return None;
    }
    let dir = PathBuf::from(host.cgroup_base).join(format!("run-{run_id}-999999"));
    fs::create_dir(&dir).expect("a control group");
    fs::write(dir.join("cgroup.procs"), child.pid().to_string()).expect("it moves");
    Some(dir)
}

async fn audit(client: &mut Client) -> pb::LeakAudit {
    must("audit", client.audit().await)
}

fn found(audit: &pb::LeakAudit, pid: i32) -> Option<&pb::LeakedProcess> {
    let of_pid = |p: &&pb::LeakedProcess| p.process.as_ref().is_some_and(|p| p.pid == pid);
    audit.processes.iter().find(of_pid)
}

fn outcome(reaped: &pb::ReapLeaksResponse, pid: i32) -> Option<(ReapOutcome, SpareReason)> {
    let of_pid = |p: &&pb::ReapedProcess| p.process.as_ref().is_some_and(|p| p.pid == pid);
    let one = reaped.processes.iter().find(of_pid)?;
    Some((one.outcome(), one.spare_reason()))
}

/// Returns a request to end all leaked processes of these runs.
fn order(run_ids: &[&String]) -> pb::ReapLeaksRequest {
    pb::ReapLeaksRequest {
        mode: ReapMode::Execute.into(),
        run_ids: run_ids.iter().map(ToString::to_string).collect(),
        ..pb::ReapLeaksRequest::default()
    }
}

async fn cli(kennel: &Kennel, words: &[&str]) -> (Output, String) {
    let output = run_to_end(kennel.cli(words), PATIENCE).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

/// Asserts that a request that does not select it spares it, and one that does ends it.
async fn assert_scope(kennel: &Kennel, run_id: &str, left: &mut Planted, named: &[&str]) {
    // By default `reap` signals no process.
    let (reap, text) = cli(kennel, &[&["reap", "--run", run_id], named].concat()).await;
    assert_eq!(reap.status.code(), Some(0), "{text}");
    assert!(
        text.contains("would end") && text.contains("no process was signalled"),
        "{text}"
    );
    assert!(left.lives());
    // Another label, age or start time selects nothing.
    let other = format!("{}:1", left.pid());
    let narrowed = [["-l", "team=red"], ["--older", "1h"], ["--process", &other]];
    let narrowed = narrowed.map(|words| [&words, named].concat());
    for words in [&narrowed[..], &[vec!["--evidence", "shim-child"]]].concat() {
        let words = [&["reap", "--yes", "--run", run_id][..], &words].concat();
        let (_, text) = cli(kennel, &words).await;
        assert!(!text.contains("ended SIG"), "{words:?}: {text}");
    }
    assert!(left.lives());

    let words = ["reap", "--yes", "-l", "team=blue", "--run", run_id];
    let (reap, text) = cli(kennel, &[&words, named].concat()).await;
    assert_eq!(reap.status.code(), Some(0), "{text}");
    assert!(text.contains("ended SIGTERM"), "{text}");
    assert!(!left.lives());
}

// The last test removes the server's socket.
cases! {
    fn leaks_of_one_server(Kennel::on_sqlite().await);
    malformed_scope_is_refused_whole,
    leak_in_an_ended_runs_cgroup_is_ended,
    named_process_with_a_marker_ends_within_scope,
    marker_is_a_hint_and_unrelated_processes_live,
    audit_of_hundred_live_runs_finds_nothing,
    removed_socket_returns_and_replaced_files_are_reported,
}

// promise: F-1
async fn leak_in_an_ended_runs_cgroup_is_ended(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run_id = over(&mut client).await;
    let mut left = Planted::with(|_| {});
    let Some(dir) = plant_in_group(&mut client, &run_id, &left).await else {
        // Without a control group nothing proves the leak; another test covers scopes with a marker.
        assert_eq!(found(&audit(&mut client).await, left.pid()), None);
        let named = order(&[&run_id]);
        assert_eq!(must("reap", client.reap(named).await).processes, []);
        assert!(left.lives());
        return;
    };

    let seen = audit(&mut client).await;
    let leak = found(&seen, left.pid()).expect("it is found");
    assert_eq!(leak.evidence(), LeakEvidence::LeakedCgroup);
    assert_eq!(leak.certainty(), LeakCertainty::Proven);
    assert_eq!(leak.run_standing(), LeakedRunStanding::Ended);
    assert_eq!(
        (leak.run_id.as_str(), leak.labels["team"].as_str()),
        (run_id.as_str(), "blue")
    );
    assert_eq!(leak.cgroup, dir.display().to_string());
    let (doctor, text) = cli(kennel, &["doctor"]).await;
    assert_eq!(doctor.status.code(), Some(3), "{text}");
    assert!(
        text.contains(&format!("LEFT     {}:", left.pid())),
        "{text}"
    );

    assert_scope(kennel, &run_id, &mut left, &[]).await;
    // An empty control group remains until the next reap.
    let seen = audit(&mut client).await;
    assert!(
        seen.empty_cgroups
            .iter()
            .any(|group| group.run_id == run_id)
    );
    let (_, text) = cli(kennel, &["reap", "--yes", "--run", &run_id]).await;
    assert!(text.contains("1 empty control groups removed"), "{text}");
    assert!(!dir.exists());
}

// promise: F-5
async fn named_process_with_a_marker_ends_within_scope(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run_id = over(&mut client).await;
    let mut left = Planted::marked(&run_id);
    assert_scope(kennel, &run_id, &mut left, &["--evidence", "marker"]).await;
}

// promise: F-3
async fn marker_is_a_hint_and_unrelated_processes_live(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run_id = over(&mut client).await;
    let live = must("spawn", client.spawn(argv(&["sleep", "1000"])).await).run_id;
    let mut orphan = Planted::marked(&run_id);
    let mut of_live = Planted::marked(&live);
    let mut elsewhere = Planted::marked(&new_run_id());
    let mut plain = Planted::with(|_| {});

    let seen = audit(&mut client).await;
    let hint = found(&seen, orphan.pid()).expect("it is found");
    assert_eq!(hint.evidence(), LeakEvidence::Marker);
    assert_eq!(hint.certainty(), LeakCertainty::Hint);
    let hint = found(&seen, of_live.pid()).expect("it is found");
    assert_eq!(hint.run_standing(), LeakedRunStanding::Live);
    assert_eq!(found(&seen, elsewhere.pid()), None);
    assert_eq!(found(&seen, plain.pid()), None);
    assert!(seen.foreign_processes >= 1);

    // A marker counts only if named as evidence, and only for ended runs.
    let ids = [&run_id, &live];
    let spared = must("reap", client.reap(order(&ids)).await);
    let why = |pid| outcome(&spared, pid);
    assert_eq!(
        why(orphan.pid()),
        Some((ReapOutcome::Spared, SpareReason::MarkerNotNamed))
    );
    assert_eq!(
        why(of_live.pid()),
        Some((ReapOutcome::Spared, SpareReason::RunIsLive))
    );
    assert!(orphan.lives());
    let named = pb::ReapLeaksRequest {
        evidence: vec![LeakEvidence::Marker.into()],
        ..order(&ids)
    };
    let reaped = must("reap", client.reap(named).await);
    assert_eq!(
        outcome(&reaped, orphan.pid()).map(|o| o.0),
        Some(ReapOutcome::Ended)
    );
    assert!(!orphan.lives());
    for stranger in [&mut of_live, &mut elsewhere, &mut plain] {
        assert!(stranger.lives(), "a stranger was signalled");
    }
    let run = must("get", client.get(&live).await);
    assert_eq!(run.state(), pb::RunState::Running);
}

// promise: F-3
#[tokio::test(flavor = "multi_thread")]
async fn unproven_session_member_is_reported_and_not_signalled() {
    let mut kennel = Kennel::start(Options::default().without_cgroup()).await;
    let mut client = kennel.client().await;
    // An orphan in the leader's session, without an environment.
    let file = kennel.scratch().join("member");
    let script = format!(
        "(env -i sh -c 'echo $$ > {}; exec sleep 1000' &); echo up; sleep 1000",
        file.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    // The file names the member: a process during exec also seems to lack an environment.
    let member = eventually("it has said who it is", PATIENCE, || {
        let text = fs::read_to_string(&file).ok()?;
        Proc::read(text.strip_suffix('\n')?.parse().ok()?)
    })
    .await;
    client.hear_up(&run.run_id).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for proc in shims.iter().chain([&leader]) {
            kill_exactly(proc, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    eventually("the leader is reaped", PATIENCE, || {
        reap_orphans();
        (!leader.is_still_there()).then_some(())
    })
    .await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    must("wait", client.ended(&run.run_id).await);
    assert!(member.is_alive(), "nothing proves that it is of the run");

    let seen = audit(&mut client).await;
    let hint = found(&seen, member.pid).expect("it is found");
    assert_eq!(hint.evidence(), LeakEvidence::RecordedGroup);
    assert_eq!(
        (hint.certainty(), hint.run_id.as_str()),
        (LeakCertainty::Hint, run.run_id.as_str())
    );
    let reaped = must("reap", client.reap(order(&[&run.run_id])).await);
    let why = outcome(&reaped, member.pid);
    assert_eq!(why, Some((ReapOutcome::Spared, SpareReason::NotProven)));
    assert!(member.is_alive());
    kill_exactly(&member, Signal::SIGKILL);
    eventually("it is reaped", PATIENCE, || {
        reap_orphans();
        (!member.is_still_there()).then_some(())
    })
    .await;
}

// promise: F-1
async fn audit_of_hundred_live_runs_finds_nothing(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut ids = Vec::new();
    for _ in 0..LIVE {
        let run = must("spawn", client.spawn(argv(&["sleep", "1000"])).await);
        ids.push(run.run_id);
    }
    // Audit while runs start and end.
    let mut others = kennel.client().await;
    let busy = tokio::spawn(async move {
        for _ in 0..30 {
            over(&mut others).await;
        }
    });
    for _ in 0..5 {
        let began = Instant::now();
        let seen = audit(&mut client).await;
        println!(
            "{} live runs, {} processes held: {:?}",
            seen.live_runs,
            seen.held_processes,
            began.elapsed()
        );
        assert!(
            seen.live_runs >= LIVE && seen.held_processes >= 2 * LIVE,
            "{seen:?}"
        );
        assert_eq!(seen.processes, []);
        assert_eq!(seen.empty_cgroups, []);
        assert!(seen.unattended_run_ids.is_empty(), "{seen:?}");
        assert_eq!(seen.unknown_run_directories, 0);
    }
    busy.await.expect("no panic");
    let seen = audit(&mut client).await;
    let (doctor, text) = cli(kennel, &["doctor"]).await;
    let expected = if seen.unverified.is_empty() { 0 } else { 4 };
    assert_eq!(doctor.status.code(), Some(expected), "{text}");
    let service = seen.service.expect("the audit has it");
    assert!(service.lock_in_place && service.host_unchanged && service.clock_behind.is_none());
    assert_eq!(service.sockets.len(), 1);
    assert_eq!(service.sockets[0].state(), pb::SocketState::InPlace);
}

// promise: F-7
async fn removed_socket_returns_and_replaced_files_are_reported(kennel: &Kennel) {
    let mut client = kennel.client().await;
    fs::remove_file(kennel.socket()).expect("it was there");
    eventually("it is bound again", PATIENCE, || {
        kennel.socket().exists().then_some(())
    })
    .await;
    let (listed, text) = cli(kennel, &["ps"]).await;
    assert!(listed.status.success(), "{text}");
    kennel.logs("it is bound again", 1).await;
    let lock = kennel.data_dir().join("lock");
    fs::remove_file(&lock).expect("it was there");
    let service = audit(&mut client).await.service.expect("the audit has it");
    assert_eq!(service.sockets[0].state(), pb::SocketState::InPlace);
    assert!(!service.lock_in_place);
    let other = kennel.scratch().join("other");
    fs::write(&other, "").expect("another file");
    fs::rename(other, kennel.socket()).expect("in the place of the socket");
    let service = audit(&mut client).await.service.expect("the audit has it");
    assert_eq!(service.sockets[0].state(), pb::SocketState::Replaced);
}

// promise: F-6
#[tokio::test(flavor = "multi_thread")]
async fn leak_check_without_store_uses_keepers_inventory() {
    let mut postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let run_id = over(&mut client).await;
    let mut left = Planted::with(|_| {});
    let dir = plant_in_group(&mut client, &run_id, &left).await;
    let mut marked = Planted::marked(&run_id);
    postgres.crash().await;

    let seen = audit(&mut client).await;
    let away = |area: &&pb::UnverifiedArea| area.kind() == UnverifiedKind::StoreAway;
    assert!(
        seen.unverified.iter().any(|area| away(&area)),
        "{:?}",
        seen.unverified
    );
    let hint = found(&seen, marked.pid()).expect("it is found");
    assert_eq!(hint.run_standing(), LeakedRunStanding::Unspecified);
    let (doctor, text) = cli(&kennel, &["doctor"]).await;
    assert!(
        text.contains("nothing was compared with the store"),
        "{text}"
    );
    assert!(matches!(doctor.status.code(), Some(3 | 4)), "{text}");
    let named = pb::ReapLeaksRequest {
        evidence: vec![
            LeakEvidence::Marker.into(),
            LeakEvidence::LeakedCgroup.into(),
        ],
        ..order(&[&run_id])
    };
    let reaped = must("reap", client.reap(named).await);
    let why = outcome(&reaped, marked.pid());
    assert_eq!(why, Some((ReapOutcome::Spared, SpareReason::RunUnknown)));
    assert!(marked.lives());
    // Only this keeper makes control groups there: no row is needed as proof.
    if dir.is_some() {
        assert_eq!(
            found(&seen, left.pid()).expect("found").certainty(),
            LeakCertainty::Proven
        );
        assert_eq!(
            outcome(&reaped, left.pid()).map(|o| o.0),
            Some(ReapOutcome::Ended)
        );
        assert!(!left.lives());
    } else {
        assert_eq!(found(&seen, left.pid()), None);
        assert!(left.lives());
    }
}

// promise: F-6
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_environments_are_reported() {
    // Only root can read the environment of root's processes.
    let mut kennel = Kennel::start(Options {
        user: User::Unprivileged,
        ..Options::default()
    })
    .await;
    let seen = audit(&mut kennel.client().await).await;
    let unread = seen
        .unverified
        .iter()
        .find(|a| a.kind() == UnverifiedKind::Environments);
    assert!(
        unread.is_some_and(|area| area.count > 0),
        "{:?}",
        seen.unverified
    );
    assert_eq!(seen.processes, []);
    kennel.terminate(PATIENCE).await;
}

// promise: F-8
#[tokio::test(flavor = "multi_thread")]
async fn doctor_without_server_gives_hints_and_fails() {
    let run_id = new_run_id();
    let mut marked = Planted::marked(&run_id);
    let mut command = bare_command(&programs::kennel());
    command.args(["doctor", "--server", "unix:/nonexistent/kennel.sock"]);
    // Until exec the child has its parent's environment.
    let expected = format!("hint     {} ", marked.pid());
    eventually("it carries its marker", PATIENCE, || {
        let proc = Proc::read(marked.pid())?;
        proc.env("KENNEL_RUN_ID").map(|_| ())
    })
    .await;
    let output = run_to_end(command, PATIENCE).await;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("no server: only markers were looked for"),
        "{text}"
    );
    assert!(text.contains(&expected) && text.contains(&run_id), "{text}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no server answers"), "{said}");
    assert!(marked.lives());
}

async fn malformed_scope_is_refused_whole(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let bad = "x".to_owned();
    let refused = client.reap(order(&[&bad])).await.expect_err("refused");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (tonic::Code::InvalidArgument, "INVALID_FIELD")
    );
}
