//! Rules of the house that a machine can check: who may know whom, who may do what, and which test holds which promise.

mod contract;
mod floors;
mod graph;
mod invariants;
mod length;
mod lexer;
mod log_lines;
mod messages;
mod names;
mod pages;
mod source;
mod specification;
