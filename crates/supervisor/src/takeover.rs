//! How a server takes its node over: at its start, or later, where the store is away when it comes.

use crate::{BootError, Supervisor, adopt, clock, recover, tracker::Shared, unfinished};
use kennel_lifecycle::{RunId, recovery::Seen};
use kennel_linux::{client::HeldRun, crash_point};
use kennel_store::{Opening, RunRow};
use std::{collections::HashSet, sync::Arc, time::Duration};

/// How long the runs of an earlier server wait for the store.
const STORE_WAIT: Duration = Duration::from_secs(2);
/// First and longest pause between two tries.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// What the store has given.
pub(crate) struct Taken {
    generation: i64,
    /// The open ones of the node.
    rows: Vec<RunRow>,
}

/// The node at the start of a server. Absent: the store is not there, and runs wait for somebody to go on with them.
pub(crate) async fn first(shared: &Shared, held: &[HeldRun]) -> Result<Option<Taken>, BootError> {
    if shared.hello.restarts == 0 && held.is_empty() {
        return take(shared, Vec::new()).await.map(Some);
    }
    let given = held.iter().map(|held| held.run).collect();
    // Whatever it is: to end here would end the runs in the end, and they have done nothing.
    let why = match tokio::time::timeout(STORE_WAIT, take(shared, given)).await {
        Ok(Ok(taken)) => return Ok(Some(taken)),
        Ok(Err(error)) => cause(&error),
        Err(_) => format!("it does not answer within {STORE_WAIT:?}"),
    };
    tracing::error!(%why, "the node cannot be taken over from the store: what runs goes on, nothing new is started");
    Ok(None)
}

/// What is to be done with runs after a start.
#[derive(Default)]
pub(crate) struct Begun {
    /// Whose key is another run's.
    pub(crate) left_alone: HashSet<RunId>,
    /// Open, and held by nobody.
    pub(crate) others: Vec<RunRow>,
}

/// Goes on with what the keeper holds.
pub(crate) async fn with_rows(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
    taken: Taken,
) -> Result<Begun, BootError> {
    let Taken {
        generation,
        mut rows,
    } = taken;
    let others = held.iter().map(|held| held.run);
    let others = others.chain(rows.iter().map(|row| row.new.run)).collect();
    unfinished::finish_all(shared, others).await?;
    shared.store.open(generation);
    let adopted = Box::pin(adopt::all(shared, held, &mut rows)).await?;
    let (held, found) = (adopted.count, rows.len());
    tracing::info!(generation, held, found, "node taken over");
    Ok(Begun {
        left_alone: adopted.left_alone,
        others: rows,
    })
}

/// Goes on with what the keeper holds; the rest waits for the store.
pub(crate) async fn without_rows(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
) -> Result<Begun, BootError> {
    let held = Box::pin(adopt::without_store(shared, held)).await?;
    tracing::warn!(held, "going on without the store");
    let shared = Arc::clone(shared);
    tokio::spawn(async move { take_at_last(&shared).await });
    Ok(Begun::default())
}

/// Takes the node over when the store is there.
async fn take_at_last(shared: &Arc<Shared>) {
    let mut pause = RETRY_FIRST;
    let mut said = String::new();
    loop {
        match take_late(shared).await {
            Ok(()) => return,
            Err(error) => {
                let why = cause(&error);
                if why != said {
                    tracing::error!(%why, "the node cannot be taken over yet, trying until it can");
                    said = why;
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_LONGEST);
    }
}

async fn take_late(shared: &Arc<Shared>) -> Result<(), BootError> {
    let given = shared.all().into_iter().map(|(run, _)| run).collect();
    let Taken { generation, rows } = take(shared, given).await?;
    // Whatever the keeper holds has a task, which meets its row by itself.
    let live = shared.all().into_iter().map(|(run, _)| run);
    let others = live.chain(rows.iter().map(|row| row.new.run)).collect();
    unfinished::finish_all(shared, others).await?;
    let rows = rows.into_iter();
    // Whose end came to be owed meanwhile is not open any more.
    let nobodys = |run| shared.find(run).is_none() && !shared.facts.owes(run);
    let rows = rows.filter(|row| nobodys(row.new.run));
    let rows: Vec<RunRow> = rows.collect();
    shared.store.open(generation);
    let found = recover::take_all(shared, rows);
    let supervisor = Supervisor {
        shared: Arc::clone(shared),
    };
    supervisor.abort_drained();
    tracing::info!(generation, found, "node taken over");
    Ok(())
}

/// Makes sure that no other keeper lives, and raises the generation.
async fn take(shared: &Shared, held: Vec<RunId>) -> Result<Taken, BootError> {
    refuse_beside_another(shared).await?;
    let opening = Opening {
        node: shared.config.node,
        node_name: shared.config.node_name.clone(),
        keeper_epoch: shared.hello.epoch,
        keeper: shared.hello.keeper,
        host: shared.hello.host.clone(),
        held,
        now: clock::now(),
    };
    let store = shared.store.raw();
    let generation = store.open_node(&opening).await.map_err(BootError::Store)?;
    crash_point!("boot.node_opened");
    // Before anybody reads, and before a row that is open here is taken for one.
    let told = shared.facts.tell_all(store, generation).await;
    told.map_err(BootError::Store)?;
    let rows = store.open_runs(opening.node).await;
    let rows = rows.map_err(BootError::Store)?;
    Ok(Taken { generation, rows })
}

/// Rows of a living keeper are not ours: starting beside it would end its runs.
async fn refuse_beside_another(shared: &Shared) -> Result<(), BootError> {
    let epochs = shared.store.raw().open_epochs(shared.config.node).await;
    let epochs = epochs.map_err(BootError::Store)?.into_iter();
    for row in epochs.filter(|row| row.keeper_epoch != shared.hello.epoch) {
        let (epoch, pid) = (row.keeper_epoch, row.keeper.pid);
        let seen = shared.kernel.keeper_seen(row.keeper, row.host).await;
        match seen.map_err(BootError::Keeper)? {
            Seen::Gone => {}
            Seen::Same => return Err(BootError::KeeperAlive { epoch, pid }),
            Seen::Unknown => return Err(BootError::KeeperUnknown { epoch, pid }),
        }
    }
    Ok(())
}

fn cause(error: &BootError) -> String {
    crate::cause::Chain(error).to_string()
}
