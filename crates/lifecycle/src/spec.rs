//! What a caller wants to run, and whether that can be asked at all.

use crate::names::named;
use crate::{
    Containment, LeaderExit, OutputBound, PausePolicy, PidNamespace, Recovery, RestartPolicy,
    RunLimits, TerminalSpec, limits,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
    time::Duration,
};

named! {
    /// What kind of work a run is; decides the defaults of recovery.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum RunKind {
        /// One turn of an agent: orphans are ended.
        #[default]
        Heartbeat = "heartbeat",
        /// A long-lived service: it outlives what serves it, where that can be.
        Service = "service",
        /// An interactive terminal.
        Terminal = "terminal",
        /// A background job.
        Job = "job",
    }
}

named! {
    /// Which variables of the server's own environment a command starts with.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum EnvMode {
        /// PATH, HOME, USER, LOGNAME, SHELL, LANG, `LC_*`, TZ, TERM, TMPDIR.
        #[default]
        Minimal = "minimal",
        /// Everything but the server's own secrets and settings.
        InheritAll = "inherit_all",
        /// Nothing.
        None = "none",
    }
}

named! {
    /// Where standard input comes from.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum InputMode {
        /// What the spec has of it, or `/dev/null`.
        #[default]
        Initial = "initial",
        /// A pipe that clients write to while the command runs.
        Open = "open",
    }
}

/// How long a run may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// From the confirmed start on, pauses not counted; absent: for ever.
    pub max_runtime: Option<Duration>,
}

/// What to run and how to end it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Kind of work.
    pub kind: RunKind,
    /// The command and its arguments; the first element is the command.
    pub argv: Vec<OsString>,
    /// Absolute working directory; absent: `/`.
    pub cwd: Option<PathBuf>,
    /// What is taken from the server's environment.
    pub env_mode: EnvMode,
    /// What the caller sets; wins over what is taken.
    pub env: BTreeMap<String, String>,
    /// The whole of the command's standard input; absent: `/dev/null`.
    pub initial_input: Option<Vec<u8>>,
    /// Where standard input comes from.
    pub input: InputMode,
    /// The terminal that the standard streams are on; absent: they are pipes.
    pub terminal: Option<TerminalSpec>,
    /// The caller's own marks, for selection.
    pub labels: BTreeMap<String, String>,
    /// Time between the first polite signal and SIGKILL; absent: [`limits::GRACE_DEFAULT`].
    pub grace: Option<Duration>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// What it may use.
    pub limits: RunLimits,
    /// What becomes of the rest of the tree when the leader ends by itself.
    pub on_leader_exit: LeaderExit,
    /// How long a pause may last.
    pub pause: PausePolicy,
    /// The weakest containment that will do; absent: any.
    pub min_containment: Option<Containment>,
    /// In which pid namespace the command runs.
    pub pid_namespace: PidNamespace,
    /// What becomes of it when the whole service dies; absent: what its kind says.
    pub recovery: Option<Recovery>,
    /// When it is started again.
    pub restart: RestartPolicy,
    /// How much of its output is kept.
    pub output: OutputBound,
}

/// One thing that is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field in the contract, such as `spec.argv.args[1]`.
    pub field: String,
    /// One plain sentence without full stop.
    pub description: String,
}

impl Violation {
    /// A violation of the field at this path.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            description: description.into(),
        }
    }
}

impl RunSpec {
    /// Grace period in force.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.grace.unwrap_or(limits::GRACE_DEFAULT)
    }

    /// What becomes of the run when the whole service dies. Of all kinds a service alone goes on unasked.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.recovery.unwrap_or(match self.kind {
            RunKind::Service => Recovery::AdoptWherePossible,
            RunKind::Heartbeat | RunKind::Terminal | RunKind::Job => Recovery::Terminate,
        })
    }

    /// All that is wrong with this spec; empty means that it may be tried.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.check_argv(&mut found);
        self.check_cwd(&mut found);
        self.check_env(&mut found);
        self.check_size(&mut found);
        self.check_labels(&mut found);
        self.check_terminal(&mut found);
        if self
            .initial_input
            .as_ref()
            .is_some_and(|i| i.len() > limits::INITIAL_INPUT_BYTES_MAX)
        {
            found.push(Violation::new(
                "spec.initial_input",
                format!("must be at most {} bytes", limits::INITIAL_INPUT_BYTES_MAX),
            ));
        }
        if (self.input, self.initial_input.is_some()) == (InputMode::Open, true) {
            found.push(Violation::new(
                "spec.initial_input",
                "is the whole of standard input: write it with WriteInput where that is to stay open",
            ));
        }
        if self.grace.is_some_and(|g| g > limits::GRACE_MAX) {
            found.push(Violation::new(
                "spec.stop.grace",
                "must be at most 24 hours",
            ));
        }
        check_timeout(
            "spec.timeouts.max_runtime",
            self.timeouts.max_runtime,
            &mut found,
        );
        self.limits.check(&mut found);
        check_timeout("spec.pause.max_pause", self.pause.max_pause, &mut found);
        if let LeaderExit::Drain { timeout } = self.on_leader_exit {
            check_timeout("spec.on_leader_exit.drain_timeout", timeout, &mut found);
        }
        if (self.pid_namespace, self.on_leader_exit) == (PidNamespace::Private, LeaderExit::Keep) {
            found.push(Violation::new(
                "spec.on_leader_exit.action",
                "nobody can be kept in a private pid namespace: it ends with the run",
            ));
        }
        self.restart.check(&mut found);
        self.output.check(&mut found);
        if self.restart.restarts() && self.on_leader_exit == LeaderExit::Keep {
            found.push(Violation::new(
                "spec.on_leader_exit.action",
                "whoever is kept would be there beside the next attempt: restart must be RESTART_MODE_NEVER",
            ));
        }
        found
    }

    fn check_argv(&self, found: &mut Vec<Violation>) {
        if self.argv.is_empty() {
            found.push(Violation::new("spec.argv.args", "must name a command"));
        }
        if self.argv.first().is_some_and(|name| name.is_empty()) {
            found.push(Violation::new("spec.argv.args[0]", "must not be empty"));
        }
        if self.argv.len() > limits::ARGV_LEN_MAX {
            found.push(Violation::new(
                "spec.argv.args",
                format!("must have at most {} elements", limits::ARGV_LEN_MAX),
            ));
        }
        for (i, arg) in self.argv.iter().enumerate() {
            check_c_string(format!("spec.argv.args[{i}]"), arg, found);
        }
    }

    fn check_cwd(&self, found: &mut Vec<Violation>) {
        let Some(cwd) = &self.cwd else { return };
        let cwd = cwd.as_os_str().as_encoded_bytes();
        if !cwd.starts_with(b"/") {
            found.push(Violation::new("spec.cwd", "must be an absolute path"));
        }
        if cwd.contains(&0) {
            found.push(Violation::new("spec.cwd", "must not contain a NUL byte"));
        }
        if cwd.len() > limits::CWD_BYTES_MAX {
            found.push(Violation::new(
                "spec.cwd",
                format!("must be at most {} bytes", limits::CWD_BYTES_MAX),
            ));
        }
    }

    fn check_env(&self, found: &mut Vec<Violation>) {
        if self.env.len() > limits::ENV_ENTRIES_MAX {
            found.push(Violation::new(
                "spec.env.vars",
                format!("must have at most {} entries", limits::ENV_ENTRIES_MAX),
            ));
            return;
        }
        for (name, value) in &self.env {
            let field = format!(
                "spec.env.vars[{:?}]",
                name.chars().take(64).collect::<String>()
            );
            if name.is_empty() || name.contains('=') {
                found.push(Violation::new(
                    field.clone(),
                    "a variable's name must not be empty nor contain '='",
                ));
            }
            if name.starts_with("KENNEL_") {
                found.push(Violation::new(
                    field.clone(),
                    "names that begin with KENNEL_ are set by the server alone",
                ));
            }
            if name.contains('\0') || value.contains('\0') {
                found.push(Violation::new(field.clone(), "must not contain a NUL byte"));
            }
            if name.len() + value.len() + 1 > limits::ARG_BYTES_MAX {
                found.push(Violation::new(
                    field,
                    format!("must be at most {} bytes", limits::ARG_BYTES_MAX),
                ));
            }
        }
    }

    fn check_size(&self, found: &mut Vec<Violation>) {
        let argv: usize = self.argv.iter().map(|a| a.len() + 1).sum();
        let env: usize = self.env.iter().map(|(n, v)| n.len() + v.len() + 2).sum();
        if argv + env > limits::ARGV_ENV_BYTES_MAX {
            found.push(Violation::new(
                "spec",
                format!(
                    "argv and environment must be at most {} bytes together",
                    limits::ARGV_ENV_BYTES_MAX
                ),
            ));
        }
    }

    fn check_labels(&self, found: &mut Vec<Violation>) {
        if self.labels.len() > limits::LABELS_MAX {
            found.push(Violation::new(
                "spec.labels",
                format!("must have at most {} entries", limits::LABELS_MAX),
            ));
        }
        for (key, value) in &self.labels {
            let field = || {
                format!(
                    "spec.labels[{:?}]",
                    key.chars().take(64).collect::<String>()
                )
            };
            if key.is_empty() || key.len() > limits::LABEL_KEY_BYTES_MAX {
                found.push(Violation::new(
                    field(),
                    format!("a key must be 1 to {} bytes", limits::LABEL_KEY_BYTES_MAX),
                ));
            }
            if value.len() > limits::LABEL_VALUE_BYTES_MAX {
                found.push(Violation::new(
                    field(),
                    format!(
                        "a value must be at most {} bytes",
                        limits::LABEL_VALUE_BYTES_MAX
                    ),
                ));
            }
            if key.contains('\0') || value.contains('\0') {
                found.push(Violation::new(field(), "must not contain a NUL byte"));
            }
        }
    }
}

fn check_timeout(field: &str, time: Option<Duration>, found: &mut Vec<Violation>) {
    let what = match time {
        Some(Duration::ZERO) => "must be more than zero; leave it out for no limit",
        Some(time) if time > limits::TIMEOUT_MAX => "must be at most 10 years (87,600 hours)",
        _ => return,
    };
    found.push(Violation::new(field, what));
}

fn check_c_string(field: String, text: &OsStr, found: &mut Vec<Violation>) {
    if text.as_encoded_bytes().contains(&0) {
        found.push(Violation::new(field.clone(), "must not contain a NUL byte"));
    }
    if text.len() > limits::ARG_BYTES_MAX {
        found.push(Violation::new(
            field,
            format!("must be at most {} bytes", limits::ARG_BYTES_MAX),
        ));
    }
}

/// The environment of a command: what the mode takes from the server's, then the caller's own, then ours.
///
/// The server's own settings and secrets never pass, in no mode.
#[must_use]
pub fn compose_env(
    mode: EnvMode,
    server: &[(String, String)],
    caller: &BTreeMap<String, String>,
    ours: &[(String, String)],
) -> Vec<(String, String)> {
    let taken = server
        .iter()
        .filter(|(name, _)| !is_own(name) && passes(mode, name))
        .cloned();
    let mut env: BTreeMap<String, String> = taken.collect();
    env.extend(caller.iter().map(|(n, v)| (n.clone(), v.clone())));
    env.extend(ours.iter().cloned());
    // The marker comes first: a scan of /proc/*/environ reads only the beginning.
    let marker = env.remove_entry("KENNEL_RUN_ID");
    marker.into_iter().chain(env).collect()
}

fn passes(mode: EnvMode, name: &str) -> bool {
    const MINIMAL: [&str; 9] = [
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR",
    ];
    match mode {
        EnvMode::None => false,
        EnvMode::Minimal => MINIMAL.contains(&name) || name.starts_with("LC_"),
        EnvMode::InheritAll => true,
    }
}

/// What configures or identifies the server itself.
fn is_own(name: &str) -> bool {
    const NAMES: [&str; 7] = [
        "DATABASE_URL",
        "NOTIFY_SOCKET",
        "CREDENTIALS_DIRECTORY",
        "INVOCATION_ID",
        "TRACEPARENT",
        "TRACESTATE",
        "BAGGAGE",
    ];
    const PREFIXES: [&str; 5] = ["KENNEL_", "PG", "OTEL_EXPORTER_", "LISTEN_", "WATCHDOG_"];
    NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p))
}
