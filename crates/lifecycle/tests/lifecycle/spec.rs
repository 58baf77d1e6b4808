//! Validity of specs, and the environment of a command.

use kennel_lifecycle::{
    CpuQuota, DefaultGrace, EnvMode, Inherited, InputMode, IoLimit, Knob, LeaderExit, LimitPowers,
    LiveProbe, Liveness, NamePattern, Network, OnMaxPause, PausePolicy, PidNamespace, Readiness,
    ReadyProbe, Recovery, Resource, Rlimit, RunKind, RunLimits, RunSpec, Secret, SecretDelivery,
    SecretSource, Signal, StateProbe, StopAction, TerminalSize, TerminalSpec, UNLIMITED,
    compose_env, labels, ladder::Action, limits,
};
use std::{collections::BTreeMap, time::Duration};

#[test]
fn open_input_excludes_initial_input() {
    let spec = edited(good(), |s| {
        s.command.input = InputMode::Open;
    });
    assert_eq!(spec.violations(), []);
    let both = edited(spec, |s| {
        s.command.initial_input = Some(Vec::new());
    });
    let fields: Vec<_> = both.violations().into_iter().map(|v| v.field).collect();
    assert_eq!(fields, ["spec.initial_input"]);
}

// promise: P-1a
#[test]
fn terminal_refuses_options_it_cannot_honour() {
    let on_terminal = || {
        edited(good(), |s| {
            s.policy.kind = RunKind::Terminal;
            s.command.terminal = Some(TerminalSpec::default());
            s.command.initial_input = None;
            s.policy.on_leader_exit = LeaderExit::Stop;
        })
    };
    assert_eq!(on_terminal().violations(), []);
    assert_eq!(on_terminal().policy.recovery(), Recovery::Terminate);
    let fields = |spec: RunSpec| {
        let found = spec.violations().into_iter();
        found.map(|v| v.field).collect::<Vec<_>>()
    };
    let with = |change: fn(&mut RunSpec)| {
        let mut spec = on_terminal();
        change(&mut spec);
        fields(spec)
    };
    assert_eq!(with(|s| s.command.terminal = None), ["spec.pipes"]);
    assert_eq!(with(|s| s.policy.kind = RunKind::Job), ["spec.terminal"]);
    assert_eq!(
        with(|s| s.command.initial_input = Some(Vec::new())),
        ["spec.initial_input"]
    );
    assert_eq!(
        with(|s| s.policy.recovery = Some(Recovery::Adopt)),
        ["spec.recovery"]
    );
    let kept = with(|s| s.policy.on_leader_exit = LeaderExit::Keep);
    assert_eq!(kept, ["spec.on_leader_exit.action"]);
    let with = |term: &str, rows, cols| {
        let size = TerminalSize { rows, cols };
        let terminal = Some(TerminalSpec {
            term: term.into(),
            size,
        });
        fields(edited(on_terminal(), |s| {
            s.command.terminal = terminal;
        }))
    };
    let longest = "x".repeat(limits::TERM_BYTES_MAX);
    assert!(with(&longest, 1, u16::MAX).is_empty());
    for term in ["", "a b", "a/b", "a\0", "\u{e4}", &format!("{longest}x")] {
        assert_eq!(with(term, 1, 1), ["spec.terminal.term"], "{term:?}");
    }
    assert_eq!(
        with("x", 0, 0),
        ["spec.terminal.rows", "spec.terminal.cols"]
    );
}

#[test]
fn valid_spec_has_no_violations() {
    assert_eq!(good().violations(), []);
    let largest = edited(good(), |s| {
        s.command.cwd = Some(format!("/{}", "d".repeat(limits::CWD_BYTES_MAX - 1)).into());
        s.command.initial_input = Some(vec![0; limits::INITIAL_INPUT_BYTES_MAX]);
        s.policy.stop.grace = Some(limits::GRACE_MAX);
        s.policy.timeouts.max_runtime = Some(limits::TIMEOUT_MAX);
        s.command.argv = vec!["a".repeat(limits::ARG_BYTES_MAX).into()];
        s.command.env = (0..limits::ENV_ENTRIES_MAX)
            .map(|n| (format!("V{n}"), String::new()))
            .collect();
        s.labels = (0..limits::LABELS_MAX)
            .map(|n| {
                (
                    format!("{}/{n:0>63}", "p".repeat(labels::LABEL_PREFIX_BYTES_MAX)),
                    "v".repeat(labels::LABEL_NAME_BYTES_MAX),
                )
            })
            .collect();
    });
    assert_eq!(largest.violations(), []);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list")]
fn all_violations_of_a_spec_are_reported() {
    let spec = edited(RunSpec::default(), |s| {
        s.policy.kind = RunKind::Heartbeat;
        s.command.argv = vec![
            "".into(),
            "a\0b".into(),
            "x".repeat(limits::ARG_BYTES_MAX + 1).into(),
        ];
        s.command.cwd = Some("relative\0".into());
        s.command.env_mode = EnvMode::Minimal;
        s.command.env = map(&[
            ("", "v"),
            ("A=B", "v"),
            ("KENNEL_RUN_ID", "mine"),
            ("NUL", "a\0b"),
            ("BIG", &"x".repeat(limits::ARG_BYTES_MAX)),
        ]);
        s.command.inherited.env = map(&[("KENNEL_RUN_ID", "mine")]);
        s.command.inherited.cwd = Some("relative".into());
        s.command.initial_input = Some(vec![0; limits::INITIAL_INPUT_BYTES_MAX + 1]);
        s.command.input = InputMode::Initial;
        s.command.terminal = None;
        s.labels = map(&[
            ("", "v"),
            ("k", &"v".repeat(labels::LABEL_NAME_BYTES_MAX + 1)),
            ("n", "\0"),
        ]);
        s.policy.stop.grace = Some(limits::GRACE_MAX + Duration::from_nanos(1));
        s.policy.timeouts.max_runtime = Some(Duration::ZERO);
        s.policy.limits = RunLimits {
            rlimits: vec![limit(Resource::Core, 2, 1), limit(Resource::Core, 0, 0)],
            nice: Some(20),
            oom_score_adj: Some(-1001),
            memory_max: Some(1),
            memory_high: Some(2),
            swap_max: Some(u64::MAX),
            pids_max: Some(0),
            cpu_quota: Some(CpuQuota {
                quota: Duration::ZERO,
                period: Duration::from_secs(2),
            }),
            cpu_weight: Some(0),
            io: vec![
                IoLimit {
                    path: "relative".into(),
                    ..IoLimit::default()
                },
                IoLimit {
                    path: "relative".into(),
                    reads: Some(1 << 32),
                    written_bytes: Some(0),
                    ..IoLimit::default()
                },
            ],
        };
        s.policy.on_leader_exit = LeaderExit::Drain {
            timeout: Some(Duration::ZERO),
        };
        s.policy.pause = PausePolicy {
            max_pause: Some(Duration::ZERO),
            on_max_pause: OnMaxPause::Resume,
        };
        s.policy.min_containment = None;
        s.policy.pid_namespace = PidNamespace::Shared;
        s.policy.recovery = None;
        s.policy.restart = kennel_lifecycle::RestartPolicy::default();
        s.policy.output = kennel_lifecycle::OutputBound {
            max_bytes: 1,
            ..Default::default()
        };
    });
    let violations = spec.violations();
    let quota = violations
        .iter()
        .find(|v| v.field == "spec.limits.cpu.quota")
        .expect("it is one");
    assert!(quota.description.ends_with(" microseconds"), "{quota:?}");
    let mut fields: Vec<_> = violations.into_iter().map(|v| v.field).collect();
    fields.sort();
    let expected = [
        "spec.argv.args[0]",
        "spec.argv.args[1]",
        "spec.argv.args[2]",
        "spec.cwd",
        "spec.cwd",
        r#"spec.env.vars[""]"#,
        r#"spec.env.vars["A=B"]"#,
        r#"spec.env.vars["BIG"]"#,
        r#"spec.env.vars["KENNEL_RUN_ID"]"#,
        r#"spec.env.vars["NUL"]"#,
        "spec.inherited.cwd",
        r#"spec.inherited.vars["KENNEL_RUN_ID"]"#,
        "spec.initial_input",
        r#"spec.labels[""]"#,
        r#"spec.labels["k"]"#,
        r#"spec.labels["n"]"#,
        "spec.limits.cpu.period",
        "spec.limits.cpu.quota",
        "spec.limits.cpu.weight",
        "spec.limits.io[0]",
        "spec.limits.io[0].path",
        "spec.limits.io[1].path",
        "spec.limits.io[1].path",
        "spec.limits.io[1].reads_per_second",
        "spec.limits.io[1].written_bytes_per_second",
        "spec.limits.memory.high_bytes",
        "spec.limits.memory.max_bytes",
        "spec.limits.memory.swap_max_bytes",
        "spec.limits.nice",
        "spec.limits.oom_score_adj",
        "spec.limits.pids_max",
        "spec.limits.rlimits[0]",
        "spec.limits.rlimits[1]",
        "spec.on_leader_exit.drain_timeout",
        "spec.output.max_bytes",
        "spec.pause.max_pause",
        "spec.stop.grace",
        "spec.timeouts.max_runtime",
    ];
    assert_eq!(fields, expected);
}

// promise: TM-6, L-1, L-1a
#[test]
fn each_exceeded_bound_names_its_field() {
    let timeout = |max_runtime| {
        edited(good(), |s| {
            s.policy.timeouts.max_runtime = Some(max_runtime);
        })
    };
    let drain = |timeout| {
        edited(good(), |s| {
            s.policy.on_leader_exit = LeaderExit::Drain {
                timeout: Some(timeout),
            };
        })
    };
    let cases: [(RunSpec, &str); 12] = [
        (
            drain(limits::TIMEOUT_MAX + Duration::from_nanos(1)),
            "spec.on_leader_exit.drain_timeout",
        ),
        (timeout(Duration::ZERO), "spec.timeouts.max_runtime"),
        (
            timeout(limits::TIMEOUT_MAX + Duration::from_nanos(1)),
            "spec.timeouts.max_runtime",
        ),
        (
            edited(good(), |s| {
                s.command.argv = vec![];
            }),
            "spec.argv.args",
        ),
        (
            edited(good(), |s| {
                s.command.argv = vec!["x".into(); limits::ARGV_LEN_MAX + 1];
            }),
            "spec.argv.args",
        ),
        (
            edited(good(), |s| {
                s.command.cwd = Some("".into());
            }),
            "spec.cwd",
        ),
        (
            edited(good(), |s| {
                s.command.cwd = Some("tmp".into());
            }),
            "spec.cwd",
        ),
        (
            edited(good(), |s| {
                s.command.cwd = Some("/d".repeat(limits::CWD_BYTES_MAX).into());
            }),
            "spec.cwd",
        ),
        (
            edited(good(), |s| {
                s.command.env = (0..100_000)
                    .map(|n| (format!("V{n}"), String::new()))
                    .collect();
            }),
            "spec.env.vars",
        ),
        (
            edited(good(), |s| {
                let var = |n| (format!("V{n}"), "x".repeat(96 * 1024));
                s.command.inherited.env = (0..32).map(var).collect();
            }),
            "spec",
        ),
        (
            // 3 MiB, although no single argument is too long.
            edited(good(), |s| {
                s.command.argv = vec!["x".repeat(96 * 1024).into(); 32];
            }),
            "spec",
        ),
        (
            edited(good(), |s| {
                s.labels = (0..=limits::LABELS_MAX)
                    .map(|n| (n.to_string(), String::new()))
                    .collect();
            }),
            "spec.labels",
        ),
    ];
    for (spec, field) in cases {
        let fields: Vec<_> = spec.violations().into_iter().map(|v| v.field).collect();
        assert_eq!(fields, [field]);
    }
}

// promise: L-2a, RW-102
#[test]
fn stop_step_waits_must_fit_the_grace() {
    let spec = |grace: Option<u64>| {
        edited(good(), |s| {
            s.policy.stop.grace = grace.map(Duration::from_secs);
            s.policy.stop.steps = vec![StopAction {
                action: Action::Signal(Signal::USR1),
                wait: Duration::from_secs(8),
            }];
        })
    };
    let mut node = DefaultGrace::default();
    assert!(spec(None).violations().is_empty(), "its node decides");
    assert!(spec(None).policy.fill_grace(&node).is_some());
    assert!(spec(Some(9)).violations().is_empty());
    assert!(spec(Some(9)).policy.fill_grace(&node).is_none());
    assert!(!spec(Some(8)).violations().is_empty());
    assert_eq!(node.add(None, Duration::from_secs(9)), Ok(()));
    let mut filled = spec(None);
    assert!(filled.policy.fill_grace(&node).is_none());
    assert_eq!(filled, spec(Some(9)));
    let mut own = spec(Some(8));
    assert!(own.policy.fill_grace(&node).is_some());
    assert_eq!(own, spec(Some(8)));
}

#[test]
fn violation_field_with_hostile_name_is_truncated() {
    let spec = edited(good(), |s| {
        s.command.env = map(&[(&"=".repeat(100_000), "")]);
        s.labels = map(&[(&"l".repeat(100_000), "")]);
    });
    let violations = spec.violations();
    assert_eq!(violations.len(), 2);
    assert!(violations.iter().all(|v| v.field.len() < 100));
}

#[test]
fn server_variables_never_reach_a_run() {
    let own = [
        "KENNEL_STORE",
        "KENNEL_RUN_ID",
        "KENNEL_",
        "PGPASSWORD",
        "PGHOST",
        "DATABASE_URL",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "CREDENTIALS_DIRECTORY",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "SYSTEMD_EXEC_PID",
        "MEMORY_PRESSURE_WATCH",
        "STATE_DIRECTORY",
        "TRIGGER_UNIT",
    ];
    let server: Vec<_> = own.iter().map(|name| pair(name, "secret")).collect();
    let every = ["*".to_owned()];
    for mode in EnvMode::ALL.iter().copied() {
        assert_eq!(
            compose_env(mode, (&server, &every), &BTreeMap::new(), &[]),
            [],
            "{mode:?}"
        );
    }
}

// promise: AC-31
#[test]
fn mode_decides_which_server_variables_pass() {
    let names = [
        "PATH",
        "HOME",
        "LC_ALL",
        "LANG",
        "TZ",
        "EDITOR",
        "PAGER",
        "SSH_AUTH_SOCK",
    ];
    let server: Vec<_> = names.iter().map(|name| pair(name, "s")).collect();
    let taken = |mode| {
        let granted = ["SSH_*".to_owned(), "PAGER".to_owned()];
        let env = compose_env(mode, (&server, &granted), &BTreeMap::new(), &[]);
        env.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(taken(EnvMode::None), Vec::<String>::new());
    assert_eq!(
        taken(EnvMode::Minimal),
        ["HOME", "LANG", "LC_ALL", "PATH", "TZ"]
    );
    assert_eq!(
        taken(EnvMode::InheritAll),
        [
            "EDITOR",
            "HOME",
            "LANG",
            "LC_ALL",
            "PAGER",
            "PATH",
            "SSH_AUTH_SOCK",
            "TZ"
        ]
    );
    assert_eq!(
        taken(EnvMode::InheritNamed),
        [
            "HOME",
            "LANG",
            "LC_ALL",
            "PAGER",
            "PATH",
            "SSH_AUTH_SOCK",
            "TZ"
        ]
    );
}

#[test]
fn caller_environment_overrides_server_but_not_kennel() {
    let server = [pair("PATH", "server"), pair("HOME", "server")];
    let caller = map(&[
        ("PATH", "caller"),
        ("AAA", "caller"),
        ("KENNEL_RUN_ID", "caller"),
        ("PGHOST", "callers-own"),
    ]);
    let ours = [pair("KENNEL_RUN_ID", "ours"), pair("KENNEL_SOCKET", "ours")];
    assert_eq!(
        compose_env(EnvMode::Minimal, (&server, &[]), &caller, &ours),
        [
            // The marker is first, where a scan of the beginning finds it.
            pair("KENNEL_RUN_ID", "ours"),
            pair("AAA", "caller"),
            pair("HOME", "server"),
            pair("KENNEL_SOCKET", "ours"),
            pair("PATH", "caller"),
            pair("PGHOST", "callers-own"),
        ]
    );
}

// promise: K-15
#[test]
fn inherited_values_fill_unset_spec_fields() {
    let inherited = Inherited {
        env: map(&[("A", "own"), ("B", "own"), ("S", "own")]),
        cwd: Some("/home".into()),
    };
    let mut spec = edited(good(), |s| {
        s.command.inherited = inherited.clone();
        s.command.env = map(&[("A", "set")]);
        s.command.cwd = None;
        s.secrets = vec![Secret {
            name: "S".into(),
            source: SecretSource::ServerFile("s".into()),
            delivery: SecretDelivery::Variable,
            trim_newline: false,
        }];
    });
    assert_eq!(spec.violations(), []);
    let env = compose_env(EnvMode::None, (&[], &[]), spec.command.caller_env(), &[]);
    assert_eq!(env, [pair("A", "set"), pair("B", "own"), pair("S", "own")]);
    assert_eq!(spec.command.working_dir(), "/home");
    spec.leave_out_overridden();
    assert_eq!(spec.command.inherited.env, map(&[("B", "own")]));
    spec.command.cwd = Some("/work".into());
    assert_eq!(spec.command.working_dir(), "/work");
    spec.leave_out_overridden();
    assert_eq!(spec.command.inherited.cwd, None);
}

// promise: Q-2
#[test]
fn limit_unsupported_by_host_is_reported() {
    let powers = LimitPowers {
        hard_max: vec![(Resource::OpenFiles, 4096), (Resource::Core, UNLIMITED)],
        nice_min: 5,
        oom_score_adj_min: Some(300),
        knobs: Ok(vec![Knob::PidsMax]),
    };
    let most = RunLimits {
        rlimits: vec![
            limit(Resource::OpenFiles, 0, 4096),
            limit(Resource::Core, UNLIMITED, UNLIMITED),
        ],
        nice: Some(5),
        oom_score_adj: Some(300),
        pids_max: Some(10),
        ..RunLimits::default()
    };
    assert_eq!(most.missing(&powers), []);
    let more = RunLimits {
        rlimits: vec![
            limit(Resource::OpenFiles, 0, 4097),
            // `RLIMIT_CPU` has no known maximum.
            limit(Resource::Cpu, 1, 1),
        ],
        nice: Some(4),
        oom_score_adj: Some(299),
        pids_max: Some(10),
        memory_max: Some(1 << 30),
        ..RunLimits::default()
    };
    let fields = |limits: &RunLimits, powers: &LimitPowers| {
        let missing = limits.missing(powers).into_iter();
        missing.map(|m| m.field).collect::<Vec<_>>()
    };
    let wanted = [
        "spec.limits.rlimits[0]",
        "spec.limits.rlimits[1]",
        "spec.limits.nice",
        "spec.limits.oom_score_adj",
        "spec.limits.memory.max_bytes",
    ];
    assert_eq!(fields(&more, &powers), wanted);
    let none = LimitPowers {
        oom_score_adj_min: None,
        knobs: Err("switched off".into()),
        ..powers
    };
    let wanted = ["spec.limits.oom_score_adj", "spec.limits.pids_max"];
    assert_eq!(fields(&most, &none), wanted);
}

fn limit(resource: Resource, soft: u64, hard: u64) -> Rlimit {
    Rlimit {
        resource,
        soft,
        hard,
    }
}

pub(crate) fn good() -> RunSpec {
    edited(RunSpec::default(), |s| {
        s.policy.kind = RunKind::Job;
        s.command.argv = vec!["true".into()];
    })
}

/// Returns this spec with other values of some fields.
pub(crate) fn edited(mut spec: RunSpec, edit: impl FnOnce(&mut RunSpec)) -> RunSpec {
    edit(&mut spec);
    spec
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(n, v)| pair(n, v)).collect()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

// promise: R-50b
#[test]
fn only_services_are_adopted_by_default() {
    let recovery = |kind, recovery| {
        edited(good(), |s| {
            s.policy.kind = kind;
            s.policy.recovery = recovery;
        })
        .policy
        .recovery()
    };
    for kind in [RunKind::Heartbeat, RunKind::Service, RunKind::Job] {
        for asked in [Recovery::Terminate, Recovery::Adopt] {
            for can in [false, true] {
                assert_eq!(recovery(kind, Some(asked)).on_host(can), asked);
            }
        }
        let unasked = recovery(kind, None);
        let expected = match kind {
            RunKind::Service => Recovery::Adopt,
            _ => Recovery::Terminate,
        };
        assert_eq!(unasked.on_host(true), expected);
        assert_eq!(unasked.on_host(false), Recovery::Terminate);
    }
}

// promise: N-9
#[test]
fn private_pid_namespace_allows_no_detached_process() {
    let refused = |pid_namespace, on_leader_exit| {
        let spec = edited(good(), |s| {
            s.policy.pid_namespace = pid_namespace;
            s.policy.on_leader_exit = on_leader_exit;
        });
        let found = spec.violations().into_iter().map(|v| v.field);
        found.collect::<Vec<_>>()
    };
    let drain = LeaderExit::Drain { timeout: None };
    for policy in [LeaderExit::Stop, drain] {
        assert!(refused(PidNamespace::Private, policy).is_empty());
    }
    assert!(refused(PidNamespace::Shared, LeaderExit::Keep).is_empty());
    assert_eq!(
        refused(PidNamespace::Private, LeaderExit::Keep),
        ["spec.on_leader_exit.action"]
    );
}

// promise: AC-22
#[test]
fn probes_of_ports_need_the_network() {
    let refused = |network, probe: StateProbe| {
        let spec = edited(good(), |s| {
            s.policy.privileges.network = network;
            let (interval, timeout) = (Duration::from_secs(1), Duration::from_secs(1));
            s.policy.readiness = Some(Box::new(Readiness {
                probe: ReadyProbe::State(probe.clone()),
                interval,
                timeout,
                start_timeout: None,
            }));
            s.policy.liveness = Some(Box::new(Liveness {
                probe: LiveProbe::State(probe),
                interval,
                timeout,
                failure_threshold: 1,
            }));
        });
        let found = spec.violations().into_iter().map(|v| v.field);
        found.collect::<Vec<_>>()
    };
    let command = || StateProbe::Exec(vec!["true".to_owned()]);
    assert!(refused(Network::Host, StateProbe::Tcp(80)).is_empty());
    assert!(refused(Network::None, command()).is_empty());
    assert_eq!(
        refused(Network::None, StateProbe::Tcp(80)),
        ["spec.readiness", "spec.liveness"]
    );
}

// promise: K-10
#[test]
fn name_pattern_matches_wildcards() {
    let has =
        |pattern: &str, name: &str| NamePattern::new(pattern).expect("a pattern").matches(name);
    for (pattern, name, expected) in [
        ("web", "web", true),
        ("web", "web-1", false),
        ("web-*", "web-", true),
        ("web-?", "web-1", true),
        ("web-?", "web-12", false),
        ("*-1", "web-1", true),
        ("*a*b*", "xaybz", true),
        ("*a*b", "xaybz", false),
        ("**", "x", true),
        ("?*", "x", true),
        ("a?b*c", "axbbc", true),
        ("W*", "web", false),
    ] {
        assert_eq!(has(pattern, name), expected, "{pattern} {name}");
    }
    // No pattern takes long, whatever the name.
    assert!(!has(&"a*".repeat(60), &"a".repeat(59)));
    assert_eq!(NamePattern::new("we!b"), None);
    assert_eq!(NamePattern::new(""), None);
    let one = NamePattern::new("a_b?").expect("a pattern");
    assert_eq!((one.like(), one.literal()), ("a!_b_".to_owned(), None));
}
