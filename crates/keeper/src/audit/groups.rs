//! Control group directories of this node, with their processes.

use super::Installation;
use kennel_lifecycle::{CgroupIdentity, RunId, audit::GroupSeen};
use kennel_linux::cgroup;
use std::{collections::HashMap, fs, io, path::Path};

/// Processes in directories of this node, and its empty directories.
#[derive(Default)]
pub(super) struct ScannedGroups {
    by_pid: HashMap<i32, GroupSeen>,
    pub(super) empty: Vec<(RunId, CgroupIdentity)>,
    pub(super) unreadable: u32,
}

impl ScannedGroups {
    /// Reads the directories of this keeper, and those that earlier keepers of this node have left beside it.
    pub(super) fn look(installation: &Installation) -> Self {
        let mut groups = Self::default();
        let own = installation.cgroup_base.as_deref();
        let above = match own.and_then(Path::parent) {
            Some(above) => Some(above.to_owned()),
            None => cgroup::path_of(installation.keeper),
        };
        let Some(above) = above else { return groups };
        let prefix = cgroup::base_prefix(installation.node);
        for base in groups.read(&above) {
            if name_of(&base).is_some_and(|name| name.starts_with(&prefix)) {
                let of_this_keeper = Some(base.as_path()) == own;
                for dir in groups.read(&base) {
                    groups.add(&dir, of_this_keeper);
                }
            }
        }
        groups
    }

    pub(super) fn of(&self, pid: i32) -> Option<&GroupSeen> {
        self.by_pid.get(&pid)
    }

    fn read(&mut self, dir: &Path) -> Vec<std::path::PathBuf> {
        match fs::read_dir(dir) {
            Ok(_) => cgroup::directories(dir),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    self.unreadable += 1;
                }
                Vec::new()
            }
        }
    }

    fn add(&mut self, dir: &Path, of_this_keeper: bool) {
        let Some(run) = name_of(dir).and_then(run_of) else {
            return;
        };
        // A directory that was removed meanwhile does not count.
        let Ok(identity) = cgroup::identify(dir) else {
            return;
        };
        let members = cgroup::members(&identity);
        if members.is_empty() && !cgroup::is_populated(&identity).unwrap_or(true) {
            self.empty.push((run, identity));
            return;
        }
        let group = GroupSeen {
            run,
            identity,
            of_this_keeper,
        };
        for pid in members {
            self.by_pid.insert(pid, group.clone());
        }
    }
}

fn name_of(dir: &Path) -> Option<&str> {
    dir.file_name()?.to_str()
}

/// Returns the run of a directory named `run-<id>-<n>`.
fn run_of(name: &str) -> Option<RunId> {
    let (run, number) = name.strip_prefix("run-")?.rsplit_once('-')?;
    number.parse::<u64>().ok()?;
    run.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_id_is_parsed_from_cgroup_name() {
        let run = RunId::from_u128(7);
        assert_eq!(run_of(&format!("run-{run}-12")), Some(run));
        for bad in [
            "probe",
            "run-",
            "run-1-2",
            &format!("run-{run}"),
            &format!("run-{run}-x"),
        ] {
            assert_eq!(run_of(bad), None, "{bad}");
        }
    }
}
