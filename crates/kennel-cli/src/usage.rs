//! Resources that an attempt has used, in words.

use crate::values::short_bytes;
use kennel_proto::pb;
use std::time::Duration;

/// Formats one line for each resource of which a counter is known, with its name.
pub(crate) fn lines(usage: &pb::Usage) -> Vec<(&'static str, String)> {
    let [user, system, throttled] = [
        usage.cpu_user_time,
        usage.cpu_system_time,
        usage.cpu_throttled_time,
    ]
    .map(|time| time.and_then(|time| Duration::try_from(time).ok()));
    let time = |time: Option<Duration>, what| time.map(|time| format!("{time:?} {what}"));
    let throttled = throttled.filter(|time| !time.is_zero());
    let of = |number: Option<u64>, before: &str, after: &str| {
        number.map(|number| format!("{before}{number}{after}"))
    };
    let bytes = |number: Option<u64>, before: &str, after: &str| {
        number.map(|number| format!("{before}{}{after}", short_bytes(number)))
    };
    let pressure = |pressure: Option<pb::Pressure>, of: &str| {
        let some = pressure.and_then(|pressure| pressure.some)?;
        Some(format!("{of} {}%", some.avg10_percent))
    };
    let kills = usage.memory_kills.filter(|kills| *kills > 0);
    let lines = [
        (
            "cpu used",
            vec![
                time(user, "user"),
                time(system, "system"),
                time(throttled, "throttled"),
            ],
        ),
        (
            "memory used",
            vec![
                bytes(usage.memory_bytes, "", ""),
                bytes(usage.memory_peak_bytes, "at most ", ""),
                of(kills, "", " killed for lack of it"),
            ],
        ),
        (
            "tasks",
            vec![of(usage.pids, "", ""), of(usage.pids_peak, "at most ", "")],
        ),
        (
            "disk used",
            vec![
                bytes(usage.io_read_bytes, "", " read"),
                bytes(usage.io_written_bytes, "", " written"),
            ],
        ),
        (
            "pressure",
            vec![
                pressure(usage.cpu_pressure, "cpu"),
                pressure(usage.memory_pressure, "memory"),
                pressure(usage.io_pressure, "disk"),
            ],
        ),
    ];
    let known = lines.into_iter().map(|(name, parts)| {
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (name, parts.join(", "))
    });
    known.filter(|(_, words)| !words.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_counters_are_printed() {
        assert_eq!(lines(&pb::Usage::default()), Vec::new());
        let span = |millis| Duration::from_millis(millis).try_into().ok();
        let ended = pb::Usage {
            cpu_user_time: span(1500),
            cpu_system_time: span(0),
            cpu_throttled_time: span(0),
            memory_peak_bytes: Some(5 << 20),
            memory_kills: Some(0),
            io_read_bytes: Some(0),
            io_written_bytes: Some(2048),
            ..pb::Usage::default()
        };
        let expected = [
            ("cpu used", "1.5s user, 0ns system"),
            ("memory used", "at most 5.0M"),
            ("disk used", "0 read, 2.0K written"),
        ];
        assert_eq!(lines(&ended), expected.map(|(n, w)| (n, w.to_owned())));
        let live = pb::Usage {
            cpu_throttled_time: span(20),
            memory_bytes: Some(1 << 20),
            memory_kills: Some(2),
            pids: Some(3),
            pids_peak: Some(9),
            memory_pressure: Some(pb::Pressure {
                some: Some(pb::Stall {
                    avg10_percent: 12.05,
                    total_time: span(77),
                }),
                full: None,
            }),
            ..pb::Usage::default()
        };
        let expected = [
            ("cpu used", "20ms throttled"),
            ("memory used", "1.0M, 2 killed for lack of it"),
            ("tasks", "3, at most 9"),
            ("pressure", "memory 12.05%"),
        ];
        assert_eq!(lines(&live), expected.map(|(n, w)| (n, w.to_owned())));
    }
}
