//! Position of a process in the control groups (v2), and its moves.

use crate::{Failed, at};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Moves out of the run's group, as far up as permitted.
pub(crate) fn leave() -> Result<(), Failed> {
    let own = own_directory()?;
    let mut above: Vec<&Path> = own.ancestors().skip(1).collect();
    above.reverse();
    let mut last = "there is nothing above".to_owned();
    for directory in above {
        match enter(directory) {
            Ok(()) => return Ok(()),
            Err(Failed(why)) => last = why,
        }
    }
    Err(Failed(last))
}

/// Moves into a new group below its own.
pub(crate) fn go_below() -> Result<(), Failed> {
    let below = own_directory()?.join("below");
    fs::create_dir(&below).map_err(at("a group below its own"))?;
    enter(&below)
}

fn enter(directory: &Path) -> Result<(), Failed> {
    fs::write(directory.join("cgroup.procs"), "0").map_err(at("a move to another control group"))
}

/// Returns the directory of its own group, by `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_directory() -> Result<PathBuf, Failed> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(at("own mounts"))?;
    let groups = fs::read_to_string("/proc/self/cgroup").map_err(at("own groups"))?;
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        right
            .starts_with("cgroup2 ")
            .then(|| (fields.next(), fields.next()))
    });
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let (Some((Some(root), Some(point))), Some(group)) = (mount, group) else {
        return Err(Failed("cgroup v2 is not mounted".to_owned()));
    };
    let below = Path::new(group)
        .strip_prefix(root)
        .map_err(at("a group outside of the mount"))?;
    Ok(Path::new(point).join(below))
}
