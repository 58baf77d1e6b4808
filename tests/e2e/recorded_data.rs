//! Data directories as versions have left them when their host lost its power: each folder of `tests/recorded` has one,
//! and this version starts on it, loses nothing, and says of each run what is true. `next` is that of the version to
//! come, written by `make record`; the others never change.

use kennel_proto::pb::{self, RunKind, RunState};
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, SpecExt, argv,
    kennel::kill_exactly,
    must,
    procfs::Proc,
    programs, sh,
    wait::{eventually, eventually_async},
};
use nix::{sys::signal::Signal, unistd::Uid};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// With a `digest-key`, which seals the specs of these runs and nothing else.
const ARCHIVE: &str = "data.tar.gz";
/// Boot in which they were recorded: no host ever has it.
const BOOT: &str = "00000000-0000-4000-8000-00000000b007\n";
/// Label with the name of a run.
const LABEL: &str = "recorded";

/// A run, with what is known of it after another boot.
struct Recorded {
    name: &'static str,
    spec: fn() -> pb::RunSpec,
    /// Ends before the host does.
    ends: bool,
    state: RunState,
    reason: &'static str,
    code: Option<i32>,
    output: &'static str,
}

fn again(mode: pb::RestartMode) -> pb::RestartPolicy {
    pb::RestartPolicy {
        mode: mode.into(),
        delay: Some(kennel_tests::client::duration(Duration::from_hours(1))),
        max_delay: Some(kennel_tests::client::duration(Duration::from_hours(1))),
        ..pb::RestartPolicy::default()
    }
}

fn adopted(mut spec: pb::RunSpec) -> pb::RunSpec {
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    spec
}

const LIVES: &str = "echo up; exec sleep 1000";
const ALL: [Recorded; 10] = [
    Recorded {
        name: "ended",
        spec: || sh("echo up; echo err >&2; exit 7"),
        ends: true,
        state: RunState::Failed,
        reason: "exited",
        code: Some(7),
        output: "up\n",
    },
    Recorded {
        name: "silent",
        spec: || argv(&["/bin/true"]),
        ends: true,
        state: RunState::Succeeded,
        reason: "exited",
        code: Some(0),
        output: "",
    },
    Recorded {
        name: "aborted",
        spec: || sh(LIVES),
        ends: true,
        state: RunState::Cancelled,
        reason: "aborted",
        code: None,
        output: "up\n",
    },
    Recorded {
        name: "killed",
        spec: || sh("kill -9 $$"),
        ends: true,
        state: RunState::Failed,
        reason: "exited",
        code: None,
        output: "",
    },
    Recorded {
        name: "waiting",
        spec: || sh("echo up; exit 3").restart(again(pb::RestartMode::OnFailure)),
        ends: false,
        state: RunState::Lost,
        reason: "service_lost",
        code: Some(3),
        output: "up\n",
    },
    Recorded {
        name: "alive",
        spec: || sh(LIVES),
        ends: false,
        state: RunState::Lost,
        reason: "rebooted",
        code: None,
        output: "up\n",
    },
    Recorded {
        name: "paused",
        spec: || adopted(sh(LIVES)),
        ends: false,
        state: RunState::Lost,
        reason: "rebooted",
        code: None,
        output: "up\n",
    },
    Recorded {
        name: "with-input",
        spec: || adopted(sh("echo up; head -c 4; exec sleep 1000").open_input()),
        ends: false,
        state: RunState::Lost,
        reason: "rebooted",
        code: None,
        output: "up\nword",
    },
    Recorded {
        name: "ended-unseen",
        spec: || adopted(sh(LIVES)),
        ends: false,
        state: RunState::Failed,
        reason: "exited",
        code: None,
        output: "up\n",
    },
    Recorded {
        name: "service",
        spec: || {
            sh(LIVES)
                .kind_of(RunKind::Service)
                .restart(again(pb::RestartMode::Always))
        },
        ends: false,
        state: RunState::Running,
        reason: "none",
        code: None,
        output: "up\nup\n",
    },
];

fn temporary() -> TempDir {
    let dir = tempfile::Builder::new().prefix("kennel-test-").tempdir();
    dir.expect("a directory")
}

fn folders() -> Vec<PathBuf> {
    let all = fs::read_dir(programs::repository().join("tests/recorded")).expect("it is there");
    all.map(|folder| folder.expect("it is read").path())
        .filter(|folder| folder.is_dir())
        .collect()
}

fn tar(dir: &Path, words: &[&str]) {
    let done = Command::new("tar").arg("-C").arg(dir).args(words).status();
    assert!(done.expect("tar starts").success(), "tar {words:?}");
}

/// Content of the files of exit records.
fn exits(data: &Path) -> io::Result<Vec<Vec<u8>>> {
    let files = fs::read_dir(data.join("exits"))?;
    files.map(|file| fs::read(file?.path())).collect()
}

/// Plays all runs, and ends the host.
async fn record(archive: &Path) {
    assert!(Uid::effective().is_root(), "only root has another boot");
    let dir = temporary();
    let boot_id = dir.path().join("boot");
    fs::write(&boot_id, BOOT).expect("own directory");
    let boot_id = Some(boot_id);
    let options = Options {
        boot_id,
        words: vec!["--node-name", LABEL],
        ..Options::default()
    };
    let mut kennel = Kennel::start_in(dir, options).await;
    let mut client = kennel.client().await;
    let mut leader = None;
    for of in &ALL {
        let spec = (of.spec)().label(LABEL, of.name);
        let run = must("spawn", client.spawn(spec).await);
        if !of.output.is_empty() {
            client.hear_up(&run.run_id).await;
        }
        match of.name {
            "aborted" => drop(must("abort", client.abort(&run.run_id).await)),
            "paused" => drop(must("pause", client.pause(&run.run_id).await)),
            "with-input" => {
                must("write", client.write(&run.run_id, "w", None, b"word").await);
                client.hear_text(&run.run_id, "word").await;
            }
            "waiting" => {
                eventually_async("it waits", PATIENCE, async || {
                    let run = must("get", kennel.client().await.get(&run.run_id).await);
                    (run.state() == RunState::Backoff).then_some(())
                })
                .await;
            }
            "ended-unseen" => leader = Proc::read(run.attempt().pid),
            _ => {}
        }
        if of.ends {
            must("wait", client.ended(&run.run_id).await);
        }
    }
    let (data, shims) = (kennel.data_dir(), kennel.shims());
    let before = must("read", exits(&data));
    kennel.kill_service_after(|| {
        kill_exactly(&leader.expect("it runs"), Signal::SIGKILL);
        let recorded = || must("read", exits(&data)) != before;
        while !recorded() {
            std::thread::yield_now();
        }
        for shim in shims {
            kill_exactly(&shim, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    let archive = archive.to_str().expect("UTF-8");
    let words = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    let words = [&words[..], &["--exclude=*-shm", "-czf", archive, "data"]].concat();
    tar(kennel.scratch(), &words);
}

/// Returns state, reason, exit code and output of a run, once they are those of after another boot.
async fn outcome(kennel: &Kennel, of: &Recorded, run_id: &str) -> String {
    let mut client = kennel.client().await;
    let is_there = async || {
        let run = must("get", kennel.client().await.get(run_id).await);
        let is_so = run.state() == of.state || run.end_time.is_some();
        is_so.then_some(run)
    };
    let run = eventually_async("it is decided about", PATIENCE, is_there).await;
    let heard = if run.end_time.is_some() {
        must("stream", client.hear_all(run_id, 0).await)
    } else {
        client.hear_text(run_id, of.output).await;
        client.hear_now(run_id).await
    };
    let requests = must("trail", client.logged_requests(run_id).await);
    assert!(!requests.is_empty(), "{}", of.name);
    said(
        of.name,
        run.state(),
        run.reason(),
        run.code(),
        &heard.text(),
    )
}

fn said(name: &str, state: RunState, reason: &str, code: Option<i32>, output: &str) -> String {
    format!("{name}: {state:?} {reason} {code:?} {output:?}")
}

// promise: A-22f, A-22n
#[tokio::test(flavor = "multi_thread")]
async fn recorded_data_directories_are_readable() {
    if std::env::var_os("UPDATE").is_some() {
        record(
            &programs::repository()
                .join("tests/recorded/next")
                .join(ARCHIVE),
        )
        .await;
    }
    for folder in folders() {
        let dir = temporary();
        let archive = folder.join(ARCHIVE);
        tar(dir.path(), &["-xzf", archive.to_str().expect("UTF-8")]);
        let node = fs::read(dir.path().join("data/node")).expect("it is there");
        let mut kennel = Kennel::start_in(dir, Options::default()).await;
        let mut client = kennel.client().await;

        let runs = client.list_all(pb::RunFilter::default(), 3).await;
        let runs = must("list", runs);
        assert_eq!(runs.len(), ALL.len());
        let (mut found, mut known) = (Vec::new(), Vec::new());
        for of in &ALL {
            let has_name = |run: &&pb::Run| {
                let labels = &run.spec.as_ref().expect("it is given").labels;
                labels.get(LABEL).is_some_and(|name| name == of.name)
            };
            let run = runs.iter().find(has_name).expect(of.name);
            found.push(outcome(&kennel, of, &run.run_id).await);
            known.push(said(of.name, of.state, of.reason, of.code, of.output));
        }
        assert_eq!(found, known, "{}", folder.display());
        let info = client.server_info().await.expect("it serves");
        let unread = (info.unreadable_files, info.unreadable_records);
        assert_eq!(unread, (0, 0), "{}", kennel.log());
        assert_eq!(fs::read(kennel.data_dir().join("node")).ok(), Some(node));
        eventually("records of its exits are settled", PATIENCE, || {
            let left = fs::read_dir(kennel.data_dir().join("exits"));
            (left.expect("it is there").count() == 1).then_some(())
        })
        .await;
        kennel.terminate(PATIENCE).await;
    }
}
