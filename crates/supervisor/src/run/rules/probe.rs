//! Probes of a run's readiness and liveness, to this host's loopback addresses alone.

use crate::{
    base::{
        blocking::blocking,
        ports::{HealthCheck, Kernel},
    },
    run::task::done::Done,
};
use kennel_keeper::client::HelperEnd;
use kennel_lifecycle::{Exit, RunId, StateProbe};
use kennel_linux::sockets;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpStream, sync::mpsc};

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
    /// Listening socket that was seen to be the run's, by its inode.
    pub(crate) own: Option<u64>,
}

impl Probing {
    /// Probes until the task has got enough results and aborts it.
    pub(crate) async fn until_ready(mut self) {
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
    pub(crate) async fn until_not_live(mut self, threshold: u32) {
        let run = self.run;
        let attempt = self.attempt;
        let mut failures = 0;
        while self.rest().await {
            let error = match self.probe().await {
                Ok(()) => {
                    failures = 0;
                    continue;
                }
                // An inconclusive probe does not count.
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
                // A send fails only if the task has ended.
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

    async fn probe(&mut self) -> io::Result<()> {
        let port = match &self.server {
            StateProbe::Exec(argv) => return self.exec(argv).await,
            StateProbe::Tcp(port)
            | StateProbe::Http { port, .. }
            | StateProbe::Grpc { port, .. } => *port,
        };
        let timeout = self.timeout;
        let probed = tokio::time::timeout(timeout, self.ask(port)).await;
        probed.map_err(|_| io::Error::other(format!("no answer within {timeout:?}")))?
    }

    /// Asks the first server of the run that accepts a connection.
    async fn ask(&mut self, port: u16) -> io::Result<()> {
        let mut why = None;
        for address in LOOPBACK.map(|address| SocketAddr::new(address, port)) {
            let connected = TcpStream::connect(address).await;
            let stream = match connected {
                Ok(stream) => stream,
                Err(error) => {
                    why.get_or_insert(error);
                    continue;
                }
            };
            // Socket tables read after the connect include the socket that accepted.
            if let Err(error) = self.is_own(address).await {
                why = Some(error);
                continue;
            }
            let answer = match &self.server {
                StateProbe::Http { path, .. } => self.health.get(stream, path).await,
                StateProbe::Grpc { service, .. } => self.health.check(address, service).await,
                StateProbe::Tcp(_) | StateProbe::Exec(_) => Ok(()),
            };
            return answer.map_err(io::Error::other);
        }
        Err(why.unwrap_or_else(|| io::Error::other("no address")))
    }

    /// Requires that a process of the run listens there. A listener that cannot be seen counts as the run's.
    async fn is_own(&mut self, address: SocketAddr) -> io::Result<()> {
        let accepting = move || sockets::accepting(&sockets::listening("self"), address);
        let found = blocking(accepting).await?;
        if self.own.is_some_and(|own| found.contains(&own)) {
            return Ok(());
        }
        let tree = self.kernel.tree(self.run).await;
        let tree = tree.map_err(|error| unknown(error.to_string()))?;
        let mut open = tree.members.iter().flat_map(|member| &member.sockets);
        self.own = open.find(|inode| found.contains(inode)).copied();
        let is_cut = tree.unlisted > 0 || tree.members.iter().any(|member| member.ports_cut);
        let why = format!("the listener on {address} is no process of this run");
        if self.own.is_some() {
            return Ok(());
        }
        if !is_cut && !found.is_empty() {
            self.warn(format!("{why}: the probe fails"));
            return Err(io::Error::other(why));
        }
        // A port without a socket here belongs to another host or namespace.
        self.warn(format!("it cannot be seen whether {why}: the probe counts"));
        Ok(())
    }

    /// Reports a warning of the attempt, which has it once.
    fn warn(&self, message: String) {
        let attempt = self.attempt;
        // If the queue is full, the next probe reports the warning again.
        let _ = self.done.try_send(Done::Warning { attempt, message });
    }
}

fn unknown(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, why)
}

impl Probing {
    /// The shim of the run ends it after the time limit.
    async fn exec(&self, argv: &[String]) -> io::Result<()> {
        let ended = self.kernel.help(self.run, argv, self.timeout).await;
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
