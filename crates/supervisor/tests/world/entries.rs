//! The entries in the row of an ended run agree with its journal.

use kennel_journal::{Item, Kind, Position, Reader};
use kennel_lifecycle::Entry;
use kennel_store::RunRow;
use std::path::Path;

/// Panics where row and journal differ. A journal that cannot be read, or that was not written to its end, has less.
pub(super) fn compare(data_dir: &Path, row: &RunRow) {
    let run = row.new.run;
    let Some(text) = &row.entries else { return };
    let read = text.read().unwrap();
    let dir = data_dir.join("runs").join(run.to_string());
    let Some(items) = items(&dir).filter(|_| read.omitted.is_none()) else {
        return;
    };
    let mut listed = read.entries.iter();
    let mut lens = [0, 0];
    let mut last = None;
    for item in items {
        let entry = match item {
            Item::Gap(gap) => {
                lens = gap.ends;
                continue;
            }
            Item::Entry(entry) => entry,
        };
        match entry.kind {
            Kind::Stdout => lens[0] += entry.data.len() as u64,
            Kind::Stderr => lens[1] += entry.data.len() as u64,
            Kind::Lifecycle => {
                let said: Entry = serde_json::from_slice(&entry.data).unwrap();
                last = Some((entry.seq, lens, said.clone()));
                let is_listed = listed.len() > 0 || read.end.is_some();
                if !is_listed || matches!(said, Entry::Ended(_)) {
                    continue;
                }
                let Some(found) = listed.next() else {
                    panic!("{run}: the row lacks entry {}: {said:?}", entry.seq);
                };
                let place = (found.place.seq, found.place.attempt, found.place.lens);
                assert_eq!(place, (entry.seq, entry.attempt, lens), "{run}: {said:?}");
                assert_eq!(found.entry, said, "{run}: entry {}", entry.seq);
            }
        }
    }
    // A journal without an end has the first of the row's entries.
    if let Some((seq, lens, Entry::Ended(outcome))) = last {
        assert_eq!(listed.next(), None, "{run}");
        if let Some(end) = read.end {
            assert_eq!((end.seq, end.lens), (seq, lens), "{run}");
        }
        assert_eq!(row.outcome.as_ref(), Some(&*outcome), "{run}");
    }
}

fn items(dir: &Path) -> Option<Vec<Item>> {
    let mut reader = Reader::open_ended(dir, Position::default()).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    // The caller may be inside a runtime: a new thread is not.
    let read = std::thread::spawn(move || {
        runtime.unwrap().block_on(async {
            let mut items = Vec::new();
            while let Ok(Some(more)) = reader.next(1 << 20).await {
                items.extend(more);
            }
            items
        })
    });
    read.join().ok()
}
