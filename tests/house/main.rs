//! Rules of the house that a machine can check: who may know whom, and who may do what.

mod graph;
mod source;
