//! Gauges: present amounts, read when metrics are collected.

use crate::{
    base::{calls::RunView, view::Live},
    registry::Shared,
    telemetry::{Telemetry, names},
};
use kennel_lifecycle::{RunState, Wait};
use kennel_linux::{Room, limits};
use opentelemetry::{KeyValue, metrics::Meter};
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, atomic::Ordering},
};

/// Name, unit, description, and amount; absent where it is not known.
type Gauge = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Shared) -> Option<u64>,
);

const GAUGES: [Gauge; 17] = [
    (
        "kennel.rows.ended",
        "{row}",
        "Rows of ended runs of this node that the last look at all of them has found",
        |shared| Some(shared.rows_ended.load(Ordering::Relaxed)),
    ),
    (
        "kennel.run.limit",
        "{run}",
        "Most runs that this node takes at a time",
        |shared| Some(u64::from(shared.config.runs_max)),
    ),
    (
        "kennel.unkillable.count",
        "{process}",
        "Processes of runs that SIGKILL does not end",
        |shared| {
            Some(sum(shared, |live| {
                live.view
                    .stuck
                    .as_ref()
                    .map_or(0, |stuck| stuck.processes.len())
            }))
        },
    ),
    (
        "kennel.pty.count",
        "{terminal}",
        "Terminals of live runs",
        |shared| {
            Some(sum(shared, |live| {
                usize::from(live.view.terminal.is_some())
            }))
        },
    ),
    (
        "kennel.store.backlog",
        "{record}",
        "Records on this node's disk that the store has not got yet",
        |shared| Some(shared.record.count_pending() as u64),
    ),
    (
        "kennel.server.start_time",
        "s",
        "When this server has begun, in seconds since 1970",
        |shared| Some(u64::try_from(shared.started.0).unwrap_or(0) / 1_000_000),
    ),
    (
        "kennel.disk.usage",
        "By",
        "Used space of the data directory's file system",
        |shared| room(shared).map(|room| room.used),
    ),
    (
        "kennel.disk.limit",
        "By",
        "Usable space of the data directory's file system",
        |shared| room(shared).map(|room| room.total),
    ),
    (
        "kennel.drain.active",
        "{node}",
        "Drain state of this node: 1 while it is drained and accepts no new runs",
        |shared| Some(u64::from(shared.drain.borrow().is_some())),
    ),
    (
        "kennel.orphan.count",
        "{process}",
        "Live processes of ended runs that the last leak check found",
        |shared| shared.found.orphans(),
    ),
    (
        "kennel.zombie.count",
        "{process}",
        "Zombies of ended runs that the last leak check found",
        |shared| shared.found.zombies(),
    ),
    (
        "kennel.subscriber.lag",
        "{event}",
        "Longest backlog of a stream: events of a live run that it has not received",
        |shared| Some(shared.subscribers.lag()),
    ),
    (
        "kennel.journal.usage",
        "By",
        "Size of all journals of this node, where they have a common limit",
        |shared| *shared.journals_bytes.lock(),
    ),
    (
        "kennel.journal.limit",
        "By",
        "Limit of the size of all journals of this node",
        |shared| shared.config.retention.node_bytes,
    ),
    (
        "kennel.pty.limit",
        "{terminal}",
        "Limit of open terminals of the host, of all users",
        |_| kennel_linux::terminals_max(),
    ),
    (
        "kennel.fd.count",
        "{file_descriptor}",
        "Open descriptors of the server",
        |_| limits::open_now(),
    ),
    (
        "kennel.fd.limit",
        "{file_descriptor}",
        "Limit of open descriptors of the server",
        |_| limits::open_files().ok(),
    ),
];

/// Registers the gauges; they read nothing once the server is gone.
pub(crate) fn register(telemetry: &Telemetry, shared: &Arc<Shared>) {
    let meter = telemetry.meter();
    let active = ("kennel.run.active", "Live runs", names::RUN_STATE);
    let states = RunState::OPEN.map(RunState::name);
    let state = |view: &RunView| Some(view.state.name());
    live_by(meter, Arc::downgrade(shared), active, states, state);
    let waiting = (
        "kennel.run.waiting",
        "Live runs that wait, by what they wait for",
        names::WAIT_REASON,
    );
    let reasons = Wait::ALL.iter().map(|wait| wait.name());
    let reason = |view: &RunView| view.waits_for().map(Wait::name);
    live_by(meter, Arc::downgrade(shared), waiting, reasons, reason);
    unreadable(meter, Arc::downgrade(shared));
    for (name, unit, what, look) in GAUGES {
        let shared = Arc::downgrade(shared);
        meter
            .u64_observable_gauge(name)
            .with_unit(unit)
            .with_description(what)
            .with_callback(move |observer| {
                if let Some(value) = shared.upgrade().and_then(|shared| look(&shared)) {
                    observer.observe(value, &[]);
                }
            })
            .build();
    }
}

/// Counts live runs by what `of` says of each; a kind without runs reads 0.
fn live_by(
    meter: &Meter,
    shared: Weak<Shared>,
    (name, what, key): (&'static str, &'static str, &'static str),
    kinds: impl IntoIterator<Item = &'static str>,
    of: fn(&RunView) -> Option<&'static str>,
) {
    let none: BTreeMap<&str, i64> = kinds.into_iter().map(|kind| (kind, 0)).collect();
    meter
        .i64_observable_up_down_counter(name)
        .with_unit("{run}")
        .with_description(what)
        .with_callback(move |observer| {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let mut counts = none.clone();
            for (_, handle) in shared.all() {
                if let Some(kind) = of(&handle.live.borrow().view) {
                    *counts.entry(kind).or_default() += 1;
                }
            }
            for (kind, count) in counts {
                observer.observe(count, &[KeyValue::new(key, kind)]);
            }
        })
        .build();
}

/// Counts what no decoder of this version reads.
fn unreadable(meter: &Meter, shared: Weak<Shared>) {
    meter
        .u64_observable_gauge("kennel.unreadable")
        .with_unit("{item}")
        .with_description(
            "Files of runs that were set aside, names in messages that were skipped, and rows of open runs",
        )
        .with_callback(move |observer| {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let of = |what| [KeyValue::new(names::UNREADABLE_WHAT, what)];
            let files = kennel_keeper::unreadable::count(&shared.config.data_dir);
            observer.observe(files as u64, &of("file"));
            let skipped = shared.names_skipped.load(Ordering::Relaxed);
            observer.observe(skipped, &of("wire"));
            let rows = shared.rows_unread.load(Ordering::Relaxed);
            observer.observe(rows as u64, &of("row"));
        })
        .build();
}

/// Returns the space of the data directory's file system, where it can be read.
fn room(shared: &Shared) -> Option<Room> {
    kennel_linux::room_of(&shared.config.data_dir).ok()
}

fn sum(shared: &Shared, of: impl Fn(&Live) -> usize) -> u64 {
    let live = shared.all();
    let amounts = live
        .iter()
        .map(|(_, handle)| of(&handle.live.borrow()) as u64);
    amounts.sum()
}
