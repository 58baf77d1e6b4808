//! Each invariant is cited by its number in the code that keeps it, and no code cites one that is not there.

use super::source::shipped;
use kennel_tests::programs;
use std::{collections::BTreeSet, fs};

/// Numbers that follow `INV-`.
fn cited(text: &str) -> BTreeSet<u32> {
    let after = text.split("INV-").skip(1);
    let digits = after.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit());
        &rest[..end.unwrap_or(rest.len())]
    });
    digits.filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn code_cites_each_invariant_and_no_other() {
    let page = programs::repository().join("docs/internals/invariants.md");
    let listed = cited(&fs::read_to_string(page).expect("the page is there"));
    assert!(listed.len() > 20, "invariants are not recognised");
    let code: BTreeSet<u32> = shipped().iter().flat_map(|s| cited(&s.text)).collect();
    // The database keeps the tenth by its CHECKs.
    let kept_elsewhere = BTreeSet::from([10]);
    let missing: BTreeSet<_> = &(&listed - &code) - &kept_elsewhere;
    assert_eq!(missing, BTreeSet::new(), "cited nowhere");
    assert_eq!(&code - &listed, BTreeSet::new(), "not listed");
}

#[test]
fn numbers_are_read_to_their_last_digit() {
    assert_eq!(cited("INV-1, (INV-22) INV-x"), BTreeSet::from([1, 22]));
}
