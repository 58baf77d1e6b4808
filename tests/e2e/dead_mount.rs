//! A file system that does not answer, such as one whose server is away: it delays the calls that name it, and no other.

use kennel_proto::pb;
use kennel_tests::{
    Client, Kennel, PATIENCE, RunExt, argv, cases, client::Complaint, complaint, eventually, must,
    new_run_id, procfs::Proc,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::Code;

/// Calls at once: more than the server has threads for its tasks.
const CALLS: usize = 8;

/// A mounted file system without a server, until this is dropped.
struct DeadMount {
    at: PathBuf,
    /// Its server's connection, from which nothing is read.
    server: Option<File>,
}

impl DeadMount {
    fn make(at: PathBuf) -> Self {
        fs::create_dir(&at).expect("own directory");
        let server = File::options().read(true).write(true).open("/dev/fuse");
        let server = server.expect("the kernel has FUSE, and this is root");
        let how = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            server.as_raw_fd()
        );
        let none = MsFlags::empty();
        mount(Some("dead"), &at, Some("fuse"), none, Some(how.as_str())).expect("it is mounted");
        Self {
            at,
            server: Some(server),
        }
    }
}

/// What waits for it fails first, then it is unmounted.
impl Drop for DeadMount {
    fn drop(&mut self) {
        drop(self.server.take());
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

async fn run_true(client: &mut Client) {
    let run = must("spawn", client.spawn(argv(&["true"])).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(0), "{run:?}");
}

cases! {
    fn dead_mounts(Kennel::on_sqlite().await);
    unanswered_command_delays_no_other_call,
    run_in_unanswered_directory_can_be_aborted,
}

// promise: RW-150
async fn unanswered_command_delays_no_other_call(kennel: &Kennel) {
    let dead = DeadMount::make(kennel.scratch().join("dead-command"));
    let command = dead.at.join("x").display().to_string();
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let mut client = kennel.client().await;
        let spec = argv(&[command.as_str()]);
        calls.push(tokio::spawn(async move { client.spawn(spec).await }));
    }
    // These Spawn calls block for five seconds.
    eventually("they are on their way", PATIENCE, || {
        (blocked_threads(kennel, |_| true) > 0).then_some(())
    })
    .await;
    let mut client = kennel.client().await;
    for _ in 0..5 {
        run_true(&mut client).await;
    }
    for call in calls {
        let refused = call.await.expect("no panic").expect_err("no file answers");
        let Complaint { code, reason, .. } = complaint(&refused);
        assert_eq!(
            (code, reason.as_str()),
            (Code::FailedPrecondition, "SPAWN_FAILED")
        );
        let message = refused.message();
        assert!(message.contains("x (no answer in 5 s)"), "{message}");
    }
}

// promise: RW-150
async fn run_in_unanswered_directory_can_be_aborted(kennel: &Kennel) {
    let dead = DeadMount::make(kennel.scratch().join("dead-directory"));
    let id = new_run_id();
    let spec = in_directory(&dead.at.join("x"));
    let mut caller = kennel.client().await;
    let spawning = {
        let id = id.clone();
        tokio::spawn(async move { caller.spawn_as(&id, spec).await })
    };
    let server = kennel.server().expect("it serves");
    let is_of_run = |proc: &Proc| proc.pid != server.pid;
    eventually("its child is in the directory", PATIENCE, || {
        (blocked_threads(kennel, is_of_run) > 0).then_some(())
    })
    .await;
    let mut client = kennel.client().await;
    run_true(&mut client).await;
    assert!(!spawning.is_finished(), "its child waits for the directory");

    let ending = client.abort_with(&id, Some(Duration::ZERO), pb::AbortWait::TreeEmpty);
    must("abort", ending.await);

    let refused = spawning.await.expect("no panic").expect_err("aborted");
    assert_eq!(complaint(&refused).reason, "RUN_STOPPED");
}

/// Number of threads that wait for a file system and for no signal but SIGKILL, in those processes of the service.
fn blocked_threads(kennel: &Kennel, is_counted: impl Fn(&Proc) -> bool) -> usize {
    let counted = kennel.descendants().into_iter().filter(is_counted);
    let tasks = counted.filter_map(|proc| fs::read_dir(format!("/proc/{}/task", proc.pid)).ok());
    let stats = tasks
        .flat_map(Iterator::flatten)
        .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.filter(|stat| stat.contains(") D ")).count()
}

fn in_directory(at: &Path) -> pb::RunSpec {
    pb::RunSpec {
        cwd: Some(at.display().to_string()),
        ..argv(&["/bin/true"])
    }
}
