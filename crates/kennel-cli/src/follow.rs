//! A run's journal on the command line: to its present head, or until the run has ended; and `events`.

use crate::{
    args::LabelArgs,
    complete,
    event_line::{event_line, event_words},
    failure::{Failure, note},
    link::{Link, refused},
    sentence, terminal_text,
    values::{self, TailSize},
};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use futures_util::future;
use kennel_client as client;
use kennel_client::{EventReader, Start};
use kennel_proto::pb;
use std::{collections::VecDeque, time::SystemTime};

/// The consumer that reads the events.
#[derive(Clone, Debug, Args)]
pub(crate) struct AsConsumer {
    /// Read as this consumer: continue after its last acknowledgement, and register it if it is new
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Acknowledge what is printed
    #[arg(long, requires = "consumer")]
    pub(crate) ack: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Follow new output or events until the run ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin after this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) after_seq: u64,
    /// Print only events since: how long ago, such as 5m, or a time, such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only the last events of each run, or all
    #[arg(short = 'n', long, visible_alias = "lines", value_name = "EVENTS", allow_hyphen_values = true, value_parser = values::tail, conflicts_with_all = ["labels", "all", "consumer"])]
    pub(crate) tail: Option<TailSize>,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

/// One run, several, or many.
#[derive(Debug, Args)]
pub(crate) struct WhichRuns {
    /// Ids of runs, or their beginning or end; with several, each line names its run
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN", conflicts_with_all = ["labels", "all"], required_unless_present_any = ["labels", "all"])]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Read all runs, with --follow also new ones; each line names its run
    #[arg(long, conflicts_with = "labels")]
    pub(crate) all: bool,
}

pub(crate) async fn events(link: &Link, args: EventsArgs) -> Result<(), Failure> {
    let sources = Source::all(link, &args.which).await?;
    let are_many = Source::are_many(&sources);
    let print =
        |message: &pb::StreamEventsResponse| link.print(message, || lines(message, are_many));
    let read = sources.iter().map(async |source| {
        let mut from = start(args.after_seq);
        if let Some(TailSize::Lines(most)) = args.tail {
            let journal = Journal::open(link, source, from, false);
            for events in newest(journal, most, args.since).await? {
                let last = events.events.iter().map(|e| events.base_seq + e.seq_delta);
                from = last.max().map_or(from, start);
                print(&pb::StreamEventsResponse {
                    run_events: vec![events],
                    ..pb::StreamEventsResponse::default()
                })?;
            }
            if !args.follow {
                return Ok(());
            }
        }
        let mut journal = Journal::open(link, source, from, args.follow).in_name_of(&args.name);
        while let Some(mut message) = journal.next().await? {
            keep_since(&mut message, args.since);
            print(&message)?;
            journal.printed().await?;
        }
        Ok(())
    });
    future::try_join_all(read).await.map(drop)
}

/// Removes events before that time.
fn keep_since(message: &mut pb::StreamEventsResponse, since: Option<SystemTime>) {
    let Some(since) = since else { return };
    for events in &mut message.run_events {
        let base_time = events.base_time;
        events.events.retain(|event| {
            let at = SystemTime::try_from(client::time_of(base_time, event));
            at.is_ok_and(|at| at >= since)
        });
    }
}

/// Returns the newest events up to the head, a message each.
async fn newest(
    mut journal: Journal,
    most: u64,
    since: Option<SystemTime>,
) -> Result<VecDeque<pb::RunEvents>, Failure> {
    let mut last = VecDeque::new();
    while let Some(mut message) = journal.next().await? {
        keep_since(&mut message, since);
        for events in message.run_events {
            for event in &events.events {
                if event.payload.as_ref().and_then(event_words).is_none() {
                    continue;
                }
                last.push_back(pb::RunEvents {
                    run_id: events.run_id.clone(),
                    attempt: events.attempt,
                    base_seq: events.base_seq,
                    base_time: events.base_time,
                    events: vec![event.clone()],
                });
                if last.len() as u64 > most {
                    last.pop_front();
                }
            }
        }
    }
    Ok(last)
}

/// Runs that are read in one stream.
pub(crate) enum Source {
    Run(String),
    /// All runs of a filter, present and later.
    Filter(Box<pb::RunFilter>),
}

impl Source {
    /// Returns the typed sources: some runs, each with a stream of its own, or a filter.
    pub(crate) async fn all(link: &Link, which: &WhichRuns) -> Result<Vec<Self>, Failure> {
        if which.runs.is_empty() {
            return Ok(vec![Self::Filter(Box::new(pb::RunFilter {
                label_selector: which.labels.selector(),
                ..pb::RunFilter::default()
            }))]);
        }
        let ids = link.run_ids(&which.runs).await?;
        Ok(ids.into_iter().map(Self::Run).collect())
    }

    /// Whether each line has to name its run.
    pub(crate) fn are_many(sources: &[Self]) -> bool {
        !matches!(sources, [Self::Run(_)])
    }
}

/// Returns the start after the event with this seq; 0: from the first.
pub(crate) fn start(after_seq: u64) -> Start {
    match after_seq {
        0 => Start::Beginning,
        seq => Start::AfterSeq(seq),
    }
}

fn lines(message: &pb::StreamEventsResponse, are_many: bool) -> String {
    let mut text = String::new();
    for events in &message.run_events {
        for event in &events.events {
            let seq = events.base_seq + event.seq_delta;
            let at = client::time_of(events.base_time, event);
            let payload = event.payload.as_ref();
            if let Some(line) = payload.and_then(|p| event_line(seq, &at.to_string(), p)) {
                if are_many {
                    text.push_str(&events.run_id);
                    text.push(' ');
                }
                text.push_str(&terminal_text::one_line(&line));
                text.push('\n');
            }
        }
    }
    text
}

/// Events of a run, or of many, up to the head at the start of reading, or until the run has ended.
pub(crate) struct Journal {
    pub(crate) reader: EventReader,
    are_many: bool,
    /// Whether printed events are acknowledged.
    acks: bool,
}

impl Journal {
    pub(crate) fn open(link: &Link, source: &Source, start: Start, follow: bool) -> Self {
        let (mut reader, are_many) = match source {
            Source::Run(run) => (EventReader::new(&link.connection, run, start), false),
            Source::Filter(filter) => (
                EventReader::of_many(&link.connection, *filter.clone(), start),
                true,
            ),
        };
        if !follow {
            reader.request.until = pb::StreamUntil::Head.into();
        }
        Self {
            reader,
            are_many,
            acks: false,
        }
    }

    /// Reads as a consumer, where one is given.
    pub(crate) fn in_name_of(mut self, name: &AsConsumer) -> Self {
        self.reader.request.consumer = name.consumer.clone().unwrap_or_default();
        self.acks = name.ack;
        self
    }

    /// Acknowledges the returned events, which are printed, where that is requested.
    pub(crate) async fn printed(&self) -> Result<(), Failure> {
        if self.acks {
            self.reader.ack().await.map_err(refused)?;
        }
        Ok(())
    }

    pub(crate) async fn next(&mut self) -> Result<Option<pb::StreamEventsResponse>, Failure> {
        loop {
            match self.reader.next().await {
                // Other runs continue.
                Err(failure) if self.are_many && failure.is("JOURNAL_UNREADABLE") => {
                    note(&failure);
                }
                Ok(Some(message)) => {
                    for node in &message.nodes {
                        note(&sentence::of("streamedNode", node));
                    }
                    return Ok(Some(message));
                }
                read => return read.map_err(refused),
            }
        }
    }
}
