//! Conversions between the contract and the supervisor's types. Requests are parsed with all their violations; answers
//! cannot fail.

pub(crate) mod again;
pub(crate) mod api_access;
pub(crate) mod audit;
mod certificate;
pub(crate) mod command;
pub(crate) mod consumer;
pub(crate) mod containment;
pub(crate) mod drain;
pub(crate) mod event;
pub(crate) mod info;
pub(crate) mod input;
mod labels;
pub(crate) mod limits;
mod line;
pub(crate) mod many_cursor;
pub(crate) mod nodes_cursor;
pub(crate) mod pattern;
pub(crate) mod request;
mod restart;
mod retention;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod screen;
mod secrets;
pub(crate) mod spec;
pub(crate) mod terminal;
pub(crate) mod time;
pub(crate) mod token;
pub(crate) mod trace_context;
pub(crate) mod trail;
pub(crate) mod tree;
pub(crate) mod usage;
