//! What was done to end a run and what was found when it ended: only ever what really happened.

use crate::names::named;
use crate::{Exit, Leftovers, Signal, Timestamp, limits};
use serde::{Deserialize, Serialize};

/// The record of a run's end beside its verdict. A run that ended by itself and left nothing has no steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopCertificate {
    /// Every round of signals that Kennel sent to end the run, in order; at most [`limits::STEPS_LISTED_MAX`].
    pub steps: Vec<StopStep>,
    /// How many more rounds there were.
    pub steps_unlisted: u32,
    /// What was done at standard input to end it, in order; at most [`limits::STOP_ACTIONS_MAX`].
    #[serde(default)]
    pub inputs: Vec<StopInput>,
    /// Commands that ran before the first signal, in order; at most [`limits::STOP_ACTIONS_MAX`].
    #[serde(default)]
    pub commands: Vec<StopCommand>,
    /// Who was alive when the leader ended, where SIGKILL had not gone out before.
    pub leftovers: Leftovers,
    /// When the look was taken that the verdict rests on; absent: nobody could look.
    pub census: Option<Timestamp>,
}

/// One action of a stop at standard input, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopInput {
    /// When.
    pub at: Timestamp,
    /// How many bytes were to be written; absent: it was to be closed.
    pub bytes: Option<u32>,
    /// How many the pipe or the terminal had room for.
    pub written: u32,
}

/// A command that a stop has run, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopCommand {
    /// When it was to begin.
    pub at: Timestamp,
    /// Its name, without arguments.
    pub name: String,
    /// How it ended.
    pub end: StopCommandEnd,
}

/// How a command of a stop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCommandEnd {
    /// It exited.
    Exited(Exit),
    /// It took too long, and was ended.
    TimedOut,
    /// It did not start, with errno(3) where a call failed.
    NotStarted(Option<i32>),
    /// The run's command exited before it was over, or did not run any more.
    CutOff,
}

/// One round of one signal, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopStep {
    /// When.
    pub at: Timestamp,
    /// Which signal.
    pub signal: Signal,
    /// By which address.
    pub scope: SignalScope,
    /// By whom.
    pub sender: SignalSender,
    /// How many processes it reached.
    pub delivered: u32,
    /// How many had ended before it reached them.
    pub gone: u32,
    /// How many the kernel refused to signal.
    pub refused: u32,
    /// errno(3) of the first refusal.
    pub errno: Option<i32>,
}

impl StopStep {
    /// How many processes were meant.
    #[must_use]
    pub fn targets(&self) -> u32 {
        self.delivered
            .saturating_add(self.gone)
            .saturating_add(self.refused)
    }
}

named! {
    /// By which address a signal went out.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SignalScope {
        /// The leader's process group at once, every other member of the tree by its own descriptor.
        Tree = "tree",
        /// `cgroup.kill`: all who were in the run's control group.
        ControlGroup = "cgroup_kill",
        /// The shim's children, by their numbers, which stay theirs until the shim reaps them.
        ShimChildren = "shim_children",
        /// The first process of the run's private pid namespace: the kernel ends all in it with that process.
        PidNamespace = "pid_namespace",
    }
}

named! {
    /// Who sent a signal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SignalSender {
        /// The keeper: the run's own, or a later one that found the run alive.
        Keeper = "keeper",
        /// The run's shim.
        Shim = "shim",
    }
}

impl StopCertificate {
    /// Adds a command, unless it is there.
    pub fn add_command(&mut self, command: &StopCommand) {
        let is_there = self.commands.contains(command);
        if !is_there && self.commands.len() < limits::STOP_ACTIONS_MAX {
            self.commands.push(command.clone());
        }
    }

    /// Adds a round; one too many is counted.
    pub fn add(&mut self, step: StopStep) {
        if self.steps.len() < limits::STEPS_LISTED_MAX {
            self.steps.push(step);
        } else {
            self.steps_unlisted = self.steps_unlisted.saturating_add(1);
        }
    }
}
