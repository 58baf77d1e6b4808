//! Readiness and output rules of a spec: both directions of a field are in this file.

use super::{line::output_stream, pattern, time};
use crate::{
    enums::mapped,
    pb::{
        self, line_pattern::Pattern, liveness::Probe as LiveProbe, output_rule::Action,
        readiness::Probe,
    },
};
use kennel_lifecycle::{
    Activity, AnsweredBy, Asked, Facets, LinePattern, LiveProbe as Live, Liveness, OutputRule,
    Policy, Readiness, ReadyProbe, RuleAction, RuleOff, StateProbe, Violation, labels, limits,
};
use kennel_supervisor::LineMatcher;

const READINESS: &str = "spec.readiness";
pub(crate) const READY_LINE: &str = "spec.readiness.line";
const LIVENESS: &str = "spec.liveness";

pub(crate) fn readiness(
    readiness: Option<Box<pb::Readiness>>,
    found: &mut Vec<Violation>,
) -> Option<Box<Readiness>> {
    let readiness = *readiness?;
    let probe = match readiness.probe {
        None => ReadyProbe::Rule,
        Some(Probe::Line(line)) => {
            ReadyProbe::Line(pattern::pattern(READY_LINE, Some(line), found)?)
        }
        Some(Probe::Notify(pb::NotifyProbe {})) => ReadyProbe::Notify,
        Some(probe) => ReadyProbe::State(ready_state(READINESS, probe, found)?),
    };
    let mut span = |name: &str, given: Option<&prost_types::Duration>| {
        time::parse_duration(&format!("{READINESS}.{name}"), given, found)
    };
    let interval = span("interval", readiness.interval.as_ref());
    let timeout = span("timeout", readiness.timeout.as_ref());
    let start_timeout = span("start_timeout", readiness.start_timeout.as_ref());
    Some(Box::new(Readiness {
        probe,
        interval: interval.unwrap_or(limits::PROBE_INTERVAL_DEFAULT),
        timeout: timeout.unwrap_or(limits::PROBE_TIMEOUT_DEFAULT),
        start_timeout,
    }))
}

pub(crate) fn liveness(
    liveness: Option<pb::Liveness>,
    found: &mut Vec<Violation>,
) -> Option<Box<Liveness>> {
    let liveness = liveness?;
    let probe = match liveness.probe {
        None => {
            let why = "must have one of `tcp`, `http`, `grpc`, `exec`, `watchdog`";
            found.push(Violation::new(LIVENESS, why));
            return None;
        }
        Some(LiveProbe::Watchdog(time)) => {
            let time = time::parse_duration("spec.liveness.watchdog", Some(&time), found);
            Live::Watchdog(time.unwrap_or_default())
        }
        Some(probe) => Live::State(live_state(LIVENESS, probe, found)?),
    };
    let mut span = |name: &str, given: Option<&prost_types::Duration>| {
        time::parse_duration(&format!("{LIVENESS}.{name}"), given, found)
    };
    let interval = span("interval", liveness.interval.as_ref());
    let timeout = span("timeout", liveness.timeout.as_ref());
    let threshold = liveness.failure_threshold;
    Some(Box::new(Liveness {
        probe,
        interval: interval.unwrap_or(limits::PROBE_INTERVAL_DEFAULT),
        timeout: timeout.unwrap_or(limits::PROBE_TIMEOUT_DEFAULT),
        failure_threshold: threshold.unwrap_or(limits::LIVENESS_FAILURES_DEFAULT),
    }))
}

pub(crate) fn shown_liveness(liveness: Option<&Liveness>) -> Option<pb::Liveness> {
    let liveness = liveness?;
    Some(pb::Liveness {
        probe: Some(match &liveness.probe {
            Live::Watchdog(time) => LiveProbe::Watchdog(time::duration(*time)),
            Live::State(probe) => shown_live_state(probe),
        }),
        interval: Some(time::duration(liveness.interval)),
        timeout: Some(time::duration(liveness.timeout)),
        failure_threshold: Some(liveness.failure_threshold),
    })
}

/// Makes the conversions of the probes that both unions have; another probe is none.
macro_rules! state_probes {
    ($union:ident, fn $parse:ident, fn $shown:ident) => {
        fn $parse(of: &str, probe: $union, found: &mut Vec<Violation>) -> Option<StateProbe> {
            let mut port = |kind: &str, number| port(&format!("{of}.{kind}.port"), number, found);
            Some(match probe {
                $union::Tcp(tcp) => StateProbe::Tcp(port("tcp", tcp.port)),
                $union::Http(http) => StateProbe::Http {
                    port: port("http", http.port),
                    path: if http.path.is_empty() {
                        "/".to_owned()
                    } else {
                        http.path
                    },
                },
                $union::Exec(exec) => StateProbe::Exec(exec.args),
                $union::Grpc(grpc) => StateProbe::Grpc {
                    port: port("grpc", grpc.port),
                    service: grpc.service,
                },
                _ => return None,
            })
        }

        fn $shown(probe: &StateProbe) -> $union {
            match probe.clone() {
                StateProbe::Tcp(port) => $union::Tcp(pb::TcpProbe { port: port.into() }),
                StateProbe::Http { port, path } => {
                    let port = port.into();
                    $union::Http(pb::HttpProbe { port, path })
                }
                StateProbe::Exec(args) => $union::Exec(pb::ExecProbe { args }),
                StateProbe::Grpc { port, service } => {
                    let port = port.into();
                    $union::Grpc(pb::GrpcProbe { port, service })
                }
            }
        }
    };
}

state_probes! { Probe, fn ready_state, fn shown_ready_state }
state_probes! { LiveProbe, fn live_state, fn shown_live_state }

/// Parses a port; 0 is refused with the other bounds.
fn port(field: &str, port: u32, found: &mut Vec<Violation>) -> u16 {
    u16::try_from(port).unwrap_or_else(|_| {
        found.push(Violation::new(field, "must be 1 to 65535"));
        1
    })
}

pub(crate) fn shown_readiness(readiness: Option<&Readiness>) -> Option<Box<pb::Readiness>> {
    let readiness = readiness?;
    Some(Box::new(pb::Readiness {
        probe: match &readiness.probe {
            ReadyProbe::Rule => None,
            ReadyProbe::Notify => Some(Probe::Notify(pb::NotifyProbe {})),
            ReadyProbe::Line(line) => Some(Probe::Line(shown_pattern(line))),
            ReadyProbe::State(probe) => Some(shown_ready_state(probe)),
        },
        interval: Some(time::duration(readiness.interval)),
        timeout: Some(time::duration(readiness.timeout)),
        start_timeout: readiness.start_timeout.map(time::duration),
    }))
}

pub(crate) fn rules(rules: Vec<pb::OutputRule>, found: &mut Vec<Violation>) -> Vec<OutputRule> {
    let rules = rules.into_iter().take(limits::OUTPUT_RULES_MAX + 1);
    let parsed = rules.enumerate().map(|(at, rule)| {
        let field = format!("spec.output_rules[{at}]");
        let of_rule = pattern::pattern(&rule_pattern(at), rule.pattern, found);
        OutputRule {
            // A refused pattern gets a placeholder: the request is refused anyway.
            pattern: of_rule.unwrap_or_else(|| LinePattern::Literal("-".into())),
            streams: pattern::streams(&format!("{field}.streams"), &rule.streams, found),
            action: action(&field, rule.action, found),
            name: rule.name,
        }
    });
    parsed.collect()
}

fn rule_pattern(at: usize) -> String {
    format!("spec.output_rules[{at}].pattern")
}

/// Returns the patterns of a policy, with their fields.
pub(crate) fn patterns(policy: &Policy) -> Vec<(String, LinePattern)> {
    let line = policy
        .readiness
        .iter()
        .filter_map(|readiness| match &readiness.probe {
            ReadyProbe::Line(line) => Some((READY_LINE.to_owned(), line.clone())),
            _ => None,
        });
    let rules = policy.output_rules.iter().enumerate();
    let rules = rules.map(|(at, rule)| (rule_pattern(at), rule.pattern.clone()));
    line.chain(rules).collect()
}

/// Checks that the groups of a rule's pattern can be annotations.
pub(crate) fn check_groups(field: &str, matcher: &LineMatcher, found: &mut Vec<Violation>) {
    let names = matcher.group_names().into_iter();
    for name in names.filter(|name| labels::check_key(name).is_err()) {
        let why = format!("group {name:?} cannot be an annotation: its name is no key of one");
        found.push(Violation::new(field, why));
    }
}

fn action(field: &str, action: Option<Action>, found: &mut Vec<Violation>) -> RuleAction {
    match action {
        Some(Action::Ready(_)) => RuleAction::Ready,
        Some(Action::Annotate(_)) => RuleAction::Annotate,
        Some(Action::Event(_)) => RuleAction::Event,
        Some(Action::Activity(number)) => {
            let activity = pb::Activity::try_from(number).ok();
            let action = activity.and_then(activity_of).map(RuleAction::Activity);
            action.unwrap_or_else(|| {
                let why = "must be an Activity that this server knows";
                found.push(Violation::new(format!("{field}.activity"), why));
                RuleAction::Event
            })
        }
        Some(Action::Result(result)) => {
            let after = format!("{field}.result.after");
            let after = time::parse_duration(&after, result.after.as_ref(), found);
            let grace = format!("{field}.result.grace");
            let grace = time::parse_duration(&grace, result.grace.as_ref(), found);
            RuleAction::Result {
                after: after.unwrap_or(limits::RESULT_AFTER_DEFAULT),
                grace: grace.unwrap_or(limits::GRACE_DEFAULT),
            }
        }
        None => {
            let why = "must have one of `ready`, `activity`, `annotate`, `event`, `result`";
            found.push(Violation::new(field, why));
            RuleAction::Event
        }
    }
}

pub(crate) fn shown_rules(rules: &[OutputRule]) -> Vec<pb::OutputRule> {
    use pb::output_rule::{Annotate, Emit, Ready, Result};
    let shown = |rule: &OutputRule| pb::OutputRule {
        name: rule.name.clone(),
        pattern: Some(shown_pattern(&rule.pattern)),
        streams: match rule.streams {
            [true, false] => vec![pb::OutputStream::Stdout.into()],
            [false, true] => vec![pb::OutputStream::Stderr.into()],
            [true, true] | [false, false] => Vec::new(),
        },
        action: Some(match &rule.action {
            RuleAction::Ready => Action::Ready(Ready {}),
            RuleAction::Activity(doing) => Action::Activity(activity(*doing).into()),
            RuleAction::Annotate => Action::Annotate(Annotate {}),
            RuleAction::Event => Action::Event(Emit {}),
            RuleAction::Result { after, grace } => Action::Result(Result {
                after: Some(time::duration(*after)),
                grace: Some(time::duration(*grace)),
            }),
        }),
    };
    rules.iter().map(shown).collect()
}

mapped! { pub(crate) fn activity(Activity) -> Activity, fn activity_of { Working AwaitingInput Idle } }

mapped! { pub(crate) fn answered_by(AnsweredBy) -> AnsweredBy { Answer Input Interrupt } }

/// Converts a question of this attempt from this source, without its time.
pub(crate) fn question(asked: Asked, attempt: u32, by: String) -> pb::Question {
    pb::Question {
        number: asked.number,
        text: asked.text,
        truncated: asked.is_cut,
        captures: asked.captures.into_iter().collect(),
        by,
        since_time: None,
        attempt,
        stream: asked
            .line
            .map_or(0, |line| output_stream(line.stream).into()),
        offset: asked.line.map_or(0, |line| line.offset),
        echo_off: asked.echo_off,
    }
}

/// Converts the questions of this attempt.
pub(crate) fn questions(facets: &Facets, attempt: u32) -> Vec<pb::Question> {
    let open = facets.questions.of(attempt).map(|open| pb::Question {
        since_time: Some(time::timestamp(open.at)),
        ..question(open.asked.clone(), open.attempt, open.by.clone())
    });
    open.collect()
}

mapped! { pub(crate) fn switch_off(RuleOff) -> RuleSwitchOff { GaveUp TestTime ProcessorShare } }

/// Converts the rules of a run that were switched off.
pub(crate) fn switched_off(facets: &Facets) -> Vec<pb::SwitchedOffRule> {
    let rules = facets.switched_off.iter();
    let rules = rules.map(|(rule, off)| pb::SwitchedOffRule {
        rule: rule.clone(),
        reason: switch_off(off.reason).into(),
        off_time: Some(time::timestamp(off.at)),
    });
    rules.collect()
}

fn shown_pattern(pattern: &LinePattern) -> pb::LinePattern {
    let pattern = match pattern {
        LinePattern::Literal(text) => Pattern::Literal(text.clone()),
        LinePattern::Regex(text) => Pattern::Regex(text.clone()),
        LinePattern::Json(json) => Pattern::Json(pb::JsonPattern {
            pointer: json.pointer.clone(),
            equals: json.equals.clone().unwrap_or_default(),
            captures: json.captures.clone(),
        }),
    };
    pb::LinePattern {
        pattern: Some(pattern),
    }
}
