//! Three nodes on one Postgres, for cases that play on them one after the other.

use crate::{Kennel, Options, PATIENCE, Postgres, eventually_async};
use kennel_proto::pb::{self, NodeReachability};

/// Nodes named `one`, `two` and `three`, with a lease of three seconds.
pub struct ThreeNodes {
    /// Their database.
    pub postgres: Postgres,
    /// Node `one`.
    pub one: Kennel,
    /// Node `two`.
    pub two: Kennel,
    /// Node `three`.
    pub three: Kennel,
}

impl ThreeNodes {
    /// Starts them.
    pub async fn start() -> Self {
        let postgres = Postgres::start().await;
        let one = Self::node(&postgres, "one").await;
        let two = Self::node(&postgres, "two").await;
        let three = Self::node(&postgres, "three").await;
        Self {
            postgres,
            one,
            two,
            three,
        }
    }

    /// Starts a node of this name on the same database.
    pub async fn node(postgres: &Postgres, name: &'static str) -> Kennel {
        Kennel::start(Options {
            words: vec!["--node-name", name, "--node-lease", "3s"],
            ..Options::on(&postgres.url())
        })
        .await
    }

    /// Waits until each of them has its lease and sees the others as reachable, as a case expects that follows another one.
    pub async fn see_each_other(&self) {
        for node in [&self.one, &self.two, &self.three] {
            eventually_async("all nodes are reachable", PATIENCE, async || {
                let request = pb::ListNodesRequest {};
                if !node.is_serving("readiness").await {
                    return None;
                }
                let listed = node.client().await.admin.list_nodes(request).await.ok()?;
                let listed = listed.into_inner().nodes;
                let is_there = |name: &str| {
                    listed.iter().any(|node| {
                        node.node_name == name && node.reachability() == NodeReachability::Reachable
                    })
                };
                ["one", "two", "three"]
                    .into_iter()
                    .all(is_there)
                    .then_some(())
            })
            .await;
        }
    }
}
