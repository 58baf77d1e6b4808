//! What can be typed: commands, flags, and the text of `--help`.

#![expect(
    clippy::doc_markdown,
    reason = "these comments are printed as help, where backticks would show"
)]

use crate::{cli::DetachKeys, retention::RetentionArgs, telemetry::TelemetryArgs, values};
use clap::{Args, Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use clap_complete::Shell;
use kennel_lifecycle::TerminalSize;
use std::{ffi::OsString, path::PathBuf, time::Duration};

const COMPLETIONS_HELP: &str = "\
bash:        kennel completions bash > ~/.local/share/bash-completion/completions/kennel
zsh:         kennel completions zsh > DIR/_kennel, where DIR is one of $fpath
fish:        kennel completions fish > ~/.config/fish/completions/kennel.fish
powershell:  kennel completions powershell | Out-String | Invoke-Expression
elvish:      eval (kennel completions elvish | slurp)";

const ATTACH_HELP: &str = "\
One of those who are attached writes at a time: who came first, or who has taken it with --take. Where another does, what
is typed here is answered with a bell. The terminal of the run gets the size of the writer's.

Exit codes: the command's own where the run has ended, as of `run`; 0 where it was left.";

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the server refused, could not do it, or is not there
  2    the command line was not understood
Others are told by the commands that have them: run, wait, drain, upgrade, doctor, reap, serve.";

const RUN_CODES: &str = "\
Exit codes:
  0-255    the command's own
  128+N    signal N ended the command; 137 also where the kernel killed it for want of memory
  141      no process reads standard output any more, and the run is ended
  153      it had more output than there is room for and was ended (--output-full, --disk-full)
  124      it took longer than --timeout, or was inactive for longer than --inactivity, and was ended
  125      kennel itself failed: no server, refused, stream lost, exit unknown; or standard output
           cannot be written, and the run is ended
  126      the command was found and could not be executed
  127      the command was not found

Signals, as of a child in the shell:
  Ctrl-C   interrupts the command (SIGINT to its group); a second one ends the whole tree by its
           stop policy (SIGTERM, the grace, SIGKILL), a third one at once
  Ctrl-\\   ends the whole tree, as do SIGTERM, and SIGHUP when the terminal is closed; a second one
           skips the grace
  Ctrl-Z   pauses the run and stops this command; `fg` and `bg` resume it
What is ignored here (nohup) is not forwarded. With --tty the command is given the keys themselves.

Standard input goes to the command as it comes; a terminal is read while this command is in its
foreground. The command's is /dev/null with --no-stdin, with --restart, and where ours is.

The command has the environment of this command line but KENNEL_*; --env-mode says otherwise.

With --output json the run's events are printed, as by `kennel events`, and its output is in them.";

const WRITE_HELP: &str = "\
Each byte is written once, also where the server dies meanwhile. A write that was cut off is gone on with by the same
command with --offset: `kennel write RUN FILE --offset 0` skips what the run has of the file. A full pipe makes it wait.
Prints how many bytes were accepted in all; that the command has read them is not said.";

const WAIT_CODES: &str = "\
Exit codes of --for ended, the default:
  0-255    the command's own, 128+N, 124 or 153, as of `run`
  125      the server refused, could not do it, or is not there; or how the run ended is not known
  2        the command line was not understood

Exit codes of any other condition:
  0        the condition holds
  1        the server refused, could not do it, or is not there
  2        the command line was not understood
  3        the condition can no longer occur";

const DRAIN_CODES: &str = "\
Exit codes:
  0    it is so; with --wait: and no run is left
  1    the server refused, is not there, or the drain was undone while --wait waited
  2    the command line was not understood";

const UPGRADE_CODES: &str = "\
Exit codes:
  0    a server of the installed binary serves
  1    the binary will not do, and the server is untouched; or the new server did not come to serve, and one of the
       former binary does; or no server is there
  2    the command line was not understood

Installed is what is at the path that `kennel serve` was started from. The keeper is not replaced.";

const SERVE_CODES: &str = "\
Exit codes:
  0     every run has ended and all is recorded
  1     something was still alive 10 seconds after the order to stop, or the start failed
  2     the data directory is in use by another server, or the command line was not understood
  70    a part of the service was lost

SIGTERM or SIGINT stops every run and then the server; a second one skips the graces. SIGHUP does what `kennel upgrade`
does, and logs what comes of it.

Flags win over variables. A store's URL that holds a password belongs into --store-file.";

const DOCTOR_CODES: &str = "\
Exit codes:
  0    everything was looked at, and nothing was left behind
  1    no server answers, or it could not look; then only markers are looked for, and they are hints
  2    the command line was not understood
  3    something was left behind, or the service itself is not as it should be
  4    nothing is proven to be left behind, but there are hints, or something could not be looked at

Signals nobody and changes nothing.

Exit codes of --prove:
  0      every verdict was true: nothing was left, or it was said
  1      a verdict was not true, or the proof could not be made
  130    interrupted";

const REAP_CODES: &str = "\
Exit codes:
  0    all that was asked for has ended, or would be ended; also where nothing was found
  1    the server refused, could not do it, or is not there
  2    the command line was not understood
  3    something that was asked for is left: it was left alone, or has survived

Without --yes nobody is signalled: what would be ended is listed, and what would be left alone, and why.
Only what is proved to be of a run that is over is ended. Each signal is preceded by another look.";

/// Owns processes and never loses one.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command that asks a server takes.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// Server to ask [env: KENNEL_SERVER] [default: the socket of `kennel serve`]
    #[arg(long, global = true, value_name = "unix:PATH")]
    pub(crate) server: Option<String>,
    /// Form of what is printed
    #[arg(short, long, global = true, value_enum, value_name = "FORM")]
    pub(crate) output: Option<Format>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// proto3 JSON, one document per line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the server and stay with it
    #[command(after_help = SERVE_CODES)]
    Serve(ServeArgs),
    /// The part of the service that the keeper starts
    #[command(hide = true)]
    Server(ServeArgs),
    /// Run a command and stay with it: its output is ours, its exit code too
    #[command(after_help = RUN_CODES)]
    Run(SpecArgs),
    /// Start a command, print the run's id and leave
    Spawn(SpecArgs),
    /// List runs, newest first
    Ps(PsArgs),
    /// Watch the runs and what they use, live on this terminal; `?` shows the keys
    Top(TopArgs),
    /// Show all that is known of a run
    Get(RunRef),
    /// End a run: SIGTERM to its whole tree, the grace, SIGKILL
    Abort(AbortArgs),
    /// Send SIGINT to the command's process group, once; on a terminal type the key for that, also where the command reads its
    /// keys itself
    Interrupt(RunRef),
    /// Send one signal to processes of a run, and say what came of it for each
    Signal(SignalArgs),
    /// Show the processes of a run: who holds them, what they take, where they listen
    Tree(RunRef),
    /// Say why a run has ended, or stands as it does: who asked, what was done, what is known and what is not
    Why(WhyArgs),
    /// Stop every process of a run until `resume`
    Pause(RunRef),
    /// Continue a paused run
    Resume(RunRef),
    /// Write to the standard input of a run that was started with --stdin, or type on the terminal of one with --tty
    #[command(after_help = WRITE_HELP)]
    Write(WriteArgs),
    /// Make this terminal that of a run; ctrl-p ctrl-q leaves it
    #[command(after_help = ATTACH_HELP)]
    Attach(AttachArgs),
    /// Print what the terminal of a run shows
    Screen(RunRef),
    /// Make the terminal of a run another size
    Resize(ResizeArgs),
    /// Begin another attempt of a run that is started again: stops the present one, or waits no longer; of a run that has
    /// ended, make a new one
    Restart(RestartRunArgs),
    /// Wait for a condition of a run
    #[command(after_help = WAIT_CODES)]
    Wait(WaitArgs),
    /// Print what a run has written: byte for byte, or as plain text
    Logs(LogsArgs),
    /// Print a run's events, one per line
    Events(EventsArgs),
    /// Readers of events that have a name, up to where each has acknowledged
    #[command(subcommand)]
    Consumers(ConsumersCommand),
    /// Print what makes a shell complete the words of kennel
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Show what the server is, and whether it serves
    Status,
    /// Put a server of the binary that is installed by now in the place of the one that serves; no run notices
    #[command(after_help = UPGRADE_CODES)]
    Upgrade,
    /// Look for what runs have left behind, and say what could not be looked at
    #[command(after_help = DOCTOR_CODES)]
    Doctor(DoctorArgs),
    /// Take the node out of service: no new runs; those that run may finish, or are ended
    #[command(after_help = DRAIN_CODES)]
    Drain(DrainArgs),
    /// Print who asked for which change, which signals were sent, and what happened to the service: of a run, or of all
    Audit(AuditArgs),
    /// End what runs have left behind; without --yes, say what would be ended
    #[command(after_help = REAP_CODES)]
    Reap(ReapArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// How often to look, such as 2s; at least 500ms
    #[arg(long, value_name = "DURATION", value_parser = values::pace, default_value = "2s")]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Last lines of its output that are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) lines: u16,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Id of the run [default: all, and what happened to the service]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Only what is not older, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) since: Option<Duration>,
    /// Go on with what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Let programs that try to outlive their run do so in a service of its own, with your privileges, and see whether
    /// any does that the service calls ended. Asks no server, and leaves nothing
    #[arg(long)]
    pub(crate) prove: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Socket to listen on [env: KENNEL_LISTEN] [default: /run/kennel/kennel.sock for root, else
    /// $XDG_RUNTIME_DIR/kennel/kennel.sock]
    #[arg(long, value_name = "unix:PATH")]
    pub(crate) listen: Option<String>,
    /// Database, as sqlite:PATH or postgres://... [env: KENNEL_STORE] [default: kennel.db in the data directory]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// File that holds the database's URL [env: KENNEL_STORE_FILE]
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) store_file: Option<PathBuf>,
    /// Where journals are kept [env: KENNEL_DATA_DIR] [default: /var/lib/kennel for root, else
    /// $XDG_STATE_HOME/kennel]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether runs get control groups: where it is possible, or never
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) cgroup: CgroupUse,
    /// How long runs go on while the server is lost and none takes its place, the keeper's own pauses not counted; then
    /// each is ended by its own plan
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "30s")]
    pub(crate) orphan_ttl: Duration,
    #[command(flatten)]
    pub(crate) retention: RetentionArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    /// Form of the log on standard error; KENNEL_LOG filters it, as in KENNEL_LOG=debug
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    pub(crate) log_format: LogFormat,
    #[command(flatten)]
    pub(crate) of_clients: OfClients,
}

/// Flags of every command that asks a server. `serve` takes them in their place, refuses them, and keeps them out of
/// its help.
#[derive(Debug, Args)]
pub(crate) struct OfClients {
    #[arg(long, hide = true)]
    server: Option<String>,
    #[arg(short, long, hide = true, value_enum)]
    output: Option<Format>,
}

impl OfClients {
    /// Whether one of them was given.
    pub(crate) fn any(&self) -> bool {
        self.server.is_some() || self.output.is_some()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CgroupUse {
    /// Where a control group can be made; in a delegated group Kennel moves to a leaf, so that runs can have limits
    #[default]
    Auto,
    /// As auto, and Kennel stays in the control group that it was started in: no memory, pids and cpu limits of runs
    Stay,
    /// Never
    Off,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

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
pub(crate) struct SpecArgs {
    /// Time between SIGTERM and SIGKILL when the run is ended, such as 500ms or 5s
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
    /// First signal when the run is ended, such as SIGINT [default: SIGTERM; of a terminal SIGHUP]
    #[arg(long, value_name = "SIGNAL")]
    pub(crate) stop_signal: Option<String>,
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
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,
    /// Environment that --env adds to [default: inherit of `run`, minimal of `spawn`]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) env_mode: Option<EnvModeArg>,
    /// Working directory [default: this one]
    #[arg(long, value_name = "DIR")]
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
    #[arg(long, conflicts_with = "input")]
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
    #[arg(short, long, conflicts_with_all = ["input", "stdin", "kind"])]
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
    #[arg(long = "limit", value_name = "NAME=SOFT[:HARD]", value_parser = values::rlimit)]
    pub(crate) rlimits: Vec<kennel_proto::pb::Rlimit>,
    /// Nice value, -20 to 19
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) nice: Option<i32>,
    /// How soon the kernel ends it where memory is short, -1000 to 1000
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) oom_score_adj: Option<i32>,
    /// Memory of the run as a whole, such as 512M; needs the memory controller, as do the next two
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) memory_max: Option<u64>,
    /// Memory above which the run is slowed down
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) memory_high: Option<u64>,
    /// Swap of the run as a whole
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) swap_max: Option<u64>,
    /// Processes and threads of the run as a whole; needs the pids controller
    #[arg(long, value_name = "NUMBER")]
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
    Never,
    /// After all but exit code 0
    OnFailure,
    /// After all
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

#[derive(Debug, Args)]
pub(crate) struct RunRef {
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Ended runs too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only runs with this label; may be repeated, all must match
    #[arg(short, long = "label", value_name = "K=V", value_parser = values::pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// Only runs in this state; may be repeated
    #[arg(long = "state", value_enum, ignore_case = true, value_name = "STATE")]
    pub(crate) states: Vec<StateArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    Starting,
    Running,
    Paused,
    Stopping,
    /// Between two attempts
    Backoff,
    Succeeded,
    Failed,
    Cancelled,
    Lost,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// End all runs at once, each within its own grace
    #[arg(long, conflicts_with_all = ["deadline", "undo"])]
    pub(crate) abort: bool,
    /// Let the runs finish for so long, then end what is left [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "undo")]
    pub(crate) deadline: Option<Duration>,
    /// Stay until no run is left
    #[arg(long, conflicts_with = "undo")]
    pub(crate) wait: bool,
    /// Take new runs again
    #[arg(long)]
    pub(crate) undo: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
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
pub(crate) struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
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
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Lines and characters of a line, such as 40x120
    #[arg(value_name = "ROWSxCOLS", value_parser = values::terminal_size)]
    pub(crate) size: TerminalSize,
    /// The terminal of this attempt and of no other [default: the present one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct RestartRunArgs {
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
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
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Time between SIGTERM and SIGKILL [default: the run's own]; 0 kills at once
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
    /// What to wait for
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) wait: AbortWaitArg,
    /// Where no run has this id, leave a fence: a later spawn of it is refused [default: an unknown id is an error]
    #[arg(long)]
    pub(crate) fence: bool,
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
    /// Name of the signal, such as SIGUSR1, USR1 or SIGRTMIN+3; not SIGSTOP, for which there is `pause`
    #[arg(value_name = "SIGNAL")]
    pub(crate) signal: String,
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
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
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// What to wait for
    #[arg(long = "for", value_enum, value_name = "CONDITION", default_value_t)]
    pub(crate) condition: ConditionArg,
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

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Stay and print what comes, until the run has ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only this stream [default: both]
    #[arg(long, value_enum, value_name = "STREAM")]
    pub(crate) stream: Option<StreamArg>,
    /// Begin after the event with this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) from_seq: u64,
    /// Only what was written in this last time, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) since: Option<Duration>,
    /// Of what there is only the last lines, of both streams together
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Without escape sequences and control characters, but TAB, LF and CR: the default on a terminal, where what would act
    /// on it is escaped as well
    #[arg(long, overrides_with = "raw")]
    pub(crate) plain: bool,
    /// Byte for byte: the default where standard output is no terminal
    #[arg(long, overrides_with = "plain")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

/// In whose name events are read.
#[derive(Debug, Args)]
pub(crate) struct AsConsumer {
    /// Read in the name of this consumer: go on behind what it has acknowledged, and register it where it is not there yet
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Acknowledge what was printed
    #[arg(long, requires = "consumer")]
    pub(crate) ack: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConsumersCommand {
    /// List them: those of a run, or all of the node
    Ls {
        /// Only those of this run
        #[arg(value_name = "RUN")]
        run: Option<String>,
    },
    /// Show all that is known of one
    Get(ConsumerRef),
    /// Delete one; whoever reads in its name is told
    Rm(ConsumerRef),
}

#[derive(Debug, Args)]
pub(crate) struct ConsumerRef {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The run that it reads [default: many, by a filter]
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamArg {
    /// Standard output
    Stdout,
    /// Standard error
    Stderr,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Stay and print what comes, until the run has ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin after this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) after_seq: u64,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

/// One run, or many.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct WhichRuns {
    /// Id of the run
    #[arg(value_name = "RUN", conflicts_with_all = ["labels", "all"])]
    pub(crate) run: Option<String>,
    /// All runs with this label, also those that come while it follows; each line says whose it is. May be repeated: all must
    /// match
    #[arg(short, long = "label", value_name = "K=V", value_parser = values::pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// All runs, in the same way
    #[arg(long, conflicts_with = "labels")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReapArgs {
    /// Signal: SIGTERM, the grace, SIGKILL [default: a dry run]
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only what belongs to this run; may be repeated
    #[arg(long = "run", value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Only what belongs to runs with this label; may be repeated, all must match
    #[arg(short, long = "label", value_name = "K=V", value_parser = values::pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// Only processes that have lived for so long, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) older: Option<Duration>,
    /// Only on this evidence; may be repeated [default: whatever proves]
    #[arg(long, value_enum, value_name = "EVIDENCE")]
    pub(crate) evidence: Vec<EvidenceArg>,
    /// Exactly this process, as a dry run has named it; may be repeated
    #[arg(long = "process", value_name = "PID:START[:INODE]", value_parser = values::process)]
    pub(crate) processes: Vec<kennel_proto::pb::ProcessRef>,
    /// Time between SIGTERM and SIGKILL, at most 60s [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvidenceArg {
    /// In a control group of a run that is over
    LeakedCgroup,
    /// Below the shim of a run that is over
    ShimChild,
    /// In the recorded process group or session of a run that is over
    RecordedGroup,
    /// With a run's marker in its environment: no proof, anybody can copy it
    Marker,
    /// Left running by a run that was to leave it running
    Kept,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once(&"kennel").chain(words))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_command_belongs_to_it() {
        for words in [
            &["run", "--", "ls", "--label", "-o", "x"][..],
            &["run", "ls", "--label", "-o", "x"][..],
        ] {
            let cli = parse(words).expect("it is well formed");
            let Command::Run(spec) = cli.command else {
                panic!("not run");
            };
            assert_eq!(spec.argv, ["ls", "--label", "-o", "x"]);
            assert!(spec.labels.is_empty() && cli.client.output.is_none());
        }
    }

    #[test]
    fn a_misspelt_flag_is_not_taken_for_a_command() {
        assert!(parse(&["run", "--lable", "a=b", "--", "ls"]).is_err());
        assert!(parse(&["run"]).is_err());
        assert!(parse(&["run", "--grace", "5", "--", "ls"]).is_err());
    }

    #[test]
    fn server_and_form_may_stand_before_or_after_the_command() {
        for words in [
            &["-o", "json", "--server", "unix:/s", "ps"][..],
            &["ps", "-o", "json", "--server", "unix:/s"][..],
        ] {
            let client = parse(words).expect("it is well formed").client;
            assert_eq!(client.output, Some(Format::Json));
            assert_eq!(client.server.as_deref(), Some("unix:/s"));
        }
    }

    #[test]
    fn one_store_is_named_once() {
        assert!(parse(&["serve", "--store", "sqlite:/x", "--store-file", "/y"]).is_err());
    }
}
