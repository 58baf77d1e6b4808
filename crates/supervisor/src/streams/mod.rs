//! Readers: events of one run or of many, output, screens, named consumers.

pub(crate) mod by_row;
pub(crate) mod consumers;
pub(crate) mod events;
pub(crate) mod line;
pub(crate) mod multi_run;
pub(crate) mod output_read;
pub(crate) mod screen;
pub(crate) mod shape;
pub(crate) mod wait_output;
