//! What a run says of itself: readiness, and rules on lines of its output. Given with the spec, never changed.

use crate::names::named;
use crate::{LinePattern, Violation, labels, limits};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

/// When a run counts as ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// What shows that it is.
    pub probe: ReadyProbe,
    /// Time between two probes.
    pub interval: Duration,
    /// Longest time of one probe.
    pub timeout: Duration,
    /// Longest time from the confirmed start on, pauses not counted; absent: no limit.
    pub start_timeout: Option<Duration>,
}

/// What shows that a run is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyProbe {
    /// An output rule of the run does.
    Rule,
    /// A line of its output.
    Line(LinePattern),
    /// A port of this host's loopback addresses accepts a connection.
    Tcp(u16),
    /// A server on this host's loopback addresses answers GET with 2xx.
    Http {
        /// Port.
        port: u16,
        /// Path and query, beginning with `/`.
        path: String,
    },
}

/// A rule on lines of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRule {
    /// Name, unique in the run.
    pub name: String,
    /// What the line must be.
    pub pattern: LinePattern,
    /// Whether to test standard output and standard error.
    pub streams: [bool; 2],
    /// What follows from a match.
    pub action: RuleAction,
}

/// What follows from a line that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// The run is ready.
    Ready,
    /// The run does this from here on.
    Activity(Activity),
    /// The named groups of the match become annotations.
    Annotate,
    /// An event with the groups of the match.
    Event,
    /// The result is there: the run has some time to end by itself, and is stopped then.
    Result {
        /// How much time.
        after: Duration,
        /// Grace of the stop.
        grace: Duration,
    },
}

named! {
    /// What a run does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Activity {
        /// It works.
        Working = "working",
        /// It waits for input of a person or a client.
        AwaitingInput = "awaiting_input",
        /// It has nothing to do.
        Idle = "idle",
    }
}

/// Name of the rule that `readiness.line` is.
pub const READY_RULE: &str = "readiness";

impl Readiness {
    pub(crate) fn check(&self, rules: &[OutputRule], found: &mut Vec<Violation>) {
        let mut wrong = |field: &str, why: &str| {
            found.push(Violation::new(format!("spec.readiness.{field}"), why));
        };
        if self.interval < limits::PROBE_INTERVAL_MIN || self.interval > limits::PROBE_INTERVAL_MAX
        {
            wrong("interval", "must be 10 ms to 1 hour");
        }
        if self.timeout.is_zero() || self.timeout > limits::PROBE_TIMEOUT_MAX {
            wrong("timeout", "must be more than zero and at most 1 minute");
        }
        match self.start_timeout {
            Some(Duration::ZERO) => {
                wrong(
                    "start_timeout",
                    "must be more than zero; leave it out for no limit",
                );
            }
            Some(time) if time > limits::TIMEOUT_MAX => {
                wrong("start_timeout", "must be at most 10 years (87,600 hours)");
            }
            _ => {}
        }
        match &self.probe {
            ReadyProbe::Rule => {
                if !rules.iter().any(|rule| rule.action == RuleAction::Ready) {
                    wrong("probe", "must be given, or an output rule with `ready`");
                }
            }
            ReadyProbe::Tcp(0) => wrong("tcp.port", "must be 1 to 65535"),
            ReadyProbe::Http { port: 0, .. } => wrong("http.port", "must be 1 to 65535"),
            ReadyProbe::Http { path, .. } => {
                let is_text = path.bytes().all(|b| (0x21..0x7f).contains(&b));
                if !path.starts_with('/') || !is_text || path.len() > limits::PATTERN_BYTES_MAX {
                    wrong(
                        "http.path",
                        "must begin with '/', and be at most 1024 ASCII characters without blanks",
                    );
                }
            }
            ReadyProbe::Line(pattern) => pattern.check("spec.readiness.line", found),
            ReadyProbe::Tcp(_) => {}
        }
    }

    /// The rule that a probe by line is.
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

/// All rules of a run: that of its readiness first.
pub(crate) fn all(readiness: Option<&Readiness>, rules: &[OutputRule]) -> Vec<OutputRule> {
    let first = readiness.and_then(Readiness::rule);
    first.into_iter().chain(rules.iter().cloned()).collect()
}

pub(crate) fn check(rules: &[OutputRule], found: &mut Vec<Violation>) {
    if rules.len() > limits::OUTPUT_RULES_MAX {
        let why = format!("must have at most {} entries", limits::OUTPUT_RULES_MAX);
        found.push(Violation::new("spec.output_rules", why));
    }
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
