//! The live runs by id, by key and by name; and how many there may be.

use super::Handle;
use crate::base::calls::CallError;
use kennel_lifecycle::RunId;
use kennel_store::Claim;
use std::{collections::BTreeMap, sync::Arc};

#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) runs: BTreeMap<RunId, Handle>,
    /// Of each owner.
    claims: BTreeMap<Arc<str>, BTreeMap<Claim, RunId>>,
}

impl Entries {
    pub(super) fn holder(&self, owner: &str, claim: &Claim) -> Option<(RunId, Handle)> {
        let run = self.claims.get(owner)?.get(claim)?;
        Some((*run, self.runs.get(run)?.clone()))
    }

    pub(super) fn is_taken(&self, owner: &str, claims: &[Claim]) -> bool {
        let own = self.claims.get(owner);
        own.is_some_and(|own| claims.iter().any(|claim| own.contains_key(claim)))
    }

    /// Of two runs under recovery that have one name, as in a database that was put back, the first has it.
    pub(super) fn insert(&mut self, run: RunId, handle: Handle) {
        for claim in &*handle.claims {
            let own = self.claims.entry(handle.owner.clone()).or_default();
            own.entry(claim.clone()).or_insert(run);
        }
        self.runs.insert(run, handle);
    }

    pub(super) fn remove(&mut self, run: RunId) {
        let Some(handle) = self.runs.remove(&run) else {
            return;
        };
        if let Some(own) = self.claims.get_mut(&handle.owner) {
            own.retain(|claim, of| *of != run || !handle.claims.contains(claim));
            if own.is_empty() {
                self.claims.remove(&handle.owner);
            }
        }
    }
}

/// Limits of the number of live runs, for a run that is spawned.
pub(crate) struct RunsMax<'a> {
    pub(crate) of_node: u32,
    pub(crate) owner: &'a str,
    /// What no other run of the owner may have.
    pub(crate) claims: &'a [Claim],
    /// Absent: as many as the node may have.
    pub(crate) of_owner: Option<u32>,
}

impl RunsMax<'_> {
    /// Whether one more run may enter.
    pub(super) fn hold(&self, runs: &BTreeMap<RunId, Handle>) -> Result<(), CallError> {
        let (what, limit) = match self.of_owner {
            _ if runs.len() >= self.of_node as usize => ("live runs", self.of_node),
            Some(most) if self.of_its_owner(runs) >= most as usize => {
                ("live runs of this owner", most)
            }
            _ => return Ok(()),
        };
        Err(CallError::QuotaExceeded {
            what: what.into(),
            limit: limit.into(),
        })
    }

    /// Counts the owner's runs, except those that have ended and are only to be recorded.
    fn of_its_owner(&self, runs: &BTreeMap<RunId, Handle>) -> usize {
        let lives = |run: &&Handle| run.live.borrow().view.outcome.is_none();
        let own = runs.values().filter(|run| *run.owner == *self.owner);
        own.filter(lives).count()
    }
}
