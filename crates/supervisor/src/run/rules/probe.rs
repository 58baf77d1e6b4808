//! Probes of a run's readiness and liveness, to this host's loopback addresses alone.

use crate::{
    base::ports::{HealthCheck, Kernel},
    run::task::Done,
};
use kennel_keeper::client::HelperEnd;
use kennel_lifecycle::{Exit, RunId, StateProbe};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

/// Longest part of an answer that is read.
const ANSWER_BYTES_MAX: usize = 512;
const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Target and timing of the probes.
pub(crate) struct Probing {
    pub(crate) server: StateProbe,
    /// Time between two probes.
    pub(crate) interval: Duration,
    /// Longest time of one probe.
    pub(crate) timeout: Duration,
    pub(crate) attempt: u32,
    pub(crate) run: RunId,
    pub(crate) health: Arc<dyn HealthCheck>,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) done: mpsc::Sender<Done>,
}

impl Probing {
    /// Probes until the task has got enough results and aborts it.
    pub(crate) async fn until_ready(self) {
        let (attempt, by) = (self.attempt, self.server.name());
        loop {
            let succeeded = self.probe().await.is_ok();
            if succeeded && self.done.send(Done::Probed { attempt, by }).await.is_err() {
                return;
            }
            if !self.rest().await {
                return;
            }
        }
    }

    /// Probes until so many probes in a row have failed.
    pub(crate) async fn until_not_live(self, threshold: u32) {
        let run = self.run;
        let attempt = self.attempt;
        let mut failures = 0;
        while self.rest().await {
            let error = match self.probe().await {
                Ok(()) => {
                    failures = 0;
                    continue;
                }
                // This means nothing for the run.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => error,
            };
            failures += 1;
            let error = error.to_string();
            if failures == 1 {
                tracing::warn!(run_id = %run, attempt, error, threshold, "liveness probe failed");
            }
            if failures >= threshold {
                let not_live = Done::NotLive {
                    attempt,
                    failures,
                    error,
                };
                // A task that has ended has nothing to do any more.
                let _ = self.done.send(not_live).await;
                return;
            }
        }
    }

    /// Waits for the next probe; `false`: none is wanted any more.
    async fn rest(&self) -> bool {
        tokio::select! {
            () = tokio::time::sleep(self.interval) => true,
            () = self.done.closed() => false,
        }
    }

    async fn probe(&self) -> io::Result<()> {
        if let StateProbe::Exec(argv) = &self.server {
            return self.exec(argv).await;
        }
        let late = |_| io::Error::other(format!("no answer within {:?}", self.timeout));
        let probed = tokio::time::timeout(self.timeout, probe(&self.server, &*self.health)).await;
        probed.map_err(late)?
    }
}

impl Probing {
    /// The shim of the run ends it after the time limit.
    async fn exec(&self, argv: &[String]) -> io::Result<()> {
        let ended = self.kernel.help(self.run, argv, self.timeout).await;
        let unknown = |why: String| io::Error::new(io::ErrorKind::WouldBlock, why);
        let ended = ended.map_err(|error| unknown(error.to_string()))?;
        Err(io::Error::other(match ended {
            HelperEnd::Exited(Exit::Code(0)) => return Ok(()),
            HelperEnd::Exited(Exit::Code(code)) => format!("the command exited with code {code}"),
            HelperEnd::Exited(Exit::Signal { signal, .. }) => {
                format!("the command was ended by {signal}")
            }
            HelperEnd::Exited(Exit::Unknown) => "how the command ended is not known".to_owned(),
            HelperEnd::TimedOut => format!("the command took longer than {:?}", self.timeout),
            HelperEnd::Failed(failure) => format!("the command did not start: {failure}"),
            HelperEnd::Refused => return Err(unknown("the run takes no command now".to_owned())),
        }))
    }
}

async fn probe(server: &StateProbe, health: &dyn HealthCheck) -> io::Result<()> {
    match server {
        StateProbe::Tcp(port) => connect(*port).await.map(drop),
        StateProbe::Http { port, path } => get(*port, path).await,
        StateProbe::Grpc { port, service } => ask(health, *port, service).await,
        // Sent to the keeper instead.
        StateProbe::Exec(_) => Ok(()),
    }
}

/// Whether one of the loopback addresses reports that it serves.
async fn ask(health: &dyn HealthCheck, port: u16, service: &str) -> io::Result<()> {
    let mut last = String::new();
    for address in LOOPBACK.map(|address| SocketAddr::new(address, port)) {
        // The first server that answers decides.
        if let Err(error) = TcpStream::connect(address).await {
            last = error.to_string();
            continue;
        }
        return health
            .check(address, service)
            .await
            .map_err(io::Error::other);
    }
    Err(io::Error::other(last))
}

async fn connect(port: u16) -> io::Result<TcpStream> {
    let addresses = LOOPBACK.map(|address| SocketAddr::new(address, port));
    TcpStream::connect(&addresses[..]).await
}

/// Requires a 2xx status, by the first line of the answer.
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
    let line = answer.split(|byte| *byte == b'\r' || *byte == b'\n').next();
    let line = String::from_utf8_lossy(line.unwrap_or_default());
    let line: String = line.chars().filter(|c| !c.is_control()).take(80).collect();
    Err(io::Error::other(format!("the answer is not 2xx: {line}")))
}

fn is_success(answer: &[u8]) -> bool {
    let version = answer.starts_with(b"HTTP/1.1 ") || answer.starts_with(b"HTTP/1.0 ");
    version
        && matches!(answer.get(9..12), Some([b'2', tens, ones]) if tens.is_ascii_digit() && ones.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[derive(Debug)]
    struct Silent;

    #[async_trait::async_trait]
    impl HealthCheck for Silent {
        async fn check(&self, _: SocketAddr, _: &str) -> Result<(), String> {
            Err("it is not asked".into())
        }
    }

    async fn connect_by(server: &StateProbe) -> io::Result<()> {
        probe(server, &Silent).await
    }

    #[tokio::test]
    async fn closed_port_is_no_success() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let tcp = StateProbe::Tcp(port);
        tokio::time::timeout(Duration::from_secs(5), connect_by(&tcp))
            .await
            .expect("in time")
            .expect("it accepts");
        drop(listener);
        assert!(connect_by(&tcp).await.is_err());
    }
}
