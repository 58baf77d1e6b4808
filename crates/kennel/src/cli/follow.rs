//! A run's journal as the command line reads it, to its present head or on until the run has ended; and `events`.

use super::{
    event_line::event_line,
    link::{Link, print, refused},
};
use crate::{
    args::{EventsArgs, Format},
    failure::Failure,
};
use kennel_edge::{
    client::{self, EventReader, Start},
    json, pb,
};

pub(crate) async fn events(link: &Link, args: EventsArgs) -> Result<(), Failure> {
    let mut journal = Journal::open(link, &args.run, start(args.after_seq), args.follow);
    while let Some(message) = journal.next().await? {
        match link.format {
            Format::Json => print(&(json::to_string(&message) + "\n"))?,
            Format::Text => print(&lines(&message))?,
        }
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

fn lines(message: &pb::StreamEventsResponse) -> String {
    let mut text = String::new();
    for events in &message.run_events {
        for event in &events.events {
            let seq = events.base_seq + event.seq_delta;
            let at = client::time_of(events.base_time, event);
            let payload = event.payload.as_ref();
            if let Some(line) = payload.and_then(|p| event_line(seq, &at.to_string(), p)) {
                text.push_str(&line);
                text.push('\n');
            }
        }
    }
    text
}

/// A run's events up to the head that it had when reading began, or until it has ended.
pub(crate) struct Journal {
    reader: EventReader,
}

impl Journal {
    pub(crate) fn open(link: &Link, run: &str, start: Start, follow: bool) -> Self {
        let reader = EventReader::new(&link.connection, run, start);
        let reader = if follow { reader } else { reader.until_head() };
        Self { reader }
    }

    /// The same with output in this view.
    pub(crate) fn viewed(self, view: pb::OutputView) -> Self {
        let reader = self.reader.viewed(view);
        Self { reader }
    }

    /// The same of these kinds alone, Lifecycle among them.
    pub(crate) fn of_kinds(self, kinds: Vec<pb::EventKind>) -> Self {
        let reader = self.reader.of_kinds(kinds);
        Self { reader }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<pb::StreamEventsResponse>, Failure> {
        self.reader.next().await.map_err(refused)
    }
}
