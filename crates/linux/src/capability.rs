//! Capabilities of the host for runs, found out by trying them, and the fallback of each.

use serde::{Deserialize, Serialize};

/// Declares the names with their texts and the fallback where each is missing.
macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $instead:literal;)*) => {
        /// A capability that a host may have or lack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum CapabilityName {
            $($(#[$doc])* $variant,)*
        }

        impl CapabilityName {
            /// All names, in the order in which they are listed.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns its name in the contract.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Returns the fallback where it is missing.
            pub fn instead(self) -> &'static str {
                match self {
                    $(Self::$variant => $instead,)*
                }
            }
        }
    };
}

capabilities! {
    /// Every run gets a control group (v2) of its own.
    Cgroup = "cgroup", "the shim alone holds a run together";
    /// Commands cannot move themselves into another control group.
    CgroupSealed = "cgroup_sealed", "the shim finds what has moved";
    /// Commands are born in their control group: clone3(2) with `CLONE_INTO_CGROUP`.
    CgroupClone = "cgroup_clone", "a command is moved into its control group while it waits at its gate";
    /// A control group is killed as a whole: `cgroup.kill` (Linux 5.14).
    CgroupKill = "cgroup_kill", "SIGKILL to every process, again until none is left";
    /// A control group is frozen as a whole: `cgroup.freeze` (Linux 5.2).
    CgroupFreeze = "cgroup_freeze", "SIGSTOP to every process, verified";
    /// The memory controller is delegated.
    CgroupMemory = "cgroup_memory", "no limit of a run's memory";
    /// The pids controller is delegated.
    CgroupPids = "cgroup_pids", "no limit of a run's processes";
    /// The cpu controller is delegated.
    CgroupCpu = "cgroup_cpu", "no limit of a run's processor time";
    /// The io controller is delegated.
    CgroupIo = "cgroup_io", "no limit of a run's transfers with block devices, and no count of them";
    /// clone3(2) is there; filters of container runtimes may refuse it.
    Clone3 = "clone3", "clone(2)";
    /// Processes have an inode of their own (pidfs, Linux 6.9).
    Pidfs = "pidfs", "pid, session and start time name a process";
    /// A process group is signalled through a pidfd (Linux 6.9).
    PidfdGroupSignal = "pidfd_group_signal", "the members of a group are signalled one by one";
    /// The end of a process is read from its pidfd (Linux 6.15).
    PidfdExit = "pidfd_exit", "an end that the shim could not write down is not known";
    /// A run can have a pid namespace of its own, with its own /proc.
    PidNamespace = "pid_namespace", "no private pid namespace for a run: one that asks for it is refused";
    /// A run can outlive the whole service and be resumed by the next one.
    Adoption = "adoption", "every run ends with the service, of kind SERVICE too: one that asks to outlive it is refused";
    /// A command can be on a terminal.
    Terminal = "terminal", "no run of kind TERMINAL: one is refused";
    /// When memory ends, the kernel ends commands before Kennel: they have a higher `oom_score_adj`.
    OomOrder = "oom_order", "commands have the same oom_score_adj as their shims: the kernel may end either";
    /// A command can have another user than the server.
    RunAs = "run_as", "every command has the server's user: a run with another one is refused";
    /// Capabilities are taken from a command for good: the server has `CAP_SETPCAP`.
    DropCapabilities = "drop_capabilities", "a run that drops capabilities is refused";
    /// A command can be in a sandbox: Landlock, version 3 (Linux 6.2).
    Sandbox = "sandbox", "a run with a sandbox is refused";
    /// A sandbox confines signals and abstract sockets too: Landlock, version 6 (Linux 6.12).
    SandboxSignals = "sandbox_signals", "a command in a sandbox may signal processes of its user outside of it";
    /// A sandbox has mounts of its own, read-only but for its own places: by `CAP_SYS_ADMIN`, else a user namespace.
    SandboxMounts = "sandbox_mounts", "a command in a sandbox may change mode, owner, times and attributes of files of its user outside of it, Kennel's own included";
    /// A command can have a network namespace of its own: by `CAP_SYS_ADMIN`, else a user namespace.
    NetworkNamespace = "network_namespace", "a run without a network is refused";
    /// System calls of a command can be filtered.
    Seccomp = "seccomp", "a run with a profile of system calls is refused";
    /// The largest run is ended before the memory limit of the control group that it shares with Kennel is reached.
    MemoryReserve = "memory_reserve", "at the memory limit of its control group the kernel may end Kennel and every run";
    /// No hard limit of memory (`RLIMIT_AS`, `RLIMIT_DATA`) is on Kennel's own processes.
    UnlimitedMemory = "unlimited_memory", "at that limit a server ends and is replaced, and the keeper ends with all runs";
    /// A process that a run has detached is known as one for as long as it lives, whichever of its ancestors dies.
    DetachedIdentity = "detached_identity", "KEEP of a command of the server's user is refused to callers below admin";
}

/// One capability, present or missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// Name of the capability.
    pub name: CapabilityName,
    /// Reason why it is missing; absent: it is present.
    pub missing: Option<String>,
}

impl Capability {
    /// Makes the capability of the result of a trial.
    pub fn tried(name: CapabilityName, tried: Result<(), String>) -> Self {
        Self {
            name,
            missing: tried.err(),
        }
    }
}
