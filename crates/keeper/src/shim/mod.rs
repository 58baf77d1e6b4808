//! The shim: one for each live run, the subreaper of that run alone, which ends the run if the keeper dies.
//!
//! It waits in a pool until it gets a job; makes the command behind its gate; reads the status pipe; collects every
//! exit of the tree; and reports, when wait(2) shows it, that no process is left. It sends no signal while the keeper
//! lives, except SIGKILL to its own children on request. It is not in the run's control group: it must outlive a kill
//! of that.

mod alone;
mod birth;
mod callers;
mod discard;
mod helpers;
mod keep;
mod namespace;
mod save;
mod work;
pub mod zygote;

pub(crate) use birth::be_born;
pub(crate) use namespace::{in_child, try_out as try_pid_namespace};

use crate::wire::{self, Decoded, FromShim, Head, ToShim};
use kennel_lifecycle::ProcessIdentity;
use kennel_linux::{
    clock, crash_point,
    fdpass::{self, Received},
    own_state::OwnState,
    peer, procfs,
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signalfd::SignalFd,
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    rc::Rc,
};
use work::Work;

/// Longest wait without reading the clock: poll(2) does not count the time that the host sleeps.
const WAIT_MS_MAX: u64 = 60_000;

/// Pause between two attempts to send, and their number: two seconds.
const SAY_AGAIN_MS: u16 = 10;
const SAY_TRIES_MAX: u32 = 200;

/// Most runs of one shim, one after another: what they leave in its memory stays small.
pub(super) const RUNS_MAX: u32 = 128;

/// A shim's whole life.
struct Shim {
    /// Socket to the keeper; `None` when the keeper is gone.
    keeper: Option<OwnedFd>,
    /// SIGCHLD; everything else is blocked, so that a stray SIGTERM to the host's processes does not prevent a run's
    /// exit record.
    signals: SignalFd,
    /// The file of exit records, in which its run gets a slot.
    exits: Option<Rc<File>>,
    /// The run, once there is one.
    work: Option<Work>,
    /// The directory of the keeper's control groups: a shim without a run that outlives its keeper removes it.
    base: Option<PathBuf>,
    /// State of this process that other processes can change, as it was before the first run; absent: it is not known.
    as_born: Option<OwnState>,
    /// Number of runs that it may still have.
    runs_left: u32,
    /// Its own identity, read once; absent: not known yet.
    identity: Option<ProcessIdentity>,
}

impl Shim {
    fn live(&mut self) -> io::Result<()> {
        loop {
            if self.keeper.is_none() && self.work.is_none() {
                // rmdir fails while runs exist below the directory; the last of their shims removes it.
                let _ = self.base.take().map(std::fs::remove_dir);
                return Ok(());
            }
            let (ready, ends) = self.wait()?;
            if let Some(work) = &mut self.work {
                if ends {
                    work.look_for_ends();
                }
                if ready.status {
                    work.read_status();
                }
            }
            if ready.keeper {
                self.handle_keeper_message();
            }
            if ready.listener {
                self.answer_reconnect();
            }
            if self.take_steps() && !self.is_free_again() {
                return Ok(());
            }
        }
    }

    /// Whether this process waits for another run, once everything is done and reported. It does where this run has
    /// ended by itself and left nothing behind, and the state of this process is as it was at its birth.
    fn is_free_again(&mut self) -> bool {
        let spent = self.work.take().is_some_and(|work| work.leaves_nothing());
        self.runs_left = self.runs_left.saturating_sub(1);
        if !spent || self.runs_left == 0 || self.keeper.is_none() {
            return false;
        }
        let now = OwnState::take().ok();
        if now.is_none() || now != self.as_born {
            return false;
        }
        crash_point!("shim.free");
        self.say(&FromShim::Free {});
        self.keeper.is_some()
    }

    /// Lets the run take a step and sends its reports. `true`: everything is done and reported.
    ///
    /// A keeper that dies between the last read of its socket and a message to it is only noticed by that message.
    /// Nothing would wake this process again: the run takes its next step, which it takes alone, at once.
    fn take_steps(&mut self) -> bool {
        loop {
            self.witness_end();
            let keeper_lives = self.keeper.is_some();
            let Some(work) = &mut self.work else {
                return false;
            };
            let done = work.step(clock::boot_ms(), keeper_lives);
            for word in work.take_words() {
                self.say(&word);
            }
            if keeper_lives == self.keeper.is_some() {
                return done;
            }
        }
    }

    /// Finds out what the keeper did before the leader exited, once it has. A keeper's message about a stop is in its
    /// socket before the first signal; and where the keeper is not exiting now, it had closed nothing whose closing
    /// could have ended the leader.
    fn witness_end(&mut self) {
        if !self.work.as_ref().is_some_and(Work::wants_witness) {
            return;
        }
        let at_work = self.keeper.as_ref().is_some_and(is_at_work);
        while self.keeper.as_ref().is_some_and(has_input) {
            self.handle_keeper_message();
        }
        let at_work = at_work && self.keeper.is_some();
        self.with_work(|work| work.witness(at_work));
    }

    /// Waits for events. Also returns whether exits may have to be collected: each time, except when only the child
    /// reports its start. A child that exits sends a signal.
    fn wait(&self) -> io::Result<(Ready, bool)> {
        let now = clock::boot_ms();
        let wake = self.work.as_ref().and_then(Work::wake_at);
        let timeout = wake.map_or(PollTimeout::NONE, |at| {
            let wait = at.saturating_sub(now).min(WAIT_MS_MAX);
            PollTimeout::try_from(i32::try_from(wait).unwrap_or(i32::MAX))
                .unwrap_or(PollTimeout::ZERO)
        });
        let status = self.work.as_ref().and_then(Work::status);
        let status_events = self
            .work
            .as_ref()
            .map_or(PollFlags::POLLIN, Work::status_events);
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(
            self.keeper
                .as_ref()
                .map(|k| PollFd::new(k.as_fd(), PollFlags::POLLIN)),
        );
        fds.extend(status.map(|s| PollFd::new(s, status_events)));
        let listener = self.work.as_ref().and_then(Work::listener);
        fds.extend(listener.map(|d| PollFd::new(d, PollFlags::POLLIN)));
        let unread = self.work.iter().flat_map(|work| work.unread(now));
        let init = self.work.as_ref().and_then(Work::init);
        let rest = unread.chain(init);
        fds.extend(rest.map(|end| PollFd::new(end, PollFlags::POLLIN)));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = |i: usize| {
            let events = fds.get(i).and_then(PollFd::revents);
            events.is_some_and(|e| !e.is_empty())
        };
        let after_keeper = 1 + usize::from(self.keeper.is_some());
        let after_status = after_keeper + usize::from(status.is_some());
        if ready(0) {
            // All signals mean the same, and a signal that arrives now makes the descriptor ready again.
            let _ = self.signals.read_signal();
        }
        let status_alone =
            status.is_some() && (0..fds.len()).all(|i| ready(i) == (i == after_keeper));
        let ready = Ready {
            keeper: self.keeper.is_some() && ready(1),
            status: status.is_some() && ready(after_keeper),
            listener: listener.is_some() && ready(after_status),
        };
        Ok((ready, !status_alone))
    }

    fn handle_keeper_message(&mut self) {
        let Some(keeper) = &self.keeper else { return };
        match fdpass::receive(keeper) {
            Ok(Received::Message(bytes, mut fds)) => match wire::decode(&bytes, &mut fds) {
                Ok(Decoded::Known {
                    head,
                    message,
                    skipped,
                }) => {
                    for name in skipped {
                        self.report_skipped(name.to_owned());
                    }
                    self.obey(head, message, fds);
                }
                Ok(Decoded::Later { name, .. }) => self.report_skipped(name),
                Ok(Decoded::Lost) => {}
                Err(_) => self.lose_keeper(),
            },
            Ok(Received::WouldBlock) => {}
            Ok(Received::Eof) | Err(_) => self.lose_keeper(),
        }
    }

    fn obey(&mut self, head: Head, message: ToShim, fds: Vec<OwnedFd>) {
        match (message, head.run) {
            (ToShim::Job(job), Some(run)) if self.work.is_none() => {
                match Work::begin(run, *job, fds, self.exits.clone(), self.identity) {
                    Ok(work) => {
                        // Drop the exit of the process that forked the child. An exited child has closed its status
                        // pipe.
                        let _ = self.signals.read_signal();
                        self.work = Some(work);
                    }
                    Err(failure) => {
                        self.say(&FromShim::PrepareFailed(failure));
                        self.lose_keeper();
                    }
                }
            }
            // No second job is ever sent; a keeper that sends one is not ours.
            (ToShim::Job(_), _) => self.lose_keeper(),
            (ToShim::KillAll {}, _) => self.with_work(Work::kill_all),
            (ToShim::Stopping {}, _) => self.with_work(Work::stopping),
            (ToShim::Keep(left), _) => self.with_work(|work| work.keep(left)),
            (ToShim::Discard {}, _) => self.with_work(|work| work.discard_from(0)),
            (ToShim::Leave {}, _) => self.with_work(Work::leave),
            (ToShim::CloseInput {}, _) => self.with_work(Work::close_input),
            (ToShim::ServiceEnds { in_order }, _) => {
                self.with_work(|work| work.service_ends(in_order));
            }
            (
                ToShim::Help {
                    id,
                    argv,
                    timeout_ms,
                    stops,
                },
                _,
            ) => self.with_work(|work| work.help(id, argv, timeout_ms, stops)),
            (ToShim::Remember(memory), _) => self.with_work(|work| work.remember(memory)),
        }
    }

    /// Reports a kind or value that only a later version knows.
    fn report_skipped(&mut self, name: String) {
        self.say(&FromShim::Skipped { name });
    }

    /// Handles a process that has connected to the reconnect socket. While this shim has a keeper the process cannot be
    /// the next one: it does not wait for the death of ours.
    fn answer_reconnect(&mut self) {
        while self.keeper.as_ref().is_some_and(has_input) {
            self.handle_keeper_message();
        }
        match (&self.keeper, &self.work) {
            (None, _) => self.let_keeper_in(),
            // A keeper that is exiting may have released its lock already: EOF on its socket comes next.
            (Some(keeper), Some(work)) if is_at_work(keeper) => work.turn_away(),
            (Some(_), _) => {}
        }
    }

    fn let_keeper_in(&mut self) {
        let Some(work) = &mut self.work else { return };
        let Some(keeper) = work.meet() else { return };
        let Some(words) = work.introduction() else {
            return;
        };
        self.keeper = Some(keeper);
        for word in words {
            self.say(&word);
        }
    }

    fn with_work(&mut self, word: impl FnOnce(&mut Work)) {
        if let Some(work) = &mut self.work {
            word(work);
        }
    }

    fn say(&mut self, word: &FromShim) {
        if let Some(keeper) = &self.keeper
            && self.send(keeper, word).is_err()
        {
            self.lose_keeper();
        }
    }

    fn send(&self, keeper: &OwnedFd, word: &FromShim) -> io::Result<()> {
        let run = self.work.as_ref().map(|work| work.tree.run);
        let run = run.filter(|_| matches!(word, FromShim::Adoptable(_)));
        let head = Head { seq: None, run };
        let (bytes, file) = wire::encode(head, word)?;
        let fds = self.work.as_ref().map(|work| work.descriptors_of(word));
        let fds = file
            .iter()
            .map(AsFd::as_fd)
            .chain(fds.into_iter().flatten());
        let fds: Vec<_> = fds.collect();
        let mut tries = SAY_TRIES_MAX;
        loop {
            tries -= 1;
            match fdpass::send(keeper, &bytes, &fds) {
                // The host is short of memory, or too many descriptors are in flight: no reason to end a run.
                Err(error) if fdpass::is_short(&error) && tries > 0 => {
                    let _ = poll(&mut [], SAY_AGAIN_MS);
                }
                sent => return sent,
            }
        }
    }

    /// Continues without the keeper. A keeper that is alive continues without this shim, and retains the directory of
    /// its control groups.
    fn lose_keeper(&mut self) {
        if self.keeper.take().as_ref().is_some_and(is_at_work) {
            self.base = None;
        }
    }
}

/// Sources with events.
struct Ready {
    keeper: bool,
    /// The status pipe of the child on its way to the command.
    status: bool,
    listener: bool,
}

/// Whether a message is there, or the end of file.
fn has_input(keeper: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(keeper.as_fd(), PollFlags::POLLIN)];
    poll(&mut wait, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Whether this is the socket of a process that is not exiting.
fn is_at_work(keeper: &OwnedFd) -> bool {
    let stat = peer::credentials(keeper).and_then(|peer| procfs::stat(peer.pid));
    stat.is_ok_and(|stat| !stat.is_exiting && !stat.is_dead())
}
