//! Runs that have outlived an earlier keeper, and those that this one leaves to the next as they are.

use super::{Keeper, shims::RunShim};
use crate::{
    keeper::{
        adoption::{Adoptable, AwaitedShim, Heard},
        run::Run,
    },
    wire::{Head, ToServer},
};
use kennel_lifecycle::RunId;
use kennel_linux::pidfd::PidFd;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

impl Keeper {
    /// Adopts a run. Where this process has no descriptors for it, its shim continues to wait.
    pub(in crate::keeper) fn adopt(&mut self, found: Adoptable) {
        let id = found.id;
        let token = self.next_shim;
        let watched = self.watch_foreign(&found, token);
        let Ok((socket, foreign)) = watched else {
            return;
        };
        self.next_shim += 1;
        let shim = RunShim {
            pid: found.identity.shim.pid,
            socket,
            run: id,
            foreign: Some(foreign),
            at_end: false,
            is_free: false,
            is_vacated: false,
            missing: found.missing.clone(),
        };
        self.shims.insert(token, shim);
        self.runs.insert(id, Run::adopted(found, token, self.node));
    }

    /// Watches a shim that has not answered yet: its answer is handled whenever it comes. Where this process has no
    /// descriptors for it, recovery looks at the row.
    pub(in crate::keeper) fn await_shim(&mut self, awaited: AwaitedShim) {
        let token = self.next_shim;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        if self.epoll.add(&awaited.socket, event).is_ok() {
            self.next_shim += 1;
            self.late.insert(token, awaited);
        }
    }

    /// Handles a late shim that has answered, or is gone.
    pub(super) fn handle_late(&mut self, token: u64) {
        let Some(awaited) = self.late.remove(&token) else {
            return;
        };
        let _ = self.epoll.delete(&awaited.socket);
        let id = awaited.run;
        match awaited.hear(&self.data_dir, &self.host) {
            Heard::Adoptable(found) => self.adopt(*found),
            Heard::OtherLevel(awaited) => return self.await_shim(awaited),
            Heard::Nothing => {}
        }
        let run = self.runs.get(&id).and_then(Run::held);
        let (word, outputs) = match run {
            Some((held, outputs)) => (ToServer::Held(Box::new(held)), outputs),
            None => (ToServer::ShimGone {}, Vec::new()),
        };
        self.send(Head::of_run(id), &word, outputs);
    }

    /// Stops to wait for this run's shim: the run is being ended.
    pub(super) fn stop_awaiting_shim(&mut self, run: RunId) {
        for (_, awaited) in self.late.extract_if(|_, awaited| awaited.run == run) {
            let _ = self.epoll.delete(&awaited.socket);
        }
    }

    /// Watches the shim's messages, and its exit: no SIGCHLD comes for it.
    fn watch_foreign(&self, found: &Adoptable, token: u64) -> io::Result<(OwnedFd, PidFd)> {
        let socket = found.socket.try_clone()?;
        let foreign = PidFd::from_fd(found.shim.as_fd().try_clone_to_owned()?);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        self.epoll.add(&socket, event)?;
        if let Err(errno) = self.epoll.add(foreign.as_fd(), event) {
            let _ = self.epoll.delete(&socket);
            return Err(errno.into());
        }
        Ok((socket, foreign))
    }

    /// Gives adopted runs back, where no server has ever served here: their shims wait at their sockets again.
    pub(super) fn give_back(&mut self) {
        let given = self.runs.values().filter(|run| run.can_be_given_back());
        let given: Vec<RunId> = given.map(|run| run.id).collect();
        for id in given {
            let run = self.runs.remove(&id);
            if let Some(at) = self.waking.remove(&id) {
                self.wakes.remove(&(at, id));
            }
            // The shim sees EOF on its socket.
            if let Some(token) = run.and_then(|run| run.shim) {
                self.forget_shim(token);
            }
        }
    }
}
