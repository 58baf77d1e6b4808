//! Flags of the commands that change a run or wait for it.

use super::{EnvArg, RunRef, RunRefs};
use crate::{complete, detach_keys::DetachKeys, values};
use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use clap_complete::engine::ArgValueCompleter;
use kennel_lifecycle::{Signal, TerminalSize};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// What is written; without it, or with `-`, what comes on standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Which byte of the run's input the file begins with: what the run has of it is skipped [default: where the input
    /// stands]
    #[arg(long, value_name = "BYTES")]
    pub(crate) offset: Option<u64>,
    /// Close the input behind it: the command finds its end
    #[arg(long)]
    pub(crate) close: bool,
    /// Write to this attempt and to no other [default: the present one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Only watch
    #[arg(long, conflicts_with = "take")]
    pub(crate) read_only: bool,
    /// Become the one who writes, also where somebody else does
    #[arg(long)]
    pub(crate) take: bool,
    /// Keys that leave it when they are typed one after the other; empty: none [default: ctrl-p,ctrl-q]
    #[arg(long, value_name = "KEYS")]
    pub(crate) detach_keys: Option<DetachKeys>,
}

#[derive(Debug, Args)]
pub(crate) struct ResizeArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Lines and characters of a line, such as 40x120
    #[arg(value_name = "ROWSxCOLS", value_parser = values::terminal_size)]
    pub(crate) size: TerminalSize,
    /// The terminal of this attempt and of no other [default: the present one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct RestartRunArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Of a run that has ended: a variable of its spec, for values are not kept; NAME takes the value that it has here. Repeat
    /// for each
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,
    /// Of a run that has ended: take every variable of its spec that is set here and not named by --env
    #[arg(long)]
    pub(crate) inherit_env: bool,
    /// Of a run that has ended: its standard input from FILE (`-`: from here), for that is not kept either
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Time between SIGTERM and SIGKILL [default: the run's own]; 0 kills at once
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct AbortArgs {
    #[command(flatten)]
    pub(crate) runs: RunRefs,
    /// Time between SIGTERM and SIGKILL [default: the run's own]; 0 kills at once
    #[arg(short = 't', long, aliases = ["time", "timeout"], value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
    /// What to wait for
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) wait: AbortWaitArg,
    /// Where no run has this id, leave a fence: a later spawn of it is refused [default: an unknown id is an error]
    #[arg(long)]
    pub(crate) fence: bool,
}

impl AbortArgs {
    /// The defaults for these runs.
    pub(crate) fn of(runs: RunRefs) -> Self {
        Self {
            runs,
            grace: None,
            wait: AbortWaitArg::default(),
            fence: false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AbortWaitArg {
    /// Only until the order is recorded
    None,
    /// Until the command itself has ended
    LeaderExited,
    /// Until nothing of its tree is left
    #[default]
    TreeEmpty,
}

#[derive(Debug, Args)]
pub(crate) struct SignalArgs {
    /// Who gets it
    #[arg(long, value_enum, value_name = "WHO", default_value_t)]
    pub(crate) to: SignalTargetArg,
    /// Id of this order: under one id a signal goes out once, however often it is asked for [default: a new one]
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) request_id: Option<String>,
    /// Name or number of the signal, such as SIGUSR1, usr1, 10 or SIGRTMIN+3, and the runs, which may also come first; not
    /// SIGSTOP, for which there is `pause`
    #[arg(value_names = ["SIGNAL", "RUN"], add = ArgValueCompleter::new(complete::runs), num_args = 2.., required = true)]
    pub(crate) words: Vec<String>,
}

impl SignalArgs {
    /// The signal and the runs: the first word is the signal, or else the last one.
    pub(crate) fn split(&self) -> Result<(Signal, &[String]), String> {
        let ends = self.words.split_first().zip(self.words.split_last());
        let Some(((first, behind), (last, before))) = ends else {
            return values::signal("").map(|signal| (signal, &[][..]));
        };
        match values::signal(first) {
            Ok(signal) => Ok((signal, behind)),
            Err(wrong) => match values::signal(last) {
                Ok(signal) => Ok((signal, before)),
                Err(_) => Err(format!("{first:?} is no signal: {wrong}")),
            },
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Send this signal to the command, by name or number; -9 and -USR1 are short for it [default: end the run, as `abort` does]
    #[arg(short, long, value_name = "SIGNAL", value_parser = values::signal)]
    pub(crate) signal: Option<Signal>,
    /// List the signals
    #[arg(short, long)]
    pub(crate) list: bool,
    /// Ids of the runs, or how they begin or end
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN", required_unless_present = "list")]
    pub(crate) runs: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SignalTargetArg {
    /// Every process of the run
    Tree,
    /// The command's process group
    Group,
    /// The foreground process group of the command's terminal, whom Ctrl-C would reach
    TerminalForeground,
    /// The command itself
    #[default]
    Leader,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) runs: RunRefs,
    /// What to wait for
    #[arg(long = "for", value_enum, value_name = "CONDITION", default_value_t)]
    pub(crate) condition: ConditionArg,
    /// Give up after this time, with exit code 124; the runs go on
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConditionArg {
    /// The command runs
    Started,
    /// Every process of it is stopped
    Paused,
    /// The command itself has ended
    LeaderExited,
    /// All output has been read
    StreamsClosed,
    /// Nothing of its tree is left
    TreeEmpty,
    /// All is known and recorded
    #[default]
    Ended,
}
