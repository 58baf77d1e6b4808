//! Both directions of a run as byte streams of the Rust client: what a library of a protocol over pipes gets.

use kennel_client::{Duplex, Start};
use kennel_tests::{Kennel, SpecExt, must, sh};
use std::io::ErrorKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Bytes of both directions: more than all pipes and windows on the way have room for.
const BYTES: usize = 12 << 20;

async fn spawned(kennel: &Kennel) -> (kennel_client::Connection, String) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exec cat").open_input()).await);
    let address = kennel.address().parse().expect("an address");
    let connection = must("connect", kennel_client::connect(&address).await);
    (connection, run.run_id)
}

// promise: V-9
#[tokio::test(flavor = "multi_thread")]
async fn duplex_loses_no_byte_when_its_server_dies() {
    let kennel = Kennel::on_sqlite().await;
    let (connection, run) = spawned(&kennel).await;
    let both = Duplex::open(&connection, &run, Start::Beginning).await;
    let Duplex {
        mut stdout,
        mut stdin,
    } = must("open", both);
    let sent: Vec<u8> = (0..BYTES as u64)
        .map(|i| (i * i / 251).to_le_bytes()[0])
        .collect();
    let given = sent.clone();
    let writer = tokio::spawn(async move {
        stdin.write_all(&given).await?;
        stdin.shutdown().await
    });
    let mut got = vec![0; BYTES / 3];
    must("read", stdout.read_exact(&mut got).await);
    kennel.kill_server();
    let mut more = vec![0; BYTES / 3];
    must("read on", stdout.read_exact(&mut more).await);
    kennel.kill_server();
    got.append(&mut more);
    must("the end", stdout.read_to_end(&mut got).await);
    must("written", writer.await.expect("it ends"));
    assert!(got == sent, "{} bytes of {BYTES}", got.len());
}

// promise: V-9
#[tokio::test(flavor = "multi_thread")]
async fn second_duplex_breaks_the_pipe_of_the_first() {
    let kennel = Kennel::on_sqlite().await;
    let (connection, run) = spawned(&kennel).await;
    let mut first = must(
        "open",
        Duplex::open(&connection, &run, Start::Beginning).await,
    );
    must("write", first.stdin.write_all(b"one\n").await);
    let mut line = [0; 4];
    must("read", first.stdout.read_exact(&mut line).await);
    assert_eq!(&line, b"one\n");

    let mut second = must("open", Duplex::open(&connection, &run, Start::Live).await);
    must("write", second.stdin.write_all(b"two\n").await);
    must("read", second.stdout.read_exact(&mut line).await);
    assert_eq!(&line, b"two\n");
    let refused = loop {
        if let Err(refused) = first.stdin.write_all(b"late\n").await {
            break refused;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
    // A dropped duplex leaves its run alone.
    drop(first);
    must("write", second.stdin.write_all(b"end\n").await);
    must("shutdown", second.stdin.shutdown().await);
    let mut rest = Vec::new();
    must("the end", second.stdout.read_to_end(&mut rest).await);
    assert_eq!(rest, b"end\n");
}
