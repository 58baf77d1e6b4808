//! Flags of the commands that change a run or wait for it.

use super::{EnvArg, RunRef, RunRefs, SecretArg, SelectionArgs, Targets, flags::of_enum};
use crate::{complete, detach_keys::DetachKeys, values};
use clap::{
    Args,
    builder::{NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser},
};
use clap_complete::engine::ArgValueCompleter;
use kennel_lifecycle::{Signal, TerminalSize};
use kennel_proto::pb::{AbortWait, SignalTarget, WaitCondition};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
pub struct WriteArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// File to write; without it, or with `-`, standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Offset of the file's first byte in the run's input; bytes that the run already has are skipped [default: the
    /// current end of the input]
    #[arg(long, value_name = "BYTES")]
    pub(crate) offset: Option<u64>,
    /// Close the input afterwards: the command reads end of file
    #[arg(long)]
    pub(crate) close: bool,
    /// Write to this attempt only [default: the current one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Answer, written with an end of line; without it, a line of standard input, hidden where the run's terminal hides it
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Number of the question [default: the only one]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) question: Option<u64>,
    /// Write the answer as it is, without an end of line
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Watch only, without typing
    #[arg(long, conflicts_with = "take")]
    pub(crate) read_only: bool,
    /// Take the keyboard from another attached client
    #[arg(long)]
    pub(crate) take: bool,
    /// Keys that detach when typed in sequence; empty: none [default: ctrl-p,ctrl-q]
    #[arg(long, value_name = "KEYS")]
    pub(crate) detach_keys: Option<DetachKeys>,
}

#[derive(Debug, Args)]
pub struct ExtendArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Least time until the limits are reached, from now on, pauses not counted
    #[arg(value_name = "DURATION", value_parser = values::duration)]
    pub(crate) time: Duration,
    /// Extend the limit of --timeout [default: every limit of time that counts now]
    #[arg(long)]
    pub(crate) timeout: bool,
    /// Extend the limit of --inactivity
    #[arg(long)]
    pub(crate) inactivity: bool,
    /// Extend the limit of --start-timeout
    #[arg(long)]
    pub(crate) start_timeout: bool,
}

#[derive(Debug, Args)]
pub struct ResizeArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Rows and columns, such as 40x120
    #[arg(value_name = "ROWSxCOLS", value_parser = values::terminal_size)]
    pub(crate) size: TerminalSize,
    /// Resize the terminal of this attempt only [default: the current one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RestartRunArgs {
    #[command(flatten)]
    pub(crate) runs: Targets,
    /// Set a variable of an ended run's spec, because values are not stored; NAME takes its value from here. May be
    /// repeated
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,
    /// Give the value of a secret that an ended run's caller had sent, because it is not stored: @FILE or env:VARIABLE from
    /// here, or nothing: the variable NAME from here. May be repeated
    #[arg(long, value_name = "NAME[=SOURCE]")]
    pub(crate) secret: Vec<SecretArg>,
    /// Take all variables of an ended run's spec from here, except those of --env
    #[arg(long)]
    pub(crate) inherit_env: bool,
    /// Read an ended run's standard input from FILE (`-`: from here), because input is not stored
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Grace period between SIGTERM and SIGKILL; 0 kills at once [default: the run's own]
    #[arg(short = 't', long, aliases = ["time", "timeout", "grace-period"], value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct AbortArgs {
    #[command(flatten)]
    pub(crate) runs: Targets,
    /// Grace period between SIGTERM and SIGKILL; 0 kills at once [default: the run's own]
    #[arg(short = 't', long, aliases = ["time", "timeout", "grace-period"], value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
    /// What to wait for [default: tree-empty]
    #[arg(long, value_name = "WHAT", value_parser = of_enum("kennel.v1.AbortWait", AbortWait::from_str_name))]
    pub(crate) wait: Option<AbortWait>,
    /// Refuse a later spawn under an id that no run has [default: an unknown id is an error]
    #[arg(long)]
    pub(crate) fence: bool,
}

impl AbortArgs {
    /// The defaults for these runs.
    pub(crate) fn of(runs: Vec<String>) -> Self {
        Self {
            runs: Targets {
                runs,
                selection: SelectionArgs::default(),
            },
            grace: None,
            wait: None,
            fence: false,
        }
    }
}

#[derive(Debug, Args)]
pub struct SignalArgs {
    /// Processes that receive the signal [default: leader]
    #[arg(long, value_name = "WHO", value_parser = of_enum("kennel.v1.SignalTarget", SignalTarget::from_str_name))]
    pub(crate) to: Option<SignalTarget>,
    /// Id of this request: repeated requests with one id send one signal [default: a new id]
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) request_id: Option<String>,
    /// Signal by name or number, such as SIGUSR1, usr1, 10 or SIGRTMIN+3, and runs, in either order; for SIGSTOP use
    /// `pause`
    #[arg(value_names = ["SIGNAL", "RUN"], add = ArgValueCompleter::new(complete::runs), num_args = 1.., required = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

impl SignalArgs {
    /// Splits the words into the signal and the runs: the first word is the signal, or else the last one.
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
pub struct KillArgs {
    /// Send this signal to the command, by name or number; -9 and -USR1 are short for it [default: end the run, as `abort` does]
    #[arg(short, long, value_name = "SIGNAL", value_parser = values::signal)]
    pub(crate) signal: Option<Signal>,
    /// List the signals
    #[arg(short, long)]
    pub(crate) list: bool,
    /// Ids of runs, or their beginning or end
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN", required_unless_present = "list")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    #[command(flatten)]
    pub(crate) runs: RunRefs,
    /// What to wait for [default: ended]
    #[arg(long = "for", ignore_case = true, value_name = "CONDITION", value_parser = condition())]
    pub(crate) condition: Option<WaitCondition>,
    /// Give up after this time with exit code 124; the runs continue
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Reads a condition; kubectl has other words for some.
fn condition() -> impl TypedValueParser<Value = WaitCondition> {
    let plain = [
        "started",
        "paused",
        "leader-exited",
        "streams-closed",
        "tree-empty",
    ];
    let ended = ["condition=complete", "condition=ended", "exit", "delete"];
    let others = [
        PossibleValue::new("ended").aliases(ended),
        PossibleValue::new("ready").alias("condition=ready"),
    ];
    let all = plain.map(PossibleValue::new).into_iter().chain(others);
    PossibleValuesParser::new(all).map(move |typed| {
        let name = match typed.to_lowercase().as_str() {
            "condition=ready" => "ready".to_owned(),
            other if ended.contains(&other) => "ended".to_owned(),
            other => other.replace('-', "_"),
        };
        let name = format!("WAIT_CONDITION_{}", name.to_uppercase());
        WaitCondition::from_str_name(&name).unwrap_or_default()
    })
}
