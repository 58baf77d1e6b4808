//! The stop certificate: actions that were taken to end a run and findings at its end; only what really happened.

use crate::names::named;
use crate::{Exit, Leftovers, Signal, Timestamp, Usage, limits};
use serde::{Deserialize, Serialize};

/// Record of a run's end beside its verdict. A run that ended by itself and left nothing has no steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopCertificate {
    /// Every round of signals that Kennel sent to end the run, in order; at most [`limits::STEPS_LISTED_MAX`].
    pub steps: Vec<StopStep>,
    /// Number of further rounds.
    pub steps_unlisted: u32,
    /// Actions at standard input to end the run, in order; at most [`limits::STOP_ACTIONS_MAX`].
    #[serde(default)]
    pub inputs: Vec<StopInput>,
    /// Commands that ran before the first signal, in order; at most [`limits::STOP_ACTIONS_MAX`].
    #[serde(default)]
    pub commands: Vec<StopCommand>,
    /// Processes alive when the leader exited, where SIGKILL had not been sent before.
    pub leftovers: Leftovers,
    /// Time of the scan that the verdict rests on; absent: no scan was possible.
    pub census: Option<Timestamp>,
    /// Resources that the attempt has used; absent: no control group counted them, or none was there to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Usage>>,
}

/// One action of a stop at standard input, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopInput {
    /// Time of the action.
    pub at: Timestamp,
    /// Number of bytes to write; absent: the input was to be closed.
    pub bytes: Option<u32>,
    /// Number of bytes that the pipe or the terminal took.
    pub written: u32,
}

/// A command that a stop has run, with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopCommand {
    /// Time at which it was due to start.
    pub at: Timestamp,
    /// Its name, without arguments.
    pub name: String,
    /// Its exit.
    pub end: StopCommandEnd,
}

/// Exit of a command of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCommandEnd {
    /// The command exited.
    Exited(Exit),
    /// The command took too long, and was terminated.
    TimedOut,
    /// The command did not start; errno(3) where a call failed.
    NotStarted(Option<i32>),
    /// The run's command exited before the helper command was done, or had exited already.
    CutOff,
}

/// One round of one signal, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopStep {
    /// Time of the round.
    pub at: Timestamp,
    /// The signal.
    pub signal: Signal,
    /// Target of the signal.
    pub scope: SignalScope,
    /// Sender of the signal.
    pub sender: SignalSender,
    /// Number of processes that it reached.
    pub delivered: u32,
    /// Number of processes that had exited before it reached them.
    pub gone: u32,
    /// Number of processes that the kernel refused to signal.
    pub refused: u32,
    /// errno(3) of the first refusal.
    pub errno: Option<i32>,
}

impl StopStep {
    /// Returns the number of processes that the round was meant for.
    pub fn targets(&self) -> u32 {
        self.delivered
            .saturating_add(self.gone)
            .saturating_add(self.refused)
    }
}

named! {
    /// Target of a signal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SignalScope {
        /// The leader's process group at once, every other member of the tree by its own descriptor.
        Tree = "tree",
        /// `cgroup.kill`: all processes of the run's control group.
        ControlGroup = "cgroup_kill",
        /// The shim's children, by their numbers, which stay theirs until the shim reaps them.
        ShimChildren = "shim_children",
        /// The first process of the run's private pid namespace: the kernel ends all in it with that process.
        PidNamespace = "pid_namespace",
    }
}

named! {
    /// Sender of a signal.
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

    /// Adds a round; beyond the bound, rounds are counted.
    pub fn add(&mut self, step: StopStep) {
        if self.steps.len() < limits::STEPS_LISTED_MAX {
            self.steps.push(step);
        } else {
            self.steps_unlisted = self.steps_unlisted.saturating_add(1);
        }
    }
}
