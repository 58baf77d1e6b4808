//! Rules of the house that a machine can check: who may know whom, who may do what, and which test holds which promise.

mod contract;
mod floors;
mod graph;
mod invariants;
mod length;
mod log_lines;
mod names;
mod pages;
mod source;
mod specification;
