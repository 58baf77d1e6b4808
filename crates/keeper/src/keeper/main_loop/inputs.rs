//! Watched descriptors of runs: full inputs for free space, while a client writes, and sockets at which processes of
//! runs report.

use super::Keeper;
use crate::keeper::run::{Run, RunInput};
use kennel_lifecycle::RunId;
use kennel_linux::{clock, crash_point};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Most messages of one run that are handled before other events.
const NOTICES_IN_TURN_MAX: usize = 16;

/// Watched descriptors of one kind, each a copy that is closed when the wait is over.
#[derive(Default)]
pub(super) struct Watched {
    tokens: HashMap<RunId, u64>,
    watched: HashMap<u64, (RunId, OwnedFd)>,
}

impl Watched {
    pub(super) fn is_watched(&self, token: u64) -> bool {
        self.watched.contains_key(&token)
    }

    fn run_of(&self, token: u64) -> Option<RunId> {
        self.watched.get(&token).map(|(id, _)| *id)
    }

    /// Begins or ends the watch of a run. Where this process has no descriptor for a copy, the next event of the run
    /// retries.
    fn keep(
        &mut self,
        epoll: &Epoll,
        next: &mut u64,
        (id, flags): (RunId, EpollFlags),
        waits: Option<BorrowedFd<'_>>,
    ) {
        match (waits, self.tokens.get(&id).copied()) {
            (Some(fd), None) => {
                let token = *next;
                let Ok(copy) = fd.try_clone_to_owned() else {
                    return;
                };
                if epoll.add(&copy, EpollEvent::new(flags, token)).is_ok() {
                    *next += 1;
                    self.tokens.insert(id, token);
                    self.watched.insert(token, (id, copy));
                }
            }
            (None, Some(token)) => {
                self.tokens.remove(&id);
                if let Some((_, copy)) = self.watched.remove(&token) {
                    let _ = epoll.delete(copy.as_fd());
                }
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}

impl Keeper {
    /// Handles an input that has free space, or that no process reads any more.
    pub(super) fn room_in_input(&mut self, token: u64) {
        let Some(id) = self.inputs.run_of(token) else {
            return;
        };
        if let Some(run) = self.runs.get_mut(&id) {
            run.room_in_input();
        }
        self.touch(id, clock::boot_ms());
        // `touch` skips a removed run, whose watch ends here.
        self.watch(id);
    }

    /// Handles messages that processes of a run, or others, have sent about it.
    pub(super) fn handle_notices(&mut self, token: u64) {
        let Some(id) = self.notices.run_of(token) else {
            return;
        };
        for _ in 0..NOTICES_IN_TURN_MAX {
            let now = clock::boot_ms();
            let heard = self
                .runs
                .get_mut(&id)
                .is_some_and(|run| run.handle_notice(now));
            // Effects of a message go to the shim and to the server before the message is dropped.
            self.touch(id, now);
            if !heard {
                break;
            }
            crash_point!("keeper.notice");
            if let Some(run) = self.runs.get(&id) {
                run.drop_notice();
            }
        }
        self.watch(id);
    }

    /// Begins or ends the watches of a run; called after any event of it.
    pub(super) fn watch(&mut self, id: RunId) {
        let (epoll, next) = (&self.epoll, &mut self.next_shim);
        let run = self.runs.get(&id);
        let input = run.and_then(|run| run.input.as_ref());
        let waits = input.and_then(RunInput::waits_for);
        self.inputs
            .keep(epoll, next, (id, EpollFlags::EPOLLOUT), waits);
        let waits = run.and_then(Run::reads_notices);
        self.notices
            .keep(epoll, next, (id, EpollFlags::EPOLLIN), waits);
    }
}
