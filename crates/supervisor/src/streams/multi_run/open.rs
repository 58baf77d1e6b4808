//! Members of a multi-run stream, and how each is opened.

use super::ManyCall;
use crate::{
    base::{
        OPEN_ROW_POLL,
        calls::{CallError, Position, RunView},
        view::Live,
    },
    registry::Supervisor,
    streams::events::Events,
};
use kennel_lifecycle::RunId;
use kennel_store::{Age, ListFilter, ListOrder, StoreError};
use tokio::sync::watch;

/// Rows read together.
const PAGE_ROWS: u32 = 64;

/// A run and its events; without these, none can be read before its node is there again. Absent: the run does not exist,
/// or does not match. An error comes with the run's age where that is known.
pub(super) type OpenResult = Result<Option<Box<OpenedRun>>, (CallError, Option<Age>)>;

/// A run that is found.
pub(super) struct OpenedRun {
    pub(super) view: RunView,
    pub(super) events: Option<Events>,
    /// The live run, which has its age before it ends; absent: the view is that of a row, which has it.
    pub(super) live: Option<watch::Receiver<Live>>,
}

/// A run to be opened.
#[derive(Clone, Copy)]
pub(super) struct RunCandidate {
    pub(super) run: RunId,
    pub(super) from: Position,
    /// The run takes a slot for ended runs.
    pub(super) is_past: bool,
    /// It was opened before, and its journal came to an end that is not the run's.
    pub(super) is_again: bool,
}

/// Returns rows of the node that may match, the oldest first, and where the next page begins.
pub(super) async fn page(
    supervisor: Supervisor,
    call: ManyCall,
    after: Option<Age>,
) -> Result<(Vec<RunView>, Option<Age>), CallError> {
    let filter = ListFilter {
        nodes: vec![call.node],
        order: ListOrder::OldestFirst,
        ..call.filter
    };
    let after = after.map(|age| filter.order.end_of(age));
    loop {
        match supervisor.page(&filter, after, PAGE_ROWS).await {
            // Rows wait for the store; live events do not.
            Err(CallError::StoreUnavailable) => tokio::time::sleep(OPEN_ROW_POLL).await,
            Err(error) => return Err(error),
            // An unreadable row must not hide a run's events.
            Ok(page) => {
                return match page.unread.into_iter().next() {
                    Some(unread) => Err(StoreError::from(unread).into()),
                    None => Ok((page.runs, page.next.map(|next| next.age))),
                };
            }
        }
    }
}

/// Opens a run once it matches. Absent: it never will, or does not exist.
pub(super) async fn open(
    supervisor: Supervisor,
    call: ManyCall,
    candidate: RunCandidate,
) -> OpenResult {
    let run = candidate.run;
    // A matched run stays in the stream.
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
            live.over || live.view.state.is_terminal() || live.view.fits(&call.filter)
        });
        has_matched = decided.await.is_ok_and(|live| live.view.fits(&call.filter));
    }
    let node = call.node;
    let is_of_records = node != supervisor.shared.config.node;
    // A client chose the position: the filter must still match the run.
    let is_wanted = |view: &RunView| {
        let filter = &call.filter;
        view.node == node && view.has_marks(filter) && (has_matched || view.fits(filter))
    };
    loop {
        let live = supervisor.shared.find(run).map(|handle| handle.live);
        let opened = supervisor.events(run, candidate.from).await;
        let (view, events) = match opened {
            Ok(opened) => opened,
            Err(CallError::StoreUnavailable) => {
                tokio::time::sleep(OPEN_ROW_POLL).await;
                continue;
            }
            // The run's node is forgotten, and the record has no events or is still open.
            Err(CallError::RunElsewhere { .. }) if is_of_records => {
                match supervisor.get(run).await {
                    Ok(view) if !is_wanted(&view) => return Ok(None),
                    Ok(view) if view.outcome.is_some() => {
                        let events = None;
                        return Ok(Some(Box::new(OpenedRun { view, events, live })));
                    }
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
                    Ok(view) => Err((error, view.new.age.known())),
                    Err(_) => Err((error, None)),
                };
            }
            Err(error) => return Err((error, None)),
        };
        if !is_wanted(&view) {
            return Ok(None);
        }
        if view.new.age.known().is_none() && live.is_none() {
            // The run has entered since.
            continue;
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
                viewed.map_err(|error| (error, view.new.age.known()))?
            }
            None => events,
        };
        let events = Some(events.subscribed());
        return Ok(Some(Box::new(OpenedRun { view, events, live })));
    }
}
