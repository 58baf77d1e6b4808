//! Facets by the entries of a run.

use kennel_lifecycle::{
    AnnotationChange, AnnotationRefusal, Annotations, Entry, Facets, Timestamp,
};

fn set(key: &str, value: &str, expected_version: Option<u64>) -> AnnotationChange {
    AnnotationChange {
        set: [(key.to_owned(), value.to_owned())].into(),
        expected_version,
        ..AnnotationChange::default()
    }
}

fn entry(annotations: &Annotations, change: AnnotationChange) -> Entry {
    let entry = annotations.change(change, "uid:0").expect("it may be made");
    entry.expect("it changes something")
}

#[test]
fn facets_are_the_fold_of_their_entries() {
    let mut facets = Facets::default();
    let mut entries = Vec::new();
    for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
        let entry = entry(&facets.annotations, set(key, value, None));
        assert!(facets.fold(Timestamp(1), 1, &entry));
        // The keeper and the journal may report it twice.
        assert!(!facets.fold(Timestamp(1), 1, &entry));
        entries.push(entry);
    }
    let again = Facets::of(entries.iter().map(|entry| (Timestamp(1), 1, entry)));
    assert_eq!(again, facets);
    assert_eq!((facets.revision, facets.annotations.version), (3, 3));
    let older = Facets::of(entries[..1].iter().map(|entry| (Timestamp(1), 1, entry)));
    assert_eq!(older.clone().newest(facets.clone()), facets);
    assert_eq!(facets.clone().newest(older), facets);
}

#[test]
fn repeat_of_a_change_is_made_once() {
    let mut facets = Facets::default();
    let change = set("a", "1", Some(0));
    let first = entry(&facets.annotations, change.clone());
    facets.fold(Timestamp(1), 1, &first);
    assert_eq!(facets.annotations.change(change.clone(), "uid:0"), Ok(None));
    // Another change came between: it is no repeat any more.
    let second = entry(&facets.annotations, set("b", "2", Some(1)));
    facets.fold(Timestamp(2), 1, &second);
    let refused = facets.annotations.change(change, "uid:0");
    let version = AnnotationRefusal::Version {
        expected: 0,
        present: 2,
    };
    assert_eq!(refused, Err(version));
}
