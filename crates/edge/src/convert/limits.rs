//! Resource limits of a run, from the contract and back.

use super::time;
use crate::{
    enums::{mapped, unknown_number},
    pb,
};
use kennel_lifecycle::{
    CpuQuota, IoLimit, Resource, Rlimit, RunLimits, Violation, limits::CPU_PERIOD_DEFAULT,
};

/// Converts the limits to the lifecycle's types; faults of their form are added to `found`.
pub(crate) fn parse(limits: Option<&pb::RunLimits>, found: &mut Vec<Violation>) -> RunLimits {
    let Some(limits) = limits else {
        return RunLimits::default();
    };
    let rlimits = limits.rlimits.iter().enumerate();
    let memory = limits.memory.unwrap_or_default();
    let cpu = limits.cpu.unwrap_or_default();
    RunLimits {
        rlimits: rlimits.filter_map(|(i, l)| rlimit(i, *l, found)).collect(),
        nice: limits.nice,
        oom_score_adj: limits.oom_score_adj,
        memory_max: memory.max_bytes,
        memory_high: memory.high_bytes,
        swap_max: memory.swap_max_bytes,
        pids_max: limits.pids_max,
        cpu_quota: quota(&cpu, found),
        cpu_weight: cpu.weight,
        io: limits.io.iter().map(io).collect(),
    }
}

fn io(limit: &pb::IoLimit) -> IoLimit {
    IoLimit {
        path: limit.path.clone(),
        read_bytes: limit.read_bytes_per_second,
        written_bytes: limit.written_bytes_per_second,
        reads: limit.reads_per_second,
        writes: limit.writes_per_second,
    }
}

fn shown_io(limit: &IoLimit) -> pb::IoLimit {
    pb::IoLimit {
        path: limit.path.clone(),
        read_bytes_per_second: limit.read_bytes,
        written_bytes_per_second: limit.written_bytes,
        reads_per_second: limit.reads,
        writes_per_second: limit.writes,
    }
}

/// Returns the limits for reads, with the names of those that the node gave; absent: there are none.
pub(crate) fn shown(limits: &RunLimits, from_node: &[String]) -> Option<pb::RunLimits> {
    if *limits == RunLimits::default() {
        return None;
    }
    let memory = pb::MemoryLimits {
        max_bytes: limits.memory_max,
        high_bytes: limits.memory_high,
        swap_max_bytes: limits.swap_max,
    };
    let cpu = pb::CpuLimits {
        quota: limits.cpu_quota.map(|cpu| time::duration(cpu.quota)),
        period: limits.cpu_quota.map(|cpu| time::duration(cpu.period)),
        weight: limits.cpu_weight,
    };
    let rlimit = |limit: &Rlimit| pb::Rlimit {
        resource: shown_resource(limit.resource).into(),
        soft: Some(limit.soft),
        hard: Some(limit.hard),
    };
    Some(pb::RunLimits {
        rlimits: limits.rlimits.iter().map(rlimit).collect(),
        nice: limits.nice,
        oom_score_adj: limits.oom_score_adj,
        memory: (memory != pb::MemoryLimits::default()).then_some(memory),
        pids_max: limits.pids_max,
        cpu: (cpu != pb::CpuLimits::default()).then_some(cpu),
        io: limits.io.iter().map(shown_io).collect(),
        from_node: from_node.to_vec(),
    })
}

mapped! {
    fn shown_resource(Resource) -> RlimitResource, fn resource_of
    {
        Cpu Data Stack Core Nice,
        FileSize = Fsize, Processes = Nproc, OpenFiles = Nofile, LockedMemory = Memlock, AddressSpace = As,
        PendingSignals = Sigpending, MessageQueues = Msgqueue, RealTimePriority = Rtprio, RealTime = Rttime
    }
}

fn quota(cpu: &pb::CpuLimits, found: &mut Vec<Violation>) -> Option<CpuQuota> {
    let period = time::parse_duration("spec.limits.cpu.period", cpu.period.as_ref(), found);
    if cpu.quota.is_none() && cpu.period.is_some() {
        let alone = "has no meaning without a quota";
        found.push(Violation::new("spec.limits.cpu.period", alone));
    }
    let quota = time::parse_duration("spec.limits.cpu.quota", cpu.quota.as_ref(), found)?;
    let period = period.unwrap_or(CPU_PERIOD_DEFAULT);
    Some(CpuQuota { quota, period })
}

fn rlimit(i: usize, limit: pb::Rlimit, found: &mut Vec<Violation>) -> Option<Rlimit> {
    let field = |name: &str| format!("spec.limits.rlimits[{i}].{name}");
    let resource = resource(limit.resource);
    if resource.is_none() {
        let field = field("resource");
        found.push(match pb::RlimitResource::try_from(limit.resource) {
            Ok(_) => Violation::new(field, "must be given"),
            Err(_) => unknown_number(&field, limit.resource, "RlimitResource"),
        });
    }
    if limit.soft.is_none() {
        found.push(Violation::new(field("soft"), "must be given"));
    }
    let (resource, soft) = (resource?, limit.soft?);
    let hard = limit.hard.unwrap_or(soft);
    Some(Rlimit {
        resource,
        soft,
        hard,
    })
}

fn resource(number: i32) -> Option<Resource> {
    resource_of(pb::RlimitResource::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, time::Duration};

    #[test]
    fn rlimit_resources_match_proto_by_name() {
        let number = |name: &str| {
            let name = name.replace("RLIMIT_", "RLIMIT_RESOURCE_");
            pb::RlimitResource::from_str_name(&name).expect("it is in the contract")
        };
        for known in Resource::ALL {
            assert_eq!(resource(number(known.name()).into()), Some(*known));
            assert_eq!(resource(shown_resource(*known).into()), Some(*known));
        }
        let known: BTreeSet<_> = (0..100).filter_map(resource).collect();
        assert_eq!(known.len(), Resource::ALL.len());
    }

    #[test]
    fn missing_hard_limit_defaults_to_soft_limit() {
        let mut found = Vec::new();
        let limit = pb::Rlimit {
            resource: pb::RlimitResource::Nofile.into(),
            soft: Some(64),
            hard: None,
        };
        let limits = pb::RunLimits {
            rlimits: vec![limit],
            nice: Some(5),
            oom_score_adj: Some(-3),
            memory: Some(pb::MemoryLimits {
                max_bytes: Some(3),
                high_bytes: Some(2),
                swap_max_bytes: Some(1),
            }),
            pids_max: Some(4),
            cpu: Some(pb::CpuLimits {
                quota: Some(time::duration(Duration::from_millis(50))),
                period: None,
                weight: Some(7),
            }),
            io: vec![pb::IoLimit {
                path: "/data".into(),
                read_bytes_per_second: Some(1),
                written_bytes_per_second: Some(2),
                reads_per_second: Some(3),
                writes_per_second: Some(4),
            }],
            from_node: vec!["nofile".to_owned()],
        };
        let parsed = parse(Some(&limits), &mut found);
        assert_eq!(found, []);
        let files = Rlimit {
            resource: Resource::OpenFiles,
            soft: 64,
            hard: 64,
        };
        assert_eq!(parsed.rlimits, [files]);
        assert_eq!((parsed.nice, parsed.oom_score_adj), (Some(5), Some(-3)));
        let memory = [parsed.swap_max, parsed.memory_high, parsed.memory_max];
        assert_eq!(memory, [Some(1), Some(2), Some(3)]);
        assert_eq!((parsed.pids_max, parsed.cpu_weight), (Some(4), Some(7)));
        let quota = CpuQuota {
            quota: Duration::from_millis(50),
            period: Duration::from_millis(100),
        };
        assert_eq!(parsed.cpu_quota, Some(quota));
        let disk = IoLimit {
            path: "/data".into(),
            read_bytes: Some(1),
            written_bytes: Some(2),
            reads: Some(3),
            writes: Some(4),
        };
        assert_eq!(parsed.io, [disk]);
        let given = ["pids-max".to_owned()];
        let shown_again = shown(&parsed, &given).expect("limits");
        assert_eq!(shown_again.from_node, given);
        assert_eq!(parse(Some(&shown_again), &mut found), parsed);
        assert_eq!(shown(&RunLimits::default(), &[]), None);
        assert_eq!(parse(None, &mut found), RunLimits::default());
    }

    #[test]
    fn missing_or_unknown_limit_is_reported_by_field() {
        let mut found = Vec::new();
        let unknown = |resource| pb::Rlimit {
            resource,
            ..pb::Rlimit::default()
        };
        let limits = pb::RunLimits {
            rlimits: vec![unknown(0), unknown(99)],
            ..pb::RunLimits::default()
        };
        parse(Some(&limits), &mut found);
        let fields: Vec<&str> = found.iter().map(|v| v.field.as_str()).collect();
        let wanted = [
            "spec.limits.rlimits[0].resource",
            "spec.limits.rlimits[0].soft",
            "spec.limits.rlimits[1].resource",
            "spec.limits.rlimits[1].soft",
        ];
        assert_eq!(fields, wanted);
    }
}
