//! Processes that SIGKILL does not end: one whose tracer does not detach, one that became root under a server without
//! privilege, one that is frozen where no signal reaches it.

use crate::{play_apart, play_together, together::Together, with_and_without_cgroup};
use kennel_proto::pb::{self, AbortWait, RunState, tree_verdict::Verdict};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, eventually,
    eventually_async,
    kennel::{User, kill_exactly, reap_orphans},
    must,
    procfs::Proc,
    programs, sh,
};
use nix::{
    mount::{MsFlags, mount, umount},
    sys::{ptrace, signal::Signal},
    unistd::Pid,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};
use tonic_types::StatusExt as _;

with_and_without_cgroup!(unreachable_process_is_watched_over_a_crash);

#[tokio::test(flavor = "multi_thread")]
async fn survivors_of_sigkill_are_watched_until_gone() {
    play_apart! {
        stuck_runs_are_watched_until_they_end,
        unkillable_process_is_watched_over_a_crash,
    };
}

/// Each report takes the time after which a process counts as a survivor of SIGKILL, so all wait for it together.
async fn stuck_runs_are_watched_until_they_end() {
    let together = Together::new(Kennel::on_sqlite().await, 3);
    let shutdown = async |kennel: &mut Kennel| {
        let status = kennel.terminate(SHUTDOWN_LIMIT).await;
        assert_eq!(status.code(), Some(1), "{}", kennel.log());
    };
    let events = async {
        together.happens(shutdown).await;
        together.happens(Kennel::restart).await;
        let crash = async |kennel: &mut Kennel| kennel.kill_service_after(|| {});
        together.happens(crash).await;
        together.happens(Kennel::restart).await;
    };
    play_together! {
        &together, events;
        run_surviving_sigkill_is_not_over,
        stuck_run_does_not_delay_service_end,
        next_starts_watch_stuck_tree_and_close_it,
    };
}

// promise: T-26
async fn run_surviving_sigkill_is_not_over(together: &Together) {
    let mut client = together.client().await;
    let (run, tracer) = stuck(&mut client).await;
    let pid = run.attempt().pid;
    let print = Footprint::of_run(&run);

    let Some(Verdict::Stuck(stuck)) = run.tree_verdict.clone().and_then(|v| v.verdict) else {
        panic!("{run:?}")
    };
    let [process] = &stuck.processes[..] else {
        panic!("{stuck:?}")
    };
    assert_eq!((process.pid, process.state.as_str()), (pid, "Z"));
    assert!(process.why.contains("traces it"), "{process:?}");
    assert_eq!(run.state(), RunState::Stopping);
    assert_eq!((&run.end_reason, &run.end_time), (&None, &None));
    assert!(run.attempt().certificate.is_none());

    tracer.let_go();
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.reason(), "aborted");
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
    assert!(run.tree_is_empty(), "{run:?}");
    print.assert_nothing_left();
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let stations = heard.stations();
    let stuck = stations
        .iter()
        .filter(|station| **station == "stuck")
        .count();
    assert_eq!(stuck, 1, "{stations:?}");
    assert_eq!(stations.last(), Some(&"ended"), "{stations:?}");
    for _ in 0..4 {
        together.event().await;
    }
}

// promise: T-27
async fn stuck_run_does_not_delay_service_end(together: &Together) {
    let mut client = together.client().await;
    let (run, tracer) = stuck(&mut client).await;
    let print = Footprint::of_run(&run);

    together.event().await;
    // The shim keeps watching.
    let shim = Proc::read(run.attempt().shim_pid).expect("it watches");
    tracer.let_go();
    eventually("its shim is gone", PATIENCE, || {
        reap_orphans();
        (!shim.is_still_there()).then_some(())
    })
    .await;
    print.assert_nothing_left();
    together.event().await;

    let run = must("wait", together.client().await.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "the row was open: {run:?}");
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{run:?}");
    assert!(run.tree_is_empty(), "{run:?}");
    for _ in 0..2 {
        together.event().await;
    }
}

// promise: T-28
async fn next_starts_watch_stuck_tree_and_close_it(together: &Together) {
    let (run, tracer) = stuck(&mut together.client().await).await;
    let print = Footprint::of_run(&run);

    together.event().await;
    together.event().await;
    // The next service starts despite the stuck run.
    let again = reported_stuck(&mut together.client().await, &run.run_id).await;
    assert_eq!(pids(&again), [run.attempt().pid]);
    assert_eq!(again.state(), RunState::Stopping, "{again:?}");
    assert_eq!((&again.end_reason, &again.end_time), (&None, &None));

    together.event().await;
    together.event().await;
    let mut client = together.client().await;
    reported_stuck(&mut client, &run.run_id).await;
    tracer.let_go();
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{run:?}");
    assert!(run.tree_is_empty(), "{run:?}");
    print.assert_nothing_left();
}

// promise: T-11a, T-26a
async fn unkillable_process_is_watched_over_a_crash() {
    let options = Options {
        user: User::Unprivileged,
        ..Options::default()
    };
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let setpriv = kennel.scratch().join("setpriv");
    fs::copy("/usr/bin/setpriv", &setpriv).expect("util-linux is installed");
    fs::set_permissions(&setpriv, fs::Permissions::from_mode(0o4755)).expect("own file");
    let script = format!(
        "trap '' TERM; exec {} --reuid 0 --regid 0 --clear-groups sleep 300",
        setpriv.display()
    );
    let spec = sh(&script).grace(Duration::from_millis(100));
    let run = must("spawn", client.spawn(spec).await);
    let leader = eventually("it has become root", PATIENCE, || {
        let proc = Proc::read(run.attempt().pid)?;
        let status = fs::read_to_string(format!("/proc/{}/status", proc.pid)).ok()?;
        let is_root = status.contains("\nUid:\t0\t0\t0\t0\n");
        (is_root && proc.cmdline().contains(&"300".to_owned())).then_some(proc)
    })
    .await;
    // Kennel cannot stop root's process.
    let refused = client.pause(&run.run_id).await;
    let details = refused.expect_err("it continues").get_error_details();
    let metadata = &details.error_info().expect("an ErrorInfo").metadata;
    assert_eq!(metadata["pids"], leader.pid.to_string());
    let why = format!("{}: SIGSTOP is refused", leader.pid);
    assert!(metadata["why"].starts_with(&why), "{metadata:?}");
    assert!(metadata["why"].ends_with("uid 0"), "{metadata:?}");
    let asked = client.abort_with(&run.run_id, None, AbortWait::None).await;
    must("abort", asked);
    let reported = reported_stuck(&mut client, &run.run_id).await;
    assert_eq!(pids(&reported), [leader.pid]);
    assert!(whys(&reported)[0].contains("refused"), "{reported:?}");
    assert!(whys(&reported)[0].contains("uid 0"), "{reported:?}");

    kennel.kill_service_after(|| {});
    kennel.restart().await;
    let mut client = kennel.client().await;
    let reported = reported_stuck(&mut client, &run.run_id).await;
    assert_eq!(pids(&reported), [leader.pid]);
    assert!(whys(&reported)[0].contains("refused"), "{reported:?}");
    assert_eq!(reported.state(), RunState::Stopping, "{reported:?}");

    assert!(leader.is_alive());
    kill_exactly(&leader, Signal::SIGKILL);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    assert!(run.tree_is_empty(), "by its shim's word: {run:?}");
}

// promise: T-26a
async fn unreachable_process_is_watched_over_a_crash(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let freezer = match Freezer::make(kennel.scratch()) {
        Ok(freezer) => freezer,
        Err(why) => {
            eprintln!(
                "this host has no cgroup v1 freezer ({why}): state D is proven by \
                 stuck.rs::stuck_reason_follows_kernel_process_state alone"
            );
            return;
        }
    };
    let mut client = kennel.client().await;
    let script = format!("trap '' TERM; exec {} sleep", programs::naughty().display());
    let spec = sh(&script).grace(Duration::from_millis(100));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let pid = run.attempt().pid;
    freezer.freeze(pid);
    let asked = client.abort_with(&run.run_id, None, AbortWait::None).await;
    must("abort", asked);
    let reported = reported_stuck(&mut client, &run.run_id).await;
    assert_eq!(pids(&reported), [pid]);
    assert!(
        whys(&reported)[0].contains("no signal reaches it"),
        "{reported:?}"
    );

    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for shim in &shims {
            kill_exactly(shim, Signal::SIGKILL);
        }
    });
    kennel.restart().await;
    let mut client = kennel.client().await;
    let reported = reported_stuck(&mut client, &run.run_id).await;
    assert_eq!(pids(&reported), [pid]);
    assert!(
        whys(&reported)[0].contains("no signal reaches it"),
        "{reported:?}"
    );

    freezer.thaw();
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    let identity = run.attempt().identity.as_ref();
    let has_cgroup = identity.is_some_and(|i| i.cgroup_path.is_some());
    assert_eq!(run.tree_is_empty(), has_cgroup, "{run:?}");
    print.until_nothing_is_left().await;
}

/// Returns a run that was aborted and does not end, as long as its tracer lives.
async fn stuck(client: &mut Client) -> (pb::Run, Tracer) {
    let script = format!(
        "trap '' TERM INT; exec {} sleep",
        programs::naughty().display()
    );
    let spec = sh(&script).grace(Duration::from_millis(100));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let tracer = Tracer::of(run.attempt().pid);
    let asked = client.abort_with(&run.run_id, None, AbortWait::None).await;
    must("abort", asked);
    (reported_stuck(client, &run.run_id).await, tracer)
}

async fn reported_stuck(client: &mut Client, run_id: &str) -> pb::Run {
    eventually_async("it is reported stuck", PATIENCE, || {
        let (mut client, id) = (client.clone(), run_id.to_owned());
        async move {
            let run = must("get", client.get(&id).await);
            (!processes(&run).is_empty()).then_some(run)
        }
    })
    .await
}

fn processes(run: &pb::Run) -> Vec<pb::StuckProcess> {
    match run.tree_verdict.clone().and_then(|v| v.verdict) {
        Some(Verdict::Stuck(stuck)) => stuck.processes,
        None => Vec::new(),
        other => panic!("{other:?}: {run:?}"),
    }
}

fn pids(run: &pb::Run) -> Vec<i32> {
    processes(run).iter().map(|p| p.pid).collect()
}

fn whys(run: &pb::Run) -> Vec<String> {
    processes(run).into_iter().map(|p| p.why).collect()
}

/// A directory of a cgroup v1 freezer. A frozen process is in state D, and SIGKILL waits until it is thawed.
struct Freezer {
    dir: PathBuf,
    mounted: Option<PathBuf>,
}

impl Freezer {
    /// Makes one where the host has mounted the hierarchy, or mounts it for this test.
    fn make(scratch: &Path) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
        let is_freezer = |words: &Vec<&str>| {
            words.get(2) == Some(&"cgroup") && words[3].split(',').any(|option| option == "freezer")
        };
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect());
        let (base, mounted) = if let Some(words) = mounts.find(is_freezer) {
            (PathBuf::from(words[1]), None)
        } else {
            let base = scratch.join("freezer");
            fs::create_dir(&base).map_err(|e| e.to_string())?;
            let (kind, none) = (Some("cgroup"), MsFlags::empty());
            mount(Some("none"), &base, kind, none, Some("freezer"))
                .map_err(|e| format!("mount: {e}"))?;
            (base.clone(), Some(base))
        };
        let dir = base.join(format!("kennel-test-{}", std::process::id()));
        let this = Self { dir, mounted };
        fs::create_dir(&this.dir).map_err(|e| format!("{}: {e}", this.dir.display()))?;
        Ok(this)
    }

    fn freeze(&self, pid: i32) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string())
            .expect("root may move any process");
        fs::write(self.dir.join("freezer.state"), "FROZEN").expect("own directory");
    }

    fn thaw(&self) {
        fs::write(self.dir.join("freezer.state"), "THAWED").expect("own directory");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("freezer.state"), "THAWED");
        // A dead task leaves its cgroup shortly after its exit.
        for _ in 0..1000 {
            if fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        if let Some(base) = &self.mounted {
            let _ = umount(base);
        }
    }
}

/// A thread that traces a process. The process can exit, but is not reaped, until the thread ends.
struct Tracer {
    release: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Tracer {
    fn of(pid: i32) -> Self {
        let (seized, is_seized) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let seize = ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty());
            seized.send(seize).expect("the test waits");
            // `recv` returns when `release` is dropped.
            let _ = held.recv();
        });
        let seize = is_seized.recv().expect("the thread tells");
        seize.expect("root may trace its own child");
        Self { release, thread }
    }

    fn let_go(self) {
        drop(self.release);
        self.thread.join().expect("it ends");
    }
}
