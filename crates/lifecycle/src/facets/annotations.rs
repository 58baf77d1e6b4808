//! Annotations of a run: a bounded map that clients change by compare-and-set.

use crate::{Entry, Violation, labels, limits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The annotations of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// Number of changes so far.
    pub version: u64,
    /// The pairs.
    pub pairs: BTreeMap<String, String>,
}

/// A requested change of annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnotationChange {
    /// Pairs to set.
    pub set: BTreeMap<String, String>,
    /// Keys to remove; a key that is absent is no fault.
    pub remove: BTreeSet<String>,
    /// Version that the annotations must have; absent: any.
    pub expected_version: Option<u64>,
}

/// Reason why annotations were not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationRefusal {
    /// The annotations have changed since the caller read them.
    #[error("the annotations have version {present}, not {expected}")]
    Version {
        /// Version that the caller expects.
        expected: u64,
        /// Present version.
        present: u64,
    },
    /// The annotations would exceed the bounds of a run.
    #[error(
        "a run has at most {} annotations of at most {} bytes in all",
        limits::ANNOTATIONS_MAX,
        limits::ANNOTATIONS_BYTES_MAX
    )]
    TooLarge,
}

impl AnnotationChange {
    /// Checks keys and values, each by itself.
    pub fn check(&self, found: &mut Vec<Violation>) {
        let keys = self.set.keys().map(|key| ("set", key));
        let keys = keys.chain(self.remove.iter().map(|key| ("remove", key)));
        for (field, key) in keys {
            if let Err(error) = labels::check_key(key) {
                let field = format!("{field}[{key:?}]");
                found.push(Violation::new(field, error.to_string()));
            }
            if field == "remove" && self.set.contains_key(key) {
                let field = format!("remove[{key:?}]");
                found.push(Violation::new(field, "is in `set` too"));
            }
        }
        for (key, value) in &self.set {
            if value.len() > limits::ANNOTATION_VALUE_BYTES_MAX {
                let most = limits::ANNOTATION_VALUE_BYTES_MAX;
                let why = format!("must be at most {most} bytes");
                found.push(Violation::new(format!("set[{key:?}]"), why));
            }
        }
    }

    /// Whether nothing is to be set or removed.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    fn is_made_in(&self, pairs: &BTreeMap<String, String>) -> bool {
        let mut set = self.set.iter();
        set.all(|(key, value)| pairs.get(key) == Some(value))
            && !self.remove.iter().any(|key| pairs.contains_key(key))
    }
}

impl Annotations {
    /// Returns the entry that makes the change; none: the change is made already.
    ///
    /// The repeat of a change with an expected version finds the version after it, and its own pairs: the change is
    /// made already.
    ///
    /// # Errors
    ///
    /// The version differs, or there would be too many annotations.
    pub fn change(
        &self,
        change: AnnotationChange,
        by: &str,
    ) -> Result<Option<Entry>, AnnotationRefusal> {
        let is_made = change.is_made_in(&self.pairs);
        if let Some(expected) = change.expected_version
            && expected != self.version
            && !(is_made && expected.checked_add(1) == Some(self.version))
        {
            return Err(AnnotationRefusal::Version {
                expected,
                present: self.version,
            });
        }
        if is_made {
            return Ok(None);
        }
        let mut after = self.clone();
        after.apply(self.version + 1, &change.set, &change.remove);
        if after.pairs.len() > limits::ANNOTATIONS_MAX
            || after.bytes() > limits::ANNOTATIONS_BYTES_MAX
        {
            return Err(AnnotationRefusal::TooLarge);
        }
        Ok(Some(Entry::Annotated {
            version: after.version,
            set: change.set,
            removed: change.remove,
            by: by.to_owned(),
        }))
    }

    /// Returns the bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.pairs.iter().map(|(k, v)| k.len() + v.len()).sum()
    }

    /// Applies the change; returns whether it is later than those applied before.
    pub(super) fn apply(
        &mut self,
        version: u64,
        set: &BTreeMap<String, String>,
        removed: &BTreeSet<String>,
    ) -> bool {
        if version <= self.version {
            return false;
        }
        self.version = version;
        for key in removed {
            self.pairs.remove(key);
        }
        for (key, value) in set {
            self.pairs.insert(key.clone(), value.clone());
        }
        true
    }
}
