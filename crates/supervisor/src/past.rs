//! What a run's journal tells of it, for whoever goes on with the run.

use crate::{
    LifecycleEvent,
    event::{KERNEL_KILLED, SPARED},
};
use kennel_journal::{Entry, Kind};
use kennel_lifecycle::{
    Announced, PauseWord, Signal, TerminalSize, Timestamp, TreeVerdict, limits,
};
use kennel_store::Times;
use std::collections::BTreeSet;

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
                told.pause = PauseWord::Resumed(reason);
                self.pauses.push((entry.at, false));
            }
            LifecycleEvent::TerminalResized(size) => self.terminal = Some(size),
            LifecycleEvent::Stopping { order, deadline } => {
                told.stopping.get_or_insert((order, deadline));
            }
            LifecycleEvent::SignalSent { signal, .. } => {
                if signal == Signal::KILL {
                    self.last_kill = Some((entry.at, entry.data.to_vec()));
                }
            }
            LifecycleEvent::StopStep(_) => {
                let line = (entry.at, entry.data.to_vec());
                told.steps = told.steps.saturating_add(1);
                if self.steps.len() < limits::STEPS_TOLD_MAX {
                    self.steps.push(line);
                } else {
                    self.last_step = Some(line);
                }
            }
            LifecycleEvent::LeaderExited(exit) => {
                told.leader = Some(exit);
                self.times.leader_exited = Some(entry.at);
            }
            LifecycleEvent::StreamsClosed(how) => {
                told.streams = Some(how);
                self.times.streams_closed = Some(entry.at);
            }
            LifecycleEvent::Stuck(stuck) => told.stuck = Some(stuck),
            LifecycleEvent::TreeEmpty(verdict) => {
                told.tree = true;
                if matches!(verdict, TreeVerdict::Empty(_)) {
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
