//! Probes of a run's readiness, to this host's loopback addresses alone.

use crate::run::task::Done;
use kennel_lifecycle::{Readiness, ReadyProbe};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

/// Longest begin of an answer that is read.
const ANSWER_BYTES_MAX: usize = 512;
const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Probes until the task has heard enough and aborts it.
pub(crate) async fn run(readiness: Readiness, attempt: u32, done: mpsc::Sender<Done>) {
    let by = match &readiness.probe {
        ReadyProbe::Tcp(_) => "tcp",
        ReadyProbe::Http { .. } => "http",
        ReadyProbe::Rule | ReadyProbe::Line(_) => return,
    };
    loop {
        let probed = tokio::time::timeout(readiness.timeout, probe(&readiness.probe)).await;
        if matches!(probed, Ok(Ok(()))) && done.send(Done::Probed { attempt, by }).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(readiness.interval) => {}
            () = done.closed() => return,
        }
    }
}

async fn probe(probe: &ReadyProbe) -> io::Result<()> {
    match probe {
        ReadyProbe::Tcp(port) => connect(*port).await.map(drop),
        ReadyProbe::Http { port, path } => get(*port, path).await,
        ReadyProbe::Rule | ReadyProbe::Line(_) => Ok(()),
    }
}

async fn connect(port: u16) -> io::Result<TcpStream> {
    let addresses = LOOPBACK.map(|address| SocketAddr::new(address, port));
    TcpStream::connect(&addresses[..]).await
}

/// 2xx, by the first line of the answer.
async fn get(port: u16, path: &str) -> io::Result<()> {
    let mut stream = connect(port).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUser-Agent: kennel\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.contains(&b'\n') && answer.len() < ANSWER_BYTES_MAX {
        if stream.read_buf(&mut answer).await? == 0 {
            break;
        }
    }
    if is_success(&answer) {
        return Ok(());
    }
    Err(io::Error::other("the answer is not 2xx"))
}

fn is_success(answer: &[u8]) -> bool {
    let version = answer.starts_with(b"HTTP/1.1 ") || answer.starts_with(b"HTTP/1.0 ");
    version
        && matches!(answer.get(9..12), Some([b'2', tens, ones]) if tens.is_ascii_digit() && ones.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn status_line_alone_decides() {
        assert!(is_success(b"HTTP/1.1 204 No Content\r\n"));
        assert!(is_success(b"HTTP/1.0 200\r\n"));
        for other in [
            &b"HTTP/1.1 503 Service Unavailable\r\n"[..],
            b"HTTP/1.1 2",
            b"SSH-2.0-OpenSSH 200",
            b"",
        ] {
            assert!(!is_success(other), "{other:?}");
        }
    }

    #[tokio::test]
    async fn closed_port_is_no_success() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let tcp = ReadyProbe::Tcp(port);
        tokio::time::timeout(Duration::from_secs(5), probe(&tcp))
            .await
            .expect("in time")
            .expect("it accepts");
        drop(listener);
        assert!(probe(&tcp).await.is_err());
    }
}
