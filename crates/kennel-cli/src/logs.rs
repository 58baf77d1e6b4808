//! `logs`: the output of a run, or a selected part.

use crate::{
    args::of_enum,
    failure::{Failure, note},
    follow::{AsConsumer, Journal, Source, WhichRuns, start},
    link::{Link, print_exact},
    sink::{self, Sink},
    values::{self, TailSize},
    words,
};
use clap::Args;
use futures_util::future;
use kennel_client as client;
use kennel_client::Start;
use kennel_proto::{
    json,
    pb::{self, EventKind, OutputStream, OutputView, event::Payload},
};
use std::time::SystemTime;

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Follow new output or events until the run ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print only this stream [default: both]
    #[arg(long, value_name = "STREAM", value_parser = of_enum("kennel.v1.OutputStream", OutputStream::from_str_name))]
    pub(crate) stream: Option<OutputStream>,
    /// Begin after the event with this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) from_seq: u64,
    /// Print only output written since: how long ago, such as 5m, or a time, such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only output written before: how long ago, or a time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment, conflicts_with = "follow")]
    pub(crate) until: Option<SystemTime>,
    /// Print only the last lines, of both streams together, or all
    #[arg(short = 'n', long, visible_alias = "lines", value_name = "LINES", allow_hyphen_values = true, value_parser = values::tail)]
    pub(crate) tail: Option<TailSize>,
    /// Print the time of each line before it
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Remove escape sequences and control characters except TAB, LF and CR: the default on a terminal
    #[arg(long, overrides_with = "raw")]
    pub(crate) plain: bool,
    /// Print byte for byte: the default if standard output is no terminal
    #[arg(long, overrides_with = "plain")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

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
        Some(TailSize::Lines(lines)) => Start::TailLines(lines),
        Some(TailSize::All) | None => start(args.from_seq),
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
