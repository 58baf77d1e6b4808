//! The entries of a run: what happened to it, in order. [`AttemptRecord::fold`](crate::AttemptRecord::fold) makes its
//! state of them, live and in every recovery.

use crate::{
    Activity, Exit, MemoryKills, NextAttempt, Outcome, ResumeReason, RuleAction, RunIdentity,
    Signal, StatusText, StopOrder, StopStep, StreamsEnd, Stuck, TerminalSize, Timestamp,
    TreeVerdict,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One thing that happened to a run. Its JSON form is on disk: `tests/entries.lock` goes red when that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The row of the attempt is written; its gate may be opened.
    Recorded {
        /// Command, shim, control group, host.
        identity: Box<RunIdentity>,
        /// Where in the whole of standard output and of standard error the output of this attempt begins.
        output_offsets: [u64; 2],
    },
    /// The command runs.
    Started,
    /// Every task is stopped.
    Paused,
    /// The tree runs again.
    Resumed {
        /// Why.
        reason: ResumeReason,
    },
    /// A stop is in force.
    Stopping {
        /// Why, and with how much time.
        order: StopOrder,
        /// When SIGKILL is due.
        deadline: Timestamp,
    },
    /// Size of the terminal: at the beginning of each attempt, and whenever a client has changed it.
    TerminalResized(TerminalSize),
    /// A signal that a client asked for was sent, or could not be.
    SignalSent {
        /// Which.
        signal: Signal,
        /// Number of processes that it was sent to; absent: not known.
        targets: Option<u32>,
        /// errno(3) of a failure.
        errno: Option<i32>,
    },
    /// A round of the stop ladder.
    StopStep(StopStep),
    /// The leader exited.
    LeaderExited(Exit),
    /// The output ended.
    StreamsClosed(StreamsEnd),
    /// SIGKILL does not end these processes; the run continues until they are gone.
    Stuck(Stuck),
    /// The verdict on the tree.
    TreeEnded(TreeVerdict),
    /// The kernel has killed processes of the run for want of memory, and that is not why the run is over.
    MemoryKills(MemoryKills),
    /// A process is in the control group of the run and not of the run: it is not signalled.
    ProcessSpared {
        /// Its process id.
        pid: i32,
        /// Its start, in clock ticks after boot.
        start_ticks: u64,
    },
    /// The annotations were changed.
    Annotated {
        /// Version of the annotations from here on.
        version: u64,
        /// Pairs that were set.
        set: BTreeMap<String, String>,
        /// Keys that were removed.
        removed: BTreeSet<String>,
        /// Principal that asked for it; empty: an output rule of the run.
        by: String,
    },
    /// The attempt is ready.
    Ready {
        /// Which attempt: a line may be read when the next one runs already.
        attempt: u32,
        /// What showed it: the name of an output rule, or of the kind of probe.
        by: String,
    },
    /// What the attempt does from here on.
    ActivityChanged {
        /// Which attempt.
        attempt: u32,
        /// What.
        activity: Activity,
        /// What showed it: the name of an output rule, `notify`, or a principal.
        by: String,
    },
    /// What the command says of itself, in its own words.
    StatusChanged {
        /// Which attempt.
        attempt: u32,
        /// The words.
        status: StatusText,
    },
    /// A notice to the run was not heard: nothing shows that its sender is a process of the run.
    NoticeRefused {
        /// Process id of the sender; 0: not known.
        pid: i32,
        /// Its user.
        uid: u32,
        /// It had ended before the notice was read.
        ended: bool,
    },
    /// A line of output has matched rules, and what follows from it was done. Written after that: a line without this
    /// entry is tested again by the next server, and what was done is not done twice.
    OutputMatched {
        /// Which attempt wrote it.
        attempt: u32,
        /// Seq of the event in which it ended.
        seq: u64,
        /// 1: standard output, 2: standard error.
        stream: u8,
        /// Offset of its first byte in the whole of the stream.
        offset: u64,
        /// The rules that matched, in order.
        rules: Vec<RuleMatch>,
    },
    /// Something that a person may want to know.
    Warning {
        /// One plain sentence.
        message: String,
    },
    /// All is known and written of an attempt, and another one follows.
    AttemptEnded {
        /// How it ended.
        outcome: Box<Outcome>,
        /// Restarts in a row, with the one that follows.
        restarts: u32,
        /// When that is due.
        next: Timestamp,
    },
    /// All is known and written of the run. Nothing follows.
    Ended(Box<Outcome>),
}

/// A rule that a line has matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleMatch {
    /// Its name.
    pub rule: String,
    /// Named groups of the match.
    pub groups: BTreeMap<String, String>,
    /// What follows from it.
    pub action: RuleAction,
}

impl Entry {
    /// The end of an attempt: the run's, where none follows.
    #[must_use]
    pub fn end(outcome: &Outcome, next: Option<NextAttempt>) -> Self {
        let outcome = Box::new(outcome.clone());
        match next {
            Some(NextAttempt { restarts, due }) => Self::AttemptEnded {
                outcome,
                restarts,
                next: due,
            },
            None => Self::Ended(outcome),
        }
    }

    /// The text of an entry that clients are shown as a warning.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        match self {
            Self::Warning { message } => Some(message.clone()),
            Self::MemoryKills(killed) => {
                let victims = match killed.kills {
                    1 => "a process of this run".to_owned(),
                    more => format!("{more} processes of this run"),
                };
                let limit = killed.memory_max.map_or_else(String::new, |bytes| {
                    format!("; the run has a memory limit of {bytes} bytes")
                });
                Some(format!(
                    "the kernel killed {victims} for lack of memory{limit}"
                ))
            }
            Self::ProcessSpared { pid, start_ticks } => Some(format!(
                "not of this run, and spared: process {pid} (started {start_ticks} ticks after boot), which is in its control group; the group proves nothing while it is there"
            )),
            Self::NoticeRefused { pid, uid, ended } => {
                let why = if *ended {
                    "it had ended before the notice was read, so that it is not known whose it was"
                } else {
                    "it is no process of this run"
                };
                Some(format!(
                    "a notice by process {pid} (uid {uid}) was refused: {why}"
                ))
            }
            _ => None,
        }
    }
}
