//! Spawns that are answered with a run that is there: by its id, its key or its name.

use crate::{
    base::{
        calls::{CallError, OnNameConflict, RunView, SpawnCall, Spawned},
        spec_digest::{ComparedSpecs, SpecPart},
        view::{Live, StartAnswer},
    },
    record::node_store::read,
    registry::{Handle, Supervisor},
};
use kennel_lifecycle::{EndReason, RunId};
use kennel_store::{Claim, RunRow, StoreError};
use std::sync::Arc;
use tokio::sync::watch;

impl Supervisor {
    /// Handles a command that cannot be started now: it may be one that has run before, which the key decides.
    pub(super) async fn not_startable(
        &self,
        call: &SpawnCall,
        error: CallError,
    ) -> Result<Spawned, CallError> {
        self.answered_before(call).await?.ok_or(error)
    }

    /// Answers a spawn whose id or key has a row, or whose name an open run.
    pub(super) async fn answered_before(
        &self,
        call: &SpawnCall,
    ) -> Result<Option<Spawned>, CallError> {
        let store = &self.shared.store;
        let same = match (call.run, &call.request_key) {
            (Some(run), _) => store.get(run).await,
            (None, Some(key)) => read!(store, claimed(&call.owner, &Claim::Key(key.clone()))),
            (None, None) => Ok(None),
        };
        let found = match (same, &call.spec.name) {
            (Ok(Some(row)), _) => return self.answer_of_row(row, call).map(Some),
            (Ok(None), Some(name)) => {
                read!(store, claimed(&call.owner, &Claim::Name(name.clone())))
            }
            (found, _) => found,
        };
        match found {
            Ok(Some(row)) if row.outcome.is_none() => self.taken(row, call).map(Some),
            Ok(_) => Ok(None),
            Err(fault) => Err(Box::pin(self.read_fault(fault)).await),
        }
    }

    /// Returns the run that a name means: the open one of the owner, else the newest that has ended.
    pub async fn run_named(&self, owner: &str, name: &str) -> Result<RunId, CallError> {
        let claim = Claim::Name(name.to_owned());
        if let Some((run, _)) = self.shared.holder(owner, &claim) {
            return Ok(run);
        }
        match read!(self.shared.store, claimed(owner, &claim)) {
            Ok(Some(row)) => Ok(row.new.run),
            Ok(None) => Err(CallError::NoRunNamed(name.to_owned())),
            Err(StoreError::Unread(row)) => Ok(row.run),
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a spawn whose id makes no run, but may have a row.
    pub(super) async fn answer_recorded(
        &self,
        run: RunId,
        call: &SpawnCall,
        expired: CallError,
    ) -> Result<Spawned, CallError> {
        match self.row(run).await {
            // Recovery handles this open row.
            Ok(row) if self.is_open_here(&row) => Err(CallError::StoreUnavailable),
            Ok(row) => self.answer_of_row(row, call),
            Err(CallError::RunNotFound(_)) => Err(expired),
            Err(error) => Err(error),
        }
    }

    /// Answers a spawn whose id or key has a row.
    pub(super) fn answer_of_row(
        &self,
        row: RunRow,
        call: &SpawnCall,
    ) -> Result<Spawned, CallError> {
        let run = row.new.run;
        let reason = row.outcome.as_ref().map(|outcome| outcome.reason.clone());
        if let Some(EndReason::Fenced { .. }) = reason {
            return Err(CallError::RunFenced(run));
        }
        let spawned = self.if_same(ExistingRun::from(row), call)?;
        match reason {
            Some(EndReason::StartFailed(failure)) => Err(CallError::SpawnFailed { run, failure }),
            _ => Ok(spawned),
        }
    }

    /// Answers a spawn whose id or key a live run has, or else its name; `None`: that run left no trace, or has no name any
    /// more.
    pub(super) async fn existing(
        &self,
        handle: &Handle,
        by_name: bool,
        call: &SpawnCall,
    ) -> Result<Option<Spawned>, CallError> {
        let mut watch = handle.live.clone();
        let live = started(&mut watch).await?;
        let is_started = matches!(live.start, Some(StartAnswer::Started));
        if is_started && (!by_name || live.view.outcome.is_none()) {
            let found = ExistingRun {
                view: live.view,
                digest: Arc::clone(&handle.spec_digest),
                digest_version: handle.spec_digest_version,
            };
            let answer = if by_name {
                self.taken(found, call)
            } else {
                self.if_same(found, call)
            };
            return answer.map(Some);
        }
        // What a failed start leaves, and whether the name is free, is known once the task is over: wait, then check
        // again.
        let _ = watch.wait_for(|live| live.over).await;
        Ok(None)
    }

    /// Answers a spawn whose name this open run has.
    pub(super) fn taken(
        &self,
        holder: impl Into<ExistingRun>,
        call: &SpawnCall,
    ) -> Result<Spawned, CallError> {
        let holder = holder.into();
        match call.on_name_conflict {
            OnNameConflict::Fail => Err(CallError::NameTaken {
                name: call.spec.name.clone().unwrap_or_default(),
                holder: Box::new(holder.view),
            }),
            OnNameConflict::Return => Ok(Spawned {
                compared: Some(Box::new(self.compared(
                    &holder,
                    call,
                    self.different(&holder, call),
                ))),
                ..Spawned::existing(holder.view)
            }),
        }
    }

    /// Answers a spawn whose id or key this run has.
    fn if_same(&self, found: ExistingRun, call: &SpawnCall) -> Result<Spawned, CallError> {
        let run = found.view.run;
        if found.view.owner != call.owner {
            return Err(CallError::SpecMismatch { run, between: None });
        }
        let different = self.different(&found, call);
        if different.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Spawned::existing(found.view));
        }
        let between = Some(Box::new(self.compared(&found, call, different)));
        Err(CallError::SpecMismatch { run, between })
    }

    /// Returns the parts in which the spec of a run and the requested one differ; absent: which ones is not known. A
    /// digest is keyed by the installation that made it, so that no reader can guess values from it; for another node's
    /// run the recorded specs are compared, which have no values of variables and no input. A grace that the call does
    /// not name is the one that the other node has given.
    fn different(&self, found: &ExistingRun, call: &SpawnCall) -> Option<Vec<SpecPart>> {
        let existing = &found.view.spec;
        if found.view.node == self.shared.config.node {
            call.digest
                .different_parts(found.digest_version, &found.digest)
        } else {
            let mut spec = call.spec.clone();
            let grace = &mut spec.policy.stop.grace;
            *grace = grace.or(existing.policy.stop.grace);
            // Parsed specs are compared: a later version may write more text.
            (*spec.compared() == *existing.compared()).then(Vec::new)
        }
    }

    /// Returns both specs, for an answer that names what differs.
    fn compared(
        &self,
        found: &ExistingRun,
        call: &SpawnCall,
        different: Option<Vec<SpecPart>>,
    ) -> ComparedSpecs {
        ComparedSpecs {
            existing: Arc::clone(&found.view.spec),
            requested: super::new_run(&self.shared, RunId::from_u128(0), call).spec,
            different,
        }
    }
}

/// A run that a spawn may mean, with the digest of its spec.
pub(super) struct ExistingRun {
    view: RunView,
    digest: Arc<[u8]>,
    digest_version: i32,
}

impl From<RunRow> for ExistingRun {
    fn from(row: RunRow) -> Self {
        Self {
            digest: row.new.spec_digest.clone().into(),
            digest_version: row.new.spec_digest_version,
            view: row.into(),
        }
    }
}

/// Whether a row has the key that a call gives.
pub(super) fn has_key(row: &RunRow, call: &SpawnCall) -> bool {
    call.request_key.is_some() && row.new.request_key == call.request_key
}

pub(super) async fn started(watch: &mut watch::Receiver<Live>) -> Result<Live, CallError> {
    let live = watch
        .wait_for(|live| live.start.is_some() || live.over)
        .await;
    live.map(|live| live.clone())
        .map_err(|_| CallError::Internal("the run's task is gone".into()))
}
