//! A run's journal as the command line reads it, to its present head or on until the run has ended; and `events`.

use super::{
    event_line::event_line,
    link::{Link, print, print_exact, refused},
};
use crate::{
    args::{AsConsumer, EventsArgs, Format, WhichRuns},
    failure::{Failure, note},
    terminal_text,
};
use kennel_client as client;
use kennel_client::{EventReader, Start};
use kennel_proto::{json, pb};

pub(crate) async fn events(link: &Link, args: EventsArgs) -> Result<(), Failure> {
    let journal = Journal::open(link, &args.which, start(args.after_seq), args.follow);
    let mut journal = journal.in_name_of(args.name);
    while let Some(message) = journal.next().await? {
        match link.format {
            Format::Json => print_exact(&(json::to_string(&message) + "\n"))?,
            Format::Text => print(&lines(&message, args.which.run.is_none()))?,
        }
        journal.printed().await?;
    }
    Ok(())
}

/// After the event with this seq; 0: from the first.
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

/// Events of a run, or of many, up to the head when reading began, or until the run has ended.
pub(crate) struct Journal {
    reader: EventReader,
    are_many: bool,
    /// Whether what is printed is acknowledged.
    acks: bool,
}

impl Journal {
    pub(crate) fn open(link: &Link, which: &WhichRuns, start: Start, follow: bool) -> Self {
        let reader = match &which.run {
            Some(run) => EventReader::new(&link.connection, run, start),
            None => {
                let filter = pb::RunFilter {
                    labels: which.labels.iter().cloned().collect(),
                    ..pb::RunFilter::default()
                };
                EventReader::of_many(&link.connection, filter, start)
            }
        };
        Self {
            reader: if follow { reader } else { reader.until_head() },
            are_many: which.run.is_none(),
            acks: false,
        }
    }

    /// The same in the name of a consumer, where one is named.
    pub(crate) fn in_name_of(self, name: AsConsumer) -> Self {
        let reader = match name.consumer {
            Some(consumer) => self.reader.in_name_of(consumer),
            None => self.reader,
        };
        Self {
            reader,
            acks: name.ack,
            ..self
        }
    }

    /// What was given is printed: it is acknowledged, where that is wanted.
    pub(crate) async fn printed(&self) -> Result<(), Failure> {
        if self.acks {
            self.reader.ack().await.map_err(refused)?;
        }
        Ok(())
    }

    /// The same with output in this view.
    pub(crate) fn viewed(self, view: pb::OutputView) -> Self {
        let reader = self.reader.viewed(view);
        Self { reader, ..self }
    }

    /// The same of these kinds alone, Lifecycle among them.
    pub(crate) fn of_kinds(self, kinds: Vec<pb::EventKind>) -> Self {
        let reader = self.reader.of_kinds(kinds);
        Self { reader, ..self }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<pb::StreamEventsResponse>, Failure> {
        loop {
            match self.reader.next().await {
                // The others go on.
                Err(failure) if self.are_many && failure.is("JOURNAL_UNREADABLE") => {
                    note(&failure);
                }
                read => return read.map_err(refused),
            }
        }
    }
}
