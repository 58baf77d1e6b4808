//! Description of a server, in the contract's form.

use super::{drain, retention, run, time};
use crate::{convert::certificate, enums::mapped, limits, pb};
use kennel_lifecycle::limits as bounds;
use kennel_supervisor::{Capability, EndCause, FormerServer, ServerInfo, Upgrade, UpgradeState};

pub(crate) fn server(info: ServerInfo) -> pb::ServerInfo {
    let hello = info.keeper;
    let (cgroup_base, cgroup_refused) = match hello.cgroup_base {
        Ok(base) => (base.to_string_lossy().into_owned(), String::new()),
        Err(why) => (String::new(), why),
    };
    let containment = if cgroup_base.is_empty() {
        pb::Containment::Subreaper
    } else {
        pb::Containment::Cgroup
    };
    let live = info.live.into_iter().filter(|(_, count)| *count > 0);
    pb::ServerInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node_id: info.node.to_string(),
        node_name: info.node_name,
        generation: info.generation,
        start_time: Some(time::timestamp(info.started)),
        keeper: Some(pb::Keeper {
            epoch: hello.epoch.to_string(),
            pid: hello.keeper.pid,
            version: hello.version,
            unresponsive_since: info.keeper_unresponsive.map(time::timestamp),
        }),
        host: Some(pb::HostCapabilities {
            kernel: hello.kernel,
            containment: containment.into(),
            cgroup_base,
            cgroup_refused,
            pidfs: hello.pidfs,
            boot_id: hello.host.boot_id,
            pid_namespace_inode: hello.host.pidns_inode,
            pid_namespace_init_start_ticks: hello.host.init_start_ticks,
            capabilities: hello.capabilities.into_iter().map(capability).collect(),
        }),
        store: Some(pb::StoreInfo {
            kind: info.store,
            reachable: info.store_reachable,
        }),
        live_runs: live
            .map(|(state, count)| pb::StateCount {
                state: run::state(state).into(),
                count,
            })
            .collect(),
        limits: Some(limits_in_force(info.runs_max)),
        drain: Some(drain::status(info.drain)),
        former_server: hello.former.map(former),
        last_upgrade: hello.upgrade.map(upgrade),
        retention: Some(retention::limits(&info.retention, &info.rows)),
        audit_records_lost: info.audit_lost,
        unreadable_files: info.unreadable_files,
        unreadable_records: info.unreadable_records,
        contract_level: kennel_proto::CONTRACT_LEVEL,
        lease_duration: Some(time::duration(info.lease)),
        fenced_by: info
            .fenced_by
            .map_or_else(String::new, |epoch| epoch.to_string()),
    }
}

pub(crate) fn upgrade(upgrade: Upgrade) -> pb::Upgrade {
    let (state, why) = match upgrade.state {
        UpgradeState::Leaving => (pb::UpgradeState::Leaving, String::new()),
        UpgradeState::Done => (pb::UpgradeState::Done, String::new()),
        UpgradeState::FellBack(why) => (pb::UpgradeState::FellBack, why),
    };
    pb::Upgrade {
        request_id: upgrade.request_id.unwrap_or_default(),
        state: state.into(),
        start_time: Some(time::timestamp(upgrade.at)),
        from_version: upgrade.from_version,
        to_version: upgrade.to_version,
        why,
    }
}

mapped! { fn end_cause(EndCause) -> ServerEndCause { ByItself Hung Late Upgrade } }

fn former(former: FormerServer) -> pb::FormerServer {
    pb::FormerServer {
        version: former.version,
        end_time: Some(time::timestamp(former.at)),
        served: former.served,
        cause: end_cause(former.cause).into(),
        exit: Some(certificate::exit(former.exit)),
    }
}

fn capability(found: Capability) -> pb::Capability {
    let instead = match &found.missing {
        Some(_) => found.name.instead(),
        None => "",
    };
    pb::Capability {
        name: found.name.as_str().to_owned(),
        available: found.missing.is_none(),
        why: found.missing.unwrap_or_default(),
        instead: instead.to_owned(),
    }
}

fn limits_in_force(runs_max: u32) -> pb::Limits {
    let wide = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    pb::Limits {
        runs_max,
        arg_bytes_max: wide(bounds::ARG_BYTES_MAX),
        argv_env_bytes_max: wide(bounds::ARGV_ENV_BYTES_MAX),
        env_entries_max: narrow(bounds::ENV_ENTRIES_MAX),
        initial_input_bytes_max: wide(bounds::INITIAL_INPUT_BYTES_MAX),
        request_bytes_max: wide(limits::REQUEST_BYTES_MAX),
        streams_max: narrow(limits::STREAMS_MAX),
        input_write_bytes_max: wide(bounds::INPUT_WRITE_BYTES_MAX),
        output_bytes_default: bounds::OUTPUT_MAX_BYTES_DEFAULT,
    }
}
