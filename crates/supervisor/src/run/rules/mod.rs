//! Rules and probes of a run: the engine that tests lines of its output, and probes of its readiness. Both only
//! observe; the run's task acts on the results.

pub(crate) mod engine;
pub(crate) mod probe;
pub(crate) mod tester;
