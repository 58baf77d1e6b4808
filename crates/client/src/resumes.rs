//! Retries of calls whose server was lost: their number and delays.

use crate::{Failure, MayRepeat};
use kennel_lifecycle::{Backoff, Retries};
use std::{
    future::Future,
    hash::{BuildHasher as _, RandomState},
    pin::{Pin, pin},
    time::Duration,
};
use tokio::time::{Sleep, sleep};
use tonic::{Code, Response, Status};

/// Lost connections in a row, without any progress in between, after which a client gives up.
pub const RESUMES_MAX: u32 = 10;
/// Delays between two attempts: [`RESUMES_MAX`] of them take 13 s on average.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(200), Duration::from_secs(4));
/// Longest delay that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// Time without an answer after which a call waits at a server in service.
const WAITS_AFTER: Duration = Duration::from_secs(2);

/// Number of losses in a row, and the pause before the next attempt.
#[derive(Debug)]
pub(crate) struct Resumes {
    losses: u32,
    retries: Retries,
    due: Option<Pin<Box<Sleep>>>,
}

impl Default for Resumes {
    fn default() -> Self {
        Self::seeded(RandomState::new().hash_one(()))
    }
}

impl Resumes {
    fn seeded(seed: u64) -> Self {
        Self {
            losses: 0,
            retries: RETRY.retries(seed),
            due: None,
        }
    }

    /// Returns a count whose first delay is longer than this, for tests.
    #[cfg(test)]
    pub(crate) fn with_first_delay_over(least: Duration) -> Self {
        let seed = (0..1_000).find(|seed| RETRY.retries(*seed).next_delay() > least);
        Self::seeded(seed.expect("most first delays are longer"))
    }

    /// Resets the count after progress.
    pub(crate) fn begin_anew(&mut self) {
        self.losses = 0;
        self.retries.reset();
        self.due = None;
    }

    /// Waits before the next attempt, or gives up with the failure.
    pub(crate) async fn rest(&mut self, failure: Failure) -> Result<(), Failure> {
        self.count(failure)?;
        self.wait().await;
        Ok(())
    }

    /// Waits before the next attempt. `false`: the maximum is reached.
    pub(crate) async fn pause(&mut self, most: u32) -> bool {
        let may_try = self.set_due(most, None);
        if may_try {
            self.wait().await;
        }
        may_try
    }

    /// Counts a failed attempt, or gives up with its failure. [`Self::wait`] ends when the next attempt is due.
    pub(crate) fn count(&mut self, failure: Failure) -> Result<(), Failure> {
        // An unreachable node, for which another node has already waited.
        let is_away = failure.is("NODE_UNREACHABLE") && failure.retry_after.is_none();
        let may_pass = failure.connection_lost || failure.code == Code::Unavailable && !is_away;
        if !may_pass || !self.set_due(RESUMES_MAX, failure.retry_after) {
            return Err(failure);
        }
        Ok(())
    }

    /// Waits until the next attempt is due. Cancel-safe: the next call waits for the remaining time.
    pub(crate) async fn wait(&mut self) {
        if let Some(due) = &mut self.due {
            due.await;
            self.due = None;
        }
    }

    /// Sets the time of the next attempt: after at least this long, if a server asked for it.
    fn set_due(&mut self, most: u32, least: Option<Duration>) -> bool {
        if self.losses >= most {
            return false;
        }
        self.losses += 1;
        let delay = match least {
            Some(least) => self.retries.next_delay_after(least.min(RETRY_AFTER_MAX)),
            None => self.retries.next_delay(),
        };
        self.due = Some(Box::pin(sleep(delay)));
        true
    }
}

/// Makes a call, and makes it again where its server was lost, is shut down or cannot answer yet, at most
/// [`RESUMES_MAX`] times in a row, as far as it may be repeated. An unavailable store and a keeper that does not answer
/// are returned at once; so is a node that takes no new work, but for calls that may be repeated at will.
pub async fn repeated<T, F>(repeats: MayRepeat, mut call: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let is_final = |failure: &Failure| match failure.reason.as_deref() {
        Some("STORE_UNAVAILABLE" | "KEEPER_UNRESPONSIVE") => true,
        Some("NODE_DRAINING") => repeats != MayRepeat::AtWill,
        _ => repeats == MayRepeat::Never,
    };
    let mut resumes = Resumes::default();
    loop {
        let mut answer = pin!(call());
        let answered = match tokio::time::timeout(WAITS_AFTER, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                // The call waits at a live server.
                resumes.begin_anew();
                answer.await
            }
        };
        let failure = match answered {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) => Failure::from(status),
        };
        if is_final(&failure) {
            return Err(failure);
        }
        resumes.rest(failure).await?;
    }
}
