//! Specs from the contract and back.

use super::*;
use kennel_lifecycle::{
    CapabilitySet, Containment, Inherited, Isolation, LiveProbe, Liveness, RestartPolicy,
    RunLimits, StateProbe,
};
use kennel_supervisor::{ComparedSpecs, SpecPart};
use std::{sync::Arc, time::Duration};

#[test]
fn spec_parses_every_field() {
    let mut found = Vec::new();
    let parsed = parse(full(), &mut found);
    assert_eq!(found, []);
    assert_eq!(parsed, parsed_full());
}

fn parsed_full() -> RunSpec {
    let text = |s: &str| s.to_owned();
    let mut policy = Policy {
        kind: RunKind::Job,
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
        success_exit_codes: vec![143],
        umask: Some(0o027),
        liveness: Some(Box::new(Liveness {
            probe: LiveProbe::State(StateProbe::Tcp(80)),
            interval: Duration::from_secs(3),
            timeout: Duration::from_secs(2),
            failure_threshold: 4,
        })),
        privileges: Privileges {
            user: Some(RunUser {
                uid: 7,
                gid: 8,
                groups: vec![9],
            }),
            no_new_privileges: true,
            drop_capabilities: CapabilitySet::ALL,
            sandbox: Some(Sandbox {
                readable_paths: vec!["/srv".to_owned()],
                writable_paths: vec!["/work".to_owned()],
            }),
            seccomp: Seccomp::Baseline,
            network: Network::Host,
        },
        min_isolation: Some(Isolation::Processes),
        ..Policy::default()
    };
    policy.stop.grace = Some(Duration::from_millis(500));
    policy.timeouts.max_runtime = Some(Duration::from_mins(1));
    policy.timeouts.inactivity = Some(Duration::from_secs(30));
    RunSpec {
        parent: Some(kennel_lifecycle::Parent {
            run: "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().expect("an id"),
            on_end: kennel_lifecycle::OnParentEnd::Keep,
        }),
        command: CommandSpec {
            argv: ["sh", "-c", "cat"].map(Into::into).to_vec(),
            cwd: Some("/tmp".into()),
            env_mode: EnvMode::None,
            env: [(text("SECRET"), text("hush"))].into(),
            inherited: Inherited {
                env: [(text("EDITOR"), text("hush"))].into(),
                cwd: None,
            },
            initial_input: Some(b"in".to_vec()),
            ..CommandSpec::default()
        },
        policy,
        labels: [(text("team"), text("a"))].into(),
        api_access: kennel_lifecycle::ApiAccess::None,
        secrets: vec![kennel_lifecycle::Secret {
            name: "PASSWORD".to_owned(),
            source: kennel_lifecycle::SecretSource::ServerFile("db".to_owned()),
            delivery: kennel_lifecycle::SecretDelivery::File,
            trim_newline: true,
        }],
        node_limits: Vec::new(),
        ..RunSpec::default()
    }
}

#[test]
fn pipes_input_mode_is_parsed() {
    let of = |input: i32| {
        let mut spec = full();
        spec.initial_input = None;
        spec.stdio = Some(Stdio::Pipes(pb::Pipes { input }));
        let mut found = Vec::new();
        let parsed = parse(spec, &mut found).command.input;
        (parsed, fields(found))
    };
    assert_eq!(of(0), (InputMode::Initial, vec![]));
    assert_eq!(of(1), (InputMode::Initial, vec![]));
    assert_eq!(of(2), (InputMode::Open, vec![]));
    assert_eq!(of(9).1, ["spec.pipes.input"]);
}

// promise: TM-8
#[test]
fn action_after_a_pause_needs_max_pause() {
    let of = |action: i32| {
        let mut found = Vec::new();
        let policy = pb::PausePolicy {
            max_pause: None,
            on_max_pause: action,
        };
        pause(Some(policy), &mut found);
        fields(found)
    };
    assert!(of(0).is_empty());
    assert_eq!(of(2), ["spec.pause.on_max_pause"]);
}

#[test]
fn output_limit_has_a_default_and_bounds() {
    let of = |max_bytes, on_full| {
        let mut spec = full();
        spec.output = Some(pb::OutputPolicy {
            max_bytes,
            on_full,
            on_disk_full: on_full,
        });
        let mut found = Vec::new();
        let parsed = parse(spec, &mut found);
        (parsed.policy.output, fields(found))
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
    assert_eq!(
        parse(none, &mut Vec::new()).policy.output,
        OutputBound::default()
    );
}

// promise: A-13
#[test]
fn returned_spec_omits_env_values_and_input() {
    let given = shown(&parsed_full().recorded()).expect("it is described");
    let mut wanted = full();
    wanted.initial_input = Some(Bytes::new());
    let vars = &mut wanted.env.as_mut().expect("set above").vars;
    vars.insert("SECRET".to_owned(), String::new());
    let own = wanted.inherited.as_mut().expect("set above");
    own.vars = [("EDITOR".to_owned(), String::new())].into();
    // The spec sets `cwd`.
    own.cwd = None;
    // A preset is replaced by its values, and defaults are omitted.
    wanted.restart = restart::shown(&parsed_full().policy.restart);
    wanted.stdio = None;
    assert_eq!(given, wanted);
    assert_eq!(shown(&RecordedSpec::default()), None);
}

// promise: K-6a
#[test]
fn fields_that_differ_are_named_without_values() {
    let [one, other] = ["1", "2"].map(|value| {
        let mut spec = parsed_full();
        spec.command
            .env
            .insert("SECRET".to_owned(), value.to_owned());
        spec
    });
    let fields = |requested: &RunSpec, different: Option<&[SpecPart]>| {
        different_fields(&ComparedSpecs {
            existing: Arc::new(one.recorded()),
            requested: Arc::new(requested.recorded()),
            different: different.map(Vec::from),
        })
    };
    assert_eq!(fields(&one, Some(&[])), [""; 0]);
    let values = Some(&[SpecPart::EnvValues, SpecPart::SentSecrets][..]);
    assert_eq!(fields(&other, values), ["spec.env.vars", "spec.secrets"]);
    // With unknown digests, every incomparable field is named.
    let all = ["spec.env.vars", "spec.initial_input", "spec.secrets"];
    assert_eq!(fields(&other, None), all);
    let mut relabelled = other.clone();
    relabelled.labels.clear();
    relabelled.command.inherited = Inherited::default();
    assert_eq!(fields(&relabelled, None), ["spec.labels"]);
    assert_eq!(
        fields(&relabelled, values),
        ["spec.env.vars", "spec.secrets"]
    );
    let both = [SpecPart::Recorded, SpecPart::EnvValues];
    assert_eq!(
        fields(&relabelled, Some(&both)),
        ["spec.labels", "spec.env.vars"]
    );
    assert_eq!(fields(&other, Some(&both)), ["spec", "spec.env.vars"]);
}

/// Returns specs that contain, between them, every value of every enum of a spec.
fn specs() -> Vec<RunSpec> {
    let edited = |edit: &dyn Fn(&mut RunSpec)| {
        let mut spec = RunSpec::default();
        spec.command.argv = vec!["true".into()];
        edit(&mut spec);
        spec
    };
    let mut specs = vec![parsed_full(), edited(&|_| ())];
    for kind in RunKind::ALL {
        specs.push(edited(&|s| {
            s.policy.kind = *kind;
            s.command.terminal =
                (*kind == RunKind::Terminal).then(kennel_lifecycle::TerminalSpec::default);
        }));
    }
    // A remote caller's spec shows the requested mode, which is never `InheritNamed`.
    let asked = |mode: &&EnvMode| **mode != EnvMode::InheritNamed;
    for mode in EnvMode::ALL.iter().filter(asked) {
        specs.push(edited(&|s| s.command.env_mode = *mode));
    }
    for mode in InputMode::ALL {
        specs.push(edited(&|s| s.command.input = *mode));
    }
    for on_full in OnOutputFull::ALL {
        specs.push(edited(&|s| s.policy.output.on_full = *on_full));
    }
    for on_disk_full in OnDiskFull::ALL {
        specs.push(edited(&|s| s.policy.output.on_disk_full = *on_disk_full));
    }
    for action in OnMaxPause::ALL {
        specs.push(edited(&|s| {
            s.policy.pause.max_pause = Some(Duration::from_secs(1));
            s.policy.pause.on_max_pause = *action;
        }));
    }
    for by in Containment::ALL {
        specs.push(edited(&|s| s.policy.min_containment = Some(*by)));
    }
    for namespace in PidNamespace::ALL {
        specs.push(edited(&|s| s.policy.pid_namespace = *namespace));
    }
    for network in Network::ALL {
        specs.push(edited(&|s| s.policy.privileges.network = *network));
    }
    for recovery in [Recovery::Terminate, Recovery::Adopt] {
        specs.push(edited(&|s| s.policy.recovery = Some(recovery)));
    }
    for mode in kennel_lifecycle::RestartMode::ALL {
        specs.push(edited(&|s| s.policy.restart.mode = *mode));
    }
    for exit in [
        LeaderExit::Stop,
        LeaderExit::Keep,
        LeaderExit::Drain { timeout: None },
    ] {
        specs.push(edited(&|s| s.policy.on_leader_exit = exit));
    }
    specs
}

// promise: A-13
#[test]
fn each_spec_value_survives_a_round_trip() {
    for spec in specs() {
        let mut found = Vec::new();
        assert_eq!(parse(message(&spec), &mut found), spec);
        assert_eq!(found, []);
    }
}

#[test]
fn syntax_and_value_violations_are_reported_together() {
    let spec = pb::RunSpec {
        kind: 99,
        cwd: Some("relative".to_owned()),
        env: Some(pb::Env {
            mode: -1,
            vars: [("A=B".to_owned(), String::new())].into(),
        }),
        stop: Some(pb::StopPolicy {
            grace: Some(seconds(-1)),
            ..pb::StopPolicy::default()
        }),
        timeouts: Some(pb::Timeouts {
            max_runtime: Some(prost_types::Duration {
                seconds: 0,
                nanos: -1,
            }),
            ..pb::Timeouts::default()
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

// promise: W-3
#[test]
fn drain_timeout_is_refused_without_drain() {
    let of = |action: i32, timeout: Option<i64>| {
        let mut found = Vec::new();
        let policy = pb::LeaderExitPolicy {
            action,
            drain_timeout: timeout.map(seconds),
        };
        let parsed = on_leader_exit(Some(policy), &mut found);
        (parsed, fields(found))
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

fn fields(found: Vec<Violation>) -> Vec<String> {
    found.into_iter().map(|v| v.field).collect()
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

fn of_client() -> pb::Inherited {
    let var = |name: &str| (name.to_owned(), "hush".to_owned());
    pb::Inherited {
        vars: [var("EDITOR"), var("SECRET")].into(),
        cwd: Some("/home".to_owned()),
        raw_cwd: None,
    }
}

fn full() -> pb::RunSpec {
    let text = |s: &str| s.to_owned();
    pb::RunSpec {
        // API access excludes a user, and has a separate test.
        api_access: 0,
        secrets: vec![pb::Secret {
            name: text("PASSWORD"),
            source: Some(pb::secret::Source::ServerFile(text("db"))),
            delivery: pb::SecretDelivery::File.into(),
            trim_newline: true,
        }],
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
        inherited: Some(of_client()),
        initial_input: Some(bytes::Bytes::from_static(b"in")),
        labels: [(text("team"), text("a"))].into(),
        stop: Some(pb::StopPolicy {
            grace: Some(prost_types::Duration {
                seconds: 0,
                nanos: 500_000_000,
            }),
            ..pb::StopPolicy::default()
        }),
        timeouts: Some(pb::Timeouts {
            max_runtime: Some(seconds(60)),
            inactivity: Some(seconds(30)),
            ..pb::Timeouts::default()
        }),
        limits: Some(pb::RunLimits {
            nice: Some(3),
            ..pb::RunLimits::default()
        }),
        pause: Some(pb::PausePolicy {
            max_pause: Some(seconds(30)),
            on_max_pause: pb::OnMaxPause::Abort.into(),
        }),
        on_leader_exit: Some(pb::LeaderExitPolicy {
            action: pb::LeaderExitAction::Drain.into(),
            drain_timeout: Some(seconds(90)),
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
        readiness: None,
        liveness: Some(pb::Liveness {
            probe: Some(pb::liveness::Probe::Tcp(pb::TcpProbe { port: 80 })),
            interval: Some(seconds(3)),
            timeout: Some(seconds(2)),
            failure_threshold: Some(4),
        }),
        success_exit_codes: vec![143],
        umask: Some(0o027),
        parent: Some(pb::Parent {
            run_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
            on_end: pb::OnParentEnd::Keep.into(),
        }),
        privileges: Some(pb::Privileges {
            user: Some(pb::RunUser {
                user_id: 7,
                group_id: Some(8),
                supplementary_group_ids: vec![9],
            }),
            no_new_privileges: true,
            drop_capabilities: vec!["ALL".to_owned()],
            sandbox: Some(pb::Sandbox {
                readable_paths: vec!["/srv".to_owned()],
                writable_paths: vec!["/work".to_owned()],
            }),
            seccomp_profile: pb::SeccompProfile::Baseline.into(),
            network: pb::Network::Unspecified.into(),
        }),
        min_isolation: pb::Isolation::Processes.into(),
        output_rules: Vec::new(),
        stdio: Some(Stdio::Pipes(pb::Pipes {
            input: pb::InputMode::Initial.into(),
        })),
        ..pb::RunSpec::default()
    }
}

#[test]
fn stop_signal_round_trips_and_kill_is_refused() {
    let of = |name: &str| {
        let mut spec = full();
        spec.stop.get_or_insert_default().signal = name.to_owned();
        let mut found = Vec::new();
        let parsed = parse(spec, &mut found);
        let shown = message(&parsed).stop.map(|stop| stop.signal);
        (shown, fields(found))
    };
    assert_eq!(of("SIGINT"), (Some("SIGINT".to_owned()), vec![]));
    assert_eq!(of(""), (Some(String::new()), vec![]));
    for refused in ["SIGKILL", "SIGSTOP", "SIGFUN"] {
        assert_eq!(of(refused).1, ["spec.stop.signal"]);
    }
}

fn readiness() -> pb::Readiness {
    let span = |seconds| Some(prost_types::Duration { seconds, nanos: 1 });
    pb::Readiness {
        probe: Some(pb::readiness::Probe::Http(pb::HttpProbe {
            port: 8080,
            path: "/health?a=b".into(),
        })),
        interval: span(2),
        timeout: span(3),
        start_timeout: span(30),
    }
}

/// Returns one rule of each action.
fn output_rules() -> Vec<pb::OutputRule> {
    use pb::{
        line_pattern::Pattern,
        output_rule::{Action, Annotate, Emit, Ready, Result},
    };
    let literal = || Pattern::Literal("a".into());
    let json = pb::JsonPattern {
        pointer: "/type".into(),
        equals: "\"result\"".into(),
        captures: [("id".into(), "/id".into())].into(),
    };
    let result = Result {
        after: Some(prost_types::Duration::default()),
        grace: Some(prost_types::Duration::default()),
    };
    let rules = [
        (literal(), Action::Ready(Ready {})),
        (
            Pattern::Regex("^a$".into()),
            Action::Activity(pb::Activity::AwaitingInput.into()),
        ),
        (Pattern::Json(json), Action::Annotate(Annotate {})),
        (literal(), Action::Event(Emit {})),
        (literal(), Action::Result(result)),
    ];
    let rule = |(at, (pattern, action)): (usize, (Pattern, Action))| pb::OutputRule {
        name: format!("rule-{at}"),
        pattern: Some(pb::LinePattern {
            pattern: Some(pattern),
        }),
        streams: (at == 1)
            .then(|| pb::OutputStream::Stderr.into())
            .into_iter()
            .collect(),
        action: Some(action),
    };
    rules.into_iter().enumerate().map(rule).collect()
}

#[test]
fn readiness_and_output_rules_round_trip() {
    let mut found = Vec::new();
    let spec = pb::RunSpec {
        readiness: Some(Box::new(readiness())),
        output_rules: output_rules(),
        ..full()
    };
    let parsed = parse(spec, &mut found);
    assert_eq!(found, []);
    let back = message(&parsed);
    assert_eq!(back.readiness.as_deref(), Some(&readiness()));
    assert_eq!(back.output_rules, output_rules());
}
