//! The limits of a run in words, as the flags of `kennel run` take them.

use super::{sentence::Fields, view::DetailView};
use kennel_proto::{fields::ToFields as _, pb};
use serde_json::json;
use std::time::Duration;

/// Formats each limit by the name of its flag, and says which the node gave.
pub(crate) fn words(limits: &pb::RunLimits) -> Vec<String> {
    let mut words = plain_words(limits);
    for word in &mut words {
        let name = word.split(['=', ' ']).next().unwrap_or_default();
        if limits.from_node.iter().any(|given| given == name) {
            word.push_str(" (from the node)");
        }
    }
    words
}

fn plain_words(limits: &pb::RunLimits) -> Vec<String> {
    let cpus = processors(&limits.cpu.unwrap_or_default());
    let mut view = DetailView::new(0);
    let lines = include_str!("limits.txt");
    let more = json!({"cpus": cpus.unwrap_or_default()});
    view.lines(lines, &Fields::of(&more).inner(&limits.to_fields()));
    let words = view.text.lines().map(str::to_owned);
    words.chain(limits.io.iter().flat_map(io)).collect()
}

fn io(limit: &pb::IoLimit) -> Vec<String> {
    let values = [
        ("io-read-bps", limit.read_bytes_per_second),
        ("io-write-bps", limit.written_bytes_per_second),
        ("io-read-iops", limit.reads_per_second),
        ("io-write-iops", limit.writes_per_second),
    ];
    let given = values.into_iter().filter_map(|(name, value)| {
        let value = value?;
        Some(format!("{name} {}:{value}", limit.path))
    });
    given.collect()
}

/// Default period of a quota, in seconds.
const PERIOD: f64 = 0.1;

/// Formats processors, to a thousandth.
fn processors(cpu: &pb::CpuLimits) -> Option<String> {
    let quota = Duration::try_from(cpu.quota?).ok()?.as_secs_f64();
    let period = cpu.period.and_then(|time| Duration::try_from(time).ok());
    let period = period.map_or(PERIOD, |period| period.as_secs_f64());
    Some(format!("{}", (quota / period * 1000.0).round() / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: RW-123, C-21
    #[test]
    fn each_limit_is_printed_in_flag_syntax() {
        assert_eq!(words(&pb::RunLimits::default()), Vec::<String>::new());
        let span = |millis| Duration::from_millis(millis).try_into().ok();
        let limits = pb::RunLimits {
            rlimits: vec![
                pb::Rlimit {
                    resource: pb::RlimitResource::Nofile.into(),
                    soft: Some(1024),
                    hard: Some(4096),
                },
                pb::Rlimit {
                    resource: pb::RlimitResource::Core.into(),
                    soft: Some(u64::MAX),
                    hard: None,
                },
            ],
            nice: Some(5),
            oom_score_adj: Some(-500),
            memory: Some(pb::MemoryLimits {
                max_bytes: Some(1 << 29),
                high_bytes: Some(1 << 28),
                swap_max_bytes: Some(0),
            }),
            pids_max: Some(100),
            cpu: Some(pb::CpuLimits {
                quota: span(150),
                period: None,
                weight: Some(50),
            }),
            io: vec![pb::IoLimit {
                path: "/data".into(),
                written_bytes_per_second: Some(1 << 20),
                reads_per_second: Some(9),
                ..pb::IoLimit::default()
            }],
            from_node: vec!["core".to_owned()],
        };
        let reported = [
            "nofile=1024:4096",
            "core=unlimited (from the node)",
            "nice 5",
            "oom-score-adj -500",
            "memory-max 536870912 bytes",
            "memory-high 268435456 bytes",
            "swap-max 0 bytes",
            "pids-max 100",
            "cpus 1.5",
            "cpu-weight 50",
            "io-write-bps /data:1048576",
            "io-read-iops /data:9",
        ];
        assert_eq!(words(&limits), reported);
        let third = pb::CpuLimits {
            quota: span(10),
            period: span(30),
            weight: None,
        };
        assert_eq!(processors(&third).as_deref(), Some("0.333"));
    }
}
