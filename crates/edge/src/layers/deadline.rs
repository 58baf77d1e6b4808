//! The caller's deadline. The transport would answer CANCELLED when it passes, so every call is answered with
//! `DEADLINE_EXCEEDED` a moment earlier, wherever it is: in its handler, before it or after it.

use crate::status;
use futures_util::{FutureExt, future::Either};
use http::HeaderMap;
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;
use tonic::Status;

/// Longest time by which the answer precedes the caller's deadline.
const MARGIN_MAX: Duration = Duration::from_millis(20);

/// A call with a deadline: whether that has passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallDeadline(Arc<AtomicBool>);

impl CallDeadline {
    /// Whether the call was answered because of it.
    pub(crate) fn has_passed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns how long a call may last; absent: for as long as the caller stays.
pub(crate) fn of_headers(headers: &HeaderMap) -> Option<Duration> {
    let timeout = parse(headers.get("grpc-timeout")?.to_str().ok()?)?;
    Some(timeout.saturating_sub((timeout / 10).min(MARGIN_MAX)))
}

/// Waits for the answer, for as long as its caller does, from now on.
pub(crate) fn within<T>(
    budget: Option<Duration>,
    deadline: CallDeadline,
    answer: impl Future<Output = Result<T, Status>>,
) -> impl Future<Output = Result<T, Status>> {
    let answer = match budget {
        Some(budget) => Either::Left(timeout(budget, answer)),
        None => Either::Right(answer.map(Ok)),
    };
    async move {
        let answer = pin!(answer);
        answer.await.unwrap_or_else(|_| {
            // The flag is set before the drop.
            deadline.0.store(true, Ordering::Relaxed);
            Err(status::deadline_exceeded())
        })
    }
}

/// Parses `TimeoutValue TimeoutUnit` of gRPC over HTTP/2: at most eight digits and one letter.
fn parse(text: &str) -> Option<Duration> {
    let (unit_at, unit) = text.char_indices().next_back()?;
    let digits = &text[..unit_at];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(value * 3600)),
        'M' => Some(Duration::from_secs(value * 60)),
        'S' => Some(Duration::from_secs(value)),
        'm' => Some(Duration::from_millis(value)),
        'u' => Some(Duration::from_micros(value)),
        'n' => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grpc_timeout_unit_is_parsed() {
        assert_eq!(parse("1H"), Some(Duration::from_hours(1)));
        assert_eq!(parse("2M"), Some(Duration::from_mins(2)));
        assert_eq!(parse("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse("4m"), Some(Duration::from_millis(4)));
        assert_eq!(parse("5u"), Some(Duration::from_micros(5)));
        assert_eq!(parse("6n"), Some(Duration::from_nanos(6)));
        assert_eq!(parse("99999999H"), Some(Duration::from_hours(99_999_999)));
    }

    #[test]
    fn invalid_grpc_timeout_is_ignored() {
        for bad in ["", "1", "S", "1s", "-1S", "+1S", "1 S", "123456789S", "1é"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn response_is_sent_before_the_deadline() {
        let budget = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().expect("ASCII"));
            of_headers(&headers)
        };
        assert_eq!(budget("10S"), Some(Duration::from_millis(9980)));
        assert_eq!(budget("10m"), Some(Duration::from_millis(9)));
        assert_eq!(of_headers(&HeaderMap::new()), None);
    }
}
