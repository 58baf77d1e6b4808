//! Spawn latency and rate, the same for Kennel and for its floor.

use crate::table::Times;
use kennel_tests::{Client, argv, must};
use std::{path::Path, time::Instant};
use tokio::task::JoinSet;

/// Spawns before anything is counted: connections, pools, pages.
const WARM_UP: usize = 50;
/// Spawns by one client, one after another.
const BY_ONE: usize = 1000;
/// Clients at once, and spawns by each.
const CLIENTS: usize = 16;
const BY_EACH: usize = 150;
/// Rounds; the median counts.
const ROUNDS: usize = 3;

/// What a spawner reaches.
pub(crate) struct Rates {
    times: Times,
    /// Runs per second of one client.
    pub(crate) one: f64,
    /// Runs per second of sixteen.
    pub(crate) sixteen: f64,
}

impl Rates {
    pub(crate) fn p50_us(&self) -> f64 {
        self.times.p50_us()
    }

    pub(crate) fn latency(&self) -> String {
        format!("{} / {}", self.times.p50(), self.times.p99())
    }
}

pub(crate) async fn measure(socket: &Path) -> Rates {
    let mut client = must("connect", Client::connect(socket).await);
    one_after_another(&mut client, WARM_UP).await;
    let mut times = Times::default();
    let (mut one, mut sixteen) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        times.extend(one_after_another(&mut client, BY_ONE / ROUNDS).await);
        one.push(rate(BY_ONE / ROUNDS, began));
        sixteen.push(at_once(socket).await);
    }
    Rates {
        times,
        one: median(one),
        sixteen: median(sixteen),
    }
}

async fn one_after_another(client: &mut Client, count: usize) -> Times {
    let mut times = Times::default();
    for _ in 0..count {
        let began = Instant::now();
        must("spawn", client.spawn(argv(&["/bin/true"])).await);
        times.push(began.elapsed());
    }
    times
}

async fn at_once(socket: &Path) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(must("connect", Client::connect(socket).await));
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move { one_after_another(&mut client, BY_EACH).await });
    }
    tasks.join_all().await;
    rate(CLIENTS * BY_EACH, began)
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
