//! What a run says of itself: the engine that tests lines of its output, and probes of its readiness. Both only look;
//! what follows is done by the run's task.

pub(crate) mod engine;
pub(crate) mod probe;
