//! A service that plays rows one after the other.
//!
//! A row of the server is the first death of a server that its keeper sees, where one of the keeper comes before it: the
//! next one starts without a wait.

use super::table::Act;
use kennel_tests::{
    Kennel, Options, PATIENCE, SHUTDOWN_LIMIT, eventually, kennel::reap_orphans, node_log,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

pub(crate) struct Service {
    pub(crate) kennel: Kennel,
    points: TempDir,
    played: usize,
}

impl Service {
    /// Starts one for rows of this action.
    pub(crate) async fn start(act: Act) -> Self {
        let points = tempfile::tempdir().expect("a directory");
        let words = match act {
            Act::Retain => vec!["--retain-runs", "0", "--retain-at-least", "0s"],
            _ => Vec::new(),
        };
        let kennel = Kennel::start(Options {
            words,
            ..Options::crashing(points.path())
        })
        .await;
        Self {
            kennel,
            points,
            played: 0,
        }
    }

    /// Returns the directory of the points.
    pub(crate) fn points(&self) -> &Path {
        self.points.path()
    }

    /// Returns a directory for the files of the next row.
    pub(crate) fn fresh_dir(&mut self) -> PathBuf {
        self.played += 1;
        let dir = self.kennel.scratch().join(format!("row-{}", self.played));
        fs::create_dir(&dir).expect("own directory");
        dir
    }

    /// Waits until no run of the log has pending work.
    pub(crate) async fn settles(&self) {
        let data_dir = self.kennel.data_dir();
        eventually("all work of the log is done", PATIENCE, || {
            let logged = node_log::logged(&data_dir);
            ((logged.unfinished, logged.pending) == (0, 0)).then_some(())
        })
        .await;
    }

    /// Ends the service, and checks that nothing is left.
    pub(crate) async fn end(mut self) {
        let status = self.kennel.terminate(SHUTDOWN_LIMIT).await;
        assert_eq!(status.code(), Some(0), "{}", self.kennel.log());
        eventually("no process is left", PATIENCE, || {
            reap_orphans();
            self.kennel.traces().is_empty().then_some(())
        })
        .await;
        assert!(!self.kennel.socket().exists(), "a socket is left");
        for base in self.kennel.cgroup_bases() {
            assert!(!base.exists(), "{} is left", base.display());
        }
        let logged = node_log::logged(&self.kennel.data_dir());
        assert_eq!((logged.unfinished, logged.pending), (0, 0), "{logged:?}");
    }
}
