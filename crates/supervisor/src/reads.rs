//! What can be read: one run, lists, waits, events, the server itself.

use crate::{
    CallError, Condition, Event, Position, Reached, RunView, ServerInfo, Supervisor, Waited,
    blocking::blocking,
    event, recover,
    shape::Shape,
    store_fault,
    tracker::Handle,
    view::{Live, StartAnswer},
};
use kennel_journal::{Form, Hub, Point, Position as JournalPosition, Reader};
use kennel_lifecycle::{RunId, RunIdentity, RunState};
use kennel_linux::{peer, rundir};
use kennel_store::{ListFilter, PageStart, RunRow};
use std::{collections::BTreeMap, io, path::Path, time::Duration};

/// How long the store may take to say that it is there.
const PING_MAX: Duration = Duration::from_secs(1);
/// How often an open row that no task here holds, such as one of another node, is looked at while somebody waits.
pub(crate) const OPEN_ROW_POLL: Duration = Duration::from_secs(1);

/// Events of one run, from a position on. Ends after `Ended`.
#[derive(Debug)]
pub struct Events {
    run: RunId,
    /// Absent: the run never came to have a journal.
    reader: Option<Reader>,
    /// Absent: all is given as it is.
    shape: Option<Shape>,
}

/// Where the events of a run are.
enum EventsPlace {
    /// In the journal that its task writes.
    Growing(Box<RunView>, Hub),
    /// In the journal that is left of it. The run as its task knows it, where it still has one: the store may be away, and
    /// know less.
    Whole(Option<Box<RunView>>),
}

impl Events {
    fn of(run: RunId, reader: Option<Reader>) -> Self {
        Self {
            run,
            reader,
            shape: None,
        }
    }

    /// The same with output in this form, from what was reached in it before.
    pub async fn viewed(mut self, form: Form, at: Option<Reached>) -> Result<Self, CallError> {
        if let Some(reader) = &self.reader {
            let fed_from = at.and_then(|at| at.fed_from);
            let shape = Shape::at(form, reader, fed_from).await;
            self.shape = Some(shape.map_err(|e| unreadable(self.run, &e))?);
        }
        Ok(self)
    }

    /// How much of standard output and of standard error there is now.
    pub(crate) fn head_lens(&self) -> [u64; 2] {
        self.reader.as_ref().map_or([0; 2], |r| r.end().lens)
    }

    /// Where they come from.
    pub(crate) fn into_reader(self) -> Option<Reader> {
        self.reader
    }

    /// Last seq that there is now.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.reader.as_ref().map_or(0, |reader| reader.end().seq)
    }

    /// The seq from which on nothing is missing by now; 0: there is nothing yet.
    #[must_use]
    pub fn whole_from(&self) -> u64 {
        self.reader.as_ref().map_or(0, Reader::whole_from)
    }

    /// Up to where it was given.
    #[must_use]
    pub fn position(&self) -> Reached {
        let reader = self.reader.as_ref();
        let reached = reader.map_or_else(Reached::default, |reader| reader.position().into());
        Reached {
            fed_from: self.shape.as_ref().and_then(Shape::fed_from),
            ..reached
        }
    }

    /// The next events, at least one, at most `bytes_max` bytes of output (but always one). Waits while there is
    /// none; `None` after the run's last. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> Result<Option<Vec<Event>>, CallError> {
        let run = self.run;
        let Some(reader) = &mut self.reader else {
            return Ok(None);
        };
        loop {
            let items = match reader.next(bytes_max).await {
                Ok(Some(items)) => items.into_iter(),
                Ok(None) => return Ok(None),
                Err(error) => return Err(unreadable(run, &error)),
            };
            // INVARIANT: what was read is given, or is in the shape, before anything is awaited again.
            let events = items.map(|item| event::decode(run, item));
            let Some(shape) = &mut self.shape else {
                return events.collect::<Result<_, _>>().map(Some);
            };
            let mut shaped = Vec::new();
            for event in events {
                shape.shape(event?, &mut shaped);
            }
            if !shaped.is_empty() {
                return Ok(Some(shaped));
            }
        }
    }
}

impl Supervisor {
    /// One run.
    pub async fn get(&self, run: RunId) -> Result<RunView, CallError> {
        if let Some(handle) = self.shared.find(run)
            && let Some(live) = settled(&handle).await
        {
            return Ok(live.view);
        }
        Ok(self.row(run).await?.into())
    }

    /// Runs, newest first, and where the next page begins, if there is one.
    pub async fn list(
        &self,
        filter: ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<(Vec<RunView>, Option<PageStart>), CallError> {
        let wanted = filter.states.clone();
        let filter = ListFilter {
            states: stored_states(&wanted),
            ..filter
        };
        let limit = limit.max(1);
        let mut page = Vec::new();
        let mut at = start;
        loop {
            let rows = self
                .shared
                .store
                .list(&filter, at, limit)
                .await
                .map_err(|e| store_fault(&e))?;
            let all = rows.len() < limit as usize;
            for row in rows {
                let place = PageStart {
                    created: row.new.created,
                    run: row.new.run,
                };
                let view = self.freshest(row);
                at = Some(place);
                if wanted.is_empty() || wanted.contains(&view.state) {
                    page.push(view);
                    if page.len() == limit as usize {
                        return Ok((page, at));
                    }
                }
            }
            if all {
                return Ok((page, None));
            }
        }
    }

    /// Waits for a condition, for as long as the caller waits.
    pub async fn wait(&self, run: RunId, condition: Condition) -> Result<Waited, CallError> {
        loop {
            if let Some(handle) = self.shared.find(run) {
                let mut live = handle.live.clone();
                let met = live
                    .wait_for(|live| live.over || live.meets(condition).is_some())
                    .await
                    .map(|live| live.clone());
                if let Ok(live) = met
                    && let Some(reached) = live.meets(condition)
                {
                    return Ok(Waited {
                        reached,
                        run: live.view,
                    });
                }
            }
            let view = RunView::from(self.row(run).await?);
            if let Some(reached) = view.meets(condition) {
                return Ok(Waited { reached, run: view });
            }
            if self.shared.find(run).is_none() {
                tokio::time::sleep(OPEN_ROW_POLL).await;
            }
        }
    }

    /// The run as it is, and its events from a position on. The last seq at this moment is [`Events::head`].
    pub async fn events(&self, run: RunId, from: Position) -> Result<(RunView, Events), CallError> {
        let view = match self.events_place(run).await? {
            EventsPlace::Growing(view, hub) => {
                let after = after(run, from, hub.head())?;
                let reader = hub.read_from(after.into());
                let reader = reader.map_err(|e| unreadable(run, &e))?;
                return Ok((*view, Events::of(run, Some(reader))));
            }
            EventsPlace::Whole(Some(view)) => *view,
            EventsPlace::Whole(None) => RunView::from(self.row(run).await?),
        };
        let dir = rundir::path(&self.shared.config.data_dir, run);
        // The whole index is looked through, which may be long.
        let opened = blocking(move || Reader::open_ended(&dir, JournalPosition::default())).await;
        let mut reader = match opened.flatten() {
            Ok(reader) => reader,
            Err(error) if error.kind() == io::ErrorKind::NotFound && view.identity.is_none() => {
                after(run, from, Point::default())?;
                return Ok((view, Events::of(run, None)));
            }
            Err(error) => return Err(unreadable(run, &error)),
        };
        reader.move_to(after(run, from, reader.end())?.into());
        Ok((view, Events::of(run, Some(reader))))
    }

    /// Where a run's events are, once that is known.
    async fn events_place(&self, run: RunId) -> Result<EventsPlace, CallError> {
        let Some(handle) = self.shared.find(run) else {
            return Ok(EventsPlace::Whole(None));
        };
        let has_ended = |live: &Live| live.hub.is_none() && live.view.outcome.is_some();
        let known =
            |live: &Live| live.hub.is_some() || live.no_journal || live.over || has_ended(live);
        let mut live = handle.live.clone();
        let Ok(live) = live.wait_for(known).await.map(|live| live.clone()) else {
            return Ok(EventsPlace::Whole(None));
        };
        if !live.over && has_ended(&live) {
            return Ok(EventsPlace::Whole(Some(Box::new(live.view))));
        }
        if !live.over && live.no_journal {
            let why = io::Error::other("it could not be opened when this server took the run over");
            return Err(unreadable(run, &why));
        }
        Ok(match live.hub {
            Some(hub) => EventsPlace::Growing(Box::new(live.view), hub),
            None => EventsPlace::Whole(None),
        })
    }

    /// What this server is.
    pub async fn info(&self) -> ServerInfo {
        let shared = &self.shared;
        let ping = tokio::time::timeout(PING_MAX, shared.store.ping()).await;
        let mut live = BTreeMap::new();
        for (_, handle) in shared.running() {
            *live.entry(handle.live.borrow().view.state).or_insert(0) += 1;
        }
        ServerInfo {
            node: shared.config.node,
            node_name: shared.config.node_name.clone(),
            generation: shared.store.generation().unwrap_or_default(),
            keeper: shared.hello.clone(),
            store: shared.store.describe(),
            store_reachable: matches!(ping, Ok(Ok(()))) && !shared.facts.any_owed(),
            live,
            started: shared.started,
            runs_max: shared.config.runs_max,
            drain: self.drain_status(),
        }
    }

    /// Whether a process (by its pid) is a run's own: then it has no rights here.
    #[must_use]
    pub fn owns_process(&self, pid: i32) -> bool {
        let base = self.shared.hello.cgroup_base.as_ref().ok();
        if base.is_some_and(|base| peer::in_cgroup(pid, base)) {
            return true;
        }
        // Their numbers may be strangers' by now where they have ended.
        let live = self.shared.running().into_iter();
        let live = live.filter_map(|(_, handle)| handle.live.borrow().view.identity.clone());
        let live: Vec<RunIdentity> = live.collect();
        // The group of a run that an earlier keeper has begun is not below this one's.
        let groups = live.iter().filter_map(|run| run.cgroup.as_ref());
        let mut groups = groups.map(|group| Path::new(&group.path));
        let elsewhere = |group: &&Path| base.is_none_or(|base| !group.starts_with(base));
        if groups.any(|group| elsewhere(&group) && peer::in_cgroup(pid, group)) {
            return true;
        }
        let shims: Vec<i32> = live.iter().map(|run| run.shim.pid).collect();
        peer::descends_from(pid, &shims)
    }

    /// The row of a run that is not live. An open one of this node that no task holds is taken in hand by recovery. What
    /// an earlier server has told while the store was away is told here, wherever the store is.
    pub(crate) async fn row(&self, run: RunId) -> Result<RunRow, CallError> {
        if let Some(row) = self.shared.facts.ended(run) {
            return Ok(row);
        }
        let read = async || {
            if self.shared.facts.owes(run) {
                return Err(CallError::StoreUnavailable);
            }
            self.shared
                .store
                .get(run)
                .await
                .map_err(|e| store_fault(&e))
        };
        let row = read().await?.ok_or(CallError::RunNotFound(run))?;
        if row.outcome.is_some() || row.new.node != self.shared.config.node {
            return Ok(row);
        }
        // It may have ended between the look at the tracker and the read.
        if self.shared.find(run).is_some() {
            return Ok(row);
        }
        let row = read().await?.ok_or(CallError::RunNotFound(run))?;
        // Of a later generation it is another server's, and so is everything about it.
        let ours = self.shared.store.generation().unwrap_or_default();
        if row.outcome.is_none() && row.new.generation <= ours {
            recover::take_in_hand(&self.shared, row.clone());
        }
        Ok(row)
    }

    fn freshest(&self, row: RunRow) -> RunView {
        // The live view of what has ended may not have heard of it yet.
        let handle = match &row.outcome {
            Some(_) => None,
            None => self.shared.find(row.new.run),
        };
        match handle.map(|handle| handle.live.borrow().clone()) {
            Some(live) if !live.over => live.view,
            _ => row.into(),
        }
    }
}

/// The live state, once it is more than a start whose record is not known; `None` when the store has the last word.
async fn settled(handle: &Handle) -> Option<Live> {
    let mut live = handle.live.clone();
    let live = live
        .wait_for(|live| {
            live.over
                || !matches!(
                    live.start,
                    Some(StartAnswer::Failed(_) | StartAnswer::Taken(_))
                )
        })
        .await
        .map(|live| live.clone())
        .ok()?;
    (!live.over).then_some(live)
}

/// An open state in the store may be another one by now: all open rows are looked at where one is asked for.
fn stored_states(wanted: &[RunState]) -> Vec<RunState> {
    const OPEN: [RunState; 5] = [
        RunState::Starting,
        RunState::Running,
        RunState::Paused,
        RunState::Stopping,
        RunState::Backoff,
    ];
    let mut states: Vec<RunState> = wanted.iter().copied().filter(|s| s.is_terminal()).collect();
    if states.len() < wanted.len() {
        states.extend(OPEN);
    }
    states
}

fn after(run: RunId, from: Position, head: Point) -> Result<Reached, CallError> {
    match from {
        Position::Beginning => Ok(Reached::default()),
        Position::LiveOnly => Ok(JournalPosition::from(head).into()),
        Position::After(at) if at.seq > head.seq => Err(CallError::CursorAhead {
            run,
            asked: at.seq,
            head: head.seq,
        }),
        Position::After(at) => Ok(at),
    }
}

pub(crate) fn unreadable(run: RunId, error: &io::Error) -> CallError {
    CallError::JournalUnreadable {
        run,
        why: error.to_string(),
    }
}
