//! The server's end of the socket to the keeper: requests, answers, reports.

mod audit;
mod calls;
mod child;
mod input;
mod interrupt;
mod kernel;
mod link;
mod listing;
mod liveness;
mod shared_lists;

pub use crate::values::{
    EndCause, ExtendResult, Extended, Fact, Fate, FormerServer, HeldPause, HeldRun, HelperEnd,
    Holding, InputResult, InputState, InterruptWay, KeeperEvent, KeeperHello, KeeperInventory,
    KeeperReport, Levels, Notified, Outputs, Reaped, Recorded, SignalResult, SignalledProcesses,
    SkippedBy, SocketSeen, StraySignal, TerminalEnds, Unstopped, Upgrade, UpgradeRefusal,
    UpgradeState, Victim,
};
use crate::wire::{
    Answer, ToKeeper,
    versions::{Versions, WIRE},
};
pub use audit::{LeakScan, REAPED_MAX, SecondLook};
pub use child::ChildSpec;
pub use input::InputAnswer;
pub use interrupt::{Interrupted, Resized};
use kennel_lifecycle::{
    Containment, Held, HostIdentity, RunId, RunIdentity, StartFailure, TerminalSize,
    recovery::Observation,
};
pub use kennel_linux::capability::{Capability, CapabilityName};
pub use kennel_linux::terminal::NoPty;
pub use kernel::Kernel;
pub use link::ListeningSocket;
use link::{Link, ask};
pub use listing::{Holds, Listing, Member, Sent, SignalOutcome, SignalTarget, SignalledProcess};
pub use listing::{MembershipEvidence, RoundTarget, TARGETS_LISTED_MAX};
use shared_lists::SharedLists;
use std::{os::fd::OwnedFd, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinHandle};

/// A child that waits at its gate.
#[derive(Debug)]
pub struct Prepared {
    /// Command, shim, control group, host.
    pub identity: RunIdentity,
    /// Ends of its output that are to be read.
    pub outputs: Outputs,
    /// Size of its terminal; absent: it has none.
    pub terminal: Option<TerminalSize>,
    /// Containment of the run, and what it leaves open.
    pub held: Held,
}

/// Cause of a failed request to the keeper.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The keeper is gone.
    #[error("the keeper is gone")]
    KeeperGone,
    /// A step of the start failed.
    #[error("cannot prepare the command: {0}")]
    Start(StartFailure),
    /// The available containment is weaker than the spec allows. Nothing was made.
    #[error("this run would have the containment {} and demands {}", held.by.api_name(), wanted.api_name())]
    TooWeak {
        /// Weakest containment that the spec allows.
        wanted: Containment,
        /// Available containment.
        held: Held,
    },
    /// No terminal is available for the run. Nothing was made.
    #[error("there is no terminal for this run: {0}")]
    NoPty(NoPty),
    /// The descriptors or processes of this host are used up.
    #[error("this host has no room for another run: {0}")]
    Exhausted(String),
    /// Keeper and server have no level of messages in common.
    #[error("the keeper speaks levels {0} of messages, and this server {WIRE}")]
    OtherLevels(Levels),
    /// The keeper does not know the request, or a value in it. Nothing was made.
    #[error("the keeper is of an older version and does not know this request")]
    KeeperOlder,
}

/// Longest time of the keeper for a request; after it the server takes the keeper for dead.
pub const KEEPER_ANSWER_MAX: Duration = Duration::from_secs(30);

/// Client of the keeper. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KeeperClient {
    link: Arc<Link>,
    lists: Arc<SharedLists>,
    /// Host of the keeper.
    host: Arc<HostIdentity>,
}

/// Receiver of the keeper's events. It has one reader.
#[derive(Debug)]
pub struct KeeperEvents {
    queue: mpsc::Receiver<KeeperEvent>,
    /// Task that reads the socket.
    reading: JoinHandle<()>,
    link: Arc<Link>,
}

impl Drop for KeeperEvents {
    fn drop(&mut self) {
        self.reading.abort();
        self.link.close();
    }
}

impl KeeperClient {
    /// Acquires the server's end of the socket and waits for the keeper's hello, and for the runs that the keeper holds
    /// from an earlier server: their unacknowledged reports come again, as the first events. Must be called inside a
    /// tokio runtime.
    pub async fn connect(
        socket: OwnedFd,
    ) -> Result<(Self, KeeperEvents, KeeperHello, Vec<HeldRun>), ClientError> {
        let (link, events, hello, held) = Link::open(socket).await?;
        let client = Self {
            link,
            lists: Arc::default(),
            host: Arc::new(hello.host.clone()),
        };
        Ok((client, events, hello, held))
    }

    /// Takes the keeper's listening sockets, which came with the hello; once.
    pub fn take_listeners(&self) -> Vec<ListeningSocket> {
        std::mem::take(&mut self.link.state.lock().listeners)
    }

    /// Notifies the keeper that this server serves: recovery is done.
    pub fn ready(&self) {
        self.link.post(&ToKeeper::Ready(Versions::of_server()));
    }

    async fn ask_signal(&self, run: RunId, asked: ToKeeper) -> Result<SignalResult, ClientError> {
        ask!(
            self.link.ask(Some(run), asked),
            Answer::Signal(result) => result,
            Answer::SentBefore {} => SignalResult::Done
        )
    }

    async fn observation(
        &self,
        run: RunId,
        asked: ToKeeper,
        wait: Duration,
    ) -> Result<Observation, ClientError> {
        ask!(
            self.link.ask_for(Some(run), asked, Vec::new(), wait),
            Answer::Observed(seen) => seen
        )
    }
}

impl KeeperEvents {
    /// Returns the next event; after [`KeeperEvent::Gone`] only that. Cancel-safe.
    pub async fn recv(&mut self) -> KeeperEvent {
        self.queue.recv().await.unwrap_or(KeeperEvent::Gone)
    }
}
