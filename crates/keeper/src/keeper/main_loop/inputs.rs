//! Inputs of runs that are full while somebody writes: they are watched for room, and only then.

use super::Keeper;
use crate::{
    keeper::run::RunInput,
    values::SignalResult,
    wire::{Answer, WireHelp, WireResize, input::WireInputWish},
};
use kennel_lifecycle::RunId;
use kennel_linux::clock;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
};

/// Which are watched, each by a copy of the pipe's end that goes when the wait is over.
#[derive(Default)]
pub(super) struct Inputs {
    tokens: HashMap<RunId, u64>,
    watched: HashMap<u64, (RunId, OwnedFd)>,
}

impl Inputs {
    pub(super) fn is_watched(&self, token: u64) -> bool {
        self.watched.contains_key(&token)
    }
}

impl Keeper {
    /// What a server wants of the standard input of a run.
    pub(super) fn ask_input(&mut self, seq: u64, run: u128, wish: WireInputWish) {
        let id = RunId::from_u128(run);
        match self.runs.get_mut(&id) {
            Some(run) => run.ask_input(seq, wish),
            None => self.answer(seq, Answer::Signal(SignalResult::UnknownRun)),
        }
        self.touch(id, clock::boot_ms());
    }

    /// A command that a server wants beside that of a run.
    pub(super) fn help(&mut self, wish: WireHelp) {
        let id = RunId::from_u128(wish.run);
        match self.runs.get_mut(&id) {
            Some(run) => run.help(wish.seq, wish.argv, wish.timeout_ms),
            None => self.answer(wish.seq, Answer::Signal(SignalResult::UnknownRun)),
        }
        self.touch(id, clock::boot_ms());
    }

    /// What a server wants of the terminal of a run.
    pub(super) fn resize_terminal(&mut self, wish: WireResize) {
        let id = RunId::from_u128(wish.run);
        match self.runs.get_mut(&id) {
            Some(run) => run.resize(wish.seq, wish.attempt, wish.size),
            None => self.answer(wish.seq, Answer::Signal(SignalResult::UnknownRun)),
        }
        self.touch(id, clock::boot_ms());
    }

    /// There is room, or nobody reads any more.
    pub(super) fn room_in_input(&mut self, token: u64) {
        let Some((id, _)) = self.inputs.watched.get(&token) else {
            return;
        };
        let id = *id;
        if let Some(run) = self.runs.get_mut(&id) {
            run.room_in_input();
        }
        self.touch(id, clock::boot_ms());
        // Of a run that was given back without another word.
        self.watch_input(id);
    }

    /// After any event of a run: begins or ends the watch.
    pub(super) fn watch_input(&mut self, id: RunId) {
        let input = self.runs.get(&id).and_then(|run| run.input.as_ref());
        let waits = input.and_then(RunInput::waits_for);
        match (waits, self.inputs.tokens.get(&id).copied()) {
            (Some(pipe), None) => {
                let token = self.next_shim;
                // Where this process has no room for a copy, the next write to the run looks again.
                let Ok(copy) = pipe.try_clone_to_owned() else {
                    return;
                };
                let event = EpollEvent::new(EpollFlags::EPOLLOUT, token);
                if self.epoll.add(&copy, event).is_ok() {
                    self.next_shim += 1;
                    self.inputs.tokens.insert(id, token);
                    self.inputs.watched.insert(token, (id, copy));
                }
            }
            (None, Some(token)) => {
                self.inputs.tokens.remove(&id);
                if let Some((_, copy)) = self.inputs.watched.remove(&token) {
                    let _ = self.epoll.delete(copy.as_fd());
                }
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}
