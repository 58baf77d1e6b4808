//! What a client wants to run: parsed on the way in, kept as a document, given back without its secrets.

use super::{command, containment, limits, restart, terminal, time};
use crate::{
    json,
    pb::{
        self,
        run_spec::{Command, Stdio},
    },
};
use bytes::Bytes;
use kennel_lifecycle::{
    EnvMode, InputMode, LeaderExit, OnDiskFull, OnMaxPause, OnOutputFull, OutputBound, PausePolicy,
    PidNamespace, Recovery, RunKind, RunSpec, Timeouts, Violation, limits as bounds,
};

/// Whether there is far too much of something, by counts alone.
pub(crate) fn has_too_many(spec: &pb::RunSpec, found: &mut Vec<Violation>) -> bool {
    let before = found.len();
    let (args, raw_args) = match &spec.command {
        Some(Command::Argv(argv)) => (argv.args.len(), argv.raw_args.len()),
        None => (0, 0),
    };
    let vars = spec.env.as_ref().map_or(0, |env| env.vars.len());
    for (field, count, most) in [
        ("spec.argv.args", args, bounds::ARGV_LEN_MAX),
        ("spec.argv.raw_args", raw_args, bounds::ARGV_LEN_MAX),
        ("spec.env.vars", vars, bounds::ENV_ENTRIES_MAX),
        ("spec.labels", spec.labels.len(), bounds::LABELS_MAX),
    ] {
        if count > most {
            let why = format!("must have at most {most} entries");
            found.push(Violation::new(field, why));
        }
    }
    found.len() > before
}

/// The spec in the lifecycle's words; all that is wrong with it is put into `found`.
pub(crate) fn parse(spec: pb::RunSpec, found: &mut Vec<Violation>) -> RunSpec {
    let form = command::Form::of(&spec);
    let named = kind("spec.kind", spec.kind, found);
    let (kind, terminal) = terminal::parse(named, spec.kind == 0, spec.stdio.as_ref(), found);
    let grace = spec.stop.as_ref().and_then(|s| s.grace.as_ref());
    let grace = time::parse_duration("spec.stop.grace", grace, found);
    let timeouts = spec.timeouts.unwrap_or_default();
    let max_runtime = timeouts.max_runtime.as_ref();
    let timeouts = Timeouts {
        max_runtime: time::parse_duration("spec.timeouts.max_runtime", max_runtime, found),
    };
    let env = spec.env.unwrap_or_default();
    let env_mode = env_mode(env.mode, found);
    let parsed = RunSpec {
        kind,
        argv: command::argv(spec.command, found),
        cwd: command::cwd(spec.cwd, spec.raw_cwd, found),
        env_mode,
        env: env.vars,
        initial_input: spec.initial_input.map(|input| input.to_vec()),
        input: input_mode(spec.stdio.as_ref(), found),
        terminal,
        labels: spec.labels,
        grace,
        timeouts,
        limits: limits::parse(spec.limits.as_ref(), found),
        on_leader_exit: on_leader_exit(spec.on_leader_exit, found),
        pause: pause(spec.pause, found),
        min_containment: containment::least(spec.min_containment, found),
        pid_namespace: pid_namespace(spec.pid_namespace, found),
        recovery: recovery(spec.recovery, found),
        restart: restart::parse(spec.restart.as_ref(), found),
        output: output(spec.output, found),
    };
    let wrong = parsed.violations().into_iter();
    found.extend(wrong.map(|violation| form.name(violation)));
    parsed
}

/// The spec as it is kept: with empty input and empty values of variables.
pub(crate) fn document(spec: &pb::RunSpec) -> String {
    let env = spec.env.as_ref().map(|env| pb::Env {
        mode: env.mode,
        vars: env
            .vars
            .keys()
            .map(|name| (name.clone(), String::new()))
            .collect(),
    });
    json::to_string(&pb::RunSpec {
        kind: spec.kind,
        command: spec.command.clone(),
        cwd: spec.cwd.clone(),
        raw_cwd: spec.raw_cwd.clone(),
        env,
        initial_input: spec.initial_input.as_ref().map(|_| Bytes::new()),
        labels: spec.labels.clone(),
        stop: spec.stop,
        timeouts: spec.timeouts,
        limits: spec.limits.clone(),
        on_leader_exit: spec.on_leader_exit,
        pause: spec.pause,
        min_containment: spec.min_containment,
        pid_namespace: spec.pid_namespace,
        recovery: spec.recovery,
        restart: spec.restart.clone(),
        output: spec.output,
        stdio: spec.stdio.clone(),
    })
}

/// The spec that was kept so; absent: there is none, as for a fence.
pub(crate) fn from_document(document: &str) -> Option<pb::RunSpec> {
    if document.is_empty() {
        return None;
    }
    match json::from_str(document) {
        Ok(spec) => Some(spec),
        Err(error) => {
            tracing::warn!(%error, "a kept spec cannot be read, giving the run without it");
            None
        }
    }
}

/// A kind of the contract, or what is wrong with it.
pub(crate) fn kind(field: &str, number: i32, found: &mut Vec<Violation>) -> RunKind {
    match pb::RunKind::try_from(number) {
        Ok(pb::RunKind::Unspecified | pb::RunKind::Heartbeat) => RunKind::Heartbeat,
        Ok(pb::RunKind::Service) => RunKind::Service,
        Ok(pb::RunKind::Terminal) => RunKind::Terminal,
        Ok(pb::RunKind::Job) => RunKind::Job,
        Err(_) => {
            found.push(unknown_number(field, number, "RunKind"));
            RunKind::Heartbeat
        }
    }
}

fn output(policy: Option<pb::OutputPolicy>, found: &mut Vec<Violation>) -> OutputBound {
    let policy = policy.unwrap_or_default();
    let default = OutputBound::default();
    OutputBound {
        max_bytes: policy.max_bytes.unwrap_or(default.max_bytes),
        on_full: match pb::OutputOverflow::try_from(policy.on_full) {
            Ok(pb::OutputOverflow::Unspecified) => default.on_full,
            Ok(pb::OutputOverflow::Rotate) => OnOutputFull::Rotate,
            Ok(pb::OutputOverflow::HeadTail) => OnOutputFull::HeadTail,
            Ok(pb::OutputOverflow::Abort) => OnOutputFull::Abort,
            Ok(pb::OutputOverflow::Block) => OnOutputFull::Block,
            Err(_) => {
                let field = "spec.output.on_full";
                found.push(unknown_number(field, policy.on_full, "OutputOverflow"));
                default.on_full
            }
        },
        on_disk_full: match pb::DiskFullAction::try_from(policy.on_disk_full) {
            Ok(pb::DiskFullAction::Unspecified) => default.on_disk_full,
            Ok(pb::DiskFullAction::Block) => OnDiskFull::Block,
            Ok(pb::DiskFullAction::Drop) => OnDiskFull::Drop,
            Ok(pb::DiskFullAction::Abort) => OnDiskFull::Abort,
            Err(_) => {
                let field = "spec.output.on_disk_full";
                found.push(unknown_number(field, policy.on_disk_full, "DiskFullAction"));
                default.on_disk_full
            }
        },
    }
}

fn input_mode(stdio: Option<&Stdio>, found: &mut Vec<Violation>) -> InputMode {
    let Some(Stdio::Pipes(pipes)) = stdio else {
        return InputMode::Initial;
    };
    match pb::InputMode::try_from(pipes.input) {
        Ok(pb::InputMode::Unspecified | pb::InputMode::Initial) => InputMode::Initial,
        Ok(pb::InputMode::Open) => InputMode::Open,
        Err(_) => {
            let field = "spec.pipes.input";
            found.push(unknown_number(field, pipes.input, "InputMode"));
            InputMode::Initial
        }
    }
}

fn env_mode(number: i32, found: &mut Vec<Violation>) -> EnvMode {
    match pb::EnvMode::try_from(number) {
        Ok(pb::EnvMode::Unspecified | pb::EnvMode::Minimal) => EnvMode::Minimal,
        Ok(pb::EnvMode::InheritAll) => EnvMode::InheritAll,
        Ok(pb::EnvMode::None) => EnvMode::None,
        Err(_) => {
            found.push(unknown_number("spec.env.mode", number, "EnvMode"));
            EnvMode::Minimal
        }
    }
}

fn pid_namespace(number: i32, found: &mut Vec<Violation>) -> PidNamespace {
    match pb::PidNamespace::try_from(number) {
        Ok(pb::PidNamespace::Unspecified | pb::PidNamespace::Shared) => PidNamespace::Shared,
        Ok(pb::PidNamespace::Private) => PidNamespace::Private,
        Err(_) => {
            found.push(unknown_number("spec.pid_namespace", number, "PidNamespace"));
            PidNamespace::Shared
        }
    }
}

fn recovery(number: i32, found: &mut Vec<Violation>) -> Option<Recovery> {
    match pb::RecoveryPolicy::try_from(number) {
        Ok(pb::RecoveryPolicy::Unspecified) => None,
        Ok(pb::RecoveryPolicy::Terminate) => Some(Recovery::Terminate),
        Ok(pb::RecoveryPolicy::Adopt) => Some(Recovery::Adopt),
        Err(_) => {
            found.push(unknown_number("spec.recovery", number, "RecoveryPolicy"));
            None
        }
    }
}

fn pause(policy: Option<pb::PausePolicy>, found: &mut Vec<Violation>) -> PausePolicy {
    const ACTION: &str = "spec.pause.on_max_pause";
    let policy = policy.unwrap_or_default();
    let max_pause = policy.max_pause.as_ref();
    let action = pb::OnMaxPause::try_from(policy.on_max_pause);
    if max_pause.is_none() && policy.on_max_pause != 0 {
        found.push(Violation::new(ACTION, "is for a pause with max_pause only"));
    }
    PausePolicy {
        max_pause: time::parse_duration("spec.pause.max_pause", max_pause, found),
        on_max_pause: match action {
            Ok(pb::OnMaxPause::Unspecified | pb::OnMaxPause::Resume) => OnMaxPause::Resume,
            Ok(pb::OnMaxPause::Abort) => OnMaxPause::Abort,
            Err(_) => {
                found.push(unknown_number(ACTION, policy.on_max_pause, "OnMaxPause"));
                OnMaxPause::Resume
            }
        },
    }
}

fn on_leader_exit(policy: Option<pb::LeaderExitPolicy>, found: &mut Vec<Violation>) -> LeaderExit {
    const TIMEOUT: &str = "spec.on_leader_exit.drain_timeout";
    let policy = policy.unwrap_or_default();
    let timeout = time::parse_duration(TIMEOUT, policy.drain_timeout.as_ref(), found);
    let action = match pb::LeaderExitAction::try_from(policy.action) {
        Ok(pb::LeaderExitAction::Drain) => return LeaderExit::Drain { timeout },
        Ok(pb::LeaderExitAction::Unspecified | pb::LeaderExitAction::Stop) => LeaderExit::Stop,
        Ok(pb::LeaderExitAction::Keep) => LeaderExit::Keep,
        Err(_) => {
            let field = "spec.on_leader_exit.action";
            found.push(unknown_number(field, policy.action, "LeaderExitAction"));
            return LeaderExit::Stop;
        }
    };
    if policy.drain_timeout.is_some() {
        found.push(Violation::new(
            TIMEOUT,
            "is for LEADER_EXIT_ACTION_DRAIN only",
        ));
    }
    action
}

/// A number that this version has no value for.
pub(crate) fn unknown_number(field: &str, number: i32, name: &str) -> Violation {
    Violation::new(
        field,
        format!("{number} is not a {name} that this server knows"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{Containment, RestartPolicy, RunLimits};
    use std::time::Duration;

    #[test]
    fn every_field_reaches_the_core() {
        let mut found = Vec::new();
        let parsed = parse(full(), &mut found);
        assert_eq!(found, []);
        let text = |s: &str| s.to_owned();
        assert_eq!(
            parsed,
            RunSpec {
                kind: RunKind::Job,
                argv: ["sh", "-c", "cat"].map(Into::into).to_vec(),
                cwd: Some("/tmp".into()),
                env_mode: EnvMode::None,
                env: [(text("SECRET"), text("hush"))].into(),
                initial_input: Some(b"in".to_vec()),
                input: InputMode::Initial,
                terminal: None,
                labels: [(text("team"), text("a"))].into(),
                grace: Some(Duration::from_millis(500)),
                timeouts: Timeouts {
                    max_runtime: Some(Duration::from_mins(1)),
                },
                limits: RunLimits {
                    nice: Some(3),
                    ..RunLimits::default()
                },
                pause: PausePolicy {
                    max_pause: Some(Duration::from_secs(30)),
                    on_max_pause: OnMaxPause::Abort,
                },
                on_leader_exit: LeaderExit::Drain {
                    timeout: Some(Duration::from_secs(90)),
                },
                min_containment: Some(Containment::Cgroup),
                pid_namespace: PidNamespace::Private,
                recovery: Some(Recovery::Adopt),
                restart: RestartPolicy {
                    max_restarts: Some(9),
                    ..RestartPolicy::agent()
                },
                output: OutputBound {
                    max_bytes: 2 << 20,
                    on_full: OnOutputFull::HeadTail,
                    on_disk_full: OnDiskFull::Drop,
                },
            }
        );
    }

    #[test]
    fn an_input_may_stay_open() {
        let of = |input: i32| {
            let mut spec = full();
            spec.initial_input = None;
            spec.stdio = Some(Stdio::Pipes(pb::Pipes { input }));
            let mut found = Vec::new();
            let parsed = parse(spec, &mut found).input;
            (
                parsed,
                found.into_iter().map(|v| v.field).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(0), (InputMode::Initial, vec![]));
        assert_eq!(of(1), (InputMode::Initial, vec![]));
        assert_eq!(of(2), (InputMode::Open, vec![]));
        assert_eq!(of(9).1, ["spec.pipes.input"]);
    }

    #[test]
    fn what_is_done_after_a_pause_needs_a_longest_pause() {
        let of = |action: i32| {
            let mut found = Vec::new();
            let policy = pb::PausePolicy {
                max_pause: None,
                on_max_pause: action,
            };
            pause(Some(policy), &mut found);
            found.into_iter().map(|v| v.field).collect::<Vec<_>>()
        };
        assert!(of(0).is_empty());
        assert_eq!(of(2), ["spec.pause.on_max_pause"]);
    }

    #[test]
    fn how_much_output_is_kept_has_a_default_and_bounds() {
        let of = |max_bytes, on_full| {
            let mut spec = full();
            spec.output = Some(pb::OutputPolicy {
                max_bytes,
                on_full,
                on_disk_full: on_full,
            });
            let mut found = Vec::new();
            let parsed = parse(spec, &mut found);
            (
                parsed.output,
                found.into_iter().map(|v| v.field).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(None, 0), (OutputBound::default(), vec![]));
        let size = || vec!["spec.output.max_bytes".to_owned()];
        assert_eq!(of(Some((1 << 20) - 1), 0).1, size());
        assert_eq!(of(Some((1 << 40) + 1), 1).1, size());
        assert!(of(Some(1 << 20), 1).1.is_empty());
        assert_eq!(
            of(None, 9).1,
            ["spec.output.on_full", "spec.output.on_disk_full"]
        );
        let abort = of(None, 3).0;
        assert_eq!(abort.on_full, OnOutputFull::Abort);
        assert_eq!(abort.on_disk_full, OnDiskFull::Abort);
        let mut none = full();
        none.output = None;
        assert_eq!(parse(none, &mut Vec::new()).output, OutputBound::default());
    }

    #[test]
    fn what_is_kept_has_names_but_neither_values_nor_input() {
        let document = document(&full());
        assert!(!document.contains("hush"), "{document}");
        let kept = from_document(&document).expect("a spec");
        let mut wanted = full();
        wanted.initial_input = Some(Bytes::new());
        let vars = &mut wanted.env.as_mut().expect("set above").vars;
        vars.insert("SECRET".to_owned(), String::new());
        assert_eq!(kept, wanted);
    }

    #[test]
    fn a_document_of_a_later_version_is_read_as_far_as_it_is_known() {
        let kept = from_document(r#"{"cwd":"/x","fromTheFuture":{"a":1}}"#).expect("a spec");
        assert_eq!(kept.cwd.as_deref(), Some("/x"));
        assert_eq!(from_document(""), None);
        assert_eq!(from_document("{"), None);
    }

    #[test]
    fn form_and_content_are_found_wrong_together() {
        let spec = pb::RunSpec {
            kind: 99,
            cwd: Some("relative".to_owned()),
            env: Some(pb::Env {
                mode: -1,
                vars: [("A=B".to_owned(), String::new())].into(),
            }),
            stop: Some(pb::StopPolicy {
                grace: Some(prost_types::Duration {
                    seconds: -1,
                    nanos: 0,
                }),
            }),
            timeouts: Some(pb::Timeouts {
                max_runtime: Some(prost_types::Duration {
                    seconds: 0,
                    nanos: -1,
                }),
            }),
            ..pb::RunSpec::default()
        };
        let mut found = Vec::new();
        parse(spec, &mut found);
        let fields: Vec<&str> = found.iter().map(|v| v.field.as_str()).collect();
        for wanted in [
            "spec.kind",
            "spec.stop.grace",
            "spec.timeouts.max_runtime",
            "spec.env.mode",
            "spec.argv.args",
            "spec.cwd",
            "spec.env.vars[\"A=B\"]",
        ] {
            assert!(fields.contains(&wanted), "{wanted} in {fields:?}");
        }
    }

    #[test]
    fn a_drain_timeout_is_for_a_drain_alone() {
        let of = |action: i32, timeout: Option<i64>| {
            let mut found = Vec::new();
            let drain_timeout = timeout.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
            let policy = pb::LeaderExitPolicy {
                action,
                drain_timeout,
            };
            let parsed = on_leader_exit(Some(policy), &mut found);
            let fields: Vec<_> = found.into_iter().map(|v| v.field).collect();
            (parsed, fields)
        };
        let (stop, drain, keep) = (1, 2, 3);
        let timeout = "spec.on_leader_exit.drain_timeout".to_owned();
        assert_eq!(on_leader_exit(None, &mut Vec::new()), LeaderExit::Stop);
        assert_eq!(of(0, None), (LeaderExit::Stop, vec![]));
        assert_eq!(of(stop, Some(1)).1, std::slice::from_ref(&timeout));
        assert_eq!(of(0, Some(1)).1, std::slice::from_ref(&timeout));
        assert_eq!(of(keep, None), (LeaderExit::Keep, vec![]));
        assert_eq!(of(keep, Some(1)).1, std::slice::from_ref(&timeout));
        assert_eq!(
            of(drain, None),
            (LeaderExit::Drain { timeout: None }, vec![])
        );
        assert_eq!(of(drain, Some(-1)).1, [timeout]);
        assert_eq!(of(9, None).1, ["spec.on_leader_exit.action"]);
    }

    fn full() -> pb::RunSpec {
        let text = |s: &str| s.to_owned();
        pb::RunSpec {
            kind: pb::RunKind::Job.into(),
            command: Some(Command::Argv(pb::Argv {
                args: vec![text("sh"), text("-c"), text("cat")],
                raw_args: Vec::new(),
            })),
            cwd: Some(text("/tmp")),
            raw_cwd: None,
            env: Some(pb::Env {
                mode: pb::EnvMode::None.into(),
                vars: [(text("SECRET"), text("hush"))].into(),
            }),
            initial_input: Some(bytes::Bytes::from_static(b"in")),
            labels: [(text("team"), text("a"))].into(),
            stop: Some(pb::StopPolicy {
                grace: Some(prost_types::Duration {
                    seconds: 0,
                    nanos: 500_000_000,
                }),
            }),
            timeouts: Some(pb::Timeouts {
                max_runtime: Some(prost_types::Duration {
                    seconds: 60,
                    nanos: 0,
                }),
            }),
            limits: Some(pb::RunLimits {
                nice: Some(3),
                ..pb::RunLimits::default()
            }),
            pause: Some(pb::PausePolicy {
                max_pause: Some(prost_types::Duration {
                    seconds: 30,
                    nanos: 0,
                }),
                on_max_pause: pb::OnMaxPause::Abort.into(),
            }),
            on_leader_exit: Some(pb::LeaderExitPolicy {
                action: pb::LeaderExitAction::Drain.into(),
                drain_timeout: Some(prost_types::Duration {
                    seconds: 90,
                    nanos: 0,
                }),
            }),
            min_containment: pb::Containment::Cgroup.into(),
            pid_namespace: pb::PidNamespace::Private.into(),
            recovery: pb::RecoveryPolicy::Adopt.into(),
            restart: Some(pb::RestartPolicy {
                preset: pb::RestartPreset::Agent.into(),
                max_restarts: Some(9),
                ..pb::RestartPolicy::default()
            }),
            output: Some(pb::OutputPolicy {
                max_bytes: Some(2 << 20),
                on_full: pb::OutputOverflow::HeadTail.into(),
                on_disk_full: pb::DiskFullAction::Drop.into(),
            }),
            stdio: Some(Stdio::Pipes(pb::Pipes {
                input: pb::InputMode::Initial.into(),
            })),
        }
    }
}
