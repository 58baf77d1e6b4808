//! The messages between server, keeper and shim: JSON by names in an envelope that never changes. A side passes over
//! fields, and kinds that are not critical, which it does not know: the other may be of another version.
//!
//! Their contents about runs are values of the lifecycle and of [`crate::client`] themselves; the types here are of
//! messages and files alone.

pub(crate) mod adoption;
pub(crate) mod child;
mod envelope;
#[cfg(test)]
mod golden;
pub(crate) mod handover;
pub(crate) mod input;
#[cfg(test)]
mod later;
pub(crate) mod notes;
pub(crate) mod policy;
pub(crate) mod strict;
pub(crate) mod versions;

use crate::exit_slots::ExitPlace;
use crate::values::{
    ExtendResult, Fact, HelperEnd, InputResult, InputState, InterruptWay, KeeperEvent, KeeperHello,
    KeeperInventory, Reaped, SignalResult, SignalledProcesses, Upgrade, UpgradeRefusal, Victim,
};
use kennel_lifecycle::{
    CgroupIdentity, Deadline, Exit, Held, HostIdentity, Leftovers, ProcessIdentity, RunId,
    RunIdentity, Signal, StartFailure, StopStep, Tagged, TerminalSize, Timestamp,
    ladder::StopPlan,
    recovery::{Observation, ProcessPresence},
    tagged,
};
use kennel_linux::{
    fdpass::{self, MESSAGE_BYTES_MAX},
    memfd,
    targets::{Holds, SignalTarget},
    terminal::NoPty,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};
use versions::Versions;

/// Longest list of process ids in a message.
pub(crate) const PIDS_MAX: usize = 1024;
/// Most processes in a signal result or a tree listing; the others are counted.
pub(crate) const MEMBERS_LISTED_MAX: usize = 4096;
/// Longest body of a message.
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest encoded child: argv and environment, with space for lengths and paths.
pub(crate) const CHILD_BYTES_MAX: u64 = 8 * 1024 * 1024;

tagged! {
    /// Server to keeper. Requests have a number, which their answer repeats; all about one run name it.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum ToKeeper {
        /// The server serves.
        Ready(Versions) = "ready",
        /// With the child as a sealed file, and the input as another where there is one.
        Prepare(Box<PrepareRequest>) = "prepare",
        Release {} = "release",
        ShutGate {} = "shut_gate",
        Stop {
            plan: StopPlan,
        } = "stop",
        /// Under this request id no second one is sent.
        Interrupt {
            request: Option<String>,
        } = "interrupt",
        Pause {} = "pause",
        Resume {} = "resume",
        Acknowledge {} = "acknowledge",
        Observe {
            identity: RunIdentity,
            run_dir: PathBuf,
        } = "observe",
        EndOrphan {
            identity: RunIdentity,
            run_dir: PathBuf,
            plan: StopPlan,
        } = "end_orphan",
        KeeperSeen {
            keeper: ProcessIdentity,
            host: HostIdentity,
        } = "keeper_seen",
        Signal {
            signal: Signal,
            target: SignalTarget,
            request: Option<String>,
        } = "signal",
        Tree {} = "tree",
        KeepRest {} = "keep_rest",
        Inventory {} = "inventory",
        /// Ends processes, and removes empty directories.
        Reap {
            plan: StopPlan,
            victims: Vec<Victim>,
            directories: Vec<CgroupIdentity>,
        } = "reap",
        /// The answer to a `Ping`.
        Pong {} = "pong",
        /// Asks whether a signal was sent under this request id.
        WasSent {
            request: String,
        } = "was_sent",
        /// Requests a server of the installed binary.
        Upgrade {
            request: Option<String>,
        } = "upgrade",
        /// A request to standard input.
        Input {
            request: input::WireInputRequest,
        } = "input",
        /// Sets the size of an attempt's terminal.
        Resize {
            attempt: u32,
            size: TerminalSize,
        } = "resize",
        /// Asks whether the keeper still takes messages.
        Ping {} = "ping",
        /// Runs a helper command in the run's tree, and ends it after this time.
        Help {
            argv: Vec<String>,
            timeout_ms: u64,
        } = "help",
        /// Extends limits of time.
        Extend(WireExtend) = "extend",
    }
}

/// A child that the server wants made.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrepareRequest {
    pub(crate) run_dir: String,
    pub(crate) policy: policy::WirePolicy,
    /// The attempt for which standard input is a pipe or a terminal; then no file comes for it.
    pub(crate) input: Option<u32>,
    /// Size of the terminal, where the streams are on one.
    pub(crate) terminal: Option<TerminalSize>,
}

/// A request to extend limits of time: at least this long from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireExtend {
    pub(crate) limits: Vec<Deadline>,
    pub(crate) time: Duration,
    /// Principal that requests it.
    pub(crate) by: String,
}

tagged! {
    /// Keeper to server.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum ToServer {
        /// With the listening sockets. So many runs are handed over right after it.
        Hello { held: u32, hello: Box<KeeperHello> } = "hello",
        /// Where it is `Prepared`: with the read ends of both outputs, or the master of the terminal and both ends of
        /// its relay.
        Answer(Answer) = "answer",
        /// An event of a run.
        Report { at: Timestamp, fact: Fact } = "report",
        /// The shim of an unreachable run is gone.
        ShimGone {} = "shim_gone",
        /// A message about a run was critical, and had this name that the keeper does not know.
        Pin { by: String } = "pin",
        /// Any other event that a message can be.
        Event(KeeperEvent) = "event",
        /// With the read ends of both outputs, or the descriptors of a terminal. The number in the hello follows it at
        /// once; later ones are of the unreachable runs that it lists.
        Held(Box<handover::WireHeldRun>) = "held",
        /// Asks whether the server still takes messages.
        Ping {} = "ping",
        /// The answer to a `Ping`.
        Pong {} = "pong",
        /// With a listening socket in place of the one with this index in the hello.
        #[serde(with = "crate::object::index")]
        Rebound(u32) = "rebound",
    }
}

/// Answer to a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// On the host of the `Hello`.
    Prepared {
        command: ProcessIdentity,
        shim: ProcessIdentity,
        cgroup: Option<CgroupIdentity>,
        held: Held,
    },
    PrepareFailed(StartFailure),
    #[serde(with = "crate::object::why")]
    Exhausted(String),
    #[serde(with = "crate::object::result")]
    Signal(SignalResult),
    Observed(Observation),
    #[serde(with = "crate::object::seen")]
    Seen(ProcessPresence),
    Signalled(SignalledProcesses),
    Listed(WireListing),
    Inventory(KeeperInventory),
    Reaped(Reaped),
    /// The containment of the run would be weaker than requested; nothing was made.
    TooWeak(Held),
    /// A signal was sent under this request id before; none was sent now.
    SentBefore {},
    /// No signal was sent under this request id.
    NotSent {},
    /// The new binary passed the check, and `Leave` comes next; or the request is a repeat, and this is its result.
    #[serde(with = "crate::object::result")]
    Upgrade(Result<Upgrade, UpgradeRefusal>),
    /// The answer to a request to standard input, and its state.
    Input {
        state: InputState,
        said: InputResult,
    },
    /// Its standard input cannot be written.
    NoInput {},
    /// The attempt in the request is not the present one.
    OtherAttempt {},
    /// The run has no terminal.
    NoTerminal {},
    /// An interrupt was delivered in this way.
    #[serde(with = "crate::object::way")]
    Interrupted(InterruptWay),
    /// There is no terminal for it; nothing was made.
    NoPty(NoPty),
    /// A helper command has ended.
    #[serde(with = "crate::object::end")]
    Helped(HelperEnd),
    /// The answer to a request to extend limits of time.
    #[serde(with = "crate::object::result")]
    Extended(ExtendResult),
    /// The keeper is of an older version, and does not know the request or a value in it.
    Unknown {},
}

/// Members of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireListing {
    pub(crate) members: Vec<WireMember>,
    /// Number of further members.
    pub(crate) unlisted: u32,
}

/// One member of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireMember {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) holds: Holds,
}

tagged! {
    /// Keeper to shim. With child, stdin, stdout, stderr, gate, the read ends of both outputs where the rest may be
    /// detached or the run is to be adopted, the reconnect socket for the next keeper in that case, the write end of
    /// stdin where that is a pipe then, and the control group where there is one.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum ToShim {
        Job(Box<Job>) = "job",
        /// SIGKILL to all children until none is left.
        KillAll {} = "kill_all",
        /// A stop is in progress: processes that exit from here on have not exited by themselves.
        Stopping {} = "stopping",
        /// The leader has exited by itself, and these are detached.
        Keep(Leftovers) = "keep",
        /// No process reads the outputs any more: they are to be discarded.
        Discard {} = "discard",
        /// State for the next keeper.
        Remember(adoption::WireMemory) = "remember",
        /// The end is recorded, and no keeper will ask for it.
        Leave {} = "leave",
        /// No more input follows.
        CloseInput {} = "close_input",
        /// No server will read the outputs: the keeper ends the run, and itself after it.
        ServiceEnds {
            /// Whether it was requested.
            in_order: bool,
        } = "service_ends",
        /// A helper command.
        Help {
            id: u64,
            argv: Vec<String>,
            timeout_ms: u64,
            /// Whether it belongs to a stop in progress.
            stops: bool,
        } = "help",
    }
}

/// Job of a shim.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) run_dir: String,
    pub(crate) policy: policy::WirePolicy,
    pub(crate) cgroup: Option<CgroupIdentity>,
    pub(crate) placement: Placement,
    /// Attributes of the command, except for the privileges, which the policy has.
    pub(crate) attributes: kennel_linux::attributes::Attributes,
    /// Facts for the next keeper, where the run is to be adopted.
    pub(crate) keepsake: Option<adoption::WireKeepsake>,
    /// Whether the write end of standard input is among the descriptors, to be stored with it.
    pub(crate) input: bool,
    /// Whether the notification socket of its processes is among the descriptors.
    pub(crate) notify: bool,
    /// Whether stdin becomes the controlling terminal.
    pub(crate) terminal: bool,
    /// The run's slot in its keeper's file of exit records.
    pub(crate) exit_slot: Option<ExitPlace>,
}

/// Way in which a child gets into its control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placement {
    /// The child is born in it: clone3(2) with `CLONE_INTO_CGROUP`.
    ByClone,
    /// The child is moved into it while it waits at the gate.
    ByWrite,
}

tagged! {
    /// Shim to keeper, in this order: `Prepared` (with a pidfd of the leader, and one of the first process of a private
    /// pid namespace) or `PrepareFailed`; then one of `NotReleased`, `Executed`, `ExecFailed`; then `Exited`; then
    /// `Empty`.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum FromShim {
        Prepared {
            command: ProcessIdentity,
            shim: ProcessIdentity,
            /// The first process of the run's private pid namespace.
            init: Option<i32>,
        } = "prepared",
        PrepareFailed(StartFailure) = "prepare_failed",
        NotReleased {} = "not_released",
        Executed {} = "executed",
        ExecFailed(StartFailure) = "exec_failed",
        Exited {
            at_us: i64,
            exit: Exit,
            /// Whether the shim has children left.
            rest: bool,
        } = "exited",
        /// The shim has no child left; it exits after this, or is [`Self::Free`].
        Empty {
            /// Living processes whose exits a shim does not get, where nothing else would show them.
            elsewhere: Vec<i32>,
        } = "empty",
        /// It does not know this kind or value, and has passed over it.
        Skipped {
            name: String,
        } = "skipped",
        /// Result of the first SIGKILL to its children, or of a round of signals that it has sent without a keeper.
        Killed(StopStep) = "killed",
        /// The first message to a keeper that has come for the run. With a pidfd of the leader, one of the first
        /// process of a private pid namespace, the read ends of both outputs, and the write end of stdin where that is
        /// an open pipe.
        Adoptable(Box<adoption::WireAdoptable>) = "adoptable",
        /// The run is over, nothing of it is left in this shim, and it waits for another one.
        Free {} = "free",
        /// A helper command has ended.
        Helped {
            id: u64,
            end: HelperEnd,
        } = "helped",
    }
}

/// A message between two processes: a kind, by its name.
pub(crate) trait Message: Tagged + Serialize + DeserializeOwned {
    /// Bytes that travel behind its body.
    fn raw(&self) -> &[u8] {
        &[]
    }

    /// Takes the bytes that came behind its body.
    fn set_raw(&mut self, _raw: &[u8]) {}
}

impl Message for ToKeeper {
    fn raw(&self) -> &[u8] {
        match self {
            Self::Input {
                request: input::WireInputRequest::Write { data, .. },
                ..
            } => &data.0,
            _ => &[],
        }
    }

    fn set_raw(&mut self, raw: &[u8]) {
        if let Self::Input {
            request: input::WireInputRequest::Write { data, .. },
            ..
        } = self
        {
            data.0 = raw.to_vec();
        }
    }
}

impl Message for ToServer {}
impl Message for ToShim {}
impl Message for FromShim {}

/// Numbers beside the kind of a message, read also where its kind is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Head {
    /// Number of a request, and of its answer.
    pub(crate) seq: Option<u64>,
    /// The run that the message is about.
    pub(crate) run: Option<RunId>,
}

impl Head {
    /// The head of a message that is neither about one run nor a request.
    pub(crate) const NONE: Self = Self {
        seq: None,
        run: None,
    };

    pub(crate) fn of_run(run: RunId) -> Self {
        let run = Some(run);
        Self { seq: None, run }
    }

    pub(crate) fn of_answer(seq: u64) -> Self {
        let seq = Some(seq);
        Self { seq, run: None }
    }
}

/// Body of a message.
#[derive(Serialize, Deserialize)]
struct MessageBody<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunId>,
    kind: T,
}

/// A message as it was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded<T> {
    Known {
        head: Head,
        message: T,
        /// Types of the elements and values in it that only a later version knows, and that are left out.
        skipped: Vec<&'static str>,
    },
    /// Only a later version knows its kind, or a value in it that it is nothing without.
    Later {
        head: Head,
        /// Name of the kind or value.
        name: String,
        is_critical: bool,
    },
    /// This process had no free descriptor for the file with its body.
    Lost,
}

/// Encodes a message: its bytes and, where its body is long, a file with that, which goes before its other descriptors.
pub(crate) fn encode<T: Message>(
    head: Head,
    message: &T,
) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let Head { seq, run } = head;
    let raw = message.raw();
    let kind = message;
    let mut bytes = envelope::seal(&MessageBody { seq, run, kind }, &[raw])?;
    let is_long = bytes.len() > MESSAGE_BYTES_MAX;
    let file = is_long.then(|| envelope::move_body(&mut bytes, raw.len()));
    Ok((bytes, file.transpose()?))
}

/// Sends a message with its descriptors.
pub(crate) fn send<T: Message>(
    socket: &impl AsFd,
    head: Head,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let (bytes, file) = encode(head, message)?;
    let all = file.iter().map(AsFd::as_fd).chain(fds.iter().copied());
    fdpass::send(socket, &bytes, &all.collect::<Vec<_>>())
}

/// Returns the name that only a later version knows, of a kind or of a value in it. A wrong type or a missing field is
/// a broken message.
fn later_name(error: &serde_json::Error) -> Option<String> {
    let text = error.is_data().then(|| error.to_string())?;
    let name = text.strip_prefix("unknown variant `")?.split('`').next()?;
    Some(name.to_owned())
}

/// Decodes a message, of whose descriptors it takes the file with a long body.
pub(crate) fn decode<T: Message>(bytes: &[u8], fds: &mut Vec<OwnedFd>) -> io::Result<Decoded<T>> {
    let opened = envelope::open(bytes)?;
    let of_file;
    let body: &[u8] = match opened.body {
        Some(body) => body,
        None if fds.is_empty() => return Ok(Decoded::Lost),
        None => {
            of_file = memfd::read(fds.remove(0), BODY_BYTES_MAX)?;
            if of_file.len() != opened.len {
                return Err(io::ErrorKind::InvalidData.into());
            }
            &of_file
        }
    };
    let (read, skipped) = kennel_lifecycle::with_skipped(|| strict::read::<MessageBody<T>>(body));
    match read {
        Ok(MessageBody { seq, run, mut kind }) => {
            kind.set_raw(opened.raw);
            let (head, message) = (Head { seq, run }, kind);
            Ok(Decoded::Known {
                head,
                message,
                skipped,
            })
        }
        Err(error) => Ok(Decoded::Later {
            name: later_name(&error).ok_or(error)?,
            head: serde_json::from_slice(body)?,
            is_critical: opened.is_critical,
        }),
    }
}
