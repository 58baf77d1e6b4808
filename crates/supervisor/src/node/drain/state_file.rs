//! The drain in force, as a file in the data directory: the next server of the same keeper continues it.
//!
//! A new keeper starts without a drain: the file of an earlier keeper is removed.

use super::Drain;
use kennel_lifecycle::KeeperEpoch;
use kennel_linux::own_file;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io,
    path::Path,
};

const FILE: &str = "drain";

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct DrainFile {
    keeper_epoch: String,
    #[serde(flatten)]
    drain: Drain,
}

/// Writes the drain; once this returns, it survives a crash of the host.
pub(super) fn keep(data_dir: &Path, epoch: KeeperEpoch, drain: &Drain) -> io::Result<()> {
    let kept = DrainFile {
        keeper_epoch: epoch.to_string(),
        drain: drain.clone(),
    };
    let bytes = serde_json::to_vec(&kept).map_err(io::Error::other)?;
    own_file::replace(&data_dir.join(FILE), &bytes)?;
    sync(data_dir)
}

/// Removes the drain.
pub(super) fn forget(data_dir: &Path) -> io::Result<()> {
    match own_file::none_if_absent(fs::remove_file(data_dir.join(FILE)))? {
        Some(()) => sync(data_dir),
        None => Ok(()),
    }
}

/// Reads the drain in force under this keeper.
pub(super) fn find(data_dir: &Path, epoch: KeeperEpoch) -> io::Result<Option<Drain>> {
    let Some(bytes) = own_file::none_if_absent(fs::read(data_dir.join(FILE)))? else {
        return Ok(None);
    };
    let kept: DrainFile = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
    if kept.keeper_epoch != epoch.to_string() {
        forget(data_dir)?;
        return Ok(None);
    }
    Ok(Some(kept.drain))
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::drain::DrainAction;
    use kennel_lifecycle::Timestamp;

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
        keep(dir.path(), own, &drain).expect("it is written");
        let text = fs::read_to_string(dir.path().join(FILE)).expect("it is there");
        let agreed = r#"{"keeper_epoch":"00000000000000000000000001","action":"finish","by":"uid:7","request_id":"r","since_us":1,"deadline_us":2}"#;
        assert_eq!(text, agreed, "a later version reads it");
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
