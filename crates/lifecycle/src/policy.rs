//! The policy of a run: its treatment while it runs, and the way it is ended.

use crate::{
    Containment, Deadline, DefaultGrace, DefaultLimits, EndReason, Exit, Isolation, LiveProbe,
    Liveness, Network, Outcome, OutputBound, OutputRule, Privileges, Readiness, ReadyProbe,
    RestartPolicy, RuleAction, RunLimits, Signal, StateProbe, Violation,
    ladder::{Action, StopAction, StopPlan},
    limits,
    names::{named, sparse},
    rules,
    violation::{count_at_most, fault_of_timeout},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

sparse! {
    /// The policy of one run, given with its spec and never changed. Server, keeper and shim hold this very value and
    /// query it; no other type has a copy of a field of it.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Policy {
        /// Kind of work; decides the defaults of some of the others.
        pub kind: RunKind,
        /// Plan for the end of the run.
        pub stop: StopPolicy,
        /// Time limits.
        pub timeouts: Timeouts,
        /// Resource limits.
        pub limits: RunLimits,
        /// Policy for the rest of the tree when the leader exits by itself.
        pub on_leader_exit: LeaderExit,
        /// Limit of a pause.
        pub pause: PausePolicy,
        /// Minimum containment; absent: any.
        pub min_containment: Option<Containment>,
        /// Pid namespace of the command.
        pub pid_namespace: PidNamespace,
        /// Policy when the whole service dies; absent: the default of its kind.
        pub recovery: Option<Recovery>,
        /// Policy of restarts.
        pub restart: RestartPolicy,
        /// Bound on its stored output.
        pub output: OutputBound,
        /// Condition under which the run counts as ready; absent: once its command runs.
        pub readiness: Option<Box<Readiness>>,
        /// Actions on lines of its output.
        pub output_rules: Vec<OutputRule>,
        /// Exit codes beside 0 that count as success.
        pub success_exit_codes: Vec<u8>,
        /// Condition under which the run counts as live once it is ready; absent: always.
        pub liveness: Option<Box<Liveness>>,
        /// User and privileges of its command.
        pub privileges: Privileges,
        /// File mode creation mask of its command; absent: 022.
        pub umask: Option<u32>,
        /// Minimum isolation; absent: that of its sandbox on this host, if it has one.
        pub min_isolation: Option<Isolation>,
        /// Features without which acting on the run is wrong ([`Need`](crate::Need)), by the server that has recorded
        /// it. The digest of a spec does not cover them: it is made before.
        pub needs: Vec<String>,
    }
}

impl Policy {
    /// Returns the grace period in force.
    pub fn grace(&self) -> Duration {
        self.stop.grace.unwrap_or(limits::GRACE_DEFAULT)
    }

    /// Gives the run the grace of its node for its kind, where its spec names none. Returns why its stop steps do not
    /// fit the grace in force.
    pub fn fill_grace(&mut self, node: &DefaultGrace) -> Option<Violation> {
        let grace = self.stop.grace.or_else(|| node.of(self.kind));
        self.stop.grace = grace;
        self.stop.check_waits(self.grace())
    }

    /// Gives the run the limits of its node for its kind that its spec does not have. Returns their names.
    pub fn fill_limits(&mut self, node: &DefaultLimits) -> Vec<String> {
        self.limits.fill_fitting(&node.of(self.kind))
    }

    /// Returns the policy for when the whole service dies. Only the kind `service` continues by default.
    pub fn recovery(&self) -> Recovery {
        self.recovery.unwrap_or(match self.kind {
            RunKind::Service => Recovery::AdoptWherePossible,
            RunKind::Heartbeat | RunKind::Terminal | RunKind::Job => Recovery::Terminate,
        })
    }

    /// Returns the run's own plan: carried out on the rest of the tree when the leader exits, and on all of it when a
    /// limit is reached or the service dies.
    pub fn stop_plan(&self) -> StopPlan {
        self.stop_plan_within(self.grace())
    }

    /// Returns the run's own plan within another grace.
    pub fn stop_plan_within(&self, grace: Duration) -> StopPlan {
        self.adapt(StopPlan::abort(grace), None)
    }

    /// Whether a sign other than its start shows that the run is ready.
    pub fn has_ready_sign(&self) -> bool {
        let is_ready = |rule: &OutputRule| rule.action == RuleAction::Ready;
        self.readiness.is_some() || self.output_rules.iter().any(is_ready)
    }

    /// Whether the command may send notices by `sd_notify(3)`.
    pub fn takes_notices(&self) -> bool {
        self.is_ready_by_notice() || self.watchdog().is_some()
    }

    /// Whether the command itself reports that it is ready.
    pub fn is_ready_by_notice(&self) -> bool {
        self.readiness
            .as_ref()
            .is_some_and(|readiness| readiness.probe == ReadyProbe::Notify)
    }

    /// Returns how long the command may take to report that, where it does itself: the keeper keeps that time.
    pub fn notice_due_within(&self) -> Option<Duration> {
        let readiness = self.readiness.as_ref()?;
        (readiness.probe == ReadyProbe::Notify).then_some(readiness.start_timeout)?
    }

    /// Returns this limit of time, where an attempt has it and it can be extended: a pause is ended by a resume.
    pub fn extendable(&self, limit: Deadline) -> Option<Duration> {
        match limit {
            Deadline::MaxRuntime => self.timeouts.max_runtime,
            Deadline::Inactivity => self.timeouts.inactivity,
            Deadline::StartTimeout => self.readiness.as_ref()?.start_timeout,
            Deadline::MaxPause => None,
        }
    }

    /// Whether the server counts a limit of time that the command's notices extend.
    pub fn server_counts_time(&self) -> bool {
        let start = self.extendable(Deadline::StartTimeout);
        self.timeouts.inactivity.is_some() || start.is_some() && !self.is_ready_by_notice()
    }

    /// Returns the longest time between two watchdog signs of the command; absent: it gives none.
    pub fn watchdog(&self) -> Option<Duration> {
        match self.liveness.as_ref()?.probe {
            LiveProbe::Watchdog(time) => Some(time),
            LiveProbe::State(_) => None,
        }
    }

    /// Returns every rule on lines of output: that of the readiness first.
    pub fn line_rules(&self) -> Vec<OutputRule> {
        rules::all(self.readiness.as_deref(), &self.output_rules)
    }

    /// Returns the outcome as this policy counts it: an exit with one of the success codes is a success, and retains
    /// its code.
    pub fn judge(&self, outcome: Outcome) -> Outcome {
        let succeeded = |code: i32| {
            self.success_exit_codes
                .iter()
                .any(|c| i32::from(*c) == code)
        };
        match (&outcome.reason, outcome.exit) {
            (EndReason::Exited, Some(Exit::Code(code))) if succeeded(code) => Outcome {
                reason: EndReason::SuccessExit,
                ..outcome
            },
            _ => outcome,
        }
    }

    /// Adapts this plan to a run of this policy. `at_shutdown`: the first signal of a shutdown of its node, where that has
    /// another one.
    pub fn adapt(&self, plan: StopPlan, at_shutdown: Option<Signal>) -> StopPlan {
        let at_shutdown = at_shutdown.filter(|_| plan.is_shutdown());
        let mut plan = match self.kind {
            RunKind::Terminal => plan.on_terminal(),
            RunKind::Heartbeat | RunKind::Service | RunKind::Job => plan,
        };
        let signal = self.stop.signal.or(at_shutdown);
        if let (Some(signal), Some(first)) = (signal, plan.steps.first_mut()) {
            first.action = Action::Signal(signal);
        }
        plan.behind(&self.stop.steps, self.grace())
    }

    /// Adds the violations of the policy.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        self.stop.check(found);
        let max_runtime = self.timeouts.max_runtime;
        check_timeout("spec.timeouts.max_runtime", max_runtime, found);
        let inactivity = self.timeouts.inactivity;
        check_timeout("spec.timeouts.inactivity", inactivity, found);
        // An `extension_max` of zero forbids extensions.
        let extension = self.timeouts.extension_max.filter(|most| !most.is_zero());
        check_timeout("spec.timeouts.extension_max", extension, found);
        self.limits.check(found);
        check_timeout("spec.pause.max_pause", self.pause.max_pause, found);
        self.restart.check(found);
        self.output.check(found);
        if let Some(readiness) = &self.readiness {
            readiness.check(&self.output_rules, found);
        }
        rules::check(&self.output_rules, found);
        if let Some(liveness) = &self.liveness {
            liveness.check(found);
        }
        self.check_umask(found);
        self.check_success(found);
        self.check_commands(found);
        self.privileges.check(found);
        self.check_network(found);
        self.check_leader_exit(found);
    }

    /// Checks probes of ports, which the server makes on the host's loopback addresses.
    fn check_network(&self, found: &mut Vec<Violation>) {
        if self.privileges.network == Network::Host {
            return;
        }
        let has_port = |probe: &StateProbe| !matches!(probe, StateProbe::Exec(_));
        let ready = self.readiness.as_ref().map(|r| &r.probe);
        let live = self.liveness.as_ref().map(|l| &l.probe);
        let fields = [
            (
                matches!(ready, Some(ReadyProbe::State(probe)) if has_port(probe)),
                "spec.readiness",
            ),
            (
                matches!(live, Some(LiveProbe::State(probe)) if has_port(probe)),
                "spec.liveness",
            ),
        ];
        let why = "the ports of a run without a network cannot be probed: use a command, a line or a notification";
        let wrong = fields.into_iter().filter(|(is_wrong, _)| *is_wrong);
        found.extend(wrong.map(|(_, field)| Violation::new(field, why)));
    }

    /// Checks helper commands: one in the run's tree is a child of its shim, which is in no private pid namespace.
    fn check_commands(&self, found: &mut Vec<Violation>) {
        if self.pid_namespace != PidNamespace::Private {
            return;
        }
        let why = "cannot be in a private pid namespace";
        let fields = self.fields_of_commands();
        found.extend(fields.map(|field| Violation::new(field, why)));
    }

    /// Whether commands beside the run's own may be started in it: those of probes and of its stop.
    pub fn has_other_commands(&self) -> bool {
        self.fields_of_commands().next().is_some()
    }

    /// Returns the fields that name such commands.
    fn fields_of_commands(&self) -> impl Iterator<Item = &'static str> {
        let ready = self.readiness.as_ref().map(|r| &r.probe);
        let ready = matches!(ready, Some(ReadyProbe::State(StateProbe::Exec(_))));
        let is_command = |step: &StopAction| matches!(step.action, Action::Exec(_));
        let stop = self.stop.steps.iter().any(is_command);
        let live = self.liveness.as_ref().map(|l| &l.probe);
        let live = matches!(live, Some(LiveProbe::State(StateProbe::Exec(_))));
        let all = [
            (ready, "spec.readiness.exec"),
            (stop, "spec.stop.steps"),
            (live, "spec.liveness.exec"),
        ];
        all.into_iter()
            .filter(|(is_there, _)| *is_there)
            .map(|(_, field)| field)
    }

    fn check_umask(&self, found: &mut Vec<Violation>) {
        if self.umask.is_some_and(|mask| mask > limits::UMASK_MAX) {
            found.push(Violation::new("spec.umask", "must be at most 0777 (511)"));
        }
    }

    fn check_success(&self, found: &mut Vec<Violation>) {
        const FIELD: &str = "spec.success_exit_codes";
        let count = self.success_exit_codes.len();
        let most = limits::SUCCESS_EXIT_CODES_MAX;
        count_at_most(FIELD, count, most, "entries", found);
        if self.success_exit_codes.contains(&0) {
            found.push(Violation::new(
                FIELD,
                "must not have 0, which always is success",
            ));
        }
    }

    fn check_leader_exit(&self, found: &mut Vec<Violation>) {
        if let LeaderExit::Drain { timeout } = self.on_leader_exit {
            check_timeout("spec.on_leader_exit.drain_timeout", timeout, found);
        }
        if self.on_leader_exit != LeaderExit::Keep {
            return;
        }
        let mut wrong = |why| found.push(Violation::new("spec.on_leader_exit.action", why));
        if self.pid_namespace == PidNamespace::Private {
            wrong("no process can be kept in a private pid namespace: it ends with the run");
        }
        if self.restart.restarts() {
            wrong(
                "kept processes would be there beside the next attempt: restart must be RESTART_MODE_NEVER",
            );
        }
    }
}

fn check_timeout(field: &str, time: Option<Duration>, found: &mut Vec<Violation>) {
    found.extend(fault_of_timeout(time).map(|why| Violation::new(field, why)));
}

named! {
    /// Kind of work of a run; decides the defaults of recovery.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum RunKind {
        /// One turn of an agent: orphans are ended.
        #[default]
        Heartbeat = "heartbeat",
        /// A long-lived service: it outlives the server and the keeper, where that is possible.
        Service = "service",
        /// An interactive terminal.
        Terminal = "terminal",
        /// A background job.
        Job = "job",
    }
}

/// Field of the actions of a stop.
const STOP_STEPS: &str = "spec.stop.steps";
/// Why no stop begins with a signal.
const UNFIT_STOP_SIGNAL: &str =
    "cannot be SIGKILL, which ends every stop, nor SIGSTOP, which ends nothing";

sparse! {
    /// Plan for the end of a run.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct StopPolicy {
        /// Time between the first polite signal and SIGKILL; absent: [`limits::GRACE_DEFAULT`].
        pub grace: Option<Duration>,
        /// First signal of every stop; absent: that of the plan.
        pub signal: Option<Signal>,
        /// Actions before that signal, in order.
        pub steps: Vec<StopAction>,
    }
}

impl StopPolicy {
    /// Returns the policy with this grace and defaults otherwise.
    pub fn within(grace: Duration) -> Self {
        Self {
            grace: Some(grace),
            ..Self::default()
        }
    }

    fn check(&self, found: &mut Vec<Violation>) {
        if self.grace.is_some_and(|g| g > limits::GRACE_MAX) {
            found.push(Violation::new(
                "spec.stop.grace",
                "must be at most 24 hours",
            ));
        }
        if self.signal.is_some_and(|signal| !signal.is_polite()) {
            found.push(Violation::new("spec.stop.signal", UNFIT_STOP_SIGNAL));
        }
        self.check_steps(found);
        // The run's node provides a grace that the spec does not name.
        found.extend(self.grace.and_then(|grace| self.check_waits(grace)));
    }

    fn check_steps(&self, found: &mut Vec<Violation>) {
        let (count, most) = (self.steps.len(), limits::STOP_ACTIONS_MAX);
        count_at_most(STOP_STEPS, count, most, "entries", found);
        for (at, step) in self.steps.iter().enumerate() {
            let why = match &step.action {
                Action::Signal(signal) if !signal.is_polite() => UNFIT_STOP_SIGNAL,
                Action::Input(bytes) if bytes.is_empty() => "must have bytes to write",
                Action::Input(bytes) if bytes.len() > limits::STOP_INPUT_BYTES_MAX => {
                    "must have at most 1024 bytes to write"
                }
                Action::Exec(argv) => match rules::fault_of_command(argv) {
                    Some(why) => why,
                    None if step.wait.is_zero() || step.wait > limits::STOP_COMMAND_MAX => {
                        "must give a command more than no time, and at most 3 s"
                    }
                    None => continue,
                },
                Action::Signal(_) | Action::CloseInput | Action::Input(_) => continue,
            };
            found.push(Violation::new(format!("{STOP_STEPS}[{at}]"), why));
        }
    }

    fn check_waits(&self, grace: Duration) -> Option<Violation> {
        let waits = self.steps.iter().map(|step| step.wait);
        let waits = waits.fold(Duration::ZERO, Duration::saturating_add);
        let why = "must wait for less than the grace in all: SIGKILL comes at its end";
        (!waits.is_zero() && waits >= grace).then(|| Violation::new(STOP_STEPS, why))
    }

    /// Whether an action needs a standard input that can be written, and whether one needs one that can be closed.
    pub(crate) fn needs_input(&self) -> (bool, bool) {
        let has = |wanted: fn(&Action) -> bool| self.steps.iter().any(|s| wanted(&s.action));
        (
            has(|action| matches!(action, Action::Input(_))),
            has(|action| *action == Action::CloseInput),
        )
    }
}

sparse! {
    /// Time limits of a run.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Timeouts {
        /// Time from the confirmed start on, pauses not counted; absent: no limit.
        pub max_runtime: Option<Duration>,
        /// Time without output and input, pauses not counted; absent: no limit.
        pub inactivity: Option<Duration>,
        /// Whether `inactivity` counts while the run awaits input.
        pub counts_awaiting: bool,
        /// Bound of the total extension of each limit in an attempt; absent: [`limits::EXTENSION_DEFAULT`].
        pub extension_max: Option<Duration>,
    }
}

impl Timeouts {
    /// Returns the bound of the total extension of each limit in an attempt.
    pub fn extension_max(&self) -> Duration {
        self.extension_max.unwrap_or(limits::EXTENSION_DEFAULT)
    }
}

named! {
    /// Policy for a run when the whole service dies, its keeper included.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Recovery {
        /// The run is terminated by its own plan.
        #[default]
        Terminate = "terminate",
        /// The run continues, and the next keeper on the same data directory adopts it.
        Adopt = "adopt",
        /// The run is adopted where the host supports that; elsewhere it is terminated.
        AdoptWherePossible = "adopt_where_possible",
    }
}

impl Recovery {
    /// Resolves the policy on a host that can, or cannot, let a run outlive its keeper.
    #[must_use]
    pub fn on_host(self, can_adopt: bool) -> Self {
        match self {
            Self::AdoptWherePossible if can_adopt => Self::Adopt,
            Self::AdoptWherePossible => Self::Terminate,
            Self::Terminate | Self::Adopt => self,
        }
    }
}

named! {
    /// Pid namespace of a command.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum PidNamespace {
        /// The keeper's namespace.
        #[default]
        Shared = "shared",
        /// A namespace of its own, whose first process is Kennel's: no process in it outlives that one.
        Private = "private",
    }
}

sparse! {
    /// Limit of a pause, and the keeper's action at its end.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PausePolicy {
        /// Time from the moment when every task was seen stopped; absent: until it is resumed.
        pub max_pause: Option<Duration>,
        /// Action at the end of that time.
        pub on_max_pause: OnMaxPause,
    }
}

named! {
    /// Action when a pause has reached its maximum.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnMaxPause {
        /// The processes that it has stopped continue.
        #[default]
        Resume = "resume",
        /// The whole tree is stopped.
        Abort = "abort",
    }
}

/// Policy for the rest of a tree when its leader exits by itself: not while a stop is in progress, which always means
/// the whole tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaderExit {
    /// The rest is stopped.
    #[default]
    Stop,
    /// The rest continues, and the run ends with its last process.
    Drain {
        /// Time after which it is stopped; absent: never.
        timeout: Option<Duration>,
    },
    /// The rest continues detached, and the run ends without it.
    Keep,
}
