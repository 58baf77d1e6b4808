//! Records of one keeper's server for that of the next, like a store.

use kennel_keeper::{client::Recorded, rundir};
use kennel_lifecycle::{CgroupIdentity, HostIdentity, ProcessIdentity, RunId, RunIdentity};
use std::{fmt::Write, fs, path::Path};

/// Adds one run, one word per field.
pub(crate) fn append(dir: &Path, run: RunId, identity: &RunIdentity) {
    let path = dir.join("recorded");
    let mut text = fs::read_to_string(&path).unwrap_or_default();
    let _ = write!(text, "{run}");
    for p in [&identity.command, &identity.shim] {
        let handle = p.pidfs_handle.map_or("-".to_owned(), |h| h.to_string());
        let _ = write!(
            text,
            " {} {} {} {} {handle}",
            p.pid, p.pgid, p.sid, p.start_ticks
        );
    }
    let host = &identity.host;
    let _ = write!(text, " {} {}", host.boot_id, host.pidns_inode);
    if let Some(group) = &identity.cgroup {
        let _ = write!(text, " {} {}", group.path, group.inode);
    }
    text.push('\n');
    fs::write(path, text).expect("it can be written");
}

/// Reads all runs.
pub(crate) fn read(dir: &Path) -> Vec<Recorded> {
    let text = fs::read_to_string(dir.join("recorded")).expect("it was written");
    text.lines().map(|line| parse(dir, line)).collect()
}

fn parse(dir: &Path, line: &str) -> Recorded {
    let mut words = line.split(' ');
    let mut next = || words.next();
    let run: RunId = next().expect("an id").parse().expect("a run id");
    let mut process = || ProcessIdentity {
        pid: number(next()),
        pgid: number(next()),
        sid: number(next()),
        start_ticks: number(next()),
        pidfs_handle: next().filter(|w| *w != "-").map(|w| number(Some(w))),
    };
    let (command, shim) = (process(), process());
    let host = HostIdentity {
        boot_id: next().expect("a boot").to_owned(),
        pidns_inode: number(next()),
        // The pid namespace is the same: its inode is enough.
        init_start_ticks: None,
    };
    let cgroup = next().map(|path| CgroupIdentity {
        path: path.to_owned(),
        inode: number(next()),
    });
    Recorded {
        run,
        identity: RunIdentity {
            command,
            shim,
            cgroup,
            host,
        },
        run_dir: rundir::path(&dir.join("data"), run),
    }
}

fn number<T: std::str::FromStr>(word: Option<&str>) -> T {
    let parsed = word.and_then(|w| w.parse().ok());
    parsed.expect("a number")
}
