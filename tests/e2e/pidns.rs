//! Runs in a pid namespace of their own: no process in it outlives the run, and the kernel proves it.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, EmptyProof, InterruptMethod, SignalScope, tree_verdict::Verdict};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, argv, complaint, eventually,
    kennel::{User, kill_exactly},
    must, naughty, new_run_id,
    procfs::{self, Proc},
    programs, sh,
    shell::{run_to_end, text},
};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::signal::Signal,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

with_and_without_cgroup!(private_namespace_proves_emptiness_after_total_crash);

/// Whether the test may make such namespaces: if not, the service may not either; then only a refusal can be seen,
/// which has a test of its own.
fn may_make_namespaces() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").expect("own status");
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|set| set >> CAP_SYS_ADMIN & 1 == 1)
}

fn private(mut spec: pb::RunSpec) -> pb::RunSpec {
    spec.set_pid_namespace(pb::PidNamespace::Private);
    spec.set_min_containment(pb::Containment::PrivatePidns);
    spec
}

/// Returns the first process of the run's namespace, by its number outside.
fn init_of(run: &pb::Run) -> Proc {
    let all = procfs::all();
    let of_shim = all
        .into_iter()
        .find(|p| p.ppid == run.attempt().shim_pid && p.pid != run.attempt().pid);
    let init = of_shim.expect("a child of the shim");
    let name = fs::read_to_string(format!("/proc/{}/comm", init.pid));
    assert_eq!(name.expect("it is there").trim(), "kennel-init");
    init
}

#[track_caller]
fn assert_proven(run: &pb::Run) {
    let verdict = run.tree_verdict.as_ref().and_then(|t| t.verdict.as_ref());
    let Some(Verdict::Empty(empty)) = verdict else {
        panic!("{run:?}")
    };
    assert_eq!(empty.proof(), EmptyProof::PrivatePidns, "{run:?}");
    assert_eq!(run.containment(), pb::Containment::PrivatePidns);
}

#[tokio::test(flavor = "multi_thread")]
async fn private_pid_namespace_isolates_the_command() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        command_line_runs_in_private_pid_namespace,
        namespaced_command_sees_itself_and_is_read,
        rest_may_finish_in_its_namespace,
        sibling_made_by_leader_is_in_tree,
        first_process_ignores_polite_signals,
        unavailable_namespace_is_refused,
        terminal_is_the_commands_in_namespace_too,
    }
}

// promise: N-6
async fn namespaced_command_sees_itself_and_is_read(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    let script = "sleep 1000 & echo $$ $PPID; cd /proc; echo [0-9]*; echo up; read line; exit 7";
    let go = fifo(kennel);
    let spec = sh(&format!("exec < {}; {script}", go.display()));
    let run = must("spawn", client.spawn(private(spec)).await);
    let go_on = File::create(&go).expect("the fifo's other end");
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);

    // Reports use the leader's pid outside its namespace.
    let tree = must("tree", client.tree(&run.run_id).await);
    let pids: Vec<i32> = tree.processes.iter().map(|p| p.pid).collect();
    assert!(pids.contains(&run.attempt().pid), "{tree:?}");
    assert!(!pids.contains(&init_of(&run).pid), "{tree:?}");
    assert_eq!(pids.len(), 2, "{tree:?}");
    let gaps = run.coverage.as_ref().expect("it has processes");
    let open: Vec<_> = gaps.gaps.iter().map(pb::CoverageGap::kind).collect();
    assert!(!open.contains(&pb::CoverageGapKind::ForeignPidNamespace));
    assert!(!open.contains(&pb::CoverageGapKind::RootMayLeaveCgroup));
    assert!(open.contains(&pb::CoverageGapKind::WorkHandedToDaemons));
    // The audit finds no leaked process.
    let audit = must("audit", client.audit().await);
    assert_eq!(audit.processes, [], "{audit:?}");
    let shown = text(&run_to_end(kennel.cli(&["get", &run.run_id]), PATIENCE).await);
    assert!(shown.contains("private pid namespace"), "{shown}");

    drop(go_on);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(7));
    assert_proven(&run);
    print.assert_nothing_left();
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let said = heard.text();
    let lines: Vec<&str> = said.lines().collect();
    // Pids 1, 2, 3: Kennel's init, the shell, its sleep.
    assert_eq!(lines[0], "2 0", "{said}");
    assert_eq!(lines[1], "1 2 3", "{said}");
}

fn fifo(kennel: &Kennel) -> PathBuf {
    let path = kennel.scratch().join(format!("go-{}", new_run_id()));
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    path
}

// promise: N-7
async fn escaped_process_ends_with_its_namespace(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    // mixed-tree: a child, an orphan in its own session, one without environment; all ignore SIGTERM.
    let script = format!(
        "trap '' TERM; {} mixed-tree & exec {0} sleep",
        programs::naughty().display()
    );
    let spec = private(sh(&script)).grace(Duration::from_millis(300));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let tree = || {
        let mut client = client.clone();
        let run_id = run.run_id.clone();
        async move {
            let tree = must("tree", client.tree(&run_id).await);
            (tree.processes.len() >= 5).then_some(())
        }
    };
    kennel_tests::eventually_async("all are there", PATIENCE, tree).await;
    let print = Footprint::of_run(&run);
    let init = init_of(&run);
    let run = must("abort", client.abort(&run.run_id).await);
    assert_proven(&run);
    print.assert_nothing_left();
    assert!(!init.is_still_there());
    let certificate = run.attempt().certificate.clone().expect("it has ended");
    let killed = certificate.steps.iter().find(|s| s.signal == "SIGKILL");
    let killed = killed.unwrap_or_else(|| panic!("{certificate:?}"));
    assert_eq!(killed.scope(), SignalScope::PidNamespace);
    assert!(killed.delivered >= 4, "{certificate:?}");
    assert_eq!(killed.refused, 0, "{certificate:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_leaves_the_private_pid_namespace() {
    let kennel = Kennel::start(Options::default().without_cgroup()).await;
    play_scenes! {
        &kennel;
        a_namespace_ends_at_once_with_its_shim,
        no_process_leaves_private_pid_namespace,
    }
}

// promise: N-7
async fn a_namespace_ends_at_once_with_its_shim(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    let spec = private(naughty(&["mixed-tree"])).grace(Duration::from_mins(10));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let shim = Proc::read(run.attempt().shim_pid).expect("it lives");
    kill_exactly(&shim, Signal::SIGKILL);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_proven(&run);
    // The keeper reaps processes that the dead shim would have reaped.
    print.until_nothing_is_left().await;
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{run:?}");
    let after = must("spawn", client.spawn(sh("exit 0")).await);
    let after = must("wait", client.ended(&after.run_id).await);
    assert_eq!(after.code(), Some(0), "the rest goes on");
}

// promise: N-7
#[tokio::test(flavor = "multi_thread")]
async fn private_namespace_survives_server_and_ends_with_keeper() {
    if !may_make_namespaces() {
        return;
    }
    let mut kennel = Kennel::on_sqlite().await;
    for of_keeper in [false, true] {
        let mut client = kennel.client().await;
        let spec = private(naughty(&["mixed-tree"])).grace(Duration::from_millis(300));
        let run = must("spawn", client.spawn(spec).await);
        client.hear_up(&run.run_id).await;
        let print = Footprint::of_run(&run);
        if of_keeper {
            kennel.kill_keeper();
            kennel.wait_until_all_is_gone(PATIENCE).await;
            print.assert_nothing_left();
            kennel.restart().await;
        } else {
            kennel.replace_server().await;
            let mut client = kennel.client().await;
            let on = must("get", client.get(&run.run_id).await);
            assert_eq!(on.state(), pb::RunState::Running, "{on:?}");
            must("abort", client.abort(&run.run_id).await);
        }
        let run = must("wait", kennel.client().await.ended(&run.run_id).await);
        assert_proven(&run);
        print.assert_nothing_left();
    }
}

// promise: N-10a
async fn private_namespace_proves_emptiness_after_total_crash(options: Options) {
    if !may_make_namespaces() {
        return;
    }
    let mut kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        escaped_process_ends_with_its_namespace,
    }
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client.spawn(private(naughty(&["mixed-tree"]))).await,
    );
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for shim in shims {
            kill_exactly(&shim, Signal::SIGKILL);
        }
    });
    kennel.wait_until_all_is_gone(PATIENCE).await;
    kennel.restart().await;
    let run = must("wait", kennel.client().await.ended(&run.run_id).await);
    assert_eq!(run.state(), pb::RunState::Lost, "{run:?}");
    assert_proven(&run);
    print.assert_nothing_left();
}

// promise: N-8
async fn rest_may_finish_in_its_namespace(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    let go = fifo(kennel);
    let script = format!(
        "(setsid sh -c 'read line < {}; echo last' &) ; echo first; exit 5",
        go.display()
    );
    let spec = private(sh(&script)).on_leader_exit(pb::LeaderExitAction::Drain, None);
    let run = must("spawn", client.spawn(spec).await);
    let condition = pb::WaitCondition::LeaderExited;
    let (draining, reached) = must("wait", client.wait(&run.run_id, condition).await);
    assert!(reached);
    assert_eq!(draining.end_time, None, "the rest goes on");
    File::create(&go).expect("the fifo's other end");
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(5));
    assert_proven(&run);
    let certificate = run.attempt().certificate.clone().expect("it has ended");
    assert_eq!(certificate.steps, [], "no process was signalled");
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "first\nlast\n");
}

/// clone(2) with `CLONE_PARENT`: the new process is no child of the leader, and not of the first process either.
// promise: N-8a
async fn sibling_made_by_leader_is_in_tree(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    let flags = nix::libc::CLONE_PARENT | nix::libc::SIGCHLD;
    let script = format!(
        "$| = 1; $SIG{{TERM}} = sub {{ print \"asked\\n\"; exit 0 }}; \
         my $pid = syscall({}, {flags}, 0, 0, 0, 0); exit 3 if $pid; \
         for (1..50) {{ select(undef, undef, undef, 0.02) }} print \"done\\n\"; exit 0",
        nix::libc::SYS_clone
    );
    for (action, said) in [
        (pb::LeaderExitAction::Stop, "asked\n"),
        (pb::LeaderExitAction::Drain, "done\n"),
    ] {
        let spec = private(argv(&["/usr/bin/perl", "-e", &script]).on_leader_exit(action, None));
        let run = must("spawn", client.spawn(spec).await);
        let run = must("wait", client.ended(&run.run_id).await);
        assert_eq!(run.code(), Some(3), "{run:?}");
        assert_proven(&run);
        let heard = must("stream", client.hear_all(&run.run_id, 0).await);
        assert_eq!(heard.text(), said, "{action:?}");
        let certificate = run.attempt().certificate.clone().expect("it has ended");
        assert_eq!(certificate.leftovers.len(), 1, "{certificate:?}");
    }
}

// promise: N-8
async fn first_process_ignores_polite_signals(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    let script = "for s in KILL TERM STOP INT HUP USR1 CHLD; do kill -$s 1; done; echo up; while :; do (: &); sleep 0.01; done";
    let run = must("spawn", client.spawn(private(sh(script))).await);
    client.hear_up(&run.run_id).await;
    let init = init_of(&run);
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        kill_exactly(&init, signal);
    }
    assert!(init.is_alive());
    // init still reaps exited orphans.
    let reaped = || {
        let all = procfs::all();
        let zombie = |p: &Proc| p.ppid == init.pid && p.is_zombie();
        (!all.iter().any(zombie)).then_some(())
    };
    eventually("no zombie is left to it", PATIENCE, reaped).await;
    let run = must("abort", client.abort(&run.run_id).await);
    assert_proven(&run);
}

/// A file by which a pid namespace can be entered, for as long as this lives.
struct Door(PathBuf);

impl Door {
    fn to(pid: u32, at: &Path) -> Self {
        File::create(at).expect("a file");
        let namespace = PathBuf::from(format!("/proc/{pid}/ns/pid"));
        let none = None::<&str>;
        mount(Some(&namespace), at, none, MsFlags::MS_BIND, none).expect("it can be mounted");
        Self(at.to_owned())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

// promise: N-7
async fn no_process_leaves_private_pid_namespace(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    let mut stranger = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "sleep", "1000"])
        .spawn()
        .expect("unshare starts");
    let child = || {
        let all = procfs::all();
        let mut all = all.into_iter();
        all.find(|p| p.ppid == stranger.id().cast_signed())
    };
    let first = eventually("it has a child", PATIENCE, child).await;
    let door = Door::to(
        first.pid.cast_unsigned(),
        &kennel.scratch().join("namespace"),
    );
    let script = format!("nsenter --pid={} setsid sleep 1000 2>&1", door.0.display());
    // Without a private namespace, nsenter reaches the other one.
    let shared = must("spawn", client.spawn(sh(&script)).await);
    let print = eventually("it is there", PATIENCE, || {
        let print = Footprint::of_run(&shared);
        (print.seen_len() >= 2).then_some(print)
    });
    let print = print.await;
    must("abort", client.abort(&shared.run_id).await);
    for left in print.count().alive() {
        kill_exactly(&left, Signal::SIGKILL);
    }

    let run = must("spawn", client.spawn(private(sh(&script))).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_proven(&run);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(
        heard.text().contains("Invalid argument"),
        "{}",
        heard.text()
    );
    drop(door);
    stranger.kill().expect("own child");
    stranger.wait().expect("own child");
}

/// Returns a value of the error's metadata.
fn fact(status: &Status, name: &str) -> String {
    let details = status.get_error_details();
    let info = details.error_info().expect("an error has a reason");
    info.metadata[name].clone()
}

// promise: N-9
async fn unavailable_namespace_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mark = kennel.scratch().join("ran");
    let touch = sh(&format!("echo ran > {}", mark.display()));
    // The minimum requires a private namespace, which was not requested.
    let mut spec = touch.clone();
    spec.set_min_containment(pb::Containment::PrivatePidns);
    let refused = client.spawn(spec).await.expect_err("it is not asked for");
    let refusal = complaint(&refused);
    assert_eq!(refusal.reason, "CONTAINMENT_UNAVAILABLE");
    assert!(fact(&refused, "why").contains("private pid namespace"));
    assert_eq!(fact(&refused, "wanted"), "CONTAINMENT_PRIVATE_PIDNS");
    // No process can be detached in a namespace that ends with the run.
    let spec = private(touch).on_leader_exit(pb::LeaderExitAction::Keep, None);
    let refused = client.spawn(spec).await.expect_err("it contradicts itself");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::InvalidArgument, "INVALID_FIELD")
    );
    assert_eq!(refusal.fields, ["spec.on_leader_exit.action"]);
    assert!(!mark.exists());
    // A private namespace also satisfies weaker minimums.
    let mut spec = private(sh("exit 0"));
    spec.set_min_containment(pb::Containment::Cgroup);
    if may_make_namespaces() {
        let run = must("spawn", client.spawn(spec).await);
        assert_proven(&must("wait", client.ended(&run.run_id).await));
    }
}

// promise: N-9
#[tokio::test(flavor = "multi_thread")]
async fn private_pid_namespace_needs_privilege() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let kennel = Kennel::start(Options {
        user: User::Unprivileged,
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let host = client.server_info().await.and_then(|info| info.host);
    let host = host.expect("a host");
    let found = host.capabilities.iter().find(|c| c.name == "pid_namespace");
    let found = found.expect("it was tried out");
    assert!(
        !found.available && found.why.contains("unshare"),
        "{found:?}"
    );
    let id = new_run_id();
    let refused = client.spawn_as(&id, private(sh("exit 0"))).await;
    let refused = refused.expect_err("it has no privilege");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::FailedPrecondition, "CAPABILITY_MISSING")
    );
    assert_eq!(fact(&refused, "field"), "spec.pid_namespace");
    let all = must("list", client.list_all(pb::RunFilter::default(), 0).await);
    assert_eq!(all, []);
    let (run, existing) = must("spawn", client.spawn_as(&id, sh("exit 0")).await);
    assert!(!existing, "the key is free");
    must("wait", client.ended(&run.run_id).await);

    let words = ["run", "--pid-namespace", "private"];
    let mut command = kennel.command_of_user(&kennel.program());
    command
        .args(words)
        .args(["--server", &kennel.address(), "--", "true"]);
    let output = run_to_end(command, PATIENCE).await;
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--pid-namespace"), "{said}");
}

// promise: N-6
async fn command_line_runs_in_private_pid_namespace(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let words = [
        "run",
        "--pid-namespace",
        "private",
        "--min-containment",
        "private-pidns",
        "--",
        "sh",
        "-c",
        "echo $$; exit 3",
    ];
    let output = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert_eq!(text(&output), "2");
    assert_eq!(output.status.code(), Some(3));
    let mut client = kennel.client().await;
    let all = must("list", client.list_all(pb::RunFilter::default(), 0).await);
    assert_proven(&must("wait", client.ended(&all[0].run_id).await));
}

/// The terminal is given by the keeper, its foreground is named by numbers of another namespace.
// promise: N-8b
async fn terminal_is_the_commands_in_namespace_too(kennel: &Kennel) {
    if !may_make_namespaces() {
        return;
    }
    let mut client = kennel.client().await;
    let waits = "trap 'echo got' INT; trap 'stty size' WINCH; test -t 0 && tty > /dev/null; echo up; while :; do sleep 0.02; done";
    for (settings, way) in [
        ("", InterruptMethod::TerminalKey),
        ("stty -isig;", InterruptMethod::TerminalForeground),
    ] {
        let spec = sh(&format!("stty -echo; {settings} {waits}"));
        let spec = private(spec.on_terminal(pb::Terminal {
            rows: Some(9),
            cols: Some(50),
            term: String::new(),
        }));
        let run = must("spawn", client.spawn(spec).await);
        client.hear_text(&run.run_id, "up\r\n").await;
        let print = Footprint::of_run(&run);
        let method = client.interrupted_by(&run.run_id, "").await;
        assert_eq!(must("interrupt", method), way, "{settings}");
        client.hear_text(&run.run_id, "got\r\n").await;
        must("resize", client.resize(&run.run_id, 11, 60).await);
        client.hear_text(&run.run_id, "11 60\r\n").await;
        kennel.kill_server();
        client = kennel.client().await;
        must("resize", client.resize(&run.run_id, 12, 61).await);
        client.hear_text(&run.run_id, "12 61\r\n").await;
        let ended = must("abort", client.abort(&run.run_id).await);
        assert_proven(&ended);
        print.assert_nothing_left();
    }
}
