//! Settings of `kennel serve` in layers: flag, variable, configuration file, default; each wins over the next. Each
//! flag has a variable and a key in the file, whose names follow from its own.

use crate::{args::ServeArgs, config::default_config_file};
use clap::{Arg, ArgMatches, Args as _, parser::ValueSource};
use kennel_cli::Failure;
use kennel_client::{Surroundings, read_default};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

/// The flag of the file itself.
const CONFIG: &str = "config";
/// Two settings for one purpose: the one of a higher layer hides the other.
pub(crate) const RIVALS: [&str; 2] = ["store", "store_file"];

/// The table of settings for runs whose spec has no value, and the setting that its limits are.
const DEFAULTS: &str = "defaults";
const DEFAULT_LIMIT: &str = "default_limit";

/// One setting, and the source of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Its name in the file, such as `data_dir`.
    pub(crate) key: String,
    /// Its value; absent: the default holds.
    pub(crate) value: Option<String>,
    pub(crate) origin: Origin,
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Variable,
    File(PathBuf),
    Default,
}

impl Setting {
    /// Returns its flag, such as `--data-dir`.
    fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }

    /// Describes the source of its value, as a person would search for it.
    pub(crate) fn origin(&self) -> String {
        match &self.origin {
            Origin::Flag => format!("flag {}", self.flag()),
            Origin::Variable => format!("variable {}", variable(&self.key)),
            Origin::File(file) => format!("file {}", file.display()),
            Origin::Default => "default".to_owned(),
        }
    }
}

/// All settings of a server, and its surroundings with those of the file below the variables.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) all: Vec<Setting>,
    pub(crate) here: Surroundings,
}

impl Settings {
    /// Reads the file that flag, variable or default names. `typed` is the command line after `serve`.
    pub(crate) fn read(typed: &ArgMatches, here: &Surroundings) -> Result<Self, Failure> {
        let flag = |key: &str| typed_value(typed, key);
        let file = SettingsFile::find(flag(CONFIG), here)?;
        let keys = keys();
        file.check_keys(&keys)?;
        let mut here = here.clone();
        let mut all = Vec::new();
        for key in keys {
            let rivals = RIVALS.iter().filter(|_| RIVALS.contains(&&*key));
            let is_hidden = rivals
                .clone()
                .any(|rival| here.var(&variable(rival)).is_some())
                || rivals.clone().any(|rival| flag(rival).is_some());
            let in_file = file.values.get(&key).filter(|_| !is_hidden);
            let (value, origin) = if let Some(value) = flag(&key) {
                (Some(value), Origin::Flag)
            } else if let Some(value) = here.var(&variable(&key)) {
                (Some(value.to_owned()), Origin::Variable)
            } else if let Some(value) = in_file {
                (Some(value.clone()), Origin::File(file.path.clone()))
            } else {
                (None, Origin::Default)
            };
            all.push(Setting { key, value, origin });
        }
        for setting in &all {
            if let (Origin::File(_), Some(value)) = (&setting.origin, &setting.value) {
                here.env.insert(variable(&setting.key), value.clone());
            }
        }
        Ok(Self { all, here })
    }

    /// Returns flags with the contents of the file, and that there is no file: a server that starts later, while the
    /// file is edited, has the settings that the service was started with.
    pub(crate) fn as_flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = vec![format!("--{CONFIG}=").into()];
        for setting in &self.all {
            if let (Origin::File(_), Some(value)) = (&setting.origin, &setting.value) {
                flags.push(format!("{}={value}", setting.flag()).into());
            }
        }
        flags
    }

    /// Returns the file, where a setting is its.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.all.iter().find_map(|setting| match &setting.origin {
            Origin::File(file) => Some(file.as_path()),
            Origin::Flag | Origin::Variable | Origin::Default => None,
        })
    }

    /// Adds the file to a failure about a value of the file, which was read as that of its variable.
    pub(crate) fn blame(&self, failure: Failure) -> Failure {
        let of_file = self.all.iter().find_map(|setting| {
            let rest = failure.message().strip_prefix(&variable(&setting.key))?;
            match &setting.origin {
                // The name of another variable may begin with the whole name of this one.
                Origin::File(file) if rest.starts_with(':') => {
                    Some(format!("{}: {}{rest}", file.display(), setting.key))
                }
                _ => None,
            }
        });
        match of_file {
            Some(message) => failure.with_message(message),
            None => failure,
        }
    }
}

/// Returns the typed value of a flag. A flag without a value is `true`.
fn typed_value(typed: &ArgMatches, key: &str) -> Option<String> {
    let is_typed = typed.try_contains_id(key).is_ok()
        && typed.value_source(key) == Some(ValueSource::CommandLine);
    is_typed.then(|| {
        let raw = typed.get_raw(key).into_iter().flatten();
        let texts: Vec<_> = raw.map(|text| text.to_string_lossy()).collect();
        match &texts[..] {
            [] => "true".to_owned(),
            texts => texts.join(","),
        }
    })
}

/// Returns the variable of a setting.
pub(crate) fn variable(key: &str) -> String {
    format!("KENNEL_{}", key.to_ascii_uppercase())
}

/// Returns the names of all settings.
fn keys() -> Vec<String> {
    flags().iter().map(key).collect()
}

/// Returns the flag of each setting.
fn flags() -> Vec<Arg> {
    let serve = ServeArgs::augment_args(clap::Command::new("serve"));
    let flags = serve.get_arguments().filter(|flag| is_setting(flag));
    flags.cloned().collect()
}

/// Returns the default of each setting whose help has it as a value.
pub(crate) fn defaults() -> BTreeMap<String, String> {
    let flags = flags();
    let defaults = flags.iter().filter_map(|flag| {
        let (_, default) = bracketed(&flag.get_help()?.to_string(), "default");
        // A default of several words is a description.
        let is_value =
            |default: &String| !default.contains(' ') && !matches!(&**default, "none" | "nothing");
        Some((key(flag), default.filter(is_value)?))
    });
    defaults.collect()
}

/// Takes `[KEY: VALUE]` out of a help text.
pub(crate) fn bracketed(help: &str, key: &str) -> (String, Option<String>) {
    let begin = format!("[{key}: ");
    let Some((before, rest)) = help.split_once(&begin) else {
        return (help.to_owned(), None);
    };
    let Some((value, after)) = rest.split_once(']') else {
        return (help.to_owned(), None);
    };
    let text = format!("{} {}", before.trim_end(), after.trim_start());
    (text.trim().to_owned(), Some(value.to_owned()))
}

pub(crate) fn is_setting(flag: &Arg) -> bool {
    !flag.is_hide_set()
        && flag
            .get_long()
            .is_some_and(|long| long != CONFIG && long != "help")
}

pub(crate) fn key(flag: &Arg) -> String {
    flag.get_id().as_str().to_owned()
}

/// Adds the variable of each flag of `serve` to its help.
pub(crate) fn with_variables(flag: Arg) -> Arg {
    if flag.is_hide_set() || flag.get_long().is_none_or(|long| long == "help") {
        return flag;
    }
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let variable = variable(flag.get_id().as_str());
    let (help, default) = match help.split_once(" [default:") {
        Some((help, default)) => (help, format!(" [default:{default}")),
        None => (&*help, String::new()),
    };
    flag.help(format!("{help} [env: {variable}]{default}"))
}

/// A configuration file.
#[derive(Debug, Default)]
struct SettingsFile {
    path: PathBuf,
    values: BTreeMap<String, String>,
}

impl SettingsFile {
    /// Returns the given file; else the default one, if it exists. An empty name is none.
    fn find(flag: Option<String>, here: &Surroundings) -> Result<Self, Failure> {
        let named = flag.or_else(|| here.var(&variable(CONFIG)).map(str::to_owned));
        let (path, is_named) = match named {
            Some(path) if path.is_empty() => return Ok(Self::default()),
            Some(path) => (PathBuf::from(path), true),
            None => match default_config_file(here) {
                Some(path) => (path, false),
                None => return Ok(Self::default()),
            },
        };
        let text = if is_named {
            std::fs::read_to_string(&path).map(Some)
        } else {
            read_default(&path)
        };
        match text {
            Ok(Some(text)) => Self::parse(&path, &text),
            Ok(None) => Ok(Self::default()),
            Err(cause) => {
                let path = path.display();
                Err(Failure::new(format!(
                    "cannot read configuration file {path}: {cause}"
                )))
            }
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let shown = path.display();
        let table: toml::Table = toml::from_str(text).map_err(|wrong| {
            let (line, message) = (line_of(text, wrong.span()), wrong.message());
            Failure::new(format!("{shown}:{line}: {message}"))
        })?;
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let (key, value) = match value.as_table() {
                Some(table) if key == DEFAULTS => {
                    let limits = default_limits(table).map_err(|wrong| {
                        Failure::new(format!("{shown}: {wrong}")).hint(
                            "write its limits as in [defaults.limits]: nofile = \"1024:524288\"",
                        )
                    })?;
                    (DEFAULT_LIMIT.to_owned(), Some(limits))
                }
                _ => (key.replace('-', "_"), scalar(&value)),
            };
            let value = value.ok_or_else(|| {
                Failure::new(format!(
                    "{shown}: {key} must be text, a number, true, false or a list of texts"
                ))
            })?;
            if values.insert(key.clone(), value).is_some() {
                return Err(Failure::new(format!("{shown}: {key} is set twice")));
            }
        }
        if RIVALS.iter().all(|rival| values.contains_key(*rival)) {
            return Err(Failure::new(format!(
                "{shown}: store and store_file are both set"
            )));
        }
        let has_password = values.get("store").is_some_and(|url| {
            let parsed = url.parse::<kennel_store::StoreUrl>();
            parsed.is_ok_and(|parsed| parsed.to_string().contains("***"))
        });
        if has_password {
            return Err(Failure::new(format!("{shown}: store holds a password"))
                .hint("write the URL into a file of its own, and name that with store_file"));
        }
        Ok(Self {
            path: path.to_owned(),
            values,
        })
    }

    fn check_keys(&self, known: &[String]) -> Result<(), Failure> {
        let Some(unknown) = self.values.keys().find(|key| !known.contains(key)) else {
            return Ok(());
        };
        let failure = Failure::new(format!(
            "{}: there is no setting {unknown}",
            self.path.display()
        ));
        let near = known
            .iter()
            .min_by_key(|key| strsim::damerau_levenshtein(key, unknown));
        Err(
            match near.filter(|key| strsim::damerau_levenshtein(key, unknown) <= 3) {
                Some(near) => failure.hint(format!("did you mean {near}?")),
                None => failure.hint(format!("the settings are: {}", known.join(", "))),
            },
        )
    }
}

fn line_of(text: &str, span: Option<std::ops::Range<usize>>) -> usize {
    let before = span.and_then(|span| text.get(..span.start));
    before.unwrap_or_default().matches('\n').count() + 1
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(is) => Some(is.to_string()),
        toml::Value::Array(items) => {
            let texts: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            Some(texts?.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// Reads `[defaults.limits]`: a limit is a key with its value, and a table in it has those of runs of one kind.
fn default_limits(defaults: &toml::Table) -> Result<String, String> {
    let mut entries = Vec::new();
    for (name, limits) in defaults {
        let limits = limits.as_table().filter(|_| name == "limits");
        let limits = limits.ok_or_else(|| format!("there is no setting {DEFAULTS}.{name}"))?;
        for (name, value) in limits {
            let of_kind = value.as_table().into_iter().flatten();
            let of_kind = of_kind.map(|(of_kind, value)| (format!("{name}:{of_kind}"), value));
            let of_all = (!value.is_table()).then(|| (name.clone(), value));
            for (name, value) in of_all.into_iter().chain(of_kind) {
                let text = scalar(value).filter(|_| !value.is_array());
                let text = text.ok_or_else(|| format!("{name} must be text or a number"))?;
                entries.push(format!("{name}={text}"));
            }
        }
    }
    Ok(entries.join(","))
}

impl fmt::Display for Setting {
    /// Formats the setting as a line of the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} = {}", self.key, toml::Value::from(value.as_str())),
            None => write!(f, "# {} is not set", self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(words: &[&str], env: &[(&str, &str)], file: &str) -> Result<Settings, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kennel.toml");
        std::fs::write(&path, file).expect("written");
        let path = path.to_str().expect("UTF-8");
        let words = [&["kennel", "serve", "--config", path], words].concat();
        let matches = crate::args::command()
            .try_get_matches_from(words)
            .expect("well formed");
        let (_, typed) = matches.subcommand().expect("serve");
        Settings::read(typed, &Surroundings::of(env)).map_err(|failure| failure.to_string())
    }

    fn of(settings: &Settings, key: &str) -> (Option<String>, String) {
        let found = settings.all.iter().find(|setting| setting.key == key);
        let found = found.expect("it is a setting");
        let origin = match &found.origin {
            Origin::File(_) => "file".to_owned(),
            _ => found.origin(),
        };
        (found.value.clone(), origin)
    }

    // promise: C-50
    #[test]
    fn setting_precedence_is_flag_variable_file_default() {
        let file = "data_dir = \"/f\"\norphan-ttl = 90\nretain_runs = 7\ntrace_baggage = [\"a\", \"b\"]\nmetrics_public = true\n";
        let env = [("KENNEL_DATA_DIR", "/v"), ("KENNEL_ORPHAN_TTL", "1m")];
        let read = settings(&["--data-dir", "/x"], &env, file).expect("well formed");
        for (key, value, origin) in [
            ("data_dir", Some("/x"), "flag --data-dir"),
            ("orphan_ttl", Some("1m"), "variable KENNEL_ORPHAN_TTL"),
            ("retain_runs", Some("7"), "file"),
            ("trace_baggage", Some("a,b"), "file"),
            ("cgroup", None, "default"),
        ] {
            let wanted = (value.map(str::to_owned), origin.to_owned());
            assert_eq!(of(&read, key), wanted, "{key}");
        }
        assert_eq!(read.here.var("KENNEL_RETAIN_RUNS"), Some("7"));
        assert_eq!(read.here.var("KENNEL_DATA_DIR"), Some("/v"));
        let mut flags = read.as_flags();
        flags.sort();
        let expected = [
            "--config=",
            "--metrics-public=true",
            "--retain-runs=7",
            "--trace-baggage=a,b",
        ];
        assert_eq!(flags, expected.map(OsString::from));
    }

    #[test]
    fn default_limits_are_a_table_or_a_list() {
        let table = "[defaults.limits]\ncore = 0\nnofile = \"1024:524288\"\n[defaults.limits.job]\npids = 100\n";
        let list = "default_limit = [\"core=0\", \"nofile=1024:524288\", \"job:pids=100\"]\n";
        for file in [table, list] {
            let read = settings(&[], &[], file).expect("well formed");
            let (value, origin) = of(&read, "default_limit");
            let mut limits: Vec<&str> = value.as_deref().unwrap_or_default().split(',').collect();
            limits.sort_unstable();
            assert_eq!(limits, ["core=0", "job:pids=100", "nofile=1024:524288"]);
            assert_eq!(origin, "file");
        }
    }

    // promise: C-50
    #[test]
    fn store_file_setting_overrides_store_of_config_file() {
        let file = "store = \"sqlite:/f\"\n";
        let read = settings(&["--store-file", "/x"], &[], file).expect("well formed");
        assert_eq!(of(&read, "store").0, None);
        let read = settings(&[], &[("KENNEL_STORE_FILE", "/x")], file).expect("well formed");
        assert_eq!(of(&read, "store").0, None);
        let read = settings(&[], &[], file).expect("well formed");
        assert_eq!(of(&read, "store").0.as_deref(), Some("sqlite:/f"));
    }

    // promise: C-51
    #[test]
    fn faults_of_a_config_file_are_named() {
        for (file, named) in [
            ("a = \n", ":1: "),
            ("\nretain_run = 1\n", "retain_runs"),
            ("wholly_other = 1\n", "the settings are: "),
            ("store = \"sqlite:/a\"\nstore_file = \"/b\"\n", "both set"),
            ("store = \"postgres://u:hush@h/d\"\n", "store_file"),
            ("[cgroup]\nx = 1\n", "must be text"),
            ("[defaults]\nlimits = 1\n", "no setting defaults.limits"),
            ("[defaults.grace]\njob = 1\n", "no setting defaults.grace"),
            ("[defaults.limits.job.pids]\nx = 1\n", "job:pids must be"),
            (
                "default_limit = \"core=0\"\n[defaults.limits]\ncore = 0\n",
                "set twice",
            ),
        ] {
            let wrong = settings(&[], &[], file).expect_err(file);
            assert!(wrong.contains(named) && !wrong.contains("hush"), "{wrong}");
        }
    }

    // promise: C-51
    #[test]
    fn error_names_the_config_file_and_key() {
        let file = "log = \"info\"\nlog_format = \"xml\"\n";
        let read = settings(&[], &[], file).expect("well formed");
        let blamed = |message: &str| {
            let blamed = read.blame(Failure::new(message)).message().to_owned();
            blamed.rsplit_once('/').map(|(_, name)| name.to_owned())
        };
        for (message, expected) in [
            ("KENNEL_LOG: bad", "kennel.toml: log: bad"),
            ("KENNEL_LOG_FORMAT: bad", "kennel.toml: log_format: bad"),
        ] {
            assert_eq!(blamed(message).as_deref(), Some(expected));
        }
        assert_eq!(blamed("KENNEL_STORE: bad"), None, "it is not of the file");
    }

    // promise: C-51
    #[test]
    fn defaults_are_read_from_the_help() {
        let defaults = defaults();
        for (key, default) in [
            ("node_lease", "45s"),
            ("forbid_api_access", "false"),
            ("retain_bytes", "all"),
        ] {
            assert_eq!(defaults.get(key).map(String::as_str), Some(default));
        }
        for key in ["listen", "node_name", "restrict_runs", "secret_dir"] {
            assert_eq!(defaults.get(key), None, "it is described");
        }
        let flag =
            |(key, default): (&String, &String)| format!("--{}={default}", key.replace('_', "-"));
        let words = ["kennel".to_owned(), "serve".to_owned()].into_iter();
        let words = words.chain(defaults.iter().map(flag));
        crate::args::command()
            .try_get_matches_from(words)
            .expect("each is a value of its flag");
    }

    #[test]
    fn variable_and_default_are_parsed_from_help() {
        let help = "Socket [env: A_B] [default: x for root, else\ny]";
        let (help, default) = bracketed(help, "default");
        let (help, variable) = bracketed(&help, "env");
        assert_eq!(help, "Socket");
        assert_eq!(variable.as_deref(), Some("A_B"));
        assert_eq!(default.as_deref(), Some("x for root, else\ny"));
    }

    // promise: C-50
    #[test]
    fn each_serve_flag_is_a_setting() {
        let keys = keys();
        for key in [
            "listen",
            "store",
            "data_dir",
            "cgroup",
            "retain_bytes",
            "log",
            "log_format",
        ] {
            assert!(keys.iter().any(|known| known == key), "{key} in {keys:?}");
        }
        assert!(
            !keys.iter().any(|key| key == "server" || key == "output"),
            "{keys:?}"
        );
    }
}
