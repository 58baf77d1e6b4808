//! Delays between retries of the service and its client: full jitter.
//!
//! Runs, servers and clients retry against one database or one server. Delays that are drawn from the whole range
//! spread them; equal delays would let all of them come back at once. Pure: randomness comes in as a seed. Delays between
//! the attempts of a run are its user's: [`crate::RestartPolicy`].

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

/// Bounds of the delays between retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Creates bounds: the first delay is at most `first`, each further one at most twice the bound before it, and none
    /// longer than `longest`.
    pub const fn up_to(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Begins a series of retries. Equal seeds have equal delays.
    pub fn retries(self, seed: impl Hash) -> Retries {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        Retries {
            backoff: self,
            bound: self.first,
            random: hasher.finish(),
        }
    }
}

/// Delays of a series of retries.
#[derive(Clone, Debug)]
pub struct Retries {
    backoff: Backoff,
    /// Bound of the next delay.
    bound: Duration,
    /// State of the random numbers.
    random: u64,
}

impl Retries {
    /// Returns the delay before the next retry.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.draw(self.bound);
        self.bound = self.bound.saturating_mul(2).min(self.backoff.longest);
        delay
    }

    /// Returns the delay before the next retry, where the other side has named its least: that, and up to as much more.
    pub fn next_delay_after(&mut self, least: Duration) -> Duration {
        least.saturating_add(self.draw(least))
    }

    /// Begins again with the first bound, after a success.
    pub fn reset(&mut self) {
        self.bound = self.backoff.first;
    }

    /// Draws a duration of up to `most`, each with the same chance.
    fn draw(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        let drawn = ((u128::from(most) + 1) * u128::from(self.next_random())) >> u64::BITS;
        Duration::from_nanos(u64::try_from(drawn).unwrap_or(most))
    }

    /// `SplitMix64`: each seed has its own sequence (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
