//! House rules that a program can check: dependencies, restricted calls, and the test of each promise.

mod changes;
mod circles;
mod contract;
mod floors;
mod graph;
mod invariants;
mod length;
mod lexer;
mod log_lines;
mod messages;
mod names;
mod owners;
mod pages;
mod source;
mod specification;
