//! The node's lease: it shows all servers of the database that this server has the node.
//!
//! It is renewed by the clock of the database after about a third of its duration. Where a renewal fails nothing ends:
//! the runs of this node are shown as unreachable until one succeeds. Only another keeper that acquired the lease
//! meanwhile fences this one, as every write names the generation.

use crate::{
    base::clock,
    node::forget::remove_moot_stops,
    registry::{Shared, Supervisor},
};
use kennel_store::{NodeRemoval, StoreError};
use std::time::Duration;

/// Renews the lease for as long as this server lives; at once where a drain begins or ends, which each renewal reports.
pub(crate) async fn renew_for_ever(supervisor: Supervisor) {
    let shared = &supervisor.shared;
    // Stops queued before this start are carried out too.
    let mut left = true;
    let lease = shared.config.lease;
    let mut drain = shared.drain.subscribe();
    // A drain from before this start was not known yet when the node was opened.
    if shared.drain.borrow().is_some() {
        drain.mark_changed();
    }
    let mut renewed = clock::instant();
    let mut has_failed = false;
    loop {
        if left && shared.store.generation().is_some() {
            let carried_out = supervisor.carry_out_left_stops();
            // A stop may wait for the recovery of its run; stops that remain after this are tried again after the next
            // renewal.
            left = tokio::time::timeout(lease / 6, carried_out).await.is_err();
        }
        tokio::select! {
            () = tokio::time::sleep(pause(lease, clock::now().0)) => {}
            // The drain's sender outlives this task.
            _ = drain.changed() => {}
        }
        let Some(generation) = shared.store.generation() else {
            renewed = clock::instant();
            continue;
        };
        let asked = clock::instant();
        let draining = drain.borrow_and_update().as_ref().map(|drain| drain.since);
        match shared
            .store
            .raw()
            .renew(shared.config.node, generation, draining)
            .await
        {
            Ok(are_left) => {
                left |= are_left;
                if has_failed {
                    tracing::info!("the lease of this node is renewed again");
                }
                (renewed, has_failed) = (asked, false);
            }
            Err(StoreError::Held) => shared.store.doubt(),
            Err(error) => {
                // The monotonic clock ignores steps of the wall clock.
                let silent_seconds = renewed.elapsed().as_secs_f64();
                if !has_failed {
                    tracing::warn!(%error, silent_seconds, "cannot renew the lease of this node; runs continue");
                }
                has_failed = true;
            }
        }
    }
}

/// A third of the lease, a tenth more or less, so that nodes started together drift apart.
fn pause(lease: Duration, seed: i64) -> Duration {
    let tenths = u32::try_from(seed.rem_euclid(201)).unwrap_or(100) + 900;
    lease / 3 * tenths / 1000
}

/// Releases the lease, as the last step of a server whose runs have all ended: the next keeper of the node does not
/// wait, on whichever host.
pub(crate) async fn give_up(shared: &Shared) {
    let Some(generation) = shared.store.generation() else {
        return;
    };
    let (store, node) = (shared.store.raw(), shared.config.node);
    if let Err(error) = store.give_up(node, generation).await {
        tracing::debug!(%error, "cannot release the lease of this node: it expires by itself");
        return;
    }
    let removed = async {
        // Runs that ended after the last renewal made these stops moot.
        remove_moot_stops(store.as_ref(), node).await?;
        store.remove_nodes(NodeRemoval::Unused(node)).await
    };
    if let Err(error) = removed.await {
        tracing::debug!(%error, "cannot remove this node, which nothing refers to: it goes after --node-retention");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: I-69
    #[test]
    fn lease_is_renewed_twice_before_it_ends() {
        let lease = Duration::from_secs(45);
        for seed in 0..1000 {
            let pause = pause(lease, seed);
            assert!(pause * 2 < lease && pause > lease / 4, "{pause:?}");
        }
    }
}
