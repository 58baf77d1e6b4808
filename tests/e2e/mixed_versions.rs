//! Nodes of different versions on one database.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Kennel, Options, PATIENCE, Postgres, argv, complaint, must,
    raw::{Raw, call},
    shell::{run_to_end, text},
};
use prost::Message as _;
use std::{
    convert::Infallible,
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    server::{Grpc, NamedService, UnaryService},
    transport::Server,
};

/// Field 9999 of a message, which no message of this version has: text.
const LATER_FIELD: &[u8] = b"\xfa\xf0\x04\x05later";

/// Calls, by path and message.
type Asked = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// The service of a later version: it answers each call with these bytes, and records the requests.
#[derive(Clone)]
struct Later {
    answer: Vec<u8>,
    asked: Asked,
}

impl Later {
    /// Serves at this socket, for as long as the test.
    fn serve(self, socket: &Path) {
        let listener = must("listen", UnixListener::bind(socket));
        let serving = Server::builder()
            .add_service(self)
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(serving);
    }
}

impl NamedService for Later {
    const NAME: &'static str = "kennel.v1.ProcessService";
}

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Later {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let answer = Answering {
            service: self.clone(),
            method,
        };
        Box::pin(async move { Ok(Grpc::new(Raw).unary(answer, request).await) })
    }
}

struct Answering {
    service: Later,
    method: String,
}

impl UnaryService<Vec<u8>> for Answering {
    type Response = Vec<u8>;
    type Future = Answer<Response<Vec<u8>>, Status>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let asked = (self.method.clone(), request.into_inner());
        self.service.asked.lock().expect("whole").push(asked);
        let answer = Response::new(self.service.answer.clone());
        Box::pin(async move { Ok(answer) })
    }
}

/// Both the request and the answer have a field that this version does not know.
// promise: I-76
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_later_version_pass_through() {
    let postgres = Postgres::start().await;
    let older = Kennel::start(Options::on(&postgres.url())).await;
    let mut newer = Kennel::start(Options::on(&postgres.url())).await;
    let run = newer.client().await.spawn(argv(&["sleep", "600"])).await;
    let run_id = must("spawn", run).run_id;
    // From here on the other node simulates a later version.
    newer.kill_service_after(|| {});
    let socket = newer.scratch().join("later.sock");
    let mut answer = pb::GetTreeResponse::default().encode_to_vec();
    answer.extend_from_slice(LATER_FIELD);
    let later = Later {
        answer: answer.clone(),
        asked: Arc::default(),
    };
    let asked = Arc::clone(&later.asked);
    later.serve(&socket);
    let moved = format!(
        "UPDATE nodes SET address = 'unix:{}' WHERE address = '{}'",
        socket.display(),
        newer.address()
    );
    postgres.psql(&moved).await;

    let mut request = pb::GetTreeRequest { run_id }.encode_to_vec();
    request.extend_from_slice(LATER_FIELD);
    let path = "/kennel.v1.ProcessService/GetTree";
    let answered = must("call", call(&older, path, request.clone()).await);

    assert_eq!(answered, answer);
    let asked = asked.lock().expect("whole").clone();
    assert_eq!(asked, [(path.to_owned(), request)]);
}

/// What a later version would write: fields and values that this one does not have.
// promise: I-76a, RW-126
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_row_does_not_hide_other_runs() {
    let postgres = Postgres::start().await;
    let older = Kennel::start(Options::on(&postgres.url())).await;
    let mut newer = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = older.client().await;
    let mut there = newer.client().await;
    let own = must("spawn", client.spawn(argv(&["sleep", "600"])).await).run_id;
    let with_field = must("spawn", there.spawn(argv(&["sleep", "600"])).await).run_id;
    let with_value = must("spawn", there.spawn(argv(&["sleep", "600"])).await).run_id;
    let ended = must("spawn", there.spawn(argv(&["true"])).await).run_id;
    must("wait", there.ended(&ended).await);
    for (run, change) in [
        (
            &with_field,
            r#"spec = (spec::jsonb || '{"later": 1}')::text, facets = (facets::jsonb || '{"later": 1}')::text"#,
        ),
        (
            &with_value,
            r#"spec = (spec::jsonb || '{"policy": {"kind": "later"}}')::text"#,
        ),
        (
            &ended,
            r#"entries = jsonb_set(entries::jsonb, '{entries,0,entry}', '{"later": {}}')::text"#,
        ),
    ] {
        let sql = format!("UPDATE runs SET {change} WHERE run_id = '{run}'");
        postgres.psql(&sql).await;
    }

    // The run's node answers the Get.
    let run = must("get", client.get(&with_value).await);
    assert_eq!(run.state(), RunState::Running);
    let listed = older.cli(&["ps", "-a", "-q"]);
    let listed = run_to_end(listed, PATIENCE).await;
    let (ids, notes) = (text(&listed), String::from_utf8_lossy(&listed.stderr));
    for run in [&own, &with_field, &ended] {
        assert!(ids.contains(run.as_str()), "{run}: {ids}");
    }
    assert!(!ids.contains(&with_value), "{ids}");
    assert!(
        notes.contains(&with_value) && notes.contains("later"),
        "{notes}"
    );
    let sample = run_to_end(older.cli(&["top", "--once"]), PATIENCE).await;
    let (shown, notes) = (text(&sample), String::from_utf8_lossy(&sample.stderr));
    assert!(shown.contains(&own) && !shown.contains(&with_value));
    assert!(notes.contains("left out: 1;"), "{notes}");
    // A shell would insert stderr notes into the typed line.
    let mut asked = older.cli(&["--", "kennel", "stop", "0"]);
    asked
        .env("KENNEL_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "2")
        .env("KENNEL_SERVER", older.address());
    let completed = run_to_end(asked, PATIENCE).await;
    assert!(text(&completed).contains(&own), "{completed:?}");
    assert!(completed.stderr.is_empty(), "{completed:?}");
    // A partial id also finds the run.
    let named = older.cli(&["get", &with_value[10..]]);
    let named = run_to_end(named, PATIENCE).await;
    assert!(text(&named).contains(&with_value), "{named:?}");

    newer.kill_service_after(|| {});
    let refused = client.get(&with_value).await.expect_err("it is not known");
    assert_eq!(complaint(&refused).reason, "NODE_UNREACHABLE");
    let run = must("get", client.get(&with_field).await);
    assert_eq!(run.state(), RunState::Running, "{run:?}");
    // An entry of an unknown kind hides no other event.
    must("events", client.hear_all(&ended, 0).await);
}
