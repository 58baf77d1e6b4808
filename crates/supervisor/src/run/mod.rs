//! One run: its start, the task that owns it, its output, its input, its writes to the store.

pub(crate) mod cleanup;
pub(crate) mod finish;
pub(crate) mod input;
pub(crate) mod intake;
pub(crate) mod output;
pub(crate) mod reopened;
pub(crate) mod rules;
pub(crate) mod saved_output;
pub(crate) mod task;
mod token;
pub(crate) mod writes;
