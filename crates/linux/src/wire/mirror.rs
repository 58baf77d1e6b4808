//! The lifecycle's vocabulary in a form that can be encoded, with conversions both ways.

use super::WireHeldProcess;
use crate::capability::{Capability, CapabilityName};
use crate::client::{
    Aim, Fact, Holds, InterruptWay, Shot, ShotResult, SignalResult, SignalTarget, Tie, Unstopped,
};
use crate::terminal::NoPty;
pub(crate) use certificate::steps;
use certificate::{WireStep, WireStuck};
pub(crate) use held::{WireContainment, WireHeld};
use kennel_lifecycle::{
    CgroupIdentity, Deadline, Exit, HostIdentity, LeaderExit, Leftover, Leftovers, MemoryKills,
    OnMaxPause, PausePolicy, PidNamespace, Policy, ProcessIdentity, Proof, Recovery, RunIdentity,
    Signal, StartFailure, StartStage, TerminalSize, Timestamp, TreeVerdict,
    ladder::{Step, StopPlan},
    recovery::{CgroupSeen, ExitRecord, Host, Observation, Seen},
};
pub(crate) use limits::{WireLimits, WirePowers, WireRlimit};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A struct and its mirror with the same fields.
macro_rules! mirror_struct {
    ($(#[$doc:meta])* $wire:ident = $real:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) struct $wire { $(pub(crate) $field: $kind),* }

        impl From<$real> for $wire {
            fn from(real: $real) -> Self {
                Self { $($field: real.$field.into_wire()),* }
            }
        }

        impl From<$wire> for $real {
            fn from(wire: $wire) -> Self {
                Self { $($field: IntoReal::into_real(wire.$field)),* }
            }
        }
    };
}

/// A plain enum and its mirror with the same variants.
macro_rules! mirror_enum {
    ($(#[$doc:meta])* $wire:ident = $real:ident { $($variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) enum $wire { $($variant),* }

        impl From<$real> for $wire {
            fn from(real: $real) -> Self {
                match real { $($real::$variant => Self::$variant),* }
            }
        }

        impl From<$wire> for $real {
            fn from(wire: $wire) -> Self {
                match wire { $($wire::$variant => Self::$variant),* }
            }
        }
    };
}

/// `From` that also reaches through `Option`.
trait IntoWire<W> {
    fn into_wire(self) -> W;
}

trait IntoReal<R> {
    fn into_real(self) -> R;
}

impl<W, R: Into<W>> IntoWire<W> for R {
    fn into_wire(self) -> W {
        self.into()
    }
}

impl<R, W: Into<R>> IntoReal<R> for W {
    fn into_real(self) -> R {
        self.into()
    }
}

mirror_struct!(
    /// [`ProcessIdentity`].
    WireProcess = ProcessIdentity { pid: i32, pgid: i32, sid: i32, start_ticks: u64, pidfs_handle: Option<u64> }
);
mirror_struct!(
    /// [`CgroupIdentity`].
    WireCgroup = CgroupIdentity { path: String, inode: u64 }
);
mirror_struct!(
    /// [`HostIdentity`].
    WireHost = HostIdentity { boot_id: String, pidns_inode: u64, init_start_ticks: Option<u64> }
);
mirror_enum!(
    /// [`CapabilityName`].
    WireCapabilityName = CapabilityName {
        Cgroup, CgroupSealed, CgroupClone, CgroupKill, CgroupFreeze, CgroupMemory, CgroupPids, CgroupCpu, Clone3, Pidfs, PidfdGroupSignal, PidfdExit, PidNamespace, Adoption, Terminal,
        OomOrder
    }
);
mirror_struct!(
    /// [`Capability`].
    WireCapability = Capability { name: WireCapabilityName, missing: Option<String> }
);
mirror_enum!(
    /// [`InterruptWay`].
    WireInterruptWay = InterruptWay { Group, Key, Foreground, Typed }
);
mirror_struct!(
    /// [`TerminalSize`].
    WireTerminalSize = TerminalSize { rows: u16, cols: u16 }
);
mirror_enum!(
    /// [`Proof`].
    WireProof = Proof { CgroupAndEchild, Echild, Cgroup, PrivatePidns }
);
/// [`NoPty`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireNoPty {
    Exhausted {
        current: Option<u64>,
        max: Option<u64>,
    },
    Unavailable {
        why: String,
        errno: Option<i32>,
    },
}

impl From<NoPty> for WireNoPty {
    fn from(real: NoPty) -> Self {
        match real {
            NoPty::Exhausted { current, max } => Self::Exhausted { current, max },
            NoPty::Unavailable { why, errno } => Self::Unavailable { why, errno },
        }
    }
}

impl From<WireNoPty> for NoPty {
    fn from(wire: WireNoPty) -> Self {
        match wire {
            WireNoPty::Exhausted { current, max } => Self::Exhausted { current, max },
            WireNoPty::Unavailable { why, errno } => Self::Unavailable { why, errno },
        }
    }
}

mirror_enum!(
    /// [`Seen`].
    WireSeen = Seen { Same, Gone, Unknown }
);
mirror_enum!(
    /// [`Host`].
    WireHostSeen = Host { Same, Other }
);
mirror_enum!(
    /// [`CgroupSeen`].
    WireCgroupSeen = CgroupSeen { None, Empty, Populated, Unknown }
);
mirror_enum!(
    /// [`StartStage`].
    WireStage = StartStage { Prepare, Cgroup, Fork, Session, Stdio, WorkDir, Record, Gate, Exec, Limits, Namespace }
);
mirror_enum!(
    /// [`Deadline`].
    WireDeadline = Deadline { MaxRuntime, MaxPause }
);
mirror_enum!(
    /// [`OnMaxPause`].
    WireOnMaxPause = OnMaxPause { Resume, Abort }
);
mirror_enum!(
    /// [`PidNamespace`].
    WirePidNamespace = PidNamespace { Shared, Private }
);
mirror_enum!(
    /// [`Recovery`].
    WireRecovery = Recovery { Terminate, Adopt, AdoptWherePossible }
);
mirror_struct!(
    /// [`MemoryKills`].
    WireMemoryKills = MemoryKills { kills: u64, memory_max: Option<u64> }
);
mirror_struct!(
    /// [`StartFailure`].
    WireFailure = StartFailure { stage: WireStage, errno: Option<i32>, path: Option<String> }
);

pub(crate) mod adoption;
pub(crate) mod certificate;
pub(crate) mod former;
pub(crate) mod handover;
pub(crate) mod held;
pub(crate) mod input;
pub(crate) mod limits;
pub(crate) mod stray;
pub(crate) mod upgrade;

/// [`RunIdentity`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireIdentity {
    pub(crate) command: WireProcess,
    pub(crate) shim: WireProcess,
    pub(crate) cgroup: Option<WireCgroup>,
    pub(crate) host: WireHost,
}

impl From<RunIdentity> for WireIdentity {
    fn from(real: RunIdentity) -> Self {
        Self {
            command: real.command.into(),
            shim: real.shim.into(),
            cgroup: real.cgroup.map(Into::into),
            host: real.host.into(),
        }
    }
}

impl From<WireIdentity> for RunIdentity {
    fn from(wire: WireIdentity) -> Self {
        Self {
            command: wire.command.into(),
            shim: wire.shim.into(),
            cgroup: wire.cgroup.map(Into::into),
            host: wire.host.into(),
        }
    }
}

/// [`Exit`]. A signal travels by number; one that is no signal becomes `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireExit {
    Code(i32),
    Signal { number: i32, core_dumped: bool },
    Unknown,
}

impl From<Exit> for WireExit {
    fn from(real: Exit) -> Self {
        match real {
            Exit::Code(code) => Self::Code(code),
            Exit::Signal {
                signal,
                core_dumped,
            } => Self::Signal {
                number: signal.number(),
                core_dumped,
            },
            Exit::Unknown => Self::Unknown,
        }
    }
}

impl From<WireExit> for Exit {
    fn from(wire: WireExit) -> Self {
        match wire {
            WireExit::Code(code) => Self::Code(code),
            WireExit::Signal {
                number,
                core_dumped,
            } => Signal::from_number(number).map_or(Self::Unknown, |signal| Self::Signal {
                signal,
                core_dumped,
            }),
            WireExit::Unknown => Self::Unknown,
        }
    }
}

mirror_struct!(
    /// [`Leftover`].
    WireLeftover = Leftover { pid: i32, start_ticks: u64, name: String }
);

/// [`Leftovers`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireLeftovers {
    pub(crate) processes: Vec<WireLeftover>,
    pub(crate) unlisted: u32,
}

impl From<Leftovers> for WireLeftovers {
    fn from(real: Leftovers) -> Self {
        Self {
            processes: real.processes.into_iter().map(Into::into).collect(),
            unlisted: real.unlisted,
        }
    }
}

impl From<WireLeftovers> for Leftovers {
    fn from(wire: WireLeftovers) -> Self {
        Self {
            processes: wire.processes.into_iter().map(Into::into).collect(),
            unlisted: wire.unlisted,
        }
    }
}

/// [`TreeVerdict`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireVerdict {
    Empty(WireProof),
    Survivors(Vec<i32>),
    Unverified(String),
    NeverRan,
    Kept(WireLeftovers),
}

impl From<TreeVerdict> for WireVerdict {
    fn from(real: TreeVerdict) -> Self {
        match real {
            TreeVerdict::Empty(proof) => Self::Empty(proof.into()),
            TreeVerdict::Survivors(pids) => Self::Survivors(pids),
            TreeVerdict::Unverified(why) => Self::Unverified(why),
            TreeVerdict::NeverRan => Self::NeverRan,
            TreeVerdict::Kept(left) => Self::Kept(left.into()),
        }
    }
}

impl From<WireVerdict> for TreeVerdict {
    fn from(wire: WireVerdict) -> Self {
        match wire {
            WireVerdict::Empty(proof) => Self::Empty(proof.into()),
            WireVerdict::Survivors(pids) => Self::Survivors(pids),
            WireVerdict::Unverified(why) => Self::Unverified(why),
            WireVerdict::NeverRan => Self::NeverRan,
            WireVerdict::Kept(left) => Self::Kept(left.into()),
        }
    }
}

/// [`StopPlan`], in milliseconds. A step whose number is no signal is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WirePlan {
    pub(crate) steps: Vec<(i32, u64)>,
    pub(crate) kill_after_ms: u64,
}

impl From<&StopPlan> for WirePlan {
    fn from(real: &StopPlan) -> Self {
        let steps = real.steps.iter();
        Self {
            steps: steps
                .map(|s| (s.signal.number(), millis(s.after)))
                .collect(),
            kill_after_ms: millis(real.kill_after),
        }
    }
}

impl From<WirePlan> for StopPlan {
    fn from(wire: WirePlan) -> Self {
        let steps = wire.steps.into_iter().filter_map(|(number, after_ms)| {
            Some(Step {
                signal: Signal::from_number(number)?,
                after: Duration::from_millis(after_ms),
            })
        });
        Self {
            steps: steps.collect(),
            kill_after: Duration::from_millis(wire.kill_after_ms),
        }
    }
}

/// Rounded up: nobody gets less than was given.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// [`Policy`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WirePolicy {
    pub(crate) stop: WirePlan,
    pub(crate) max_runtime_ms: Option<u64>,
    pub(crate) limits: WireLimits,
    pub(crate) on_leader_exit: WireLeaderExit,
    pub(crate) max_pause_ms: Option<u64>,
    pub(crate) on_max_pause: WireOnMaxPause,
    pub(crate) pid_namespace: WirePidNamespace,
    pub(crate) recovery: WireRecovery,
}

/// [`LeaderExit`], in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireLeaderExit {
    Stop,
    Drain { timeout_ms: Option<u64> },
    Keep,
}

impl From<LeaderExit> for WireLeaderExit {
    fn from(real: LeaderExit) -> Self {
        match real {
            LeaderExit::Stop => Self::Stop,
            LeaderExit::Drain { timeout } => Self::Drain {
                timeout_ms: timeout.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX)),
            },
            LeaderExit::Keep => Self::Keep,
        }
    }
}

impl From<WireLeaderExit> for LeaderExit {
    fn from(wire: WireLeaderExit) -> Self {
        match wire {
            WireLeaderExit::Stop => Self::Stop,
            WireLeaderExit::Drain { timeout_ms } => Self::Drain {
                timeout: timeout_ms.map(Duration::from_millis),
            },
            WireLeaderExit::Keep => Self::Keep,
        }
    }
}

impl From<&Policy> for WirePolicy {
    fn from(real: &Policy) -> Self {
        Self {
            stop: (&real.stop).into(),
            max_runtime_ms: real.max_runtime.map(millis),
            limits: (&real.limits).into(),
            on_leader_exit: real.on_leader_exit.into(),
            max_pause_ms: real.pause.max_pause.map(millis),
            on_max_pause: real.pause.on_max_pause.into(),
            pid_namespace: real.pid_namespace.into(),
            recovery: real.recovery.into(),
        }
    }
}

impl From<WirePolicy> for Policy {
    fn from(wire: WirePolicy) -> Self {
        Self {
            stop: wire.stop.into(),
            max_runtime: wire.max_runtime_ms.map(Duration::from_millis),
            limits: wire.limits.into(),
            on_leader_exit: wire.on_leader_exit.into(),
            pause: PausePolicy {
                max_pause: wire.max_pause_ms.map(Duration::from_millis),
                on_max_pause: wire.on_max_pause.into(),
            },
            pid_namespace: wire.pid_namespace.into(),
            recovery: wire.recovery.into(),
        }
    }
}

/// [`ExitRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireRecord {
    pub(crate) exit: Option<WireExit>,
    pub(crate) by_itself_us: Option<i64>,
    pub(crate) tree: Option<WireVerdict>,
    pub(crate) never_ran: bool,
    pub(crate) steps: Vec<WireStep>,
    pub(crate) census_us: Option<i64>,
    pub(crate) shutdown: bool,
}

/// A shim's record as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireWill {
    pub(crate) leader: WireLeader,
    pub(crate) record: WireRecord,
}

/// Whose leader it is, within one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireLeader {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
}

/// What a start has done to end the run of this leader, as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireNote {
    pub(crate) leader: WireLeader,
    pub(crate) steps: Vec<WireStep>,
}

/// The first process of the private pid namespace of this leader, as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireInit {
    pub(crate) leader: WireLeader,
    pub(crate) init: WireHeldProcess,
}

impl From<&ProcessIdentity> for WireLeader {
    fn from(real: &ProcessIdentity) -> Self {
        Self {
            pid: real.pid,
            start_ticks: real.start_ticks,
        }
    }
}

impl From<ExitRecord> for WireRecord {
    fn from(real: ExitRecord) -> Self {
        Self {
            exit: real.exit.map(Into::into),
            by_itself_us: real.by_itself.map(|at| at.0),
            tree: real.tree.map(Into::into),
            never_ran: real.never_ran,
            steps: real.steps.into_iter().map(Into::into).collect(),
            census_us: real.census.map(|at| at.0),
            shutdown: real.shutdown,
        }
    }
}

impl From<WireRecord> for ExitRecord {
    fn from(wire: WireRecord) -> Self {
        Self {
            exit: wire.exit.map(Into::into),
            by_itself: wire.by_itself_us.map(Timestamp),
            tree: wire.tree.map(Into::into),
            never_ran: wire.never_ran,
            steps: steps(wire.steps),
            census: wire.census_us.map(Timestamp),
            shutdown: wire.shutdown,
        }
    }
}

/// [`Observation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireObservation {
    pub(crate) host: WireHostSeen,
    pub(crate) exit_record: Option<WireRecord>,
    pub(crate) shim: WireSeen,
    pub(crate) command: WireSeen,
    pub(crate) cgroup: WireCgroupSeen,
    pub(crate) held: Vec<i32>,
    pub(crate) hints: Vec<i32>,
    pub(crate) namespace: Option<WireSeen>,
    pub(crate) end_begun: bool,
    pub(crate) steps: Vec<WireStep>,
    pub(crate) stuck: WireStuck,
    pub(crate) at_us: i64,
}

impl From<Observation> for WireObservation {
    fn from(real: Observation) -> Self {
        Self {
            host: real.host.into(),
            exit_record: real.exit_record.map(Into::into),
            shim: real.shim.into(),
            command: real.command.into(),
            cgroup: real.cgroup.into(),
            held: real.held,
            hints: real.hints,
            namespace: real.namespace.map(Into::into),
            end_begun: real.end_begun,
            steps: real.steps.into_iter().map(Into::into).collect(),
            stuck: real.stuck.into(),
            at_us: real.at.0,
        }
    }
}

impl From<WireObservation> for Observation {
    fn from(wire: WireObservation) -> Self {
        Self {
            host: wire.host.into(),
            exit_record: wire.exit_record.map(Into::into),
            shim: wire.shim.into(),
            command: wire.command.into(),
            cgroup: wire.cgroup.into(),
            held: wire.held,
            hints: wire.hints,
            namespace: wire.namespace.map(Into::into),
            end_begun: wire.end_begun,
            steps: steps(wire.steps),
            stuck: wire.stuck.into(),
            at: Timestamp(wire.at_us),
        }
    }
}

/// [`Fact`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireFact {
    NotReleased,
    Executed,
    ExecFailed(WireFailure),
    SignalSent {
        number: i32,
        targets: Option<u32>,
        errno: Option<i32>,
    },
    LeaderExited(WireExit),
    TreeEnded(WireVerdict),
    DeadlineExceeded(WireDeadline),
    StopStep(WireStep),
    LeftBehind(WireLeftovers),
    TreeStuck(WireStuck),
    MemoryKills(WireMemoryKills),
    PauseExpired,
    Orphaned,
    Aimed(Vec<WireAim>),
    ShimLost,
}

/// [`Aim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireAim {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) tie: WireTie,
    pub(crate) result: WireShotResult,
}

/// [`Tie`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireTie {
    Group,
    Cgroup,
    Namespace,
    Held(WireHolds),
    Unrelated,
}

impl From<Aim> for WireAim {
    fn from(real: Aim) -> Self {
        Self {
            pid: real.pid,
            start_ticks: real.start_ticks,
            tie: match real.tie {
                Tie::Group => WireTie::Group,
                Tie::Cgroup => WireTie::Cgroup,
                Tie::Namespace => WireTie::Namespace,
                Tie::Held(holds) => WireTie::Held(holds.into()),
                Tie::Unrelated => WireTie::Unrelated,
            },
            result: real.result.into(),
        }
    }
}

impl From<WireAim> for Aim {
    fn from(wire: WireAim) -> Self {
        Self {
            pid: wire.pid,
            start_ticks: wire.start_ticks,
            tie: match wire.tie {
                WireTie::Group => Tie::Group,
                WireTie::Cgroup => Tie::Cgroup,
                WireTie::Namespace => Tie::Namespace,
                WireTie::Held(holds) => Tie::Held(holds.into()),
                WireTie::Unrelated => Tie::Unrelated,
            },
            result: wire.result.into(),
        }
    }
}

impl From<Fact> for WireFact {
    fn from(real: Fact) -> Self {
        match real {
            Fact::NotReleased => Self::NotReleased,
            Fact::Executed => Self::Executed,
            Fact::ExecFailed(failure) => Self::ExecFailed(failure.into()),
            Fact::SignalSent {
                signal,
                targets,
                errno,
            } => Self::SignalSent {
                number: signal.number(),
                targets,
                errno,
            },
            Fact::LeaderExited(exit) => Self::LeaderExited(exit.into()),
            Fact::TreeEnded(verdict) => Self::TreeEnded(verdict.into()),
            Fact::DeadlineExceeded(which) => Self::DeadlineExceeded(which.into()),
            Fact::PauseExpired => Self::PauseExpired,
            Fact::Orphaned => Self::Orphaned,
            Fact::ShimLost => Self::ShimLost,
            Fact::StopStep(step) => Self::StopStep(step.into()),
            Fact::Aimed(aims) => Self::Aimed(aims.into_iter().map(Into::into).collect()),
            Fact::LeftBehind(left) => Self::LeftBehind(left.into()),
            Fact::TreeStuck(stuck) => Self::TreeStuck(stuck.into()),
            Fact::MemoryKills(kills) => Self::MemoryKills(kills.into()),
        }
    }
}

impl TryFrom<WireFact> for Fact {
    type Error = ();

    fn try_from(wire: WireFact) -> Result<Self, ()> {
        Ok(match wire {
            WireFact::NotReleased => Self::NotReleased,
            WireFact::Executed => Self::Executed,
            WireFact::ExecFailed(failure) => Self::ExecFailed(failure.into()),
            WireFact::SignalSent {
                number,
                targets,
                errno,
            } => Self::SignalSent {
                signal: Signal::from_number(number).ok_or(())?,
                targets,
                errno,
            },
            WireFact::LeaderExited(exit) => Self::LeaderExited(exit.into()),
            WireFact::TreeEnded(verdict) => Self::TreeEnded(verdict.into()),
            WireFact::DeadlineExceeded(which) => Self::DeadlineExceeded(which.into()),
            WireFact::PauseExpired => Self::PauseExpired,
            WireFact::Orphaned => Self::Orphaned,
            WireFact::ShimLost => Self::ShimLost,
            WireFact::StopStep(step) => Self::StopStep(step.try_into()?),
            WireFact::Aimed(aims) => Self::Aimed(aims.into_iter().map(Into::into).collect()),
            WireFact::LeftBehind(left) => Self::LeftBehind(left.into()),
            WireFact::TreeStuck(stuck) => Self::TreeStuck(stuck.into()),
            WireFact::MemoryKills(kills) => Self::MemoryKills(kills.into()),
        })
    }
}

mirror_enum!(
    /// [`SignalTarget`].
    WireTarget = SignalTarget { Tree, Group, Leader, TerminalForeground }
);
mirror_struct!(
    /// [`Holds`].
    #[derive(Copy)]
    WireHolds = Holds { cgroup: bool, shim: bool, keeper: bool }
);
mirror_struct!(
    /// [`Shot`].
    #[derive(Copy)]
    WireShot = Shot { pid: i32, start_ticks: u64, result: WireShotResult }
);

/// [`ShotResult`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireShotResult {
    Delivered,
    Gone,
    Failed(i32),
}

impl From<ShotResult> for WireShotResult {
    fn from(real: ShotResult) -> Self {
        match real {
            ShotResult::Delivered => Self::Delivered,
            ShotResult::Gone => Self::Gone,
            ShotResult::Failed(errno) => Self::Failed(errno),
        }
    }
}

impl From<WireShotResult> for ShotResult {
    fn from(wire: WireShotResult) -> Self {
        match wire {
            WireShotResult::Delivered => Self::Delivered,
            WireShotResult::Gone => Self::Gone,
            WireShotResult::Failed(errno) => Self::Failed(errno),
        }
    }
}

/// [`SignalResult`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireSignalResult {
    Done,
    Gone,
    /// [`Unstopped`]: process id, and why.
    Partial(Vec<(i32, String)>),
    Failed(i32),
    UnknownRun,
}

impl From<WireSignalResult> for SignalResult {
    fn from(wire: WireSignalResult) -> Self {
        match wire {
            WireSignalResult::Done => Self::Done,
            WireSignalResult::Gone => Self::Gone,
            WireSignalResult::Partial(moving) => {
                let moving = moving.into_iter();
                Self::Partial(moving.map(|(pid, why)| Unstopped { pid, why }).collect())
            }
            WireSignalResult::Failed(errno) => Self::Failed(errno),
            WireSignalResult::UnknownRun => Self::UnknownRun,
        }
    }
}
