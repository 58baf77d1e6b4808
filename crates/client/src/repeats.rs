//! Events that come again after a stream was opened anew.

use kennel_proto::pb::{self, event::Payload};
use std::collections::HashMap;

/// So many events of this seq: a line and the next one may have the same, where a batch of output has both.
type Seq = (u64, u32);

/// Drops events of many runs that came before, where their stream is opened anew at its last cursor.
#[derive(Debug, Default)]
pub struct Repeats {
    /// Last seq of each run since the last cursor.
    came: HashMap<String, Seq>,
    /// Up to here a run's events are repeated.
    skip: HashMap<String, Seq>,
}

impl Repeats {
    /// Notes that the stream is opened anew at its last cursor.
    pub fn begin_anew(&mut self) {
        for (run, (seq, count)) in self.came.drain() {
            let skip = self.skip.entry(run).or_default();
            match seq.cmp(&skip.0) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => skip.1 += count,
                std::cmp::Ordering::Greater => *skip = (seq, count),
            }
        }
    }

    /// Notes a cursor after everything that came.
    pub fn cover(&mut self) {
        self.came.clear();
    }

    /// Drops what came before from a message, except Snapshots and heartbeats. Whether anything new is left.
    pub fn drop_from(&mut self, message: &mut pb::StreamEventsResponse) -> bool {
        let mut has_new = false;
        for events in &mut message.run_events {
            let (base, run) = (events.base_seq, &events.run_id);
            events.events.retain(|event| {
                if let Some(Payload::Snapshot(_) | Payload::Heartbeat(_)) = event.payload {
                    return true;
                }
                let seq = base + event.seq_delta;
                note(&mut self.came, run, seq);
                let is_new = is_new(&mut self.skip, run, seq);
                has_new |= is_new;
                is_new
            });
        }
        message
            .run_events
            .retain(|events| !events.events.is_empty());
        has_new
    }
}

fn note(came: &mut HashMap<String, Seq>, run: &str, seq: u64) {
    match came.get_mut(run) {
        Some(last) if last.0 == seq => last.1 += 1,
        Some(last) => *last = (seq, 1),
        None => drop(came.insert(run.to_owned(), (seq, 1))),
    }
}

fn is_new(skip: &mut HashMap<String, Seq>, run: &str, seq: u64) -> bool {
    let Some(last) = skip.get_mut(run) else {
        return true;
    };
    if seq < last.0 {
        return false;
    }
    if seq == last.0 && last.1 > 0 {
        last.1 -= 1;
        return false;
    }
    if seq > last.0 {
        skip.remove(run);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(seqs: &[u64]) -> pb::StreamEventsResponse {
        let line = |seq: &u64| pb::Event {
            seq_delta: *seq,
            payload: Some(Payload::Line(pb::Line::default())),
            ..pb::Event::default()
        };
        pb::StreamEventsResponse {
            run_events: vec![pb::RunEvents {
                run_id: "run".to_owned(),
                events: seqs.iter().map(line).collect(),
                ..pb::RunEvents::default()
            }],
            ..pb::StreamEventsResponse::default()
        }
    }

    /// Returns what is left of events with these seqs.
    fn left(repeats: &mut Repeats, seqs: &[u64]) -> Vec<u64> {
        let mut message = message(seqs);
        let has_new = repeats.drop_from(&mut message);
        let of = |events: pb::RunEvents| events.events.into_iter().map(|event| event.seq_delta);
        let left: Vec<_> = message.run_events.into_iter().flat_map(of).collect();
        assert_eq!(has_new, !left.is_empty());
        left
    }

    #[test]
    fn line_before_gap_is_not_a_duplicate() {
        let mut repeats = Repeats::default();
        assert_eq!(left(&mut repeats, &[3, 4, 4]), [3, 4, 4]);
        // The unfinished line has the seq before the Gap.
        assert_eq!(left(&mut repeats, &[4, 9]), [4, 9]);
    }

    // promise: I-79
    #[test]
    fn reopened_stream_skips_delivered_events() {
        let mut repeats = Repeats::default();
        assert_eq!(left(&mut repeats, &[1, 2]), [1, 2]);
        repeats.cover();
        assert_eq!(left(&mut repeats, &[3, 4, 4]), [3, 4, 4]);
        repeats.begin_anew();
        // The reopened stream's first message has the cursor again.
        repeats.cover();
        assert_eq!(left(&mut repeats, &[3, 4]), [] as [u64; 0]);
        repeats.begin_anew();
        assert_eq!(left(&mut repeats, &[3]), [] as [u64; 0]);
        repeats.cover();
        assert_eq!(left(&mut repeats, &[4, 4, 4, 9]), [4, 9]);
        repeats.begin_anew();
        assert_eq!(left(&mut repeats, &[4, 4, 4, 9, 10]), [10]);
    }
}
