//! Which findings may be ended, and why the others are spared.

use super::{Certainty, Evidence, Finding, Standing, is_same};
use crate::{ProcessIdentity, RunId, labels::Selector};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// What somebody wants ended. Each part that is given narrows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Of these runs; empty: of any.
    pub runs: BTreeSet<RunId>,
    /// Of runs with such labels.
    pub labels: Selector,
    /// Only what has lived so long.
    pub older: Duration,
    /// Only on this evidence; empty: on any that proves.
    pub evidence: BTreeSet<Evidence>,
    /// Exactly these processes; empty: whatever is found.
    pub processes: Vec<ProcessIdentity>,
}

/// A finding with what the scope asks of it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What was found.
    pub finding: &'a Finding,
    /// Labels of its run; absent: not known.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// For how long it has lived.
    pub age: Duration,
    /// Whether its user is the one as whom commands run.
    pub own_user: bool,
    /// Whether the store was asked for its run.
    pub rows_compared: bool,
}

/// What is to be done with a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It was not asked for.
    OutOfScope,
    /// It was asked for, and is left alone.
    Spared(Spared),
    /// It may be ended.
    Reap,
}

/// Why a process that was asked for is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// Its run is not over.
    RunIsLive,
    /// What leads to it is not a proof.
    NotProven,
    /// Only its marker leads to it, and the caller has not named that evidence.
    MarkerNotNamed,
    /// Nothing is known of its run, or of its run's labels.
    RunUnknown,
    /// It belongs to another user.
    OtherUser,
    /// Nothing leads from it to a run.
    Stray,
    /// Its run was to leave it running, and the caller has named neither the run nor that evidence.
    Kept,
    /// It has ended already: only its parent can reap it.
    Zombie,
    /// A shim ends by itself, once nothing is left below it.
    Shim,
}

/// Decides about one finding.
#[must_use]
pub fn judge(candidate: &Candidate<'_>, scope: &Scope) -> Judgement {
    let finding = candidate.finding;
    if !is_named(finding, scope) || candidate.age < scope.older {
        return Judgement::OutOfScope;
    }
    match (candidate.labels, scope.labels.is_empty()) {
        (_, true) => {}
        (None, false) => return Judgement::Spared(Spared::RunUnknown),
        (Some(labels), false) => {
            if !scope.labels.matches(labels) {
                return Judgement::OutOfScope;
            }
        }
    }
    match spared(candidate, scope) {
        Some(why) => Judgement::Spared(why),
        None => Judgement::Reap,
    }
}

fn is_named(finding: &Finding, scope: &Scope) -> bool {
    let by_process = |p: &ProcessIdentity| is_same(p, &finding.process);
    let process = scope.processes.is_empty() || scope.processes.iter().any(by_process);
    let run = scope.runs.is_empty() || finding.run.is_some_and(|run| scope.runs.contains(&run));
    let evidence = scope.evidence.is_empty() || scope.evidence.contains(&finding.evidence);
    process && run && evidence
}

fn spared(candidate: &Candidate<'_>, scope: &Scope) -> Option<Spared> {
    let finding = candidate.finding;
    if matches!(finding.standing, Some(Standing::Live | Standing::Open)) {
        return Some(Spared::RunIsLive);
    }
    let run_named = finding.run.is_some_and(|run| scope.runs.contains(&run));
    match finding.evidence {
        Evidence::Kept if finding.certainty == Certainty::Hint => Some(Spared::NotProven),
        Evidence::Kept => {
            let named = run_named || scope.evidence.contains(&Evidence::Kept);
            (!named).then_some(Spared::Kept)
        }
        Evidence::Stray => Some(Spared::Stray),
        Evidence::Zombie => Some(Spared::Zombie),
        Evidence::Shim => Some(Spared::Shim),
        Evidence::Marker if !scope.evidence.contains(&Evidence::Marker) => {
            Some(Spared::MarkerNotNamed)
        }
        Evidence::Marker if finding.standing.is_none() => Some(Spared::RunUnknown),
        Evidence::Marker if !candidate.own_user => Some(Spared::OtherUser),
        Evidence::Marker => None,
        Evidence::LeakedCgroup | Evidence::ShimChild | Evidence::RecordedGroup => {
            if finding.certainty == Certainty::Hint {
                return Some(Spared::NotProven);
            }
            // Its run may have been told to leave it running.
            let unknown = finding.standing.is_none() && !candidate.rows_compared;
            (unknown && !run_named).then_some(Spared::RunUnknown)
        }
    }
}
