//! Lines of output as tests of patterns take them, with their places.

use super::events::Events;
use crate::base::calls::{Event, Payload};
use kennel_lifecycle::{Asked, AskedLine, limits};

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
    /// Length of its beginning that was a question, or was answered before it was one.
    pub asked: usize,
    /// Whether only rules that ask test it: it has not ended, and no output follows for a while.
    pub is_quiet: bool,
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
                asked: 0,
                is_quiet: false,
            }),
            Payload::Gap(_) | Payload::Lifecycle(_) | Payload::Output { .. } => None,
        }
    }
}

impl OutputLine {
    /// Returns the part that may be a question: what a person sees at the end of the line, without what was one before.
    pub(crate) fn question(&self) -> &[u8] {
        let rest = self.text.get(self.asked..).unwrap_or_default();
        let shown = rest.strip_suffix(b"\r").unwrap_or(rest);
        let shown = shown.rsplit(|byte| *byte == b'\r').next().unwrap_or(shown);
        &shown[shown.len().saturating_sub(limits::QUESTION_BYTES_MAX)..]
    }

    /// Returns what it asks.
    pub(crate) fn asked_now(&self) -> Asked {
        let text = self.question();
        Asked {
            text: String::from_utf8_lossy(text).trim().to_owned(),
            is_cut: text.len() == limits::QUESTION_BYTES_MAX,
            line: Some(AskedLine {
                stream: self.stream,
                offset: self.offset,
                len: self.text.len(),
            }),
            ..Asked::default()
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
                asked: 0,
                is_quiet: false,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(text: &str, asked: usize) -> String {
        let line = OutputLine {
            seq: 1,
            attempt: 1,
            stream: 1,
            offset: 0,
            text: text.into(),
            is_cut: true,
            asked,
            is_quiet: true,
        };
        line.asked_now().text
    }

    // promise: AS-1
    #[test]
    fn question_text_is_the_visible_line_end() {
        for (text, asked, seen) in [
            ("Name? ", 0, "Name?"),
            ("10 %\r20 %\rGo on? ", 0, "Go on?"),
            ("Go on? \r", 0, "Go on?"),
            ("Name? bob", 6, "bob"),
            ("Name? ", 6, ""),
        ] {
            assert_eq!(question(text, asked), seen, "{text:?}");
        }
        let long = question(&"y".repeat(5000), 0);
        assert_eq!(long.len(), limits::QUESTION_BYTES_MAX);
    }
}
