//! The life of a database: a restored copy may lack acknowledged writes of the earlier life.
//!
//! Writes and reads go to the life in which the node was acquired. In another one nothing is done until the node is
//! acquired there: only then the missing writes are known (INV-21).

use kennel_lifecycle::KeeperEpoch;
use parking_lot::Mutex;
use std::{fmt, io, time::Duration};

/// A life of the database: from its start, or from its restoring, to the next. A later one may lack writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life(String);

impl Life {
    /// Returns the life with this name.
    pub fn named(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// State of a node in its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNode {
    /// The life of the database.
    pub life: Life,
    /// The node's generation; absent: the store does not know the node.
    pub generation: Option<i64>,
    /// The keeper that has or had its lease.
    pub keeper_epoch: Option<KeeperEpoch>,
    /// Time left of that lease.
    pub lease_left: Duration,
}

/// The lives that connections of one store have found.
#[derive(Debug, Default)]
pub(crate) struct Lives(Mutex<SeenLives>);

#[derive(Debug, Default)]
struct SeenLives {
    /// The life found last.
    last: Option<Life>,
    /// The life in which the node was acquired.
    taken: Option<Life>,
}

impl Lives {
    /// Records that a connection has found this life.
    pub(crate) fn meet(&self, life: &Life) {
        self.0.lock().last = Some(life.clone());
    }

    /// Records that the node was acquired in this life.
    pub(crate) fn take(&self, life: Life) {
        let mut seen = self.0.lock();
        seen.last = Some(life.clone());
        seen.taken = Some(life);
    }

    /// Fails in a life in which the node was not acquired.
    pub(crate) fn check(&self) -> Result<(), sqlx::Error> {
        let seen = self.0.lock();
        match (&seen.taken, &seen.last) {
            (Some(taken), Some(last)) if taken != last => Err(sqlx::Error::Io(io::Error::other(
                "it was started or restored, and the node is not acquired there yet",
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_refused_until_new_database_is_acquired() {
        let lives = Lives::default();
        lives.meet(&Life::named("a"));
        assert!(lives.check().is_ok(), "it is taken over in none yet");
        lives.take(Life::named("a"));
        assert!(lives.check().is_ok());
        lives.meet(&Life::named("b"));
        assert!(lives.check().is_err());
        lives.take(Life::named("b"));
        assert!(lives.check().is_ok());
    }
}
