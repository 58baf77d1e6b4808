//! Value parsers of the command line: durations, sizes, `key=value`, limits, signals, processes.

mod size;
mod stop_step;
mod time;

pub use size::bytes;
pub(crate) use size::short_bytes;
pub(crate) use stop_step::{StopStepFlag, exec, stop_step};
pub use time::{age, duration};
pub(crate) use time::{moment, pace};

use crate::terminal_text::{is_unsafe, push_bytes};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kennel_lifecycle::{
    CapabilitySet, Signal, TerminalSize, UNLIMITED,
    labels::{Selector, SelectorError},
};
use kennel_proto::pb::{self, ProcessRef, RunState};
use serde_json::{Value, json};
use std::{fmt::Write as _, num::NonZeroU16, time::Duration};

/// Reads `key=value`; the value may be empty and may contain further `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the part before '=' is empty".to_owned()),
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err("write it as KEY=VALUE".to_owned()),
    }
}

/// Reads the name or the number of a signal: `SIGUSR1`, `usr1`, `10`, `RTMIN+3`.
pub fn signal(text: &str) -> Result<Signal, String> {
    const HINT: &str = "write the name or the number of a signal, such as SIGUSR1, usr1 or 10";
    if let Ok(number) = text.parse::<i32>() {
        return Signal::from_number(number).ok_or_else(|| HINT.to_owned());
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    format!("SIG{name}").parse().map_err(|()| HINT.to_owned())
}

/// Reads `PORT` or `PORT/SERVICE`.
pub(crate) fn grpc_port(text: &str) -> Result<Value, String> {
    let (port, service) = text.split_once('/').unwrap_or((text, ""));
    let port = port.parse::<NonZeroU16>();
    let port = port.map_err(|_| "write PORT or PORT/SERVICE, with a port of 1 to 65535")?;
    Ok(json!({"port": port, "service": service}))
}

/// Reads `http://localhost:PORT/PATH`: only this host can be probed.
pub(crate) fn local_url(text: &str) -> Result<Value, String> {
    const HINT: &str = "write http://localhost:PORT/PATH: only servers of this host are probed";
    let rest = text.strip_prefix("http://").ok_or(HINT)?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse::<u16>().map_err(|_| HINT)?),
        None => (authority, 80),
    };
    if !["localhost", "127.0.0.1", "[::1]"].contains(&host) || port == 0 {
        return Err(HINT.to_owned());
    }
    Ok(json!({"port": port, "path": path}))
}

/// Reads a restart mode or preset, and with docker's `on-failure:3` the most restarts in a row, as a policy.
pub(crate) fn restart(text: &str) -> Result<Value, String> {
    let (name, most) = match text.split_once(':') {
        Some((name, most)) => (name, Some(most)),
        None => (text, None),
    };
    let most = most.map(str::parse::<u32>).transpose();
    let most = most.map_err(|_| "write a number of restarts after the colon")?;
    let (field, value) = match name.to_ascii_lowercase().as_str() {
        "never" | "no" => ("mode", "RESTART_MODE_NEVER"),
        "on-failure" | "onfailure" => ("mode", "RESTART_MODE_ON_FAILURE"),
        "always" | "unless-stopped" => ("mode", "RESTART_MODE_ALWAYS"),
        "agent" => ("preset", "RESTART_PRESET_AGENT"),
        "keepalive" => ("preset", "RESTART_PRESET_KEEPALIVE"),
        _ => return Err("write never, on-failure, always, agent or keepalive".to_owned()),
    };
    if most.is_some() && value != "RESTART_MODE_ON_FAILURE" {
        return Err("only on-failure takes a number: --restart-max limits the others".into());
    }
    Ok(json!({field: value, "max_restarts": most}))
}

/// States of one name.
pub(crate) type States = &'static [RunState];

/// All names of states; the last one is that of the four in which a run is over.
const STATES: [(&str, States); 10] = [
    ("starting", &[RunState::Starting]),
    ("running", &[RunState::Running]),
    ("paused", &[RunState::Paused]),
    ("stopping", &[RunState::Stopping]),
    ("backoff", &[RunState::Backoff]),
    ("succeeded", &[RunState::Succeeded]),
    ("failed", &[RunState::Failed]),
    ("cancelled", &[RunState::Cancelled]),
    ("lost", &[RunState::Lost]),
    (
        "ended",
        &[
            RunState::Succeeded,
            RunState::Failed,
            RunState::Cancelled,
            RunState::Lost,
        ],
    ),
];

/// Returns the states of a name; docker has two others for those that are over.
fn states_of(name: &str) -> Option<States> {
    let name = name.to_ascii_lowercase();
    let name = if matches!(&*name, "exited" | "dead") {
        "ended"
    } else {
        &*name
    };
    STATES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, states)| *states)
}

/// Parser of a name of states.
pub(crate) fn states() -> impl TypedValueParser<Value = States> {
    let names = STATES.map(|(name, _)| match name {
        "ended" => PossibleValue::new(name).aliases(["exited", "dead"]),
        name => PossibleValue::new(name),
    });
    PossibleValuesParser::new(names).map(|name| states_of(&name).unwrap_or_default())
}

const FILTERS: &str = "write label=KEY=VALUE, label=KEY, status=STATE, name=GLOB, owner=OWNER, reason=END_REASON, \
     ready=true, activity=WHAT, waits=WHAT, older=TIME, newer=TIME, ended=TIME or annotation=KEY[=VALUE]";

/// Reads a condition as docker's `--filter` has them: a filter with one field.
pub(crate) fn filter(text: &str) -> Result<pb::RunFilter, String> {
    let mut filter = pb::RunFilter::default();
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let time = || duration(value).map(|time| time.try_into().ok());
    match key {
        "label" => {
            let selector: Selector = value
                .parse()
                .map_err(|wrong: SelectorError| wrong.to_string())?;
            filter.label_selector = selector.to_string();
        }
        "status" | "state" => {
            let states = states_of(value).ok_or_else(|| {
                let names = STATES.map(|(name, _)| name).join(", ");
                format!("there is no state {value:?}: the states are {names}")
            })?;
            filter.states = states.iter().map(|state| i32::from(*state)).collect();
        }
        "name" => filter.names.push(value.to_owned()),
        "owner" => filter.owners.push(value.to_owned()),
        "reason" => filter.end_reasons.push(value.to_owned()),
        "ready" => {
            let ready = value.parse();
            filter.is_ready = Some(ready.map_err(|_| "write ready=true or ready=false")?);
        }
        "activity" => filter.activities.push(named(
            "kennel.v1.Activity",
            pb::Activity::from_str_name,
            value,
        )?),
        "waits" => filter
            .waits
            .push(named("kennel.v1.Wait", pb::Wait::from_str_name, value)?),
        "older" => filter.min_age = time()?,
        "newer" => filter.max_age = time()?,
        "ended" => filter.ended_min_age = time()?,
        "annotation" => {
            let (key, value) = value
                .split_once('=')
                .map_or((value, None), |(key, value)| (key, Some(value)));
            let mut wanted = pb::AnnotationRequirement {
                key: key.to_owned(),
                values: value.map(str::to_owned).into_iter().collect(),
                ..pb::AnnotationRequirement::default()
            };
            if value.is_none() {
                wanted.set_test(pb::RequirementTest::Exists);
            }
            filter.annotations.push(wanted);
        }
        _ => return Err(FILTERS.to_owned()),
    }
    Ok(filter)
}

/// Returns the number of a value of an enum of the contract, by its short name in any case.
fn named<E: Into<i32>>(
    of: &str,
    value_of: fn(&str) -> Option<E>,
    value: &str,
) -> Result<i32, String> {
    let short = value.to_ascii_lowercase().replace('_', "-");
    let all = kennel_proto::names::values(of);
    let found = all.iter().find(|known| known.short == short);
    found
        .and_then(|known| value_of(known.name))
        .map(Into::into)
        .ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|known| known.short).collect();
            format!("there is no {value:?}: write one of {}", names.join(", "))
        })
}

/// Reads a number of runs.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    let read = text.parse();
    read.map_err(|_| "write a number of runs; a namespace is a label: -l KEY=VALUE".to_owned())
}

/// Size of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailSize {
    All,
    Lines(u64),
}

/// Reads a number of lines, or `all`, which kubectl writes as -1.
pub(crate) fn tail(text: &str) -> Result<TailSize, String> {
    if text == "all" || text == "-1" {
        return Ok(TailSize::All);
    }
    let lines = text.parse().map(TailSize::Lines);
    lines.map_err(|_| "write a number of lines, or all".to_owned())
}

/// Reads `1000` or `1000:100`: a user and a group by number.
pub(crate) fn user(text: &str) -> Result<Value, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    let read = match text.split_once(':') {
        Some((uid, gid)) => number(uid)
            .zip(number(gid))
            .map(|(uid, gid)| json!({"user_id": uid, "group_id": gid})),
        None => number(text).map(|uid| json!({"user_id": uid})),
    };
    read.ok_or_else(|| {
        "write numbers, UID or UID:GID: id -u NAME shows one; the name of a unit is that of a run: --name NAME"
            .to_owned()
    })
}

/// Reads the name of a capability, or `ALL`.
pub(crate) fn capability(text: &str) -> Result<String, String> {
    let named = text.parse::<CapabilitySet>();
    named.map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// Reads `40x120`: lines and characters of a line.
pub(crate) fn terminal_size(text: &str) -> Result<TerminalSize, String> {
    let side = |text: &str| text.parse::<u16>().ok().filter(|side| *side > 0);
    let sides = text.split_once('x');
    let sides = sides.and_then(|(rows, cols)| Some((side(rows)?, side(cols)?)));
    let read = sides.map(|(rows, cols)| TerminalSize { rows, cols });
    read.ok_or_else(|| "write it as ROWSxCOLS, such as 40x120; each 1 to 65535".to_owned())
}

/// Reads `nofile=1024:4096`, `core=0` or `cpu=unlimited`: names as in ulimit's `RLIMIT_` words, in lower case.
pub(crate) fn rlimit(text: &str) -> Result<Value, String> {
    const HINT: &str = "write it as NAME=SOFT or NAME=SOFT:HARD, such as nofile=1024:4096";
    let (name, values) = text.split_once('=').ok_or(HINT)?;
    let full_name = format!("RLIMIT_RESOURCE_{}", name.to_uppercase());
    let resource = pb::RlimitResource::from_str_name(&full_name)
        .filter(|known| *known != pb::RlimitResource::Unspecified)
        .ok_or_else(|| format!("{name:?} is no limit: {HINT}"))?;
    let (soft, hard) = soft_and_hard(values).map_err(|wrong| format!("{wrong}: {HINT}"))?;
    Ok(json!({"resource": resource.as_str_name(), "soft": soft, "hard": hard}))
}

/// Reads `SOFT` or `SOFT:HARD`.
pub fn soft_and_hard(values: &str) -> Result<(u64, Option<u64>), String> {
    let value = |text: &str| match text {
        "unlimited" => Ok(UNLIMITED),
        number => number
            .parse::<u64>()
            .map_err(|_| format!("{number:?} is neither a number nor \"unlimited\"")),
    };
    Ok(match values.split_once(':') {
        Some((soft, hard)) => (value(soft)?, Some(value(hard)?)),
        None => (value(values)?, None),
    })
}

/// Reads `PATH:BYTES`, such as `/data:10M`.
pub(crate) fn io_bytes(text: &str) -> Result<(String, u64), String> {
    let (path, size) = device_and(text)?;
    Ok((path, bytes(size)?))
}

/// Reads `PATH:NUMBER`, such as `/data:100`.
pub(crate) fn io_operations(text: &str) -> Result<(String, u64), String> {
    let (path, number) = device_and(text)?;
    let number = number.parse();
    let number = number.map_err(|_| "write a number of operations in a second".to_owned())?;
    Ok((path, number))
}

/// Splits at the last colon: a path may contain others.
fn device_and(text: &str) -> Result<(String, &str), String> {
    let parts = text
        .rsplit_once(':')
        .filter(|(path, _)| path.starts_with('/'));
    let (path, value) =
        parts.ok_or("write it as PATH:VALUE with an absolute path, such as /data:10M")?;
    Ok((path.to_owned(), value))
}

/// Reads a number of processors, such as `2` or `1.5`, as their time in 100 ms; at most three decimals.
pub fn cpus(text: &str) -> Result<Duration, String> {
    const HINT: &str = "write a number of processors with at most three decimals, such as 1.5";
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return Err(HINT.to_owned());
    }
    let thousandths = format!("{whole}{part:0<3}").parse::<u64>();
    // A thousandth of a processor is 100 us in 100 ms.
    let micros = thousandths.ok().and_then(|n| n.checked_mul(100));
    micros
        .map(Duration::from_micros)
        .ok_or_else(|| HINT.to_owned())
}

/// Reads `pid:start_ticks` or `pid:start_ticks:pidfs_inode`.
pub(crate) fn process(text: &str) -> Result<ProcessRef, String> {
    const HINT: &str = "write it as PID:START or PID:START:INODE, as a dry run has named it";
    let mut parts = text.split(':');
    let mut next = || parts.next().map(str::parse::<u64>);
    let (pid, start, inode) = (next(), next(), next());
    let (Some(Ok(pid)), Some(Ok(start_ticks))) = (pid, start) else {
        return Err(HINT.to_owned());
    };
    let pid = i32::try_from(pid).map_err(|_| HINT.to_owned())?;
    let pidfs_inode = inode.transpose().map_err(|_| HINT.to_owned())?;
    if parts.next().is_some() {
        return Err(HINT.to_owned());
    }
    Ok(ProcessRef {
        pid,
        start_ticks,
        pidfs_inode,
    })
}

/// Formats a count with its noun.
pub fn counted(count: impl TryInto<u64>, one: &str, many: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// Returns the text where the condition holds, else none.
pub fn only_if(holds: bool, text: &str) -> &str {
    if holds { text } else { "" }
}

/// Formats a command as a person would type it into a shell, one line: words that a shell would split are quoted.
pub fn command_line(argv: impl IntoIterator<Item: AsRef<[u8]>>) -> String {
    let mut line = String::new();
    for word in argv {
        if !line.is_empty() {
            line.push(' ');
        }
        push_word(&mut line, word.as_ref());
    }
    line
}

fn push_word(line: &mut String, word: &[u8]) {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,^".contains(c);
    match std::str::from_utf8(word) {
        Ok(text) if !text.is_empty() && text.chars().all(plain) => line.push_str(text),
        Ok(text) if !text.chars().any(is_unsafe) => {
            line.push('\'');
            line.push_str(&text.replace('\'', r"'\''"));
            line.push('\'');
        }
        _ => push_escaped(line, word),
    }
}

fn push_escaped(line: &mut String, word: &[u8]) {
    line.push_str("$'");
    for chunk in word.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => line.extend(['\\', c]),
                '\n' => line.push_str("\\n"),
                '\t' => line.push_str("\\t"),
                c if is_unsafe(c) => {
                    // Writing to a String cannot fail.
                    let _ = write!(line, "\\u{:04x}", u32::from(c));
                }
                c => line.push(c),
            }
        }
        push_bytes(line, chunk.invalid());
    }
    line.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_at_the_first_equals_sign() {
        assert_eq!(pair("a=b"), Ok(("a".to_owned(), "b".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("a").is_err());
        assert!(pair("=b").is_err());
    }

    #[test]
    fn limits_have_name_and_up_to_two_values() {
        let limit = |resource: pb::RlimitResource, soft: u64, hard: Option<u64>| {
            Ok(json!({"resource": resource.as_str_name(), "soft": soft, "hard": hard}))
        };
        let files = pb::RlimitResource::Nofile;
        assert_eq!(rlimit("nofile=10:20"), limit(files, 10, Some(20)));
        assert_eq!(rlimit("NOFILE=10"), limit(files, 10, None));
        let core = pb::RlimitResource::Core;
        let unlimited = limit(core, UNLIMITED, Some(UNLIMITED));
        assert_eq!(rlimit("core=unlimited:unlimited"), unlimited);
        for text in [
            "",
            "nofile",
            "nofile=",
            "nofile=1:",
            "nofile=-1",
            "nofile=1:2:3",
            "files=1",
            "unspecified=1",
            "as=1k",
        ] {
            assert!(rlimit(text).is_err(), "{text:?} was read as a limit");
        }
    }

    #[test]
    fn cpu_count_takes_at_most_three_decimals() {
        assert_eq!(cpus("1.5"), Ok(Duration::from_millis(150)));
        assert_eq!(cpus("2"), Ok(Duration::from_millis(200)));
        assert_eq!(cpus("0.05"), Ok(Duration::from_millis(5)));
        for text in ["", ".5", "1.", "1.2345", "-1", "1e3", "x"] {
            assert!(cpus(text).is_err(), "{text:?} was read as processors");
        }
    }

    #[test]
    fn process_reference_needs_pid_and_start_time() {
        let full = process("7:8:9").expect("well formed");
        let named = (full.pid, full.start_ticks, full.pidfs_inode);
        assert_eq!(named, (7, 8, Some(9)));
        assert_eq!(process("7:8").expect("well formed").pidfs_inode, None);
        for bad in [
            "",
            "7",
            "7:",
            "x:8",
            "-7:8",
            "7:8:",
            "7:8:9:",
            "9999999999:8",
        ] {
            assert!(process(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn signal_argument_is_a_name_or_number() {
        for text in ["SIGUSR1", "usr1", "Usr1", "10"] {
            assert_eq!(signal(text), Ok(Signal::USR1), "{text:?}");
        }
        assert_eq!(signal("rtmin+3").map(Signal::number), Ok(37));
        for text in ["", "0", "65", "-9", "SIG", "NOPE", "SIGRTMIN+31"] {
            assert!(signal(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn terminal_size_is_parsed_or_refused() {
        let size = |rows, cols| Ok(TerminalSize { rows, cols });
        assert_eq!(terminal_size("40x120"), size(40, 120));
        assert_eq!(terminal_size("1x65535"), size(1, 65_535));
        for bad in ["", "40", "x", "40x", "0x80", "24x65536", "24x80x1", "-1x2"] {
            assert!(terminal_size(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn counts_have_singular_and_plural() {
        let reported = [0, 1, 2].map(|count: u32| counted(count, "run", "runs"));
        assert_eq!(reported, ["0 runs", "1 run", "2 runs"]);
    }

    #[test]
    fn command_line_is_shell_quoted_on_one_line() {
        assert_eq!(command_line(["ls", "-l", "/tmp"]), "ls -l /tmp");
        assert_eq!(
            command_line(["sh", "-c", "echo it's; exit 3"]),
            r"sh -c 'echo it'\''s; exit 3'"
        );
        assert_eq!(command_line(["a\nb\u{1b}", ""]), r"$'a\nb\u001b' ''");
    }
}
