//! Persisted spec: the input of a run's next attempt, in the run's private directory. It has the values of the run's
//! variables and sent secrets, which the store never gets; so it is sealed, only its owner can read it, and it is removed
//! when the run has ended.

use crate::base::ports::Sealer;
use kennel_keeper::client::ChildSpec;
use kennel_lifecycle::{RunId, SecretSource, SecretValue, in_clear};
use kennel_linux::own_file;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

const FILE: &str = "child";
const TEMPORARY: &str = "child.new";

/// Its text: a spec has no values of secrets in it, so those that were sent follow, in the order of the spec.
#[derive(Serialize, Deserialize)]
struct SpecText<'a> {
    child: Cow<'a, ChildSpec>,
    sent: Vec<Sent>,
}

#[derive(Serialize, Deserialize)]
struct Sent(#[serde(with = "in_clear")] SecretValue);

/// Writes the spec atomically, so that it survives a power loss. Blocks.
pub(crate) fn write(
    dir: &Path,
    run: RunId,
    child: &ChildSpec,
    sealer: &dyn Sealer,
) -> io::Result<()> {
    let sent = child
        .secrets
        .iter()
        .filter_map(|secret| sent(&secret.source));
    let text = SpecText {
        child: Cow::Borrowed(child),
        sent: sent.map(|value| Sent(value.clone())).collect(),
    };
    // A `SecretValue` is overwritten when dropped.
    let plain = SecretValue::new(serde_json::to_vec(&text)?);
    let bytes = sealer.seal(run, plain.expose())?;
    let temporary = dir.join(TEMPORARY);
    own_file::none_if_absent(fs::remove_file(&temporary))?;
    let mut how = OpenOptions::new();
    how.write(true).create_new(true).mode(0o600);
    let mut file = how.open(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(FILE))?;
    // Syncs the directory entries of the file, the run's directory and the directory of all runs.
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
pub(crate) fn read(
    dir: &Path,
    run: RunId,
    attempt: u32,
    sealer: &dyn Sealer,
) -> io::Result<ChildSpec> {
    let mut bytes = fs::read(dir.join(FILE))?;
    let plain = sealer.open(run, &mut bytes)?;
    let text = serde_json::from_slice::<SpecText<'_>>(plain);
    // A dropped `SecretValue` overwrites its bytes.
    drop(SecretValue::new(bytes));
    let SpecText {
        child,
        sent: values,
    } = text?;
    let mut child = child.into_owned();
    let mut values = values.into_iter();
    for secret in &mut child.secrets {
        if let SecretSource::Sent(value) = &mut secret.source {
            let kept = values.next().ok_or(io::ErrorKind::InvalidData)?;
            *value = kept.0;
        }
    }
    Ok(ChildSpec {
        run_dir: dir.to_owned(),
        attempt,
        ..child
    })
}

/// Removes the spec, if it exists.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    for name in [TEMPORARY, FILE] {
        own_file::none_if_absent(fs::remove_file(dir.join(name)))?;
    }
    Ok(())
}

fn sent(source: &SecretSource) -> Option<&SecretValue> {
    match source {
        SecretSource::Sent(value) => Some(value),
        SecretSource::ServerFile(_) | SecretSource::Credential(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{
        CommandSpec, LeaderExit, Policy, Resource, Rlimit, Secret, SecretDelivery, StopPolicy,
        TerminalSpec,
    };
    use std::{
        ffi::OsString,
        os::unix::{ffi::OsStringExt, fs::PermissionsExt},
        time::Duration,
    };

    #[derive(Debug)]
    struct Plain;

    impl Sealer for Plain {
        fn seal(&self, _run: RunId, plain: &[u8]) -> io::Result<Vec<u8>> {
            Ok(plain.to_vec())
        }

        fn open<'a>(&self, _run: RunId, sealed: &'a mut [u8]) -> io::Result<&'a [u8]> {
            Ok(sealed)
        }
    }

    // promise: B-7
    #[test]
    fn persisted_spec_is_private_to_its_owner() {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = dir.path().join("runs/one");
        fs::create_dir_all(&runs).expect("directories");
        let child = child(&runs);
        let run = RunId::from_u128(5);
        write(&runs, run, &child, &Plain).expect("it is written");
        write(&runs, run, &child, &Plain).expect("and again");
        let mode = fs::metadata(runs.join(FILE)).expect("metadata");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&runs, run, 1, &Plain).expect("it is read"), child);
        let third = ChildSpec {
            attempt: 3,
            ..child
        };
        assert_eq!(read(&runs, run, 3, &Plain).expect("it is read"), third);
        remove(&runs).expect("it goes");
        remove(&runs).expect("and is gone");
        let missing = read(&runs, run, 1, &Plain).expect_err("nothing is there");
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
            secrets: [
                SecretSource::ServerFile("db".to_owned()),
                SecretSource::Sent(SecretValue::new(vec![0, 255])),
            ]
            .map(|source| Secret {
                name: "A".to_owned(),
                source,
                delivery: SecretDelivery::File,
                trim_newline: true,
            })
            .into(),
        }
    }
}
