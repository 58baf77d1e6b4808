//! The keeper's one loop: messages of shims, requests of the server, signals, timers.

mod adopting;
mod auditing;
mod ending;
mod inputs;
mod members;
mod memory;
mod orphan_clock;
mod orphans;
mod prepare;
mod recorded;
mod requests;
mod restart;
mod shims;
mod upgrade;

use super::{
    KeeperError,
    adoption::AwaitedShim,
    groups::RunGroups,
    leftovers::LeftoverGroups,
    listen::Listening,
    memory_reserve::MemoryReserve,
    observe::Markers,
    orphan::Orphan,
    pool::Pool,
    reaping::Reaping,
    reconnect::ReconnectSockets,
    run::{Run, RunMessage},
    server::Server,
    service_manager::Notifier,
    stray::{self, Stray},
};
use crate::{
    exit_record,
    exit_slots::ExitSlots,
    rundir,
    skipped::SkippedNames,
    values::{KeeperEvent, SkippedBy},
    wire::{self, Answer, Decoded, Head, ToServer},
};
use ending::Ending;
use inputs::Watched;
use kennel_lifecycle::{HostFacts, HostIdentity, NodeId, RunId};
use kennel_linux::{
    attributes::{Inherited, PrivatePlaces, Protection},
    clock,
    fdpass::{self, Received},
};
use members::Slices;
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        signalfd::SignalFd,
        time::{TimeSpec, TimeValLike},
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
};
pub(super) use restart::Restarts;
use shims::{RunShim, Until};
use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    rc::Rc,
    time::Duration,
};
pub(super) use upgrade::Upgrades;

const SERVER: u64 = 0;
const SIGNALS: u64 = 1;
const TIMER: u64 = 2;
const SHIMS_FROM: u64 = 16;

/// Most events handled at once.
const EVENTS_MAX: usize = 64;
/// Time between two checks of the files of listening sockets.
const LISTENING_CHECK_MS: u64 = 2_000;
/// Pause between two attempts at an operation that failed.
const TRY_AGAIN_MS: u64 = 20;

/// Parts of which the loop is made.
pub(super) struct LoopParts {
    pub(super) server: Server,
    pub(super) restarts: Restarts,
    pub(super) upgrades: Upgrades,
    pub(super) signals: SignalFd,
    pub(super) listening: Vec<Listening>,
    pub(super) groups: RunGroups,
    pub(super) facts: HostFacts,
    /// What a sandbox closes.
    pub(super) private: PrivatePlaces,
    pub(super) host: HostIdentity,
    pub(super) data_dir: PathBuf,
    pub(super) node: NodeId,
    /// Attributes that commands inherit, except for the keeper's own.
    pub(super) inherited: Inherited,
    pub(super) protection: Protection,
    pub(super) sockets: ReconnectSockets,
    pub(super) exits: ExitSlots,
    pub(super) notifier: Notifier,
    pub(super) memory_reserve: Option<MemoryReserve>,
    /// Whole time of a shutdown.
    pub(super) shutdown_timeout: Duration,
}

/// The keeper.
pub(super) struct Keeper {
    epoll: Epoll,
    timer: TimerFd,
    timer_at: Option<u64>,
    server: Server,
    restarts: Restarts,
    upgrades: Upgrades,
    signals: SignalFd,
    had_terminal: bool,
    /// Only kept open: the server accepts.
    listening: Vec<Listening>,
    /// Time of the next check of their files.
    listening_due: u64,
    groups: RunGroups,
    sockets: ReconnectSockets,
    facts: HostFacts,
    private: PrivatePlaces,
    host: HostIdentity,
    data_dir: PathBuf,
    node: NodeId,
    inherited: Inherited,
    pool: Pool,
    exits: ExitSlots,
    /// Which shim has the exit slot of a run, until the run is forgotten.
    exit_slot_of: HashMap<RunId, u64>,
    shims: HashMap<u64, RunShim>,
    /// Shims of an earlier keeper that have not reconnected yet.
    late: HashMap<u64, AwaitedShim>,
    /// Inputs with bytes that wait for free space.
    inputs: Watched,
    /// Sockets at which processes of runs report about them.
    notices: Watched,
    /// Shims by pid, for as long as they are not reaped.
    shim_of_pid: HashMap<i32, u64>,
    next_shim: u64,
    runs: HashMap<RunId, Run>,
    wakes: BTreeSet<(u64, RunId)>,
    waking: HashMap<RunId, u64>,
    slices: Slices,
    orphans: Vec<Orphan>,
    /// Time of the next step of the orphans of a pending request.
    orphans_due: u64,
    reapings: Vec<Reaping>,
    /// Time of the next step of the reapings.
    reapings_due: u64,
    markers: Markers,
    leftovers: LeftoverGroups,
    stray: Stray,
    /// Names that were reported to the present server as not known.
    skipped: SkippedNames,
    /// Whether the loop waits for the server to read.
    server_is_behind: bool,
    ending: Ending,
    notifier: Notifier,
    memory_reserve: Option<MemoryReserve>,
}

impl Keeper {
    pub(super) fn new(parts: LoopParts) -> Result<Self, KeeperError> {
        let host = |step| {
            move |source: Errno| KeeperError::Host {
                step,
                source: source.into(),
            }
        };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(host("create an epoll instance"))?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags).map_err(host("create a timer"))?;
        let watch = |fd: &dyn AsFd, token| {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
            epoll
                .add(fd.as_fd(), event)
                .map_err(host("watch a descriptor"))
        };
        watch(&parts.signals, SIGNALS)?;
        watch(&timer, TIMER)?;
        if let Some(socket) = &parts.server.socket {
            watch(socket, SERVER)?;
        }
        let base = parts.groups.base().as_ref().ok().cloned();
        Ok(Self {
            epoll,
            timer,
            timer_at: None,
            server: parts.server,
            restarts: parts.restarts,
            upgrades: parts.upgrades,
            signals: parts.signals,
            had_terminal: stray::has_terminal(),
            listening: parts.listening,
            listening_due: clock::boot_ms() + LISTENING_CHECK_MS,
            groups: parts.groups,
            sockets: parts.sockets,
            facts: parts.facts,
            private: parts.private,
            host: parts.host,
            data_dir: parts.data_dir.clone(),
            node: parts.node,
            inherited: parts.inherited,
            pool: Pool::begin(parts.data_dir, parts.protection, base, parts.exits.file()),
            exits: parts.exits,
            exit_slot_of: HashMap::new(),
            shims: HashMap::new(),
            late: HashMap::new(),
            inputs: Watched::default(),
            notices: Watched::default(),
            shim_of_pid: HashMap::new(),
            next_shim: SHIMS_FROM,
            runs: HashMap::new(),
            wakes: BTreeSet::new(),
            waking: HashMap::new(),
            slices: Slices::default(),
            orphans: Vec::new(),
            orphans_due: 0,
            reapings: Vec::new(),
            reapings_due: 0,
            markers: Markers::default(),
            leftovers: LeftoverGroups::default(),
            stray: Stray::default(),
            skipped: SkippedNames::default(),
            server_is_behind: false,
            ending: Ending {
                timeout: parts.shutdown_timeout,
                ..Ending::default()
            },
            notifier: parts.notifier,
            memory_reserve: parts.memory_reserve,
        })
    }

    /// Runs until the service has ended and every run with it, and returns the exit code.
    pub(super) fn run(mut self) -> io::Result<i32> {
        self.hand_over();
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        loop {
            let now = clock::boot_ms();
            if let Some(code) = self.finished(now) {
                self.close();
                return Ok(code);
            }
            self.arm_timer(now)?;
            self.watch_server()?;
            let timeout = if self.pool_is_short() || self.slices.are_wanted() {
                EpollTimeout::ZERO
            } else {
                EpollTimeout::NONE
            };
            let ready = match self.epoll.wait(&mut events, timeout) {
                Ok(0) => {
                    self.do_slice();
                    if self.pool_is_short() && self.pool.refill().is_err() {
                        self.pool.stop_refilling();
                    }
                    continue;
                }
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            // Shim events are handled before server requests.
            let mut tokens: Vec<u64> = events[..ready].iter().map(EpollEvent::data).collect();
            tokens.sort_unstable_by(|a, b| b.cmp(a));
            for token in tokens {
                match token {
                    SERVER => {
                        self.server.flush();
                        // One message per wake-up: a further one makes the socket ready again, and an empty read costs
                        // as much.
                        self.handle_server_messages(1);
                    }
                    SIGNALS => self.handle_signals()?,
                    TIMER => {
                        let _ = self.timer.wait();
                        self.timer_at = None;
                    }
                    door if self.late.contains_key(&door) => self.handle_late(door),
                    input if self.inputs.is_watched(input) => self.room_in_input(input),
                    notices if self.notices.is_watched(notices) => self.handle_notices(notices),
                    shim => self.handle_shim_message(shim, Until::Answered),
                }
            }
            self.on_time(clock::boot_ms());
            if self.slices.are_overdue() {
                self.do_slice();
            }
        }
    }

    /// Watches the socket for free space only while a message waits for it.
    fn watch_server(&mut self) -> io::Result<()> {
        let behind = self.server.is_behind();
        if behind != self.server_is_behind
            && let Some(socket) = &self.server.socket
        {
            let mut flags = EpollFlags::EPOLLIN;
            flags.set(EpollFlags::EPOLLOUT, behind);
            let mut event = EpollEvent::new(flags, SERVER);
            self.epoll.modify(socket, &mut event)?;
            self.server_is_behind = behind;
        }
        Ok(())
    }

    fn pool_is_short(&self) -> bool {
        self.ending.drained_by.is_none() && self.pool.is_short()
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    fn arm_timer(&mut self, now: u64) -> io::Result<()> {
        let runs = self.wakes.first().map(|(at, _)| *at);
        let asked_for = self.orphans.iter().any(|orphan| orphan.seq.is_some());
        let orphans = asked_for.then_some(self.orphans_due);
        let reapings = (!self.reapings.is_empty()).then_some(self.reapings_due);
        let retry = self.leftovers.wake_at();
        let is_up = self.server.exit.is_none() && !self.server.killed;
        let kill = self.server.kill_at.filter(|_| is_up);
        let ends = [kill, self.ending.drained_by];
        let ends = ends
            .into_iter()
            .flatten()
            .map(|at| at.max(now + TRY_AGAIN_MS));
        let host = self.server.waits_for_host().then_some(now + TRY_AGAIN_MS);
        let server = self.server_wakes_at();
        let check = self.upgrades.wakes_at();
        let manager = self.notifier.wakes_at();
        let memory = self.memory_wakes_at();
        let wake = [
            runs, orphans, reapings, retry, host, server, check, manager, memory,
        ]
        .into_iter()
        .flatten()
        .chain(ends)
        .chain([self.listening_due])
        .min();
        // The timer is only set earlier: an early wake-up does no harm.
        let Some(at) = wake.filter(|at| self.timer_at.is_none_or(|armed| *at < armed)) else {
            return Ok(());
        };
        let nanos = i64::try_from(at.max(1).saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        let when = Expiration::OneShot(TimeSpec::nanoseconds(nanos));
        self.timer.set(when, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        self.timer_at = Some(at);
        Ok(())
    }

    fn on_time(&mut self, now: u64) {
        while let Some((at, run)) = self.wakes.first().copied()
            && at <= now
        {
            self.wakes.remove(&(at, run));
            self.waking.remove(&run);
            self.touch(run, now);
        }
        if self.server.waits_for_host() {
            self.server.flush();
        }
        self.keep_memory_reserve(now);
        self.keep_listening(now);
        self.step_orphans(now);
        self.step_reapings(now);
        self.leftovers.step(now);
        self.look_after_upgrade(now);
        self.look_after_server(now);
        self.notifier.step(now);
    }

    // ---- runs ------------------------------------------------------------------------------------------------------

    /// After any event of a run: let it take its step, say what it has to say, and note when it wants to wake.
    fn touch(&mut self, id: RunId, now: u64) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        let mut unknown = Vec::new();
        loop {
            run.step(now);
            let once_more = run.notifies_shim_first();
            let for_shim = std::mem::take(&mut run.for_shim);
            if let Some(shim) = run.shim.and_then(|token| self.shims.get(&token)) {
                unknown.extend(for_shim.iter().filter_map(|message| shim.send(message)));
            }
            if !once_more {
                break;
            }
        }
        let outgoing = std::mem::take(&mut run.outgoing);
        // A run with survivors stays known for as long as its shim lives.
        let ended = run.has_ended() && !run.keeps();
        let forget = ended && run.acknowledged;
        let is_on_record = run.is_on_record();
        let had_socket = run.outlives_keeper();
        let group = if ended { run.take_cgroup() } else { None };
        let (wake, shim) = (run.wake_at(now), run.shim);
        if let Some(before) = self.waking.remove(&id) {
            self.wakes.remove(&(before, id));
        }
        if let Some(at) = wake {
            self.wakes.insert((at, id));
            self.waking.insert(id, at);
        }
        if forget {
            self.runs.remove(&id);
            if had_socket {
                self.sockets.remove(id);
            }
            self.forget_exit(id, is_on_record);
        }
        self.watch(id);
        self.plan_slice(id);
        if let Some(group) = group {
            if !self.groups.clear(&group) {
                self.leftovers.add([group], now);
            } else if let Some(shim) = shim.and_then(|token| self.shims.get_mut(&token)) {
                shim.is_vacated = true;
            }
        }
        if let Some(shim) = shim.filter(|_| forget) {
            self.take_back(shim);
        }
        for message in outgoing {
            self.send_run_message(id, message);
        }
        for kind in unknown {
            self.report_skipped(SkippedBy::Shim, &kind);
        }
    }

    /// Forgets the exit slot of an ended run. Where its end is on record elsewhere, the slot is free.
    fn forget_exit(&mut self, id: RunId, is_on_record: bool) {
        let shim = self.exit_slot_of.remove(&id);
        if let Some(shim) = shim.filter(|_| is_on_record) {
            self.exits.acknowledged(shim);
        }
        self.settle_exits();
    }

    /// Saves the records in files of exit slots that no shim can write to any more.
    pub(super) fn settle_exits(&mut self) {
        let data_dir = &self.data_dir;
        self.exits
            .settle(|run, record| exit_record::keep(&rundir::path(data_dir, run), record));
    }

    fn send_run_message(&mut self, id: RunId, message: RunMessage) {
        match message {
            RunMessage::Answer(seq, answer, fds) => {
                self.send(Head::of_answer(seq), &ToServer::Answer(answer), fds);
            }
            RunMessage::Fact(at, fact) => {
                self.send(Head::of_run(id), &ToServer::Report { at, fact }, Vec::new());
            }
        }
    }

    fn send(&mut self, head: Head, message: &ToServer, fds: Vec<Rc<OwnedFd>>) {
        if !self.server.send(head, message, fds) {
            // A server that has not read for so long is hung.
            self.server.kill_hung();
        }
    }

    fn send_event(&mut self, event: KeeperEvent) {
        self.send(Head::NONE, &ToServer::Event(event), Vec::new());
    }

    // ---- the server ------------------------------------------------------------------------------------------------

    /// Reads so many messages, if there are.
    fn handle_server_messages(&mut self, messages: usize) {
        for _ in 0..messages {
            let Some(socket) = &self.server.socket else {
                return;
            };
            match fdpass::receive(socket) {
                Ok(Received::Message(bytes, mut fds)) => match wire::decode(&bytes, &mut fds) {
                    Ok(Decoded::Known {
                        head,
                        message,
                        skipped,
                    }) => {
                        for name in skipped {
                            self.report_skipped(SkippedBy::Keeper, name);
                        }
                        if self.obey(head, message, fds).is_none() {
                            return self.server_gone();
                        }
                    }
                    Ok(Decoded::Later { head, name, .. }) => {
                        self.report_skipped(SkippedBy::Keeper, &name);
                        if let Some(seq) = head.seq {
                            self.answer(seq, Answer::Unknown {});
                        }
                    }
                    Ok(Decoded::Lost) => {}
                    Err(_) => return self.server_gone(),
                },
                Ok(Received::WouldBlock) => return,
                Ok(Received::Eof) | Err(_) => return self.server_gone(),
            }
        }
    }

    /// Lets a run act at this time, if it is there.
    fn with_run(&mut self, id: RunId, act: impl FnOnce(&mut Run, u64)) {
        let now = clock::boot_ms();
        if let Some(run) = self.runs.get_mut(&id) {
            act(run, now);
            self.touch(id, now);
        }
    }

    fn answer(&mut self, seq: u64, answer: Answer) {
        self.send(Head::of_answer(seq), &ToServer::Answer(answer), Vec::new());
    }
}
