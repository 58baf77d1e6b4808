//! The rest of a tree when its leader exits by itself, in every way in which it may.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{
    self, AbortWait, LeaderExitAction, RunState, StreamsEnd, WaitCondition, tree_verdict::Verdict,
};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, eventually,
    kennel::{assert_refused, detached_call, kill_exactly, reap_orphans},
    must, new_run_id,
    procfs::Proc,
    programs, sh,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

with_and_without_cgroup!(
    detached_process_is_named_and_outlives_the_run,
    killed_shim_ends_tree_under_any_policy,
    pause_ends_with_its_leader,
    keeper_death_leaves_only_detached_processes,
    next_start_removes_traces_of_detached_process,
    detached_process_may_not_call_after_restart,
);

/// A grace that a polite child never needs.
const LONG_GRACE: Duration = Duration::from_secs(20);

/// Returns a leader that starts two more, one of them in a session of its own and without the marker, and ends with
/// this command when the file is there.
fn family(go: &Path, end: &str) -> pb::RunSpec {
    let naughty = programs::naughty();
    let naughty = naughty.display();
    sh(&format!(
        "{naughty} double-fork; {naughty} sleep & echo family; \
         while [ ! -e '{}' ]; do sleep 0.02; done; {end}",
        go.display()
    ))
    .grace(LONG_GRACE)
}

const DRAIN: (LeaderExitAction, Option<Duration>) = (LeaderExitAction::Drain, None);
const KEEP: (LeaderExitAction, Option<Duration>) = (LeaderExitAction::Keep, None);

/// A family under a policy.
struct Scene {
    run: pb::Run,
    print: Footprint,
    /// The processes except the leader.
    rest: Vec<Proc>,
    /// The file that lets the leader exit.
    go: PathBuf,
}

impl Scene {
    async fn set(kennel: &Kennel, policy: (LeaderExitAction, Option<Duration>)) -> Self {
        Self::with_end(kennel, policy, "exit 3").await
    }

    async fn with_end(
        kennel: &Kennel,
        (action, timeout): (LeaderExitAction, Option<Duration>),
        end: &str,
    ) -> Self {
        let mut client = kennel.client().await;
        let go = kennel.scratch().join(format!("go-{}", new_run_id()));
        let spec = family(&go, end).on_leader_exit(action, timeout);
        let run = must("spawn", client.spawn(spec).await);
        // The three processes print their lines in any order.
        client.hear_text(&run.run_id, "family\n").await;
        client.hear_up(&run.run_id).await;
        let attempt = run.attempt();
        let (leader, shim) = (attempt.pid, attempt.shim_pid);
        let is_rest = |proc: &Proc| {
            let words = proc.cmdline();
            let is = |word: &str| words.iter().any(|w| w == word);
            // A shell before exec already has the arguments, but not the name.
            proc.comm == "naughty" && proc.pid != leader && (is("sleep") || is("in-own-session"))
        };
        let rest = eventually("both have begun", PATIENCE, || {
            let all = kennel_tests::procfs::all();
            let below = kennel_tests::procfs::descendants(&all, shim);
            let rest: Vec<Proc> = below.into_iter().filter(is_rest).collect();
            (rest.len() == 2).then_some(rest)
        })
        .await;
        let print = Footprint::of_run(&run);
        Self {
            run,
            print,
            rest,
            go,
        }
    }

    fn leader_ends(&self) {
        fs::write(&self.go, b"").expect("a file");
    }

    /// Waits for the leader's exit while the server is halted: shim and keeper have handled it.
    async fn leader_ends_unheard(&self, kennel: &Kennel) {
        let keeper = kennel.keeper_pid();
        let (leader, shim) = (self.run.attempt().pid, self.run.attempt().shim_pid);
        self.leader_ends();
        eventually("the leader is reaped", PATIENCE, || {
            Proc::read(leader).is_none().then_some(())
        })
        .await;
        // Once shim and keeper sleep, all messages are sent and received.
        for pid in [shim, keeper] {
            eventually("it rests", PATIENCE, || {
                Proc::read(pid).filter(|proc| proc.state == 'S')
            })
            .await;
        }
    }

    async fn leader_exited(&self, kennel: &Kennel) -> pb::Run {
        let mut client = kennel.client().await;
        let waited = client.wait(&self.run.run_id, WaitCondition::LeaderExited);
        let (run, reached) = must("wait", waited.await);
        assert!(reached);
        run
    }

    async fn ended(&self, kennel: &Kennel) -> pb::Run {
        let mut client = kennel.client().await;
        must("wait", client.ended(&self.run.run_id).await)
    }

    fn all_live(&self) -> bool {
        self.rest.iter().all(Proc::is_alive)
    }

    /// Ends the detached processes; then nothing of the run or its containment is left.
    async fn clear(self) {
        assert!(self.all_live());
        let shim = Proc::read(self.run.attempt().shim_pid).expect("it reaps them");
        for proc in &self.rest {
            kill_exactly(proc, Signal::SIGKILL);
        }
        eventually("shim and group have gone", PATIENCE, || {
            reap_orphans();
            (!shim.is_alive() && !self.group_exists() && self.print.count().is_empty())
                .then_some(())
        })
        .await;
    }

    fn group_exists(&self) -> bool {
        let identity = self.run.attempt().identity.as_ref();
        let path = identity.and_then(|i| i.cgroup_path.as_ref());
        path.is_some_and(|path| Path::new(path).exists())
    }

    /// Asserts that the verdict lists the remaining processes, and no others.
    fn assert_kept(&self, run: &pb::Run) {
        let verdict = run.tree_verdict.as_ref().and_then(|v| v.verdict.as_ref());
        let Some(Verdict::Kept(kept)) = verdict else {
            panic!("{run:?}");
        };
        assert_eq!(kept.unlisted, 0);
        let mut named: Vec<_> = kept
            .processes
            .iter()
            .map(|p| (p.pid, p.start_ticks, p.name.as_str()))
            // The shell's last `sleep` may remain; its name is empty if it exits during the scan.
            .filter(|(_, _, name)| !["sleep", ""].contains(name))
            .collect();
        named.sort_unstable();
        let mut there: Vec<_> = self
            .rest
            .iter()
            .map(|p| (p.pid, p.start_ticks, "naughty"))
            .collect();
        there.sort_unstable();
        assert_eq!(named, there);
    }
}

fn halt_server(kennel: &Kennel) -> Proc {
    let server = kennel.server().expect("a server");
    kill_exactly(&server, Signal::SIGSTOP);
    server
}

fn end_of(run: &pb::Run) -> (RunState, &str, Option<i32>) {
    (run.state(), run.reason(), run.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_by_itself_timeout_or_abort() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        drain_is_read_until_the_last_process,
        drain_is_stopped_after_its_timeout,
        an_abort_ends_a_drain,
    }
}

// promise: W-2
async fn drain_is_read_until_the_last_process(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "(while [ ! -e '{}' ]; do sleep 0.02; done; echo late) & echo early",
        go.display()
    );
    let spec = sh(&script).on_leader_exit(DRAIN.0, DRAIN.1);
    let run = must("spawn", client.spawn(spec).await);
    let mut print = Footprint::of_run(&run);
    print.learn(run.attempt().shim_pid);
    let waited = client.wait(&run.run_id, WaitCondition::LeaderExited).await;
    let (live, reached) = must("wait", waited);
    assert!(reached);
    assert_eq!((live.state(), live.code()), (RunState::Stopping, Some(0)));
    assert!(live.end_time.is_none(), "{live:?}");

    fs::write(go, b"").expect("a file");
    let run = must("wait", client.ended(&run.run_id).await);

    assert_eq!((run.state(), run.reason()), (RunState::Succeeded, "exited"));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    assert_eq!(run.attempt().streams_end(), StreamsEnd::Eof);
    run.three_ends();
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "early\nlate\n");
    assert!(heard.signals().is_empty(), "{:?}", heard.signals());
    print.assert_nothing_left();
}

// promise: W-3
async fn drain_is_stopped_after_its_timeout(kennel: &Kennel) {
    let timeout = Duration::from_millis(300);
    let scene = Scene::set(kennel, (DRAIN.0, Some(timeout))).await;
    scene.leader_ends();
    let run = scene.ended(kennel).await;

    assert_eq!(end_of(&run), (RunState::Failed, "exited", Some(3)));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    let [leader, _, tree] = run.three_ends();
    assert!(tree - leader >= 300_000, "{}", tree - leader);
    let mut client = kennel.client().await;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.signals()[0], "SIGTERM", "with the run's grace");
    scene.print.assert_nothing_left();
}

// promise: W-4
async fn an_abort_ends_a_drain(kennel: &Kennel) {
    let scene = Scene::set(kennel, DRAIN).await;
    scene.leader_ends();
    scene.leader_exited(kennel).await;
    assert!(scene.all_live());

    let mut client = kennel.client().await;
    let run = must("abort", client.abort(&scene.run.run_id).await);

    assert_eq!(end_of(&run), (RunState::Cancelled, "aborted", Some(3)));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(heard.stations().contains(&"stopping"));
    scene.print.assert_nothing_left();
}

// promise: W-5, W-7
async fn detached_process_is_named_and_outlives_the_run(options: Options) {
    let kennel = Kennel::start(options).await;
    let scene = Scene::set(&kennel, KEEP).await;
    scene.leader_ends();
    let run = scene.ended(&kennel).await;

    assert_eq!(end_of(&run), (RunState::Failed, "exited", Some(3)));
    scene.assert_kept(&run);
    // A detached process still holds the streams.
    assert_eq!(run.attempt().streams_end(), StreamsEnd::Cut);
    assert!(run.attempt().tree_empty_time.is_none());

    let mut client = kennel.client().await;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let text = heard.text();
    let mut said: Vec<&str> = text.lines().collect();
    said.sort_unstable();
    assert_eq!(said, ["family", "left one behind", "up"]);
    assert!(heard.signals().is_empty(), "{:?}", heard.signals());
    // An Abort of an ended run succeeds and signals no process.
    let again = must("abort", client.abort(&run.run_id).await);
    assert_eq!(again, run);
    let listed = must("tree", client.tree(&run.run_id).await);
    assert!(listed.processes.is_empty(), "it is in no run any more");
    scene.clear().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn detaching_run_ends_by_crash_or_abort() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        crashed_leader_leaves_its_detached_processes,
        abort_ends_tree_that_would_be_detached,
        run_without_detached_processes_is_empty,
        output_of_detached_process_is_discarded_safely,
    }
}

// promise: W-5
async fn crashed_leader_leaves_its_detached_processes(kennel: &Kennel) {
    let scene = Scene::with_end(kennel, KEEP, "kill -SEGV $$").await;
    scene.leader_ends();
    let run = scene.ended(kennel).await;
    assert_eq!(run.signal().as_deref(), Some("SIGSEGV"));
    scene.assert_kept(&run);
    scene.clear().await;
}

// promise: W-8
async fn abort_ends_tree_that_would_be_detached(kennel: &Kennel) {
    let scene = Scene::set(kennel, KEEP).await;
    let mut client = kennel.client().await;
    let run = must("abort", client.abort(&scene.run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    scene.print.assert_nothing_left();
}

// promise: W-5
async fn run_without_detached_processes_is_empty(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = sh("sleep 0 & wait; echo done").on_leader_exit(KEEP.0, KEEP.1);
    let run = must("spawn", client.spawn(spec).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!((run.state(), run.reason()), (RunState::Succeeded, "exited"));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    assert_eq!(run.attempt().streams_end(), StreamsEnd::Eof);
    run.three_ends();
}

// promise: W-6
async fn output_of_detached_process_is_discarded_safely(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let (go, done) = (kennel.scratch().join("go"), kennel.scratch().join("done"));
    // Both streams get more than a pipe's capacity; a writer killed by SIGPIPE leaves no file.
    let script = format!(
        "(while [ ! -e '{go}' ]; do sleep 0.02; done; \
         head -c 1000000 /dev/zero && head -c 1000000 /dev/zero >&2 && : > '{done}') & echo said",
        go = go.display(),
        done = done.display()
    );
    let spec = sh(&script).on_leader_exit(KEEP.0, KEEP.1);
    let run = must("spawn", client.spawn(spec).await);
    let shim = Proc::read(run.attempt().shim_pid).expect("a shim");
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.attempt().streams_end(), StreamsEnd::Cut);

    fs::write(go, b"").expect("a file");
    eventually("all was written", PATIENCE, || done.exists().then_some(())).await;
    eventually("its shim ends with the last", PATIENCE, || {
        (!shim.is_alive()).then_some(())
    })
    .await;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "said\n", "an ended run has no more output");
    Footprint::of_id(&run.run_id).assert_nothing_left();
}

// promise: W-11a
async fn detached_process_may_not_call_after_restart(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let (go, said) = (kennel.scratch().join("go"), kennel.scratch().join("said"));
    let call = detached_call(&kennel.address(), &go, &said);
    let mut client = kennel.client().await;
    let spec = sh(&call).on_leader_exit(KEEP.0, KEEP.1);
    let run = must("spawn", client.spawn(spec).await);
    let shim = Proc::read(run.attempt().shim_pid).expect("a shim");
    must("wait", client.ended(&run.run_id).await);
    drop(client);
    kennel.terminate(PATIENCE).await;
    kennel.restart().await;
    fs::write(go, b"").expect("a file");
    assert_refused(&said).await;
    eventually("its shim ends with it", PATIENCE, || {
        reap_orphans();
        (!shim.is_alive()).then_some(())
    })
    .await;
}

// promise: W-4, W-7, W-12
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_drains_and_leaves_detached_processes() {
    let mut kennel = Kennel::on_sqlite().await;
    let drained = Scene::set(&kennel, DRAIN).await;
    let detached = Scene::set(&kennel, KEEP).await;
    drained.leader_ends();
    detached.leader_ends();
    drained.leader_exited(&kennel).await;
    detached.ended(&kennel).await;

    let status = kennel.terminate(PATIENCE).await;

    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    drained.print.assert_nothing_left();
    assert!(detached.all_live());
    // The detached run's shim and group end without a keeper.
    detached.clear().await;
    kennel.restart().await;
    let run = drained.ended(&kennel).await;
    assert_eq!(
        end_of(&run),
        (RunState::Cancelled, "server_shutdown", Some(3))
    );
}

// promise: W-9a
#[tokio::test(flavor = "multi_thread")]
async fn server_death_ends_neither_drains_nor_trees() {
    let kennel = Kennel::on_sqlite().await;
    let detached = Scene::set(&kennel, KEEP).await;
    let led = Scene::set(&kennel, KEEP).await;
    let drained = Scene::set(&kennel, DRAIN).await;
    drained.leader_ends();
    drained.leader_exited(&kennel).await;
    halt_server(&kennel);
    detached.leader_ends_unheard(&kennel).await;

    kennel.kill_server();

    let mut client = kennel.client().await;
    let run = must("get", client.get(&led.run.run_id).await);
    assert_eq!(run.state(), RunState::Running);
    let run = must("get", client.get(&drained.run.run_id).await);
    assert_eq!((run.state(), run.code()), (RunState::Stopping, Some(3)));
    assert!(led.all_live() && drained.all_live());
    let run = detached.ended(&kennel).await;
    assert_eq!(end_of(&run), (RunState::Failed, "exited", Some(3)));
    detached.assert_kept(&run);
    detached.clear().await;
    must("abort", client.abort(&led.run.run_id).await);
    led.print.assert_nothing_left();
    let run = must("abort", client.abort(&drained.run.run_id).await);
    assert_eq!((run.reason(), run.code()), ("aborted", Some(3)));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    drained.print.assert_nothing_left();
}

// promise: W-8, W-9
async fn keeper_death_leaves_only_detached_processes(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let detached = Scene::set(&kennel, KEEP).await;
    let led = Scene::set(&kennel, KEEP).await;
    let drained = Scene::set(&kennel, DRAIN).await;
    drained.leader_ends();
    drained.leader_exited(&kennel).await;
    let stopping = stopping_without_its_leader(&kennel).await;
    let server = halt_server(&kennel);
    detached.leader_ends_unheard(&kennel).await;

    kennel.kill_keeper();
    kill_exactly(&server, Signal::SIGKILL);
    kennel.wait_for_exit(PATIENCE).await;

    // The shims carry out their stop plans.
    for print in [&led.print, &drained.print, &stopping] {
        print.until_nothing_is_left().await;
    }
    assert!(detached.all_live());
    // After the restart, the row has the shim's record.
    kennel.restart().await;
    let run = detached.ended(&kennel).await;
    assert_eq!(end_of(&run), (RunState::Failed, "exited", Some(3)));
    detached.assert_kept(&run);
    detached.clear().await;
}

/// Begins the stop of a run that would detach processes; its leader exits at once, and a process ignores the signal.
async fn stopping_without_its_leader(kennel: &Kennel) -> Footprint {
    let mut client = kennel.client().await;
    let stubborn = programs::naughty();
    let script = format!(
        "trap 'exit 4' TERM; {} storm-node 1 & while :; do sleep 0.02; done",
        stubborn.display()
    );
    let spec = sh(&script)
        .grace(Duration::from_secs(2))
        .on_leader_exit(KEEP.0, KEEP.1);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let stop = client.abort_with(&run.run_id, None, AbortWait::LeaderExited);
    let stopping = must("abort", stop.await);
    assert_eq!(stopping.code(), Some(4), "it has ended, but not by itself");
    assert!(!print.count().is_empty(), "and not all of its tree");
    print
}

// promise: W-12
async fn next_start_removes_traces_of_detached_process(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let scene = Scene::set(&kennel, KEEP).await;
    scene.leader_ends();
    scene.ended(&kennel).await;
    let shim = Proc::read(scene.run.attempt().shim_pid).expect("it reaps them");
    let with_group = scene.group_exists();
    kennel.kill_service_after(|| {
        kill_exactly(&shim, Signal::SIGKILL);
    });
    kennel.wait_for_exit(PATIENCE).await;
    assert!(scene.all_live());
    for proc in &scene.rest {
        kill_exactly(proc, Signal::SIGKILL);
    }
    eventually("no process is left", PATIENCE, || {
        reap_orphans();
        scene.print.count().is_empty().then_some(())
    })
    .await;
    assert_eq!(
        scene.group_exists(),
        with_group,
        "no server was there to do it"
    );

    kennel.restart().await;
    assert!(!scene.group_exists());
}

fn kill_shim(scene: &Scene) {
    let shim = Proc::read(scene.run.attempt().shim_pid).expect("a shim");
    kill_exactly(&shim, Signal::SIGKILL);
}

// promise: T-7b, W-11
async fn killed_shim_ends_tree_under_any_policy(options: Options) {
    let kennel = Kennel::start(options).await;
    let scene = Scene::set(&kennel, KEEP).await;
    kill_shim(&scene);
    scene.ended(&kennel).await;
    // The keeper reaps processes that the dead shim would have reaped.
    scene.print.until_nothing_is_left().await;

    let scene = Scene::set(&kennel, DRAIN).await;
    scene.leader_ends();
    scene.leader_exited(&kennel).await;
    kill_shim(&scene);
    let run = scene.ended(&kennel).await;
    assert_eq!((run.reason(), run.code()), ("exited", Some(3)));
    scene.print.until_nothing_is_left().await;
}

/// Pauses, and lets an unrelated process kill the leader.
async fn leader_is_killed_in_a_pause(kennel: &Kennel, scene: &Scene) {
    let mut client = kennel.client().await;
    let run = must("pause", client.pause(&scene.run.run_id).await);
    assert_eq!(run.state(), RunState::Paused);
    let leader = Proc::read(run.attempt().pid).expect("it is paused");
    kill_exactly(&leader, Signal::SIGKILL);
    scene.leader_exited(kennel).await;
}

/// Checks that a process that is neither frozen nor stopped dies of a signal that it may handle.
async fn rest_runs(scene: &Scene) {
    for proc in &scene.rest {
        kill_exactly(proc, Signal::SIGTERM);
        eventually("it hears", PATIENCE, || {
            reap_orphans();
            (!proc.is_alive()).then_some(())
        })
        .await;
    }
}

// promise: W-10
async fn pause_ends_with_its_leader(options: Options) {
    let kennel = Kennel::start(options).await;
    let detached = Scene::set(&kennel, KEEP).await;
    leader_is_killed_in_a_pause(&kennel, &detached).await;
    let run = detached.ended(&kennel).await;
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
    detached.assert_kept(&run);
    rest_runs(&detached).await;

    let drained = Scene::set(&kennel, DRAIN).await;
    leader_is_killed_in_a_pause(&kennel, &drained).await;
    assert!(drained.all_live());
    rest_runs(&drained).await;
    let run = drained.ended(&kennel).await;
    assert_eq!((run.reason(), run.tree_is_empty()), ("exited", true));
}
