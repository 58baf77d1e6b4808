//! How often, and after what time, something is asked again whose server was lost.

use super::Failure;
use std::{future::Future, pin::pin, time::Duration};
use tonic::{Code, Response, Status};

/// Lost connections in a row, without any progress in between, after which a client gives up.
pub const RESUMES_MAX: u32 = 10;
const DELAY_FIRST: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(2);

/// Losses in a row.
#[derive(Debug, Default)]
pub(super) struct Resumes(u32);

impl Resumes {
    /// Something has come: what is lost from here on is counted anew.
    pub(super) fn begin_anew(&mut self) {
        self.0 = 0;
    }

    /// Waits before the next attempt, or gives up with the failure.
    pub(super) async fn rest(&mut self, failure: Failure) -> Result<(), Failure> {
        let may_pass = failure.connection_lost || failure.code == Code::Unavailable;
        if !may_pass || self.0 >= RESUMES_MAX {
            return Err(failure);
        }
        let delay = DELAY_FIRST * 2_u32.pow(self.0);
        self.0 += 1;
        tokio::time::sleep(failure.retry_after.unwrap_or(delay).min(DELAY_MAX)).await;
        Ok(())
    }
}

/// Makes a call that waits, and makes it again where its server was lost or is shutting down, at most [`RESUMES_MAX`]
/// times in a row. For calls that may be repeated: reads, and orders under a request id. A store that is away is told at
/// once.
pub async fn outlast<T, F>(mut call: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut resumes = Resumes::default();
    loop {
        let mut answer = pin!(call());
        let answered = match tokio::time::timeout(DELAY_MAX, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                // It waits at a server that serves.
                resumes.begin_anew();
                answer.await
            }
        };
        let failure = match answered {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) => Failure::from(status),
        };
        if failure.is("STORE_UNAVAILABLE") {
            return Err(failure);
        }
        resumes.rest(failure).await?;
    }
}
