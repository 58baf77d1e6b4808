//! Spawn: the rights of the caller, the owner of the run, and its quota.

use super::{Api, Asked, At, Context, Fault, How, Verb, Waits};
use crate::{
    access::{AsRun, Caller},
    auth,
    convert::{command, pattern, request, rules, run, spec},
    enums::parsed,
    pb, status,
    verbs::record::word,
};
use kennel_lifecycle::{RunId, RunSpec, Violation, is_run_name};
use kennel_supervisor::{CallError, OnNameConflict, SpawnCall, Spawned};
use std::num::{NonZeroU32, NonZeroU64};
use tonic::Status;

/// A spawn, and who calls.
pub(crate) struct Call {
    pub(super) spawn: SpawnCall,
    pub(super) caller: Caller,
}

parsed! { fn on_name_conflict(OnNameConflict) -> OnNameConflict { Unspecified | Fail => Fail, Return } }

impl Verb for pb::SpawnRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Call = Call;

    fn logged(&self, record: Asked) -> Asked {
        let record = record.of_run(&self.run_id);
        let Some(spec) = &self.spec else {
            return record;
        };
        let record = record.with("kind", word(spec.kind().as_str_name(), "RUN_KIND_"));
        let record = if is_run_name(&spec.name) {
            record.with("name", &*spec.name)
        } else {
            record
        };
        // Arguments may contain secrets: only their number is recorded.
        let Some(pb::run_spec::Command::Argv(argv)) = &spec.command else {
            return record;
        };
        let arguments = command::words(argv).saturating_sub(1);
        let record = record.with("command", command::name(argv));
        record.with("arguments", arguments.to_string())
    }

    fn is_dry(&self) -> bool {
        self.validate_only
    }

    async fn prepared(mut self, _: &Api, context: &mut Context<'_>) -> Result<Self, Fault> {
        if let Some(run) = &context.caller.run {
            below(run, &mut self)?;
        }
        Ok(self)
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Call> {
        let run = request::optional_run_id(&self.run_id, found);
        let key = request::key(self.request_key, !self.run_id.is_empty(), found);
        let on_name_conflict = on_name_conflict("on_name_conflict", self.on_name_conflict, found);
        let mut call = parse(self.spec, context, found)?;
        call.spawn = SpawnCall {
            run,
            request_key: key,
            on_name_conflict,
            validate_only: self.validate_only,
            ..call.spawn
        };
        Some(call)
    }

    async fn checked(
        at: &Api,
        context: &Context<'_>,
        call: &mut Call,
        found: &mut Vec<Violation>,
    ) -> Result<(), Fault> {
        let owner = call.caller.owner.as_str().into();
        for (field, pattern) in rules::patterns(&call.spawn.spec.policy) {
            let is_of_rule = field != rules::READY_LINE;
            let form = format!("{field}.{}", pattern.name());
            let compiled = pattern::compile(&at.supervisor, &owner, (&field, pattern), found);
            if let Some(matcher) = compiled.await?.filter(|_| is_of_rule) {
                rules::check_groups(&form, &matcher, found);
            }
        }
        hold(context, call, found)?;
        if !found.is_empty() {
            return Ok(());
        }
        let Call { spawn, caller } = call;
        if !spawn.validate_only {
            at.shares.spawn(caller)?;
        }
        Ok(permit(at, spawn, caller)?)
    }

    async fn serve(at: Api, Call { spawn, caller }: Call) -> Result<pb::SpawnResponse, Fault> {
        let validate_only = spawn.validate_only;
        let spawned = match Box::pin(at.supervisor.spawn(spawn)).await {
            Err(error) => return Err(Box::pin(refused(&at, error, &caller)).await.into()),
            Ok(spawned) => own(spawned, &caller)?,
        };
        let differing_fields = match &spawned.compared {
            Some(specs) => {
                if caller.run.is_some() {
                    let own = auth::Scope::of(&caller);
                    Box::pin(at.sees_run(&own, spawned.run.run)).await?;
                }
                spec::different_fields(specs)
            }
            None => Vec::new(),
        };
        let is_there = spawned.existing || !validate_only;
        Ok(pb::SpawnResponse {
            run: is_there.then(|| run::run(spawned.run)),
            existing: spawned.existing,
            differing_fields,
        })
    }

    fn answered(answer: &pb::SpawnResponse, record: Asked) -> Asked {
        let run = answer.run.as_ref().map_or("", |run| &run.run_id);
        let record = record.of_run(run);
        if answer.existing {
            record.with("existing", "true")
        } else {
            record
        }
    }

    fn begun(answer: &pb::SpawnResponse) -> Option<RunId> {
        answer.run.as_ref()?.run_id.parse().ok()
    }

    fn refused(at: &Api, status: &Status) {
        at.admission.refused(status);
    }
}

/// Parses a spec that is given.
pub(super) fn parse(
    spec: Option<pb::RunSpec>,
    context: &Context<'_>,
    found: &mut Vec<Violation>,
) -> Option<Call> {
    let Some(spec) = spec else {
        found.push(Violation::new("spec", "must be given"));
        return None;
    };
    // A far too large request is not parsed further.
    if spec::has_too_many(&spec, found) {
        return None;
    }
    let spec = spec::parse(spec, found);
    let caller = context.caller.clone();
    let spawn = request::call_of(spec, caller.owner.clone(), context.trace(), context.key);
    Some(Call { spawn, caller })
}

/// Holds the spec of a run's process to what that run has.
pub(super) fn hold(
    context: &Context<'_>,
    call: &mut Call,
    found: &mut Vec<Violation>,
) -> Result<(), Status> {
    let (Some(run), []) = (&context.caller.run, &found[..]) else {
        return Ok(());
    };
    let spec = &mut call.spawn.spec;
    let held = std::mem::take(spec).within_parent(&run.spec);
    *spec = held.map_err(status::permission_denied)?;
    // Settings inherited from the parent may exclude requested ones.
    found.extend(spec.violations());
    Ok(())
}

/// Gives a spawn what the access file grants its caller, or refuses it.
pub(super) fn permit(at: &At, call: &mut SpawnCall, caller: &Caller) -> Result<(), Status> {
    if let Some(user) = &call.spec.policy.privileges.user
        && !caller.may_run_as(user)
    {
        return Err(not_granted(
            caller,
            "run_as of this principal in the access file does not name the command's user, or a group of it",
        ));
    }
    let all_secrets = |spec: &RunSpec| {
        let mut secrets = spec.server_secrets();
        secrets.all(|secret| caller.may_have_secret(&secret))
    };
    if !all_secrets(&call.spec) {
        return Err(not_granted(
            caller,
            "secrets of this principal in the access file does not name a secret of the spec",
        ));
    }
    if caller.is_remote() {
        call.spec.hold_env();
    }
    if !caller.has_all_rights()
        && let Some(missing) = at.supervisor.no_detached_identity(&call.spec.policy)
    {
        return Err(status::capability_missing(&[missing]));
    }
    call.owner_runs_max = caller.quota.live_runs.map(NonZeroU32::get);
    call.owner_output_max = caller.quota.output_bytes.map(NonZeroU64::get);
    Ok(())
}

/// Returns the status of a spawn that is refused. Processes of a run are not shown runs that are not below it.
async fn refused(at: &At, error: CallError, caller: &Caller) -> Status {
    match &error {
        CallError::NameTaken { name, holder } if caller.run.is_some() => {
            let seen = at.sees_run(&auth::Scope::of(caller), holder.run).await;
            status::name_taken(error.to_string(), name, seen.is_ok().then_some(holder))
        }
        CallError::SpecMismatch {
            run,
            between: Some(specs),
        } => {
            let fields = spec::different_fields(specs);
            status::spec_mismatch(error.to_string(), *run, &fields)
        }
        _ => status::of(&error),
    }
}

/// Answers a run of another owner under the same id as one of another spec.
pub(super) fn own(spawned: Spawned, caller: &Caller) -> Result<Spawned, CallError> {
    match caller.scope() {
        Some(owner) if spawned.existing && spawned.run.owner != owner => {
            Err(CallError::SpecMismatch {
                run: spawned.run.run,
                between: None,
            })
        }
        _ => Ok(spawned),
    }
}

/// Refuses what the access file does not grant the caller.
fn not_granted(caller: &Caller, why: &str) -> Status {
    status::permission_denied(if caller.is_user_elsewhere() {
        "a call on behalf of a uid has neither run_as nor secrets of the access file, since the users of two hosts may \
         differ: spawn at the node that runs it, or with a certificate or token"
    } else {
        why
    })
}

/// Makes the run whose process calls the parent of the one that it spawns.
fn below(run: &AsRun, request: &mut pb::SpawnRequest) -> Result<(), Status> {
    // Without a spec nothing is spawned.
    let Some(spec) = &mut request.spec else {
        return Ok(());
    };
    let own = run.id.to_string();
    let parent = spec.parent.get_or_insert_default();
    if parent.run_id.is_empty() {
        parent.run_id = own;
    } else if parent.run_id != own {
        return Err(status::permission_denied(
            "with the token of a run, parent can be that run alone",
        ));
    }
    Ok(())
}
