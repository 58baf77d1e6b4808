//! What the store is still to be told: facts that were durable here first, because it did not take them.
//!
//! While any is owed, all that can be owed is appended behind it, so that the store is told in order. One task writes the
//! file; whatever queues while it syncs shares the next sync. Told and told again is the same, so the file is emptied
//! only when nothing is owed.

use crate::{BootError, blocking::blocking, cause::Chain, log_words, node_store::NodeStore};
use kennel_journal::{FactFile, FactsFound};
use kennel_lifecycle::RunId;
use kennel_linux::crash_point;
use kennel_store::{Fact, RunRow, StoreError};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Mutex, MutexGuard, mpsc, oneshot, watch},
    task::JoinSet,
};

/// The file, in the data directory.
const FILE: &str = "facts";
/// Appends that wait for the file; more have to wait outside.
const APPENDS_QUEUED_MAX: usize = 1024;
/// Facts that are told at once.
const TOLD_AT_ONCE_MAX: usize = 256;
/// First and longest pause between two tries to tell.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// What is owed to the store.
#[derive(Debug)]
pub(crate) struct Facts {
    jobs: mpsc::Sender<Job>,
    owed: Arc<watch::Sender<Owed>>,
    /// Held by whoever tells.
    telling: Mutex<()>,
}

#[derive(Debug)]
enum Job {
    Append(Box<Fact>, oneshot::Sender<io::Result<()>>),
    /// All has been told.
    Clear,
}

#[derive(Debug, Default)]
struct Owed {
    facts: VecDeque<Arc<Fact>>,
    runs: HashMap<RunId, usize>,
}

impl Owed {
    fn push(&mut self, fact: Fact) {
        *self.runs.entry(fact.run()).or_insert(0) += 1;
        self.facts.push_back(Arc::new(fact));
    }

    fn pop(&mut self) {
        let Some(fact) = self.facts.pop_front() else {
            return;
        };
        if let Some(count) = self.runs.get_mut(&fact.run()) {
            *count -= 1;
            if *count == 0 {
                self.runs.remove(&fact.run());
            }
        }
    }

    /// The first ones, none of them of the same run: they may be told in any order.
    fn first(&self) -> Vec<Arc<Fact>> {
        let mut runs = HashSet::new();
        let facts = self.facts.iter().take(TOLD_AT_ONCE_MAX);
        let facts = facts.take_while(|fact| runs.insert(fact.run()));
        facts.cloned().collect()
    }
}

impl Facts {
    /// What an earlier server has left, to be told first.
    pub(crate) async fn open(data_dir: &Path) -> Result<Self, BootError> {
        let path = data_dir.join(FILE);
        let at = path.clone();
        let opened = blocking(move || open_somehow(&at)).await;
        let opened = opened.map_err(BootError::Facts)?;
        let (file, facts) = opened.unzip();
        let mut owed = Owed::default();
        for fact in facts.unwrap_or_default() {
            owed.push(fact);
        }
        if !owed.facts.is_empty() {
            tracing::info!(count = owed.facts.len(), "facts are owed to the store");
        }
        let owed = Arc::new(watch::Sender::new(owed));
        let (jobs, queue) = mpsc::channel(APPENDS_QUEUED_MAX);
        tokio::spawn(write_all(path, file, queue, Arc::clone(&owed)));
        Ok(Self {
            jobs,
            owed,
            telling: Mutex::new(()),
        })
    }

    /// Makes a fact durable here; the store is told when it is there.
    pub(crate) async fn append(&self, fact: Fact) -> io::Result<()> {
        let (reply, answer) = oneshot::channel();
        let job = Job::Append(Box::new(fact), reply);
        let gone = |_| io::Error::other("nobody writes the facts");
        self.jobs
            .send(job)
            .await
            .map_err(|_| io::Error::other("nobody writes the facts"))?;
        answer.await.map_err(gone)?
    }

    /// Whether anything is.
    pub(crate) fn any_owed(&self) -> bool {
        !self.owed.borrow().facts.is_empty()
    }

    /// Whether anything of this run is.
    pub(crate) fn count_owed(&self) -> usize {
        self.owed.borrow().facts.len()
    }

    pub(crate) fn owes(&self, run: RunId) -> bool {
        self.owed.borrow().runs.contains_key(&run)
    }

    /// Whether a fence under this key is.
    pub(crate) fn owes_fence(&self, run: RunId) -> bool {
        let owed = self.owed.borrow();
        let fences = |fact: &Arc<Fact>| fact.run() == run && matches!(**fact, Fact::Fence(..));
        owed.runs.contains_key(&run) && owed.facts.iter().any(fences)
    }

    /// The row of a run whose end is owed, as it will be: the end was told, and nothing changes it any more. A fence does
    /// not say whether anybody has ended under its key.
    pub(crate) fn ended(&self, run: RunId) -> Option<RunRow> {
        let owed = self.owed.borrow();
        if !owed.runs.contains_key(&run) {
            return None;
        }
        let mut ends = owed.facts.iter().filter_map(|fact| match &**fact {
            Fact::Close(new, _) if new.run == run => Some(new),
            _ => None,
        });
        let row = RunRow::open((**ends.next()?).clone());
        drop(owed);
        Some(self.upon(row))
    }

    /// Ends when nothing of this run is owed.
    pub(crate) async fn told(&self, run: RunId) {
        let mut owed = self.owed.subscribe();
        // The sender is this very value.
        let _ = owed.wait_for(|owed| !owed.runs.contains_key(&run)).await;
    }

    /// The row of a run with what is owed of it.
    pub(crate) fn upon(&self, row: RunRow) -> RunRow {
        let owed = self.owed.borrow();
        let run = row.new.run;
        let of_run = owed.facts.iter().filter(|fact| fact.run() == run);
        of_run.fold(row, |row, fact| fact.upon(row))
    }

    /// Nobody else tells meanwhile.
    pub(crate) async fn hold(&self) -> Telling<'_> {
        Telling {
            facts: self,
            _held: self.telling.lock().await,
        }
    }

    /// Tells the store whatever comes to be owed, for as long as this server lives.
    pub(crate) async fn tell_for_ever(&self, store: &NodeStore) {
        let mut owed = self.owed.subscribe();
        let mut pause = RETRY_FIRST;
        let mut said = String::new();
        loop {
            // The sender is this very value.
            let _ = owed.wait_for(|owed| !owed.facts.is_empty()).await;
            let _ = store.taken_over().await;
            let telling = self.hold().await;
            // It may have been taken away meanwhile.
            let Some(generation) = store.generation() else {
                continue;
            };
            let told = telling.tell_all(store, generation).await;
            drop(telling);
            match told {
                Ok(()) => {
                    pause = RETRY_FIRST;
                    said.clear();
                }
                Err(error) => {
                    let why = Chain(&error).to_string();
                    if why != said {
                        tracing::warn!(%why, "the store does not take what it is owed, trying until it does: no new run is taken meanwhile");
                        said = why;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_LONGEST);
                }
            }
        }
    }
}

/// The file with what it holds. One that cannot be read is moved aside, and another takes its place; `None`: there is no
/// making one either, and what would come into it waits. Runs do not end because of a file.
fn open_somehow(path: &Path) -> Option<(FactFile, Vec<Fact>)> {
    let unread = match open(path) {
        Ok(opened) => return Some(opened),
        Err(error) => error,
    };
    let aside = kennel_journal::move_aside(path);
    let opened = aside.and_then(|aside| {
        let opened = open(path);
        if opened.is_err() {
            // It is not that file: it stays, for whoever can read it.
            let _ = std::fs::rename(&aside, path);
        }
        opened.map(|opened| (opened, aside))
    });
    match opened {
        Ok((opened, aside)) => {
            let (error, aside) = (Chain(&unread), aside.display());
            tracing::error!(%error, %aside, "what the store is still to be told cannot be read, it is kept there: of runs that have ended meanwhile the ends may be lost");
            Some(opened)
        }
        Err(_) => {
            let error = Chain(&unread);
            tracing::error!(%error, path = %path.display(), "what the store is still to be told can neither be read nor added to, trying again when there is more");
            None
        }
    }
}

/// The right to tell.
pub(crate) struct Telling<'a> {
    facts: &'a Facts,
    _held: MutexGuard<'a, ()>,
}

impl Telling<'_> {
    /// Tells the store all that is owed, in order.
    pub(crate) async fn tell_all(
        &self,
        store: &NodeStore,
        generation: i64,
    ) -> Result<(), StoreError> {
        let Facts { jobs, owed, .. } = self.facts;
        let mut count = 0;
        loop {
            let facts = owed.borrow().first();
            if facts.is_empty() {
                break;
            }
            crash_point!("facts.tell");
            tell(store, generation, &facts).await?;
            crash_point!("facts.told");
            count += facts.len();
            owed.send_modify(|owed| facts.iter().for_each(|_| owed.pop()));
        }
        if count > 0 {
            tracing::info!(count, "the store has been told what it was owed");
            // Nobody writes any more where it is refused.
            let _ = jobs.send(Job::Clear).await;
        }
        Ok(())
    }
}

/// The file with what it holds. What cannot be read is copied beside it first: it goes when all else has been told.
fn open(path: &Path) -> io::Result<(FactFile, Vec<Fact>)> {
    let (file, found): (FactFile, FactsFound) = match FactFile::open(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let aside = kennel_journal::set_aside(path)?;
            std::fs::remove_file(path)?;
            tracing::error!(%error, aside = %aside.display(), "facts that the store was to be told cannot be read, they are kept there");
            FactFile::open(path)?
        }
        opened => opened?,
    };
    if let Some(aside) = &found.aside {
        let aside = aside.display();
        tracing::error!(%aside, bytes = found.torn, "facts that the store was to be told are damaged, they are kept there");
    } else if found.torn > 0 {
        tracing::info!(
            bytes = found.torn,
            "a fact that nobody was told of was not wholly written"
        );
    }
    let mut facts = Vec::new();
    let mut unread = false;
    for bytes in &found.facts {
        match Fact::decode(bytes) {
            Ok(fact) => facts.push(fact),
            Err(why) => {
                tracing::error!(%why, bytes = bytes.len(), "a fact that the store was to be told cannot be read");
                unread = true;
            }
        }
    }
    if unread {
        let aside = kennel_journal::set_aside(path)?;
        tracing::error!(aside = %aside.display(), "it is kept there");
    }
    Ok((file, facts))
}

/// Tells facts of as many runs. None is done with while one is not.
async fn tell(store: &NodeStore, generation: i64, facts: &[Arc<Fact>]) -> Result<(), StoreError> {
    let mut telling = JoinSet::new();
    for fact in facts {
        let (store, fact) = (Arc::clone(store.raw()), Arc::clone(fact));
        telling.spawn(async move {
            let told = fact.tell(&*store, generation).await;
            (fact, told)
        });
    }
    let mut all = Ok(());
    while let Some(told) = telling.join_next().await {
        let one = match told {
            Ok((fact, told)) => taken(store, generation, &fact, told).await,
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        };
        all = all.and(one);
    }
    all
}

/// What is to be made of the store's answer.
async fn taken(
    store: &NodeStore,
    generation: i64,
    fact: &Fact,
    told: Result<(), StoreError>,
) -> Result<(), StoreError> {
    let told = match told {
        Err(StoreError::Fenced(run)) => Err(store.refused(run, generation).await),
        told => told,
    };
    if let (Ok(()), Fact::Fence(new, closure)) = (&told, fact) {
        // Who stands under the key now is what callers are told.
        if let Some(row) = store.raw().get(new.run).await? {
            store.fenced_late(new, closure, row);
        }
    }
    match told {
        Ok(()) => store.ledger().told(fact),
        Err(error @ (StoreError::Fenced(_) | StoreError::Corrupt(_))) => refused(fact, &error),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The row is closed, or another server's: what is not its end is of no interest any more.
fn refused(fact: &Fact, error: &StoreError) {
    let run = fact.run();
    match fact {
        Fact::State { .. } | Fact::Stop { .. } => {
            tracing::debug!(run_id = %run, %error, fact = log_words::fact(fact), "the store does not take this fact any more");
        }
        Fact::Fence(..) | Fact::Close(..) => {
            tracing::error!(run_id = %run, %error, fact = log_words::fact(fact), "this fact cannot be recorded by this server");
        }
    }
}

async fn write_all(
    path: PathBuf,
    mut file: Option<FactFile>,
    mut jobs: mpsc::Receiver<Job>,
    owed: Arc<watch::Sender<Owed>>,
) {
    let mut queued = Vec::new();
    while jobs.recv_many(&mut queued, APPENDS_QUEUED_MAX).await > 0 {
        let mut facts = Vec::new();
        for job in queued.drain(..) {
            match job {
                Job::Append(fact, reply) => facts.push((*fact, reply)),
                Job::Clear => {}
            }
        }
        // Nothing comes to be owed but here.
        let clear = facts.is_empty() && owed.borrow().facts.is_empty();
        let bytes: Vec<Vec<u8>> = facts.iter().map(|(fact, _)| fact.encode()).collect();
        let at = path.clone();
        let work = move || {
            let mut found = Vec::new();
            let done = if clear {
                file.as_mut().map_or(Ok(()), FactFile::clear)
            } else {
                crash_point!("facts.append");
                let opened = match &mut file {
                    Some(file) => Ok(file),
                    none => open(&at).map(|(file, facts)| {
                        found = facts;
                        none.insert(file)
                    }),
                };
                opened.and_then(|file| file.append(&bytes))
            };
            (file, found, done)
        };
        let Ok((again, found, done)) = blocking(work).await else {
            return tracing::error!("the facts cannot be written any more");
        };
        file = again;
        // Of an earlier server, and before all that is new.
        owed.send_if_modified(|owed| {
            let any = !found.is_empty();
            for fact in found {
                owed.push(fact);
            }
            any
        });
        match done {
            Ok(()) if clear => crash_point!("facts.cleared"),
            Ok(()) => {
                owed.send_modify(|owed| {
                    for (fact, _) in &facts {
                        owed.push(fact.clone());
                    }
                });
                crash_point!("facts.appended");
                // Who has gone needs no answer.
                for (_, reply) in facts {
                    let _ = reply.send(Ok(()));
                }
            }
            Err(error) => {
                let why = Chain(&error).to_string();
                tracing::error!(%why, "facts cannot be written down, they wait for the store");
                for (_, reply) in facts {
                    let _ = reply.send(Err(io::Error::new(error.kind(), why.clone())));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::RowState;

    fn fact(run: u128) -> Fact {
        Fact::State {
            run: RunId::from_u128(run),
            state: RowState::Running,
            started: None,
        }
    }

    #[tokio::test]
    async fn a_file_that_could_not_be_opened_is_opened_by_the_next_append_with_what_it_holds() {
        let dir = tempfile::tempdir().expect("a directory");
        let before = Facts::open(dir.path()).await.expect("it is made");
        before.append(fact(1)).await.expect("it is written");
        let (jobs, queue) = mpsc::channel(1);
        let owed = Arc::new(watch::Sender::new(Owed::default()));
        let path = dir.path().join(FILE);
        tokio::spawn(write_all(path, None, queue, Arc::clone(&owed)));
        let later = Facts {
            jobs,
            owed,
            telling: Mutex::new(()),
        };
        later.append(fact(2)).await.expect("it is written");
        let first: Vec<RunId> = later.owed.borrow().facts.iter().map(|f| f.run()).collect();
        assert_eq!(first, [1, 2].map(RunId::from_u128));
    }

    #[test]
    fn what_stands_in_the_way_of_any_file_stays_where_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        // Neither it nor a fresh one can be opened: its directory is none.
        let file = dir.path().join("file");
        std::fs::write(&file, b"").expect("a file");
        assert!(open_somehow(&file.join(FILE)).is_none());
        assert!(file.is_file());
    }
}
