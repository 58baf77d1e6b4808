use super::*;
use crate::convert::run::tests::of_size;
use kennel_lifecycle::RunId;

#[test]
fn page_is_cut_at_its_size_and_resumed() {
    let filter = ListFilter::default();
    let views: Vec<RunView> = (1..=5).map(|n| of_size(n, 150_000)).collect();
    let first = page(views, None, &filter);
    assert_eq!(first.runs.len(), 3);
    let token = PageToken::decode(&first.next_page_token, &filter).expect("our own");
    assert_eq!(token.0.run, RunId::from_u128(3));
}

#[test]
fn a_page_has_at_least_one_run() {
    let huge = vec![of_size(1, 2 * limits::PAGE_BYTES_MAX), of_size(2, 1)];
    let first = page(huge, None, &ListFilter::default());
    assert_eq!(first.runs.len(), 1);
    assert!(!first.next_page_token.is_empty());
}

#[test]
fn the_last_page_has_no_token() {
    let last = page(vec![of_size(1, 1)], None, &ListFilter::default());
    assert_eq!((last.runs.len(), last.next_page_token.as_str()), (1, ""));
}
