//! Data directories and listen paths in an unexpected state: a service refuses them, and reports why.

use kennel_tests::{
    Kennel, PATIENCE, cases, complaint,
    kennel::{bare_command, serve_words},
    must, programs, sh,
    shell::{run_to_end, text},
};
use nix::{
    sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
    unistd::Uid,
};
use std::{
    fs,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, PermissionsExt, chown, symlink},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Longest time in which a start must be refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// Makes a directory in which `data` is as this service would make it.
fn prepared() -> (TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("kennel-test-").tempdir();
    let dir = dir.expect("a directory");
    let data = dir.path().join("data");
    let mut private = fs::DirBuilder::new();
    private.mode(0o700).create(&data).expect("own directory");
    (dir, data)
}

/// Starts a service there, which must exit at once with one line that contains this.
async fn is_refused(dir: &Path, says: &[&str]) {
    let mut command = bare_command(&programs::kennel());
    command.args(serve_words(dir, None));
    let begun = Instant::now();
    let output = run_to_end(command, PATIENCE).await;
    let took = begun.elapsed();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(took < REFUSED_WITHIN, "{took:?}: {said}");
    let errors = said.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{said}");
    for part in says {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(text(&output), "");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("own directory").flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

// promise: R-61
#[tokio::test(flavor = "multi_thread")]
async fn symlinks_in_data_directory_are_refused() {
    for name in [
        "lock",
        "node",
        "server.lock",
        "digest-key",
        "log",
        "kennel.db",
        "runs",
        "audit",
    ] {
        for dangling in [true, false] {
            let (dir, data) = prepared();
            let target = dir.path().join("target");
            if !dangling {
                fs::write(&target, "theirs").expect("own directory");
            }
            symlink(&target, data.join(name)).expect("own directory");
            let path = data.join(name).display().to_string();
            is_refused(dir.path(), &[&path, "symbolic link"]).await;
            assert_eq!(names(&data), [name]);
            let there = fs::read_to_string(&target).ok();
            assert_eq!(there.as_deref(), (!dangling).then_some("theirs"));
        }
    }
}

// promise: R-61, R-61a
#[tokio::test(flavor = "multi_thread")]
async fn data_directory_open_to_others_is_refused() {
    let (dir, data) = prepared();
    fs::write(data.join("note"), "x").expect("own directory");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("own directory");
    let path = data.display().to_string();
    is_refused(dir.path(), &[&path, "0755", "0700"]).await;
    assert_eq!(names(&data), ["note"]);
    if !Uid::effective().is_root() {
        return;
    }
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("own directory");
    chown(&data, Some(65534), Some(65534)).expect("root may give it away");
    is_refused(dir.path(), &[&path, "belongs to user 65534", "user 0"]).await;
    assert_eq!(names(&data), ["note"]);
    // Another user's file in Kennel's directory is refused too.
    chown(&data, Some(0), Some(0)).expect("own directory");
    fs::write(data.join("lock"), "1").expect("own directory");
    chown(data.join("lock"), Some(65534), Some(65534)).expect("own directory");
    is_refused(dir.path(), &["lock", "belongs to user 65534"]).await;
    assert_eq!(fs::read_to_string(data.join("lock")).expect("there"), "1");
}

// promise: R-61a
#[tokio::test(flavor = "multi_thread")]
async fn full_queue_at_listen_path_refuses_a_start() {
    let (dir, data) = prepared();
    fs::create_dir(dir.path().join("s")).expect("own directory");
    let path = dir.path().join("s/kennel.sock");
    let listener = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    );
    let listener = listener.expect("a socket");
    let address = UnixAddr::new(&path).expect("a short path");
    bind(listener.as_raw_fd(), &address).expect("it is bound");
    listen(&listener, Backlog::new(0).expect("a number")).expect("it listens");
    let _queued = UnixStream::connect(&path).expect("there is room for one");
    let socket = path.display().to_string();
    is_refused(dir.path(), &[&socket, "queue is full"]).await;
    assert!(path.exists());
    drop(data);
}

// The last test ends the service.
cases! {
    fn data_directory_of_a_service(mut Kennel::on_sqlite().await);
    service_files_are_private_and_commands_keep_umask,
    removed_database_takes_no_run,
    lost_node_name_is_refused_each_time,
}

/// Collects all files and directories of the service that are open to others.
fn open_to_others(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("own directory").flatten() {
        let path = entry.path();
        let Ok(entry) = fs::symlink_metadata(&path) else {
            continue;
        };
        if entry.permissions().mode() & 0o077 != 0 {
            found.push(path.clone());
        }
        if entry.is_dir() {
            open_to_others(&path, found);
        }
    }
}

// promise: R-61b
async fn service_files_are_private_and_commands_keep_umask(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    let file = kennel.scratch().join("of-the-command");
    let script = format!("umask; echo x > {}; exit 3", file.display());
    let run = must("spawn", client.spawn(sh(&script)).await);
    must("wait", client.ended(&run.run_id).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "0022\n");
    let mode = fs::metadata(&file)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
    let mut found = Vec::new();
    open_to_others(&kennel.data_dir(), &mut found);
    assert!(found.is_empty(), "{found:?}");
}

// promise: I-42
async fn lost_node_name_is_refused_each_time(kennel: &mut Kennel) {
    let run = kennel.client().await.spawn(sh("sleep 600")).await;
    must("spawn", run);
    kennel.kill_service_after(|| {});
    kennel.wait_for_exit(PATIENCE).await;
    let name = kennel.data_dir().join("node");
    let node = fs::read(&name).expect("it has a name");
    fs::remove_file(&name).expect("it is removed");
    for _ in 0..2 {
        is_refused(kennel.scratch(), &["data/node", "used before"]).await;
    }
    fs::write(&name, node).expect("it is put back");
    kennel.launch_again().await;
}

// promise: I-43
async fn removed_database_takes_no_run(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    must("spawn", client.spawn(sh("true")).await);
    let ran = kennel.scratch().join("ran");
    let database = kennel.data_dir().join("kennel.db");
    let aside = kennel.scratch().join("aside");
    fs::rename(&database, &aside).expect("it is taken away");
    let script = format!("touch {}", ran.display());
    let refused = client.spawn(sh(&script)).await.expect_err("no store");
    assert_eq!(complaint(&refused).reason, "STORE_UNAVAILABLE");
    // A copy under its name is not the open database.
    fs::copy(&aside, &database).expect("a copy");
    let refused = client.spawn(sh(&script)).await.expect_err("no store");
    assert_eq!(complaint(&refused).reason, "STORE_UNAVAILABLE");
    assert!(!ran.exists(), "a command ran unrecorded");
    kennel.becomes_ready(false).await;
    fs::rename(&aside, &database).expect("it is put back");
    kennel.becomes_ready(true).await;
    must("spawn", client.spawn(sh(&script)).await);
}
