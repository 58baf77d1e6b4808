//! Spawn: from a call to a run's task.
//!
//! Nothing exists before a run has entered the tracker; from then on its task owns it, and the caller only watches.

pub(crate) mod command;
mod existing;
mod missing;
mod user_env;

use self::existing::{has_key, started};
use crate::{
    base::{
        calls::{CallError, RunView, SpawnCall, Spawned},
        clock,
        drain::DrainAction,
        secret_sources::without_core,
        spec_digest::DIGEST_VERSION,
        view::StartAnswer,
    },
    record::node_store::read,
    registry::{Entered, Handle, Order, RunsMax, Shared, Supervisor, first_id},
    run::{task::RunTask, token},
    telemetry::{
        Telemetry,
        context::{self, SpanPart},
        log_span,
    },
};
use kennel_keeper::{
    client::{CapabilityName, ChildSpec, KeeperHello, NoPty},
    notify_place::NotifyPlace,
    rundir,
};
use kennel_lifecycle::{
    ApiAccess, CommandSpec, Containment, Inherited, LeaderExit, Missing, Policy, Refusal, RunId,
    RunState, StopOrder, StopReason, Timestamp, USER_VARIABLES, compose_env,
};
use kennel_store::{Claim, NewRun, RunRow, row_bytes};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use tokio::sync::oneshot;
use tracing::Instrument;

/// Limit by which the time in a client's run id may be ahead of this host's clock.
const RUN_ID_AHEAD_MAX: Duration = Duration::from_mins(5);
/// Time for which no look is needed whether an id was forgotten: ids are remembered for longer.
const NEW_ID_AGE: Duration = Duration::from_mins(1);
/// Most runs that a spawn makes because the run that had its name has ended just then.
const NAME_TRIES_MAX: u32 = 5;

impl Supervisor {
    /// Runs a command; answers when it runs, or why it does not. May be dropped at any time: the start continues.
    pub async fn spawn(&self, call: SpawnCall) -> Result<Spawned, CallError> {
        let spawned = self.spawn_here(call).await?;
        if spawned.run.state == RunState::Starting && spawned.run.attempt == 1 {
            // Only the run's node knows whether the run starts, and removes the row otherwise.
            self.refuse_unless_here(&spawned.run).await?;
        }
        let run = self.located(spawned.run).await?;
        Ok(Spawned { run, ..spawned })
    }

    async fn spawn_here(&self, mut call: SpawnCall) -> Result<Spawned, CallError> {
        let shared = &self.shared;
        let own = std::mem::take(&mut call.spec.policy.privileges);
        call.spec.policy.privileges = own.within(&shared.config.privileges);
        call.spec.policy.name_needs();
        let run = match call.run {
            Some(run) => run,
            None => shared.next_id(),
        };
        let claims = Claim::of(call.request_key.as_ref(), call.spec.name.as_ref());
        let claims: Vec<Claim> = claims.collect();
        let mut tries = 0;
        loop {
            if shared.serving.is_refusing() {
                return Err(CallError::Draining);
            }
            // Id and request key are checked before the name.
            let mut held = claims.iter().filter_map(|claim| {
                let (_, handle) = shared.holder(&call.owner, claim)?;
                Some((handle, matches!(claim, Claim::Name(_))))
            });
            let same = shared.find(run).map(|handle| (handle, false));
            if let Some((handle, by_name)) = same.or_else(|| held.next()) {
                match Box::pin(self.existing(&handle, by_name, &call)).await? {
                    Some(spawned) => return Ok(spawned),
                    // The run has no row, or no longer the name: this call starts over.
                    None => continue,
                }
            }
            if call.run.is_some()
                && let Err(expired) = accept_id(shared, run).await
            {
                return self.answer_recorded(run, &call, expired).await;
            }
            if self.drained().is_some() {
                return self.not_startable(&call, CallError::NodeDrained).await;
            }
            if let Err(error) = self.check_parent(&call).await {
                return self.not_startable(&call, error).await;
            }
            let secrets = call.spec.secrets.clone();
            if let Err(fault) = shared.config.secrets.filled(secrets).await {
                return self.not_startable(&call, fault.into()).await;
            }
            let child = match child_spec(shared, run, &call).await {
                Ok(child) => child,
                Err(error) => return self.not_startable(&call, error).await,
            };
            let new = new_run(shared, run, &call);
            if call.validate_only {
                let found = if claims.is_empty() {
                    None
                } else {
                    Box::pin(self.answered_before(&call)).await?
                };
                return Ok(found.unwrap_or_else(|| Spawned::new(unborn(&new))));
            }
            if let Err(error) = shared.check_records(&call.owner) {
                return self.not_startable(&call, error).await;
            }
            if let Some(most) = call.owner_output_max
                && let Err(error) = shared.check_retained(&call.owner, most).await
            {
                return self.not_startable(&call, error).await;
            }
            let most = RunsMax {
                of_node: shared.config.runs_max,
                owner: &call.owner,
                claims: &claims,
                of_owner: call.owner_runs_max,
            };
            let turn = shared.starts.turn(&call.owner).await;
            // A shutdown or drain during the wait is answered as at the beginning.
            if shared.serving.is_refusing() || self.drained().is_some() {
                continue;
            }
            let record_bytes = row_bytes(&new);
            match shared.enter(run, Some(most), || start(shared, new, child))? {
                Entered::New(handle) => {
                    shared.record_bytes.add(&call.owner, record_bytes);
                    let begun = Box::pin(turn.of(self.begun(run, handle, &call))).await?;
                    if let Some(spawned) = begun {
                        return Ok(spawned);
                    }
                    tries += 1;
                    if tries == NAME_TRIES_MAX {
                        return Err(CallError::StoreUnavailable);
                    }
                }
                Entered::Existing => {}
            }
        }
    }

    /// Waits for the start of a run that this call made. `None`: the run that had its name has ended meanwhile.
    async fn begun(
        &self,
        run: RunId,
        handle: Handle,
        call: &SpawnCall,
    ) -> Result<Option<Spawned>, CallError> {
        if let Some(order) = self.late_order(&handle) {
            let (reply, _) = oneshot::channel();
            let _ = handle
                .orders
                .send(Box::new(Order::Stop(order, reply)))
                .await;
        }
        let mut watch = handle.live.clone();
        let live = started(&mut watch).await?;
        match live.start {
            Some(StartAnswer::Started) => Ok(Some(Spawned::new(live.view))),
            Some(StartAnswer::Failed(CallError::StoreUnavailable))
                if call.run.is_some() && self.is_removed(run).await =>
            {
                Err(CallError::RunRemoved(run))
            }
            Some(StartAnswer::Failed(error)) => Err(error),
            // Recovery handles an open row of this node without a task: a repeated call finds the result.
            Some(StartAnswer::Taken(row)) if self.is_open_here(&row) => {
                let _ = watch.wait_for(|live| live.over).await;
                self.row(row.new.run).await?;
                Err(CallError::StoreUnavailable)
            }
            Some(StartAnswer::Taken(row)) if row.new.run != run && !has_key(&row, call) => {
                // This start's task ends before another start uses its id.
                let _ = watch.wait_for(|live| live.over).await;
                let open = row.outcome.is_none();
                open.then(|| self.taken(*row, call)).transpose()
            }
            Some(StartAnswer::Taken(row)) => self.answer_of_row(*row, call).map(Some),
            // Another server has the row by now: a repeated call finds the run's state.
            None => Err(CallError::StoreUnavailable),
        }
    }

    /// Returns the stop order of a run that entered while a shutdown or a drain listed the live runs.
    fn late_order(&self, handle: &Handle) -> Option<StopOrder> {
        if self.shared.serving.is_refusing() {
            return Some(StopOrder {
                reason: StopReason::ServerShutdown,
                grace: Duration::ZERO,
            });
        }
        let drain = self.drained()?;
        let grace = handle.live.borrow().view.policy().grace();
        (drain.action == DrainAction::Abort).then(|| drain.order(grace))
    }

    /// Whether the run that this one shall belong to is a live one of the same owner on this node. One that ends after this look is
    /// found by the task of the run.
    async fn check_parent(&self, call: &SpawnCall) -> Result<(), CallError> {
        let Some(parent) = call.spec.parent else {
            return Ok(());
        };
        let view = self.get_of(parent.run, &call.owner).await?;
        let own = view.filter(|view| view.owner == call.owner);
        let view = own.ok_or(CallError::RunNotFound(parent.run))?;
        if view.state.is_terminal() {
            return Err(CallError::Refused {
                run: parent.run,
                refusal: Refusal::Ended,
                state: view.state,
            });
        }
        match view.elsewhere {
            Some(elsewhere) => Err(CallError::RunElsewhere {
                run: parent.run,
                elsewhere: Box::new(elsewhere),
            }),
            None => Ok(()),
        }
    }
}

/// Whether an id that a client brings may make a run. Ids of removed rows are remembered for as long as this admits them,
/// and where a server with a shorter horizon, or a clock that was ahead, has them forgotten, their time is known.
async fn accept_id(shared: &Shared, run: RunId) -> Result<(), CallError> {
    let at = |millis: u64| {
        let millis = i64::try_from(millis).unwrap_or(i64::MAX);
        clock::rfc3339(Timestamp(millis.saturating_mul(1000)))
    };
    let (mut oldest, newest) = (shared.oldest_id(), clock::now().plus(RUN_ID_AHEAD_MAX));
    let newest = u64::try_from(newest.0 / 1000).unwrap_or(0);
    // A new id cannot belong to a removed run.
    if run < first_id(clock::now().minus(NEW_ID_AGE)) {
        let forgotten = read!(shared.store, newest_forgotten())?;
        oldest = oldest.max(forgotten.map_or(oldest, |id| RunId::from_u128(id.as_u128() + 1)));
    }
    if run >= oldest && run.timestamp_ms() <= newest {
        return Ok(());
    }
    Err(CallError::RunIdExpired {
        run,
        time: at(run.timestamp_ms()),
        oldest: at(oldest.timestamp_ms()),
        newest: at(newest),
    })
}

async fn child_spec(shared: &Shared, run: RunId, call: &SpawnCall) -> Result<ChildSpec, CallError> {
    let command = &call.spec.command;
    let mut policy = call.spec.policy.clone();
    let unfit = policy.fill_grace(&shared.config.default_grace);
    policy.fill_limits(&shared.config.default_limits);
    if let Some(violation) = unfit {
        return Err(CallError::InvalidSpec(violation));
    }
    let mut missing = policy.limits.missing(&shared.hello.powers);
    explain(&mut missing, &shared.hello);
    missing.extend(missing::features(&shared.hello, &policy));
    missing.extend(no_api_access(shared, call.spec.api_access));
    let run_dir = rundir::path(&shared.config.data_dir, run);
    let notify = NotifyPlace::of(shared.config.node, run, &run_dir, &policy);
    missing.extend(no_notices(&policy, &notify));
    if !missing.is_empty() {
        return Err(CallError::CapabilityMissing(missing));
    }
    check_containment(shared, run, &policy)?;
    check_terminal(shared, command)?;
    let env = child_env(shared, run, (&run_dir, &notify), call);
    let executable = command::executable(run, command, command::path_in(&env)).await?;
    let powers = &shared.hello.powers;
    without_core(&mut policy.limits, &call.spec.secrets, powers);
    Ok(ChildSpec {
        executable,
        env,
        run_dir,
        attempt: 1,
        command: CommandSpec {
            // The full environment already includes these variables.
            env: BTreeMap::new(),
            inherited: Inherited::default(),
            cwd: command.cwd.clone().or(command.inherited.cwd.clone()),
            ..command.clone()
        },
        policy,
        secrets: call.spec.secrets.clone(),
    })
}

/// Checks whether containment on this host is strong enough. The keeper checks again when it makes the run.
fn check_containment(shared: &Shared, run: RunId, policy: &Policy) -> Result<(), CallError> {
    let base = &shared.hello.cgroup_base;
    let reached = Containment::reached(base.is_ok(), policy.pid_namespace);
    let Some(wanted) = policy.min_containment.filter(|wanted| reached < *wanted) else {
        return Ok(());
    };
    let why = match wanted {
        Containment::PrivatePidns => Some("the spec asks for no private pid namespace".to_owned()),
        Containment::Cgroup | Containment::Subreaper => base.clone().err(),
    };
    Err(CallError::ContainmentUnavailable {
        run,
        wanted,
        reached,
        why,
    })
}

/// Checks whether this host has terminals. Whether one is free is found out when the run is made.
fn check_terminal(shared: &Shared, command: &CommandSpec) -> Result<(), CallError> {
    let wanted = command.terminal.as_ref();
    match wanted.and_then(|_| shared.hello.lacks(CapabilityName::Terminal)) {
        Some(why) => Err(CallError::NoPty(NoPty::Unavailable {
            why: why.to_owned(),
            errno: None,
        })),
        None => Ok(()),
    }
}

/// Adds why the control groups of runs lack controllers, and how to fix it: each reason once.
fn explain(missing: &mut [Missing], hello: &KeeperHello) {
    let mut before = None;
    for missing in missing {
        let controller = match missing.field.as_str() {
            "spec.limits.pids_max" => CapabilityName::CgroupPids,
            "spec.limits.io" => CapabilityName::CgroupIo,
            field if field.starts_with("spec.limits.memory.") => CapabilityName::CgroupMemory,
            field if field.starts_with("spec.limits.cpu.") => CapabilityName::CgroupCpu,
            _ => continue,
        };
        let why = hello.lacks(controller);
        // Without a cgroup base the error already has the reason.
        if let (Ok(_), Some(text)) = (&hello.cgroup_base, why)
            && why != before
        {
            missing.capability = format!("{}: {text}", missing.capability);
            before = why;
        }
    }
}

impl Supervisor {
    /// Returns what this host lacks for a run that detaches processes which this user could take for its own clients. A
    /// process that has killed its shim is known by its control group, or by its parent where the keeper is process 1.
    pub fn no_detached_identity(&self, policy: &Policy) -> Option<Missing> {
        let user = policy.privileges.user.as_ref();
        let is_own = user.is_none_or(|user| user.uid == kennel_linux::effective_uid());
        if policy.on_leader_exit != LeaderExit::Keep || !is_own {
            return None;
        }
        let why = self.shared.hello.lacks(CapabilityName::DetachedIdentity)?;
        Some(Missing {
            field: "spec.on_leader_exit".into(),
            capability: format!("detached_identity, for KEEP below the role of an admin: {why}"),
        })
    }
}

/// Returns that this node gives no run access to its API, where it is requested.
fn no_api_access(shared: &Shared, access: ApiAccess) -> Option<Missing> {
    let is_asked = access != ApiAccess::None;
    (is_asked && shared.config.forbids_api_access).then(|| Missing {
        field: "spec.api_access".into(),
        capability: "access of runs to the API: this node forbids it (--forbid-api-access)".into(),
    })
}

fn child_env(
    shared: &Shared,
    run: RunId,
    (run_dir, notify): (&Path, &NotifyPlace),
    call: &SpawnCall,
) -> Vec<(String, String)> {
    let command = &call.spec.command;
    let mut ours = vec![("KENNEL_RUN_ID".to_owned(), run.to_string())];
    ours.extend(notify_env(&call.spec.policy, notify));
    let socket = shared.config.socket.as_deref();
    ours.extend(token::variables(socket, call.spec.api_access, run_dir));
    // The directory is below the data directory, which no other user can enter.
    if call.spec.policy.privileges.user.is_none() {
        let dir = run_dir.join("tmp").display().to_string();
        ours.push(("KENNEL_RUN_DIR".to_owned(), dir));
    }
    let mut others = trace_env(&shared.config.telemetry, run, call);
    let mut hidden = Vec::new();
    if let Some(terminal) = &command.terminal {
        others.push(("TERM", terminal.term.clone()));
        // These variables describe another terminal's size.
        hidden.extend(["COLUMNS", "LINES"]);
    }
    if let Some(user) = &call.spec.policy.privileges.user {
        others.extend(user_env::of(user.uid));
        hidden.extend(USER_VARIABLES);
    }
    // The caller's explicit values take precedence.
    let is_set = |name| command.caller_env().any(|(set, _)| set == name);
    let others = others.into_iter().filter(|(name, _)| !is_set(*name));
    ours.extend(others.map(|(name, value)| (name.to_owned(), value)));
    let server = shared.config.server_env.iter();
    let server = server.filter(|(name, _)| !hidden.contains(&name.as_str()));
    let server = (server, &*shared.config.inherit);
    compose_env(command.env_mode, server, command.caller_env(), &ours)
}

/// Variables with which the command reports its own state, where its spec enables that: by the rules of `sd_notify(3)`,
/// without `WATCHDOG_PID`, so that each process of the run may report.
fn notify_env(policy: &Policy, notify: &NotifyPlace) -> Vec<(String, String)> {
    let mut env = Vec::new();
    if policy.takes_notices() {
        let path = notify.path().display().to_string();
        env.push(("NOTIFY_SOCKET".to_owned(), path));
    }
    if let Some(time) = policy.watchdog() {
        let micros = time.as_micros().to_string();
        env.push(("WATCHDOG_USEC".to_owned(), micros));
    }
    env
}

/// Returns what this host lacks for a run that reports its own state: its processes have to reach the socket.
fn no_notices(policy: &Policy, notify: &NotifyPlace) -> Option<Missing> {
    if !policy.takes_notices() {
        return None;
    }
    let field = if policy.is_ready_by_notice() {
        "spec.readiness.notify"
    } else {
        "spec.liveness.watchdog"
    };
    Some(Missing {
        field: field.into(),
        capability: notify.fault()?,
    })
}

/// Trace context for the command, by the rules for environment variables as carriers: under the run's span, or where no
/// spans are recorded, the caller's unchanged.
fn trace_env(telemetry: &Telemetry, run: RunId, call: &SpawnCall) -> Vec<(&'static str, String)> {
    let caller = call.traceparent.as_deref();
    let trace = telemetry.run(run, call.spec.policy.kind, caller);
    let (parent, state, baggage) = match trace {
        None => (call.traceparent.clone(), call.tracestate.clone(), None),
        Some(trace) => {
            let baggage = call.baggage.as_deref();
            (
                Some(context::traceparent(&trace.context(SpanPart::Run))),
                // The trace state belongs to the caller's trace.
                call.tracestate.clone().filter(|_| !trace.is_own()),
                baggage.and_then(|baggage| telemetry.baggage(baggage)),
            )
        }
    };
    let named = [
        ("TRACEPARENT", parent),
        ("TRACESTATE", state),
        ("BAGGAGE", baggage),
    ];
    named
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

fn new_run(shared: &Shared, run: RunId, call: &SpawnCall) -> NewRun {
    let mut spec = call.spec.clone();
    // `fill_grace` cannot fail: the command has the same policy.
    let _ = spec.policy.fill_grace(&shared.config.default_grace);
    let limits = spec.policy.fill_limits(&shared.config.default_limits);
    spec.node_limits.extend(limits);
    NewRun {
        traceparent: call.traceparent.clone(),
        restarted_from: call.restarted_from,
        request_key: call.request_key.clone(),
        spec: Arc::new(spec.into()),
        spec_digest: call.digest.stored(),
        spec_digest_version: DIGEST_VERSION,
        ..undescribed(shared, run, call.owner.clone())
    }
}

/// Makes the record of a run that no caller has described: that it never ran. Its generation is that of the moment of
/// the write.
pub(crate) fn undescribed(shared: &Shared, run: RunId, owner: String) -> NewRun {
    NewRun {
        run,
        owner,
        node: shared.config.node,
        keeper_epoch: shared.hello.epoch,
        created: clock::now(),
        ..NewRun::default()
    }
}

/// Makes the view of a run of which nothing exists yet.
pub(crate) fn unborn(new: &NewRun) -> RunView {
    RunRow::open(new.clone()).into()
}

fn start(shared: &Arc<Shared>, new: NewRun, child: ChildSpec) -> Handle {
    let (handle, seat) = Handle::new(&new, unborn(&new), None);
    let marks = log_span(&shared.config.telemetry, &new);
    let task = Box::new(RunTask::new(Arc::clone(shared), new, child, seat));
    shared.tasks.spawn(task.drive().instrument(marks));
    handle
}
