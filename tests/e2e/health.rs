//! Health over HTTP, as a probe of a kubelet or a load balancer reads it.

use kennel_tests::{Kennel, Options, PATIENCE, Postgres, eventually, must, shell::run_to_end};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
};

/// Returns status and body; absent: nothing listens.
fn answer(mut stream: impl Read + Write, path: &str) -> Option<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, body.trim_end().to_owned()))
}

fn ask(port: u16, path: &str) -> Option<(u16, String)> {
    answer(TcpStream::connect(("127.0.0.1", port)).ok()?, path)
}

// promise: S-20
#[tokio::test(flavor = "multi_thread")]
async fn http_readiness_gives_the_reason_for_failure() {
    let mut postgres = Postgres::start().await;
    let port = {
        let held = TcpListener::bind("127.0.0.1:0").expect("a port");
        held.local_addr().expect("bound").port()
    };
    let address = format!("127.0.0.1:{port}");
    let kennel = Kennel::start(Options {
        words: vec!["--health-listen", address.leak()],
        ..Options::on(&postgres.url())
    })
    .await;
    let until = async |path: &str, wanted: (u16, &str)| {
        eventually(path, PATIENCE, || {
            let found = ask(port, path)?;
            (found == (wanted.0, wanted.1.to_owned())).then_some(())
        })
        .await;
    };
    for path in ["/livez", "/readyz", "/startupz"] {
        until(path, (200, "ok")).await;
    }
    assert_eq!(ask(port, "/metrics").expect("answered").0, 404);

    let drain = run_to_end(kennel.cli(&["drain"]), PATIENCE).await;
    assert!(drain.status.success(), "{drain:?}");
    until("/readyz", (503, "the node is being drained")).await;
    until("/livez", (200, "ok")).await;
    let undo = run_to_end(kennel.cli(&["drain", "--undo"]), PATIENCE).await;
    assert!(undo.status.success(), "{undo:?}");
    until("/readyz", (200, "ok")).await;

    kennel.kill_server();
    until("/readyz", (200, "ok")).await;
    postgres.crash().await;
    until("/readyz", (503, "the database does not answer")).await;
    until("/livez", (200, "ok")).await;
}

// promise: S-20
#[tokio::test(flavor = "multi_thread")]
async fn health_socket_is_removed_with_its_service() {
    let scratch = must("a directory", tempfile::tempdir());
    let socket = scratch.path().join("health.sock");
    let address = format!("unix:{}", socket.display());
    let mut kennel = Kennel::start(Options {
        env: vec![("KENNEL_HEALTH_LISTEN".to_owned(), address)],
        ..Options::default()
    })
    .await;
    let ask = |path: &Path| answer(UnixStream::connect(path).ok()?, "/readyz");
    eventually("it is ready", PATIENCE, || ask(&socket)).await;
    kennel.kill_server();
    eventually("the next one is", PATIENCE, || ask(&socket)).await;
    kennel.terminate(PATIENCE).await;
    assert!(!socket.exists());
}
