//! Facets of a run: what its clients and its output say of it beside its state. [`Facets::fold`] makes them of the run's
//! entries, over all attempts; the row has them as one value.

mod annotations;

pub use annotations::{AnnotationChange, AnnotationRefusal, Annotations};

use crate::{Entry, Timestamp};
use serde::{Deserialize, Serialize};

/// What is known of a run beside its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facets {
    /// Number of entries that have changed a facet: of two copies the one with more is the newer.
    pub revision: u64,
    /// Key and value pairs that clients and rules have set.
    pub annotations: Annotations,
}

impl Facets {
    /// The facets after these entries of a whole run: (time, attempt, entry), in order.
    pub fn of<'a>(entries: impl IntoIterator<Item = (Timestamp, u32, &'a Entry)>) -> Self {
        let mut facets = Self::default();
        for (at, attempt, entry) in entries {
            facets.fold(at, attempt, entry);
        }
        facets
    }

    /// Applies one entry. Returns whether it has changed a facet.
    pub fn fold(&mut self, _at: Timestamp, _attempt: u32, entry: &Entry) -> bool {
        let changed = match entry {
            Entry::Annotated {
                version,
                set,
                removed,
                ..
            } => self.annotations.apply(*version, set, removed),
            _ => false,
        };
        self.revision += u64::from(changed);
        changed
    }

    /// The newer of two copies.
    #[must_use]
    pub fn newest(self, other: Self) -> Self {
        if other.revision > self.revision {
            other
        } else {
            self
        }
    }
}
