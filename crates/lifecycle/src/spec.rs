//! A spawn request, and the check of its validity.

use crate::{
    AnnotationChange, Annotations, ApiAccess, LaterText, Parent, Policy, Secret, SecretSource,
    SecretValue, TerminalSpec, known_fields, labels, limits,
    names::{named, sparse},
    os_text,
    policy::{LeaderExit, Recovery, RunKind},
    run_name::is_run_name,
    secret,
    violation::{Violation, bytes_at_most, count_at_most},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    ops::Deref,
    path::{Path, PathBuf},
};

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
        /// Those of `Minimal`, and what the node names for callers over the network that ask for everything.
        InheritNamed = "inherit_named",
    }
}

named! {
    /// Source of standard input.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum InputMode {
        /// The spec's initial input, or `/dev/null`.
        #[default]
        Initial = "initial",
        /// A pipe that clients write to while the command runs.
        Open = "open",
    }
}

sparse! {
    /// The whole request: the command, and the policy for it. The same value travels from the edge to the shim.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RunSpec {
        /// Its name, which no other open run of its owner has.
        pub name: Option<String>,
        /// The command with its environment.
        pub command: CommandSpec,
        /// Policy of the run while it runs, and of its end.
        pub policy: Policy,
        /// The caller's labels, for selection.
        pub labels: BTreeMap<String, String>,
        /// Annotations that it begins with.
        pub annotations: BTreeMap<String, String>,
        /// The parent of this run.
        pub parent: Option<Parent>,
        /// What its processes may call.
        pub api_access: ApiAccess,
        /// Secrets of its command.
        pub secrets: Vec<Secret>,
        /// Names of the limits of the policy that its node gave.
        pub node_limits: Vec<String>,
    }
}

sparse! {
    /// A command with its environment.
    #[derive(Clone, Default, PartialEq, Eq)]
    pub struct CommandSpec {
        /// The command and its arguments; the first element is the command.
        #[serde(with = "os_text::list")]
        pub argv: Vec<OsString>,
        /// Absolute working directory; absent: the inherited one.
        #[serde(with = "os_text::option")]
        pub cwd: Option<PathBuf>,
        /// Variables taken from the server's environment.
        pub env_mode: EnvMode,
        /// Variables that the caller sets; they win over those taken from the server.
        pub env: BTreeMap<String, String>,
        /// What it has of the caller itself.
        pub inherited: Inherited,
        /// The whole of the command's standard input; absent: `/dev/null`.
        pub initial_input: Option<Vec<u8>>,
        /// Source of standard input.
        pub input: InputMode,
        /// The terminal that the standard streams are on; absent: they are pipes.
        pub terminal: Option<TerminalSpec>,
    }
}

sparse! {
    /// Environment and directory of the caller itself, as far as the spec sets no others. A repeated request may have
    /// other ones.
    #[derive(Clone, Default, PartialEq, Eq)]
    pub struct Inherited {
        /// Variables; they win over those taken from the server.
        pub env: BTreeMap<String, String>,
        /// Absolute directory; absent: `/`.
        #[serde(with = "os_text::option")]
        pub cwd: Option<PathBuf>,
    }
}

/// For logs: without arguments, environment and input.
impl fmt::Debug for CommandSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandSpec")
            .field("program", &self.argv.first())
            .field("cwd", &self.cwd)
            .field("env_mode", &self.env_mode)
            .field("input", &self.input)
            .field("terminal", &self.terminal)
            .finish_non_exhaustive()
    }
}

impl CommandSpec {
    /// Returns the working directory in force.
    pub fn working_dir(&self) -> &Path {
        let cwd = self.cwd.as_deref().or(self.inherited.cwd.as_deref());
        cwd.unwrap_or(Path::new("/"))
    }

    /// Returns the variables of the caller; of two with the same name the last one counts.
    pub fn caller_env(&self) -> impl Iterator<Item = (&String, &String)> {
        self.inherited.env.iter().chain(&self.env)
    }

    /// Whether clients write to standard input while the command runs.
    pub fn has_open_input(&self) -> bool {
        self.terminal.is_some() || self.input == InputMode::Open
    }
}

/// A spec as it may be stored: it contains no value of a variable or a secret and no byte of input, only which were set
/// and whether there was input. There is no other way to make one, so a holder of it holds no secret.
///
/// Where a later version has recorded it, it is written back as it was read, byte for byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedSpec {
    spec: RunSpec,
    later: Option<Box<LaterSpec>>,
}

/// What a later version has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LaterSpec {
    text: LaterText,
    /// The first field whose value this version does not know, with the reason: the spec has the default in its place.
    unknown: Option<(String, String)>,
}

impl From<RunSpec> for RecordedSpec {
    fn from(mut spec: RunSpec) -> Self {
        let command = &mut spec.command;
        for value in (command.env.values_mut()).chain(command.inherited.env.values_mut()) {
            *value = String::new();
        }
        if let Some(input) = &mut spec.command.initial_input {
            *input = Vec::new();
        }
        for secret in &mut spec.secrets {
            if let SecretSource::Sent(value) = &mut secret.source {
                *value = SecretValue::default();
            }
        }
        // The order of secrets, like that of variables, does not matter for repeats.
        spec.secrets.sort_by(|one, other| one.name.cmp(&other.name));
        Self { spec, later: None }
    }
}

impl Serialize for RecordedSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.later {
            Some(later) => later.text.serialize(to),
            None => self.spec.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for RecordedSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = LaterText::deserialize(from)?;
        let (read, unknown) = known_values(text.as_str()).map_err(D::Error::custom)?;
        let is_own = serde_json::to_string(&read).is_ok_and(|own| own == text.as_str());
        if unknown.is_none() && is_own {
            return Ok(Self::from(read));
        }
        let mut recorded = Self::from(read.clone());
        // A text that contains values of variables or secrets is not persisted.
        recorded.later = (recorded.spec == read).then(|| Box::new(LaterSpec { text, unknown }));
        Ok(recorded)
    }
}

/// Reads a spec without the fields, and fields of its policy, whose values this version does not know. Returns the name
/// of the first of them, and the reason.
fn known_values(text: &str) -> serde_json::Result<(RunSpec, Option<(String, String)>)> {
    let why = match serde_json::from_str(text) {
        Ok(whole) => return Ok((whole, None)),
        Err(why) => why.to_string(),
    };
    let mut fields: Map<String, Value> = serde_json::from_str(text)?;
    let policy = fields.remove("policy").unwrap_or_else(|| Map::new().into());
    let (policy, of_policy) = known_fields(policy)?;
    let (spec, of_spec) = known_fields::<RunSpec>(fields.into())?;
    let unknown = of_policy.map(|name| format!("policy.{name}"));
    let unknown = unknown.or(of_spec).map(|name| (name, why));
    Ok((RunSpec { policy, ..spec }, unknown))
}

impl Deref for RecordedSpec {
    type Target = RunSpec;

    fn deref(&self) -> &RunSpec {
        &self.spec
    }
}

impl RecordedSpec {
    /// Whether a caller has described this run: nothing is known of one that was fenced before its Spawn came.
    pub fn is_described(&self) -> bool {
        !self.spec.command.argv.is_empty()
    }

    /// Returns the first need, or field with a value, that this version does not know.
    pub fn unknown(&self) -> Option<&str> {
        let value = self.unknown_value().map(|(name, _)| &**name);
        value.or_else(|| self.policy.unknown_need())
    }

    /// Returns the first field whose value this version does not know, and the reason.
    pub fn unknown_value(&self) -> Option<&(String, String)> {
        self.later.as_ref()?.unknown.as_ref()
    }
}

impl RunSpec {
    /// Returns the secrets of the server that it asks for.
    pub fn server_secrets(&self) -> impl Iterator<Item = String> {
        self.secrets
            .iter()
            .filter_map(|secret| secret.source.of_server())
    }

    /// Returns this spec without its secrets.
    pub fn recorded(&self) -> RecordedSpec {
        self.clone().into()
    }

    /// Returns the part by which a repeated request is recognised, without its secrets.
    pub fn compared(&self) -> RecordedSpec {
        let mut spec = self.clone();
        spec.command.inherited = Inherited::default();
        spec.into()
    }

    /// Leaves out what the caller gives of itself and the spec sets too.
    pub fn leave_out_overridden(&mut self) {
        let command = &mut self.command;
        let secrets = self.secrets.iter().map(|secret| &secret.name);
        for name in command.env.keys().chain(secrets) {
            command.inherited.env.remove(name);
        }
        if command.cwd.is_some() {
            command.inherited.cwd = None;
        }
    }

    /// Returns the length of its text, in bytes: everything else is of bounded size.
    pub fn text_len(&self) -> usize {
        let argv: usize = self.command.argv.iter().map(|word| word.len()).sum();
        let secrets = self.secrets.iter();
        let secrets = secrets.map(|s| s.name.len() + s.source.of_server().map_or(0, |n| n.len()));
        let pairs = self.command.caller_env().chain(&self.labels);
        let pairs = pairs.map(|(n, v)| n.len() + v.len());
        argv + pairs.sum::<usize>() + secrets.sum::<usize>()
    }

    /// Returns all violations of this spec; empty means that it may be tried, where its stop steps fit the grace that its
    /// node gives: [`Policy::fill_grace`].
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.name.as_ref().is_some_and(|name| !is_run_name(name)) {
            let why = format!(
                "must be at most {} characters of A-Z a-z 0-9 . _ / -, the first a letter or digit, and no id of a run",
                limits::RUN_NAME_MAX
            );
            found.push(Violation::new("spec.name", why));
        }
        self.command.check(&mut found);
        self.check_labels(&mut found);
        self.check_annotations(&mut found);
        self.check_terminal(&mut found);
        self.check_stop_input(&mut found);
        self.policy.check(&mut found);
        self.check_api_access(&mut found);
        secret::check(&self.secrets, &self.command.env, &mut found);
        found
    }

    /// The token is in the run's directory, which is closed to other users.
    fn check_api_access(&self, found: &mut Vec<Violation>) {
        if self.api_access != ApiAccess::None && self.policy.privileges.user.is_some() {
            let why =
                "cannot be given with privileges.user: the token is in the server's own directory";
            found.push(Violation::new("spec.api_access", why));
        }
    }

    /// Checks that a stop with actions at standard input has one.
    fn check_stop_input(&self, found: &mut Vec<Violation>) {
        let (writes, closes) = self.policy.stop.needs_input();
        let (on_terminal, is_open) = (
            self.command.terminal.is_some(),
            self.command.input == InputMode::Open,
        );
        let why = match () {
            () if closes && on_terminal => {
                "cannot close a terminal: write its end key, such as 0x04"
            }
            () if (writes || closes) && !on_terminal && !is_open => {
                "need INPUT_MODE_OPEN or a terminal to write to standard input or close it"
            }
            () => return,
        };
        found.push(Violation::new("spec.stop.steps", why));
    }

    /// Adds violations of the terminal, or of fields that need one.
    fn check_terminal(&self, found: &mut Vec<Violation>) {
        let Some(terminal) = &self.command.terminal else {
            if self.policy.kind == RunKind::Terminal {
                let why = "a run of kind RUN_KIND_TERMINAL is on a terminal";
                found.push(Violation::new("spec.pipes", why));
            }
            return;
        };
        terminal.check(found);
        let mut wrong = |field: &str, what: &str| found.push(Violation::new(field, what));
        if self.policy.kind != RunKind::Terminal {
            wrong("spec.terminal", "is for runs of kind RUN_KIND_TERMINAL");
        }
        if self.command.initial_input.is_some() {
            wrong(
                "spec.initial_input",
                "is for pipes: what is typed on a terminal is written with WriteInput",
            );
        }
        if self.policy.recovery == Some(Recovery::Adopt) {
            wrong(
                "spec.recovery",
                "a terminal ends with the keeper that holds it: RECOVERY_POLICY_ADOPT is for runs on pipes",
            );
        }
        if self.policy.on_leader_exit == LeaderExit::Keep {
            wrong(
                "spec.on_leader_exit.action",
                "no process can be kept on a terminal: it ends with the run",
            );
        }
    }

    fn check_labels(&self, found: &mut Vec<Violation>) {
        let count = self.labels.len();
        count_at_most("spec.labels", count, limits::LABELS_MAX, "entries", found);
        for (key, value) in &self.labels {
            let field = || {
                format!(
                    "spec.labels[{:?}]",
                    key.chars().take(64).collect::<String>()
                )
            };
            if let Err(wrong) = labels::check_key(key) {
                found.push(Violation::new(field(), wrong.to_string()));
            }
            if let Err(wrong) = labels::check_value(value) {
                found.push(Violation::new(field(), wrong.to_string()));
            }
        }
    }
}

impl RunSpec {
    /// Returns the change that sets the annotations of a new run.
    pub fn first_annotations(&self) -> AnnotationChange {
        AnnotationChange {
            set: self.annotations.clone(),
            ..AnnotationChange::default()
        }
    }

    fn check_annotations(&self, found: &mut Vec<Violation>) {
        let change = self.first_annotations();
        let mut wrong = Vec::new();
        change.check(&mut wrong);
        let in_spec = |wrong: Violation| {
            let key = wrong.field.strip_prefix("set").unwrap_or(&wrong.field);
            Violation::new(format!("spec.annotations{key}"), wrong.description)
        };
        found.extend(wrong.into_iter().map(in_spec));
        if let Err(refusal) = Annotations::default().change(change, "") {
            found.push(Violation::new("spec.annotations", refusal.to_string()));
        }
    }
}

impl CommandSpec {
    fn check(&self, found: &mut Vec<Violation>) {
        self.check_argv(found);
        self.check_cwd(found);
        check_env("spec.env.vars", &self.env, found);
        check_env("spec.inherited.vars", &self.inherited.env, found);
        self.check_size(found);
        self.check_input(found);
    }

    fn check_input(&self, found: &mut Vec<Violation>) {
        let Some(input) = &self.initial_input else {
            return;
        };
        let most = limits::INITIAL_INPUT_BYTES_MAX;
        bytes_at_most("spec.initial_input", input.len(), most, found);
        if self.input == InputMode::Open {
            found.push(Violation::new(
                "spec.initial_input",
                "is the whole of standard input: write it with WriteInput where that is to stay open",
            ));
        }
    }

    fn check_argv(&self, found: &mut Vec<Violation>) {
        if self.argv.is_empty() {
            found.push(Violation::new("spec.argv.args", "must name a command"));
        }
        if self.argv.first().is_some_and(|name| name.is_empty()) {
            found.push(Violation::new("spec.argv.args[0]", "must not be empty"));
        }
        let (count, most) = (self.argv.len(), limits::ARGV_LEN_MAX);
        count_at_most("spec.argv.args", count, most, "elements", found);
        for (i, arg) in self.argv.iter().enumerate() {
            check_c_string(format!("spec.argv.args[{i}]"), arg, found);
        }
    }

    fn check_cwd(&self, found: &mut Vec<Violation>) {
        let own = [
            ("spec.cwd", &self.cwd),
            ("spec.inherited.cwd", &self.inherited.cwd),
        ];
        for (field, cwd) in own {
            let Some(cwd) = cwd else { continue };
            let cwd = cwd.as_os_str().as_encoded_bytes();
            if !cwd.starts_with(b"/") {
                found.push(Violation::new(field, "must be an absolute path"));
            }
            if cwd.contains(&0) {
                found.push(Violation::new(field, "must not contain a NUL byte"));
            }
            bytes_at_most(field, cwd.len(), limits::CWD_BYTES_MAX, found);
        }
    }

    fn check_size(&self, found: &mut Vec<Violation>) {
        let argv: usize = self.argv.iter().map(|a| a.len() + 1).sum();
        let env = self.caller_env();
        let env: usize = env.map(|(n, v)| n.len() + v.len() + 2).sum();
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
}

fn check_env(field: &str, env: &BTreeMap<String, String>, found: &mut Vec<Violation>) {
    if !count_at_most(field, env.len(), limits::ENV_ENTRIES_MAX, "entries", found) {
        return;
    }
    for (name, value) in env {
        let field = format!("{field}[{:?}]", name.chars().take(64).collect::<String>());
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
        let bytes = name.len() + value.len() + 1;
        bytes_at_most(field, bytes, limits::ARG_BYTES_MAX, found);
    }
}

fn check_c_string(field: String, text: &OsStr, found: &mut Vec<Violation>) {
    if text.as_encoded_bytes().contains(&0) {
        found.push(Violation::new(field.clone(), "must not contain a NUL byte"));
    }
    bytes_at_most(field, text.len(), limits::ARG_BYTES_MAX, found);
}

/// Composes the environment of a command: the variables that the mode takes from the server's, then the caller's own,
/// then Kennel's. `named`: what [`EnvMode::InheritNamed`] takes; a name that ends with `*` stands for all that begin so.
///
/// The server's own settings and secrets never pass, in no mode.
pub fn compose_env<'a>(
    mode: EnvMode,
    (server, named): (impl IntoIterator<Item = &'a (String, String)>, &[String]),
    caller: impl IntoIterator<Item = (&'a String, &'a String)>,
    ours: &[(String, String)],
) -> Vec<(String, String)> {
    let taken = server
        .into_iter()
        .filter(|(name, _)| !is_own(name) && passes(mode, named, name))
        .cloned();
    let mut env: BTreeMap<String, String> = taken.collect();
    env.extend(caller.into_iter().map(|(n, v)| (n.clone(), v.clone())));
    env.extend(ours.iter().cloned());
    // The marker comes first: a scan of /proc/*/environ reads only the beginning.
    let marker = env.remove_entry("KENNEL_RUN_ID");
    marker.into_iter().chain(env).collect()
}

fn passes(mode: EnvMode, named: &[String], name: &str) -> bool {
    const MINIMAL: [&str; 9] = [
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR",
    ];
    let is_minimal = MINIMAL.contains(&name) || name.starts_with("LC_");
    let is_named = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    match mode {
        EnvMode::None => false,
        EnvMode::Minimal => is_minimal,
        EnvMode::InheritAll => true,
        EnvMode::InheritNamed => is_minimal || named.iter().any(is_named),
    }
}

/// Variables of the user that a process runs as: a command of another user has none of the server's.
pub const USER_VARIABLES: [&str; 7] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "MAIL",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// Whether the variable configures or identifies the server itself, or what its service manager has made for it alone:
/// systemd.exec(5).
fn is_own(name: &str) -> bool {
    const NAMES: &str = "DATABASE_URL NOTIFY_SOCKET INVOCATION_ID TRACEPARENT TRACESTATE BAGGAGE \
        JOURNAL_STREAM MAINPID MANAGERPID SYSTEMD_EXEC_PID FDSTORE SERVICE_RESULT EXIT_CODE EXIT_STATUS \
        CREDENTIALS_DIRECTORY RUNTIME_DIRECTORY STATE_DIRECTORY CACHE_DIRECTORY LOGS_DIRECTORY \
        CONFIGURATION_DIRECTORY";
    const PREFIXES: &str = "KENNEL_ PG OTEL_EXPORTER_ LISTEN_ WATCHDOG_ MEMORY_PRESSURE_ TRIGGER_";
    let is_prefix = |prefix: &str| name.starts_with(prefix);
    NAMES.split(' ').any(|own| own == name) || PREFIXES.split(' ').any(is_prefix)
}
