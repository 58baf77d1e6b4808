//! The entries of a run: its lifecycle events, in order. [`AttemptRecord::fold`](crate::AttemptRecord::fold) derives
//! its state from them, live and in every recovery.

use crate::{
    Activity, AnsweredBy, AnsweringWrite, Asked, Deadline, Exit, LaterText, MemoryKills, Outcome,
    ResumeReason, RuleAction, RuleOff, RunIdentity, Signal, StatusText, StopOrder, StopStep,
    StreamsEnd, Stuck, TerminalSize, Timestamp, TreeVerdict,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// One lifecycle event of a run. Its JSON form is on disk: `tests/entries.lock` goes red when that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Entry {
    /// The row of the attempt is written; its gate may be opened.
    Recorded {
        /// Command, shim, control group, host.
        identity: Box<RunIdentity>,
        /// Offsets of this attempt's output in the whole of standard output and of standard error.
        output_offsets: [u64; 2],
    },
    /// The command has started.
    Started,
    /// Every task is stopped.
    Paused,
    /// The tree runs again.
    Resumed {
        /// Reason why the tree runs again.
        reason: ResumeReason,
    },
    /// A stop is in force.
    Stopping {
        /// Reason and grace of the stop.
        order: StopOrder,
        /// Time at which SIGKILL is due.
        deadline: Timestamp,
    },
    /// Size of the terminal: at the beginning of each attempt, and whenever a client has changed it.
    TerminalResized(TerminalSize),
    /// A signal that a client requested was sent, or could not be sent.
    SignalSent {
        /// The signal.
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
    /// The output has ended.
    StreamsClosed(StreamsEnd),
    /// SIGKILL does not end these processes; the run continues until they are gone.
    Stuck(Stuck),
    /// The verdict on the tree.
    TreeEnded(TreeVerdict),
    /// The kernel has killed processes of the run for want of memory, and the run has ended for another reason.
    MemoryKills(MemoryKills),
    /// An unrelated process is in the control group of the run: it is not signalled.
    ProcessSpared {
        /// Its process id.
        pid: i32,
        /// Its start, in clock ticks after boot.
        start_ticks: u64,
    },
    /// The annotations were changed.
    Annotated {
        /// Version of the annotations after the change.
        version: u64,
        /// Pairs that were set.
        set: BTreeMap<String, String>,
        /// Keys that were removed.
        removed: BTreeSet<String>,
        /// Principal that requested the change; empty: an output rule of the run.
        by: String,
    },
    /// The attempt is ready.
    Ready {
        /// Number of the attempt: a line may be read when the next one runs already.
        attempt: u32,
        /// Evidence: the name of an output rule, or of the kind of probe.
        by: String,
    },
    /// The activity of the attempt has changed.
    ActivityChanged {
        /// Number of the attempt.
        attempt: u32,
        /// The new activity.
        activity: Activity,
        /// Source: the name of an output rule, `notify`, or a principal.
        by: String,
        /// What the run asks; absent: nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        question: Option<Box<Asked>>,
    },
    /// Questions were answered.
    Answered {
        /// Number of the attempt.
        attempt: u32,
        /// Numbers of the questions.
        questions: Vec<u64>,
        /// What has ended them.
        how: AnsweredBy,
        /// Principal who has; empty: not known.
        by: String,
        /// What was written; absent: nothing, or it is not known.
        write: Option<AnsweringWrite>,
    },
    /// The command has reported its status.
    StatusChanged {
        /// Number of the attempt.
        attempt: u32,
        /// The status text.
        status: StatusText,
    },
    /// A limit of time was extended.
    Extended {
        /// Number of the attempt.
        attempt: u32,
        /// The limit.
        limit: Deadline,
        /// Total of its extensions in this attempt.
        total: Duration,
        /// Run time of the attempt, pauses not counted, before which the limit is not reached.
        end: Duration,
        /// Source: `notify`, or a principal.
        by: String,
    },
    /// A notice to the run was refused: nothing shows that its sender is a process of the run.
    NoticeRefused {
        /// Process id of the sender; 0: not known.
        pid: i32,
        /// User id of the sender.
        uid: u32,
        /// Whether the sender had exited before the notice was read.
        ended: bool,
    },
    /// A line of output has matched rules, and their actions are done. Written after them: the next server tests a line
    /// without this entry again, and actions are not done twice.
    OutputMatched {
        /// Number of the attempt that wrote it.
        attempt: u32,
        /// Seq of the event in which the line ended.
        seq: u64,
        /// 1: standard output, 2: standard error.
        stream: u8,
        /// Offset of its first byte in the whole of the stream.
        offset: u64,
        /// The rules that matched, in order.
        rules: Vec<RuleMatch>,
    },
    /// An output rule was switched off for the rest of the run: its pattern takes too much of a processor.
    RuleSwitchedOff {
        /// Name of the rule.
        rule: String,
        /// Reason why it was switched off.
        reason: RuleOff,
    },
    /// Entries that the journal did not get, since the bound of the run was reached; before its end.
    EventsSummed {
        /// Number of these entries since the last such number.
        events: u64,
    },
    /// A condition that a person should know.
    Warning {
        /// One plain sentence.
        message: String,
    },
    /// The attempt has ended and is written completely; another one follows.
    AttemptEnded {
        /// Outcome of the attempt.
        outcome: Box<Outcome>,
        /// Restarts in a row, with the one that follows.
        restarts: u32,
        /// Time at which the next attempt is due.
        next: Timestamp,
    },
    /// The run has ended and is written completely. Nothing follows.
    Ended(Box<Outcome>),
    /// An entry that only a later version reads: it changes nothing here, and readers see an event without content.
    #[serde(skip)]
    Later(Box<LaterEntry>),
}

/// An entry that only a later version reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterEntry {
    /// Name of its kind.
    pub kind: String,
    /// Whether deciding about the run without it would be wrong: it says so beside its kind (`"critical": true`), or its
    /// kind is known, and a value in it is not.
    pub is_critical: bool,
    text: LaterText,
}

impl LaterEntry {
    /// Keeps an entry that this version cannot read; absent: it is none.
    fn of(text: LaterText, error: &serde_json::Error) -> Option<Self> {
        let (kind, says_so) = match serde_json::from_str(text.as_str()).ok()? {
            Value::String(kind) => (kind, false),
            Value::Object(mut fields) => {
                let says_so = fields.remove("critical") == Some(Value::Bool(true));
                (fields.into_iter().next()?.0, says_so)
            }
            _ => return None,
        };
        let is_unknown = error
            .to_string()
            .starts_with(&format!("unknown variant `{kind}`"));
        Some(Self {
            is_critical: says_so || !is_unknown,
            kind,
            text,
        })
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Later(later) => later.text.serialize(to),
            known => Self::serialize(known, to),
        }
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = LaterText::deserialize(from)?;
        let read = Self::deserialize(&mut serde_json::Deserializer::from_str(text.as_str()));
        read.or_else(|error| {
            let later = LaterEntry::of(text, &error).ok_or_else(|| D::Error::custom(error))?;
            Ok(Self::Later(Box::new(later)))
        })
    }
}

/// A rule that a line has matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleMatch {
    /// Name of the rule.
    pub rule: String,
    /// Named groups of the match.
    pub groups: BTreeMap<String, String>,
    /// Action of the rule.
    pub action: RuleAction,
}

impl Entry {
    /// Returns the entry for the end of an attempt: for that of the run, where none follows.
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

    /// Returns the warning text that clients get for this entry.
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

/// The attempt that follows one that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextAttempt {
    /// Restarts in a row, with this one.
    pub restarts: u32,
    /// Time at which it is due.
    pub due: Timestamp,
}
