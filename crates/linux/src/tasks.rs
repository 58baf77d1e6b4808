//! The tasks (threads) of one process, and whether they are stopped.

use crate::procfs::{self, Stat};

fn numbers(pid: i32) -> Vec<i32> {
    let mut numbers = procfs::threads(pid);
    numbers.sort_unstable();
    numbers
}

/// Returns the tasks that have not exited.
fn of(pid: i32, numbers: &[i32]) -> Vec<Stat> {
    let stats = numbers
        .iter()
        .filter_map(|tid| procfs::stat_of_task(pid, *tid).ok());
    stats.filter(|stat| !stat.is_dead()).collect()
}

/// Whether every task is stopped, or will be before it runs one more instruction of its own: it waits uninterruptibly,
/// and the stop waits for it. A parent in vfork(2) whose child was stopped waits so for as long as the child is
/// stopped.
pub fn stand_still(pid: i32) -> bool {
    let numbers_before = numbers(pid);
    let tasks = of(pid, &numbers_before);
    // A stopped task shows that the stop reaches all tasks.
    let stopping = || tasks.iter().any(|t| t.state == b'T') || has_pending_stop(pid);
    let held = |task: &Stat| task.is_stopped() || (task.state == b'D' && stopping());
    // A task created meanwhile was not read.
    tasks.iter().all(held) && numbers(pid) == numbers_before
}

/// Whether SIGCONT would change the state of any task.
pub fn are_held(pid: i32) -> bool {
    let tasks = of(pid, &numbers(pid));
    let waits = |task: &Stat| task.state == b'D' && has_pending_stop(pid);
    tasks.iter().any(|task| task.is_stopped() || waits(task))
}

fn has_pending_stop(pid: i32) -> bool {
    let pending = procfs::status(pid, "ShdPnd:");
    let bits = pending.and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    bits.is_some_and(|bits| bits & (1 << (libc::SIGSTOP - 1)) != 0)
}
