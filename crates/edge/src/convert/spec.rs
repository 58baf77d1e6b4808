//! Specs: parsed on the way in, returned without their secrets. Both directions of a field are in this file.

use super::{api_access, command, containment, limits, restart, rules, secrets, terminal, time};
use crate::{
    enums::{self, known, mapped, parsed, unknown_number},
    pb::{
        self,
        run_spec::{Command, Stdio},
        stop_action::Action as Step,
    },
};
use bytes::Bytes;
use kennel_lifecycle::{
    CapabilitySet, CommandSpec, EnvMode, InputMode, LeaderExit, Network, OnDiskFull, OnMaxPause,
    OnOutputFull, OnParentEnd, OutputBound, Parent, PausePolicy, PidNamespace, Policy, Privileges,
    RecordedSpec, Recovery, RunId, RunKind, RunSpec, RunUser, Sandbox, Seccomp, Signal, StopAction,
    StopPolicy, Timeouts, Violation, ladder::Action, limits as bounds,
};
use kennel_proto::json;
use kennel_supervisor::{ComparedSpecs, SpecPart};

/// Whether any count is far too large.
pub(crate) fn has_too_many(spec: &pb::RunSpec, found: &mut Vec<Violation>) -> bool {
    let before = found.len();
    let (args, raw_args) = match &spec.command {
        Some(Command::Argv(argv)) => (argv.args.len(), argv.raw_args.len()),
        None => (0, 0),
    };
    let vars = spec.env.as_ref().map_or(0, |env| env.vars.len());
    let own_vars = spec.inherited.as_ref().map_or(0, |own| own.vars.len());
    for (field, count, most) in [
        ("spec.argv.args", args, bounds::ARGV_LEN_MAX),
        ("spec.argv.raw_args", raw_args, bounds::ARGV_LEN_MAX),
        ("spec.env.vars", vars, bounds::ENV_ENTRIES_MAX),
        ("spec.inherited.vars", own_vars, bounds::ENV_ENTRIES_MAX),
        ("spec.labels", spec.labels.len(), bounds::LABELS_MAX),
        (
            "spec.annotations",
            spec.annotations.len(),
            bounds::ANNOTATIONS_MAX,
        ),
        ("spec.secrets", spec.secrets.len(), bounds::SECRETS_MAX),
    ] {
        if count > most {
            let why = format!("must have at most {most} entries");
            found.push(Violation::new(field, why));
        }
    }
    found.len() > before
}

/// Converts the spec to the lifecycle's types; all its violations are added to `found`.
pub(crate) fn parse(spec: pb::RunSpec, found: &mut Vec<Violation>) -> RunSpec {
    let form = command::ByteFields::of(&spec);
    let named = kind("spec.kind", spec.kind, found);
    let (kind, terminal) = terminal::parse(named, spec.kind == 0, spec.stdio.as_ref(), found);
    let env = spec.env.unwrap_or_default();
    let mut parsed = RunSpec {
        name: Some(spec.name).filter(|name| !name.is_empty()),
        command: CommandSpec {
            argv: command::argv(spec.command, found),
            cwd: command::directory(spec.cwd, ("spec.raw_cwd", spec.raw_cwd), found),
            env_mode: env_mode("spec.env.mode", env.mode, found),
            env: env.vars,
            inherited: command::inherited(spec.inherited, found),
            initial_input: spec.initial_input.map(|input| input.to_vec()),
            input: input_mode(spec.stdio.as_ref(), found),
            terminal,
        },
        policy: Policy {
            kind,
            stop: stop(spec.stop, found),
            timeouts: timeouts(spec.timeouts, found),
            limits: limits::parse(spec.limits.as_ref(), found),
            on_leader_exit: on_leader_exit(spec.on_leader_exit, found),
            pause: pause(spec.pause, found),
            min_containment: containment::least(spec.min_containment, found),
            pid_namespace: pid_namespace("spec.pid_namespace", spec.pid_namespace, found),
            recovery: recovery(spec.recovery, found),
            restart: restart::parse(spec.restart.as_ref(), found),
            output: output(spec.output, found),
            readiness: rules::readiness(spec.readiness, found),
            output_rules: rules::rules(spec.output_rules, found),
            liveness: rules::liveness(spec.liveness, found),
            success_exit_codes: restart::codes(
                "spec.success_exit_codes",
                &spec.success_exit_codes,
                found,
            ),
            privileges: privileges(spec.privileges, found),
            umask: spec.umask,
            needs: Vec::new(),
            min_isolation: containment::least_isolation(spec.min_isolation, found),
        },
        labels: spec.labels,
        annotations: spec.annotations,
        parent: parent(spec.parent.as_ref(), found),
        api_access: api_access::parse("spec.api_access", spec.api_access, found),
        secrets: secrets::parse(spec.secrets, found),
        node_limits: Vec::new(),
    };
    let wrong = parsed.violations().into_iter();
    found.extend(wrong.map(|violation| form.name(violation)));
    parsed.leave_out_overridden();
    parsed
}

/// Returns the spec for reads: without default values, except for the kind. Absent: no caller has described the run.
pub(crate) fn shown(spec: &RecordedSpec) -> Option<pb::RunSpec> {
    spec.is_described().then(|| message(spec))
}

fn message(spec: &RunSpec) -> pb::RunSpec {
    let RunSpec {
        name,
        command,
        policy,
        labels,
        annotations,
        parent,
        api_access,
        secrets,
        node_limits,
    } = spec;
    let (cwd, raw_cwd) = command::shown_cwd(command.cwd.as_deref());
    pb::RunSpec {
        name: name.clone().unwrap_or_default(),
        kind: enums::kind(policy.kind).into(),
        command: Some(command::shown(&command.argv)),
        cwd,
        raw_cwd,
        env: shown_env(command),
        inherited: differing(&command.inherited, command::shown_inherited),
        initial_input: command.initial_input.clone().map(Bytes::from),
        labels: labels.clone(),
        annotations: annotations.clone(),
        stop: shown_stop(&policy.stop),
        timeouts: shown_timeouts(policy.timeouts),
        limits: limits::shown(&policy.limits, node_limits),
        on_leader_exit: shown_leader_exit(policy.on_leader_exit),
        pause: shown_pause(policy.pause),
        min_containment: policy
            .min_containment
            .map_or(0, |by| enums::containment(by).into()),
        pid_namespace: shown_pid_namespace(policy.pid_namespace).into(),
        recovery: shown_recovery(policy.recovery).into(),
        restart: restart::shown(&policy.restart),
        output: shown_output(policy.output),
        readiness: rules::shown_readiness(policy.readiness.as_deref()),
        output_rules: rules::shown_rules(&policy.output_rules),
        liveness: rules::shown_liveness(policy.liveness.as_deref()),
        success_exit_codes: restart::shown_codes(&policy.success_exit_codes),
        privileges: shown_privileges(&policy.privileges),
        umask: policy.umask,
        min_isolation: containment::shown_isolation(policy.min_isolation).into(),
        stdio: shown_stdio(command),
        parent: parent.as_ref().map(shown_parent),
        api_access: api_access::shown(*api_access).into(),
        secrets: secrets::shown(secrets),
    }
}

/// Returns the paths in which a requested spec differs from that of a run, without values. Where it is not known which
/// unrecorded values differ: those that the request has.
pub(crate) fn different_fields(specs: &ComparedSpecs) -> Vec<String> {
    let [one, requested] =
        [&specs.existing, &specs.requested].map(|spec| message(&spec.compared()));
    let parts = specs.different.as_deref();
    let mut recorded = Vec::new();
    // Otherwise only values that the node has filled in differ.
    if parts.is_none_or(|parts| parts.contains(&SpecPart::Recorded)) {
        recorded = json::differing("spec", &one, &requested, bounds::DIFFERING_FIELDS_MAX);
    }
    let has_vars = requested.env.is_some_and(|env| !env.vars.is_empty());
    let has_input = requested.initial_input.is_some();
    let has_secrets = !requested.secrets.is_empty();
    let others = [
        (SpecPart::Recorded, "spec", false),
        (SpecPart::EnvValues, "spec.env.vars", has_vars),
        (SpecPart::Input, "spec.initial_input", has_input),
        (SpecPart::SentSecrets, "spec.secrets", has_secrets),
    ];
    let is_named = |path: &str| {
        let mut named = recorded.iter();
        named.any(|named| named.starts_with(path) || path.starts_with(&**named))
    };
    let others = others.iter().filter(|(part, path, is_set)| {
        let differs = parts.map_or(recorded.is_empty() && *is_set, |parts| parts.contains(part));
        differs && !is_named(path)
    });
    let others = others.map(|(_, path, _)| (*path).to_owned());
    let all = recorded.iter().cloned().chain(others);
    all.take(bounds::DIFFERING_FIELDS_MAX).collect()
}

/// Returns the message if the value differs from the default.
fn differing<T: Default + PartialEq, M>(value: &T, message: impl FnOnce(&T) -> M) -> Option<M> {
    (*value != T::default()).then(|| message(value))
}

fn stop(policy: Option<pb::StopPolicy>, found: &mut Vec<Violation>) -> StopPolicy {
    let policy = policy.unwrap_or_default();
    StopPolicy {
        grace: time::parse_duration("spec.stop.grace", policy.grace.as_ref(), found),
        signal: stop_signal("spec.stop.signal", &policy.signal, found),
        steps: stop_steps(policy.steps, found),
    }
}

fn stop_steps(steps: Vec<pb::StopAction>, found: &mut Vec<Violation>) -> Vec<StopAction> {
    let steps = steps.into_iter().take(bounds::STOP_ACTIONS_MAX + 1);
    let steps = steps.enumerate().filter_map(|(at, step)| {
        let field = format!("spec.stop.steps[{at}]");
        let wait = time::parse_duration(&format!("{field}.wait"), step.wait.as_ref(), found);
        let action = match step.action {
            Some(Step::CloseInput(_)) => Some(Action::CloseInput),
            Some(Step::Input(bytes)) => Some(Action::Input(bytes.to_vec())),
            Some(Step::Exec(exec)) => Some(Action::Exec(exec.args)),
            Some(Step::Signal(name)) => {
                let is_empty = name.is_empty().then_some("NONE");
                stop_signal(&format!("{field}.signal"), is_empty.unwrap_or(&name), found)
                    .map(Action::Signal)
            }
            None => {
                let why = "must have one of `close_input`, `input`, `signal`, `exec`";
                found.push(Violation::new(field, why));
                None
            }
        };
        let action = action?;
        let wait = wait.unwrap_or(match action {
            Action::Exec(_) => bounds::STOP_COMMAND_MAX,
            Action::CloseInput | Action::Input(_) | Action::Signal(_) => std::time::Duration::ZERO,
        });
        Some(StopAction { action, wait })
    });
    steps.collect()
}

fn shown_step(step: &StopAction) -> pb::StopAction {
    pb::StopAction {
        action: Some(match &step.action {
            Action::CloseInput => Step::CloseInput(pb::stop_action::CloseInput {}),
            Action::Input(bytes) => Step::Input(bytes.clone().into()),
            Action::Signal(signal) => Step::Signal(signal.to_string()),
            Action::Exec(args) => Step::Exec(pb::stop_action::Exec { args: args.clone() }),
        }),
        wait: (!step.wait.is_zero()).then(|| time::duration(step.wait)),
    }
}

fn shown_stop(policy: &StopPolicy) -> Option<pb::StopPolicy> {
    differing(policy, |policy| pb::StopPolicy {
        grace: policy.grace.map(time::duration),
        signal: policy.signal.map(|s| s.to_string()).unwrap_or_default(),
        steps: policy.steps.iter().map(shown_step).collect(),
    })
}

fn stop_signal(field: &str, name: &str, found: &mut Vec<Violation>) -> Option<Signal> {
    if name.is_empty() {
        return None;
    }
    let signal = name.parse().ok();
    if signal.is_none() {
        let why = "must be the name of a signal, such as SIGINT or SIGRTMIN+3";
        found.push(Violation::new(field, why));
    }
    signal
}

fn privileges(privileges: Option<pb::Privileges>, found: &mut Vec<Violation>) -> Privileges {
    let privileges = privileges.unwrap_or_default();
    let mut drop_capabilities = CapabilitySet::NONE;
    for name in &privileges.drop_capabilities {
        match name.parse::<CapabilitySet>() {
            Ok(named) => drop_capabilities = drop_capabilities.union(named),
            Err(unknown) => found.push(Violation::new(
                "spec.privileges.drop_capabilities",
                unknown.to_string(),
            )),
        }
    }
    let profile = privileges.seccomp_profile;
    Privileges {
        user: privileges.user.map(|user| RunUser {
            uid: user.user_id,
            gid: user.group_id.unwrap_or(user.user_id),
            groups: user.supplementary_group_ids,
        }),
        no_new_privileges: privileges.no_new_privileges,
        drop_capabilities,
        sandbox: privileges.sandbox.map(|sandbox| Sandbox {
            readable_paths: sandbox.readable_paths,
            writable_paths: sandbox.writable_paths,
        }),
        seccomp: seccomp("spec.privileges.seccomp_profile", profile, found),
        network: network("spec.privileges.network", privileges.network, found),
    }
}

fn shown_privileges(privileges: &Privileges) -> Option<pb::Privileges> {
    differing(privileges, |privileges| pb::Privileges {
        user: privileges.user.as_ref().map(|user| pb::RunUser {
            user_id: user.uid,
            group_id: Some(user.gid),
            supplementary_group_ids: user.groups.clone(),
        }),
        no_new_privileges: privileges.no_new_privileges,
        drop_capabilities: names_of(privileges.drop_capabilities),
        sandbox: privileges.sandbox.as_ref().map(|sandbox| pb::Sandbox {
            readable_paths: sandbox.readable_paths.clone(),
            writable_paths: sandbox.writable_paths.clone(),
        }),
        seccomp_profile: shown_seccomp(privileges.seccomp).into(),
        network: shown_network(privileges.network).into(),
    })
}

parsed! { fn seccomp(SeccompProfile) -> Seccomp, fn shown_seccomp { Unspecified => None, Baseline } }
parsed! { fn network(Network) -> Network, fn shown_network { Unspecified | Host => Host, None } }

fn names_of(set: CapabilitySet) -> Vec<String> {
    set.names().map(str::to_owned).collect()
}

fn parent(parent: Option<&pb::Parent>, found: &mut Vec<Violation>) -> Option<Parent> {
    let parent = parent?;
    let on_end = on_parent_end("spec.parent.on_end", parent.on_end, found);
    Some(Parent {
        run: run_named("spec.parent.run_id", &parent.run_id, found)?,
        on_end,
    })
}

parsed! { fn on_parent_end(OnParentEnd) -> OnParentEnd, fn shown_on_end { Unspecified | End => End, Keep } }

fn shown_parent(parent: &Parent) -> pb::Parent {
    pb::Parent {
        run_id: parent.run.to_string(),
        on_end: shown_on_end(parent.on_end).into(),
    }
}

fn timeouts(timeouts: Option<pb::Timeouts>, found: &mut Vec<Violation>) -> Timeouts {
    let timeouts = timeouts.unwrap_or_default();
    let max_runtime = timeouts.max_runtime.as_ref();
    let inactivity = timeouts.inactivity.as_ref();
    let most = timeouts.extension_max.as_ref();
    Timeouts {
        max_runtime: time::parse_duration("spec.timeouts.max_runtime", max_runtime, found),
        inactivity: time::parse_duration("spec.timeouts.inactivity", inactivity, found),
        counts_awaiting: timeouts.count_while_awaiting_input,
        extension_max: time::parse_duration("spec.timeouts.extension_max", most, found),
    }
}

fn shown_timeouts(timeouts: Timeouts) -> Option<pb::Timeouts> {
    differing(&timeouts, |timeouts| pb::Timeouts {
        max_runtime: timeouts.max_runtime.map(time::duration),
        inactivity: timeouts.inactivity.map(time::duration),
        count_while_awaiting_input: timeouts.counts_awaiting,
        extension_max: timeouts.extension_max.map(time::duration),
    })
}

fn shown_env(command: &CommandSpec) -> Option<pb::Env> {
    let mode = match command.env_mode {
        EnvMode::Minimal => pb::EnvMode::Unspecified,
        EnvMode::InheritAll | EnvMode::InheritNamed => pb::EnvMode::InheritAll,
        EnvMode::None => pb::EnvMode::None,
    };
    let is_said = mode != pb::EnvMode::Unspecified || !command.env.is_empty();
    is_said.then(|| pb::Env {
        mode: mode.into(),
        vars: command.env.clone(),
    })
}

fn shown_stdio(command: &CommandSpec) -> Option<Stdio> {
    match (&command.terminal, command.input) {
        (Some(terminal), _) => Some(Stdio::Terminal(terminal::shown(terminal))),
        (None, InputMode::Open) => Some(Stdio::Pipes(pb::Pipes {
            input: pb::InputMode::Open.into(),
        })),
        (None, InputMode::Initial) => None,
    }
}

/// Parses a kind of the contract.
pub(crate) fn kind(field: &str, number: i32, found: &mut Vec<Violation>) -> RunKind {
    let kind = enums::kind_of(known(field, number, "RunKind", found));
    kind.unwrap_or(RunKind::Heartbeat)
}

fn output(policy: Option<pb::OutputPolicy>, found: &mut Vec<Violation>) -> OutputBound {
    let policy = policy.unwrap_or_default();
    let default = OutputBound::default();
    let field = "spec.output.on_full";
    let on_full = known(field, policy.on_full, "OutputOverflow", found);
    let field = "spec.output.on_disk_full";
    let on_disk_full = known(field, policy.on_disk_full, "DiskFullAction", found);
    OutputBound {
        max_bytes: policy.max_bytes.unwrap_or(default.max_bytes),
        on_full: on_full_of(on_full).unwrap_or(default.on_full),
        on_disk_full: on_disk_full_of(on_disk_full).unwrap_or(default.on_disk_full),
    }
}

fn shown_output(bound: OutputBound) -> Option<pb::OutputPolicy> {
    differing(&bound, |bound| pb::OutputPolicy {
        max_bytes: Some(bound.max_bytes),
        on_full: on_full(bound.on_full).into(),
        on_disk_full: on_disk_full(bound.on_disk_full).into(),
    })
}

mapped! { fn on_full(OnOutputFull) -> OutputOverflow, fn on_full_of { Rotate HeadTail Abort Block } }
mapped! { fn on_disk_full(OnDiskFull) -> DiskFullAction, fn on_disk_full_of { Block Drop Abort } }

fn input_mode(stdio: Option<&Stdio>, found: &mut Vec<Violation>) -> InputMode {
    let Some(Stdio::Pipes(pipes)) = stdio else {
        return InputMode::Initial;
    };
    pipes_input("spec.pipes.input", pipes.input, found)
}

parsed! { fn pipes_input(InputMode) -> InputMode { Unspecified | Initial => Initial, Open } }
parsed! { fn env_mode(EnvMode) -> EnvMode { Unspecified | Minimal => Minimal, InheritAll, None } }
parsed! {
    fn pid_namespace(PidNamespace) -> PidNamespace, fn shown_pid_namespace
    { Unspecified | Shared => Shared, Private }
}
parsed! { fn on_max_pause(OnMaxPause) -> OnMaxPause, fn shown_max_pause { Unspecified | Resume => Resume, Abort } }

fn recovery(number: i32, found: &mut Vec<Violation>) -> Option<Recovery> {
    match known("spec.recovery", number, "RecoveryPolicy", found) {
        pb::RecoveryPolicy::Unspecified => None,
        pb::RecoveryPolicy::Terminate => Some(Recovery::Terminate),
        pb::RecoveryPolicy::Adopt => Some(Recovery::Adopt),
    }
}

/// Returns the recovery policy that a client may request; the core's third value is the default of a kind and not among
/// these.
fn shown_recovery(recovery: Option<Recovery>) -> pb::RecoveryPolicy {
    match recovery {
        Some(Recovery::Terminate) => pb::RecoveryPolicy::Terminate,
        Some(Recovery::Adopt) => pb::RecoveryPolicy::Adopt,
        Some(Recovery::AdoptWherePossible) | None => pb::RecoveryPolicy::Unspecified,
    }
}

fn shown_pause(policy: PausePolicy) -> Option<pb::PausePolicy> {
    differing(&policy, |policy| pb::PausePolicy {
        max_pause: policy.max_pause.map(time::duration),
        on_max_pause: shown_max_pause(policy.on_max_pause).into(),
    })
}

fn pause(policy: Option<pb::PausePolicy>, found: &mut Vec<Violation>) -> PausePolicy {
    const ACTION: &str = "spec.pause.on_max_pause";
    let policy = policy.unwrap_or_default();
    let max_pause = policy.max_pause.as_ref();
    if max_pause.is_none() && policy.on_max_pause != 0 {
        found.push(Violation::new(ACTION, "is for a pause with max_pause only"));
    }
    PausePolicy {
        max_pause: time::parse_duration("spec.pause.max_pause", max_pause, found),
        on_max_pause: on_max_pause(ACTION, policy.on_max_pause, found),
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

fn shown_leader_exit(policy: LeaderExit) -> Option<pb::LeaderExitPolicy> {
    let (action, timeout) = match policy {
        LeaderExit::Stop => return None,
        LeaderExit::Drain { timeout } => (pb::LeaderExitAction::Drain, timeout),
        LeaderExit::Keep => (pb::LeaderExitAction::Keep, None),
    };
    Some(pb::LeaderExitPolicy {
        action: action.into(),
        drain_timeout: timeout.map(time::duration),
    })
}

/// Parses the run id in a field.
pub(crate) fn run_named(
    field: impl Into<String>,
    id: &str,
    found: &mut Vec<Violation>,
) -> Option<RunId> {
    let run = id.parse::<RunId>();
    run.map_err(|error| found.push(Violation::new(field, error.to_string())))
        .ok()
}

#[cfg(test)]
mod tests;
