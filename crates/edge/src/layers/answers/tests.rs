use super::*;
use crate::{layers::With, reason::Reason};
use std::{convert::Infallible, task::Context, time::Duration};
use tokio::time::timeout;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt};

// promise: A-16
#[tokio::test]
async fn handler_panic_becomes_an_internal_status() {
    for when in [When::Call, When::Poll] {
        let response = answer(when).await;
        let status = Status::from_header_map(response.headers()).expect("a status");
        assert_panicked(&status);
    }
    let mut body = answer(When::Body).await.into_body();
    let frame = next(&mut body).await.expect("the end is sent");
    let trailers = frame.expect("not cut").into_trailers().expect("trailers");
    assert_panicked(&Status::from_header_map(&trailers).expect("a status"));
    assert!(next(&mut body).await.is_none(), "nothing follows");
}

// promise: A-7a
#[tokio::test(start_paused = true)]
async fn answer_precedes_the_callers_deadline() {
    let handler = tower::service_fn(|_: Request<()>| async {
        std::future::pending::<Result<Response<Body>, Infallible>>().await
    });
    let service = With(Answers::new(&Telemetry::default())).layer(handler);
    let request = Request::builder().header("grpc-timeout", "100m");
    let answer = service.oneshot(request.body(()).expect("a request"));
    // After 100 ms the transport would answer.
    let answer = timeout(Duration::from_millis(99), answer).await;
    let response = answer.expect("in time").expect("an answer");
    let status = Status::from_header_map(response.headers()).expect("a status");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, "DEADLINE_EXCEEDED");
}

// promise: A-17
#[test]
fn transport_statuses_get_reasons() {
    let of = |status: Status| {
        let mut headers = http::HeaderMap::new();
        status.add_header(&mut headers).expect("headers");
        reasoned(&headers).map(|status| {
            let info = status.get_details_error_info().expect("a reason");
            (status.code(), info.reason)
        })
    };
    let shown = |code, reason: Reason| Some((code, reason.as_str().to_owned()));
    assert_eq!(
        of(Status::internal("failed to decode Protobuf message")),
        shown(Code::InvalidArgument, Reason::MalformedRequest)
    );
    assert_eq!(
        of(Status::out_of_range(
            "Error, decoded message length too large"
        )),
        shown(Code::ResourceExhausted, Reason::RequestTooLarge)
    );
    assert_eq!(
        of(Status::out_of_range(
            "Error, encoded message length too large"
        )),
        shown(Code::Internal, Reason::Internal)
    );
    assert_eq!(
        of(Status::unimplemented("")),
        shown(Code::Unimplemented, Reason::Unimplemented)
    );
    // This status already has a reason.
    assert_eq!(of(status::internal("x")), None);
    assert_eq!(of(Status::new(Code::Ok, "")), None);
}

#[derive(Clone, Copy)]
enum When {
    Call,
    Poll,
    Body,
}

async fn answer(when: When) -> Response<Body> {
    let handler = tower::service_fn(move |_: Request<()>| {
        assert!(!matches!(when, When::Call), "in the call");
        async move {
            assert!(!matches!(when, When::Poll), "in the poll");
            Ok::<_, Infallible>(Response::new(Broken))
        }
    });
    let service = With(Answers::new(&Telemetry::default())).layer(handler);
    let request = Request::builder().uri("/kennel.v1.ProcessService/Spawn");
    let request = request.body(()).expect("a request");
    service.oneshot(request).await.expect("an answer")
}

async fn next(body: &mut Body) -> Option<Result<Frame<Bytes>, Status>> {
    std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

fn assert_panicked(status: &Status) {
    assert_eq!(status.code(), Code::Internal);
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, "INTERNAL");
    assert_eq!(info.metadata["method"], "kennel.v1.ProcessService/Spawn");
}

struct Broken;

impl HttpBody for Broken {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        panic!("in the body");
    }
}
