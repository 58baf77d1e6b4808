//! Nodes of one database, and when they were heard of.

use super::{
    Bed,
    rows::{EPOCH, NODE, opening},
};
use kennel_lifecycle::NodeId;
use kennel_store::StoreError;

pub(super) async fn nodes_are_heard_of_by_database_clock(bed: Bed) {
    let store = &bed.store;
    for (node, epoch) in [(NODE, EPOCH), (NODE + 1, EPOCH + 1)] {
        store.open_node(&opening(node, epoch)).await.unwrap();
    }
    let nodes = store.nodes().await.unwrap();
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
    // The clock of the caller, which the opening names, is another one.
    assert!(nodes.iter().all(|row| row.heard.0 > 1_700_000_000_000_000));
    assert!(nodes.iter().all(|row| row.heard <= row.now));

    store.beat(first, 1).await.unwrap();
    let later = store.nodes().await.unwrap();
    assert!(later[0].heard > nodes[0].heard);
    assert_eq!(later[1].heard, nodes[1].heard);
    let refused = store.beat(first, 2).await;
    assert!(matches!(refused, Err(StoreError::Fenced(_))), "{refused:?}");
}
