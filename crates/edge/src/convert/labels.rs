//! Selectors over labels, as two fields of a request.

use kennel_lifecycle::{Violation, labels::Selector};
use std::collections::BTreeMap;

/// Combines `exact`, each key with its value, and the requirements of `text`; `at` is the path of the message with the
/// two fields.
pub(super) fn selector(
    at: &str,
    exact: &BTreeMap<String, String>,
    text: &str,
    found: &mut Vec<Violation>,
) -> Selector {
    let mut selector = Selector::default();
    for (key, value) in exact {
        if let Err(wrong) = selector.require(key, value) {
            found.push(Violation::new(format!("{at}labels"), wrong.to_string()));
            break;
        }
    }
    if let Err(wrong) = text.parse().and_then(|more| selector.and(more)) {
        found.push(Violation::new(
            format!("{at}label_selector"),
            wrong.to_string(),
        ));
    }
    selector
}
