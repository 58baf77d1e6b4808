//! `logs`: what a run has written, or such of it as was asked for.

use super::{
    follow::{Journal, start},
    link::{Link, print},
    sink::Sink,
};
use crate::{
    args::{Format, LogsArgs, StreamArg},
    failure::Failure,
};
use kennel_edge::{
    client, json,
    pb::{self, Output, OutputStream, OutputView, event::Payload},
};
use std::{
    collections::VecDeque,
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) async fn logs(link: &Link, args: LogsArgs) -> Result<(), Failure> {
    if args.tail.is_some() && link.format == Format::Json {
        return Err(Failure::new(
            "--tail is for text: events are not cut into lines",
        ));
    }
    let wanted = Wanted::of(&args);
    let view = if args.plain {
        OutputView::Text
    } else {
        OutputView::Raw
    };
    let journal = Journal::open(link, &args.run, start(args.from_seq), args.follow);
    let mut journal = journal.viewed(view);
    let mut printer = Printer {
        format: link.format,
        plain: args.plain,
        sink: if wanted.is_all() && args.from_seq == 0 {
            Sink::default()
        } else {
            Sink::from_anywhere()
        },
        held: args.tail.map(Tail::new),
    };
    while let Some(mut message) = journal.next().await? {
        for events in &mut message.run_events {
            let base = events.base_time;
            let has = |event: &pb::Event| wanted.has(event, client::time_of(base, event));
            events.events.retain(has);
        }
        message.run_events.retain(|e| !e.events.is_empty());
        printer.take(message)?;
        if journal.is_at_head() {
            printer.release()?;
        }
    }
    printer.release()
}

/// Which of a run's output.
struct Wanted {
    stream: Option<OutputStream>,
    since: Option<SystemTime>,
}

impl Wanted {
    fn of(args: &LogsArgs) -> Self {
        let stream = args.stream.map(|stream| match stream {
            StreamArg::Stdout => OutputStream::Stdout,
            StreamArg::Stderr => OutputStream::Stderr,
        });
        let since = args.since.map(|since| {
            let begin = SystemTime::now().checked_sub(since);
            begin.unwrap_or(UNIX_EPOCH)
        });
        Self { stream, since }
    }

    fn is_all(&self) -> bool {
        self.stream.is_none() && self.since.is_none()
    }

    fn has(&self, event: &pb::Event, at: impl TryInto<SystemTime>) -> bool {
        let of_stream = match &event.payload {
            Some(Payload::Output(output)) => self.stream.is_none_or(|s| s == output.stream()),
            Some(Payload::Gap(_)) => true,
            _ => false,
        };
        of_stream
            && self
                .since
                .is_none_or(|since| at.try_into().is_ok_and(|at| at >= since))
    }
}

struct Printer {
    format: Format,
    plain: bool,
    sink: Sink,
    /// What was there when reading began is held until its last lines are known.
    held: Option<Tail>,
}

impl Printer {
    fn take(&mut self, message: pb::StreamEventsResponse) -> Result<(), Failure> {
        if message.run_events.is_empty() {
            return Ok(());
        }
        if self.format == Format::Json {
            return print(&(json::to_string(&message) + "\n"));
        }
        let events = message.run_events.into_iter().flat_map(|e| e.events);
        for payload in events.filter_map(|event| event.payload) {
            match (payload, &mut self.held) {
                (Payload::Output(output), Some(tail)) => tail.push(output),
                (Payload::Output(output), None) if self.plain => Sink::write_text(&output)?,
                (Payload::Output(output), None) => self.sink.write(&output)?,
                (Payload::Gap(gap), _) => self.sink.skip(&gap),
                _ => {}
            }
        }
        Ok(())
    }

    /// Prints what was held.
    fn release(&mut self) -> Result<(), Failure> {
        let held = self.held.take().into_iter().flat_map(|tail| tail.held);
        for output in held {
            Sink::write_text(&output)?;
            self.sink.go_on_behind(&output);
        }
        Ok(())
    }
}

/// The last lines of what came.
struct Tail {
    lines: usize,
    held: VecDeque<Output>,
    /// Newlines in what is held.
    newlines: usize,
}

impl Tail {
    fn new(lines: usize) -> Self {
        Self {
            lines,
            held: VecDeque::new(),
            newlines: 0,
        }
    }

    fn push(&mut self, output: Output) {
        self.newlines += newlines(&output.data);
        // A line that has not ended is one.
        let open = usize::from(!output.data.ends_with(b"\n"));
        self.held.push_back(output);
        while self.newlines + open > self.lines {
            let Some(first) = self.held.front_mut() else {
                return;
            };
            match first.data.iter().position(|byte| *byte == b'\n') {
                Some(at) if at + 1 < first.data.len() => {
                    first.data = first.data.slice(at + 1..);
                    first.offset += at as u64 + 1;
                    self.newlines -= 1;
                }
                found => {
                    self.newlines -= usize::from(found.is_some());
                    self.held.pop_front();
                }
            }
        }
    }
}

fn newlines(data: &[u8]) -> usize {
    data.split(|byte| *byte == b'\n').count() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_those_wherever_reads_have_cut_them() {
        let text = b"one\ntwo\n\nfour\nfive";
        for (lines, wanted) in [
            (0, ""),
            (1, "five"),
            (2, "four\nfive"),
            (3, "\nfour\nfive"),
            (9, "one\ntwo\n\nfour\nfive"),
        ] {
            for size in 1..=text.len() {
                let mut tail = Tail::new(lines);
                for (i, data) in text.chunks(size).enumerate() {
                    tail.push(Output {
                        data: data.to_vec().into(),
                        offset: (i * size) as u64,
                        ..Output::default()
                    });
                }
                let bytes: Vec<u8> = tail.held.iter().flat_map(|o| o.data.to_vec()).collect();
                assert_eq!(bytes, wanted.as_bytes(), "{lines} lines in {size}s");
                let offset = tail.held.front().map(|o| o.offset);
                let begin = (!wanted.is_empty()).then(|| (text.len() - wanted.len()) as u64);
                assert_eq!(offset, begin);
            }
        }
    }

    #[test]
    fn a_tail_ends_with_a_whole_line_too() {
        let mut tail = Tail::new(1);
        for data in ["a\nb", "c\n"] {
            tail.push(Output {
                data: data.into(),
                ..Output::default()
            });
        }
        let bytes: Vec<u8> = tail.held.iter().flat_map(|o| o.data.to_vec()).collect();
        assert_eq!(bytes, b"bc\n");
    }
}
