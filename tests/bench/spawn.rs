//! Latency and rate of spawns, for Kennel and for its floor, in the two ways in which callers spawn.
//!
//! All compared servers are measured in turn, round by round, so that a machine that becomes slower meanwhile does so
//! for all alike; a ratio is the median of those of the rounds.

use crate::table::{Times, median};
use kennel_tests::{Client, argv, must};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use tokio::task::JoinSet;

/// Spawns before anything is counted: connections, pools, pages.
const WARM_UP: usize = 50;
/// Spawns by one client in a round, one after another.
const BY_ONE: usize = 300;
/// Clients at once, and spawns by each in a round.
pub(crate) const CLIENTS: usize = 16;
const BY_EACH: usize = 60;
/// Rounds.
const ROUNDS: usize = 3;

/// Flow of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next spawn follows the answer to this one; children of earlier spawns end meanwhile.
    Forget,
    /// The next spawn follows the end of this one's run.
    Wait,
}

/// Both flows, with their names.
pub(crate) const FLOWS: [(Flow, &str); 2] =
    [(Flow::Wait, "spawn, wait"), (Flow::Forget, "spawn, forget")];

/// Results of a spawner, by round.
#[derive(Default)]
pub(crate) struct Rates {
    /// Times of each Spawn call of one client, in all rounds.
    times: Times,
    p50_us: Vec<f64>,
    /// Runs per second of one client.
    one: Vec<f64>,
    /// Runs per second of sixteen.
    sixteen: Vec<f64>,
}

impl Rates {
    pub(crate) fn p50_us(&self) -> f64 {
        self.times.p50_us()
    }

    pub(crate) fn latency(&self) -> String {
        format!("{} / {}", self.times.p50(), self.times.p99())
    }

    /// Returns the time of the slowest hundredth.
    pub(crate) fn tail(&self) -> f64 {
        self.times.p99_us() / self.times.p50_us()
    }

    pub(crate) fn one(&self) -> f64 {
        median(self.one.clone())
    }

    pub(crate) fn sixteen(&self) -> f64 {
        median(self.sixteen.clone())
    }

    /// Returns the latency as a multiple of another's.
    pub(crate) fn p50_to(&self, other: &Self) -> f64 {
        ratio(&self.p50_us, &other.p50_us)
    }

    /// Returns the rate of sixteen clients as a part of another's.
    pub(crate) fn sixteen_to(&self, other: &Self) -> f64 {
        ratio(&self.sixteen, &other.sixteen)
    }

    async fn add_round(&mut self, socket: &Path, flow: Flow) {
        let mut client = must("connect", Client::connect(socket).await);
        let began = Instant::now();
        let times = one_after_another(&mut client, BY_ONE, flow).await;
        self.one.push(rate(BY_ONE, began));
        self.p50_us.push(times.p50_us());
        self.times.extend(times);
        self.sixteen.push(at_once(socket, flow).await);
    }
}

/// Measures each server in turn, in this flow.
pub(crate) async fn in_turn(sockets: &[PathBuf], flow: Flow) -> Vec<Rates> {
    let mut all: Vec<Rates> = sockets.iter().map(|_| Rates::default()).collect();
    for socket in sockets {
        let mut client = must("connect", Client::connect(socket).await);
        one_after_another(&mut client, WARM_UP, flow).await;
    }
    for _ in 0..ROUNDS {
        for (socket, rates) in sockets.iter().zip(&mut all) {
            rates.add_round(socket, flow).await;
        }
    }
    all
}

/// Measures one server alone, whose runs are not awaited.
pub(crate) async fn measure(socket: &Path) -> Rates {
    let mut rates = in_turn(&[socket.to_owned()], Flow::Forget).await;
    rates.pop().unwrap_or_default()
}

async fn one_after_another(client: &mut Client, count: usize, flow: Flow) -> Times {
    let mut times = Times::default();
    for _ in 0..count {
        let began = Instant::now();
        let run = must("spawn", client.spawn(argv(&["/bin/true"])).await);
        times.push(began.elapsed());
        if flow == Flow::Wait {
            must("wait", client.ended(&run.run_id).await);
        }
    }
    times
}

async fn at_once(socket: &Path, flow: Flow) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(must("connect", Client::connect(socket).await));
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move { one_after_another(&mut client, BY_EACH, flow).await });
    }
    tasks.join_all().await;
    rate(CLIENTS * BY_EACH, began)
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// Returns the median of the rounds' own ratios.
fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_median_of_per_round_ratios() {
        // A machine slower in one round leaves the ratio unchanged.
        assert!((ratio(&[3.0, 6.0, 3.0], &[1.0, 2.0, 1.0]) - 3.0).abs() < f64::EPSILON);
        assert!((ratio(&[3.0, 6.0, 2.0], &[1.0, 1.0, 1.0]) - 3.0).abs() < f64::EPSILON);
    }
}
