//! A file system that does not answer, such as one whose server is away: it delays the calls that name it, and no other.

use kennel_proto::pb;
use kennel_tests::{Client, Kennel, RunExt, argv, client::Complaint, complaint, must, new_run_id};
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

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_command_delays_no_other_call() {
    let kennel = Kennel::on_sqlite().await;
    let dead = DeadMount::make(kennel.scratch().join("dead"));
    let command = dead.at.join("x").display().to_string();
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let mut client = kennel.client().await;
        let spec = argv(&[command.as_str()]);
        calls.push(tokio::spawn(async move { client.spawn(spec).await }));
    }
    // They are on their way, and answered after five seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn run_in_unanswered_directory_can_be_aborted() {
    let kennel = Kennel::on_sqlite().await;
    let dead = DeadMount::make(kennel.scratch().join("dead"));
    let id = new_run_id();
    let spec = in_directory(&dead.at.join("x"));
    let mut caller = kennel.client().await;
    let spawning = {
        let id = id.clone();
        tokio::spawn(async move { caller.spawn_as(&id, spec).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut client = kennel.client().await;
    run_true(&mut client).await;
    assert!(!spawning.is_finished(), "its child waits for the directory");

    must("abort", client.abort(&id).await);

    let refused = spawning.await.expect("no panic").expect_err("aborted");
    assert_eq!(complaint(&refused).reason, "RUN_STOPPED");
}

fn in_directory(at: &Path) -> pb::RunSpec {
    pb::RunSpec {
        cwd: Some(at.display().to_string()),
        ..argv(&["/bin/true"])
    }
}
