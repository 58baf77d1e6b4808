use super::page;
use crate::{
    convert::{run::tests::of_size, token::PageToken},
    limits,
};
use kennel_lifecycle::{NodeId, RunId};
use kennel_supervisor::{Age, ListFilter, RunPage, RunView, UnreadRow};
use std::time::Duration;

fn of(runs: Vec<RunView>) -> RunPage {
    RunPage {
        runs,
        ..RunPage::default()
    }
}

/// A row that cannot be read, made at the same time as all runs here.
fn unread(run: u128) -> UnreadRow {
    UnreadRow {
        attempt: 1,
        owner: "uid:0".to_owned(),
        run: RunId::from_u128(run),
        node: NodeId::from_u128(1),
        created: of_size(1, 1).created,
        age: Age(i64::try_from(run).expect("it is small")),
        grace: Duration::ZERO,
        has_ended: false,
        why: "spec: unknown variant".to_owned(),
    }
}

// promise: L-3
#[test]
fn page_is_cut_at_its_size_and_resumed() {
    let filter = ListFilter::default();
    let views: Vec<RunView> = (1..=5).map(|n| of_size(n, 150_000)).collect();
    let first = page(of(views), &filter);
    assert_eq!(first.runs.len(), 3);
    let token = PageToken::decode(&first.next_page_token, &filter).expect("our own");
    assert_eq!(token.0.run, RunId::from_u128(3));
}

#[test]
fn a_page_has_at_least_one_run() {
    let huge = vec![of_size(1, 2 * limits::PAGE_BYTES_MAX), of_size(2, 1)];
    let first = page(of(huge), &ListFilter::default());
    assert_eq!(first.runs.len(), 1);
    assert!(!first.next_page_token.is_empty());
}

#[test]
fn the_last_page_has_no_token() {
    let last = page(of(vec![of_size(1, 1)]), &ListFilter::default());
    assert_eq!((last.runs.len(), last.next_page_token.as_str()), (1, ""));
}

// promise: I-76a
#[test]
fn unreadable_run_is_on_one_page_only() {
    let filter = ListFilter::default();
    let views = (1..=5).rev().map(|n| of_size(n, 150_000)).collect();
    let first = page(
        RunPage {
            unread: vec![unread(4), unread(2), unread(1)],
            ..of(views)
        },
        &filter,
    );
    let token = PageToken::decode(&first.next_page_token, &filter).expect("our own");
    assert_eq!(token.0.run, RunId::from_u128(3));
    let ids: Vec<_> = first
        .unreadable_runs
        .iter()
        .map(|run| run.run_id.clone())
        .collect();
    assert_eq!(ids, [RunId::from_u128(4).to_string()]);
    assert_eq!(first.unreadable_runs[0].reason, "spec: unknown variant");
}
