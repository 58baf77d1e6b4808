//! Identities of processes, control groups and hosts: a pid alone may be reused.

use serde::{Deserialize, Serialize};
/// Identity of one process, valid during its life and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id in the keeper's pid namespace.
    pub pid: i32,
    /// Process group id at the time of recording.
    pub pgid: i32,
    /// Session id at the time of recording.
    pub sid: i32,
    /// Start time in clock ticks since boot: field 22 of /proc/pid/stat (proc(5)).
    pub start_ticks: u64,
    /// The pidfs inode, unique per boot; absent where the kernel has no pidfs (before 6.9).
    pub pidfs_handle: Option<u64>,
}

/// One control group directory. A directory that is made again has another inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupIdentity {
    /// Absolute path of the directory.
    pub path: String,
    /// Inode of the directory, which is the kernel's cgroup id.
    pub inode: u64,
}

/// The scope in which pids are valid: one boot and one pid namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Inode of `/proc/self/ns/pid`. The kernel gives it out again as soon as the namespace is gone: the next container may
    /// well have it.
    pub pidns_inode: u64,
    /// Start of the namespace's first process, in ticks since boot: field 22 of `/proc/1/stat`, `proc_pid_stat(5)`.
    /// Distinguishes a namespace from a later one of the same inode. Absent: it cannot be read, as under `hidepid`.
    pub init_start_ticks: Option<u64>,
}

impl HostIdentity {
    /// Whether numbers of one host are valid on the other. A value that only one of them knows decides nothing.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let begins = self.init_start_ticks.zip(other.init_start_ticks);
        self.boot_id == other.boot_id
            && self.pidns_inode == other.pidns_inode
            && begins.is_none_or(|(one, other)| one == other)
    }
}

/// Identity of a run: recorded before a command may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// The leader of the run's tree.
    pub command: ProcessIdentity,
    /// The shim that is the tree's subreaper.
    pub shim: ProcessIdentity,
    /// The run's own control group, where one could be made.
    pub cgroup: Option<CgroupIdentity>,
    /// Boot and pid namespace in which the numbers above are valid.
    pub host: HostIdentity,
}
