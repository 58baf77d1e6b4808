//! The commands that need a server's code, and their flags.

#![expect(
    clippy::doc_markdown,
    reason = "these comments are printed as help, where backticks would show"
)]

use crate::{
    retention::RetentionArgs,
    settings,
    telemetry::{LogFormat, TelemetryArgs},
    values, version,
};
use clap::{
    ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Subcommand, ValueEnum,
    parser::ValueSource,
};
use kennel_cli::{Cli, Failure, in_groups, values::duration, with_texts};
use kennel_client::Surroundings;
use kennel_lifecycle::{DefaultGrace, DefaultLimits, Privileges, RunKind, RunLimits, Signal};
use kennel_supervisor::SecretSources;
use std::{
    error::Error as _,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the server in the foreground
    Serve(ServeArgs),
    /// Start the API server; the keeper calls this
    #[command(hide = true)]
    Server(ServeArgs),
    /// Check or show the settings of `serve`: flags, variables, configuration file and defaults
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Bring the schema of a database up to date, as a user who may change it; needs no server
    Migrate(MigrateArgs),
    #[command(flatten)]
    OfClient(kennel_cli::Command),
}

/// Returns the whole command line, with the variable of each setting in the help of `serve`. Flags of clients are taken
/// by commands that take settings too, which refuse them, and are not in their help.
pub(crate) fn command() -> clap::Command {
    let whole = Cli::<Command>::command().long_version(version::LONG);
    let of_clients: Vec<_> = whole.get_arguments().cloned().collect();
    let hidden = move |command: clap::Command| {
        command.args(
            of_clients
                .iter()
                .map(|flag| flag.clone().global(false).hide(true)),
        )
    };
    let with_variables = |serve: clap::Command| serve.mut_args(settings::with_variables);
    let below = hidden.clone();
    in_groups(with_texts(whole, ""))
        .mut_subcommand("config", |config| config.mut_subcommands(below))
        .mut_subcommand("serve", |serve| hidden(with_variables(serve)))
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Apply migrations too that servers of earlier levels cannot live with; refused while a node has such a server
    /// [default: a start applies them a day after all nodes have the level]
    #[arg(long)]
    pub(crate) contract: bool,
    /// Print what would be applied, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Exactly one of them names the database.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct DatabaseArgs {
    /// Database: sqlite:PATH or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// File that contains the URL, which may have a password
    #[arg(long, value_name = "FILE")]
    pub(crate) store_file: Option<PathBuf>,
    /// Data directory of a service whose database is in it
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Configuration file, TOML: each flag here is a setting there, such as data_dir = "/var/lib/kennel"; `kennel config show`
    /// lists them [default: /etc/kennel/kennel.toml for root, else $XDG_CONFIG_HOME/kennel/kennel.toml; where it is there]
    #[arg(long, value_name = "FILE", overrides_with = "config")]
    config: Option<OsString>,
    #[command(flatten)]
    pub(crate) base: ServeFlags,
    /// Use control groups for runs [default: auto]
    #[arg(long, value_enum, ignore_case = true, value_name = "WHEN")]
    pub(crate) cgroup: Option<CgroupUse>,
    /// Time that runs continue without a server before they are ended by their stop policy [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) orphan_ttl: Option<Duration>,
    /// Memory to keep free below the limit of Kennel's own control group and those above, such as 64M: where less is left,
    /// the largest run is ended; 1M at least [default: none]
    #[arg(long, value_name = "SIZE", value_parser = values::memory_reserve)]
    pub(crate) memory_reserve: Option<u64>,
    /// Restrictions of every run, beyond its spec: a list of no-new-privileges, cap-drop=NAME, sandbox (with the paths
    /// of the spec), seccomp=baseline, network=none [default: nothing]
    #[arg(long, value_name = "LIST", value_parser = values::restrictions)]
    pub(crate) restrict_runs: Option<Privileges>,
    /// Give no run access to the API: a spec with api_access is refused, and tokens of runs are not accepted [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = values::truth)]
    pub(crate) forbid_api_access: Option<bool>,
    /// Grace period of runs whose spec has none, such as 20s; of one kind: heartbeat, service, terminal or job; repeatable
    /// [default: 5s]
    #[arg(long, value_name = "[KIND=]DURATION", value_parser = values::grace, value_delimiter = ',')]
    default_grace: Vec<(Option<RunKind>, Duration)>,
    /// Whole time of a shutdown, the graces of all runs included: longer graces are cut to 2s less; 1s to 24h [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = values::shutdown_timeout)]
    pub(crate) shutdown_timeout: Option<Duration>,
    /// First signal to runs at a shutdown, where their spec has no stop signal; of one kind: terminal=SIGTERM; else of all
    /// but those on a terminal; repeatable [default: SIGINT, terminal=SIGHUP]
    #[arg(long, value_name = "[KIND=]SIGNAL", value_parser = values::stop_signal, value_delimiter = ',')]
    pub(crate) shutdown_signal: Vec<(Option<RunKind>, Signal)>,
    /// Exit code after a shutdown by a signal in which all has ended in order, such as 143 [default: 0]
    #[arg(long, value_name = "CODE", value_parser = values::exit_code)]
    pub(crate) exit_code_on_signal: Option<u8>,
    /// Limits of runs whose spec does not have them, such as core=0,nofile=1024:524288,pids=500: names of `run --limit`,
    /// memory, memory-high, swap-max, pids, cpus, cpu-weight; of one kind: job:pids=100; repeatable [default: none]
    #[arg(long, value_name = "[KIND:]NAME=VALUE", value_parser = values::node_limit, value_delimiter = ',')]
    default_limit: Vec<(Option<RunKind>, RunLimits)>,
    /// Variable of the server that commands of callers over the network have with --env-mode inherit, beside those of
    /// minimal; NAME* for all that begin so; repeatable [default: none]
    #[arg(long, value_name = "NAME", value_parser = values::variable_pattern, value_delimiter = ',')]
    pub(crate) inherit: Vec<String>,
    /// Directory whose files runs may have as secrets, such as a mounted Secret of Kubernetes; repeatable [default: none]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    secret_dir: Vec<String>,
    /// Credential of the server's systemd unit that runs may have as a secret; repeatable [default: none]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    secret_credential: Vec<String>,
    #[command(flatten)]
    pub(crate) retention: RetentionArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    /// Log filter: a level or a list, such as debug or info,kennel_supervisor=trace [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Log format on standard error [default: text]
    #[arg(long, value_enum, ignore_case = true, value_name = "FORM")]
    pub(crate) log_format: Option<LogFormat>,
    /// Command to run as the first run: when it ends, all runs and the service end, with its exit code
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Flags for addresses and paths, before the environment and the defaults fill the gaps.
#[derive(Debug, Default, Args)]
pub(crate) struct ServeFlags {
    /// Where to listen: unix:PATH[?mode=0660&group=NAME] or tcp:ADDRESS:PORT; repeatable [default:
    /// /run/kennel/kennel.sock for root, else $XDG_RUNTIME_DIR/kennel/kennel.sock]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,
    /// Address at which other nodes of the database reach this server, such as tcp://node7.example:7443 [default: the first
    /// TCP address that is not 0.0.0.0 or [::], else the first address]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Display name of this node [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Time after which a node that does not report is shown as unreachable, and may be forgotten; 3s to 10m [default: 45s]
    #[arg(long, value_name = "DURATION", value_parser = values::node_lease)]
    pub(crate) node_lease: Option<Duration>,
    /// Time without a lease after which a node of the database that has no open run is removed; 1m or longer [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = values::node_retention)]
    pub(crate) node_retention: Option<Duration>,
    /// Serve /livez, /readyz and /startupz over HTTP at ADDRESS:PORT or unix:PATH, without authentication
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) health_listen: Option<String>,
    /// File of principals, tokens and certificates; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) access: Option<PathBuf>,
    /// Database, as sqlite:PATH or postgres://... [default: kennel.db in the data directory]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// File that holds the database's URL
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) store_file: Option<PathBuf>,
    /// Directory for journals and the default database [default: /var/lib/kennel for root, else
    /// $XDG_STATE_HOME/kennel]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check that `serve` can use these flags, the variables and the configuration file
    Check(Box<ServeArgs>),
    /// Print the settings that `serve` would use, as lines of a configuration file
    Show(Box<ShowArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Print where each value comes from
    #[arg(long)]
    pub(crate) origin: bool,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// Default time for which a node's lease lasts.
pub(crate) const NODE_LEASE_DEFAULT: Duration = Duration::from_secs(45);
/// Default time without a lease after which a node is removed.
pub(crate) const NODE_RETENTION_DEFAULT: Duration = Duration::from_hours(7 * 24);
const DEFAULT_GRACE: &str = "KENNEL_DEFAULT_GRACE";
const DEFAULT_LIMIT: &str = "KENNEL_DEFAULT_LIMIT";
const SECRET_DIR: &str = "KENNEL_SECRET_DIR";
/// Default time for which runs continue without a server.
pub(crate) const ORPHAN_TTL_DEFAULT: Duration = Duration::from_secs(30);

impl ServeArgs {
    /// Returns the flags that were typed, and for all others their variables.
    pub(crate) fn completed(typed: &ArgMatches, here: &Surroundings) -> Result<Self, Failure> {
        let command = Self::augment_args(clap::Command::new("serve").no_binary_name(true));
        let mut words = Vec::new();
        for flag in command
            .get_arguments()
            .filter(|flag| settings::is_setting(flag))
        {
            let (key, long) = (settings::key(flag), flag.get_long().unwrap_or_default());
            let word = |value: &OsStr| {
                let mut word = OsString::from(format!("--{long}="));
                word.push(value);
                word
            };
            if typed.value_source(&key) == Some(ValueSource::CommandLine) {
                words.extend(typed.get_raw(&key).into_iter().flatten().map(word));
            } else if let Some(text) = here.var(&settings::variable(&key))
                && !settings::RIVALS.contains(&&*key)
            {
                let word = word(text.as_ref());
                let read = command.clone().try_get_matches_from([&word]);
                read.map_err(|wrong| {
                    let why = wrong.source().map(ToString::to_string);
                    let why = why.unwrap_or_else(|| format!("{text:?} is none of its values"));
                    Failure::new(format!("{}: {why}", settings::variable(&key)))
                })?;
                words.push(word);
            }
        }
        let typed = command.try_get_matches_from(words);
        let flags = typed.and_then(|typed| Self::from_arg_matches(&typed));
        flags.map_err(|wrong| Failure::new(wrong.to_string()))
    }

    /// Grace of runs whose spec names none.
    pub(crate) fn default_grace(&self) -> Result<DefaultGrace, Failure> {
        let given = self.default_grace.clone();
        let mut node = DefaultGrace::default();
        for (kind, grace) in given {
            let added = node.add(kind, grace);
            added.map_err(|wrong| {
                Failure::new(format!("{DEFAULT_GRACE}: {wrong}"))
                    .hint("set it with --default-grace, KENNEL_DEFAULT_GRACE or default_grace")
            })?;
        }
        Ok(node)
    }

    /// Limits of runs whose spec has none.
    pub(crate) fn default_limits(&self) -> Result<DefaultLimits, Failure> {
        let mut node = DefaultLimits::default();
        for (kind, limit) in &self.default_limit {
            node.add(*kind, limit)
                .map_err(|wrong| Failure::new(format!("{DEFAULT_LIMIT}: {wrong}")))?;
        }
        Ok(node)
    }

    /// Sources of the secrets of runs. No directory of them may hold files of the server itself.
    pub(crate) fn secrets(
        &self,
        here: &Surroundings,
        data_dir: &Path,
    ) -> Result<SecretSources, Failure> {
        let given = |given: &[String]| {
            let given = given.iter().map(|entry| entry.trim().to_owned());
            given.filter(|entry| !entry.is_empty()).collect::<Vec<_>>()
        };
        let dirs = given(&self.secret_dir).into_iter();
        let dirs = dirs.map(|dir| std::path::absolute(&dir).unwrap_or_else(|_| dir.into()));
        let dirs: Vec<_> = dirs.collect();
        let real_data_dir = real(data_dir);
        for dir in &dirs {
            let real_dir = real(dir);
            if real_dir.starts_with(&real_data_dir) || real_data_dir.starts_with(&real_dir) {
                let (dir, data_dir) = (dir.display(), data_dir.display());
                return Err(Failure::new(format!(
                    "{SECRET_DIR}: {dir} and the data directory {data_dir} overlap"
                ))
                .hint("runs may have every file of it: name a directory that has nothing but their secrets"));
            }
        }
        Ok(SecretSources {
            dirs,
            credentials: given(&self.secret_credential),
            credentials_dir: here.var("CREDENTIALS_DIRECTORY").map(PathBuf::from),
        })
    }
}

/// Resolves the links of a path as far as it is there.
fn real(path: &Path) -> PathBuf {
    let mut there = path.ancestors();
    let found = there.find_map(|part| Some((part, part.canonicalize().ok()?)));
    match found {
        Some((part, found)) => found.join(path.strip_prefix(part).unwrap_or(path)),
        None => path.to_owned(),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CgroupUse {
    /// If possible; in a delegated group Kennel moves to a leaf, so that runs can have limits
    #[default]
    Auto,
    /// As auto, but Kennel stays in its control group: no memory, pids, cpu and io limits of runs
    Stay,
    /// Never
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_command_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn store_and_store_file_conflict() {
        let words = [
            "kennel",
            "serve",
            "--store",
            "sqlite:/x",
            "--store-file",
            "/y",
        ];
        assert!(command().try_get_matches_from(words).is_err());
    }
}
