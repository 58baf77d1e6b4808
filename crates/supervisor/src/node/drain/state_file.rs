//! The drain in force, as a file in the data directory: the next server of the same keeper continues it.
//!
//! A new keeper starts without a drain: the file of an earlier keeper is removed.

use super::{Drain, DrainAction};
use kennel_lifecycle::{KeeperEpoch, Timestamp};
use kennel_linux::own_file;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

const FILE: &str = "drain";
const TEMPORARY: &str = "drain.new";

/// Its JSON form is on disk: fields may be added, none renamed.
#[derive(Serialize, Deserialize)]
struct Kept {
    keeper_epoch: String,
    action: Action,
    by: String,
    request_id: Option<String>,
    since_us: i64,
    deadline_us: Option<i64>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Finish,
    Abort,
}

/// Writes the drain; once this returns, it survives a crash of the host.
pub(super) fn keep(data_dir: &Path, epoch: KeeperEpoch, drain: &Drain) -> io::Result<()> {
    let kept = Kept {
        keeper_epoch: epoch.to_string(),
        action: match drain.action {
            DrainAction::Finish => Action::Finish,
            DrainAction::Abort => Action::Abort,
        },
        by: drain.by.clone(),
        request_id: drain.request_id.clone(),
        since_us: drain.since.0,
        deadline_us: drain.deadline.map(|at| at.0),
    };
    let bytes = serde_json::to_vec(&kept).map_err(io::Error::other)?;
    let fresh = data_dir.join(TEMPORARY);
    let mut how = own_file::options();
    how.write(true).create(true).truncate(true);
    let mut file = how.open(&fresh)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, data_dir.join(FILE))?;
    sync(data_dir)
}

/// Removes the drain.
pub(super) fn forget(data_dir: &Path) -> io::Result<()> {
    match fs::remove_file(data_dir.join(FILE)) {
        Ok(()) => sync(data_dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reads the drain in force under this keeper.
pub(super) fn find(data_dir: &Path, epoch: KeeperEpoch) -> io::Result<Option<Drain>> {
    let bytes = match fs::read(data_dir.join(FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let kept: Kept = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
    if kept.keeper_epoch != epoch.to_string() {
        forget(data_dir)?;
        return Ok(None);
    }
    Ok(Some(Drain {
        action: match kept.action {
            Action::Finish => DrainAction::Finish,
            Action::Abort => DrainAction::Abort,
        },
        by: kept.by,
        request_id: kept.request_id,
        since: Timestamp(kept.since_us),
        deadline: kept.deadline_us.map(Timestamp),
    }))
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_is_found_under_its_own_keeper_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let (own, other) = (KeeperEpoch::from_u128(1), KeeperEpoch::from_u128(2));
        let find = |epoch| find(dir.path(), epoch).expect("it can be read");
        assert_eq!(find(own), None);
        let drain = Drain {
            action: DrainAction::Finish,
            by: "uid:7".into(),
            request_id: Some("r".into()),
            since: Timestamp(1),
            deadline: Some(Timestamp(2)),
        };
        let later = Drain {
            action: DrainAction::Abort,
            deadline: None,
            ..drain.clone()
        };
        for drain in [drain, later] {
            keep(dir.path(), own, &drain).expect("it is written");
            assert_eq!(find(own), Some(drain));
        }
        assert_eq!(find(other), None);
        assert_eq!(find(own), None, "that keeper's time is over");
        forget(dir.path()).expect("there is none");
    }
}
