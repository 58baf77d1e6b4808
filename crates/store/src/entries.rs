//! Column `entries`: the entries of a run, written with its end, for readers without its journal.
//!
//! The text is a JSON object with names. It is bounded: the first entries and the newest are listed, and the number of
//! those between them is given.

use kennel_lifecycle::{Entry, Timestamp};
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, fmt::Write as _, sync::Arc};

/// Most bytes of the column.
pub const ENTRIES_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of the first entries that are listed; the rest is for the newest.
const FIRST_BYTES_MAX: usize = 16 * 1024;
/// Bytes of everything but entries: four names, and seven numbers of at most 20 digits.
const FRAME_BYTES_MAX: usize = 512;
const NEWEST_BYTES_MAX: usize = ENTRIES_BYTES_MAX - FIRST_BYTES_MAX - FRAME_BYTES_MAX;

/// The text of the column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct EntriesText(Arc<str>);

/// The entries of an ended run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEntries {
    /// The listed entries, in order, without the run's end: the other columns have that.
    pub entries: Vec<RunEntry>,
    /// The entries that are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
    /// Position of the run's end; absent: it was not known yet, because the disk refused entries, which are missing
    /// after the listed ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EntriesEnd>,
    /// Whether the lengths are exact: no bytes were lost uncounted.
    pub counted: bool,
}

/// One entry with its position in the run's events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEntry {
    /// Its position.
    #[serde(flatten)]
    pub place: EntryPlace,
    /// The entry.
    pub entry: Entry,
}

/// Position of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryPlace {
    /// Its seq among the run's events.
    pub seq: u64,
    /// Time of the event.
    pub at: Timestamp,
    /// Its attempt. The column omits the first.
    #[serde(default = "first_attempt", skip_serializing_if = "is_first_attempt")]
    pub attempt: u32,
    /// Length of standard output and of standard error before it. The column omits zeros.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub lens: [u64; 2],
}

fn first_attempt() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_first_attempt(attempt: &u32) -> bool {
    *attempt == 1
}

fn is_nothing(lens: &[u64; 2]) -> bool {
    *lens == [0; 2]
}

/// Entries between the first and the newest that are not listed. Output may lie between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// Seq of the first of them.
    pub first_seq: u64,
    /// Seq of the last of them.
    pub last_seq: u64,
    /// Number of these entries.
    pub count: u64,
}

/// Position of a run's end among its events: it is the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntriesEnd {
    /// Its seq.
    pub seq: u64,
    /// Length of standard output and of standard error.
    pub lens: [u64; 2],
}

/// The entries of a run as they are added, within the bound of the column.
#[derive(Clone, Debug, Default)]
pub struct EntryList {
    /// JSON of the first ones, with commas.
    first: String,
    /// JSON of each of the newest, with its seq.
    newest: VecDeque<(u64, Box<str>)>,
    newest_bytes: usize,
    omitted: Option<Omitted>,
}

impl EntriesText {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the text.
    ///
    /// # Errors
    ///
    /// If the text is not as this version writes it; the error gives the reason.
    pub fn read(&self) -> Result<RunEntries, String> {
        crate::json::read("entries", &self.0)
    }
}

impl From<String> for EntriesText {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<EntriesText> for String {
    fn from(text: EntriesText) -> Self {
        text.0.as_ref().to_owned()
    }
}

impl EntryList {
    /// Adds an entry, given as its JSON: its writer has that already.
    pub fn push(&mut self, place: EntryPlace, entry: &str) {
        let seq = place.seq;
        // The JSON object without its closing brace.
        let mut json = crate::json::write(&place);
        json.pop();
        let _ = write!(json, ",\"entry\":{entry}}}");
        let is_first = self.newest.is_empty() && self.omitted.is_none();
        if is_first && self.first.len() + json.len() < FIRST_BYTES_MAX {
            push_item(&mut self.first, &json);
            return;
        }
        self.newest_bytes += json.len() + 1;
        self.newest.push_back((seq, json.into()));
        while self.newest_bytes > NEWEST_BYTES_MAX {
            self.omit_oldest();
        }
    }

    fn omit_oldest(&mut self) {
        let Some((seq, json)) = self.newest.pop_front() else {
            return;
        };
        self.newest_bytes -= json.len() + 1;
        let omitted = self.omitted.get_or_insert(Omitted {
            first_seq: seq,
            last_seq: seq,
            count: 0,
        });
        omitted.last_seq = seq;
        omitted.count += 1;
    }

    /// Returns the column of a run that ends at this position; absent: the position is not known.
    pub fn text(&self, end: Option<EntriesEnd>, counted: bool) -> EntriesText {
        let mut text = format!("{{\"entries\":[{}", self.first);
        let mut is_first = self.first.is_empty();
        for (_, json) in &self.newest {
            if !std::mem::take(&mut is_first) {
                text.push(',');
            }
            text.push_str(json);
        }
        text.push(']');
        if let Some(omitted) = &self.omitted {
            let _ = write!(text, ",\"omitted\":{}", crate::json::write(omitted));
        }
        if let Some(end) = &end {
            let _ = write!(text, ",\"end\":{}", crate::json::write(end));
        }
        let _ = write!(text, ",\"counted\":{counted}}}");
        EntriesText(text.into())
    }
}

fn push_item(list: &mut String, json: &str) {
    if !list.is_empty() {
        list.push(',');
    }
    list.push_str(json);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(seq: u64) -> EntryPlace {
        EntryPlace {
            seq,
            at: Timestamp(i64::MIN),
            attempt: u32::MAX,
            lens: [u64::MAX; 2],
        }
    }

    const END: EntriesEnd = EntriesEnd {
        seq: u64::MAX,
        lens: [u64::MAX; 2],
    };

    fn warning(bytes: usize) -> (Entry, String) {
        let message = "w".repeat(bytes);
        let entry = Entry::Warning { message };
        let json = crate::json::write(&entry);
        (entry, json)
    }

    #[test]
    fn entry_list_json_format_is_stable() {
        let mut list = EntryList::default();
        let end = EntriesEnd {
            seq: 4,
            lens: [6, 7],
        };
        let empty = r#"{"entries":[],"counted":true}"#;
        assert_eq!(list.text(None, true).as_str(), empty);
        for (seq, attempt, lens) in [(1, 1, [0, 0]), (3, 2, [1, 2])] {
            let place = EntryPlace {
                seq,
                at: Timestamp(-5),
                attempt,
                lens,
            };
            list.push(place, "\"started\"");
        }
        let text = list.text(Some(end), false);
        assert_eq!(
            text.as_str(),
            r#"{"entries":[{"seq":1,"at":-5,"entry":"started"},{"seq":3,"at":-5,"attempt":2,"lens":[1,2],"entry":"started"}],"end":{"seq":4,"lens":[6,7]},"counted":false}"#
        );
        let read = text.read().unwrap();
        assert_eq!(read.entries[1].entry, Entry::Started);
        assert_eq!(serde_json::to_string(&read).unwrap(), text.as_str());
    }

    /// The column has its bound for entries of any size, and listed and omitted entries are all of them.
    // promise: O-46
    #[test]
    fn first_and_newest_entries_fit_the_bound() {
        for bytes in [
            0, 100, 5_000, 16_000, 17_000, 30_000, 48_000, 70_000, 127_000,
        ] {
            let (entry, json) = warning(bytes);
            let mut list = EntryList::default();
            for seq in 1..=2_000 {
                list.push(place(seq), &json);
                if seq > 50 && seq < 1_990 {
                    continue;
                }
                let text = list.text(Some(END), false);
                assert!(text.as_str().len() <= ENTRIES_BYTES_MAX, "{bytes} {seq}");
                let read = text.read().unwrap();
                let mut expected = 1;
                let mut omitted = read.omitted;
                for listed in &read.entries {
                    assert_eq!(listed.entry, entry);
                    if let Some(gap) = omitted.take_if(|gap| gap.last_seq < listed.place.seq) {
                        assert_eq!(gap.first_seq, expected);
                        assert_eq!(gap.count, gap.last_seq - gap.first_seq + 1);
                        expected = gap.last_seq + 1;
                    }
                    assert_eq!(listed.place, place(expected));
                    expected += 1;
                }
                if let Some(gap) = omitted {
                    assert_eq!((gap.first_seq, gap.last_seq), (expected, seq));
                    expected = seq + 1;
                }
                assert_eq!(expected, seq + 1, "{bytes}");
                if seq == 2_000 && bytes <= 5_000 {
                    assert!(read.entries[0].place.seq == 1 && omitted.is_none());
                    assert!(text.as_str().len() > ENTRIES_BYTES_MAX / 2);
                }
            }
        }
    }
}
