//! Levels of messages and files, by which processes of two versions find out whether they can meet.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The levels that a process speaks or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// The lowest.
    pub min: u32,
    /// The highest.
    pub max: u32,
}

impl Levels {
    /// Returns the highest level that both have.
    pub fn common(self, other: Self) -> Option<u32> {
        let highest = self.max.min(other.max);
        (highest >= self.min.max(other.min)).then_some(highest)
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
}

impl FromStr for Levels {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (min, max) = text.split_once('-').ok_or(())?;
        let number = |text: &str| text.parse().map_err(|_| ());
        let levels = Self {
            min: number(min)?,
            max: number(max)?,
        };
        (levels.min <= levels.max).then_some(levels).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: A-22c
    #[test]
    fn highest_common_level_is_used() {
        let levels = |text: &str| text.parse::<Levels>().expect("levels");
        let common = |one, other| levels(one).common(levels(other));
        assert_eq!(common("3-5", "4-7"), Some(5));
        assert_eq!(common("4-7", "3-5"), Some(5));
        assert_eq!(common("5-5", "5-5"), Some(5));
        assert_eq!(common("3-4", "5-7"), None);
        assert_eq!(common("5-7", "3-4"), None);
        assert_eq!(levels("3-5").to_string(), "3-5");
        for bad in ["", "3", "3-", "-3", "5-3", "3-5-7", "a-b"] {
            assert_eq!(bad.parse::<Levels>(), Err(()), "{bad}");
        }
    }
}
