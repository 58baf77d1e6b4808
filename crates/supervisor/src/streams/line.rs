//! Lines of output as tests of patterns take them, with their places.

use super::events::Events;
use crate::base::calls::{Event, Payload};

/// A line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// Seq of the event in which it ended, or of its newest event.
    pub seq: u64,
    /// Attempt that wrote it.
    pub attempt: u32,
    /// 1: standard output, 2: standard error.
    pub stream: u8,
    /// Offset of its first byte in the whole of the stream.
    pub offset: u64,
    /// Its bytes.
    pub text: Vec<u8>,
    /// Whether the line continues, or has not ended.
    pub is_cut: bool,
}

impl OutputLine {
    /// Returns the line of this event, if it is one.
    pub(crate) fn of(event: Event) -> Option<Self> {
        match event.payload {
            Payload::Line {
                stream,
                offset,
                text,
                is_cut,
            } => Some(Self {
                seq: event.seq,
                attempt: event.attempt,
                stream,
                offset,
                text,
                is_cut,
            }),
            Payload::Gap(_) | Payload::Lifecycle(_) | Payload::Output { .. } => None,
        }
    }
}

impl Events {
    /// Returns the lines of both streams that have begun and not ended, in a view by lines.
    pub(crate) fn unfinished_lines(&self, attempt: u32) -> impl Iterator<Item = OutputLine> {
        (1..=2).filter_map(move |stream| {
            let (offset, text) = self.unfinished(stream)?;
            (!text.is_empty()).then(|| OutputLine {
                seq: self.position().seq,
                attempt,
                stream,
                offset,
                text: text.to_vec(),
                is_cut: true,
            })
        })
    }
}
