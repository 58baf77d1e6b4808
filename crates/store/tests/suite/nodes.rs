//! Nodes of one database, and their leases.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, new_run, opening},
};
use kennel_lifecycle::{NodeId, StopOrder, StopReason, Timestamp};
use kennel_store::{LeftStop, NodeRemoval, Opening, StoreError};
use std::time::Duration;

// promise: I-41, I-74
pub(super) async fn leases_are_renewed_by_database_clock(bed: Bed) {
    let store = &bed.store;
    for (node, epoch) in [(NODE, EPOCH), (NODE + 1, EPOCH + 1)] {
        let leased = Opening {
            lease: LONG,
            ..opening(node, epoch)
        };
        store.open_node(&leased).await.unwrap();
    }
    let nodes = store.nodes(None).await.unwrap();
    let reported: Vec<_> = nodes
        .iter()
        .map(|row| (row.node, row.name.as_str(), row.address.as_str()))
        .collect();
    let first = NodeId::from_u128(NODE);
    assert_eq!(
        reported,
        [
            (first, "node-7", "unix:/run/7.sock"),
            (NodeId::from_u128(NODE + 1), "node-8", "unix:/run/8.sock"),
        ]
    );
    let second = [NodeId::from_u128(NODE + 1), NodeId::from_u128(NODE + 2)];
    let found = store.nodes(Some(&second)).await.unwrap();
    assert_eq!(found.len(), 1, "one of these two is a node");
    assert_eq!(found[0].node, second[0]);
    assert_eq!(store.nodes(Some(&[])).await.unwrap(), []);
    // The store's clock counts, not the caller's clock in the opening.
    assert!(nodes.iter().all(|row| row.heard.0 > 1_700_000_000_000_000));
    assert!(nodes.iter().all(|row| row.heard <= row.now));

    let since = Some(Timestamp(5));
    store.renew(first, 1, since).await.unwrap();
    let later = store.nodes(None).await.unwrap();
    assert!(later[0].heard > nodes[0].heard);
    assert_eq!(later[1].heard, nodes[1].heard);
    assert_eq!([later[0].draining, later[1].draining], [since, None]);
    let refused = store.renew(first, 2, None).await;
    assert!(matches!(refused, Err(StoreError::Held)), "{refused:?}");
}

// promise: I-67, I-70a
pub(super) async fn lease_that_is_given_up_has_ended(bed: Bed) {
    let store = &bed.store;
    let long = leased(EPOCH);
    store.open_node(&long).await.unwrap();
    let rows = store.nodes(None).await.unwrap();
    assert_eq!(rows[0].lease, LONG);
    assert!(rows[0].until() > rows[0].now);
    let stored_node = store.stored_node(long.node).await.unwrap();
    assert_eq!(stored_node.keeper_epoch, Some(long.keeper_epoch));
    assert!(stored_node.lease_left > LONG / 2 && stored_node.lease_left <= LONG);
    // Another keeper's lease is unchanged.
    store.give_up(long.node, 7).await.unwrap();
    assert_eq!(store.nodes(None).await.unwrap()[0].lease, LONG);
    store.give_up(long.node, 1).await.unwrap();
    let rows = store.nodes(Some(&[long.node])).await.unwrap();
    assert!(rows[0].until() <= rows[0].now);
    assert_eq!(store.nodes(None).await.unwrap(), [], "it has ended");
    let stored_node = store.stored_node(long.node).await.unwrap();
    assert_eq!(stored_node.lease_left, Duration::ZERO);
    // The same opening succeeds.
    assert_eq!(store.open_node(&long).await.unwrap(), 2);
    assert_eq!(store.nodes(None).await.unwrap()[0].lease, LONG);
}

/// A node with an open run has not ended: its lease is over, and it stays listed and in the database.
// promise: I-70c
pub(super) async fn node_with_open_run_does_not_end(bed: Bed) {
    let store = &bed.store;
    let long = leased(EPOCH);
    store.open_node(&long).await.unwrap();
    let new = new_run(1);
    store.insert(&new).await.unwrap();
    store.give_up(long.node, 1).await.unwrap();
    let rows = store.nodes(None).await.unwrap();
    assert!(rows[0].until() < rows[0].now, "{rows:?}");
    let other = NodeId::from_u128(NODE + 1);
    for which in every_removal(long.node, other) {
        assert!(!store.remove_nodes(which).await.unwrap());
    }
    let other = Opening {
        keeper_epoch: leased(EPOCH + 1).keeper_epoch,
        ..long.clone()
    };
    assert_eq!(
        store.open_node(&other).await.unwrap(),
        2,
        "its lease is free"
    );
    let mut new = new;
    new.generation = 2;
    store.close(&new, &closure()).await.unwrap();
    store.give_up(long.node, 2).await.unwrap();
    assert_eq!(store.nodes(None).await.unwrap(), []);
}

/// Each kind of removal takes what it names and no more; what refers to a node goes with it, its runs stay.
// promise: I-70c
pub(super) async fn dead_nodes_are_removed_and_others_stay(bed: Bed) {
    let store = &bed.store;
    let [own, used, unused, alive] = [0, 1, 2, 3].map(|more| NodeId::from_u128(NODE + more));
    for (more, node) in [own, used, unused, alive].into_iter().enumerate() {
        let epoch = EPOCH + u128::try_from(more).unwrap();
        let opening = Opening {
            lease: LONG,
            ..opening(node.as_u128(), epoch)
        };
        store.open_node(&opening).await.unwrap();
    }
    let mut new = new_run(1);
    new.node = used;
    new.keeper_epoch = opening(used.as_u128(), EPOCH + 1).keeper_epoch;
    store.insert(&new).await.unwrap();
    store.close(&new, &closure()).await.unwrap();
    for node in [own, used, unused] {
        store.give_up(node, 1).await.unwrap();
    }
    let is_there = async |node| !store.nodes(Some(&[node])).await.unwrap().is_empty();
    // Kept: a node with a run, one with a recent lease, one with a lease.
    for which in [
        NodeRemoval::Unused(used),
        without_lease_for(LONG, own),
        NodeRemoval::Node(alive),
    ] {
        assert!(!store.remove_nodes(which).await.unwrap());
    }
    assert!(
        store
            .remove_nodes(NodeRemoval::Unused(unused))
            .await
            .unwrap()
    );
    assert!(!is_there(unused).await && is_there(used).await);
    assert!(
        store
            .remove_nodes(without_lease_for(Duration::ZERO, own))
            .await
            .unwrap()
    );
    assert!(!is_there(used).await && is_there(own).await && is_there(alive).await);
    assert!(store.get(new.run).await.unwrap().unwrap().outcome.is_some());
    assert!(store.remove_nodes(NodeRemoval::Node(own)).await.unwrap());
    // The removed node comes back as itself, above its generation.
    let back = Opening {
        above: 1,
        ..opening(used.as_u128(), EPOCH + 1)
    };
    assert_eq!(store.open_node(&back).await.unwrap(), 2);
}

fn without_lease_for(time: Duration, own: NodeId) -> NodeRemoval {
    NodeRemoval::WithoutLeaseFor { time, own }
}

fn every_removal(node: NodeId, own: NodeId) -> [NodeRemoval; 3] {
    let all = without_lease_for(Duration::ZERO, own);
    [all, NodeRemoval::Node(node), NodeRemoval::Unused(node)]
}

// promise: I-71
pub(super) async fn left_stop_keeps_caller_and_shortest_grace(bed: Bed) {
    let store = &bed.store;
    let opening = opening(NODE, EPOCH);
    store.open_node(&opening).await.unwrap();
    let new = new_run(1);
    store.insert(&new).await.unwrap();
    let left = |by: &str, seconds, at| LeftStop {
        run: new.run,
        order: StopOrder {
            reason: StopReason::Abort {
                by: by.to_owned(),
                request_id: None,
            },
            grace: Duration::from_secs(seconds),
        },
        asked: Timestamp(at),
    };
    for stop in [left("a", 9, 1), left("b", 3, 2), left("c", 5, 3)] {
        store.leave_stop(opening.node, &stop).await.unwrap();
    }
    let stands = left("a", 3, 1);
    let stops = store.left_stops(opening.node).await.unwrap();
    assert_eq!(stops, std::slice::from_ref(&stands));
    assert_eq!(store.left_stops_of(&[new.run]).await.unwrap(), stops);
    assert!(store.left_stops_of(&[]).await.unwrap().is_empty());
    // Removing an outdated stop leaves the shortened stop queued.
    let carried_out = left("a", 9, 1);
    store
        .remove_left_stop(opening.node, &carried_out)
        .await
        .unwrap();
    assert_eq!(store.left_stops(opening.node).await.unwrap(), stops);
    store.remove_left_stop(opening.node, &stands).await.unwrap();
    assert!(store.left_stops(opening.node).await.unwrap().is_empty());
}

const LONG: Duration = Duration::from_mins(5);

pub(crate) fn leased(epoch: u128) -> Opening {
    Opening {
        lease: LONG,
        ..opening(NODE, epoch)
    }
}
