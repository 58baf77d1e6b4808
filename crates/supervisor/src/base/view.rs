//! The state of a run as callers see it, and the progress of its start and its stop.

use crate::base::calls::{CallError, Condition, RunView};
use kennel_journal::Hub;
use kennel_lifecycle::{Activity, RunIdPart, RunIdentity, RunState, Timestamp, Wait};
use kennel_store::{Desired, ListFilter, RunRow, StoredState};
use std::collections::BTreeMap;

/// State that a run's task publishes after each step.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// The run.
    pub(crate) view: RunView,
    /// Result of the start; absent: not decided yet.
    pub(crate) start: Option<StartAnswer>,
    /// Source of readers; absent: nothing has been written to the journal yet.
    pub(crate) hub: Option<Hub>,
    /// The journal cannot be opened: there will be no source of readers.
    pub(crate) no_journal: bool,
    /// A stop was requested and is not on the row yet.
    pub(crate) stop_pending: bool,
    /// The task has ended: the store decides.
    pub(crate) over: bool,
}

impl Live {
    /// Whether the present attempt has processes, or may have: it has not ended, and the run waits for no other one.
    pub(crate) fn is_at_work(&self) -> bool {
        let view = &self.view;
        let has_ended = self.over || view.state.is_terminal() || view.times.tree_empty.is_some();
        !has_ended && view.state != RunState::Backoff
    }

    /// As [`RunView::meets`], where the view can be shown: not the view of a run that was abandoned without a trace,
    /// and not that of an ended task while the store knows more.
    pub(crate) fn meets(&self, condition: Condition) -> Option<bool> {
        let view = &self.view;
        let is_decided = view.outcome.is_some() || !(self.over || view.state.is_terminal());
        is_decided.then(|| view.meets(condition)).flatten()
    }
}

/// Result of a start.
#[derive(Clone, Debug)]
pub(crate) enum StartAnswer {
    /// The command runs, or has run.
    Started,
    /// The command does not run.
    Failed(CallError),
    /// Another row has the key.
    Taken(Box<RunRow>),
}

impl From<RunRow> for RunView {
    fn from(mut row: RunRow) -> Self {
        let state = match row.state {
            StoredState::Ended(state) => state,
            _ if row.desired == Desired::Stop => RunState::Stopping,
            StoredState::Starting => RunState::Starting,
            StoredState::Running | StoredState::Pausing => RunState::Running,
            StoredState::Paused => RunState::Paused,
            StoredState::Backoff => RunState::Backoff,
        };
        let waits = matches!(row.state, StoredState::Backoff);
        let last = row.past.last().filter(|_| waits);
        // An attempt that did not start leaves the previous attempt's process on the row.
        let own = last.map(|last| last.leader);
        let past = row.past.iter().filter(|_| !waits).map(|past| past.leader);
        let past: Vec<_> = past.collect();
        let its_own = |seen: &RunIdentity| {
            own.is_none_or(|leader| leader == Some(seen.command))
                && !past.contains(&Some(seen.command))
        };
        let exit = last.map_or(row.outcome.as_ref(), |last| Some(&last.outcome));
        let exit = exit.and_then(|outcome| outcome.exit);
        row.new.identity = row.new.identity.filter(its_own);
        row.entries = None;
        Self {
            row: Box::new(row),
            state,
            exit,
            // Only the run's task knows of pauses.
            limit_ends: BTreeMap::new(),
            pause_expires: None,
            terminal: None,
            stuck: None,
            elsewhere: None,
            left_stop: None,
            pinned: None,
        }
    }
}

/// Whether a part of a filter that lists what it selects is met; an empty one is.
fn any<T>(wanted: &[T], is: impl Fn(&T) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(is)
}

impl RunView {
    /// Whether it matches the parts of a filter that never change for it. [`ListFilter::below`] is tested by the store alone.
    pub(crate) fn has_marks(&self, filter: &ListFilter) -> bool {
        let [newest, oldest, _] = filter.ages.bounds();
        let is_named = |part: &RunIdPart| part.matches(self.run);
        let name = self.spec.name.as_deref();
        filter.labels.matches(&self.spec.labels)
            && filter.id_part.as_ref().is_none_or(is_named)
            && (filter.parent).is_none_or(|run| self.spec.parent.is_some_and(|own| own.run == run))
            && filter
                .owner
                .as_ref()
                .is_none_or(|owner| *owner == self.owner)
            && any(&filter.owners, |owner| *owner == self.owner)
            && any(&filter.kinds, |kind| *kind == self.policy().kind)
            && any(&filter.runs, |run| *run == self.run)
            && any(&filter.names, |pattern| {
                name.is_some_and(|name| pattern.matches(name))
            })
            && newest.is_none_or(|newest| self.created <= newest)
            && oldest.is_none_or(|oldest| self.created >= oldest)
    }

    /// Whether it matches a filter now.
    pub fn fits(&self, filter: &ListFilter) -> bool {
        let (reports, doing) = (&filter.reports, self.facets.activity_of(self.attempt));
        let ends_for = |reason: &String| {
            let outcome = self.outcome.as_ref();
            outcome.is_some_and(|outcome| outcome.reason.name() == reason)
        };
        let [.., last_end] = filter.ages.bounds();
        any(&filter.states, |state| *state == self.state)
            && any(&reports.activities, |activity| *activity == doing)
            && any(&reports.waits, |wait| *wait == self.waits_for())
            && reports
                .is_ready
                .is_none_or(|is_ready| is_ready == self.is_ready())
            && (reports.annotations.iter())
                .all(|wanted| wanted.matches(&self.facets.annotations.pairs))
            && any(&filter.end_reasons, ends_for)
            && last_end.is_none_or(|last| self.times.ended.is_some_and(|ended| ended <= last))
            && self.has_marks(filter)
    }

    /// Returns what the run waits for, where that is known.
    pub fn waits_for(&self) -> Option<Wait> {
        match self.state {
            RunState::Backoff if self.next_restart == Some(Timestamp::NEVER) => Some(Wait::Restart),
            RunState::Backoff => Some(Wait::Attempt),
            RunState::Running
                if self.facets.activity_of(self.attempt) == Some(Activity::AwaitingInput) =>
            {
                Some(Wait::Input)
            }
            RunState::Running if self.policy().has_ready_sign() && !self.is_ready() => {
                Some(Wait::Ready)
            }
            _ => None,
        }
    }

    /// Whether the present attempt is ready; without a readiness condition it is, once its command runs.
    pub fn is_ready(&self) -> bool {
        if self.policy().has_ready_sign() {
            self.facets.is_ready(self.attempt)
        } else {
            self.times.started.is_some()
        }
    }

    /// Whether the condition holds (`Some(true)`), can no longer occur (`Some(false)`), or may yet.
    pub(crate) fn meets(&self, condition: Condition) -> Option<bool> {
        let ended = self.state.is_terminal();
        let met = match condition {
            Condition::Started => self.times.started.is_some(),
            Condition::Paused => self.state == RunState::Paused,
            Condition::LeaderExited => self.times.leader_exited.is_some(),
            Condition::StreamsClosed => self.times.streams_closed.is_some(),
            Condition::TreeEmpty => self.times.tree_empty.is_some(),
            Condition::Ended => ended,
            Condition::Ready => self.is_ready(),
        };
        let possible = match condition {
            Condition::Paused => !ended && self.state != RunState::Stopping,
            _ => !ended,
        };
        match (met, possible) {
            (true, _) => Some(true),
            (false, false) => Some(false),
            (false, true) => None,
        }
    }
}
