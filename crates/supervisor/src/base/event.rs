//! Entries of a run in its journal: their stored form and their content.

use crate::base::calls::{CallError, Event, Payload};
use kennel_journal::{Fact, Item, Kind};
use kennel_lifecycle::{AttemptRecord, Entry, Facets, RunId};
use kennel_store::{EntryList, EntryPlace};

/// The journal's form of an entry.
pub(crate) fn encode(entry: &Entry) -> String {
    // Entries hold only numbers and strings, which JSON never refuses.
    serde_json::to_string(entry).unwrap_or_default()
}

/// Folds the journal's entries of one attempt. What is no entry is skipped: readers get the error.
pub(crate) fn record(facts: &[Fact], attempt: u32) -> AttemptRecord {
    let entries: Vec<_> = readable(facts)
        .map(|(fact, read)| (fact.entry.at, fact.entry.attempt, read))
        .collect();
    let entries = entries.iter().map(|(at, of, entry)| (*at, *of, entry));
    AttemptRecord::of(entries, attempt)
}

/// Folds the journal's entries into the run's facets.
pub(crate) fn facets(facts: &[Fact]) -> Facets {
    let entries: Vec<_> = readable(facts)
        .map(|(fact, read)| (fact.entry.at, fact.entry.attempt, read))
        .collect();
    Facets::of(entries.iter().map(|(at, of, entry)| (*at, *of, entry)))
}

/// Entries that the row of the run gets once the run has ended.
pub(crate) fn entry_list(facts: &[Fact]) -> EntryList {
    let mut list = EntryList::default();
    for (Fact { entry, lens }, read) in readable(facts) {
        let place = EntryPlace {
            seq: entry.seq,
            at: entry.at,
            attempt: entry.attempt,
            lens: *lens,
        };
        list.push(place, &encode(&read));
    }
    list
}

/// Returns the number of entries that this journal did not get, by its own entries.
pub(crate) fn summed(facts: &[Fact]) -> u64 {
    let events = readable(facts).map(|(_, entry)| match entry {
        Entry::EventsSummed { events } => events,
        _ => 0,
    });
    events.sum()
}

fn readable(facts: &[Fact]) -> impl Iterator<Item = (&Fact, Entry)> {
    let read = |fact: &Fact| serde_json::from_slice::<Entry>(&fact.entry.data).ok();
    facts
        .iter()
        .filter_map(move |fact| Some((fact, read(fact)?)))
}

/// Makes an event of an item of the journal.
pub(crate) fn decode(run: RunId, item: Item) -> Result<Event, CallError> {
    let entry = match item {
        Item::Entry(entry) => entry,
        Item::Gap(gap) => {
            return Ok(Event {
                seq: gap.last_seq,
                attempt: gap.attempt,
                at: gap.at,
                payload: Payload::Gap(gap),
            });
        }
    };
    let payload = match entry.kind {
        Kind::Lifecycle => {
            Payload::Lifecycle(serde_json::from_slice(&entry.data).map_err(|e| {
                CallError::JournalUnreadable {
                    run,
                    why: format!("entry {}: {e}", entry.seq),
                }
            })?)
        }
        Kind::Stdout => Payload::Output {
            stream: 1,
            offset: entry.offset,
            data: entry.data,
        },
        Kind::Stderr => Payload::Output {
            stream: 2,
            offset: entry.offset,
            data: entry.data,
        },
    };
    Ok(Event {
        seq: entry.seq,
        attempt: entry.attempt,
        at: entry.at,
        payload,
    })
}
