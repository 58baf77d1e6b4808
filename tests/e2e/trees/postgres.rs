//! A database as a run: its server forks a process for each connection and for each of its own tasks, each in a session
//! of its own; and as a daemon that a script leaves behind.

use super::{Work, abort_leaves_nothing, end_leaves_nothing};
use crate::with_and_without_cgroup;
use kennel_proto::pb::RunSpec;
use kennel_tests::{Options, argv, postgres};
use nix::unistd::chown;
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

with_and_without_cgroup!(
    nothing_of_an_aborted_database_is_left,
    nothing_of_an_abandoned_database_is_left,
);

// promise: T-80d
async fn nothing_of_an_aborted_database_is_left(options: Options) {
    // Expected: the postmaster with checkpointer, writers and launchers.
    abort_leaves_nothing(options, database, "ready to accept connections", 6).await;
}

// promise: T-80d
async fn nothing_of_an_abandoned_database_is_left(options: Options) {
    end_leaves_nothing(options, database).await;
}

/// Returns the database, as its own user where the test is root: Postgres refuses to be that.
fn database(scratch: &Path, work: Work) -> RunSpec {
    let dir = scratch.join("cluster");
    fs::create_dir(&dir).expect("made");
    let bin = postgres::binaries();
    let server = "-k $PWD -c listen_addresses=''";
    let run = match work {
        Work::Stays => format!("exec $0/postgres -D data {server}"),
        Work::Ends => format!("$0/pg_ctl -D data -o \"{server}\" -l log -w start"),
    };
    let script = format!("$0/initdb -D data -U kennel -A trust --no-sync >/dev/null && {run}");
    let mut words = Vec::new();
    if let Some((uid, gid)) = postgres::unprivileged_user() {
        chown(&dir, Some(uid), Some(gid)).expect("root may give a directory away");
        fs::set_permissions(scratch, Permissions::from_mode(0o711)).expect("own directory");
        words = vec![
            "setpriv".to_owned(),
            format!("--reuid={uid}"),
            format!("--regid={gid}"),
            "--clear-groups".to_owned(),
        ];
    }
    words.extend([
        "/bin/sh".to_owned(),
        "-c".to_owned(),
        script,
        bin.display().to_string(),
    ]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut spec = argv(&words);
    spec.cwd = Some(dir.display().to_string());
    spec
}
