//! Resources that attempts have used, in the contract's form.

use super::time;
use crate::pb;
use kennel_lifecycle::{Outcome, Pressure, Stall, Usage};
use std::time::Duration;

/// Returns what an attempt with this outcome has used.
pub(crate) fn counted(outcome: &Outcome) -> Option<Box<pb::Usage>> {
    let counted = outcome.certificate.usage.as_deref();
    counted.map(|counted| Box::new(usage(counted)))
}

/// Adds what the present attempt of a live run has used up to now.
pub(crate) fn add(run: &mut pb::Run, found: Option<&Usage>) {
    if let (Some(attempt), Some(found)) = (&mut run.current_attempt, found) {
        attempt.usage = Some(Box::new(usage(found)));
    }
}

fn usage(usage: &Usage) -> pb::Usage {
    let span = |micros: Option<u64>| Some(time::duration(Duration::from_micros(micros?)));
    let present = usage.present.unwrap_or_default();
    pb::Usage {
        cpu_user_time: span(usage.cpu_user_us),
        cpu_system_time: span(usage.cpu_system_us),
        cpu_throttled_time: span(usage.cpu_throttled_us),
        memory_peak_bytes: usage.memory_peak_bytes,
        memory_kills: usage.memory_kills,
        pids_peak: usage.pids_peak,
        io_read_bytes: usage.io_read_bytes,
        io_written_bytes: usage.io_written_bytes,
        memory_bytes: present.memory_bytes,
        pids: present.pids,
        cpu_pressure: present.cpu_pressure.map(pressure),
        memory_pressure: present.memory_pressure.map(pressure),
        io_pressure: present.io_pressure.map(pressure),
    }
}

fn pressure(pressure: Pressure) -> pb::Pressure {
    let stall = |stall: Stall| pb::Stall {
        avg10_percent: f64::from(stall.avg10) / 100.0,
        total_time: Some(time::duration(Duration::from_micros(stall.total_us))),
    };
    pb::Pressure {
        some: Some(stall(pressure.some)),
        full: pressure.full.map(stall),
    }
}
