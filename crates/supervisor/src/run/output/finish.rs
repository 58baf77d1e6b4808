//! The end of a run's output: what remains in its pipes when the tree is gone, or when the service shuts down.

use super::{FINISH_BYTES_MAX, Output};
use crate::{
    base::cause::{Chain, is_full},
    run::saved_output,
};
use kennel_keeper::rundir;
use kennel_lifecycle::StreamsEnd;
use kennel_linux::OutputPipe;
use std::{io, path::Path};

impl Output {
    /// Appends the output that the shim has saved while no server was there, behind what exists.
    pub(crate) fn take_saved(&mut self, run_dir: &Path) {
        let taken = self
            .settle()
            .and_then(|()| saved_output::take(&mut self.writer, run_dir));
        if let Err(error) = taken {
            tracing::error!(run_id = %self.run, %error, "output that the shim saved is missing from the journal");
        }
    }

    /// Reads what remains after the tree is gone, without waiting for more. Absent: the disk is full, and the rest
    /// waits in its pipe; [`Self::pump`] returns the end.
    pub(crate) fn finish(&mut self) -> Option<StreamsEnd> {
        // Beyond the bound: no command remains to slow down, no output is lost.
        self.go_beyond();
        let mut end = self.finishing.unwrap_or(StreamsEnd::Eof);
        for index in 0..2 {
            let read = match self.read_rest(index) {
                Err(error) if self.open_dir_up(&error) => self.read_rest(index),
                read => read,
            };
            match read {
                Ok(()) if self.sources.pipes[index].is_none() => {}
                // A process outside the tree still has the stream open.
                Ok(()) if end == StreamsEnd::Eof => end = StreamsEnd::Cut,
                Ok(()) => {}
                Err(error) if is_full(&error) && !self.disk.hurries => {
                    self.finishing = Some(end);
                    self.refused(&error);
                    return None;
                }
                Err(error) => {
                    tracing::error!(run_id = %self.run, error = %Chain(&error), "cannot store the remaining output");
                    end = StreamsEnd::Lost;
                }
            }
            self.sources.close(index);
        }
        self.finishing = None;
        if self.disk.retry_at.is_none() {
            self.recovered();
        }
        Some(end)
    }

    /// Opens the run's directory up, where that may be the reason of the error. Returns whether it may.
    pub(super) fn open_dir_up(&self, error: &io::Error) -> bool {
        let is_closed = error.kind() == io::ErrorKind::PermissionDenied;
        if is_closed {
            rundir::open_run_dir(self.writer.dir());
        }
        is_closed
    }

    /// Whether the end of the run's output waits for room on the disk.
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.is_some()
    }

    /// Drops and counts what does not fit on the disk: the service shuts down.
    pub(crate) fn hurry(&mut self) {
        self.disk.hurries = true;
    }

    fn read_rest(&mut self, index: usize) -> io::Result<()> {
        let read = self.settle().and_then(|()| {
            if self.is_silent(index, OutputPipe::look_rest)? {
                return Ok(());
            }
            self.drain(index, FINISH_BYTES_MAX, OutputPipe::splice_rest_to_file)
        });
        match read {
            Err(error) if is_full(&error) && (self.may_drop() || self.disk.hurries) => {
                self.refused(&error);
                self.discard(index, FINISH_BYTES_MAX, OutputPipe::splice_rest_to_file)
            }
            read => read,
        }
    }

    /// Stops to read the output of a run that outlives this service: what was read is kept, and the rest is left to the
    /// next service.
    pub(crate) fn detach(&mut self) {
        for index in 0..2 {
            if self.sources.flows
                && let Err(error) = self.keep_rest_of(index)
            {
                tracing::warn!(run_id = %self.run, %error, "the disk is full, the remaining output is left to the next service");
            }
            self.sources.close(index);
        }
    }

    fn keep_rest_of(&mut self, index: usize) -> io::Result<()> {
        self.settle()?;
        if self.is_silent(index, OutputPipe::look)? {
            return Ok(());
        }
        self.drain(index, FINISH_BYTES_MAX, OutputPipe::splice_to_file)
    }
}
