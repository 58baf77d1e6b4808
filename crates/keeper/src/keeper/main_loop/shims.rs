//! Messages of shims, and every exit that the kernel reports to this process.

use super::Keeper;
use crate::{
    keeper::{pool::Warm, run::Run, stray},
    values::{KeeperEvent, SkippedBy},
    wire::{self, Decoded, FromShim, Head, ToServer, ToShim, versions},
};
use kennel_lifecycle::{Exit, RunId};
use kennel_linux::{
    clock,
    fdpass::{self, Received},
    pidfd::PidFd,
    reap::{self, Waited},
};
use nix::sys::{signal::Signal as Caught, signalfd::siginfo};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Most stop reports handled one after the other before each shim is checked by itself.
const STOPS_MAX: usize = 64;

/// A shim with a run.
pub(super) struct RunShim {
    pub(super) pid: i32,
    pub(super) socket: OwnedFd,
    pub(super) run: RunId,
    /// Descriptor of a shim that an earlier keeper has made, and that is no child of this process.
    pub(super) foreign: Option<PidFd>,
    /// All its messages are read: it has closed its socket, which is not watched any more.
    pub(super) at_end: bool,
    /// The shim has reported that nothing of its run is left in it.
    pub(super) is_free: bool,
    /// The control group of its run is removed: no process was in it.
    pub(super) is_vacated: bool,
    /// Kinds of messages that it does not know; none where it is of this binary.
    pub(super) missing: Vec<&'static str>,
}

impl RunShim {
    /// Sends a message. A shim that cannot be notified is gone or will be: its end of file comes next. Returns the name
    /// of the kind if the shim does not know it.
    pub(super) fn send(&self, message: &ToShim) -> Option<String> {
        let unknown = versions::unknown_kind(&self.missing, message);
        if unknown.is_none() {
            let _ = wire::send(&self.socket, Head::NONE, message, &[]);
        }
        unknown
    }
}

/// Extent to which the messages of a shim are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// To the first that no other follows at once: if one does, its socket is ready again.
    Answered,
    /// To the last available one.
    Silence,
}

/// Whether a shim sends a further message in the same moment.
fn has_more(word: &FromShim) -> bool {
    matches!(
        word,
        FromShim::Exited { .. } | FromShim::Killed(_) | FromShim::Adoptable(_)
    )
}

/// Matches the run of a shim. The shim of a forgotten attempt may exit while the next attempt of the same run has one
/// of its own.
fn has(shim: u64) -> impl Fn(&&mut Run) -> bool {
    move |run| run.shim == Some(shim)
}

impl Keeper {
    pub(super) fn handle_shim_message(&mut self, token: u64, until: Until) {
        let now = clock::boot_ms();
        let Some(shim) = self.shims.get(&token) else {
            return;
        };
        let (id, pid) = (shim.run, shim.pid);
        // Checked before the last read: once the shim has exited, all its messages have arrived.
        let ended = shim.foreign.as_ref().is_some_and(PidFd::has_ended);
        let gone = loop {
            let Some(shim) = self.shims.get_mut(&token) else {
                return;
            };
            if shim.at_end {
                break ended;
            }
            match fdpass::receive(&shim.socket) {
                Ok(Received::Message(bytes, mut fds)) => {
                    let word = match wire::decode::<FromShim>(&bytes, &mut fds) {
                        Ok(Decoded::Known {
                            message, skipped, ..
                        }) => {
                            for name in skipped {
                                self.report_skipped(SkippedBy::Keeper, name);
                            }
                            message
                        }
                        Ok(Decoded::Later {
                            name, is_critical, ..
                        }) => {
                            self.report_skipped(SkippedBy::Keeper, &name);
                            if is_critical {
                                self.pin(id, token, name);
                            }
                            continue;
                        }
                        Ok(Decoded::Lost) => continue,
                        Err(_) => break true,
                    };
                    if let FromShim::Skipped { name } = &word {
                        self.report_skipped(SkippedBy::Shim, name);
                    }
                    let Some(shim) = self.shims.get_mut(&token) else {
                        return;
                    };
                    let is_all = until == Until::Answered && !has_more(&word);
                    shim.is_free |= word == FromShim::Free {};
                    if let Some(run) = self.runs.get_mut(&id).filter(has(token)) {
                        run.handle_shim_message(word, fds, &self.host, pid, now);
                    }
                    if is_all && !ended {
                        break false;
                    }
                }
                Ok(Received::WouldBlock) => break ended,
                // The kernel reparents the shim's children after it closes the socket: the run learns of the loss once
                // the shim has exited.
                Ok(Received::Eof) => {
                    let _ = self.epoll.delete(&shim.socket);
                    shim.at_end = true;
                    break ended;
                }
                Err(_) => break true,
            }
        };
        if gone {
            self.lose_shim(token, now);
        }
        self.touch(id, now);
        self.take_back(token);
    }

    /// Pins a run whose shim has sent what the server must not go on without.
    fn pin(&mut self, id: RunId, shim: u64, by: String) {
        if let Some(run) = self.runs.get_mut(&id).filter(has(shim)) {
            run.pinned.get_or_insert_with(|| by.clone());
            self.send(Head::of_run(id), &ToServer::Pin { by }, Vec::new());
        }
    }

    /// Takes back a shim that is free and whose run is forgotten: its end is on record, and no recovery looks for this
    /// shim. It gets another run where the kernel has proven that no process of the last one lives; otherwise it exits
    /// with its socket.
    pub(super) fn take_back(&mut self, token: u64) {
        let Some(shim) = self.shims.get(&token).filter(|shim| shim.is_free) else {
            return;
        };
        if self
            .runs
            .get(&shim.run)
            .is_some_and(|run| run.shim == Some(token))
        {
            return;
        }
        let is_good = shim.is_vacated && shim.foreign.is_none() && !shim.at_end;
        let _ = self.epoll.delete(&shim.socket);
        let Some(shim) = self.shims.remove(&token).filter(|_| is_good) else {
            return;
        };
        self.shim_of_pid.remove(&shim.pid);
        // The shim has released its exit slot.
        self.exits.reaped(token);
        let RunShim { pid, socket, .. } = shim;
        self.pool.put(Warm { pid, socket });
    }

    fn lose_shim(&mut self, token: u64, now: u64) {
        let Some(run) = self.forget_shim(token) else {
            return;
        };
        if let Some(run) = self.runs.get_mut(&run).filter(has(token)) {
            run.shim_gone(now);
        }
        // The shim may have been the last writer of an earlier keeper's exit file.
        self.settle_exits();
    }

    /// Stops to read a shim's messages. Returns its run.
    pub(super) fn forget_shim(&mut self, token: u64) -> Option<RunId> {
        let shim = self.shims.remove(&token)?;
        if !shim.at_end {
            let _ = self.epoll.delete(&shim.socket);
        }
        if let Some(process) = &shim.foreign {
            let _ = self.epoll.delete(process.as_fd());
        }
        Some(shim.run)
    }

    pub(super) fn handle_signals(&mut self) -> io::Result<()> {
        // One signal per wake-up: a further signal makes the descriptor ready again.
        if let Some(info) = self.signals.read_signal()? {
            match Caught::try_from(info.ssi_signo.cast_signed()) {
                Ok(Caught::SIGCHLD) => {
                    self.reap();
                    self.continue_shims();
                }
                Ok(Caught::SIGTERM | Caught::SIGINT | Caught::SIGQUIT | Caught::SIGUSR2) => {
                    self.shut_down();
                }
                Ok(Caught::SIGHUP) if !stray::is_hang_up(&info, self.had_terminal) => {
                    self.begin_upgrade(None, None);
                }
                _ => self.report_stray(&info),
            }
        }
        Ok(())
    }

    /// Reports a signal that means nothing here.
    fn report_stray(&mut self, info: &siginfo) {
        let number = info.ssi_signo.cast_signed();
        let sender = (info.ssi_pid.cast_signed(), info.ssi_uid);
        if let Some(stray) = self.stray.count(number, sender, clock::boot_ms()) {
            self.send_event(KeeperEvent::Stray(stray));
        }
    }

    /// Reaps every exited child: the server, shims, leaders whose shim is lost, and unrelated processes that were
    /// orphaned to this process.
    fn reap(&mut self) {
        while let Ok(Waited::Ended { pid, exit }) = reap::peek_any() {
            if pid == self.server.pid && self.server.exit.is_none() {
                self.server_ended(exit);
            }
            if self.upgrades.is_checking(pid) {
                self.checked(exit);
            }
            self.pool.forget(pid);
            match self.shim_of_pid.remove(&pid) {
                Some(token) => {
                    self.shim_ended(token);
                    self.exits.reaped(token);
                }
                None => self.reap_leader(pid, exit),
            }
            let _ = reap::reap(pid);
        }
    }

    /// Continues each shim that was stopped: a command may signal its own shim, which then neither reaps nor reports.
    fn continue_shims(&self) {
        for _ in 0..STOPS_MAX {
            match reap::stopped(None) {
                Some(pid) => self.continue_shim(pid),
                None => return,
            }
        }
        // waitid finds a repeatedly stopped shim first each time, and misses others.
        for pid in self.shim_of_pid.keys().copied().chain(self.pool.pids()) {
            if reap::stopped(Some(pid)).is_some() {
                self.continue_shim(pid);
            }
        }
    }

    /// Other stopped children belong to runs, and may be paused.
    fn continue_shim(&self, pid: i32) {
        if self.shim_of_pid.contains_key(&pid) || self.pool.pids().any(|warm| warm == pid) {
            // SAFETY: kill takes integers; the pid is that of a child of this process that is not reaped.
            unsafe { libc::kill(pid, libc::SIGCONT) };
        }
    }

    /// INVARIANT: a tree hangs below its shim only for as long as the shim's pid cannot become another process's. So
    /// the run learns of the exit before the shim is reaped, whichever process has the other end of its socket.
    fn shim_ended(&mut self, token: u64) {
        let Some(run) = self.shims.get(&token).map(|shim| shim.run) else {
            return;
        };
        self.handle_shim_message(token, Until::Silence);
        let now = clock::boot_ms();
        self.lose_shim(token, now);
        self.touch(run, now);
    }

    /// Reaps a leader, which becomes a child of this process when its shim has died; the shim's socket is closed before
    /// that, so reading it to its end distinguishes a leader from an unrelated process with a reused pid.
    fn reap_leader(&mut self, pid: i32, exit: Exit) {
        let of = |run: &&Run| run.leader_pid() == Some(pid);
        let found = self.runs.values().find(of).map(|run| (run.id, run.shim));
        let Some((id, shim)) = found else { return };
        if let Some(token) = shim {
            self.handle_shim_message(token, Until::Silence);
        }
        let now = clock::boot_ms();
        if let Some(run) = self.runs.get_mut(&id)
            && run.orphaned_leader() == Some(pid)
        {
            run.leader_reaped(exit, now);
            self.touch(id, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: A-22c
    #[test]
    fn older_shim_gets_only_known_message_kinds() {
        let (socket, theirs) = fdpass::pair().expect("a pair");
        let shim = RunShim {
            pid: 1,
            socket,
            run: RunId::from_u128(1),
            foreign: None,
            at_end: false,
            is_free: false,
            is_vacated: false,
            missing: vec!["leave"],
        };
        assert_eq!(shim.send(&ToShim::Leave {}), Some("leave".to_owned()));
        assert_eq!(shim.send(&ToShim::Discard {}), None);
        let Ok(Received::Message(bytes, mut fds)) = fdpass::receive(&theirs) else {
            panic!("a message is there");
        };
        let read = wire::decode::<ToShim>(&bytes, &mut fds).expect("our own");
        let Decoded::Known { message, .. } = read else {
            panic!("it is known");
        };
        assert_eq!(message, ToShim::Discard {});
    }
}
