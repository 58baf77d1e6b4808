//! Two versions that meet: the former one, which `tests/upgrade/base` names, and the next one, which is this code with
//! `tests/upgrade/next.patch` on it. `.ci/versions` builds both.

mod cast;
mod later;
mod reader;
mod rolling;
mod story;
