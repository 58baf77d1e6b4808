//! Reads from the store how far all consumers of a run have acknowledged, each time that a consumer has changed.

use crate::{
    record::node_store::read,
    registry::{Shared, floors::Floor},
};
use kennel_lifecycle::{Backoff, RunId};
use kennel_store::{ConsumerFilter, StoreError};
use std::{sync::Arc, time::Duration};

/// Delays before the store is asked again after it did not answer.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(500), Duration::from_secs(2));

/// Updates the floors from the store, for as long as this server has the node.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let floors = &shared.consumers.floors;
    let mut retries = RETRY.retries(("floors", shared.config.node));
    loop {
        let _ = shared.store.taken_over().await;
        let changed = std::mem::take(&mut floors.wanted.lock().changed);
        let mut has_failed = false;
        for run in changed {
            match read(&shared, run).await {
                Ok(floor) => {
                    if let Some(watched) = floors.wanted.lock().floors.get(&run) {
                        watched.send_replace(floor);
                    }
                }
                Err(error) => {
                    tracing::debug!(run_id = %run, %error, "cannot read the acknowledged position of a run, retrying");
                    floors.wanted.lock().changed.insert(run);
                    has_failed = true;
                }
            }
        }
        let again = async {
            if has_failed {
                tokio::time::sleep(retries.next_delay()).await;
            } else {
                retries.reset();
                floors.woken.notified().await;
            }
        };
        tokio::select! {
            () = again => {}
            () = shared.serving.until_leaving() => return,
            () = shared.serving.until_keeper_lost() => return,
        }
    }
}

/// Reads how far all consumers of a run have acknowledged.
pub(crate) async fn read(shared: &Shared, run: RunId) -> Result<Floor, StoreError> {
    let filter = ConsumerFilter {
        run: Some(Some(run)),
        ..ConsumerFilter::default()
    };
    // All consumers: the limit on their number is per owner.
    let rows = read!(
        shared.store,
        consumers(shared.config.node, &filter, u32::MAX)
    )?;
    let least = rows.iter().map(|row| row.acked).min();
    Ok(least.map_or(Floor::NoConsumer, Floor::UpTo))
}
