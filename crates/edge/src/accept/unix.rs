//! Accepts at a unix socket, on a thread of its own. A process that only connects and closes fills the queue of the
//! socket faster than a busy runtime would empty it, and then no other process can connect. So the cheap verdicts come
//! first: a closed connection is dropped at once, and a process that was just refused is not judged again.

use super::{Admitted, Judge, Welcome};
use crate::{
    auth::{Full, Peer, PeerVerdict},
    limits::{
        ACCEPT_REST, CONNECTIONS_MAX, CONNECTIONS_OF_RUNS_MAX, CONNECTIONS_REFUSED_MAX,
        REFUSED_ANSWERS_MAX, STORM, STORM_SAMPLE, STORM_SAMPLES_MAX, STORM_WINDOW,
        STORMS_REMEMBERED_MAX,
    },
};
use kennel_lifecycle::{RunId, Timestamp};
use kennel_supervisor::{AcceptBatch, peer_credentials, take_batch, take_queued};
use std::{
    collections::{HashMap, HashSet},
    io,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    thread::{self, JoinHandle},
};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::either::Either;

/// Accepted connections that wait for the runtime. Each has a slot, so that there is always room.
const ACCEPTED_MAX: usize = CONNECTIONS_MAX + CONNECTIONS_OF_RUNS_MAX + CONNECTIONS_REFUSED_MAX;

/// Accepts at one path.
pub(super) struct UnixAcceptor<J> {
    admitted: mpsc::Receiver<Admitted>,
    /// Sockets in place of the present one.
    rebound: mpsc::Receiver<OwnedFd>,
    /// What the next thread gets; absent: stopped.
    door: Option<AcceptLoop<J>>,
    thread: AcceptThread,
}

impl<J: Judge> UnixAcceptor<J> {
    /// Starts the thread, of a listener that does not block.
    pub(super) fn start(
        listener: StdUnixListener,
        rebound: mpsc::Receiver<OwnedFd>,
        judge: J,
        welcome: Welcome,
    ) -> io::Result<Self> {
        let (to, admitted) = mpsc::channel(ACCEPTED_MAX);
        let door = AcceptLoop { judge, welcome, to };
        Ok(Self {
            admitted,
            rebound,
            thread: AcceptThread::start(listener, None, door.clone())?,
            door: Some(door),
        })
    }

    /// Returns the next connection; `None`: it is stopped, and there is none left. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Admitted> {
        loop {
            tokio::select! { biased;
                Some(socket) = self.rebound.recv(), if self.door.is_some() => {
                    if let Err(error) = self.replace(socket) {
                        tracing::error!(%error, "cannot accept at a listening socket that was bound again");
                    }
                }
                admitted = self.admitted.recv() => return admitted,
            }
        }
    }

    fn replace(&mut self, socket: OwnedFd) -> io::Result<()> {
        let Some(door) = &self.door else {
            return Ok(());
        };
        let listener = StdUnixListener::from(socket);
        listener.set_nonblocking(true)?;
        let path = listener.local_addr()?;
        let path = path.as_pathname().map(|path| path.display().to_string());
        tracing::warn!(
            path,
            "the file of a listening socket was removed, it is bound again"
        );
        // Clients that connected before the file was removed are also served.
        let former = self.thread.end();
        self.thread = AcceptThread::start(listener, former, door.clone())?;
        Ok(())
    }

    /// Leaves further connections in the queue of the socket.
    pub(super) fn stop(&mut self) {
        self.door = None;
        self.thread.stop = None;
    }
}

/// A thread that accepts; it ends with this value.
struct AcceptThread {
    /// Absent: stopped.
    stop: Option<StdUnixStream>,
    thread: Option<JoinHandle<StdUnixListener>>,
}

impl AcceptThread {
    /// Starts it; what is in the queue of `former` comes first.
    fn start<J: Judge>(
        listener: StdUnixListener,
        former: Option<StdUnixListener>,
        door: AcceptLoop<J>,
    ) -> io::Result<Self> {
        let (stop, stopped) = StdUnixStream::pair()?;
        let runtime = Handle::current();
        let thread = thread::Builder::new().name("accept".into());
        let thread = thread.spawn(move || {
            let _runtime = runtime.enter();
            door.open(&listener, former, &stopped);
            listener
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl AcceptThread {
    /// Ends it after the connections that it has accepted, and returns its listener.
    fn end(&mut self) -> Option<StdUnixListener> {
        self.stop = None;
        self.thread.take()?.join().ok()
    }
}

impl Drop for AcceptThread {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// What a thread has.
#[derive(Clone)]
struct AcceptLoop<J> {
    judge: J,
    welcome: Welcome,
    to: mpsc::Sender<Admitted>,
}

impl<J: Judge> AcceptLoop<J> {
    fn open(
        self,
        listener: &StdUnixListener,
        former: Option<StdUnixListener>,
        stopped: &StdUnixStream,
    ) {
        let mut refused = Refused::default();
        if let Some(former) = former {
            while let Ok(Some(batch)) = take_queued(&former) {
                self.admit_batch(batch, &mut refused);
            }
        }
        loop {
            let batch = match take_batch(listener, stopped) {
                Ok(Some(batch)) => batch,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection, retrying");
                    thread::sleep(ACCEPT_REST);
                    continue;
                }
            };
            self.admit_batch(batch, &mut refused);
        }
    }

    fn admit_batch(&self, batch: AcceptBatch, refused: &mut Refused) {
        refused.begin_window(self.welcome.refusals.now());
        for socket in &batch.closed {
            self.refuse(socket, refused);
        }
        drop(batch.closed);
        let open = batch.open.into_iter().map(|socket| {
            let pid = peer_credentials(&socket).map_or(0, |peer| peer.pid);
            (pid, socket)
        });
        let (known, fresh): (Vec<_>, Vec<_>) =
            open.partition(|(pid, _)| refused.peers.contains_key(pid));
        for (pid, socket) in fresh.into_iter().chain(known) {
            self.admit(pid, socket, refused);
        }
    }

    fn admit(&self, pid: i32, io: StdUnixStream, refused: &mut Refused) {
        let known = refused.peers.get_mut(&pid);
        let peer = match known {
            Some((peer, count)) => {
                *count += 1;
                // The process has received the reason often enough.
                if *count > REFUSED_ANSWERS_MAX && peer.verdict == PeerVerdict::OfARun(None) {
                    self.welcome.refusals.note(Full::Refused.into(), peer);
                    return self.refuse(&io, refused);
                }
                peer.clone()
            }
            None => match self.judge.judge(&io) {
                Ok(peer) => peer,
                Err(error) => {
                    tracing::debug!(%error, "cannot identify a peer, closing its connection");
                    return;
                }
            },
        };
        let mut judged = peer.clone();
        let place = self.welcome.place(&mut judged);
        let may_call = matches!(
            judged.verdict,
            PeerVerdict::Allowed | PeerVerdict::OfARun(Some(_))
        );
        if !may_call {
            self.refuse(&io, refused);
        }
        if matches!(peer.verdict, PeerVerdict::OfARun(_)) && pid > 0 {
            refused.peers.entry(pid).or_insert((peer, 1));
        }
        if let Some(place) = place {
            let silent = self.welcome.ending.silent.token();
            // The runtime has dropped its receiver if all connections are over.
            let _ = self.to.try_send(Admitted {
                io: Either::Left(io),
                peer: judged,
                place,
                silent,
            });
        }
    }

    /// Counts a refused connection; the run that makes a hundred of them in a second gets a Warning.
    fn refuse(&self, socket: &StdUnixStream, refused: &mut Refused) {
        refused.count += 1;
        if refused.count.is_multiple_of(STORM_SAMPLE)
            && refused.count <= STORM_SAMPLE * STORM_SAMPLES_MAX
        {
            self.judge.warn(socket, |run| refused.is_storm(run));
        }
    }
}

/// Refused connections of one window of time.
#[derive(Default)]
struct Refused {
    since: Timestamp,
    count: u32,
    /// Processes of runs, with the number of their connections. A later process with such a number is taken for one of
    /// these until the end of the window.
    peers: HashMap<i32, (Peer, u32)>,
    /// Samples of each run.
    samples: HashMap<RunId, u32>,
    /// Runs that were warned, once each.
    warned: HashSet<RunId>,
}

impl Refused {
    fn begin_window(&mut self, now: Timestamp) {
        let elapsed = u64::try_from(now.0 - self.since.0).unwrap_or(u64::MAX);
        if u128::from(elapsed) >= STORM_WINDOW.as_micros() {
            self.since = now;
            self.count = 0;
            self.peers.clear();
            self.samples.clear();
        }
        if self.warned.len() >= STORMS_REMEMBERED_MAX {
            self.warned.clear();
        }
    }

    /// Counts a sample of this run; `true`: it is to be warned.
    fn is_storm(&mut self, run: RunId) -> bool {
        let samples = self.samples.entry(run).or_default();
        *samples += 1;
        *samples * STORM_SAMPLE >= STORM && self.warned.insert(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: A-19b
    #[test]
    fn connection_storm_of_a_run_is_reported_once() {
        let mut refused = Refused::default();
        let run = RunId::from_u128(1);
        let mut storms = |from: i64| {
            refused.begin_window(Timestamp(from));
            (0..STORM).filter(|_| refused.is_storm(run)).count()
        };
        assert_eq!(storms(2_000_000), 1);
        assert_eq!(storms(4_000_000), 0);
        // The same number of refusals, but not within one window.
        let other = RunId::from_u128(2);
        for second in 5..5 + i64::from(STORM / STORM_SAMPLE) {
            refused.begin_window(Timestamp(second * 1_000_000));
            assert!(!refused.is_storm(other));
        }
    }
}
