//! `logs`: what a run has written, or such of it as was asked for.

use super::{
    follow::{Journal, start},
    link::{Link, print_exact},
    sink::{self, Sink},
    words,
};
use crate::{
    args::{Format, LogsArgs, StreamArg},
    failure::{Failure, note},
};
use kennel_client as client;
use kennel_client::Start;
use kennel_proto::{
    json,
    pb::{self, EventKind, OutputStream, OutputView, event::Payload},
};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) async fn logs(link: &Link, args: LogsArgs) -> Result<(), Failure> {
    let wanted = Wanted::of(&args);
    let are_many = args.which.run.is_none();
    // A person sees text; what goes elsewhere is exact.
    let for_person = link.format == Format::Text && sink::is_for_person();
    let plain = args.plain || (for_person && !args.raw);
    let view = match (are_many, plain) {
        (false, false) => OutputView::Raw,
        (false, true) => OutputView::Text,
        (true, false) => OutputView::Lines,
        (true, true) => OutputView::TextLines,
    };
    let from = match args.tail {
        Some(lines) => Start::TailLines(lines),
        None => start(args.from_seq),
    };
    let journal = Journal::open(link, &args.which, from, args.follow);
    let journal = journal.viewed(view).of_kinds(wanted.kinds());
    let is_named = args.name.consumer.is_some();
    let mut journal = journal.in_name_of(args.name);
    let sink = if wanted.is_all() && from == Start::Beginning && !is_named {
        Sink::default()
    } else {
        Sink::from_anywhere()
    };
    let mut printer = Printer {
        format: link.format,
        plain,
        sink: if args.raw { sink } else { sink.safe() },
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
        match link.format {
            Format::Text if are_many => printer.print_lines(&message)?,
            Format::Text | Format::Json => printer.take(message)?,
        }
        journal.printed().await?;
    }
    Ok(())
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

    fn kinds(&self) -> Vec<EventKind> {
        let output = match self.stream {
            Some(OutputStream::Stdout) => vec![EventKind::Stdout],
            Some(OutputStream::Stderr) => vec![EventKind::Stderr],
            Some(OutputStream::Unspecified) | None => vec![EventKind::Stdout, EventKind::Stderr],
        };
        [vec![EventKind::Lifecycle], output].concat()
    }

    fn is_all(&self) -> bool {
        self.stream.is_none() && self.since.is_none()
    }

    fn has(&self, event: &pb::Event, at: impl TryInto<SystemTime>) -> bool {
        let of_stream = match &event.payload {
            Some(Payload::Output(output)) => self.stream.is_none_or(|s| s == output.stream()),
            Some(Payload::Line(line)) => self.stream.is_none_or(|s| s == line.stream()),
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
}

impl Printer {
    /// Each line with its run before it.
    fn print_lines(&mut self, message: &pb::StreamEventsResponse) -> Result<(), Failure> {
        for events in &message.run_events {
            let run = &events.run_id;
            for event in &events.events {
                match &event.payload {
                    Some(Payload::Line(line)) => self.sink.write_text(&pb::Output {
                        stream: line.stream,
                        data: format!("{run} | {}\n", line.text).into(),
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
        if message.run_events.is_empty() {
            return Ok(());
        }
        if self.format == Format::Json {
            return print_exact(&(json::to_string(&message) + "\n"));
        }
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
