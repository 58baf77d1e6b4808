//! A run's output and its journal: the pump from the pipes, and the lines that the machine announces.
//!
//! Bytes go from pipe to file by splice and are indexed after; a server that dies between the two has lost neither.
//! A disk that does not take a line or an entry makes the pump wait: the child is pushed back, nothing is dropped.

use crate::{LifecycleEvent, cause::Chain, clock, event};
use kennel_journal::{Boot, Hub, Kind, Writer};
use kennel_lifecycle::{OutputBound, RunId, StreamsEnd, Timestamp};
use kennel_linux::{Look, OutputPipe, crash_point, splice::Spliced};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Most bytes that are moved before the run's task looks at its commands again.
const PUMP_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of one stream that are read after the tree is empty: more than a pipe can hold (pipe(7): 1 MiB).
const FINISH_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How long to wait after the disk has refused.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Lines that wait for a disk that refuses; beyond it the oldest are given up, and it is said.
const LINES_OWED_MAX: usize = 256;

/// A way to move bytes from a pipe to an offset of a file.
type Splice = fn(&OutputPipe, &File, u64, usize) -> io::Result<Spliced>;

const KINDS: [Kind; 2] = [Kind::Stdout, Kind::Stderr];

/// The journal of one run and the pipes that feed it.
#[derive(Debug)]
pub(crate) struct Output {
    run: RunId,
    writer: Writer,
    pipes: [Option<OutputPipe>; 2],
    /// Whether they are read.
    flows: bool,
    /// Bytes that are in the file of a stream and not yet in the index.
    unindexed: [u64; 2],
    owed: VecDeque<Owed>,
    /// Of which attempt what comes is.
    attempt: u32,
    retry_at: Option<Instant>,
    /// Whether it was said that the disk takes nothing: once, not at each try, for the log may lie on that disk.
    stuck: bool,
    /// Streams still being read, in the whole server.
    pipes_open: Arc<AtomicUsize>,
}

/// A line that the disk has not taken yet.
#[derive(Debug)]
struct Owed {
    payload: Vec<u8>,
    at: Timestamp,
    attempt: u32,
}

/// What the pump should look at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    Pipe(usize),
    Retry,
}

impl Output {
    /// A new journal in `dir`.
    pub(crate) fn create(
        run: RunId,
        dir: &Path,
        bound: OutputBound,
        boot: Boot,
        open: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        let writer = Writer::create(dir, bound, boot, clock::now())?;
        Ok(Self::over(run, (writer, [0, 0]), open))
    }

    /// On a journal that is there, with the bytes that its index does not name ([`Writer::reopen`]).
    pub(crate) fn over(run: RunId, reopened: (Writer, [u64; 2]), open: Arc<AtomicUsize>) -> Self {
        let (writer, unindexed) = reopened;
        Self {
            run,
            attempt: writer.attempt(),
            writer,
            pipes: [None, None],
            flows: false,
            unindexed,
            owed: VecDeque::new(),
            retry_at: (unindexed != [0, 0]).then(clock::instant),
            stuck: false,
            pipes_open: open,
        }
    }

    /// Where readers come from.
    pub(crate) fn hub(&self) -> Hub {
        self.writer.hub()
    }

    /// What is written from here on is of this attempt, and its output is not moved before it runs.
    pub(crate) fn begin_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.flows = false;
    }

    /// How long standard output and error are by now.
    pub(crate) fn lens(&self) -> [u64; 2] {
        KINDS.map(|kind| self.writer.len(kind))
    }

    /// Begins to read the command's output.
    pub(crate) fn attach(&mut self, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<()> {
        self.pipes = [
            Some(OutputPipe::new(stdout)?),
            Some(OutputPipe::new(stderr)?),
        ];
        self.pipes_open.fetch_add(2, Ordering::Relaxed);
        Ok(())
    }

    /// From here on output is moved: the first thing that is told of a command is that it runs.
    pub(crate) fn flow(&mut self) {
        self.flows = true;
    }

    /// Whether it is.
    pub(crate) fn flows(&self) -> bool {
        self.flows
    }

    /// Waits until there is something to move. Cancel-safe.
    pub(crate) async fn ready(&self) -> Ready {
        if let Some(at) = self.retry_at {
            tokio::time::sleep_until(at).await;
            return Ready::Retry;
        }
        let wait = |index: usize| async move {
            match &self.pipes[index] {
                // An error of the poll is met again, and handled, by the read that follows.
                Some(pipe) if self.flows => drop(pipe.readable().await),
                _ => std::future::pending().await,
            }
            Ready::Pipe(index)
        };
        tokio::select! {
            ready = wait(0) => ready,
            ready = wait(1) => ready,
        }
    }

    /// Moves what is ready. Gives the end of the output when this has reached it.
    pub(crate) fn pump(&mut self, ready: Ready) -> Option<StreamsEnd> {
        let mut indexes = match ready {
            Ready::Pipe(index) => index..index + 1,
            Ready::Retry if self.flows => 0..2,
            Ready::Retry => 0..0,
        };
        self.retry_at = None;
        let was_open = self.is_open();
        let moved = self
            .settle()
            .and_then(|()| indexes.try_for_each(|index| self.move_some(index)));
        match moved {
            Err(error) => self.refused(&error),
            Ok(()) if self.stuck => {
                self.stuck = false;
                tracing::info!(run = %self.run, "the journal is written again");
            }
            Ok(()) => {}
        }
        (was_open && !self.is_open()).then_some(StreamsEnd::Eof)
    }

    /// The tree is gone: reads what is left and does not wait for more.
    pub(crate) fn finish(&mut self) -> StreamsEnd {
        let mut end = StreamsEnd::Eof;
        for index in 0..2 {
            match self
                .settle()
                .and_then(|()| self.drain(index, FINISH_BYTES_MAX, OutputPipe::splice_rest_to_file))
            {
                Ok(()) if self.pipes[index].is_none() => {}
                // Somebody outside the tree still holds the stream.
                Ok(()) if end == StreamsEnd::Eof => end = StreamsEnd::Cut,
                Ok(()) => {}
                Err(error) => {
                    tracing::error!(run = %self.run, %error, "the rest of the output could not be kept");
                    end = StreamsEnd::Lost;
                }
            }
            self.close_pipe(index);
        }
        end
    }

    /// The run outlives this service: what is there is kept, and what comes is left to the next one.
    pub(crate) fn let_go(&mut self) {
        for index in 0..2 {
            if self.flows
                && let Err(error) = self.keep_rest_of(index)
            {
                tracing::warn!(run = %self.run, %error, "the disk takes no more, the rest of the output is left to the next service");
            }
            self.close_pipe(index);
        }
    }

    fn keep_rest_of(&mut self, index: usize) -> io::Result<()> {
        self.settle()?;
        self.drain(index, FINISH_BYTES_MAX, OutputPipe::splice_to_file)
    }

    /// Whether a stream is still being read.
    pub(crate) fn is_open(&self) -> bool {
        self.pipes.iter().any(Option::is_some)
    }

    /// Whether the disk has not taken all that was told.
    pub(crate) fn owes(&self) -> bool {
        self.unindexed != [0, 0] || !self.owed.is_empty()
    }

    /// Puts a line into the journal, or keeps it until the disk takes it.
    pub(crate) fn line(&mut self, line: &LifecycleEvent, at: Timestamp) {
        self.owed.push_back(Owed {
            payload: event::encode(line),
            at,
            attempt: self.attempt,
        });
        if let Err(error) = self.settle() {
            self.refused(&error);
        }
        while self.owed.len() > LINES_OWED_MAX {
            tracing::error!(run = %self.run, "a line of the journal is given up: the disk does not take it");
            self.owed.pop_front();
        }
    }

    /// Writes what is owed, in order.
    fn settle(&mut self) -> io::Result<()> {
        for (index, kind) in KINDS.into_iter().enumerate() {
            let bytes = self.unindexed[index];
            if bytes > 0 {
                self.writer.output_written(kind, bytes, clock::now())?;
                self.unindexed[index] = 0;
            }
        }
        while let Some(line) = self.owed.front() {
            self.writer.begin_attempt(line.attempt);
            self.writer.lifecycle(&line.payload, line.at)?;
            self.owed.pop_front();
        }
        self.writer.begin_attempt(self.attempt);
        Ok(())
    }

    /// Moves what is there of one stream. One that stays silent never gets a file.
    fn move_some(&mut self, index: usize) -> io::Result<()> {
        if let (Some(pipe), false) = (&self.pipes[index], self.writer.has_file(KINDS[index])) {
            match pipe.look()? {
                Look::Bytes => {}
                Look::Empty => return Ok(()),
                Look::End => {
                    self.close_pipe(index);
                    return Ok(());
                }
            }
        }
        self.drain(index, PUMP_BYTES_MAX, OutputPipe::splice_to_file)
    }

    /// Moves at most `bytes_max` of one stream, until nothing is left for now or it ends.
    fn drain(&mut self, index: usize, bytes_max: usize, splice: Splice) -> io::Result<()> {
        let kind = KINDS[index];
        let mut left = bytes_max;
        while let (Some(pipe), 1..) = (&self.pipes[index], left) {
            let place = self.writer.place(kind, clock::now())?;
            match splice(pipe, place.file, place.offset, left.min(place.room))? {
                Spliced::Bytes(bytes) => {
                    left = left.saturating_sub(bytes);
                    self.unindexed[index] = bytes as u64;
                    crash_point!("output.moved");
                    self.writer
                        .output_written(kind, bytes as u64, clock::now())?;
                    crash_point!("output.indexed");
                    self.unindexed[index] = 0;
                }
                Spliced::WouldBlock => break,
                Spliced::Eof => self.close_pipe(index),
            }
        }
        Ok(())
    }

    fn close_pipe(&mut self, index: usize) {
        if self.pipes[index].take().is_some() {
            self.pipes_open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn refused(&mut self, error: &io::Error) {
        if !self.stuck {
            let error = Chain(error);
            tracing::error!(run = %self.run, %error, "the journal cannot be written, trying until it can; the command waits");
        }
        self.stuck = true;
        self.retry_at = Some(clock::instant() + RETRY_AFTER);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.close_pipe(0);
        self.close_pipe(1);
    }
}
