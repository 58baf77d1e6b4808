//! The pure core of Kennel: runs, their phases and the effects of each step.
//!
//! Owns every decision about a run. Never reads a clock, a file, a socket or the environment, and never waits: time
//! comes in as a value, work goes out as [`Effect`]s. Read [`Phase`] first, then [`Machine::step`], then
//! [`recovery::decide`] for what a restart does with a row it finds.

mod api_access;
pub mod audit;
mod backoff;
mod capabilities;
mod certificate;
mod containment;
mod countdown;
mod default_grace;
mod default_limits;
mod effect;
mod entry;
mod exit;
mod extension;
mod facets;
mod forms;
mod id;
mod identity;
mod input;
mod input_ledger;
pub mod labels;
pub mod ladder;
mod leftover;
pub mod limits;
mod machine;
mod memory;
#[doc(hidden)]
pub mod names;
mod needs;
mod notice;
pub mod os_text;
mod outcome;
mod output_bound;
mod parent;
mod pattern;
mod phase;
mod policy;
mod privileges;
mod record;
pub mod recovery;
mod refusal;
pub mod restart;
pub mod retention;
mod rules;
mod run_limits;
mod run_name;
mod secret;
mod signal;
mod spec;
mod stuck;
mod terminal;
mod terminal_modes;
mod time;
mod usage;
pub mod verdict;
mod violation;

pub use api_access::ApiAccess;
pub use backoff::{Backoff, Retries};
pub use capabilities::{CapabilitySet, UnknownCapability};
pub use certificate::{
    SignalScope, SignalSender, StopCertificate, StopCommand, StopCommandEnd, StopInput, StopStep,
};
pub use containment::{Containment, Gap, Held, HostFacts};
pub use countdown::Countdown;
pub use default_grace::{DefaultGrace, DefaultGraceError};
pub use default_limits::{DefaultLimits, DefaultLimitsError};
pub use effect::{Desired, Effect, ResumeReason, RowState};
pub use entry::{Entry, LaterEntry, NextAttempt, RuleMatch};
pub use exit::Exit;
pub use extension::{Extendable, Extension, Extensions};
pub use facets::{
    AnnotationChange, AnnotationRefusal, Annotations, Answered, AnsweredBy, AnsweringWrite, Asked,
    AskedLine, Facets, Question, Questions, Ready, ReportedActivity, ReportedStatus, ResultDue,
    RuleMark, SwitchedOff,
};
pub use forms::{
    LaterText, is_default, known, known_fields, known_or_default, known_or_why, with_skipped,
};
pub use id::{InvalidRunId, InvalidRunIdPart, KeeperEpoch, NodeId, RunId, RunIdPart};
pub use identity::{CgroupIdentity, HostIdentity, ProcessIdentity, RunIdentity};
pub use input::{Command, Input, Report};
pub use input_ledger::{
    ANSWER, InputClosed, InputLedger, InputRefusal, InputWrite, KnownWrite, Placed,
    WRITES_REMEMBERED_MAX,
};
pub use ladder::StopAction;
pub use leftover::{Leftover, Leftovers};
pub use machine::{AdoptedRun, HeldPause, Machine, RowContents};
pub use memory::{MemoryKills, MemoryShortage};
pub use names::{Tagged, UnknownName};
pub use needs::Need;
pub use notice::{Notice, StatusText, WatchdogSign};
pub use outcome::{
    Deadline, EndReason, Limit, Outcome, Proof, StartFailure, StartStage, StopOrder, StopReason,
    StreamsEnd, TreeVerdict,
};
pub use output_bound::{OnDiskFull, OnOutputFull, OutputBound};
pub use parent::{OnParentEnd, Parent};
pub use pattern::{JsonPattern, LinePattern};
pub use phase::{Ends, Leaving, NeverRan, PauseStage, Phase, Row, RunState, StopStage};
pub use policy::{
    LeaderExit, OnMaxPause, PausePolicy, PidNamespace, Policy, Recovery, RunKind, StopPolicy,
    Timeouts,
};
pub use privileges::{Isolation, Network, Privileges, RunUser, Sandbox, Seccomp};
pub use record::{AttemptRecord, LastPause, SignalRecord, Times};
pub use refusal::Refusal;
pub use restart::{RestartMode, RestartPolicy};
pub use retention::{OutputRemoval, RemovalReason, Retained, RetentionLimits, RowLimits, RowWalk};
pub use rules::{
    Activity, LiveProbe, Liveness, NOTIFIED, OutputRule, READY_RULE, Readiness, ReadyProbe,
    RuleAction, RuleOff, StateProbe, Wait,
};
pub use run_limits::{
    CpuQuota, IoLimit, Knob, LimitPowers, Missing, Resource, Rlimit, RunLimits, UNLIMITED,
};
pub use run_name::{NamePattern, is_run_name};
pub use secret::{Secret, SecretDelivery, SecretSource, SecretValue, in_clear};
pub use signal::{NoSignal, Signal};
pub use spec::{
    CommandSpec, EnvMode, Inherited, InputMode, RecordedSpec, RunSpec, USER_VARIABLES, compose_env,
};
pub use stuck::{Stuck, StuckProcess};
pub use terminal::{TerminalSize, TerminalSpec};
pub use terminal_modes::{
    KEYBOARD_AT_FIRST, REMEMBER_TERMINAL, modes_at_first, put_terminal_back, repeated_mode,
};
pub use time::Timestamp;
pub use usage::{Present, Pressure, Stall, Usage};
pub use violation::Violation;
