//! Persisted spec: the input of a run's next attempt, in the run's private directory. It has the values of the run's
//! variables, which the store never gets; so only its owner can read it, and it is removed when the run has ended.

use kennel_keeper::client::ChildSpec;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

const FILE: &str = "child";
const TEMPORARY: &str = "child.new";

/// Writes the spec atomically, so that it survives a power loss. Blocks.
pub(crate) fn write(dir: &Path, child: &ChildSpec) -> io::Result<()> {
    let bytes = serde_json::to_vec(child)?;
    let temporary = dir.join(TEMPORARY);
    gone_is_fine(fs::remove_file(&temporary))?;
    let mut how = OpenOptions::new();
    how.write(true).create_new(true).mode(0o600);
    let mut file = how.open(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(FILE))?;
    // Syncs the entries of the file, of the run's directory and of the directory of all runs.
    for dir in dir.ancestors().take(3) {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Checks that the spec exists.
pub(crate) fn look(dir: &Path) -> io::Result<()> {
    fs::symlink_metadata(dir.join(FILE)).map(drop)
}

/// Reads the spec for this attempt. Blocks.
pub(crate) fn read(dir: &Path, attempt: u32) -> io::Result<ChildSpec> {
    let child: ChildSpec = serde_json::from_slice(&fs::read(dir.join(FILE))?)?;
    Ok(ChildSpec {
        run_dir: dir.to_owned(),
        attempt,
        ..child
    })
}

/// Removes the spec, if it exists.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    gone_is_fine(fs::remove_file(dir.join(TEMPORARY)))?;
    gone_is_fine(fs::remove_file(dir.join(FILE)))
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
        CommandSpec, LeaderExit, Policy, Resource, Rlimit, StopPolicy, TerminalSpec,
    };
    use std::{
        ffi::OsString,
        os::unix::{ffi::OsStringExt, fs::PermissionsExt},
        time::Duration,
    };

    #[test]
    fn written_spec_is_read_by_its_owner_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = dir.path().join("runs/one");
        fs::create_dir_all(&runs).expect("directories");
        let child = child(&runs);
        write(&runs, &child).expect("it is written");
        write(&runs, &child).expect("and again");
        let mode = fs::metadata(runs.join(FILE)).expect("metadata");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&runs, 1).expect("it is read"), child);
        let third = ChildSpec {
            attempt: 3,
            ..child
        };
        assert_eq!(read(&runs, 3).expect("it is read"), third);
        remove(&runs).expect("it goes");
        remove(&runs).expect("and is gone");
        let missing = read(&runs, 1).expect_err("nothing is there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    fn child(dir: &Path) -> ChildSpec {
        let mut policy = Policy {
            stop: StopPolicy::within(Duration::from_millis(1500)),
            on_leader_exit: LeaderExit::Drain {
                timeout: Some(Duration::from_secs(3)),
            },
            ..Policy::default()
        };
        policy.limits.rlimits = vec![Rlimit {
            resource: Resource::OpenFiles,
            soft: 7,
            hard: u64::MAX,
        }];
        ChildSpec {
            executable: OsString::from_vec(b"/bin/\xfe".to_vec()).into(),
            env: vec![("SECRET".into(), "hush".into())],
            run_dir: dir.to_owned(),
            attempt: 1,
            command: CommandSpec {
                argv: vec!["sh".into(), "ä\n\"".into(), OsString::from_vec(vec![0xff])],
                cwd: Some(OsString::from_vec(b"/tmp/\xff".to_vec()).into()),
                initial_input: Some(vec![0, 255, 10]),
                terminal: Some(TerminalSpec::default()),
                ..CommandSpec::default()
            },
            policy,
        }
    }
}
