//! Keys of an issuer that come from a URL: fetched beside all calls, and kept while the issuer is away.

use crate::access::key_set::KeySet;
use parking_lot::Mutex;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Time for which keys are used after they were fetched, where nothing is fetched since: the issuer is away.
pub(crate) const KEPT_MAX: Duration = Duration::from_hours(24);
/// Time after which keys are fetched again where the issuer does not say how long they are fresh.
const FRESH_DEFAULT: Duration = Duration::from_mins(5);
/// Shortest and longest such time: what a removed key has signed is refused after it.
const FRESH_MIN: Duration = Duration::from_mins(1);
const FRESH_MAX: Duration = Duration::from_mins(15);
/// Pause after a failed fetch.
const AGAIN_AFTER: Duration = Duration::from_secs(15);
/// Pause between two fetches for a key that was not known.
const WANTED_EVERY: Duration = Duration::from_mins(1);

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The claim `iss`, and the address of the discovery document where there is no URL.
    pub(crate) issuer: String,
    /// URL of the key set; absent: the issuer's discovery document names it.
    pub(crate) url: Option<String>,
    /// Authorities for its certificate; absent: those of the web.
    pub(crate) ca: Option<PathBuf>,
    /// File of a token for the Authorization header; absent: none is sent.
    pub(crate) token: Option<PathBuf>,
}

/// Keys as they were fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) keys: KeySet,
    /// How long they are fresh, as the issuer says; absent: it does not.
    pub(crate) fresh: Option<Duration>,
}

/// The keys of one issuer.
#[derive(Debug)]
pub(crate) struct RemoteKeys {
    pub(crate) source: Source,
    state: Mutex<FetchedKeys>,
}

#[derive(Debug, Default)]
struct FetchedKeys {
    keys: Arc<KeySet>,
    /// Time of the last successful fetch; absent: there was none.
    fetched: Option<SystemTime>,
    fresh: Duration,
    /// Begin of the last fetch.
    tried: Option<SystemTime>,
    is_fetching: bool,
    /// A token has named a key that is not there.
    is_wanted: bool,
    /// Begin of the last fetch for such a key.
    wanted: Option<SystemTime>,
    /// The last failure; absent: the last fetch succeeded.
    failure: Option<String>,
    failures: u64,
}

impl RemoteKeys {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            state: Mutex::default(),
        }
    }

    /// Returns the keys in force. The error says why there are none.
    pub(super) fn keys(&self, now: SystemTime) -> Result<Arc<KeySet>, &'static str> {
        let state = self.state.lock();
        match state.fetched {
            None => Err("the keys of the token's issuer have not been fetched yet"),
            Some(at) if since(at, now).is_some_and(|age| age > KEPT_MAX) => {
                Err("the keys of the token's issuer are too old, and cannot be fetched")
            }
            Some(_) => Ok(Arc::clone(&state.keys)),
        }
    }

    /// Requests a fetch for a key that is not there.
    pub(super) fn want(&self) {
        self.state.lock().is_wanted = true;
    }

    /// Begins a fetch, where one is due.
    pub(crate) fn begin(&self, now: SystemTime) -> bool {
        let mut state = self.state.lock();
        let is_past = |at: Option<SystemTime>, pause: Duration| {
            // A clock that was set back makes no pause longer.
            at.and_then(|at| since(at, now))
                .is_none_or(|age| age >= pause)
        };
        let pause = match (&state.failure, state.fetched) {
            (None, Some(_)) => state.fresh * 3 / 4,
            _ => AGAIN_AFTER,
        };
        let is_wanted = state.is_wanted && is_past(state.wanted, WANTED_EVERY);
        if state.is_fetching || !is_wanted && !is_past(state.tried, pause) {
            return false;
        }
        if is_wanted {
            state.wanted = Some(now);
        }
        state.is_wanted = false;
        state.tried = Some(now);
        state.is_fetching = true;
        true
    }

    /// Records how a fetch ended. Logs a failure once, and its end.
    pub(crate) fn end(&self, fetched: Result<Fetched, String>, now: SystemTime) {
        let mut state = self.state.lock();
        let issuer = &self.source.issuer;
        state.is_fetching = false;
        match fetched {
            Ok(Fetched { keys, fresh }) => {
                if state.failure.take().is_some() {
                    tracing::info!(issuer, "keys of the issuer are fetched again");
                }
                state.fresh = fresh.unwrap_or(FRESH_DEFAULT).clamp(FRESH_MIN, FRESH_MAX);
                state.keys = Arc::new(keys);
                state.fetched = Some(now);
            }
            Err(why) => {
                if state.failure.as_ref() != Some(&why) {
                    let has_keys = state.fetched.is_some();
                    tracing::warn!(
                        issuer,
                        why,
                        has_keys,
                        "cannot fetch the keys of an issuer, earlier ones are used for a day"
                    );
                }
                state.failures += 1;
                state.failure = Some(why);
            }
        }
    }

    /// Returns the age of the keys; absent: none were fetched.
    pub(crate) fn age(&self, now: SystemTime) -> Option<Duration> {
        let fetched = self.state.lock().fetched;
        fetched.map(|at| since(at, now).unwrap_or_default())
    }

    /// Returns the number of failed fetches.
    pub(crate) fn failures(&self) -> u64 {
        self.state.lock().failures
    }
}

/// The time since then; absent: it is in the future.
fn since(at: SystemTime, now: SystemTime) -> Option<Duration> {
    now.duration_since(at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> (RemoteKeys, impl Fn(u64) -> SystemTime) {
        let keys = RemoteKeys::new(Source {
            issuer: "https://issuer.example".to_owned(),
            url: None,
            ca: None,
            token: None,
        });
        let start = SystemTime::UNIX_EPOCH + Duration::from_hours(1000);
        (keys, move |seconds| start + Duration::from_secs(seconds))
    }

    fn fetched(fresh: Option<u64>) -> Fetched {
        Fetched {
            keys: KeySet::new(),
            fresh: fresh.map(Duration::from_secs),
        }
    }

    // promise: I-102
    #[test]
    fn keys_are_fetched_before_they_expire() {
        for (fresh, pause) in [
            (None, 225),
            (Some(400), 300),
            (Some(1), 45),
            (Some(u64::MAX), 675),
        ] {
            let (keys, at) = remote();
            assert!(keys.begin(at(0)) && !keys.begin(at(1)), "one at a time");
            keys.end(Ok(fetched(fresh)), at(2));
            assert!(!keys.begin(at(pause - 1)), "{fresh:?}");
            assert!(keys.begin(at(pause)), "{fresh:?}");
        }
    }

    // promise: I-102
    #[test]
    fn unknown_keys_are_fetched_once_a_minute() {
        let (keys, at) = remote();
        keys.begin(at(0));
        keys.end(Ok(fetched(None)), at(0));
        let mut fetches = 0;
        for second in 1..=130 {
            keys.want();
            if keys.begin(at(second)) {
                fetches += 1;
                keys.end(Ok(fetched(None)), at(second));
            }
        }
        assert_eq!(fetches, 3);
    }

    // promise: I-102a
    #[test]
    fn keys_expire_a_day_after_last_successful_fetch() {
        let (keys, at) = remote();
        assert!(keys.keys(at(0)).is_err());
        keys.begin(at(0));
        keys.end(Ok(fetched(None)), at(0));
        for second in [300, 3600, 24 * 3600] {
            assert!(keys.begin(at(second)));
            keys.end(Err("away".to_owned()), at(second));
            assert!(!keys.begin(at(second + 14)));
            assert!(keys.keys(at(second)).is_ok());
        }
        assert!(keys.keys(at(24 * 3600 + 1)).is_err());
        assert_eq!(keys.failures(), 3);
        assert!(keys.begin(at(30 * 3600)));
        keys.end(Ok(fetched(None)), at(30 * 3600));
        assert!(keys.keys(at(30 * 3600)).is_ok());
        // The system clock was set back.
        assert!(keys.begin(at(0)));
    }
}
