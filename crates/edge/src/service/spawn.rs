//! Spawn: the rights of the caller, the owner of the run, and its quota.

use super::Processes;
use crate::{
    access::{AsRun, Caller},
    auth,
    convert::{pattern, request, rules, run},
    observe::Begun,
    pb, status,
    trace_context::TraceContext,
};
use kennel_supervisor::{CallError, SpawnCall, Spawned};
use std::num::{NonZeroU32, NonZeroU64};
use tonic::{Request, Response, Status};

impl Processes {
    pub(super) async fn spawn(
        &self,
        request: Request<pb::SpawnRequest>,
    ) -> Result<Response<pb::SpawnResponse>, Status> {
        let caller = auth::caller(&request)?.clone();
        let trace = TraceContext::of(&request);
        let owner = caller.owner.clone();
        let mut request = request.into_inner();
        if let Some(run) = &caller.run {
            below(run, &mut request)?;
        }
        let (mut call, mut found) = request::spawn(request, owner, trace, &self.key)?;
        let owner = caller.owner.as_str().into();
        for (field, pattern) in rules::patterns(&call.spec.policy) {
            let is_of_rule = field != rules::READY_LINE;
            let form = format!("{field}.{}", pattern.name());
            let compiled =
                pattern::compile(&self.supervisor, &owner, (&field, pattern), &mut found);
            let compiled = compiled.await.map_err(|error| status::of(&error))?;
            if let Some(matcher) = compiled.filter(|_| is_of_rule) {
                rules::check_groups(&form, &matcher, &mut found);
            }
        }
        request::no_violations(&found)?;
        if let Some(run) = &caller.run {
            let held = call.spec.within_parent(&run.spec);
            call.spec = held.map_err(status::permission_denied)?;
            // What the child has of its parent may exclude what it asks for.
            request::no_violations(&call.spec.violations())?;
        }
        let validate_only = call.validate_only;
        if !validate_only {
            let taken = self.shares.spawn(&caller);
            taken.inspect_err(|refused| self.admission.refused(refused))?;
        }
        let spawned = Box::pin(self.admit_counted(call, &caller)).await?;
        let is_there = spawned.existing || !validate_only;
        let begun = Begun(spawned.run.run);
        let mut response = Response::new(pb::SpawnResponse {
            run: is_there.then(|| run::run(spawned.run)),
            existing: spawned.existing,
        });
        response.extensions_mut().insert(begun);
        Ok(response)
    }

    /// Spawns, with one spawn of the caller's quota that was taken before. A run that is refused is counted. A run of
    /// another owner under the same id is answered as one of another spec.
    pub(super) async fn admit_counted(
        &self,
        mut call: SpawnCall,
        caller: &Caller,
    ) -> Result<Spawned, Status> {
        let validate_only = call.validate_only;
        if let Some(user) = &call.spec.policy.privileges.user
            && !caller.may_run_as(user)
        {
            return Err(not_granted(
                caller,
                "run_as of this principal in the access file does not name the command's user, or a group of it",
            ));
        }
        if !call
            .spec
            .server_secrets()
            .all(|secret| caller.may_have_secret(&secret))
        {
            return Err(not_granted(
                caller,
                "secrets of this principal in the access file does not name a secret of the spec",
            ));
        }
        if caller.is_remote() {
            call.spec.hold_env();
        }
        if !caller.has_all_rights()
            && let Some(missing) = self.supervisor.no_detached_identity(&call.spec.policy)
        {
            return Err(status::capability_missing(&[missing]));
        }
        let call = SpawnCall {
            owner_runs_max: caller.quota.live_runs.map(NonZeroU32::get),
            owner_output_max: caller.quota.output_bytes.map(NonZeroU64::get),
            ..call
        };
        let started = async {
            let supervisor = self.supervisor.clone();
            let started = self.to_its_end(async move { supervisor.spawn(call).await });
            self.with_keeper(started).await
        };
        let spawned = started.await;
        let spawned = spawned.inspect_err(|status| {
            if !validate_only {
                self.admission.refused(status);
            }
        })?;
        match caller.scope() {
            Some(owner) if spawned.existing && spawned.run.owner != owner => {
                Err(status::of(&CallError::SpecMismatch(spawned.run.run)))
            }
            _ => Ok(spawned),
        }
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
