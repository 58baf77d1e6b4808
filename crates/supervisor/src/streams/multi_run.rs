//! Events of many runs: of all that match a filter, existing and future ones.
//!
//! Each run has a reader of its own, which waits for news of its journal and holds no events meanwhile. A few of those
//! with news are read at a time, in turns, so that neither a busy run nor a slow disk delays the others. Ended runs are
//! opened a few at a time, the oldest first.

mod begin;
mod cursor;
mod open;

pub use cursor::ManyReached;

use crate::{
    base::{
        calls::{CallError, Event, Kinds, Payload, Position, Reached, RunView},
        view::Live,
    },
    registry::Supervisor,
    streams::events::Events,
};
use kennel_journal::Form;
use kennel_journal::Tail;
use kennel_lifecycle::{NodeId, RunId};
use kennel_store::{Age, ListFilter};
use open::{OpenResult, OpenedRun, RunCandidate, open, page};
use std::collections::{HashSet, VecDeque};
use tokio::{
    sync::{
        broadcast::{Receiver, error::RecvError},
        watch,
    },
    task::JoinSet,
};

/// Most runs whose events are read at the same time.
const READS_MAX: usize = 8;
/// Most ended runs that are open at the same time.
const PAST_OPEN_MAX: usize = 16;

/// Selects runs and events.
#[derive(Clone, Debug)]
pub struct ManyCall {
    /// The node whose runs they are: this one, or a forgotten one, of whose runs the records are read.
    pub node: NodeId,
    /// Filter of its runs. A run that has matched stays.
    pub filter: ListFilter,
    /// Position to start from.
    pub from: ManyFrom,
    /// Form of output; absent: as written.
    pub form: Option<Form>,
    /// Kinds of events.
    pub kinds: Kinds,
    /// Whether it ends when all present events have been given.
    pub until_head: bool,
    /// Whether it ends where events are missing.
    pub fails_on_gap: bool,
}

/// Position to start from. Runs that come later are given from their beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManyFrom {
    /// All existing runs from their beginning.
    Beginning,
    /// For runs that have not ended, events from now on.
    LiveOnly,
    /// All existing runs from the beginning of their output's tail.
    Tail(Tail),
    /// From the position of an earlier reader.
    After(ManyReached),
}

/// Next step of the stream.
#[derive(Debug)]
pub enum Step {
    /// The first step of each run.
    Begun {
        /// The run as it is.
        view: Box<RunView>,
        /// Its last present seq.
        head: u64,
        /// Seq from which on nothing is missing.
        whole_from: u64,
        /// Last seq that was given before.
        at: u64,
    },
    /// Events of a run, in its order.
    Events {
        /// Id of the run.
        run: RunId,
        /// The events, at least one.
        events: Vec<Event>,
    },
    /// No more events of a run can be given; the position has passed it.
    Broken(CallError),
}

/// A run that is being read.
struct Member {
    /// Absent: it had no row when it was opened.
    age: Option<Age>,
    live: Option<watch::Receiver<Live>>,
    run: RunId,
    events: Events,
    /// Whether its end was known when it was opened.
    was_over: bool,
    is_past: bool,
}

impl Member {
    fn age(&self) -> Option<Age> {
        let live = self.live.as_ref();
        self.age.or_else(|| live?.borrow().view.new.age.known())
    }
}

enum StreamWake {
    Opened(RunCandidate, OpenResult),
    Ready(Box<Member>),
    Read(Box<Member>, Result<Option<Vec<Event>>, CallError>),
    /// Some rows, and whether they are the last.
    Page(Result<(Vec<RunView>, Option<Age>), CallError>),
}

/// Progress of the rows.
#[derive(Clone, Copy)]
enum Paging {
    /// All rows were read.
    Done,
    /// Rows behind this age, or all, remain.
    After(Option<Age>),
}

/// Events of many runs.
pub struct ManyEvents {
    supervisor: Supervisor,
    call: ManyCall,
    reached: ManyReached,
    /// Runs up to this age are read page by page; all above it are announced.
    heard_from: Age,
    /// No run that is not known to this stream has an age up to this one, but for those that pages are still to show.
    heard_until: Age,
    paging: Paging,
    is_paging: bool,
    arrivals: Receiver<RunId>,
    tasks: JoinSet<StreamWake>,
    ready: VecDeque<Box<Member>>,
    reading: usize,
    past: VecDeque<RunCandidate>,
    past_open: usize,
    /// Runs known to this stream.
    known: HashSet<RunId>,
    /// Those of them that have arrived again meanwhile: the run that was found may be the remains of a failed Spawn.
    arrived_again: HashSet<RunId>,
}

impl Supervisor {
    /// Opens the events of all runs that match.
    pub fn events_of_many(&self, call: ManyCall) -> ManyEvents {
        // Arrivals are received from here on, before the existing runs are listed.
        let arrivals = self.shared.arrivals.subscribe();
        let reached = self.begin_of_many(&call);
        let paging = match &call.from {
            ManyFrom::Beginning | ManyFrom::Tail(_) => Paging::After(None),
            ManyFrom::LiveOnly => Paging::Done,
            ManyFrom::After(reached) => Paging::After(reached.known_until()),
        };
        // With the store unavailable, or for another node, no run is known as announced.
        let acquired = self.shared.store.newest_if_acquired();
        let is_own = call.node == self.shared.config.node;
        let mut many = ManyEvents {
            supervisor: self.clone(),
            call,
            reached,
            heard_from: acquired.filter(|_| is_own).unwrap_or(Age::MAX),
            heard_until: Age::NONE,
            paging,
            is_paging: false,
            arrivals,
            tasks: JoinSet::new(),
            ready: VecDeque::new(),
            reading: 0,
            past: VecDeque::new(),
            past_open: 0,
            known: HashSet::new(),
            arrived_again: HashSet::new(),
        };
        let open: Vec<_> = many.reached.open.iter().map(|(r, at)| (*r, *at)).collect();
        for (run, at) in open {
            many.take_in(run, (at != Reached::default()).then_some(at));
        }
        many.consider_live();
        many
    }
}

impl ManyEvents {
    /// Returns the position up to which events were given.
    pub fn reached(&self) -> &ManyReached {
        &self.reached
    }

    /// Returns the next step; `None` where everything requested has been given. Waits while there is none. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> Result<Option<Step>, CallError> {
        loop {
            // `heard_until` is read before the arrivals.
            if !self.is_of_other_node() {
                let shared = &self.supervisor.shared;
                self.heard_until = shared.announced_until(shared.store.newest());
            }
            self.fill(bytes_max);
            let is_idle = self.tasks.is_empty() && self.ready.is_empty();
            if self.call.until_head && is_idle {
                return Ok(None);
            }
            // INVARIANT: every arrival is known before any age counts as settled.
            let step = tokio::select! {
                biased;
                arrival = self.arrivals.recv() => {
                    self.arrived(&arrival);
                    None
                }
                Some(woken) = self.tasks.join_next() => match woken {
                    Ok(wake) => self.woken(wake)?,
                    Err(broken) => return Err(CallError::Internal(broken.to_string())),
                },
            };
            if step.is_some() {
                return Ok(step);
            }
        }
    }

    /// Starts work for which there is capacity.
    fn fill(&mut self, bytes_max: usize) {
        while self.reading < READS_MAX
            && let Some(mut member) = self.ready.pop_front()
        {
            self.reading += 1;
            self.tasks.spawn(async move {
                let read = member.events.step(bytes_max).await;
                StreamWake::Read(member, read)
            });
        }
        while self.past_open < PAST_OPEN_MAX
            && let Some(candidate) = self.past.pop_front()
        {
            self.past_open += 1;
            self.open(candidate);
        }
        if let Paging::After(after) = self.paging
            && self.past.is_empty()
            && !self.is_paging
        {
            self.is_paging = true;
            let page = page(self.supervisor.clone(), self.call.clone(), after);
            self.tasks
                .spawn(async move { StreamWake::Page(page.await) });
        }
    }

    fn woken(&mut self, wake: StreamWake) -> Result<Option<Step>, CallError> {
        match wake {
            StreamWake::Ready(member) => {
                self.ready.push_back(member);
                Ok(None)
            }
            StreamWake::Opened(candidate, opened) => self.opened(candidate, opened),
            StreamWake::Read(member, read) => {
                self.reading -= 1;
                self.read(member, read)
            }
            StreamWake::Page(page) => {
                self.is_paging = false;
                let (views, next) = page?;
                self.turn(&views, next);
                Ok(None)
            }
        }
    }

    fn arrived(&mut self, arrival: &Result<RunId, RecvError>) {
        match arrival {
            _ if self.call.until_head || self.is_of_other_node() => {}
            Ok(run) => {
                let handle = self.supervisor.shared.find(*run);
                match handle.map(|handle| handle.live.borrow().view.clone()) {
                    Some(view) if !view.has_marks(&self.call.filter) => {}
                    // The run was not given before, even if its age was covered. A run that has ended by now has its
                    // state in its row.
                    _ => self.take_in(*run, None),
                }
            }
            // Some arrivals were missed because too many came: the missed runs are live or have rows.
            Err(_) => {
                self.heard_from = self.supervisor.shared.store.newest();
                self.paging = Paging::After(self.reached.known_until());
                self.consider_live();
            }
        }
    }

    /// Adds the live runs that match.
    fn consider_live(&mut self) {
        if self.is_of_other_node() {
            return;
        }
        let shared = std::sync::Arc::clone(&self.supervisor.shared);
        for (run, handle) in shared.all() {
            if !shared.is_announced(run) {
                continue;
            }
            let view = handle.live.borrow().view.clone();
            // A live run was not given in full, whatever its age.
            let is_covered = view
                .new
                .age
                .known()
                .is_some_and(|age| self.reached.covers(age));
            let is_given = view.outcome.is_some() && is_covered;
            if !is_given && view.has_marks(&self.call.filter) {
                self.take_in(run, None);
            }
        }
    }

    fn is_of_other_node(&self) -> bool {
        self.call.node != self.supervisor.shared.config.node
    }

    /// Adds the rows of a page, up to the runs that are reported as they arrive.
    fn turn(&mut self, views: &[RunView], next: Option<Age>) {
        for view in views {
            let age = view.new.age.known().filter(|age| *age <= self.heard_from);
            let is_new = age.is_some_and(|age| !self.reached.covers(age));
            if is_new && view.fits(&self.call.filter) {
                self.take_in(view.run, None);
            }
        }
        let next = next.filter(|next| *next <= self.heard_from);
        self.paging = next.map_or(Paging::Done, |next| Paging::After(Some(next)));
        let listed = views.iter().filter_map(|view| view.new.age.known()).max();
        if self.is_of_other_node() {
            self.heard_until = listed.unwrap_or(self.heard_until);
        }
        let until = next.unwrap_or(self.heard_from.min(self.heard_until));
        self.reached.settle(until);
    }

    fn take_in(&mut self, run: RunId, at: Option<Reached>) {
        if !self.known.insert(run) {
            self.arrived_again.insert(run);
            return;
        }
        let handle = self.supervisor.shared.find(run);
        let age = handle
            .as_ref()
            .map(|h| h.live.borrow().view.new.age.known());
        let is_past = handle.is_none();
        let from = match (at, self.reached.tail) {
            (Some(at), _) => Position::After(at),
            // A live run without a row is new.
            (None, Some((tail, until)))
                if age.is_none_or(|age| age.is_some_and(|age| age <= until)) =>
            {
                Position::Tail(tail)
            }
            (None, _) => Position::Beginning,
        };
        self.reached.open.entry(run).or_default();
        let candidate = RunCandidate {
            run,
            from,
            is_past,
            is_again: false,
        };
        if is_past {
            self.past.push_back(candidate);
        } else {
            self.open(candidate);
        }
    }

    fn open(&mut self, candidate: RunCandidate) {
        let opening = open(self.supervisor.clone(), self.call.clone(), candidate);
        self.tasks
            .spawn(async move { StreamWake::Opened(candidate, opening.await) });
    }

    fn opened(
        &mut self,
        candidate: RunCandidate,
        opened: OpenResult,
    ) -> Result<Option<Step>, CallError> {
        let run = candidate.run;
        let (view, events, live) = match opened {
            Ok(Some(found)) => match *found {
                OpenedRun {
                    view,
                    events: Some(events),
                    live,
                } => (view, events, live),
                // The run's position stays.
                OpenedRun { view, .. } => {
                    self.past_open -= usize::from(candidate.is_past);
                    let at = self.reached.open.get(&run).copied().unwrap_or_default();
                    return Ok(Some(Step::Begun {
                        view: Box::new(view),
                        head: at.seq,
                        whole_from: at.seq,
                        at: at.seq,
                    }));
                }
            },
            Ok(None) => {
                self.close_without_trace(run, candidate.is_past);
                return Ok(None);
            }
            Err((error, age)) => return self.broken(run, candidate.is_past, age, error),
        };
        let member = Member {
            age: view.new.age.known(),
            live,
            run,
            was_over: view.outcome.is_some(),
            is_past: candidate.is_past,
            events,
        };
        let at = member.events.position();
        self.reached.open.insert(run, at);
        let begun = Step::Begun {
            head: member.events.head(),
            whole_from: member.events.whole_from(),
            at: at.seq,
            view: Box::new(view),
        };
        self.wait(Box::new(member));
        Ok((!candidate.is_again).then_some(begun))
    }

    fn wait(&mut self, mut member: Box<Member>) {
        self.tasks.spawn(async move {
            member.events.ready().await;
            StreamWake::Ready(member)
        });
    }

    fn read(
        &mut self,
        member: Box<Member>,
        read: Result<Option<Vec<Event>>, CallError>,
    ) -> Result<Option<Step>, CallError> {
        let run = member.run;
        let at = member.events.position();
        let events = match read {
            Ok(events) => events,
            Err(CallError::RunNotFound(_)) => {
                self.close_without_trace(run, member.is_past);
                return Ok(None);
            }
            Err(error) => {
                return self.broken(run, member.is_past, member.age(), error);
            }
        };
        if self.call.fails_on_gap
            && let Some(gap) = events
                .iter()
                .flatten()
                .find_map(|event| match &event.payload {
                    Payload::Gap(gap) => Some(gap),
                    _ => None,
                })
        {
            // The position stays before the gap.
            return Err(CallError::CursorExpired {
                run,
                first_seq: gap.first_seq,
                last_seq: gap.last_seq,
            });
        }
        let is_over = member.events.has_ended() || (events.is_none() && member.was_over);
        let is_at_end = events.is_none();
        self.reached.open.insert(run, at);
        if is_over {
            self.close(run, member.is_past, member.age());
        } else if !is_at_end {
            self.wait(member);
        } else if self.call.until_head {
            self.past_open -= usize::from(member.is_past);
        } else {
            // The writer is gone, but the run continues: a new writer will come, or the row will have the end.
            self.past_open -= usize::from(member.is_past);
            self.open(RunCandidate {
                run,
                from: Position::After(at),
                is_past: false,
                is_again: true,
            });
        }
        let events = events.filter(|events| !events.is_empty());
        Ok(events.map(|events| Step::Events { run, events }))
    }

    /// Removes a run that does not exist, or does not match. A run that has arrived since it was searched is searched
    /// again.
    fn close_without_trace(&mut self, run: RunId, is_past: bool) {
        let has_arrived_again = self.arrived_again.contains(&run);
        self.close(run, is_past, None);
        if has_arrived_again {
            self.take_in(run, None);
        }
    }

    /// Closes a run that is given, or does not match.
    fn close(&mut self, run: RunId, is_past: bool, age: Option<Age>) {
        self.past_open -= usize::from(is_past);
        self.known.remove(&run);
        self.arrived_again.remove(&run);
        self.reached.open.remove(&run);
        if let Some(age) = age {
            self.reached.add(age);
        }
        match self.paging {
            Paging::Done => self.reached.settle(self.heard_until),
            Paging::After(_) => self.reached.join(self.heard_from, self.heard_until),
        }
    }

    fn broken(
        &mut self,
        run: RunId,
        is_past: bool,
        age: Option<Age>,
        error: CallError,
    ) -> Result<Option<Step>, CallError> {
        if matches!(error, CallError::JournalUnreadable { .. }) {
            self.close(run, is_past, age);
            return Ok(Some(Step::Broken(error)));
        }
        Err(error)
    }
}
