//! The sources of a run's output: its pipes or its terminal, when each is read, and at which rate.

use super::{
    pace::{Change, Pace},
    rate::Rate,
};
use crate::base::clock;
use kennel_keeper::client::Outputs;
use kennel_linux::OutputPipe;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Both streams of a command; a terminal has one.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) pipes: [Option<OutputPipe>; 2],
    pub(super) paces: Box<[Pace; 2]>,
    /// Whether the pipes are read.
    pub(super) flows: bool,
    pub(super) rate: Rate,
    /// Number of streams still being read, in the whole server.
    pub(super) pipes_open: Arc<AtomicUsize>,
}

impl Sources {
    /// Makes none yet; those that come are counted here.
    pub(super) fn of(pipes_open: Arc<AtomicUsize>) -> Self {
        Self {
            pipes: [None, None],
            paces: Box::default(),
            flows: false,
            rate: Rate::default(),
            pipes_open,
        }
    }

    pub(super) fn attach(&mut self, outputs: Outputs) -> io::Result<()> {
        self.pipes = match outputs {
            Outputs::Pipes { stdout, stderr } => [
                Some(OutputPipe::new(stdout)?),
                Some(OutputPipe::new(stderr)?),
            ],
            // A terminal has one output stream.
            Outputs::Terminal(ends) => [Some(OutputPipe::of_terminal(ends)?), None],
        };
        *self.paces = Default::default();
        let open = self.pipes.iter().flatten().count();
        self.pipes_open.fetch_add(open, Ordering::Relaxed);
        Ok(())
    }

    /// Closes a stream at its end.
    pub(super) fn close(&mut self, index: usize) {
        if self.pipes[index].take().is_some() {
            self.pipes_open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets when a pipe is read next, after so many bytes were found in it; `gathers`: output may gather in it.
    pub(super) fn pace(&mut self, index: usize, bytes: u64, gathers: bool) {
        let gathers = gathers && !self.rate.is_limited();
        let (Some(pipe), pace) = (&mut self.pipes[index], &mut self.paces[index]) else {
            return;
        };
        let now = clock::instant();
        match pace.looked(bytes, now, gathers) {
            Change::Unwatch if pipe.unwatch() => pace.unwatched(now),
            Change::None | Change::Unwatch => {}
            Change::Watch => {
                if let Err(error) = pipe.watch() {
                    // The error may recur at once: log it as debug.
                    tracing::debug!(%error, "cannot wait for output, polling for it");
                    pace.unwatched(now);
                }
            }
        }
    }
}
