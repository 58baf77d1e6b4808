//! Which findings may be terminated, and why the others are spared.

use super::{Certainty, Evidence, Finding, RunStatus, is_same};
use crate::{ProcessIdentity, RunId, labels::Selector};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Selection of findings to terminate. Each part that is given narrows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Findings of these runs; empty: of any.
    pub runs: BTreeSet<RunId>,
    /// Findings of runs with such labels.
    pub labels: Selector,
    /// Minimum age of the process.
    pub older: Duration,
    /// Findings with this evidence only; empty: with any that proves.
    pub evidence: BTreeSet<Evidence>,
    /// Exactly these processes; empty: all findings.
    pub processes: Vec<ProcessIdentity>,
}

/// A finding with the facts that the scope selects by.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The finding.
    pub finding: &'a Finding,
    /// Labels of its run; absent: not known.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Age of the process.
    pub age: Duration,
    /// Whether the process has the user of commands.
    pub own_user: bool,
    /// Whether the store was queried for its run.
    pub rows_compared: bool,
}

/// Decision on a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The scope does not select the finding.
    OutOfScope,
    /// The scope selects the finding, but its process is spared.
    Spared(Spared),
    /// The process may be terminated.
    Reap,
}

/// Reason why a selected process is spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// Its run has not ended.
    RunIsLive,
    /// Its evidence is no proof.
    NotProven,
    /// The marker is its only evidence, and the caller has not named that evidence.
    MarkerNotNamed,
    /// Nothing is known of its run, or of its run's labels.
    RunUnknown,
    /// The process belongs to another user.
    OtherUser,
    /// Nothing connects it with a run.
    Stray,
    /// Its run was to leave it running, and the caller has named neither the run nor that evidence.
    Kept,
    /// The process has exited already: only its parent can reap it.
    Zombie,
    /// A shim ends by itself, once nothing is left below it.
    Shim,
}

/// Decides about one finding.
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
    if matches!(finding.standing, Some(RunStatus::Live | RunStatus::Open)) {
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
            // The run's policy may have been to leave the process running.
            let unknown = finding.standing.is_none() && !candidate.rows_compared;
            (unknown && !run_named).then_some(Spared::RunUnknown)
        }
    }
}
