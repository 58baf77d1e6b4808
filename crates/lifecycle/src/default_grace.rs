//! Grace periods of runs whose spec names none.

use crate::{RunKind, limits};
use std::time::Duration;

/// The grace periods that a node gives: one for each kind that is named, and one for the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultGrace(Vec<(Option<RunKind>, Duration)>);

/// Grace periods that no node can give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefaultGraceError {
    /// More than a spec may name.
    #[error("a grace is at most 24h")]
    TooLong,
    /// Two for one kind.
    #[error("two graces for runs of kind {}", .0.name())]
    KindTwice(RunKind),
    /// Two for all other kinds.
    #[error("two graces without a kind")]
    Twice,
}

impl DefaultGrace {
    /// Adds a grace for runs of this kind; without a kind, for runs of all kinds that have none of their own.
    ///
    /// # Errors
    ///
    /// The grace is too long, or the kind has one.
    pub fn add(&mut self, kind: Option<RunKind>, grace: Duration) -> Result<(), DefaultGraceError> {
        if grace > limits::GRACE_MAX {
            return Err(DefaultGraceError::TooLong);
        }
        if self.0.iter().any(|(other, _)| *other == kind) {
            return Err(kind.map_or(DefaultGraceError::Twice, DefaultGraceError::KindTwice));
        }
        self.0.push((kind, grace));
        Ok(())
    }

    /// The grace of runs of this kind; absent: the node gives none.
    pub fn of(&self, kind: RunKind) -> Option<Duration> {
        let named = |wanted| self.0.iter().find(|(kind, _)| *kind == wanted);
        let found = named(Some(kind)).or_else(|| named(None));
        found.map(|(_, grace)| *grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: L-2a
    #[test]
    fn grace_of_a_kind_overrides_general_grace() {
        let mut node = DefaultGrace::default();
        assert_eq!(node.of(RunKind::Job), None);
        let seconds = Duration::from_secs;
        assert_eq!(node.add(Some(RunKind::Terminal), seconds(2)), Ok(()));
        assert_eq!(node.of(RunKind::Job), None);
        assert_eq!(node.add(None, seconds(20)), Ok(()));
        assert_eq!(node.of(RunKind::Job), Some(seconds(20)));
        assert_eq!(node.of(RunKind::Terminal), Some(seconds(2)));
    }

    #[test]
    fn grace_beyond_its_bound_is_refused() {
        let mut node = DefaultGrace::default();
        let most = limits::GRACE_MAX;
        let more = most + Duration::from_nanos(1);
        assert_eq!(node.add(None, more), Err(DefaultGraceError::TooLong));
        assert_eq!(node.add(None, most), Ok(()));
        assert_eq!(node.add(Some(RunKind::Job), Duration::ZERO), Ok(()));
    }

    #[test]
    fn two_graces_for_one_kind_are_refused() {
        let mut node = DefaultGrace::default();
        let grace = Duration::from_secs(1);
        assert_eq!(node.add(None, grace), Ok(()));
        assert_eq!(node.add(None, grace), Err(DefaultGraceError::Twice));
        let job = RunKind::Job;
        assert_eq!(node.add(Some(job), grace), Ok(()));
        let twice = node.add(Some(job), grace);
        assert_eq!(twice, Err(DefaultGraceError::KindTwice(job)));
    }
}
