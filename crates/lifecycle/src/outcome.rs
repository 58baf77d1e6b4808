//! Stop orders, exits and outcomes of runs, and verdicts on their trees.

use crate::{
    Leftovers, MemoryKills, MemoryShortage, StopCertificate,
    exit::Exit,
    names::{named, tagged},
};
use serde::{Deserialize, Serialize};
use std::{fmt, io, time::Duration};

/// An order to stop a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// Reason of the order.
    pub reason: StopReason,
    /// Time between the first polite signal and SIGKILL; zero: SIGKILL at once.
    pub grace: Duration,
}

/// Why a run is being stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A client requested it.
    Abort {
        /// The requester, as a principal such as `uid:0`.
        by: String,
        /// The request's own id, where it had one.
        request_id: Option<String>,
    },
    /// A client requested another attempt.
    Restart {
        /// The requester, as a principal such as `uid:0`.
        by: String,
        /// The request's own id, where it had one.
        request_id: Option<String>,
    },
    /// The service is shutting down.
    ServerShutdown,
    /// A time limit of the run was exceeded; the keeper has begun the run's own plan.
    DeadlineExceeded(Deadline),
    /// No server came back for too long; the keeper has begun the run's own plan.
    Orphaned,
    /// The run's shim was lost before the leader had exited; the keeper has begun the run's own plan.
    ShimLost,
    /// The run has reached a limit at which its spec wants it stopped.
    LimitExceeded(Limit),
    /// The run that it belongs to has ended.
    ParentEnded,
    /// The run was not ready within its start timeout.
    NotReady,
    /// The run was ready, and probes of its liveness have failed too often in a row.
    NotLive {
        /// Number of failures.
        failures: u32,
        /// Error of the last failure.
        error: String,
    },
    /// The command did not report in its time that it works.
    Watchdog {
        /// Whether it reported that it does not work.
        triggered: bool,
    },
    /// The run's result was available, and the run did not end by itself in the time that its rule gives.
    Result {
        /// Name of the output rule that has seen the result.
        rule: String,
    },
    /// The memory above Kennel was nearly used up, and the run was the largest; the keeper has begun its own plan.
    MemoryReserve(MemoryShortage),
}

named! {
    /// A limit at which a run is stopped where its spec says so.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Limit {
        /// The output exceeds the bound of the run.
        OutputBytes = "output_bytes",
        /// The disk has no space for the output.
        Disk = "disk",
    }
}

named! {
    /// A limit of time that a run was given with its spec.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Deadline {
        /// Time from the confirmed start on, pauses not counted.
        MaxRuntime = "max_runtime",
        /// Time of one pause.
        MaxPause = "max_pause",
        /// Time without output and input, pauses not counted. The server measures it; the keeper measures the others.
        Inactivity = "inactivity",
        /// Time from the confirmed start until the attempt is ready, pauses not counted. Over it a run ends as
        /// [`EndReason::NotReady`].
        StartTimeout = "start_timeout",
    }
}

named! {
    /// The step of a start that failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum StartStage {
        /// The keeper could not make pipes, memory or a shim.
        Prepare = "prepare",
        /// The control group could not be made or entered.
        Cgroup = "cgroup",
        /// fork or clone.
        Fork = "fork",
        /// setsid.
        Session = "session",
        /// dup2 of the standard streams.
        Stdio = "stdio",
        /// chdir.
        WorkDir = "work_dir",
        /// A limit of the run could not be set.
        Limits = "limits",
        /// The store did not take the record, so the gate was shut.
        Record = "record",
        /// The child exited at the gate, before its release.
        Gate = "gate",
        /// execve.
        Exec = "exec",
        /// The private pid namespace, or its own /proc, could not be made.
        Namespace = "namespace",
        /// The command's user and groups, or `no_new_privileges`, could not be set.
        Privileges = "privileges",
        /// A secret could not be read, or cannot be given in the way that the spec names.
        Secret = "secret",
    }
}

impl StartStage {
    /// Returns the attempted action, for messages.
    fn doing(self) -> &'static str {
        match self {
            Self::Prepare => "preparing it",
            Self::Cgroup => "entering its control group",
            Self::Fork => "making its process",
            Self::Session => "making its session",
            Self::Stdio => "connecting its standard streams",
            Self::WorkDir => "entering its working directory",
            Self::Limits => "setting its limits",
            Self::Record => "recording it",
            Self::Gate => "keeping it ready",
            Self::Exec => "executing it",
            Self::Namespace => "making its pid namespace",
            Self::Privileges => "setting its user and privileges",
            Self::Secret => "giving it a secret",
        }
    }
}

/// Why a command did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// The failed step.
    pub stage: StartStage,
    /// errno(3) of the call, where a call failed.
    pub errno: Option<i32>,
    /// The path that the step was tried on.
    pub path: Option<String>,
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.stage.doing())?;
        if let Some(path) = &self.path {
            write!(f, " on {path}")?;
        }
        match self.errno {
            Some(errno) => write!(f, ": {}", io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

tagged! {
    /// Why a run has ended. Written once.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum EndReason {
        /// The leader exited on its own.
        Exited = "exited",
        /// The leader exited on its own, with a code other than 0 that the run's policy counts as success.
        SuccessExit = "success_exit",
        /// A client requested it.
        Aborted {
            /// The requester.
            by: String,
            /// The request's own id, where it had one.
            request_id: Option<String>,
        } = "aborted",
        /// The command never started.
        StartFailed(StartFailure) = "start_failed",
        /// Abort came for an id that no caller had spawned; a later Spawn of it is refused.
        Fenced {
            /// The requester.
            by: String,
        } = "fenced",
        /// The service shut down.
        ServerShutdown = "server_shutdown",
        /// The service died; the run ended unobserved.
        ServiceLost = "service_lost",
        /// The host was rebooted, or the pid namespace is another one.
        Rebooted = "rebooted",
        /// The service died, and the next one found the run alive and terminated it; or its keeper terminated it,
        /// because no server came back for too long.
        OrphanTerminated = "orphan_terminated",
        /// The run's shim was lost before the leader had exited, and the keeper terminated the run.
        ShimLost = "shim_lost",
        /// An operator has forgotten the run's node, which was not reachable: the actual outcome is not known.
        NodeForgotten {
            /// The operator.
            by: String,
        } = "node_forgotten",
        /// The run exceeded a time limit of its spec.
        DeadlineExceeded(Deadline) = "deadline_exceeded",
        /// The leader was killed while the kernel killed processes of the run for want of memory.
        OomKilled(MemoryKills) = "oom_killed",
        /// The memory above Kennel was nearly used up, and the run was the largest.
        MemoryReserve(MemoryShortage) = "memory_reserve",
        /// A client requested another attempt of the run, and none could follow.
        Restarted {
            /// The requester.
            by: String,
            /// The request's own id, where it had one.
            request_id: Option<String>,
        } = "restarted",
        /// The run has reached a limit at which its spec wants it stopped.
        LimitExceeded(Limit) = "limit_exceeded",
        /// The run's parent had ended.
        ParentEnded = "parent_ended",
        /// The run was not ready within its start timeout.
        NotReady = "not_ready",
        /// The run was ready, and probes of its liveness have failed too often in a row.
        NotLive {
            /// Number of failures.
            failures: u32,
            /// Error of the last failure.
            error: String,
        } = "not_live",
        /// The command did not report in its time that it works.
        Watchdog {
            /// Whether it reported that it does not work.
            triggered: bool,
        } = "watchdog",
        /// The run's result was available, and the run was stopped because it did not end by itself.
        Result {
            /// Name of the output rule that has seen the result.
            rule: String,
        } = "result",
        /// The run was restarted as often in a row as its policy allows, and the last attempt has failed too.
        RestartsExhausted {
            /// Number of restarts.
            restarts: u32,
        } = "restarts_exhausted",
    }
}

named! {
    /// Proof that a tree is empty.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Proof {
        /// The shim had no child left (wait(2): ECHILD), and after that the control group was unpopulated.
        CgroupAndEchild = "cgroup_and_echild",
        /// The shim had no child left. Does not see a process that entered a foreign pid namespace before it was
        /// orphaned.
        Echild = "echild",
        /// The control group was unpopulated; the shim was gone. Does not see a process that moved itself out.
        Cgroup = "cgroup",
        /// The first process of the run's private pid namespace has ended, and the kernel lets it end as the last of
        /// all in it.
        PrivatePidns = "private_pidns",
    }
}

tagged! {
    /// Verdict on the processes of a run.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum TreeVerdict {
        /// No process is left, with the proof.
        Empty(Proof) = "empty",
        /// These process ids were still there.
        Survivors(Vec<i32>) = "survivors",
        /// The state of the tree cannot be determined, for this reason.
        Unverified(String) = "unverified",
        /// No command was ever released, so there is nothing to look for.
        NeverRan = "never_ran",
        /// These processes were detached when the leader had exited, as the run's policy says; they may be gone since.
        Kept(Leftovers) = "kept",
    }
}

impl TreeVerdict {
    /// Whether no process of the run is left.
    pub fn is_proven(&self) -> bool {
        matches!(self, Self::Empty(_) | Self::NeverRan)
    }
}

named! {
    /// End of the output.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StreamsEnd {
        /// Every writer closed: all output has been read.
        Eof = "eof",
        /// The tree is empty or detached, and a process still holds a stream; all output up to then has been read.
        Cut = "cut",
        /// Reading failed or the reader died; the missing part is not known.
        Lost = "lost",
    }
}

/// The final outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why the run has ended.
    pub reason: EndReason,
    /// The leader's exit; absent: the command never started.
    pub exit: Option<Exit>,
    /// Verdict on the tree.
    pub tree: TreeVerdict,
    /// End of the output; absent: there was none to read.
    pub streams: Option<StreamsEnd>,
    /// Actions that ended the run, and processes left.
    pub certificate: StopCertificate,
}

impl From<StopReason> for EndReason {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::Abort { by, request_id } => Self::Aborted { by, request_id },
            StopReason::Restart { by, request_id } => Self::Restarted { by, request_id },
            StopReason::ServerShutdown => Self::ServerShutdown,
            StopReason::DeadlineExceeded(which) => Self::DeadlineExceeded(which),
            StopReason::Orphaned => Self::OrphanTerminated,
            StopReason::ShimLost => Self::ShimLost,
            StopReason::LimitExceeded(limit) => Self::LimitExceeded(limit),
            StopReason::ParentEnded => Self::ParentEnded,
            StopReason::NotReady => Self::NotReady,
            StopReason::NotLive { failures, error } => Self::NotLive { failures, error },
            StopReason::Watchdog { triggered } => Self::Watchdog { triggered },
            StopReason::Result { rule } => Self::Result { rule },
            StopReason::MemoryReserve(shortage) => Self::MemoryReserve(shortage),
        }
    }
}

impl StopReason {
    /// Returns the principal that requested the end; absent: none did.
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Abort { by, .. } | Self::Restart { by, .. } => Some(by),
            _ => None,
        }
    }

    /// Returns its name in JSON, metrics and spans; for a deadline or a limit, that of the limit.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Abort { .. } => "abort",
            Self::Restart { .. } => "restart",
            Self::ServerShutdown => "server_shutdown",
            Self::DeadlineExceeded(which) => which.name(),
            Self::LimitExceeded(limit) => limit.name(),
            Self::ParentEnded => "parent_ended",
            Self::NotReady => "not_ready",
            Self::NotLive { .. } => "not_live",
            Self::Watchdog { .. } => "watchdog",
            Self::Result { .. } => "result",
            Self::MemoryReserve(_) => "memory_reserve",
            Self::Orphaned => "orphaned",
            Self::ShimLost => "shim_lost",
        }
    }
}
