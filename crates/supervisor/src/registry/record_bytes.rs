//! Bytes of the rows of owners in the database: those of earlier servers are summed up once, and then each change is
//! added.

use super::Shared;
use crate::{base::calls::CallError, record::node_store::read};
use kennel_store::StoreError;
use parking_lot::Mutex;
use std::{collections::HashMap, num::NonZeroU64};

/// Bytes by owner.
#[derive(Debug, Default)]
pub(crate) struct RecordBytes(Mutex<HashMap<String, u64>>);

impl RecordBytes {
    /// Counts so many bytes more.
    pub(crate) fn add(&self, owner: &str, bytes: u64) {
        self.change(owner, 0, bytes);
    }

    /// Counts bytes that have replaced others.
    pub(crate) fn change(&self, owner: &str, before: u64, after: u64) {
        let mut owners = self.0.lock();
        match owners.get_mut(owner) {
            Some(sum) => *sum = sum.saturating_add(after).saturating_sub(before),
            None => drop(owners.insert(owner.to_owned(), after.saturating_sub(before))),
        }
    }

    fn check(&self, owner: &str, most: Option<NonZeroU64>) -> Result<(), CallError> {
        match most.map(NonZeroU64::get) {
            Some(most) if self.0.lock().get(owner).is_some_and(|sum| *sum >= most) => {
                Err(CallError::QuotaExceeded {
                    what: "bytes of records of this owner".into(),
                    limit: most,
                })
            }
            _ => Ok(()),
        }
    }
}

impl Shared {
    /// Checks that another record of this owner may be made.
    pub(crate) fn check_records(&self, owner: &str) -> Result<(), CallError> {
        let most = self.config.quotas.record_bytes(owner);
        self.record_bytes.check(owner, most)
    }

    /// Adds the rows that are in the database already: those that were made since this server began count twice until
    /// the next one begins.
    pub(crate) async fn add_stored_records(&self) -> Result<(), StoreError> {
        for (owner, bytes) in read!(self.store, record_bytes(self.config.node))? {
            self.record_bytes.add(&owner, bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: I-132
    #[test]
    fn record_bytes_are_limited_per_owner() {
        let (bytes, most) = (RecordBytes::default(), NonZeroU64::new(100));
        bytes.add("team", 60);
        bytes.change("team", 10, 49);
        assert!(bytes.check("team", most).is_ok());
        bytes.add("team", 1);
        let full = bytes.check("team", most);
        assert!(matches!(
            full,
            Err(CallError::QuotaExceeded { limit: 100, .. })
        ));
        assert!(bytes.check("other", most).is_ok());
        assert!(bytes.check("team", None).is_ok());
        bytes.change("team", 50, 0);
        assert!(bytes.check("team", most).is_ok());
    }
}
