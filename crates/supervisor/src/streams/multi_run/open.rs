//! Members of a multi-run stream, and how each is opened.

use super::{Age, ManyCall};
use crate::{
    base::{
        OPEN_ROW_POLL,
        calls::{CallError, Position, RunView},
        clock,
    },
    registry::Supervisor,
    streams::events::Events,
};
use kennel_lifecycle::{RunId, RunIdPart};
use kennel_store::{ListFilter, ListOrder, PageStart, StoreError};
use std::time::Duration;

/// Rows read together.
const PAGE_ROWS: u32 = 64;
/// Time after which an accepted run is certainly among the live ones, or in the store.
const SETTLES_AFTER: Duration = Duration::from_secs(10);

/// A run and its events; without these, none can be read before its node is there again. Absent: the run does not exist,
/// or does not match. An error comes with the run's age where that is known.
pub(super) type Opened = Result<Option<Box<(RunView, Option<Events>)>>, (CallError, Option<Age>)>;

/// A run to be opened.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) run: RunId,
    pub(super) from: Position,
    /// The run takes a slot for ended runs.
    pub(super) is_past: bool,
    /// It was opened before, and its journal came to an end that is not the run's.
    pub(super) is_again: bool,
}

/// Returns the age up to which all runs are known, where new ones are announced.
pub(super) fn settled(supervisor: &Supervisor) -> Age {
    let mut at = clock::now();
    at.0 -= i64::try_from(SETTLES_AFTER.as_micros()).unwrap_or_default();
    Age::newest(supervisor.shared.announced_until(at))
}

/// Whether a run matches the parts of a filter that never change for it.
pub(super) fn has_marks(filter: &ListFilter, view: &RunView) -> bool {
    let is_named = |part: &RunIdPart| part.matches(view.run);
    filter.labels.matches(&view.spec.labels)
        && filter.id_part.as_ref().is_none_or(is_named)
        && (filter.parent).is_none_or(|run| view.spec.parent.is_some_and(|own| own.run == run))
        && filter
            .owner
            .as_ref()
            .is_none_or(|owner| *owner == view.owner)
        && (filter.kinds.is_empty() || filter.kinds.contains(&view.policy().kind))
}

pub(super) fn fits(filter: &ListFilter, view: &RunView) -> bool {
    let is_state = filter.states.is_empty() || filter.states.contains(&view.state);
    is_state && has_marks(filter, view)
}

/// Returns rows of the node that may match, the oldest first, and where the next page begins.
pub(super) async fn page(
    supervisor: Supervisor,
    call: ManyCall,
    after: Option<PageStart>,
) -> Result<(Vec<RunView>, Option<PageStart>), CallError> {
    let filter = ListFilter {
        node: Some(call.node),
        order: ListOrder::OldestFirst,
        ..call.filter
    };
    loop {
        match supervisor.page(&filter, after, PAGE_ROWS).await {
            // Rows wait for the store; live events do not.
            Err(CallError::StoreUnavailable) => tokio::time::sleep(OPEN_ROW_POLL).await,
            Err(error) => return Err(error),
            // No event of a run of the node is left out.
            Ok(page) => {
                return match page.unread.into_iter().next() {
                    Some(unread) => Err(StoreError::from(unread).into()),
                    None => Ok((page.runs, page.next)),
                };
            }
        }
    }
}

/// Opens a run once it matches. Absent: it never will, or does not exist.
pub(super) async fn open(supervisor: Supervisor, call: ManyCall, candidate: Candidate) -> Opened {
    let run = candidate.run;
    // A run that has matched stays.
    let mut has_matched = candidate.is_again || matches!(candidate.from, Position::After(_));
    if candidate.is_again {
        tokio::time::sleep(OPEN_ROW_POLL).await;
    }
    if !has_matched
        && !call.until_head
        && let Some(handle) = supervisor.shared.find(run)
    {
        let mut live = handle.live.clone();
        let decided = live.wait_for(|live| {
            live.over || live.view.state.is_terminal() || fits(&call.filter, &live.view)
        });
        has_matched = decided
            .await
            .is_ok_and(|live| fits(&call.filter, &live.view));
    }
    let node = call.node;
    let is_of_records = node != supervisor.shared.config.node;
    // A position comes from the client: the run must still be one of the filter.
    let is_wanted = |view: &RunView| {
        let filter = &call.filter;
        view.node == node && has_marks(filter, view) && (has_matched || fits(filter, view))
    };
    loop {
        let opened = supervisor.events(run, candidate.from).await;
        let (view, events) = match opened {
            Ok(opened) => opened,
            Err(CallError::StoreUnavailable) => {
                tokio::time::sleep(OPEN_ROW_POLL).await;
                continue;
            }
            // Its node is forgotten, and its record has no events, or is not closed yet.
            Err(CallError::RunElsewhere { .. }) if is_of_records => {
                match supervisor.get(run).await {
                    Ok(view) if !is_wanted(&view) => return Ok(None),
                    Ok(view) if view.outcome.is_some() => return Ok(Some(Box::new((view, None)))),
                    Err(CallError::RunNotFound(_)) => return Ok(None),
                    Ok(_) if call.until_head => return Ok(None),
                    Ok(_) | Err(_) => tokio::time::sleep(OPEN_ROW_POLL).await,
                }
                continue;
            }
            Err(CallError::RunNotFound(_) | CallError::RunElsewhere { .. }) => return Ok(None),
            Err(error @ CallError::JournalUnreadable { .. }) => {
                return match supervisor.get(run).await {
                    Ok(view) if !is_wanted(&view) => Ok(None),
                    Err(CallError::RunNotFound(_)) => Ok(None),
                    Ok(view) => Err((error, Some(Age::of(&view)))),
                    Err(_) => Err((error, None)),
                };
            }
            Err(error) => return Err((error, None)),
        };
        if !is_wanted(&view) {
            return Ok(None);
        }
        let events = events.of_kinds(call.kinds);
        let events = if call.until_head {
            events.until_head()
        } else {
            events
        };
        let at = match candidate.from {
            Position::After(at) => Some(at),
            Position::Beginning | Position::LiveOnly | Position::Tail(_) => None,
        };
        let events = match call.form {
            Some(form) => {
                let viewed = events.viewed(form, at).await;
                viewed.map_err(|error| (error, Some(Age::of(&view))))?
            }
            None => events,
        };
        return Ok(Some(Box::new((view, Some(events.subscribed())))));
    }
}
