//! The socket to the keeper: numbers requests, passes answers to their callers, keeps events in order.

use super::{
    ChildSpec, ClientError, HeldRun, KEEPER_ANSWER_MAX, KeeperEvent, KeeperEvents, KeeperHello,
    KeeperReport, SkippedBy, liveness::KeeperLiveness,
};
use crate::{
    skipped::SkippedNames,
    wire::{
        self, Answer, Decoded, Head, ToKeeper, ToServer,
        versions::{self, Versions, WIRE},
    },
};
use kennel_lifecycle::{RunId, StartFailure, StartStage};
use kennel_linux::spawn::ChildImage;
use kennel_linux::{
    fdpass::{self, Received},
    memfd,
    spawn::failure,
};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    io::{
        Interest,
        unix::{AsyncFd, AsyncFdReadyGuard},
    },
    sync::{Notify, mpsc, oneshot},
};

/// Awaits an answer of the keeper and gives what is wanted of it. A keeper with another answer counts as gone.
macro_rules! ask {
    ($asked:expr, $($answer:pat => $wanted:expr),+) => {
        match $asked.await?.0 {
            $($answer => Ok($wanted),)+
            Answer::Exhausted(what) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    };
}
pub(super) use ask;

/// Most messages queued for a keeper that does not read. Beyond it the keeper is taken for dead.
const QUEUED_MAX: usize = 65_536;

/// Most events queued for the server, far more than all runs of a node can report at their ends. A server that is
/// further behind treats the link as lost; the keeper reports all of it again to the next one.
const EVENTS_QUEUED_MAX: usize = 262_144;

/// Most sockets that wait to replace one: a check makes one in some seconds.
const REBOUND_QUEUED_MAX: usize = 16;

/// Pause between two attempts to send where no event may announce free space.
const SEND_AGAIN: Duration = Duration::from_millis(20);

/// A listening socket of the keeper.
#[derive(Debug)]
pub struct ListeningSocket {
    /// The socket.
    pub socket: OwnedFd,
    /// Sockets at the same address, each in place of the one before, whose file was removed.
    pub rebound: mpsc::Receiver<OwnedFd>,
}

type Reply = (Answer, Vec<OwnedFd>);

/// The link, its events, and the keeper's first message with its runs.
type OpenedLink = (Arc<Link>, KeeperEvents, KeeperHello, Vec<HeldRun>);

/// One end of the socket, shared by all clones of the client and by the task that reads.
#[derive(Debug)]
pub(super) struct Link {
    /// Watched for messages alone: each message that the keeper takes makes room, and would wake this process.
    socket: AsyncFd<OwnedFd>,
    pub(super) state: Mutex<LinkState>,
    /// Kinds of requests that the keeper does not know.
    missing: OnceLock<Vec<&'static str>>,
    /// Notified when a message waits to be sent.
    behind: Notify,
    pub(super) liveness: KeeperLiveness,
}

#[derive(Debug, Default)]
pub(super) struct LinkState {
    gone: bool,
    seq: u64,
    waiting: HashMap<u64, oneshot::Sender<Reply>>,
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    pub(super) listeners: Vec<ListeningSocket>,
    /// Where the sockets go that replace those.
    rebound: Vec<mpsc::Sender<OwnedFd>>,
    /// Runs whose shims were late, until they are taken.
    pub(super) held: HashMap<RunId, HeldRun>,
    /// Names that this server does not know, each reported once.
    skipped: SkippedNames,
    /// Those that are still to be reported.
    skipped_now: Vec<KeeperEvent>,
}

impl Link {
    /// Waits for the hello and what comes with it, then starts a task that reads until the keeper is gone.
    pub(super) async fn open(socket: OwnedFd) -> Result<OpenedLink, ClientError> {
        fdpass::set_nonblocking(&socket).map_err(|_| ClientError::KeeperGone)?;
        // SAFETY: `socket` owns an open descriptor whose number never changes, and is dropped only together with the
        // registration.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
        let socket = socket.map_err(|_| ClientError::KeeperGone)?;
        let link = Arc::new(Self {
            socket,
            state: Mutex::new(LinkState::default()),
            missing: OnceLock::new(),
            behind: Notify::new(),
            liveness: KeeperLiveness::default(),
        });
        let (
            _,
            ToServer::Hello {
                held: runs,
                mut hello,
            },
            listeners,
        ) = link.receive().await.ok_or(ClientError::KeeperGone)?
        else {
            return Err(ClientError::KeeperGone);
        };
        if hello.speaks.common(WIRE).is_none() {
            return Err(ClientError::OtherLevels(hello.speaks));
        }
        let versions = Versions {
            speaks: hello.speaks,
            knows: hello.knows.clone(),
        };
        let _ = link.missing.set(versions.missing::<ToKeeper>());
        for socket in listeners {
            let (to, rebound) = mpsc::channel(REBOUND_QUEUED_MAX);
            let mut state = link.state.lock();
            state.listeners.push(ListeningSocket { socket, rebound });
            state.rebound.push(to);
        }
        hello.judge_detached();
        let mut held = Vec::new();
        for _ in 0..runs {
            let (Head { run: Some(id), .. }, ToServer::Held(run), outputs) =
                link.receive().await.ok_or(ClientError::KeeperGone)?
            else {
                return Err(ClientError::KeeperGone);
            };
            held.push(run.with_outputs(id, outputs));
        }
        let (events, queue) = mpsc::channel(EVENTS_QUEUED_MAX);
        let reading = tokio::spawn(Arc::clone(&link).read(events));
        let events = KeeperEvents {
            queue,
            reading,
            link: Arc::clone(&link),
        };
        Ok((link, events, *hello, held))
    }

    /// Sends without waiting, in order.
    pub(super) fn post(&self, message: &ToKeeper) {
        self.send(Head::NONE, message, Vec::new());
    }

    /// Sends a message about a run without waiting, in order.
    pub(super) fn post_of(&self, run: RunId, message: &ToKeeper) {
        self.send(Head::of_run(run), message, Vec::new());
    }

    /// Sends a request, and waits for the answer as long as a keeper may take.
    pub(super) async fn ask(
        &self,
        run: Option<RunId>,
        message: ToKeeper,
    ) -> Result<Reply, ClientError> {
        self.ask_for(run, message, Vec::new(), KEEPER_ANSWER_MAX)
            .await
    }

    pub(super) async fn ask_for(
        &self,
        run: Option<RunId>,
        message: ToKeeper,
        fds: Vec<OwnedFd>,
        wait: Duration,
    ) -> Result<Reply, ClientError> {
        let (seq, answer) = self.number()?;
        self.exchange(seq, answer, run, message, fds, wait).await
    }

    /// Returns the number of the next request, and where its answer comes.
    pub(super) fn number(&self) -> Result<(u64, oneshot::Receiver<Reply>), ClientError> {
        let mut state = self.state.lock();
        if state.gone {
            return Err(ClientError::KeeperGone);
        }
        let (reply, answer) = oneshot::channel();
        state.seq += 1;
        let seq = state.seq;
        state.waiting.insert(seq, reply);
        Ok((seq, answer))
    }

    /// Sends the request of this number, unless the keeper does not know its kind, and waits for the answer.
    pub(super) async fn exchange(
        &self,
        seq: u64,
        answer: oneshot::Receiver<Reply>,
        run: Option<RunId>,
        message: ToKeeper,
        fds: Vec<OwnedFd>,
        wait: Duration,
    ) -> Result<Reply, ClientError> {
        if self.is_unknown(&message) {
            self.forget(seq);
            return Err(ClientError::KeeperOlder);
        }
        let number = Some(seq);
        self.send(Head { seq: number, run }, &message, fds);
        let answered = tokio::time::timeout(wait, answer).await;
        self.state.lock().waiting.remove(&seq);
        match answered {
            Ok(Ok((Answer::Unknown {}, _))) => Err(ClientError::KeeperOlder),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) | Err(_) => Err(ClientError::KeeperGone),
        }
    }

    /// Drops a request: no caller waits for its answer any more.
    pub(super) fn forget(&self, seq: u64) {
        self.state.lock().waiting.remove(&seq);
    }

    fn is_unknown(&self, message: &ToKeeper) -> bool {
        let missing = self.missing.get();
        missing.is_some_and(|missing| versions::unknown_kind(missing, message).is_some())
    }

    pub(super) fn send(&self, head: Head, message: &ToKeeper, fds: Vec<OwnedFd>) {
        let mut state = self.state.lock();
        if state.gone {
            return;
        }
        match wire::encode(head, message) {
            Ok((bytes, file)) => {
                let fds = file.into_iter().chain(fds).collect();
                state.queue.push_back((bytes, fds));
            }
            // No free descriptor for the memfd of a long body: the message is dropped.
            Err(_) => return,
        }
        if !self.flush(&mut state) {
            self.behind.notify_one();
        }
    }

    /// Sends queued messages; `false` where the keeper has to read first.
    fn flush(&self, state: &mut LinkState) -> bool {
        while let Some((bytes, fds)) = state.queue.front() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send(self.socket.get_ref(), bytes, &fds) {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock || fdpass::is_short(&error) =>
                {
                    if state.queue.len() > QUEUED_MAX {
                        state.gone = true;
                    }
                    return false;
                }
                // The message was sent, can never be sent, or the keeper is gone, which the reading task sees.
                Ok(()) | Err(_) => {}
            }
            state.queue.pop_front();
        }
        true
    }

    /// Sends queued messages whenever the socket takes more, and periodically where the host has no descriptors.
    async fn write(&self) {
        loop {
            self.behind.notified().await;
            // Without a free descriptor for the copy, the flush retries periodically.
            let room = self.watch_for_room().ok();
            loop {
                let ready = tokio::time::timeout(SEND_AGAIN, wait_for_room(room.as_ref())).await;
                if self.flush(&mut self.state.lock()) {
                    break;
                }
                match ready {
                    Ok(Ok(mut ready)) => ready.clear_ready(),
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
            }
        }
    }

    /// Opens a copy of the socket, watched for free space.
    fn watch_for_room(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let copy = self.socket.get_ref().try_clone()?;
        // SAFETY: as in `open`; the returned `AsyncFd` owns the copy.
        let room = unsafe { AsyncFd::register_with_interest(copy, Interest::WRITABLE) };
        Ok(room?)
    }

    async fn read(self: Arc<Self>, events: mpsc::Sender<KeeperEvent>) {
        let reading = async {
            while let Some((head, message, fds)) = self.receive().await {
                self.liveness.heard();
                let skipped = std::mem::take(&mut self.state.lock().skipped_now);
                if skipped
                    .into_iter()
                    .any(|event| events.try_send(event).is_err())
                {
                    break;
                }
                let event = match (message, head.run) {
                    (ToServer::Answer(answer), _) => {
                        let seq = head.seq.unwrap_or_default();
                        let waiting = self.state.lock().waiting.remove(&seq);
                        // A caller that no longer waits has dropped its receiver; descriptors that came with the answer
                        // are closed.
                        if let Some(waiting) = waiting {
                            let _ = waiting.send((answer, fds));
                        }
                        continue;
                    }
                    (ToServer::Report { at, fact }, Some(run)) => {
                        KeeperEvent::Report(KeeperReport { run, at, fact })
                    }
                    (ToServer::ShimGone {}, Some(run)) => KeeperEvent::ShimGone(run),
                    (ToServer::Pin { by }, Some(run)) => KeeperEvent::Pinned { run, by },
                    (ToServer::Event(event), _) => event,
                    // Pings are answered only here, so that a Pong proves that the keeper's messages are read.
                    (ToServer::Ping {}, _) => {
                        self.post(&ToKeeper::Pong {});
                        continue;
                    }
                    (ToServer::Pong {}, _) => {
                        self.liveness.answered();
                        continue;
                    }
                    (ToServer::Held(held), Some(run)) => {
                        let held = held.with_outputs(run, fds);
                        self.state.lock().held.insert(run, held);
                        KeeperEvent::ShimReconnected(run)
                    }
                    (ToServer::Rebound(index), _) => {
                        let state = self.state.lock();
                        let to = usize::try_from(index)
                            .ok()
                            .and_then(|at| state.rebound.get(at));
                        // A server that no longer accepts has dropped the receiver.
                        if let (Some(to), Some(socket)) = (to, fds.into_iter().next()) {
                            let _ = to.try_send(socket);
                        }
                        continue;
                    }
                    (ToServer::Hello { .. }, _) => continue,
                    // The keeper never sends a message about a run without the run's id.
                    (
                        ToServer::Report { .. }
                        | ToServer::ShimGone {}
                        | ToServer::Pin { .. }
                        | ToServer::Held(_),
                        None,
                    ) => break,
                };
                // `try_send` never waits: an answer that a run waits for may be behind this event in the queue.
                if events.try_send(event).is_err() {
                    break;
                }
            }
        };
        // Keeper messages come first: after a pause of this process the Pong may already have arrived.
        tokio::select! { biased;
            () = reading => {}
            () = self.write() => {}
            () = self.liveness.watch(|| self.post(&ToKeeper::Ping {})) => {}
        }
        // Dropping `events` on return ends their reader's queue.
        self.close();
    }

    /// Closes the link: nothing is sent any more, and no answer is awaited.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.gone = true;
        state.waiting.clear();
        state.queue.clear();
    }

    /// Notes what this server has passed over, to be reported once.
    fn skip(&self, name: &str) {
        let mut state = self.state.lock();
        let report = state.skipped.report(SkippedBy::Server, name);
        state.skipped_now.extend(report);
    }

    /// Receives the next message; `None` when the keeper is gone.
    async fn receive(&self) -> Option<(Head, ToServer, Vec<OwnedFd>)> {
        loop {
            let mut ready = self.socket.readable().await.ok()?;
            match fdpass::receive(self.socket.get_ref()) {
                Ok(Received::Message(bytes, mut fds)) => {
                    match wire::decode(&bytes, &mut fds).ok()? {
                        Decoded::Known {
                            head,
                            message,
                            skipped,
                        } => {
                            for name in skipped {
                                self.skip(name);
                            }
                            return Some((head, message, fds));
                        }
                        Decoded::Later {
                            head,
                            name,
                            is_critical,
                        } => {
                            self.skip(&name);
                            if is_critical {
                                return Some((head, ToServer::Pin { by: name }, fds));
                            }
                        }
                        Decoded::Lost => {}
                    }
                }
                Ok(Received::WouldBlock) => ready.clear_ready(),
                Ok(Received::Eof) | Err(_) => return None,
            }
        }
    }
}

/// Returns when the socket has free space; without a watched copy, never.
async fn wait_for_room(
    room: Option<&AsyncFd<OwnedFd>>,
) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
    match room {
        Some(room) => room.writable().await,
        None => std::future::pending().await,
    }
}

/// Makes files of the child and of its standard input, where that is data.
pub(super) fn spec_files(spec: &ChildSpec) -> Result<Vec<OwnedFd>, ClientError> {
    let child = ChildImage::from(spec);
    let made = wire::child::encode(&child).and_then(|bytes| {
        if bytes.len() as u64 > wire::CHILD_BYTES_MAX {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let child = memfd::sealed_for_us("kennel-child", &bytes)?;
        let mut files = vec![child];
        match &spec.command.initial_input {
            // The keeper creates the pipe.
            _ if spec.command.has_open_input() => {}
            Some(input) => files.push(memfd::sealed("kennel-input", input)?),
            None => files.push(File::open("/dev/null")?.into()),
        }
        Ok(files)
    });
    made.map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
            ClientError::Exhausted(error.to_string())
        }
        _ => ClientError::Start(failure(StartStage::Prepare, &error, None)),
    })
}

/// Paths travel as text.
pub(super) fn text(path: &Path) -> Result<String, ClientError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        ClientError::Start(StartFailure {
            stage: StartStage::Prepare,
            errno: Some(libc::EILSEQ),
            path: Some(path.display().to_string()),
        })
    })
}
