//! Readiness, liveness, and rules on lines of output. Given with the spec, never changed.

use crate::{
    LinePattern, Violation, labels, limits,
    names::{named, tagged},
    violation::{self, count_at_most},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

/// Condition under which a run counts as ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Evidence that the run is ready.
    pub probe: ReadyProbe,
    /// Time between two probes.
    pub interval: Duration,
    /// Longest time of one probe.
    pub timeout: Duration,
    /// Longest time from the confirmed start on, pauses not counted; absent: no limit.
    pub start_timeout: Option<Duration>,
}

/// Evidence that a run is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyProbe {
    /// An output rule of the run.
    Rule,
    /// A line of its output.
    Line(LinePattern),
    /// A report of the command itself, by `sd_notify(3)`. The keeper receives it, and keeps the start timeout.
    Notify,
    /// A probe of its state.
    State(StateProbe),
}

tagged! {
    /// Probe of a run's state: a server on this host's loopback addresses, or a helper command.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum StateProbe {
        /// A port accepts a connection.
        Tcp(u16) = "tcp",
        /// GET returns 2xx.
        Http {
            /// Port.
            port: u16,
            /// Path and query, beginning with `/`.
            path: String,
        } = "http",
        /// grpc.health.v1 reports SERVING.
        Grpc {
            /// Port.
            port: u16,
            /// Service; empty: the whole server.
            service: String,
        } = "grpc",
        /// A command in the run's tree exits with code 0.
        Exec(Vec<String>) = "exec",
    }
}

/// Evidence that a run is live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveProbe {
    /// A probe of its state.
    State(StateProbe),
    /// A sign of the command itself, by `sd_notify(3)`, at least once in this time. The keeper counts.
    Watchdog(Duration),
}

/// Condition under which a ready run counts as live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Liveness {
    /// Evidence that the run is live.
    pub probe: LiveProbe,
    /// Time between two probes.
    pub interval: Duration,
    /// Longest time of one probe.
    pub timeout: Duration,
    /// Failures in a row after which the run is not live.
    pub failure_threshold: u32,
}

/// A rule on lines of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRule {
    /// Name, unique in the run.
    pub name: String,
    /// Pattern of the line.
    pub pattern: LinePattern,
    /// Whether to test standard output and standard error.
    pub streams: [bool; 2],
    /// Action on a match.
    pub action: RuleAction,
}

impl OutputRule {
    /// Whether a match is a question.
    pub fn asks(&self) -> bool {
        self.action == RuleAction::Activity(Activity::AwaitingInput)
    }

    /// Whether it tests unfinished lines as well.
    pub fn asks_in_unfinished_lines(&self) -> bool {
        self.asks() && !matches!(self.pattern, LinePattern::Json(_))
    }
}

/// Action on a line that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// The run becomes ready.
    Ready,
    /// The run has this activity from here on.
    Activity(Activity),
    /// The named groups of the match become annotations.
    Annotate,
    /// An event with the groups of the match is emitted.
    Event,
    /// The result is available: the run has some time to end by itself, and is stopped then.
    Result {
        /// Time to end by itself.
        after: Duration,
        /// Grace of the stop.
        grace: Duration,
    },
}

named! {
    /// Activity of a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Activity {
        /// The run works.
        Working = "working",
        /// The run waits for input of a person or a client.
        AwaitingInput = "awaiting_input",
        /// The run has nothing to do.
        Idle = "idle",
    }
}

named! {
    /// What a live run waits for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Wait {
        /// Input of a person or a client, as its activity reports.
        Input = "input",
        /// The sign that it is ready.
        Ready = "ready",
        /// The time of its next attempt.
        Attempt = "attempt",
        /// A Restart: it is held after too many restarts in a row.
        Restart = "restart",
    }
}

named! {
    /// Reason why an output rule was switched off.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum RuleOff {
        /// Its pattern gave up on a line: it takes too many steps.
        GaveUp = "gave_up",
        /// The test of one line has taken too long.
        TestTime = "test_time",
        /// All its tests have taken too much of a processor.
        ProcessorShare = "processor_share",
    }
}

/// Name of the rule that `readiness.line` is.
pub const READY_RULE: &str = "readiness";
/// Name of the evidence where the command itself has reported.
pub const NOTIFIED: &str = "notify";

impl Readiness {
    pub(crate) fn check(&self, rules: &[OutputRule], found: &mut Vec<Violation>) {
        let mut wrong = |field: &str, why: &str| {
            found.push(Violation::new(format!("spec.readiness.{field}"), why));
        };
        check_times(self.interval, self.timeout, &mut wrong);
        if let Some(why) = violation::fault_of_timeout(self.start_timeout) {
            wrong("start_timeout", why);
        }
        match &self.probe {
            ReadyProbe::Rule => {
                if !rules.iter().any(|rule| rule.action == RuleAction::Ready) {
                    wrong("probe", "must be given, or an output rule with `ready`");
                }
            }
            ReadyProbe::Notify => {
                if rules.iter().any(|rule| rule.action == RuleAction::Ready) {
                    wrong(
                        "notify",
                        "cannot be given beside an output rule with `ready`",
                    );
                }
            }
            ReadyProbe::State(probe) => probe.check(&mut wrong),
            ReadyProbe::Line(pattern) => pattern.check("spec.readiness.line", found),
        }
    }

    /// Returns the rule that a probe by line amounts to.
    fn rule(&self) -> Option<OutputRule> {
        let ReadyProbe::Line(pattern) = &self.probe else {
            return None;
        };
        Some(OutputRule {
            name: READY_RULE.to_owned(),
            pattern: pattern.clone(),
            streams: [true; 2],
            action: RuleAction::Ready,
        })
    }
}

impl Liveness {
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        let mut wrong = |field: &str, why: &str| {
            found.push(Violation::new(format!("spec.liveness.{field}"), why));
        };
        check_times(self.interval, self.timeout, &mut wrong);
        if !(1..=limits::LIVENESS_FAILURES_MAX).contains(&self.failure_threshold) {
            wrong("failure_threshold", "must be 1 to 1000");
        }
        match &self.probe {
            LiveProbe::State(probe) => probe.check(&mut wrong),
            LiveProbe::Watchdog(time) => {
                if !(limits::WATCHDOG_MIN..=limits::WATCHDOG_MAX).contains(time) {
                    wrong("watchdog", "must be 100 ms to 24 hours");
                }
            }
        }
    }
}

impl StateProbe {
    fn check(&self, wrong: &mut impl FnMut(&str, &str)) {
        match self {
            Self::Tcp(0) => wrong("tcp.port", "must be 1 to 65535"),
            Self::Http { port: 0, .. } => wrong("http.port", "must be 1 to 65535"),
            Self::Http { path, .. } => {
                let is_text = path.bytes().all(|b| (0x21..0x7f).contains(&b));
                if !path.starts_with('/') || !is_text || path.len() > limits::PATTERN_BYTES_MAX {
                    wrong(
                        "http.path",
                        "must begin with '/', and be at most 1024 ASCII characters without blanks",
                    );
                }
            }
            Self::Grpc { port: 0, .. } => wrong("grpc.port", "must be 1 to 65535"),
            Self::Grpc { service, .. } if service.len() > limits::PATTERN_BYTES_MAX => {
                wrong("grpc.service", "must be at most 1024 bytes");
            }
            Self::Exec(argv) => {
                if let Some(why) = fault_of_command(argv) {
                    wrong("exec.args", why);
                }
            }
            Self::Tcp(_) | Self::Grpc { .. } => {}
        }
    }
}

/// Returns the fault of a helper command.
pub(crate) fn fault_of_command(argv: &[String]) -> Option<&'static str> {
    let bytes: usize = argv.iter().map(String::len).sum();
    if argv.first().is_none_or(String::is_empty) {
        Some("must name a command")
    } else if argv.len() > limits::HELPER_ARGS_MAX || bytes > limits::HELPER_BYTES_MAX {
        Some("must be at most 64 words of 4096 bytes in all")
    } else if argv.iter().any(|word| word.contains('\0')) {
        Some("must not contain a NUL byte")
    } else {
        None
    }
}

fn check_times(interval: Duration, timeout: Duration, wrong: &mut impl FnMut(&str, &str)) {
    if interval < limits::PROBE_INTERVAL_MIN || interval > limits::PROBE_INTERVAL_MAX {
        wrong("interval", "must be 10 ms to 1 hour");
    }
    if timeout.is_zero() || timeout > limits::PROBE_TIMEOUT_MAX {
        wrong("timeout", "must be more than zero and at most 1 minute");
    }
}

/// Returns all rules of a run: that of its readiness first.
pub(crate) fn all(readiness: Option<&Readiness>, rules: &[OutputRule]) -> Vec<OutputRule> {
    let first = readiness.and_then(Readiness::rule);
    first.into_iter().chain(rules.iter().cloned()).collect()
}

pub(crate) fn check(rules: &[OutputRule], found: &mut Vec<Violation>) {
    let (count, most) = (rules.len(), limits::OUTPUT_RULES_MAX);
    count_at_most("spec.output_rules", count, most, "entries", found);
    let mut names = BTreeSet::new();
    for (at, rule) in rules.iter().enumerate() {
        let field = format!("spec.output_rules[{at}]");
        let mut wrong = |of: &str, why: &str| {
            found.push(Violation::new(format!("{field}.{of}"), why));
        };
        if labels::check_value(&rule.name).is_err() || rule.name.is_empty() {
            wrong("name", "must be 1 to 63 letters, digits, '-', '_' or '.'");
        }
        if rule.name == READY_RULE || !names.insert(&rule.name) {
            wrong("name", "must be that of no other rule, nor `readiness`");
        }
        if let RuleAction::Result { after, grace } = rule.action {
            if after > limits::GRACE_MAX {
                wrong("result.after", "must be at most 24 hours");
            }
            if grace > limits::GRACE_MAX {
                wrong("result.grace", "must be at most 24 hours");
            }
        }
        rule.pattern.check(&format!("{field}.pattern"), found);
    }
}
