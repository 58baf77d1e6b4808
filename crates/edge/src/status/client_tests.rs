//! Reaction of a client to the statuses of this server.

use crate::status;
use kennel_client::{Failure, MayRepeat, repeated};
use kennel_lifecycle::{NodeId, RunId, Violation};
use kennel_supervisor::{CallError, Elsewhere};
use std::{cell::Cell, future::Ready, time::Duration};
use tonic::{Code, Response, Status};

#[test]
fn client_failure_keeps_all_status_details() {
    let run = RunId::from_u128(5);
    let failure = Failure::from(status::of(&CallError::CursorAhead {
        run,
        asked: 9,
        head: 3,
    }));
    assert_eq!(failure.code, Code::OutOfRange);
    assert!(failure.is("CURSOR_AHEAD"));
    assert_eq!(failure.metadata["head_seq"], "3");
    assert!(!failure.connection_lost);

    let failure = Failure::from(status::of(&CallError::StoreUnavailable));
    assert_eq!(failure.retry_after, Some(Duration::from_secs(1)));
    assert_eq!(failure.to_string(), "the store is not available");

    let found = [Violation::new("spec.cwd", "must be an absolute path")];
    assert_eq!(Failure::from(status::invalid(&found)).violations, found);
}

#[test]
fn answer_of_another_server_has_no_reason() {
    let failure = Failure::from(Status::unknown(""));
    assert_eq!(failure.reason, None);
    assert_ne!(failure.to_string(), "");
}

/// Returns how often such a call is made whose first answer is this one and whose second is OK.
async fn calls(repeats: MayRepeat, first: impl Fn() -> Status) -> u32 {
    let made = Cell::new(0);
    let answered = repeated(repeats, counted(&made, first));
    assert_eq!(answered.await.is_ok(), made.get() == 2);
    made.get()
}

/// Makes a call, counted, whose first answer is this one and whose second is OK.
fn counted(
    made: &Cell<u32>,
    first: impl Fn() -> Status,
) -> impl FnMut() -> Ready<Result<Response<()>, Status>> {
    move || {
        made.set(made.get() + 1);
        let answer = if made.get() == 1 {
            Err(first())
        } else {
            Ok(Response::new(()))
        };
        std::future::ready(answer)
    }
}

// promise: I-40b
#[tokio::test(start_paused = true)]
async fn call_to_an_unreachable_node_is_not_retried() {
    let node = Elsewhere {
        name: "one".to_owned(),
        ..Elsewhere::unknown(NodeId::from_u128(9))
    };
    let made = Cell::new(0);
    let away = || status::node_unreachable(&node, "no server answers");
    let refused = repeated(MayRepeat::AtWill, counted(&made, away))
        .await
        .expect_err("away");
    assert_eq!(
        (refused.metadata["node_name"].as_str(), made.get()),
        ("one", 1)
    );

    // If the node's server is replaced, the next one may answer.
    let made = Cell::new(0);
    let lost = || status::node_lost(&node, "connection reset");
    repeated(MayRepeat::AtWill, counted(&made, lost))
        .await
        .expect("it answers");
    assert_eq!(made.get(), 2);
}

// promise: R-23a, R-23b
#[tokio::test(start_paused = true)]
async fn retries_depend_on_idempotency_of_the_call() {
    // The library's status for a connection that is lost during a wait.
    let lost = || Status::from_error(Box::new(std::io::Error::other("operation was canceled")));
    let draining = || status::of(&CallError::Draining);
    let no_store = || status::of(&CallError::StoreUnavailable);
    let cancelled = || Status::cancelled("by another server");
    for (repeats, expected) in [
        (MayRepeat::AtWill, [2, 2, 2, 1, 1]),
        (MayRepeat::ById, [2, 2, 1, 1, 1]),
        (MayRepeat::Never, [1, 1, 1, 1, 1]),
    ] {
        let made = [
            calls(repeats, lost).await,
            calls(repeats, status::leaving).await,
            calls(repeats, draining).await,
            calls(repeats, no_store).await,
            calls(repeats, cancelled).await,
        ];
        assert_eq!(made, expected, "{repeats:?}");
    }
}
