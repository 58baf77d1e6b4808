//! The address of metrics: open to this user alone, within bounds, and to other hosts only on request.

use kennel_tests::{
    Kennel, Options, PATIENCE, eventually, kennel::bare_command, must, programs, shell::text,
    within,
};
use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
};

/// More than are served at a time.
const SILENT: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn metrics_socket_is_private_and_bounded() {
    let scratch = must("a directory", tempfile::tempdir());
    let socket = scratch.path().join("metrics.sock");
    let address = format!("unix:{}", socket.display());
    let _kennel = Kennel::start(Options {
        env: vec![("KENNEL_METRICS_LISTEN".to_owned(), address)],
        ..Options::default()
    })
    .await;
    eventually("the socket is there", PATIENCE, || {
        UnixStream::connect(&socket).ok()
    })
    .await;
    let mode = fs::metadata(&socket).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let silent: Vec<_> = (0..SILENT)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).expect("it listens");
            stream.write_all(b"GET /metr").expect("sent");
            stream
        })
        .collect();
    let at = socket.clone();
    let scraping = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(at).expect("it listens");
        let request = b"GET /metrics HTTP/1.1\r\nHost: kennel\r\n\r\n";
        stream.write_all(request).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    });
    let answer = within("a scrape beside them", PATIENCE, scraping).await;
    let answer = answer.expect("a scrape");
    assert!(answer.contains("kennel_connection_active"), "{answer}");
    let ends = tokio::task::spawn_blocking(move || {
        for mut stream in silent {
            // A status or none: the connection has ended.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    within("the end of requests without a head", PATIENCE, ends)
        .await
        .expect("they end");
}

#[test]
fn public_metrics_are_asked_for() {
    let scratch = must("a directory", tempfile::tempdir());
    let dir = scratch.path().join("data");
    let mut serve = bare_command(&programs::kennel());
    serve
        .args(["serve", "--metrics-listen", "0.0.0.0:0", "--data-dir"])
        .arg(&dir);
    let refused = serve.output().expect("it runs");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--metrics-public"), "{said}");
    assert!(!dir.exists(), "nothing was made");
}
