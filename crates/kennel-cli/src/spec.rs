//! The typed flags of `run` and `spawn`, converted to the contract.

use super::{command, run_env, run_input, secrets};
use crate::{
    args::{EnvModeArg, OnConflictArg, SpecArgs},
    failure::{Failure, because, note},
    values::StopStepFlag,
};
use kennel_client::Surroundings;
use kennel_lifecycle::{USER_VARIABLES, limits::INITIAL_INPUT_BYTES_MAX};
use kennel_linux::own_streams::StandardInput;
use kennel_proto::pb::{self, output_rule::Action};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};

/// Makes the request of `kennel run`: like a child in the shell the command has this environment and this standard
/// input.
pub(crate) fn of_run(args: SpecArgs, here: &Surroundings) -> Result<pb::SpawnRequest, Failure> {
    let mode = args.env_mode.unwrap_or(EnvModeArg::Inherit);
    let (has_cwd, tty, no_stdin) = (args.cwd.is_some(), args.tty, args.no_stdin);
    let mut here = here.clone();
    if has_cwd {
        // The caller's PWD would name another directory.
        here.env.remove("PWD");
    }
    if tty {
        // The command has its own terminal, which --term describes.
        for name in ["TERM", "COLUMNS", "LINES"] {
            here.env.remove(name);
        }
    }
    if mode == EnvModeArg::Inherit {
        for name in &here.skipped {
            note(&format_args!(
                "the variable {name} is not UTF-8 and is not passed on"
            ));
        }
    }
    let mut request = request(args, mode, &here)?;
    if let Some(spec) = request.spec.as_mut().filter(|_| !no_stdin) {
        run_input::by_default(spec);
    }
    Ok(request)
}

/// Makes the request of `kennel spawn`, whose command outlives the caller and takes nothing from it.
pub(crate) fn of_spawn(args: SpecArgs, here: &Surroundings) -> Result<pb::SpawnRequest, Failure> {
    let mode = args.env_mode.unwrap_or(EnvModeArg::Minimal);
    request(args, mode, here)
}

/// Makes the request, with an id of its own: an interrupted start can then be aborted or requested again.
fn request(
    args: SpecArgs,
    env_mode: EnvModeArg,
    here: &Surroundings,
) -> Result<pb::SpawnRequest, Failure> {
    let (cwd, raw_cwd) = command::directory(args.cwd.as_deref())?;
    let raw_cwd = raw_cwd.map(Into::into);
    let mut left_out = secrets::variables(&args.secrets);
    if args.fields.has("user") {
        left_out.extend(USER_VARIABLES);
    }
    let vars = run_env::inherited(env_mode, &left_out, here);
    let env = run_env::typed(env_mode, &args.env_file, args.env, here)?;
    let initial_input = match &args.input {
        Some(file) => Some(input(file)?.into()),
        None => None,
    };
    let mut spec = args.fields.spec()?;
    spec.command = Some(pb::run_spec::Command::Argv(command::argv(args.argv)));
    let inherited = spec.inherited.insert(pb::Inherited {
        vars,
        ..pb::Inherited::default()
    });
    if args.cwd.is_some() {
        (spec.cwd, spec.raw_cwd) = (cwd, raw_cwd);
    } else {
        (inherited.cwd, inherited.raw_cwd) = (cwd, raw_cwd);
    }
    spec.env = Some(env);
    if initial_input.is_some() {
        spec.initial_input = initial_input;
    }
    let steps = stop_steps(args.pre_stop.as_deref(), args.stop_steps)?;
    if !steps.is_empty() {
        spec.stop.get_or_insert_default().steps = steps;
    }
    let io = io_limits([
        (args.io_read_bps, |limit| &mut limit.read_bytes_per_second),
        (args.io_write_bps, |limit| {
            &mut limit.written_bytes_per_second
        }),
        (args.io_read_iops, |limit| &mut limit.reads_per_second),
        (args.io_write_iops, |limit| &mut limit.writes_per_second),
    ]);
    if !io.is_empty() {
        spec.limits.get_or_insert_default().io = io;
    }
    if let Some(line) = args.question_line {
        let asks = Action::Activity(pb::Activity::AwaitingInput.into());
        spec.output_rules.push(line_rule("question", line, asks));
    }
    if let Some(line) = args.result_line {
        let after = span(args.result_after, "time after the result")?;
        let result = Action::Result(pb::output_rule::Result { after, grace: None });
        spec.output_rules.push(line_rule("result", line, result));
    }
    if args.tty {
        spec.set_kind(pb::RunKind::Terminal);
        let terminal = || pb::run_spec::Stdio::Terminal(pb::Terminal::default());
        spec.stdio.get_or_insert_with(terminal);
    } else if args.stdin {
        let input = pb::InputMode::Open.into();
        spec.stdio = Some(pb::run_spec::Stdio::Pipes(pb::Pipes { input }));
    }
    secrets::add(args.secrets, here, &mut spec)?;
    let new_id = || ulid::Ulid::generate().to_string();
    let id = args.run_id.or_else(|| args.key.is_none().then(new_id));
    let on_name_conflict = match args.on_conflict {
        Some(OnConflictArg::Return) => pb::OnNameConflict::Return,
        Some(OnConflictArg::Fail) | None => pb::OnNameConflict::Unspecified,
    };
    Ok(pb::SpawnRequest {
        run_id: id.unwrap_or_default(),
        validate_only: false,
        spec: Some(spec),
        request_key: args.key.unwrap_or_default(),
        on_name_conflict: on_name_conflict.into(),
    })
}

fn line_rule(name: &str, line: String, action: Action) -> pb::OutputRule {
    let pattern = pb::line_pattern::Pattern::Regex(line);
    pb::OutputRule {
        name: name.to_owned(),
        pattern: Some(pb::LinePattern {
            pattern: Some(pattern),
        }),
        action: Some(action),
        ..pb::OutputRule::default()
    }
}

/// Returns the actions, each with the waits after it.
fn stop_steps(
    pre_stop: Option<&str>,
    typed: Vec<StopStepFlag>,
) -> Result<Vec<pb::StopAction>, Failure> {
    let first = pre_stop.map(|script| pb::StopAction {
        action: Some(crate::values::exec(script)),
        wait: None,
    });
    let mut steps: Vec<pb::StopAction> = first.into_iter().collect();
    let mut waits = Duration::ZERO;
    for step in typed {
        match (step, steps.last_mut()) {
            (StopStepFlag::Action(action), _) => {
                waits = Duration::ZERO;
                steps.push(pb::StopAction {
                    action: Some(action),
                    wait: None,
                });
            }
            (StopStepFlag::Wait(wait), Some(last)) => {
                waits = waits.saturating_add(wait);
                last.wait = span(Some(waits), "wait of a stop")?;
            }
            (StopStepFlag::Wait(_), None) => {
                let why = "the first --stop-step cannot be a wait: there is nothing to wait for";
                return Err(Failure::new(why));
            }
        }
    }
    Ok(steps)
}

pub(super) fn span<T: TryFrom<Duration>>(
    time: Option<Duration>,
    name: &str,
) -> Result<Option<T>, Failure> {
    let too_long = |_| Failure::new(format!("the {name} is too long"));
    time.map(|time| time.try_into().map_err(too_long))
        .transpose()
}

/// Values of one flag by path, and their field.
type IoValues = (Vec<(String, u64)>, fn(&mut pb::IoLimit) -> &mut Option<u64>);

/// Returns one limit for each path, in the order in which they were given.
fn io_limits(flags: [IoValues; 4]) -> Vec<pb::IoLimit> {
    let mut limits: Vec<pb::IoLimit> = Vec::new();
    for (values, field) in flags {
        for (path, value) in values {
            let at = limits.iter().position(|limit| limit.path == path);
            let at = at.unwrap_or_else(|| {
                limits.push(pb::IoLimit {
                    path,
                    ..pb::IoLimit::default()
                });
                limits.len() - 1
            });
            *field(&mut limits[at]) = Some(value);
        }
    }
    limits
}

/// Reads this file, up to the size that a spec permits.
pub(crate) fn input(file: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = if file == Path::new("-") {
        at_most(StandardInput)
    } else {
        File::open(file).and_then(at_most)
    };
    let name = file.display();
    let bytes = bytes.map_err(because(format_args!("cannot read input from {name}")))?;
    if bytes.len() > INITIAL_INPUT_BYTES_MAX {
        return Err(Failure::new(format!(
            "input from {name} is longer than {INITIAL_INPUT_BYTES_MAX} bytes"
        ))
        .hint("give the command the name of a file instead"));
    }
    Ok(bytes)
}

/// Reads one byte more than permitted, so that the caller sees the excess.
fn at_most(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source
        .take(INITIAL_INPUT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, args::Cli};
    use clap::Parser as _;

    fn args(line: &str) -> SpecArgs {
        let words = ["kennel", "spawn"].into_iter();
        let cli = Cli::try_parse_from(words.chain(line.split_whitespace()));
        match cli.expect("it is well formed").command {
            Command::Spawn(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn spec(line: &str) -> pb::RunSpec {
        let request = of_spawn(args(line), &Surroundings::default()).map_err(|f| f.to_string());
        request.expect("it is accepted").spec.expect("it is set")
    }

    #[test]
    fn spawn_flags_reach_the_request() {
        let spec = spec(
            "--grace 500ms -l a=1 -l b=2 --env X=y=z --cwd /tmp --kind job --on-leader-exit drain \
            --drain-timeout 2m --max-pause 3m --on-max-pause abort --min-containment cgroup \
            --pid-namespace private --recovery adopt -- ls -l",
        );
        assert_eq!(spec.kind(), pb::RunKind::Job);
        assert_eq!(spec.min_containment(), pb::Containment::Cgroup);
        assert_eq!(spec.pid_namespace(), pb::PidNamespace::Private);
        assert_eq!(spec.recovery(), pb::RecoveryPolicy::Adopt);
        assert_eq!(spec.cwd.as_deref(), Some("/tmp"));
        assert_eq!(spec.labels.len(), 2);
        let env = spec.env.expect("it is set");
        assert_eq!(env.vars.get("X").map(String::as_str), Some("y=z"));
        let grace = spec.stop.and_then(|s| s.grace).expect("it is set");
        assert_eq!((grace.seconds, grace.nanos), (0, 500_000_000));
        let policy = spec.on_leader_exit.expect("it is set");
        assert_eq!(policy.action(), pb::LeaderExitAction::Drain);
        assert_eq!(policy.drain_timeout.map(|t| t.seconds), Some(120));
        let pause = spec.pause.expect("it is set");
        assert_eq!(pause.max_pause.map(|t| t.seconds), Some(180));
        assert_eq!(pause.on_max_pause(), pb::OnMaxPause::Abort);
        let Some(pb::run_spec::Command::Argv(argv)) = spec.command else {
            panic!("no argv");
        };
        assert_eq!(argv.args, ["ls", "-l"]);
    }

    #[test]
    fn restart_flags_reach_the_request() {
        let words = "--restart on-failure --restart-delay 500ms --restart-max-delay 9s --restart-max 4 \
            --restart-min-uptime 30s -- ls";
        let policy = spec(words).restart.expect("it is set");
        assert_eq!(policy.mode(), pb::RestartMode::OnFailure);
        assert_eq!(policy.delay.expect("it is set").nanos, 500_000_000);
        assert_eq!(policy.max_delay.map(|t| t.seconds), Some(9));
        assert_eq!(policy.min_uptime.map(|t| t.seconds), Some(30));
        assert_eq!(policy.max_restarts, Some(4));
        let presets = [
            ("agent", pb::RestartPreset::Agent),
            ("keepalive", pb::RestartPreset::Keepalive),
        ];
        for (word, preset) in presets {
            let policy = spec(&format!("--restart {word} ls"))
                .restart
                .expect("it is set");
            assert_eq!((policy.preset(), policy.mode), (preset, 0));
        }
        assert_eq!(spec("ls").restart, None);
    }

    #[test]
    fn terminal_flags_reach_the_request() {
        let words = "--tty --rows 24 --cols 80 --term vt100 -- ls";
        let of = spec(words);
        assert_eq!(of.kind(), pb::RunKind::Terminal);
        let terminal = pb::Terminal {
            rows: Some(24),
            cols: Some(80),
            term: "vt100".into(),
        };
        assert_eq!(of.stdio, Some(pb::run_spec::Stdio::Terminal(terminal)));
        let default = Some(pb::run_spec::Stdio::Terminal(pb::Terminal::default()));
        assert_eq!(spec("-t ls").stdio, default);
    }

    #[test]
    fn limit_flags_reach_the_request() {
        let words = "--limit nofile=10:20 --limit core=0 --nice -5 --oom-score-adj 500 \
            --memory-max 512M --memory-high 256M --swap-max 0 --pids-max 100 --cpus 1.5 --cpu-weight 50 -- ls";
        let limits = spec(words).limits.expect("it is set");
        assert_eq!(limits.rlimits.len(), 2);
        assert_eq!(limits.rlimits[0].hard, Some(20));
        assert_eq!((limits.nice, limits.oom_score_adj), (Some(-5), Some(500)));
        let memory = limits.memory.expect("it is set");
        assert_eq!(memory.max_bytes, Some(512 << 20));
        assert_eq!(memory.high_bytes, Some(256 << 20));
        assert_eq!(memory.swap_max_bytes, Some(0));
        assert_eq!(limits.pids_max, Some(100));
        let cpu = limits.cpu.expect("it is set");
        assert_eq!(cpu.quota.expect("it is set").nanos, 150_000_000);
        assert_eq!(cpu.weight, Some(50));
        assert_eq!(spec("ls").limits, None);
    }

    #[test]
    fn working_directory_is_the_callers_and_absolute() {
        let here = std::env::current_dir().expect("a test has one");
        let of = |line| {
            let spec = spec(line);
            (spec.cwd, spec.inherited.expect("it is set").cwd)
        };
        assert_eq!(of("ls"), (None, here.to_str().map(str::to_owned)));
        let below = here.join("x").to_str().map(str::to_owned);
        assert_eq!(of("--cwd x ls"), (below, None));
    }

    #[test]
    fn each_request_has_a_new_id() {
        let id = || {
            let request = of_spawn(args("ls"), &Surroundings::default());
            request.expect("it is accepted").run_id
        };
        let (one, other) = (id(), id());
        assert_ne!(one, other);
        assert!(one.parse::<kennel_lifecycle::RunId>().is_ok(), "{one}");
    }

    #[test]
    fn input_file_beyond_limit_is_refused() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("in");
        let line = format!("--input {} cat", file.display());
        std::fs::write(&file, b"a\0b")?;
        assert_eq!(spec(&line).initial_input.as_deref(), Some(&b"a\0b"[..]));
        std::fs::write(&file, vec![0; INITIAL_INPUT_BYTES_MAX + 1])?;
        let refused = of_spawn(args(&line), &Surroundings::default()).map_err(|f| f.to_string());
        assert!(refused.is_err_and(|f| f.contains("is longer than")));
        Ok(())
    }
}
