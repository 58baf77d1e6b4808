//! Values of the settings of a server.

use kennel_cli::values::{bytes, cpus, duration, signal, soft_and_hard};
use kennel_lifecycle::{
    CapabilitySet, CpuQuota, Network, Privileges, Rlimit, RunKind, RunLimits, Sandbox, Seccomp,
    Signal,
    limits::{CPU_PERIOD_DEFAULT, SHUTDOWN_TIMEOUT},
};
use kennel_supervisor::ChainHead;
use std::time::Duration;

/// Reads a setting that is true or false.
pub(crate) fn truth(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

/// Parses the restrictions on every run of a node: words, separated by commas.
pub(crate) fn restrictions(text: &str) -> Result<Privileges, String> {
    let mut held = Privileges::default();
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        match (word, word.strip_prefix("cap-drop=")) {
            (_, Some(name)) => {
                let named = name.parse::<CapabilitySet>().map_err(|e| e.to_string())?;
                held.drop_capabilities = held.drop_capabilities.union(named);
            }
            ("no-new-privileges", _) => held.no_new_privileges = true,
            ("sandbox", _) => held.sandbox = Some(Sandbox::default()),
            ("seccomp=baseline", _) => held.seccomp = Seccomp::Baseline,
            ("network=none", _) => held.network = Network::None,
            _ => {
                return Err(format!(
                    "{word} restricts nothing: expected no-new-privileges, cap-drop=NAME, sandbox, seccomp=baseline, network=none"
                ));
            }
        }
    }
    Ok(held)
}

/// Reads a grace, `20s`, or that of one kind of runs, `terminal=2s`.
pub(crate) fn grace(text: &str) -> Result<(Option<RunKind>, Duration), String> {
    of_kind(text, duration)
}

/// Reads `SIGNAL` or `KIND=SIGNAL`: one with which a stop may begin.
pub(crate) fn stop_signal(text: &str) -> Result<(Option<RunKind>, Signal), String> {
    of_kind(text, |name| {
        let polite = Some(signal(name)?).filter(|signal| signal.is_polite());
        polite.ok_or("a shutdown cannot begin with SIGKILL or SIGSTOP".to_owned())
    })
}

/// Reads a time in which a shutdown ends all runs.
pub(crate) fn shutdown_timeout(text: &str) -> Result<Duration, String> {
    let time = Some(duration(text)?).filter(|time| SHUTDOWN_TIMEOUT.contains(time));
    time.ok_or_else(|| "a shutdown takes 1s to 24h".to_owned())
}

/// Reads how long a node's lease lasts.
pub(crate) fn node_lease(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_secs(3)..=Duration::from_mins(10);
    let lease = Some(duration(text)?).filter(|lease| bounds.contains(lease));
    lease.ok_or_else(|| "a node's lease is 3s to 10m".to_owned())
}

/// Reads the memory to keep free for Kennel.
pub(crate) fn memory_reserve(text: &str) -> Result<u64, String> {
    let reserve = Some(bytes(text)?).filter(|bytes| *bytes >= 1 << 20);
    reserve.ok_or_else(|| "a memory reserve is 1M at least".to_owned())
}

/// Reads an exit code.
pub(crate) fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "write 0 to 255".to_owned())
}

/// Reads how long the row of a dead node stays: at least a minute, as a node that is only slow comes back.
pub(crate) fn node_retention(text: &str) -> Result<Duration, String> {
    let time = Some(duration(text)?).filter(|time| *time >= Duration::from_mins(1));
    time.ok_or_else(|| "a node's row stays for 1m or longer".to_owned())
}

fn of_kind<T>(
    text: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(Option<RunKind>, T), String> {
    let Some((kind, value)) = text.split_once('=') else {
        return Ok((None, read(text)?));
    };
    Ok((Some(run_kind(kind)?), read(value)?))
}

fn run_kind(kind: &str) -> Result<RunKind, String> {
    kind.trim().parse().map_err(|_| {
        let kinds: Vec<_> = RunKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("{kind} is no kind of runs: write {}", kinds.join(", "))
    })
}

/// Reads the name of a variable, or `NAME*`.
pub(crate) fn variable_pattern(text: &str) -> Result<String, String> {
    let name = text.trim();
    let start = name.strip_suffix('*').unwrap_or(name);
    if name.is_empty() || start.contains(['=', '*']) {
        return Err(format!("{text:?} is no variable: write NAME or NAME*"));
    }
    Ok(name.to_owned())
}

/// Reads `SEQ:HASH`, as `kennel audit --verify` prints it.
pub(crate) fn chain_head(text: &str) -> Result<ChainHead, String> {
    let read = text.split_once(':').and_then(|(seq, hash)| {
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash.then_some(ChainHead {
            seq: seq.parse().ok()?,
            hash: hash.to_ascii_lowercase(),
        })
    });
    read.ok_or_else(|| "write it as SEQ:HASH, as kennel audit --verify prints it".to_owned())
}

/// Reads one limit that a node gives, `NAME=VALUE`, or `KIND:NAME=VALUE` for runs of one kind.
pub(crate) fn node_limit(text: &str) -> Result<(Option<RunKind>, RunLimits), String> {
    const HINT: &str =
        "write it as NAME=VALUE or KIND:NAME=VALUE, such as nofile=1024:524288 or job:pids=100";
    let (name, value) = text.trim().split_once('=').ok_or(HINT)?;
    let (kind, name) = match name.split_once(':') {
        Some((kind, name)) => (Some(run_kind(kind)?), name),
        None => (None, name),
    };
    let number = || {
        let wrong = |_| format!("{value:?} is no number: {HINT}");
        value.parse::<u64>().map_err(wrong)
    };
    let mut limits = RunLimits::default();
    match name {
        "memory" | "memory-max" => limits.memory_max = Some(bytes(value)?),
        "memory-high" => limits.memory_high = Some(bytes(value)?),
        "swap-max" => limits.swap_max = Some(bytes(value)?),
        "pids" | "pids-max" => limits.pids_max = Some(number()?),
        "cpus" => {
            let (quota, period) = (cpus(value)?, CPU_PERIOD_DEFAULT);
            limits.cpu_quota = Some(CpuQuota { quota, period });
        }
        "cpu-weight" => {
            let weight = u32::try_from(number()?);
            limits.cpu_weight = Some(weight.map_err(|_| format!("{value} is no weight"))?);
        }
        name => {
            let resource = format!("RLIMIT_{}", name.to_uppercase()).parse();
            let resource = resource.map_err(|_| format!("{name:?} is no limit: {HINT}"))?;
            let (soft, hard) = soft_and_hard(value).map_err(|wrong| format!("{wrong}: {HINT}"))?;
            limits.rlimits = vec![Rlimit {
                resource,
                soft,
                hard: hard.unwrap_or(soft),
            }];
        }
    }
    Ok((kind, limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_may_be_limited_to_one_kind() {
        let seconds = Duration::from_secs;
        assert_eq!(grace("20s"), Ok((None, seconds(20))));
        assert_eq!(
            grace("terminal=2"),
            Ok((Some(RunKind::Terminal), seconds(2)))
        );
        for text in ["", "=2s", "shell=2s", "job=", "job=soon", "-1s"] {
            assert!(grace(text).is_err(), "{text:?} was read as a grace");
        }
    }

    #[test]
    fn node_default_limits_are_parsed() {
        let of = |text: &str| {
            let (kind, limits) = node_limit(text)?;
            let name = RunLimits::default().fill(&limits).concat();
            Ok::<_, String>((kind, name))
        };
        for (text, kind, name) in [
            ("core=0", None, "core"),
            ("nofile=1024:524288", None, "nofile"),
            ("job:stack=unlimited", Some(RunKind::Job), "stack"),
            ("terminal:pids=9", Some(RunKind::Terminal), "pids-max"),
            ("memory=512M", None, "memory-max"),
            ("memory-high=1G", None, "memory-high"),
            ("swap-max=0", None, "swap-max"),
            ("cpus=1.5", None, "cpus"),
            ("cpu-weight=50", None, "cpu-weight"),
        ] {
            assert_eq!(of(text), Ok((kind, name.to_owned())), "{text}");
        }
        for text in [
            "",
            "core",
            "core=x",
            "cores=1",
            "shell:core=0",
            "pids=-1",
            "nofile=1:",
        ] {
            assert!(node_limit(text).is_err(), "{text:?} was read as a limit");
        }
    }
}
