//! Versions that can meet: the levels of messages that a process speaks, and the kinds that it knows.

use super::{Message, ToKeeper, ToServer, ToShim};
use crate::values::Levels;
use serde::{Deserialize, Serialize};

/// Levels of the messages between server and keeper. The level rises only where a change cannot be a new field, value
/// or kind; two processes use the highest that both have.
pub(crate) const WIRE: Levels = Levels { min: 16, max: 16 };
/// Levels of the messages between keeper and shim. A shim of a former release lives for as long as its run.
pub(crate) const SHIM: Levels = Levels { min: 1, max: 1 };
/// Levels of the files that a keeper leaves to the next one.
pub(crate) const STATE: Levels = Levels { min: 1, max: 1 };

/// What one side can say and take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) speaks: Levels,
    /// Kinds that it takes.
    pub(crate) knows: Vec<String>,
}

impl Versions {
    /// Those of this process as a server.
    pub(crate) fn of_server() -> Self {
        Self::of::<ToServer>(WIRE)
    }

    /// Those of this process as a keeper.
    pub(crate) fn of_keeper() -> Self {
        Self::of::<ToKeeper>(WIRE)
    }

    /// Those of this process as a shim.
    pub(crate) fn of_shim() -> Self {
        Self::of::<ToShim>(SHIM)
    }

    fn of<T: Message>(speaks: Levels) -> Self {
        let knows = T::NAMES.iter().map(|kind| (*kind).to_owned()).collect();
        Self { speaks, knows }
    }

    /// Returns the kinds of this process that the other side does not know.
    pub(crate) fn missing<T: Message>(&self) -> Vec<&'static str> {
        let is_missing = |kind: &&str| !self.knows.iter().any(|known| known == kind);
        T::NAMES.iter().copied().filter(is_missing).collect()
    }
}

/// Returns the name of a message's kind, if it is one of those that the other side does not know.
pub(crate) fn unknown_kind<T: Message>(missing: &[&str], message: &T) -> Option<String> {
    let kind = message.name();
    missing.contains(&kind).then(|| kind.to_owned())
}
