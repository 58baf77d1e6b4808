//! Flags of `run` and `spawn`: the spec of a run.

use crate::values;
use clap::{Args, ValueEnum};
use kennel_lifecycle::Signal;
use std::{ffi::OsString, path::PathBuf, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContainmentArg {
    /// A shim
    Subreaper,
    /// A control group and a shim
    Cgroup,
    /// A private pid namespace; needs --pid-namespace private
    PrivatePidns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PidNamespaceArg {
    /// That of the service
    Shared,
    /// One of its own: the command sees its own processes alone, and none of them outlives the run; needs root
    Private,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecoveryArg {
    /// It is ended by its own stop policy
    Terminate,
    /// It goes on, and the next service on the same data directory goes on with it
    Adopt,
}

/// The environment that a command begins with. KENNEL_* is the server's own and never passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvModeArg {
    /// That of this command line
    Inherit,
    /// Of the server's: PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_*, TZ, TERM, TMPDIR
    Minimal,
    /// Empty
    None,
}

/// What is typed after --env.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFullArg {
    /// The oldest is removed
    Rotate,
    /// The first half is kept, and of the rest the newest
    HeadTail,
    /// The run is ended
    Abort,
    /// The command waits until the consumers of the run have acknowledged the oldest
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskFullArg {
    /// It waits, and the command with it when its pipe is full
    Block,
    /// It is dropped; the command goes on
    Drop,
    /// The run is ended
    Abort,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Start the command, print the run's id and leave, as `spawn` does
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Accepted for the habit: an ended run goes with its output when retention removes it
    #[arg(long)]
    rm: bool,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SpecArgs {
    /// Time between SIGTERM and SIGKILL when the run is ended, such as 500ms or 5s
    #[arg(long, alias = "stop-timeout", value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
    /// First signal when the run is ended, such as SIGINT [default: SIGTERM; of a terminal SIGHUP]
    #[arg(long, value_name = "SIGNAL", value_parser = values::signal)]
    pub(crate) stop_signal: Option<Signal>,
    /// How long the command may run, pauses not counted, until it is ended as by `abort`; exit code 124 of `run`
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// How long the command may have no output and no input, pauses not counted, until it is ended as by `abort`; exit code 124 of
    /// `run`
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) inactivity: Option<Duration>,
    /// How long a pause may last; what then is said by --on-max-pause
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) max_pause: Option<Duration>,
    /// What is done when a pause has lasted that long [default: resume]
    #[arg(long, value_enum, value_name = "WHAT", requires = "max_pause")]
    pub(crate) on_max_pause: Option<OnMaxPauseArg>,
    /// What becomes of the rest of the tree when the command itself has ended
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) on_leader_exit: LeaderExitArg,
    /// With --on-leader-exit drain: when to stop what is left [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) drain_timeout: Option<Duration>,
    /// Mark for selection; may be repeated
    #[arg(short, long = "label", value_name = "K=V", value_parser = values::pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// Variable for the command: NAME=VALUE, or NAME for the value that it has here; may be repeated
    #[arg(short, long = "env", alias = "setenv", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,
    /// Read variables for the command from FILE: lines NAME=VALUE or NAME; --env wins. May be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Environment that --env adds to [default: inherit of `run`, minimal of `spawn`]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) env_mode: Option<EnvModeArg>,
    /// Working directory [default: this one]
    #[arg(short = 'w', long, visible_alias = "workdir", aliases = ["chdir", "working-directory"], value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Refuse to run where less than this holds the run together
    #[arg(long, value_enum, value_name = "RUNG")]
    pub(crate) min_containment: Option<ContainmentArg>,
    /// The pid namespace that the command runs in [default: shared]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) pid_namespace: Option<PidNamespaceArg>,
    /// What becomes of it when the whole service dies [default: adopt of a service, where this host can; else terminate]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) recovery: Option<RecoveryArg>,
    /// How much of its output the server keeps, such as 64M; 1M to 1T [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub(crate) output_max: Option<u64>,
    /// What becomes of more [default: rotate]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) output_full: Option<OutputFullArg>,
    /// What becomes of its output while the server's disk is full [default: block]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) disk_full: Option<DiskFullArg>,
    /// Kind of work
    #[arg(long, value_enum, default_value_t)]
    pub(crate) kind: KindArg,
    /// The run's id, a ULID: the same id is never run twice [default: a new one]
    #[arg(long, value_name = "ULID")]
    pub(crate) run_id: Option<String>,
    /// Standard input of the command, read to its end first; `-` is ours [default: /dev/null]
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Standard input of the command stays open: `run` gives it ours as it comes, `spawn` leaves it to `kennel write`
    /// [default of `run`, unless --restart starts the command again]
    #[arg(
        short = 'i',
        long,
        visible_alias = "interactive",
        conflicts_with = "input"
    )]
    pub(crate) stdin: bool,
    /// Standard input of the command is /dev/null [default of `spawn`]
    #[arg(long, conflicts_with_all = ["input", "stdin"])]
    pub(crate) no_stdin: bool,
    #[command(flatten)]
    pub(crate) terminal: TerminalArgs,
    #[command(flatten)]
    pub(crate) restart: RestartArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) argv: Vec<OsString>,
}

/// The terminal that the command is on.
#[derive(Debug, Args)]
pub(crate) struct TerminalArgs {
    /// A terminal for the command, of kind terminal: `kennel write` types on it, what it shows is the output
    #[arg(short, long, alias = "pty", conflicts_with_all = ["input", "kind"])]
    pub(crate) tty: bool,
    /// Lines of the terminal [default: 40]
    #[arg(long, value_name = "NUMBER", requires = "tty", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rows: Option<u16>,
    /// Characters of a line of it [default: 120]
    #[arg(long, value_name = "NUMBER", requires = "tty", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cols: Option<u16>,
    /// What the command finds in TERM, unless --env sets that [default: xterm-256color]
    #[arg(long, value_name = "NAME", requires = "tty")]
    pub(crate) term: Option<String>,
}

/// When the command is started again.
#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// When the command is started again after it has ended [default: never]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) restart: Option<RestartArg>,
    /// Most restarts in a row [default: no bound; agent 3]
    #[arg(long, value_name = "NUMBER", requires = "restart")]
    pub(crate) restart_max: Option<u32>,
    /// Pause before the first restart in a row; each further one is twice as long [default: 1s; keepalive 2s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "restart")]
    pub(crate) restart_delay: Option<Duration>,
    /// Longest pause before a restart [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "restart")]
    pub(crate) restart_max_delay: Option<Duration>,
    /// After having run for so long a restart is the first in a row again [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "restart")]
    pub(crate) restart_min_uptime: Option<Duration>,
}

/// What the command may use.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Limit of each process, as of setrlimit(2), such as nofile=1024:4096 or core=unlimited; without HARD it is SOFT.
    /// May be repeated
    #[arg(long = "limit", alias = "ulimit", value_name = "NAME=SOFT[:HARD]", value_parser = values::rlimit)]
    pub(crate) rlimits: Vec<kennel_proto::pb::Rlimit>,
    /// Nice value, -20 to 19
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) nice: Option<i32>,
    /// How soon the kernel ends it where memory is short, -1000 to 1000
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) oom_score_adj: Option<i32>,
    /// Memory of the run as a whole, such as 512M; needs the memory controller, as do the next two
    #[arg(short, long, visible_alias = "memory", value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) memory_max: Option<u64>,
    /// Memory above which the run is slowed down
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) memory_high: Option<u64>,
    /// Swap of the run as a whole
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) swap_max: Option<u64>,
    /// Processes and threads of the run as a whole; needs the pids controller
    #[arg(long, alias = "pids-limit", value_name = "NUMBER")]
    pub(crate) pids_max: Option<u64>,
    /// Processors of the run as a whole, such as 1.5; needs the cpu controller, as does the next
    #[arg(long, value_name = "NUMBER", value_parser = values::cpus)]
    pub(crate) cpus: Option<Duration>,
    /// Share where others want the processor too, 1 to 10000; a run without has 100
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpu_weight: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RestartArg {
    /// Not at all
    #[value(alias = "no")]
    Never,
    /// After all but exit code 0
    OnFailure,
    /// After all
    #[value(alias = "unless-stopped")]
    Always,
    /// After all, 1, 2 and 4 s later, then no more
    Agent,
    /// After all, 2 s later, twice as long each time, at most 60 s, for ever
    Keepalive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnMaxPauseArg {
    /// The run goes on
    Resume,
    /// The run is ended as by `abort`
    Abort,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeaderExitArg {
    /// It is stopped
    #[default]
    Stop,
    /// It goes on, and the run ends with the last of it
    Drain,
    /// It goes on, and the run ends without it
    Keep,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// One turn of an agent
    #[default]
    Heartbeat,
    /// A background job
    Job,
    /// A long-lived service
    Service,
    /// An interactive terminal
    Terminal,
}
