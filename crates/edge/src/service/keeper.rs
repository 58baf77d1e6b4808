//! Calls that need the keeper, while it does not answer.

use crate::status;
use kennel_supervisor::Supervisor;
use std::future::Future;
use tonic::Status;

/// Waits for an answer that needs the keeper, while it answers. Work in progress continues when it does again.
pub(super) async fn with_keeper<T>(
    supervisor: &Supervisor,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let mut unresponsive = supervisor.keeper_unresponsive();
    if unresponsive.borrow_and_update().is_some() {
        return Err(status::keeper_unresponsive());
    }
    let silent = async {
        if unresponsive.wait_for(Option::is_some).await.is_err() {
            // It is gone, which is reported elsewhere.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        () = silent => Err(status::keeper_unresponsive()),
    }
}
