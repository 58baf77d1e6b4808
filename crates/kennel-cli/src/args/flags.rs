//! Flags of a spec that are one field of it, each a row of `flags.txt`, and `--set` for all other fields.

use crate::{Failure, USAGE, complete, values};
use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser},
};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
use kennel_proto::{
    json,
    names::{self, EnumValue},
    pb,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    num::{NonZeroU8, NonZeroU16},
    str::FromStr,
    sync::LazyLock,
};

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| rows(include_str!("flags.txt")));

/// Fields that several flags are for, or one of another form, as refusals name them.
const COMPOSED: [(&str, &str); 10] = [
    ("limits.io", "the io limits"),
    ("on_leader_exit", "--on-leader-exit"),
    ("initial_input", "--input"),
    ("env.vars", "--env"),
    ("secrets", "--secret"),
    ("argv.args", "command"),
    ("stop.steps", "--stop-step"),
    ("cwd", "--cwd"),
    ("inherited.vars", "this environment"),
    ("inherited.cwd", "this directory"),
];

/// Fields of a request, and their flags; the longest first, since one may begin with another.
static FIELDS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let plain = ROWS.iter().map(|row| (row.path, format!("--{}", row.name)));
    let composed = COMPOSED.map(|(path, flag)| (path, flag.to_owned()));
    let all = plain.chain(composed);
    let mut all: Vec<_> = all
        .map(|(path, flag)| (format!("spec.{path}"), flag))
        .collect();
    all.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    all
});

/// Replaces fields of a spec by their flags in a message.
pub(crate) fn in_place_of_fields(message: String) -> String {
    let named = |text: String, (field, flag): &(String, String)| text.replace(field, flag);
    FIELDS.iter().fold(message, named)
}

/// One flag.
#[derive(Debug)]
struct Row {
    name: &'static str,
    short: Option<char>,
    kind: &'static str,
    value: &'static str,
    /// The field in `RunSpec`.
    path: &'static str,
    keys: Vec<(&'static str, &'static str)>,
    heading: &'static str,
    help: &'static str,
}

fn rows(text: &'static str) -> Vec<Row> {
    let (mut rows, mut heading, mut lines) = (Vec::new(), "", text.lines());
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix('[') {
            heading = name.trim_end_matches(']');
        }
        let Some(flag) = line.strip_prefix("--") else {
            continue;
        };
        let mut words = flag.split(' ');
        let mut next = || words.next().unwrap_or_default();
        let (names, kind, value, path) = (next(), next(), next(), next());
        let (name, short) = names.split_once(",-").unwrap_or((names, ""));
        rows.push(Row {
            name,
            short: short.chars().next(),
            kind,
            value,
            path,
            keys: words.filter_map(|word| word.split_once('=')).collect(),
            heading,
            help: lines.next().unwrap_or_default().trim(),
        });
    }
    rows
}

impl Row {
    fn is_switch(&self) -> bool {
        matches!(self.kind, "flag" | "message")
    }

    /// Whether it may be repeated.
    fn is_list(&self) -> bool {
        self.kind.ends_with('s')
    }

    fn arg(&'static self) -> Arg {
        let arg = Arg::new(self.name).long(self.name).help(self.help);
        let arg = arg.help_heading(self.heading).short(self.short);
        let arg = match (self.is_switch(), self.is_list()) {
            (true, _) => arg.action(ArgAction::SetTrue),
            (_, true) => arg.action(ArgAction::Append),
            (_, false) => arg.action(ArgAction::Set),
        };
        let arg = if self.is_switch() {
            arg
        } else {
            let is_signed = self.kind == "integer";
            let arg = arg.value_name(self.value).allow_hyphen_values(is_signed);
            arg.value_parser(self.parser())
        };
        let add = |arg: Arg, (key, value): &(&'static str, &'static str)| match *key {
            "alias" => arg.alias(*value),
            "visible" => arg.visible_alias(*value),
            "requires" => arg.requires(*value),
            "conflicts" => arg.conflicts_with(*value),
            "group" => arg.group(*value),
            "complete" if *value == "restarts" => {
                arg.add(ArgValueCandidates::new(complete::restarts))
            }
            _ => arg.add(ArgValueCompleter::new(complete::runs)),
        };
        self.keys.iter().fold(arg, add)
    }

    fn parser(&self) -> ValueParser {
        let read: fn(&str) -> Result<Value, String> = match self.kind {
            "enum" => return ValueParser::new(OfEnum(self.path)),
            "duration" => |text| duration(values::duration(text)?),
            "quota" => |text| duration(values::cpus(text)?),
            "size" => |text| values::bytes(text).map(Value::from),
            "number" | "numbers" => number::<u32>,
            "integer" => number::<i32>,
            "codes" => number::<NonZeroU8>,
            "octal" => |text| {
                let mask = u32::from_str_radix(text, 8).map_err(|error| error.to_string())?;
                Ok(json!(mask))
            },
            "port" | "side" => number::<NonZeroU16>,
            "pairs" => |text| values::pair(text).map(|(name, value)| json!({name: value})),
            "signal" => |text| values::signal(text).map(|signal| signal.to_string().into()),
            "capabilities" => |text| values::capability(text).map(Value::from),
            "rlimits" => values::rlimit,
            "url" => values::local_url,
            "grpc" => values::grpc_port,
            "user" => values::user,
            "restart" => values::restart,
            "script" => |script| Ok(json!(["/bin/sh", "-c", script])),
            _ => |text| Ok(text.into()),
        };
        ValueParser::new(read)
    }
}

fn number<N: FromStr<Err: ToString> + Serialize>(text: &str) -> Result<Value, String> {
    let number = text.parse::<N>().map_err(|error| error.to_string())?;
    Ok(json!(number))
}

/// Returns a duration in proto3 JSON.
fn duration(time: std::time::Duration) -> Result<Value, String> {
    if time > MOST {
        return Err("it is too long".to_owned());
    }
    Ok(format!("{}.{:09}s", time.as_secs(), time.subsec_nanos()).into())
}

/// Longest duration of the contract.
const MOST: std::time::Duration = std::time::Duration::from_hours(87_660_000);

/// Parser of a value of an enum of the contract; `read` finds it by its name there.
pub(crate) fn of_enum<E: Clone + Send + Sync + 'static>(
    name: &'static str,
    read: fn(&str) -> Option<E>,
) -> impl TypedValueParser<Value = E> {
    OfEnum(name).try_map(move |value| value.as_str().and_then(read).ok_or("it is unknown"))
}

/// A value of an enum, by its name without prefix. The enum is named itself, or by the path of its field in `RunSpec`.
#[derive(Clone, Copy)]
struct OfEnum(&'static str);

impl TypedValueParser for OfEnum {
    type Value = Value;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Value, clap::Error> {
        let short: Vec<_> = self.possible_values().into_iter().flatten().collect();
        let typed = PossibleValuesParser::new(short).parse_ref(command, arg, value)?;
        let mut values = names::values(self.0).iter();
        let value = values.find(|value| value.short.eq_ignore_ascii_case(&typed));
        Ok(value.map_or(Value::Null, |value| value.name.into()))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = names::values(self.0).iter();
        let value = |value: &EnumValue| PossibleValue::new(value.short).help(value.help);
        Some(Box::new(values.map(value)))
    }
}

/// The fields that were given by flags of the table, and by `--set`.
#[derive(Debug)]
pub(crate) struct FlagFields {
    plain: Vec<(&'static Row, Vec<Value>)>,
    set: Vec<String>,
}

impl Args for FlagFields {
    fn augment_args(command: Command) -> Command {
        let set = Arg::new("set").long("set").value_name("FIELD=VALUE");
        let set = set.action(ArgAction::Append).help(
            "Set a field of the spec that has no flag, by its path in the contract, as proto3 JSON or text, such as \
             limits.cpu.period=0.05s; flags win. May be repeated",
        );
        command.args(ROWS.iter().map(Row::arg)).arg(set)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FlagFields {
    fn from_arg_matches(typed: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |row: &'static Row| {
            let values = if row.is_switch() {
                let value = if row.kind == "flag" {
                    true.into()
                } else {
                    json!({})
                };
                typed.get_flag(row.name).then(|| vec![value])
            } else {
                let values = typed.get_many::<Value>(row.name);
                values.map(|values| values.cloned().collect())
            };
            Some((row, values?))
        };
        let set = typed.get_many("set").into_iter().flatten();
        Ok(Self {
            plain: ROWS.iter().filter_map(given).collect(),
            set: set.cloned().collect(),
        })
    }

    fn update_from_arg_matches(&mut self, typed: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(typed)?;
        Ok(())
    }
}

impl FlagFields {
    /// Whether a flag of the table was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.plain.iter().any(|(row, _)| row.name == name)
    }

    /// Returns the spec with these fields.
    pub(crate) fn spec(self) -> Result<pb::RunSpec, Failure> {
        if self.plain.is_empty() && self.set.is_empty() {
            return Ok(pb::RunSpec::default());
        }
        let mut spec = json!({});
        for set in &self.set {
            let (path, value) = set_field(set)?;
            put(&mut spec, path, value);
        }
        for (row, mut values) in self.plain {
            match row.kind {
                "pairs" => values
                    .into_iter()
                    .for_each(|value| put(&mut spec, row.path, value)),
                _ if row.is_list() => put(&mut spec, row.path, values.into()),
                _ => put(&mut spec, row.path, values.pop().unwrap_or_default()),
            }
        }
        let read = json::from_typed(&spec.to_string());
        read.map_err(|error| crate::failure::failed("--set cannot be used", &error).code(USAGE))
    }
}

/// The message whose fields the flags are.
const SPEC: &str = "kennel.v1.RunSpec";

/// Reads `PATH=VALUE`: as JSON, or as text where the field is text or it is no JSON.
fn set_field(set: &str) -> Result<(&str, Value), Failure> {
    let (path, value) = set.split_once('=').unwrap_or((set, ""));
    let fields = names::fields(SPEC);
    let Some((_, is_text)) = fields.iter().find(|(known, _)| *known == path) else {
        let failure = Failure::new(format!("a spec has no field {path:?}")).code(USAGE);
        // A field that begins with the typed path is preferred to one of similar length.
        let near = fields.iter().min_by_key(|(known, _)| {
            (
                !known.starts_with(path),
                strsim::damerau_levenshtein(known, path),
            )
        });
        let near = near.map_or_else(String::new, |(near, _)| format!("did you mean {near}?"));
        return Err(failure.hint(near));
    };
    let json = serde_json::from_str(value).ok().filter(|_| !is_text);
    Ok((path, json.unwrap_or_else(|| value.into())))
}

/// Sets a field of a message; an object is added to what is there.
fn put(message: &mut Value, path: &str, value: Value) {
    let mut at = message;
    for name in path.split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[name];
    }
    match (at, value) {
        (Value::Object(there), Value::Object(more)) => there.extend(more),
        (at, value) => *at = value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: C-67
    #[test]
    fn each_flag_row_matches_a_spec_field() {
        assert!(ROWS.len() > 52);
        for row in ROWS.iter() {
            let mut fields = names::fields(SPEC).iter();
            let is_field = fields.any(|(path, _)| *path == row.path);
            assert!(is_field, "{} is no field", row.path);
            let values = names::values(row.path);
            assert_eq!(row.kind == "enum", !values.is_empty(), "{}", row.name);
            assert!(
                !row.help.is_empty() && !row.heading.is_empty(),
                "{}",
                row.name
            );
        }
    }

    fn spec(words: &str) -> Result<pb::RunSpec, String> {
        let command = Command::new("x").no_binary_name(true);
        let tty = Arg::new("tty").long("tty");
        let typed = FlagFields::augment_args(command.arg(tty));
        let typed = typed.try_get_matches_from(words.split(' '));
        let fields = typed.and_then(|typed| FlagFields::from_arg_matches(&typed));
        let spec = fields.map_err(|error| error.to_string())?.spec();
        spec.map_err(|failure| failure.to_string())
    }

    // promise: C-67
    #[test]
    fn set_takes_json_or_text_and_flags_override() {
        let line = "--set stop.grace=3s --set timeouts.max_runtime=2s --timeout 5 --set parent.run_id=7 \
            --set success_exit_codes=[3] --set recovery=RECOVERY_POLICY_ADOPT";
        let spec = spec(line).expect("it is well formed");
        assert_eq!(
            spec.stop.and_then(|stop| stop.grace).map(|t| t.seconds),
            Some(3)
        );
        assert_eq!(
            spec.timeouts.and_then(|t| t.max_runtime).map(|t| t.seconds),
            Some(5)
        );
        assert_eq!(
            spec.parent.map(|parent| parent.run_id).as_deref(),
            Some("7")
        );
        assert_eq!(spec.success_exit_codes, [3]);
        assert_eq!(spec.recovery, i32::from(pb::RecoveryPolicy::Adopt));
    }

    // promise: C-67
    #[test]
    fn unknown_field_error_suggests_the_nearest() {
        let refused = spec("--set stop.grase=3s").expect_err("no such field");
        assert!(refused.contains("did you mean stop.grace?"), "{refused}");
        let begun = spec("--set succes=1").expect_err("no such field");
        assert!(
            begun.contains("did you mean success_exit_codes?"),
            "{begun}"
        );
        spec("--set stop.grace=soon").expect_err("no duration");
        spec("--set stop={\"grase\":\"3s\"}").expect_err("no such field");
        spec("--kind nothing").expect_err("no kind");
    }
}
