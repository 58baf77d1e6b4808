//! Another boot, another container: recorded numbers identify no process here.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Client, Kennel, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, cases, complaint,
    kennel::{bare_command, kill_exactly, reap_orphans, serve_words},
    must,
    procfs::{self, Proc},
    programs, sh,
    wait::{eventually, eventually_async},
};
use nix::sys::signal::Signal;
use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
};
use tempfile::TempDir;

/// Unrelated processes that have, in the second container, the numbers that runs had in the first.
const STRANGERS: usize = 60;
/// Distinguishes them from all others of this machine.
const STRANGERS_WORD: &str = "86421";

fn adopted(mut spec: pb::RunSpec) -> pb::RunSpec {
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    spec
}

// promise: I-4
#[tokio::test(flavor = "multi_thread")]
async fn runs_of_another_boot_are_closed_without_signals() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "echo up; exec sleep 1000";
    let mut alive = Vec::new();
    for spec in [sh(script), adopted(sh(script))] {
        let run = must("spawn", client.spawn(spec).await);
        client.hear_up(&run.run_id).await;
        let leader = Proc::read(run.attempt().pid).expect("it runs");
        alive.push((run, leader));
    }
    let done = must("spawn", client.spawn(sh("echo done; exit 4")).await);
    must("wait", client.ended(&done.run_id).await);
    // With another boot id, live processes still match recorded pids and start times: only the boot shows they are
    // unrelated.
    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for shim in shims {
            kill_exactly(&shim, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    kennel.seem_rebooted();
    kennel.restart().await;

    let mut client = kennel.client().await;
    for (run, leader) in &alive {
        let ended = must("wait", client.ended(&run.run_id).await);
        assert_eq!(
            (ended.state(), ended.reason()),
            (RunState::Lost, "rebooted")
        );
        assert_eq!((ended.code(), ended.signal()), (None, None), "{ended:?}");
        let heard = must("stream", client.hear_all(&run.run_id, 0).await);
        assert_eq!(heard.text(), "up\n");
        assert!(heard.signals().is_empty(), "{:?}", heard.signals());
        assert!(leader.is_alive(), "a stranger was ended");
    }
    let done = must("get", client.get(&done.run_id).await);
    assert_eq!((done.code(), done.reason()), (Some(4), "exited"));
    for (_, leader) in alive {
        kill_exactly(&leader, Signal::SIGKILL);
        eventually("it is reaped", PATIENCE, || {
            reap_orphans();
            (!leader.is_alive()).then_some(())
        })
        .await;
    }
}

/// `kennel serve` as the first process of a pid namespace of its own, as in a container.
struct Container {
    /// The outer process: with its death the kernel ends all processes inside.
    outer: Child,
    socket: PathBuf,
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.outer.kill();
        let _ = self.outer.wait();
    }
}

impl Container {
    async fn start(dir: &TempDir, strangers: usize) -> Self {
        let script = format!(
            r#"i=0; while [ $i -lt {strangers} ]; do sleep {STRANGERS_WORD} & i=$((i + 1)); done; exec "$0" "$@""#
        );
        let mut command = bare_command("unshare".as_ref());
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .args(["sh", "-ec", &script])
            .arg(programs::kennel())
            .args(serve_words(dir.path(), None))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let outer = command.spawn().expect("unshare starts");
        let socket = dir.path().join("s/kennel.sock");
        let container = Self { outer, socket };
        container.info().await;
        container
    }

    async fn client(&self) -> Client {
        eventually_async("it takes a connection", PATIENCE, || async {
            Client::connect(&self.socket).await.ok()
        })
        .await
    }

    async fn info(&self) -> pb::ServerInfo {
        eventually_async("it answers", PATIENCE, || async {
            self.client().await.server_info().await
        })
        .await
    }

    fn inside(&self) -> Vec<Proc> {
        procfs::descendants(&procfs::all(), pid_of(&self.outer))
    }

    fn strangers(&self) -> usize {
        let is_stranger = |proc: &&Proc| {
            proc.cmdline()
                .last()
                .is_some_and(|word| word == STRANGERS_WORD)
        };
        self.inside().iter().filter(is_stranger).count()
    }

    /// Ends it as a container runtime does.
    async fn end(mut self) {
        let info = self.info().await;
        let first = self.inside().into_iter().find(|proc| {
            proc.cmdline().get(1).is_some_and(|word| word == "serve")
                && proc.ppid == pid_of(&self.outer)
        });
        kill_exactly(&first.expect("the keeper is the first"), Signal::SIGTERM);
        let status = eventually("it ends", SHUTDOWN_LIMIT, || {
            self.outer.try_wait().expect("own child")
        })
        .await;
        assert_eq!(status.code(), Some(0));
        let base = info.host.map(|host| host.cgroup_base).unwrap_or_default();
        assert!(
            base.is_empty() || !Path::new(&base).exists(),
            "{base} is left"
        );
    }

    /// Kills it as an impatient container runtime does.
    async fn kill(mut self) {
        let inside = self.inside();
        self.outer.kill().expect("own child");
        self.outer.wait().expect("own child");
        eventually("no process is left inside", PATIENCE, || {
            reap_orphans();
            inside.iter().all(|proc| !proc.is_alive()).then_some(())
        })
        .await;
    }
}

fn pid_of(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("pids are small")
}

fn directory() -> TempDir {
    let dir = tempfile::Builder::new().prefix("kennel-test-").tempdir();
    dir.expect("a temporary directory can be made")
}

cases! {
    fn containers_on_one_directory(directory());
    runs_of_another_container_are_closed_without_signals,
    service_runs_where_no_run_survives_its_keeper,
}

// promise: I-4
async fn runs_of_another_container_are_closed_without_signals(dir: &TempDir) {
    let mut inodes = Vec::new();
    let mut before: Option<pb::Run> = None;
    // The kernel may reuse the inode of a removed namespace.
    for round in 0..4 {
        let container = Container::start(dir, if round == 0 { 0 } else { STRANGERS }).await;
        let host = container.info().await.host.expect("it says where it is");
        inodes.push((
            host.pid_namespace_inode,
            host.pid_namespace_init_start_ticks,
        ));
        let mut client = container.client().await;
        if let Some(run) = before.take() {
            let ended = must("wait", client.ended(&run.run_id).await);
            assert_eq!(
                (ended.state(), ended.reason()),
                (RunState::Lost, "rebooted"),
                "{ended:?} in {inodes:?}"
            );
            let heard = must("stream", client.hear_all(&run.run_id, 0).await);
            assert_eq!(heard.text(), "up\n");
            assert!(heard.signals().is_empty(), "{:?}", heard.signals());
            // Some unrelated processes may still be before exec; ended ones would not appear.
            eventually("all strangers are there", PATIENCE, || {
                (container.strangers() == STRANGERS).then_some(())
            })
            .await;
        }
        let spec = sh("echo up; while :; do sleep 0.05; done");
        let run = must("spawn", client.spawn(spec).await);
        client.hear_up(&run.run_id).await;
        before = Some(run);
        container.kill().await;
    }
}

// promise: R-50b
async fn service_runs_where_no_run_survives_its_keeper(dir: &TempDir) {
    let container = Container::start(dir, 0).await;
    let host = container.info().await.host.expect("it says where it is");
    let adoption = host.capabilities.iter().find(|c| c.name == "adoption");
    assert!(adoption.is_some_and(|c| !c.available), "{host:?}");
    let mut client = container.client().await;
    let service = || sh("exit 7").kind_of(pb::RunKind::Service);
    let run = must("spawn", client.spawn(service()).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!((run.code(), run.reason()), (Some(7), "exited"));
    let refused = client.spawn(adopted(service())).await;
    let refused = refused.expect_err("that was asked for, and cannot be");
    assert_eq!(complaint(&refused).reason, "CAPABILITY_MISSING");
    // The orderly end of the last container removes the control group directory.
    container.end().await;
}
