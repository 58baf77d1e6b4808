//! Flags of `run` and `spawn`: the spec of a run.

use super::{SecretArgs, flags::FlagFields};
use crate::values;
use clap::{Args, ValueEnum};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// The environment that a command begins with. KENNEL_* is the server's own and never passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvModeArg {
    /// The environment of this command
    Inherit,
    /// The server's PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_*, TZ, TERM, TMPDIR
    Minimal,
    /// Empty
    None,
}

/// Value of --on-conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnConflictArg {
    /// Refuse, and say which run has it
    Fail,
    /// Answer with that run, and start nothing
    Return,
}

/// Value of --env.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum EnvArg {
    /// A name and its value.
    Value(String, String),
    /// A name whose value is taken from here.
    Own(String),
}

impl std::fmt::Debug for EnvArg {
    /// Without the value, which may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Value(name, _) | Self::Own(name)) = self;
        f.debug_tuple("EnvArg").field(name).finish()
    }
}

impl std::str::FromStr for EnvArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(_) => values::pair(text).map(|(name, value)| Self::Value(name, value)),
            None if text.is_empty() => Err("write it as NAME=VALUE or NAME".to_owned()),
            None => Ok(Self::Own(text.to_owned())),
        }
    }
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Start the command in the background and print the run's id, as `spawn` does
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Accepted without effect: retention removes ended runs and their output
    #[arg(long)]
    rm: bool,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
}

#[derive(Debug, Args)]
pub struct SpecArgs {
    #[command(flatten)]
    pub(crate) fields: FlagFields,
    /// Action of every stop before its first signal; may be repeated, in order: close-stdin, input:TEXT (\\n, \\t, \\xHH),
    /// signal:NAME, exec:SCRIPT (sh -c in its tree), wait:DURATION
    #[arg(long = "stop-step", value_name = "ACTION", value_parser = values::stop_step, help_heading = "Stop")]
    pub(crate) stop_steps: Vec<values::StopStepFlag>,
    /// First action of every stop: `sh -c SCRIPT` in the tree of the run, for 3 s at most; the same as --stop-step
    /// exec:SCRIPT before all others
    #[arg(long, value_name = "SCRIPT", help_heading = "Stop")]
    pub(crate) pre_stop: Option<String>,
    /// Set a variable: NAME=VALUE, or NAME to pass ours; may be repeated
    #[arg(
        short,
        short_alias = 'E',
        long = "env",
        alias = "setenv",
        value_name = "NAME[=VALUE]"
    )]
    pub(crate) env: Vec<EnvArg>,
    /// Read variables from FILE, with lines NAME=VALUE or NAME; --env wins. May be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) secrets: SecretArgs,
    /// Environment to start from [default: inherit for `run`, minimal for `spawn`]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) env_mode: Option<EnvModeArg>,
    /// Working directory [default: this one]
    #[arg(short = 'w', long, visible_alias = "workdir", aliases = ["chdir", "working-directory"], value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Id of the run, a ULID; an id runs only once [default: a new one]
    #[arg(long, value_name = "ULID", help_heading = "Selection and kind")]
    pub(crate) run_id: Option<String>,
    /// Your own key in place of the id: the same key is the same run, as long as its record is there
    #[arg(
        long,
        value_name = "KEY",
        conflicts_with = "run_id",
        help_heading = "Selection and kind"
    )]
    pub(crate) key: Option<String>,
    /// What to do where an open run has the name [default: fail]
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        requires = "name",
        help_heading = "Selection and kind"
    )]
    pub(crate) on_conflict: Option<OnConflictArg>,
    /// Read the command's standard input from FILE before the start; `-` is ours [default: /dev/null]
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Keep the command's standard input open: `run` passes ours on, `spawn` leaves it to `kennel write` [default for
    /// `run` without --restart]
    #[arg(
        short = 'i',
        long,
        visible_alias = "interactive",
        conflicts_with = "input"
    )]
    pub(crate) stdin: bool,
    /// Use /dev/null as standard input [default for `spawn`]
    #[arg(long, conflicts_with_all = ["input", "stdin"])]
    pub(crate) no_stdin: bool,
    /// Allocate a terminal for the command
    #[arg(short, long, alias = "pty", conflicts_with = "input")]
    pub(crate) tty: bool,
    /// A line that matches this regular expression, or the end of an unfinished one, is a question: `kennel inbox`
    #[arg(long, value_name = "REGEX", help_heading = "Readiness and liveness")]
    pub(crate) question_line: Option<String>,
    /// The result of the run is a line that matches this regular expression: the run has --result-after to end by
    /// itself, then it is stopped and ends SUCCEEDED
    #[arg(long, value_name = "REGEX", help_heading = "Readiness and liveness")]
    pub(crate) result_line: Option<String>,
    /// Time that the run has to end by itself after --result-line [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "result_line", help_heading = "Readiness and liveness")]
    pub(crate) result_after: Option<Duration>,
    /// Bytes in a second that the run may read from the device of PATH, such as /data:10M; needs the io controller. May be
    /// repeated
    #[arg(long, alias = "device-read-bps", value_name = "PATH:BYTES", value_parser = values::io_bytes, help_heading = "Resource limits")]
    pub(crate) io_read_bps: Vec<(String, u64)>,
    /// Bytes in a second that the run may write to the device of PATH; needs the io controller. May be repeated
    #[arg(long, alias = "device-write-bps", value_name = "PATH:BYTES", value_parser = values::io_bytes, help_heading = "Resource limits")]
    pub(crate) io_write_bps: Vec<(String, u64)>,
    /// Operations in a second that read from the device of PATH; needs the io controller. May be repeated
    #[arg(long, alias = "device-read-iops", value_name = "PATH:NUMBER", value_parser = values::io_operations, help_heading = "Resource limits")]
    pub(crate) io_read_iops: Vec<(String, u64)>,
    /// Operations in a second that write to the device of PATH; needs the io controller. May be repeated
    #[arg(long, alias = "device-write-iops", value_name = "PATH:NUMBER", value_parser = values::io_operations, help_heading = "Resource limits")]
    pub(crate) io_write_iops: Vec<(String, u64)>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) argv: Vec<OsString>,
}
