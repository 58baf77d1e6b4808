//! `logs` and `events`: reads a run's journal, to its present head or on until the run has ended.

use super::{
    event_line::event_line,
    link::{Link, print, refused},
    sink::Sink,
};
use crate::{
    args::{EventsArgs, Format, LogsArgs},
    failure::Failure,
};
use kennel_edge::{
    client::{EventReader, Start},
    json,
    pb::{self, event::Payload},
};

pub(crate) async fn logs(link: &Link, args: LogsArgs) -> Result<(), Failure> {
    let mut sink = Sink::default();
    let mut journal = Journal::open(link, &args.run, Start::Beginning, args.follow);
    while let Some(mut message) = journal.next().await? {
        if link.format == Format::Json {
            for events in &mut message.run_events {
                let is_output =
                    |e: &pb::Event| matches!(e.payload, Some(Payload::Output(_) | Payload::Gap(_)));
                events.events.retain(is_output);
            }
            message.run_events.retain(|e| !e.events.is_empty());
            if !message.run_events.is_empty() {
                print(&(json::to_string(&message) + "\n"))?;
            }
            continue;
        }
        for event in message.run_events.iter().flat_map(|e| &e.events) {
            match &event.payload {
                Some(Payload::Output(output)) => sink.write(output)?,
                Some(Payload::Gap(gap)) => sink.skip(gap),
                _ => {}
            }
        }
    }
    Ok(())
}

pub(crate) async fn events(link: &Link, args: EventsArgs) -> Result<(), Failure> {
    let start = match args.after_seq {
        0 => Start::Beginning,
        seq => Start::AfterSeq(seq),
    };
    let mut journal = Journal::open(link, &args.run, start, args.follow);
    while let Some(message) = journal.next().await? {
        match link.format {
            Format::Json => print(&(json::to_string(&message) + "\n"))?,
            Format::Text => print(&lines(&message))?,
        }
    }
    Ok(())
}

fn lines(message: &pb::StreamEventsResponse) -> String {
    let mut text = String::new();
    for events in &message.run_events {
        for event in &events.events {
            let seq = events.base_seq + event.seq_delta;
            let mut at = events.base_time.unwrap_or_default();
            let delta = event.time_delta.unwrap_or_default();
            at.seconds = at.seconds.saturating_add(delta.seconds);
            at.nanos = at.nanos.saturating_add(delta.nanos);
            at.normalize();
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
struct Journal {
    reader: EventReader,
    follow: bool,
    /// The head when reading began; not known before the first message.
    head: Option<u64>,
    reached: u64,
}

impl Journal {
    fn open(link: &Link, run: &str, start: Start, follow: bool) -> Self {
        Self {
            reader: EventReader::new(&link.connection, run, start),
            follow,
            head: None,
            reached: 0,
        }
    }

    async fn next(&mut self) -> Result<Option<pb::StreamEventsResponse>, Failure> {
        if !self.follow && self.head.is_some_and(|head| self.reached >= head) {
            return Ok(None);
        }
        let Some(message) = self.reader.next().await.map_err(refused)? else {
            return Ok(None);
        };
        for events in &message.run_events {
            for event in &events.events {
                self.reached = self.reached.max(events.base_seq + event.seq_delta);
                if let (None, Some(Payload::Snapshot(snapshot))) = (self.head, &event.payload) {
                    self.head = Some(snapshot.head_seq);
                }
            }
        }
        Ok(Some(message))
    }
}
