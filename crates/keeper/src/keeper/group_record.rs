//! Record of the control group directories that keepers of this node have made, as a file of the data directory.
//!
//! A killed keeper may leave its directory behind, and the next one may start in another control group, where it would
//! not search. A recorded directory is only ever removed when it has the recorded identity and is empty.

use kennel_lifecycle::CgroupIdentity;
use kennel_linux::cgroup;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Most directories that are remembered; one is dropped only after it was removed, or beyond this.
const REMEMBERED_MAX: usize = 64;

/// Removes what the keepers of this data directory have recorded, where it goes with all that they have made.
pub fn remove_groups(data_dir: &Path) {
    GroupRecord::read(data_dir).sweep(cgroup::BASE);
}

/// Directories that may still exist.
pub(super) struct GroupRecord {
    file: PathBuf,
    made: Vec<CgroupIdentity>,
}

impl GroupRecord {
    /// Reads what earlier keepers have recorded. Unreadable lines name nothing that could be removed.
    pub(super) fn read(data_dir: &Path) -> Self {
        let file = data_dir.join("cgroups");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let made = text.lines().filter_map(|line| {
            let (inode, path) = line.split_once(' ')?;
            Some(CgroupIdentity {
                path: path.to_owned(),
                inode: inode.parse().ok()?,
            })
        });
        Self {
            made: made.collect(),
            file,
        }
    }

    /// Removes the recorded directories that exist, are Kennel's by name and inode, and have no processes.
    pub(super) fn sweep(&mut self, prefix: &str) {
        let ours = |group: &CgroupIdentity| {
            let name = Path::new(&group.path).file_name();
            name.is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        };
        self.made
            .retain(|group| ours(group) && !cgroup::remove(group));
    }

    /// Adds a new directory, and writes the record. Without a file the next start still searches beside itself.
    pub(super) fn add(&mut self, made: CgroupIdentity) {
        self.made.push(made);
        let beyond = self.made.len().saturating_sub(REMEMBERED_MAX);
        self.made.drain(..beyond);
        let _ = self.write();
    }

    fn write(&self) -> io::Result<()> {
        let lines = self.made.iter();
        let lines = lines.map(|group| format!("{} {}\n", group.inode, group.path));
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, lines.collect::<String>())?;
        fs::rename(&fresh, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(at: &Path, name: &str) -> CgroupIdentity {
        cgroup::create(&at.join(name)).expect("a directory")
    }

    // promise: N-5
    #[test]
    fn recorded_directories_of_earlier_keepers_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let elsewhere = tempfile::tempdir().expect("a directory");
        let ours = made(elsewhere.path(), "kennel-N-1");
        let below = made(Path::new(&ours.path), "run-1");
        let strange = made(elsewhere.path(), "strange");
        let replaced = made(elsewhere.path(), "kennel-N-2");
        let other = made(elsewhere.path(), "other");
        fs::remove_dir(&replaced.path).expect("it goes");
        fs::rename(&other.path, &replaced.path).expect("another takes its place");
        let mut record = GroupRecord::read(dir.path());
        for group in [&ours, &strange, &replaced] {
            record.add(group.clone());
        }
        let mut next = GroupRecord::read(dir.path());
        assert_eq!(next.made.len(), 3);
        next.sweep("kennel-N-");
        let there = |group: &CgroupIdentity| Path::new(&group.path).exists();
        assert!(!there(&ours) && !there(&below));
        assert!(there(&strange), "it has another name");
        assert!(there(&replaced), "it has another inode");
        assert!(next.made.is_empty());
    }
}
