//! What a run's journal tells of it, for whoever goes on with the run.

use crate::{
    LifecycleEvent,
    event::{KERNEL_KILLED, SPARED},
};
use kennel_journal::{Entry, Kind};
use kennel_lifecycle::{
    Announced, Deadline, Exit, Limit, PauseWord, ResumeReason, Signal, StopOrder, StopReason,
    StreamsEnd, Stuck, StuckProcess, TerminalSize, Timestamp, limits,
};
use kennel_store::Times;
use std::{collections::BTreeSet, time::Duration};

/// A journal, looked through.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) announced: Announced,
    /// Stations that were told.
    pub(crate) times: Times,
    /// That the attempt has ended, and another follows.
    attempt_ended: bool,
    /// When pauses began (`true`) and ended.
    pub(crate) pauses: Vec<(Timestamp, bool)>,
    /// Lines about signals, as far as the keeper tells of them again: the first rounds and the last one, and the last
    /// SIGKILL that was asked for.
    steps: Vec<Line>,
    last_step: Option<Line>,
    last_kill: Option<Line>,
    /// Warnings of processes that were spared.
    pub(crate) spared: BTreeSet<String>,
    /// How large the terminal was told to be last.
    pub(crate) terminal: Option<TerminalSize>,
}

/// A line with its time.
type Line = (Timestamp, Vec<u8>);

impl Past {
    /// Looks through the facts of a journal, those of one attempt.
    pub(crate) fn of(facts: &[Entry], attempt: u32) -> Self {
        let mut past = Self::default();
        for entry in facts.iter().filter(|entry| entry.kind == Kind::Lifecycle) {
            // A line that cannot be read says nothing; readers are told so when they come to it.
            match serde_json::from_slice(&entry.data) {
                // The run's, of whichever attempt.
                Ok(LifecycleEvent::Ended { .. }) => past.announced.ended = true,
                Ok(line) if entry.attempt == attempt => past.note(line, entry),
                Ok(_) | Err(_) => {}
            }
        }
        past
    }

    /// What was told, for one that waits for another attempt: its end is that of the attempt.
    pub(crate) fn of_attempt(&self) -> Announced {
        Announced {
            ended: self.attempt_ended,
            ..self.announced.clone()
        }
    }

    fn note(&mut self, line: LifecycleEvent, entry: &Entry) {
        let told = &mut self.announced;
        match line {
            LifecycleEvent::Recorded { .. } => told.recorded = true,
            LifecycleEvent::Started => {
                told.started = true;
                self.times.started = Some(entry.at);
            }
            LifecycleEvent::Paused => {
                told.pause = PauseWord::Paused;
                self.pauses.push((entry.at, true));
            }
            LifecycleEvent::Resumed { reason } => {
                told.pause = PauseWord::Resumed(match reason.as_str() {
                    "max_pause" => ResumeReason::MaxPause,
                    _ => ResumeReason::Asked,
                });
                self.pauses.push((entry.at, false));
            }
            LifecycleEvent::TerminalResized { rows, cols } => {
                self.terminal = Some(TerminalSize { rows, cols });
            }
            LifecycleEvent::Stopping {
                reason,
                by,
                request_id,
                grace_us,
                deadline_us,
            } => {
                let reason = stop_reason(&reason, by, request_id);
                let grace = Duration::from_micros(grace_us);
                let order = StopOrder { reason, grace };
                told.stopping.get_or_insert((order, Timestamp(deadline_us)));
            }
            LifecycleEvent::SignalSent { went, signal, .. } => {
                let line = (entry.at, entry.data.to_vec());
                if went.is_none() {
                    if signal == Signal::KILL.to_string() {
                        self.last_kill = Some(line);
                    }
                    return;
                }
                told.steps = told.steps.saturating_add(1);
                if self.steps.len() < limits::STEPS_TOLD_MAX {
                    self.steps.push(line);
                } else {
                    self.last_step = Some(line);
                }
            }
            LifecycleEvent::LeaderExited {
                code,
                signal,
                core_dumped,
            } => {
                told.leader = Some(Exit::from_parts(code, signal, core_dumped));
                self.times.leader_exited = Some(entry.at);
            }
            LifecycleEvent::StreamsClosed { how } => {
                told.streams = Some(match how.as_str() {
                    "eof" => StreamsEnd::Eof,
                    "cut" => StreamsEnd::Cut,
                    _ => StreamsEnd::Lost,
                });
                self.times.streams_closed = Some(entry.at);
            }
            LifecycleEvent::Stuck {
                processes,
                unlisted,
            } => {
                let process = |(pid, start_ticks, state, why)| StuckProcess {
                    pid,
                    start_ticks,
                    state,
                    why,
                };
                told.stuck = Some(Stuck {
                    processes: processes.into_iter().map(process).collect(),
                    unlisted,
                });
            }
            LifecycleEvent::TreeEmpty { verdict, .. } => {
                told.tree = true;
                if verdict == "empty" {
                    self.times.tree_empty = Some(entry.at);
                }
            }
            LifecycleEvent::Warning { message } => {
                told.memory_kills |= message.starts_with(KERNEL_KILLED);
                if message.starts_with(SPARED) {
                    self.spared.insert(message);
                }
            }
            LifecycleEvent::AttemptEnded { .. } => self.attempt_ended = true,
            LifecycleEvent::Ended { .. } => told.ended = true,
        }
    }

    /// Whether a line about a signal is there already.
    pub(crate) fn has_signal(&self, at: Timestamp, line: &[u8]) -> bool {
        let last = self.last_step.iter().chain(&self.last_kill);
        let mut lines = self.steps.iter().chain(last);
        lines.any(|(seen, told)| *seen == at && told == line)
    }
}

fn stop_reason(reason: &str, by: Option<String>, request_id: Option<String>) -> StopReason {
    match reason {
        "max_runtime" => StopReason::DeadlineExceeded(Deadline::MaxRuntime),
        "max_pause" => StopReason::DeadlineExceeded(Deadline::MaxPause),
        "output_bytes" => StopReason::LimitExceeded(Limit::OutputBytes),
        "disk" => StopReason::LimitExceeded(Limit::Disk),
        "restart" => StopReason::Restart {
            by: by.unwrap_or_default(),
            request_id,
        },
        "server_shutdown" => StopReason::ServerShutdown,
        "orphaned" => StopReason::Orphaned,
        "shim_lost" => StopReason::ShimLost,
        _ => StopReason::Abort {
            by: by.unwrap_or_default(),
            request_id,
        },
    }
}
