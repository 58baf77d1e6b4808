//! `logs`: the output of a run, or a selected part.

use super::{
    follow::{Journal, Source, start},
    link::{Link, print_exact},
    sink::{self, Sink},
    words,
};
use crate::{
    args::LogsArgs,
    failure::{Failure, note},
    values::Tail,
};
use futures_util::future;
use kennel_client as client;
use kennel_client::Start;
use kennel_proto::{
    json,
    pb::{self, EventKind, OutputStream, OutputView, event::Payload},
};
use std::time::SystemTime;

pub(crate) async fn logs(link: &Link, args: LogsArgs) -> Result<(), Failure> {
    let sources = Source::all(link, &args.which).await?;
    let are_many = Source::are_many(&sources);
    let read = sources
        .iter()
        .map(|source| read(link, &args, source, are_many));
    future::try_join_all(read).await.map(drop)
}

/// Prints one stream. Several that print at the same time print whole lines.
async fn read(
    link: &Link,
    args: &LogsArgs,
    source: &Source,
    are_many: bool,
) -> Result<(), Failure> {
    let wanted = Wanted::of(args);
    // A terminal gets safe text; other outputs get the exact bytes.
    let is_text = link.format.is_text();
    let plain = args.plain || (is_text && sink::is_for_person() && !args.raw);
    let by_line = are_many || args.timestamps;
    let view = match (by_line, plain) {
        (false, false) => OutputView::Raw,
        (false, true) => OutputView::Text,
        (true, false) => OutputView::Lines,
        (true, true) => OutputView::TextLines,
    };
    let from = match args.tail {
        Some(Tail::Lines(lines)) => Start::TailLines(lines),
        Some(Tail::All) | None => start(args.from_seq),
    };
    let mut journal = Journal::open(link, source, from, args.follow).in_name_of(&args.name);
    journal.reader.request.output_view = view.into();
    journal.reader.request.kinds = wanted.kinds().into_iter().map(Into::into).collect();
    let is_named = args.name.consumer.is_some();
    let sink = if wanted.is_all() && from == Start::Beginning && !is_named {
        Sink::default()
    } else {
        Sink::from_anywhere()
    };
    let mut printer = Printer {
        plain,
        sink: if args.raw { sink } else { sink.safe() },
        names_run: are_many,
        names_time: args.timestamps,
    };
    while let Some(mut message) = journal.next().await? {
        for events in &mut message.run_events {
            let (base_seq, base_time) = (events.base_seq, events.base_time);
            let has = |event: &pb::Event| {
                base_seq + event.seq_delta > args.from_seq
                    && wanted.has(event, client::time_of(base_time, event))
            };
            events.events.retain(has);
        }
        message.run_events.retain(|e| !e.events.is_empty());
        match is_text {
            true if by_line => printer.print_lines(&message)?,
            true => printer.take(message)?,
            false if message.run_events.is_empty() => {}
            false => print_exact(&link.format.document(&json::to_string(&message)))?,
        }
        journal.printed().await?;
    }
    Ok(())
}

/// Selected part of a run's output.
struct Wanted {
    stream: Option<OutputStream>,
    since: Option<SystemTime>,
    until: Option<SystemTime>,
}

impl Wanted {
    fn of(args: &LogsArgs) -> Self {
        Self {
            stream: args.stream,
            since: args.since,
            until: args.until,
        }
    }

    fn kinds(&self) -> Vec<EventKind> {
        let output = match self.stream {
            Some(OutputStream::Stdout) => vec![EventKind::Stdout],
            Some(OutputStream::Stderr) => vec![EventKind::Stderr],
            Some(OutputStream::Unspecified) | None => vec![EventKind::Stdout, EventKind::Stderr],
        };
        [vec![EventKind::Lifecycle], output].concat()
    }

    fn is_all(&self) -> bool {
        self.stream.is_none() && self.since.is_none() && self.until.is_none()
    }

    fn has(&self, event: &pb::Event, at: impl TryInto<SystemTime>) -> bool {
        let of_stream = match &event.payload {
            Some(Payload::Output(output)) => self.stream.is_none_or(|s| s == output.stream()),
            Some(Payload::Line(line)) => self.stream.is_none_or(|s| s == line.stream()),
            Some(Payload::Gap(_)) => true,
            _ => false,
        };
        let is_in_time = |at: SystemTime| {
            self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
        };
        of_stream
            && ((self.since, self.until) == (None, None) || at.try_into().is_ok_and(is_in_time))
    }
}

struct Printer {
    plain: bool,
    sink: Sink,
    /// Whether each line is prefixed with its run.
    names_run: bool,
    /// Whether each line is prefixed with its time.
    names_time: bool,
}

impl Printer {
    fn print_lines(&mut self, message: &pb::StreamEventsResponse) -> Result<(), Failure> {
        for events in &message.run_events {
            let run = &events.run_id;
            for event in &events.events {
                let mut before = String::new();
                if self.names_time {
                    before = format!("{} ", client::time_of(events.base_time, event));
                }
                if self.names_run {
                    before = format!("{before}{run} | ");
                }
                match &event.payload {
                    Some(Payload::Line(line)) => self.sink.write_text(&pb::Output {
                        stream: line.stream,
                        data: format!("{before}{}\n", line.text).into(),
                        ..pb::Output::default()
                    })?,
                    Some(Payload::Gap(gap)) => {
                        note(&format_args!("{run}: {}", words::gap(gap)));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, message: pb::StreamEventsResponse) -> Result<(), Failure> {
        let events = message.run_events.into_iter().flat_map(|e| e.events);
        for payload in events.filter_map(|event| event.payload) {
            match payload {
                Payload::Output(output) if self.plain => self.sink.write_text(&output)?,
                Payload::Output(output) => self.sink.write(&output)?,
                Payload::Gap(gap) => self.sink.skip(&gap),
                _ => {}
            }
        }
        Ok(())
    }
}
