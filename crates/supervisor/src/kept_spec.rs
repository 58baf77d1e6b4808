//! What the next attempt of a run is made of, in the run's private directory: the values of its variables among it, which
//! the store never sees. Readable by nobody else, and removed when the run has ended.

use kennel_linux::client::{ChildSpec, KeptChild};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

const KEPT: &str = "child";
const TEMPORARY: &str = "child.new";

/// Writes it down, whole or not at all, so that it is there after a power loss too. Blocks.
pub(crate) fn keep(dir: &Path, child: &ChildSpec) -> io::Result<()> {
    let bytes = serde_json::to_vec(&KeptChild::from(child))?;
    let temporary = dir.join(TEMPORARY);
    gone_is_fine(fs::remove_file(&temporary))?;
    let mut how = OpenOptions::new();
    how.write(true).create_new(true).mode(0o600);
    let mut file = how.open(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(KEPT))?;
    // The names of the file, of the run's directory and of the directory of all runs.
    for dir in dir.ancestors().take(3) {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Reads it, for this attempt. Blocks.
pub(crate) fn read(dir: &Path, attempt: u32) -> io::Result<ChildSpec> {
    let kept: KeptChild = serde_json::from_slice(&fs::read(dir.join(KEPT))?)?;
    Ok(kept.in_dir(dir.to_owned(), attempt))
}

/// Removes it, if it is there.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    gone_is_fine(fs::remove_file(dir.join(TEMPORARY)))?;
    gone_is_fine(fs::remove_file(dir.join(KEPT)))
}

fn gone_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{
        Containment, LeaderExit, OnMaxPause, PausePolicy, PidNamespace, Policy, Recovery, Resource,
        Rlimit, RunLimits, TerminalSize, ladder::StopPlan,
    };
    use kennel_linux::client::ChildInput;
    use std::{
        ffi::OsString,
        os::unix::{ffi::OsStringExt, fs::PermissionsExt},
        time::Duration,
    };

    #[test]
    fn what_was_kept_is_read_back_whole_by_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = dir.path().join("runs/one");
        fs::create_dir_all(&runs).expect("directories");
        let child = child(&runs);
        keep(&runs, &child).expect("it is kept");
        keep(&runs, &child).expect("and again");
        let mode = fs::metadata(runs.join(KEPT)).expect("metadata");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&runs, 2).expect("it is read"), child);
        let open = |attempt| ChildSpec {
            input: ChildInput::Pipe { attempt },
            ..child.clone()
        };
        keep(&runs, &open(1)).expect("it is kept");
        assert_eq!(read(&runs, 3).expect("it is read"), open(3));
        remove(&runs).expect("it goes");
        remove(&runs).expect("and is gone");
        let missing = read(&runs, 1).expect_err("nothing is there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    fn child(dir: &Path) -> ChildSpec {
        ChildSpec {
            executable: "/bin/sh".into(),
            argv: vec!["sh".into(), "ä\n\"".into(), OsString::from_vec(vec![0xff])],
            env: vec![("SECRET".into(), "hush".into())],
            cwd: OsString::from_vec(b"/tmp/\xff".to_vec()).into(),
            input: ChildInput::Bytes(vec![0, 255, 10]),
            terminal: Some(TerminalSize { rows: 24, cols: 80 }),
            run_dir: dir.to_owned(),
            policy: Policy {
                stop: StopPlan::abort(Duration::from_millis(1500)),
                max_runtime: Some(Duration::from_secs(9)),
                limits: RunLimits {
                    rlimits: vec![Rlimit {
                        resource: Resource::OpenFiles,
                        soft: 7,
                        hard: u64::MAX,
                    }],
                    nice: Some(3),
                    ..RunLimits::default()
                },
                on_leader_exit: LeaderExit::Drain {
                    timeout: Some(Duration::from_secs(3)),
                },
                pause: PausePolicy {
                    max_pause: Some(Duration::from_secs(5)),
                    on_max_pause: OnMaxPause::Abort,
                },
                pid_namespace: PidNamespace::Private,
                recovery: Recovery::Adopt,
            },
            min_containment: Some(Containment::Subreaper),
        }
    }
}
