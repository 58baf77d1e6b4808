//! Dropping of output when the disk is full, where the run's policy allows it: counted, and discarded.

use super::{DiskState, Output, Splice};
use crate::base::{KINDS, cause::Chain};
use kennel_lifecycle::OnDiskFull;
use kennel_linux::splice::Spliced;
use std::{fs::File, io};

impl DiskState {
    /// Whether output is being dropped.
    pub(super) fn drops(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| refusal.drops)
    }
}

impl Output {
    /// Whether output may be dropped when the disk is full.
    pub(super) fn may_drop(&self) -> bool {
        self.writer.bound().on_disk_full != OnDiskFull::Block
    }

    /// Drops at most `bytes_max` of one stream, until it is empty for now or ends.
    pub(super) fn discard(
        &mut self,
        index: usize,
        bytes_max: usize,
        splice: Splice,
    ) -> io::Result<()> {
        let sink = match self.disk.sink.take() {
            Some(sink) => sink,
            None => File::options().write(true).open("/dev/null")?,
        };
        let sink = self.disk.sink.insert(sink);
        let mut left = bytes_max;
        while let (Some(pipe), 1..) = (&self.sources.pipes[index], left) {
            let spliced = self.writer.drop_output(KINDS[index], || {
                let spliced = splice(pipe, sink, 0, left)?;
                let bytes = match spliced {
                    Spliced::Bytes(bytes) => bytes as u64,
                    Spliced::WouldBlock | Spliced::Eof => 0,
                };
                Ok((bytes, spliced))
            })?;
            match spliced {
                Spliced::Bytes(bytes) => left = left.saturating_sub(bytes),
                Spliced::WouldBlock => break,
                Spliced::Eof => self.sources.close(index),
            }
        }
        Ok(())
    }

    /// Bytes that cannot be counted stay in their pipe.
    pub(super) fn cannot_drop(&mut self, error: &io::Error) {
        tracing::warn!(run_id = %self.run, error = %Chain(error), "cannot count dropped output, output blocked");
        if let Some(refusal) = &mut self.disk.refusal {
            refusal.drops = false;
        }
    }
}
