//! Gauges: present amounts, read when metrics are collected.

use crate::{
    base::view::{Live, Wait},
    registry::Shared,
    telemetry::{Telemetry, names},
};
use kennel_lifecycle::RunState;
use kennel_linux::{Room, limits};
use opentelemetry::{KeyValue, metrics::Meter};
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, Weak},
};

/// Registers the gauges; they read nothing once the server is gone.
pub(crate) fn register(telemetry: &Telemetry, shared: &Arc<Shared>) {
    let meter = telemetry.meter();
    active(meter, Arc::downgrade(shared));
    waits(meter, Arc::downgrade(shared));
    gauge(
        meter,
        Arc::downgrade(shared),
        ("kennel.run.limit", "{run}"),
        "Most runs that this node takes at a time",
        |shared| u64::from(shared.config.runs_max),
    );
    gauge(
        meter,
        Arc::downgrade(shared),
        ("kennel.unkillable.count", "{process}"),
        "Processes of runs that SIGKILL does not end",
        |shared| {
            sum(shared, |live| {
                live.view
                    .stuck
                    .as_ref()
                    .map_or(0, |stuck| stuck.processes.len())
            })
        },
    );
    gauge(
        meter,
        Arc::downgrade(shared),
        ("kennel.pty.count", "{terminal}"),
        "Terminals of live runs",
        |shared| sum(shared, |live| usize::from(live.view.terminal.is_some())),
    );
    gauge(
        meter,
        Arc::downgrade(shared),
        ("kennel.store.backlog", "{record}"),
        "Records on this node's disk that the store has not got yet",
        |shared| shared.record.count_pending() as u64,
    );
    gauge(
        meter,
        Arc::downgrade(shared),
        ("kennel.server.start_time", "s"),
        "When this server has begun, in seconds since 1970",
        |shared| u64::try_from(shared.started.0).unwrap_or(0) / 1_000_000,
    );
    looked_up(meter, shared);
    disk(
        meter,
        Arc::downgrade(shared),
        "kennel.disk.usage",
        "Used space of the data directory's file system",
        |room| room.used,
    );
    disk(
        meter,
        Arc::downgrade(shared),
        "kennel.disk.limit",
        "Usable space of the data directory's file system",
        |room| room.total,
    );
    gauge(
        meter,
        Arc::downgrade(shared),
        ("kennel.drain.active", "{node}"),
        "Drain state of this node: 1 while it is drained and accepts no new runs",
        |shared| u64::from(shared.drain.borrow().is_some()),
    );
}

/// Registers gauges that have no value where the amount is not known.
fn looked_up(meter: &Meter, shared: &Arc<Shared>) {
    type Look = fn(&Shared) -> Option<u64>;
    let all: [(&'static str, &'static str, &'static str, Look); 8] = [
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
            |shared| {
                *shared
                    .journals_bytes
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
            },
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
            |_| limits::open_files().ok().map(|files| files.soft),
        ),
    ];
    for (name, unit, what, look) in all {
        lookup(meter, Arc::downgrade(shared), (name, unit), what, look);
    }
}

fn active(meter: &Meter, shared: Weak<Shared>) {
    meter
        .i64_observable_up_down_counter("kennel.run.active")
        .with_unit("{run}")
        .with_description("Live runs")
        .with_callback(move |observer| {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            // A state without runs reads 0.
            let mut counts: BTreeMap<&str, i64> =
                RunState::OPEN.iter().map(|s| (s.name(), 0)).collect();
            for (_, handle) in shared.all() {
                let state = handle.live.borrow().view.state;
                *counts.entry(state.name()).or_default() += 1;
            }
            for (state, count) in counts {
                observer.observe(count, &[KeyValue::new(names::RUN_STATE, state.to_owned())]);
            }
        })
        .build();
}

/// What live runs wait for.
fn waits(meter: &Meter, shared: Weak<Shared>) {
    meter
        .i64_observable_up_down_counter("kennel.run.waiting")
        .with_unit("{run}")
        .with_description("Live runs that wait, by what they wait for")
        .with_callback(move |observer| {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let mut counts = BTreeMap::from(Wait::ALL.map(|wait| (wait, 0)));
            for (_, handle) in shared.all() {
                if let Some(wait) = handle.live.borrow().view.waits_for() {
                    *counts.entry(wait).or_default() += 1;
                }
            }
            for (wait, count) in counts {
                observer.observe(count, &[KeyValue::new(names::WAIT_REASON, wait.name())]);
            }
        })
        .build();
}

fn gauge(
    meter: &Meter,
    shared: Weak<Shared>,
    (name, unit): (&'static str, &'static str),
    what: &'static str,
    look: impl Fn(&Shared) -> u64 + Send + Sync + 'static,
) {
    lookup(meter, shared, (name, unit), what, move |shared| {
        Some(look(shared))
    });
}

fn disk(
    meter: &Meter,
    shared: Weak<Shared>,
    name: &'static str,
    what: &'static str,
    of: fn(Room) -> u64,
) {
    lookup(meter, shared, (name, "By"), what, move |shared| {
        // A file system that cannot be read has no value.
        kennel_linux::room_of(&shared.config.data_dir).ok().map(of)
    });
}

fn lookup(
    meter: &Meter,
    shared: Weak<Shared>,
    (name, unit): (&'static str, &'static str),
    what: &'static str,
    look: impl Fn(&Shared) -> Option<u64> + Send + Sync + 'static,
) {
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

fn sum(shared: &Shared, of: impl Fn(&Live) -> usize) -> u64 {
    let live = shared.all();
    live.iter()
        .map(|(_, handle)| of(&handle.live.borrow()) as u64)
        .sum()
}
