//! Flags of `run` and `spawn`: the spec of a run.

use super::SecretArgs;
use crate::{complete, values};
use clap::{Args, ValueEnum};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
use kennel_lifecycle::Signal;
use std::{ffi::OsString, path::PathBuf, time::Duration};

of_contract! {
    pub(crate) enum ContainmentArg = Containment {
        /// A shim
        Subreaper,
        /// A control group and a shim
        Cgroup,
        /// A private pid namespace; needs --pid-namespace private
        PrivatePidns,
    }

    pub(crate) enum PidNamespaceArg = PidNamespace {
        /// The service's own
        Shared,
        /// A new one: the command sees only its own processes, and none outlives the run; needs root
        Private,
    }

    pub(crate) enum RecoveryArg = RecoveryPolicy {
        /// End the run by its stop policy
        Terminate,
        /// Keep the run; the next service on the same data directory adopts it
        Adopt,
    }
}

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

of_contract! {
    pub(crate) enum OutputFullArg = OutputOverflow {
        /// Remove the oldest output
        Rotate,
        /// Keep the first half, and the newest of the rest
        HeadTail,
        /// Stop the run
        Abort,
        /// Block the command until consumers acknowledge the oldest output
        Block,
    }

    pub(crate) enum DiskFullArg = DiskFullAction {
        /// Hold output back; the command blocks when its pipe is full
        Block,
        /// Drop output; the command continues
        Drop,
        /// Stop the run
        Abort,
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

/// Readiness, liveness and result of the run.
#[derive(Debug, Args)]
pub(crate) struct ReadyArgs {
    /// The run is ready when a line of its output matches this regular expression
    #[arg(long, value_name = "REGEX", group = "ready_probe")]
    pub(crate) ready_line: Option<String>,
    /// The run is ready when this port of 127.0.0.1 or ::1 accepts connections
    #[arg(long, value_name = "PORT", group = "ready_probe", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ready_tcp: Option<u16>,
    /// The run is ready when GET of this URL on localhost, such as http://localhost:8080/health, answers 2xx
    #[arg(long, value_name = "URL", group = "ready_probe", value_parser = values::local_url)]
    pub(crate) ready_http: Option<values::LocalUrl>,
    /// The run is ready when grpc.health.v1 on this port of localhost reports SERVING, of the server or of SERVICE
    #[arg(long, value_name = "PORT[/SERVICE]", group = "ready_probe", value_parser = values::grpc_port)]
    pub(crate) ready_grpc: Option<values::GrpcPort>,
    /// The run is ready when `sh -c SCRIPT`, run in its tree, exits with code 0
    #[arg(long, value_name = "SCRIPT", group = "ready_probe")]
    pub(crate) ready_exec: Option<String>,
    /// The run is ready when a process of it reports READY=1 by sd_notify(3), at the socket in NOTIFY_SOCKET
    #[arg(long, group = "ready_probe")]
    pub(crate) ready_notify: bool,
    /// Time between two probes by --ready-tcp, --ready-http, --ready-grpc or --ready-exec [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "ready_probe")]
    pub(crate) ready_interval: Option<Duration>,
    /// Stop the run if it is not ready after this time; it ends FAILED with `not_ready`, which a restart policy restarts
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "ready_probe")]
    pub(crate) start_timeout: Option<Duration>,
    /// Once ready, the run is live while this port of 127.0.0.1 or ::1 accepts connections
    #[arg(long, value_name = "PORT", group = "live_probe", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) live_tcp: Option<u16>,
    /// Once ready, the run is live while GET of this URL on localhost answers 2xx
    #[arg(long, value_name = "URL", group = "live_probe", value_parser = values::local_url)]
    pub(crate) live_http: Option<values::LocalUrl>,
    /// Once ready, the run is live while grpc.health.v1 on this port of localhost reports SERVING
    #[arg(long, value_name = "PORT[/SERVICE]", group = "live_probe", value_parser = values::grpc_port)]
    pub(crate) live_grpc: Option<values::GrpcPort>,
    /// Once ready, the run is live while `sh -c SCRIPT`, run in its tree, exits with code 0
    #[arg(long, value_name = "SCRIPT", group = "live_probe")]
    pub(crate) live_exec: Option<String>,
    /// Once ready, the run is live while a process of it reports WATCHDOG=1 by sd_notify(3) at least once in this time
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "live_probe")]
    pub(crate) watchdog: Option<Duration>,
    /// Time between two probes of liveness [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "live_probe")]
    pub(crate) live_interval: Option<Duration>,
    /// Longest time of one probe of liveness [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "live_probe")]
    pub(crate) live_timeout: Option<Duration>,
    /// Stop the run after this number of failed probes in a row; it ends FAILED with `not_live`, which a restart policy
    /// restarts [default: 3]
    #[arg(long, value_name = "NUMBER", requires = "live_probe")]
    pub(crate) live_failures: Option<u32>,
    /// The result of the run is a line that matches this regular expression: the run has --result-after to end by
    /// itself, then it is stopped and ends SUCCEEDED
    #[arg(long, value_name = "REGEX")]
    pub(crate) result_line: Option<String>,
    /// Time that the run has to end by itself after --result-line [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "result_line")]
    pub(crate) result_after: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct SpecArgs {
    /// Grace period between SIGTERM and SIGKILL, such as 500ms or 5s
    #[arg(long, alias = "stop-timeout", value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
    /// First signal of a stop, such as SIGINT [default: SIGTERM; with a terminal SIGHUP]
    #[arg(long, value_name = "SIGNAL", value_parser = values::signal)]
    pub(crate) stop_signal: Option<Signal>,
    /// Action of every stop before its first signal; may be repeated, in order: close-stdin, input:TEXT (\\n, \\t, \\xHH),
    /// signal:NAME, exec:SCRIPT (sh -c in its tree), wait:DURATION
    #[arg(long = "stop-step", value_name = "ACTION", value_parser = values::stop_step)]
    pub(crate) stop_steps: Vec<values::StopStep>,
    /// First action of every stop: `sh -c SCRIPT` in the tree of the run, for 3 s at most; the same as --stop-step
    /// exec:SCRIPT before all others
    #[arg(long, value_name = "SCRIPT")]
    pub(crate) pre_stop: Option<String>,
    /// Exit code that counts as success beside 0, 1 to 255; may be repeated, up to 16 times
    #[arg(long = "success-exit-code", value_name = "CODE", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) success_exit_codes: Vec<u8>,
    /// Stop the run after this time, pauses not counted; `run` exits with 124
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// Stop the run after this time without output and input, pauses not counted; `run` exits with 124
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) inactivity: Option<Duration>,
    /// How much --timeout, --inactivity and --start-timeout can be extended, each in all, by `extend` and by the command;
    /// 0: not at all [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) extension_max: Option<Duration>,
    #[command(flatten)]
    pub(crate) ready: ReadyArgs,
    /// Longest pause; --on-max-pause is the action after it
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) max_pause: Option<Duration>,
    /// Action after the longest pause [default: resume]
    #[arg(long, value_enum, value_name = "WHAT", requires = "max_pause")]
    pub(crate) on_max_pause: Option<OnMaxPauseArg>,
    /// Action for remaining processes when the command exits
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) on_leader_exit: LeaderExitArg,
    /// With --on-leader-exit drain: stop remaining processes after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) drain_timeout: Option<Duration>,
    /// Label, for selection; may be repeated
    #[arg(short, long = "label", value_name = "K=V", value_parser = values::pair)]
    pub(crate) labels: Vec<(String, String)>,
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
    /// Refuse to start with less containment than this
    #[arg(long, value_enum, value_name = "RUNG")]
    pub(crate) min_containment: Option<ContainmentArg>,
    /// Pid namespace of the command [default: shared]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) pid_namespace: Option<PidNamespaceArg>,
    /// Action when the whole service dies [default: adopt for a service, if this host can; else terminate]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) recovery: Option<RecoveryArg>,
    /// Output to retain, such as 64M; 1M to 1T [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub(crate) output_max: Option<u64>,
    /// What to do when the output limit is reached [default: rotate]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) output_full: Option<OutputFullArg>,
    /// What to do with output while the server's disk is full [default: block]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) disk_full: Option<DiskFullArg>,
    /// Kind of work
    #[arg(long, value_enum, default_value_t)]
    pub(crate) kind: KindArg,
    /// Id of the run, a ULID; an id runs only once [default: a new one]
    #[arg(long, value_name = "ULID")]
    pub(crate) run_id: Option<String>,
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
    #[command(flatten)]
    pub(crate) terminal: TerminalArgs,
    #[command(flatten)]
    pub(crate) restart: RestartArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) privileges: PrivilegeArgs,
    #[command(flatten)]
    pub(crate) parent: ParentArgs,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) argv: Vec<OsString>,
}

/// Terminal of the command.
#[derive(Debug, Args)]
pub(crate) struct TerminalArgs {
    /// Allocate a terminal for the command
    #[arg(short, long, alias = "pty", conflicts_with_all = ["input", "kind"])]
    pub(crate) tty: bool,
    /// Rows of the terminal [default: 40]
    #[arg(long, value_name = "NUMBER", requires = "tty", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rows: Option<u16>,
    /// Columns of the terminal [default: 120]
    #[arg(long, value_name = "NUMBER", requires = "tty", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cols: Option<u16>,
    /// Value of TERM unless --env sets it [default: xterm-256color]
    #[arg(long, value_name = "NAME", requires = "tty")]
    pub(crate) term: Option<String>,
}

/// Restart policy.
#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// When to restart the command after it exits [default: never]
    /// [possible values: never, on-failure, on-failure:NUMBER, always, agent, keepalive]
    #[arg(long, value_name = "WHEN", value_parser = RestartWhen::read, add = ArgValueCandidates::new(complete::restarts))]
    pub(crate) restart: Option<RestartWhen>,
    /// Most restarts in a row [default: no limit; agent 3]
    #[arg(long, value_name = "NUMBER", requires = "restart")]
    pub(crate) restart_max: Option<u32>,
    /// Hold a run with too many restarts in a row until `kennel restart`, where it would end
    #[arg(long, requires = "restart")]
    pub(crate) restart_hold: bool,
    /// Delay before the first restart in a row; it doubles with each [default: 1s; keepalive 2s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "restart")]
    pub(crate) restart_delay: Option<Duration>,
    /// Longest delay before a restart [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "restart")]
    pub(crate) restart_max_delay: Option<Duration>,
    /// Uptime after which restarts are counted anew [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "restart")]
    pub(crate) restart_min_uptime: Option<Duration>,
}

/// Parent of the run, and its access to the API.
#[derive(Debug, Args)]
pub(crate) struct ParentArgs {
    /// Make the run a child of this live run: the child is stopped when its parent has ended
    #[arg(long, value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) parent: Option<String>,
    /// What to do when the parent has ended [default: end]
    #[arg(long, value_enum, value_name = "ACTION", requires = "parent")]
    pub(crate) on_parent_end: Option<ParentEndArg>,
    /// Calls that processes of the run may make, with the token in the file KENNEL_RUN_TOKEN_FILE [default: nothing]
    #[arg(long, value_enum, value_name = "ACCESS")]
    pub(crate) api_access: Option<ApiAccessArg>,
}

of_contract! {
    pub(crate) enum ApiAccessArg = ApiAccess {
        /// Reads, input and stops of the run and of those below it
        OwnRun,
        /// Spawn too: children of the run
        Children,
    }

    pub(crate) enum ParentEndArg = OnParentEnd {
        /// Stop the run by its stop policy
        End,
        /// Keep the run
        Keep,
    }
}

/// User and privileges of the command.
#[derive(Debug, Args)]
pub(crate) struct PrivilegeArgs {
    /// User and group of the command by number, such as 1000 or 1000:100; the group defaults to the number of the user
    #[arg(short, long, value_name = "UID[:GID]", value_parser = values::user)]
    pub(crate) user: Option<(u32, Option<u32>)>,
    /// Supplementary group by number; may be repeated
    #[arg(long, value_name = "GID", requires = "user")]
    pub(crate) group_add: Vec<u32>,
    /// Let no program gain privileges, set-user-id programs included
    #[arg(long)]
    pub(crate) no_new_privileges: bool,
    /// Capability that no process of the run has or gains, such as NET_RAW, or ALL; may be repeated
    #[arg(long, value_name = "NAME", value_parser = values::capability)]
    pub(crate) cap_drop: Vec<String>,
    /// Let the command read the system, write its working directory and temporary ones, and reach nothing else, above all
    /// not Kennel's data
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// Path that a command in a sandbox may read and execute too; may be repeated
    #[arg(long, value_name = "PATH", requires = "sandbox")]
    pub(crate) sandbox_read: Vec<String>,
    /// Path that a command in a sandbox may write too; may be repeated
    #[arg(long, value_name = "PATH", requires = "sandbox")]
    pub(crate) sandbox_write: Vec<String>,
    /// Deny system calls that endanger the host
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub(crate) seccomp: Option<SeccompArg>,
    /// Network of the command [default: host]
    #[arg(long, value_enum, value_name = "NETWORK")]
    pub(crate) network: Option<NetworkArg>,
    /// Refuse to start with less isolation than this
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) min_isolation: Option<IsolationArg>,
}

of_contract! {
    pub(crate) enum SeccompArg = SeccompProfile {
        /// All calls but those that endanger the host
        Baseline,
    }

    pub(crate) enum NetworkArg = Network {
        /// The server's
        Host,
        /// A loopback interface of its own alone
        None,
    }

    pub(crate) enum IsolationArg = Isolation {
        /// Files, and processes that could be traced
        Files,
        /// These, and signals and abstract sockets
        Processes,
    }
}

/// Resource limits of the run.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Limit of each process (setrlimit(2)), such as nofile=1024:4096 or core=unlimited; HARD defaults to SOFT. May be
    /// repeated
    #[arg(long = "limit", alias = "ulimit", value_name = "NAME=SOFT[:HARD]", value_parser = values::rlimit)]
    pub(crate) rlimits: Vec<kennel_proto::pb::Rlimit>,
    /// Nice value, -20 to 19
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) nice: Option<i32>,
    /// OOM score adjustment, -1000 to 1000
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) oom_score_adj: Option<i32>,
    /// Memory limit of the whole run, such as 512M; needs the memory controller
    #[arg(short, long, visible_alias = "memory", value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) memory_max: Option<u64>,
    /// Memory above which the run is throttled; needs the memory controller
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) memory_high: Option<u64>,
    /// Swap limit of the whole run; needs the memory controller
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) swap_max: Option<u64>,
    /// Limit of processes and threads of the whole run; needs the pids controller
    #[arg(long, alias = "pids-limit", value_name = "NUMBER")]
    pub(crate) pids_max: Option<u64>,
    /// Processors of the whole run, such as 1.5; needs the cpu controller
    #[arg(long, value_name = "NUMBER", value_parser = values::cpus)]
    pub(crate) cpus: Option<Duration>,
    /// Share of a busy processor, 1 to 10000; needs the cpu controller [default: 100]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpu_weight: Option<u32>,
    /// Bytes in a second that the run may read from the device of PATH, such as /data:10M; needs the io controller. May be
    /// repeated
    #[arg(long, alias = "device-read-bps", value_name = "PATH:BYTES", value_parser = values::io_bytes)]
    pub(crate) io_read_bps: Vec<(String, u64)>,
    /// Bytes in a second that the run may write to the device of PATH; needs the io controller. May be repeated
    #[arg(long, alias = "device-write-bps", value_name = "PATH:BYTES", value_parser = values::io_bytes)]
    pub(crate) io_write_bps: Vec<(String, u64)>,
    /// Operations in a second that read from the device of PATH; needs the io controller. May be repeated
    #[arg(long, alias = "device-read-iops", value_name = "PATH:NUMBER", value_parser = values::io_operations)]
    pub(crate) io_read_iops: Vec<(String, u64)>,
    /// Operations in a second that write to the device of PATH; needs the io controller. May be repeated
    #[arg(long, alias = "device-write-iops", value_name = "PATH:NUMBER", value_parser = values::io_operations)]
    pub(crate) io_write_iops: Vec<(String, u64)>,
}

/// A restart mode or preset, and with docker's `on-failure:3` the most restarts in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartWhen {
    pub(crate) mode: RestartArg,
    pub(crate) most: Option<u32>,
}

impl RestartWhen {
    fn read(text: &str) -> Result<Self, String> {
        let (name, most) = match text.split_once(':') {
            Some((name, most)) => (name, Some(most)),
            None => (text, None),
        };
        let mode = RestartArg::from_str(name, true);
        let mode = mode.map_err(|_| "write never, on-failure, always, agent or keepalive")?;
        let most = most.map(str::parse).transpose();
        let most = most.map_err(|_| "write a number of restarts after the colon")?;
        if most.is_some() && mode != RestartArg::OnFailure {
            return Err("only on-failure takes a number: --restart-max limits the others".into());
        }
        Ok(Self { mode, most })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RestartArg {
    /// Do not restart
    #[value(alias = "no")]
    Never,
    /// After every exit except code 0 and those of --success-exit-code
    #[value(alias = "onfailure")]
    OnFailure,
    /// After every exit
    #[value(alias = "unless-stopped")]
    Always,
    /// After every exit, after 1, 2 and 4 s, then no more
    Agent,
    /// After every exit, after 2 s, doubled each time up to 60 s, without end
    Keepalive,
}

of_contract! {
    pub(crate) enum OnMaxPauseArg = OnMaxPause {
        /// Resume the run
        Resume,
        /// Stop the run
        Abort,
    }

    #[derive(Default)]
    pub(crate) enum LeaderExitArg = LeaderExitAction {
        /// Stop them
        #[default]
        Stop,
        /// Wait for them: the run ends with the last
        Drain,
        /// Detach them: the run ends without them
        Keep,
    }

    #[derive(Default)]
    pub(crate) enum KindArg = RunKind {
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
}
