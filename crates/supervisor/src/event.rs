//! From the machine's announcements to the lines of a journal, and back from a journal to events.

use crate::{CallError, Event, LifecycleEvent, Payload};
use kennel_journal::{Item, Kind};
use kennel_lifecycle::{Announcement, MemoryKills, Outcome, RunId, RunIdentity};

/// The line for an announcement; `identity` is the attempt's, where it has one, and its output begins at `outputs`.
pub(crate) fn line(
    announcement: &Announcement,
    identity: Option<&RunIdentity>,
    outputs: [u64; 2],
) -> LifecycleEvent {
    match announcement {
        Announcement::Recorded => LifecycleEvent::Recorded {
            pid: identity.map_or(0, |i| i.command.pid),
            pgid: identity.map_or(0, |i| i.command.pgid),
            stdout_offset: outputs[0],
            stderr_offset: outputs[1],
        },
        Announcement::Started => LifecycleEvent::Started,
        Announcement::Paused => LifecycleEvent::Paused,
        Announcement::Resumed(reason) => LifecycleEvent::Resumed { reason: *reason },
        Announcement::Stopping { order, deadline } => LifecycleEvent::Stopping {
            order: order.clone(),
            deadline: *deadline,
        },
        Announcement::LeaderExited(exit) => LifecycleEvent::LeaderExited(*exit),
        Announcement::StreamsClosed(how) => LifecycleEvent::StreamsClosed(*how),
        Announcement::Stuck(stuck) => LifecycleEvent::Stuck(stuck.clone()),
        Announcement::TreeEnded(tree) => LifecycleEvent::TreeEmpty(tree.clone()),
        Announcement::MemoryKills(kills) => memory_kills(kills),
        Announcement::Ended(outcome) => ended(outcome),
    }
}

/// How a line about kills for want of memory begins.
pub(crate) const KERNEL_KILLED: &str = "the kernel killed ";
/// How every warning of a process begins that is in the control group of a run and not of the run.
pub(crate) const SPARED: &str = "not of this run, and spared: process ";

/// The warning of such a process.
pub(crate) fn spared(pid: i32, start_ticks: u64) -> String {
    format!(
        "{SPARED}{pid} (started {start_ticks} ticks after boot), which is in its control group; the group proves nothing while it is there"
    )
}

fn memory_kills(killed: &MemoryKills) -> LifecycleEvent {
    let whom = match killed.kills {
        1 => "a process of this run".to_owned(),
        more => format!("{more} processes of this run"),
    };
    let limit = killed.memory_max.map(|bytes| format!(" of {bytes} bytes"));
    let limit = limit.map_or_else(String::new, |limit| {
        format!("; the run has a memory limit{limit}")
    });
    LifecycleEvent::Warning {
        message: format!("{KERNEL_KILLED}{whom} for want of memory{limit}"),
    }
}

/// The last entry.
pub(crate) fn ended(outcome: &Outcome) -> LifecycleEvent {
    LifecycleEvent::Ended {
        state: outcome.state(),
        reason: outcome.reason.clone(),
    }
}

/// The journal's form of a line.
pub(crate) fn encode(line: &LifecycleEvent) -> Vec<u8> {
    // Numbers and strings only: there is nothing in it that JSON could refuse.
    serde_json::to_vec(line).unwrap_or_default()
}

/// An event from what a journal gives.
pub(crate) fn decode(run: RunId, item: Item) -> Result<Event, CallError> {
    let entry = match item {
        Item::Entry(entry) => entry,
        Item::Gap(gap) => {
            return Ok(Event {
                seq: gap.last_seq,
                attempt: gap.attempt,
                at: gap.at,
                payload: Payload::Gap(gap),
            });
        }
    };
    let payload = match entry.kind {
        Kind::Lifecycle => {
            Payload::Lifecycle(serde_json::from_slice(&entry.data).map_err(|e| {
                CallError::JournalUnreadable {
                    run,
                    why: format!("entry {}: {e}", entry.seq),
                }
            })?)
        }
        Kind::Stdout => Payload::Output {
            stream: 1,
            offset: entry.offset,
            data: entry.data,
        },
        Kind::Stderr => Payload::Output {
            stream: 2,
            offset: entry.offset,
            data: entry.data,
        },
    };
    Ok(Event {
        seq: entry.seq,
        attempt: entry.attempt,
        at: entry.at,
        payload,
    })
}
