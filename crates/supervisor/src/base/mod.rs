//! Shared by all modules: types of calls and answers, faults, the clock, the keeper as the server sees it.

pub(crate) mod blocking;
pub(crate) mod calls;
pub(crate) mod cause;
pub(crate) mod clock;
pub(crate) mod devices;
pub(crate) mod drain;
pub(crate) mod event;
pub(crate) mod faults;
pub(crate) mod log_words;
pub(crate) mod look;
pub(crate) mod matcher;
pub(crate) mod other_node;
pub(crate) mod ports;
pub(crate) mod secret_sources;
pub(crate) mod spec_digest;
pub(crate) mod view;

use kennel_journal::Kind;
use std::time::Duration;

/// The two streams of output, in the order of their files.
pub(crate) const KINDS: [Kind; 2] = [Kind::Stdout, Kind::Stderr];

/// Time for which the record of `running` may wait: most short runs end before and save the write.
pub(crate) const RUNNING_RECORD_DELAY: Duration = Duration::from_millis(50);

/// Interval at which an open row without a task here, such as another node's, is read while a caller waits.
pub(crate) const OPEN_ROW_POLL: Duration = Duration::from_secs(1);
