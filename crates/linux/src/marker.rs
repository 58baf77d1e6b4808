//! The marker in the environment: a hint at whose run a process is, never a proof.

use crate::procfs;
use kennel_lifecycle::RunId;
use std::{collections::HashMap, fs};

/// The variable whose value is the run's id.
pub(crate) const RUN_ID_VAR: &str = "KENNEL_RUN_ID";

/// The run that a process says it belongs to.
pub(crate) fn of(pid: i32) -> Option<RunId> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = std::str::from_utf8(entry).ok()?.strip_prefix(RUN_ID_VAR)?;
        value.strip_prefix('=')?.parse().ok()
    })
}

/// All living processes that carry a marker, by run.
pub(crate) fn scan() -> HashMap<RunId, Vec<i32>> {
    let mut found: HashMap<RunId, Vec<i32>> = HashMap::new();
    for pid in procfs::all_pids().unwrap_or_default() {
        if let Some(run) = of(pid) {
            found.entry(run).or_default().push(pid);
        }
    }
    found
}
