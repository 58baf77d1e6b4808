//! Runs that have outlived an earlier keeper, and those that this one leaves to the next as they are.

use super::{Keeper, shims::Shim};
use crate::{
    keeper::{adoption::Adoptable, run::Run},
    pidfd::PidFd,
};
use kennel_lifecycle::RunId;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

impl Keeper {
    /// Goes on with a run. Where this process has no room for it, its shim goes on waiting.
    pub(in crate::keeper) fn adopt(&mut self, found: Adoptable) {
        let id = found.id;
        let token = self.next_shim;
        let watched = self.watch_foreign(&found, token);
        let Ok((socket, foreign)) = watched else {
            return;
        };
        self.next_shim += 1;
        let shim = Shim {
            pid: found.identity.shim.pid,
            socket,
            run: id,
            foreign: Some(foreign),
        };
        self.shims.insert(token, shim);
        self.runs.insert(id, Run::adopted(found, token));
    }

    /// Its words, and its end: no SIGCHLD comes for it.
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

    /// No server has ever served here: what waits for one at its own door does so again.
    pub(super) fn give_back(&mut self) {
        let given = self.runs.values().filter(|run| run.can_be_given_back());
        let given: Vec<RunId> = given.map(|run| run.id).collect();
        for id in given {
            let run = self.runs.remove(&id);
            if let Some(at) = self.waking.remove(&id) {
                self.wakes.remove(&(at, id));
            }
            // The shim sees the end of its socket.
            if let Some(token) = run.and_then(|run| run.shim) {
                self.forget_shim(token);
            }
        }
    }
}
