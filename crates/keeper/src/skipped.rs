//! Names of a later version in messages, which a reader has passed over.

use crate::values::{KeeperEvent, SkippedBy};
use std::collections::BTreeSet;

/// Most names that are reported.
const NAMES_MAX: usize = 64;

/// The names that were reported.
#[derive(Debug, Default)]
pub(crate) struct SkippedNames(BTreeSet<(SkippedBy, String)>);

impl SkippedNames {
    /// Returns the report of a name; absent: it was reported, or too many were.
    pub(crate) fn report(&mut self, reader: SkippedBy, name: &str) -> Option<KeeperEvent> {
        let name = name.to_owned();
        let is_new = self.0.len() < NAMES_MAX && self.0.insert((reader, name.clone()));
        is_new.then_some(KeeperEvent::Skipped { reader, name })
    }
}
