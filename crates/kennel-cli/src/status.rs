//! The state of a server, as text for people.

use super::{calls::get, drain, link::Link, view::View, words};
use crate::{
    args::{RunRefs, StatusArgs},
    failure::Failure,
    retention,
};
use kennel_proto::pb;

/// Prints the status of the server, or of runs.
pub(crate) async fn status(link: &Link, args: StatusArgs) -> Result<u8, Failure> {
    if !args.runs.is_empty() {
        return get(link, RunRefs { runs: args.runs }).await;
    }
    let server = server(link).await?;
    link.print(&server, || described(&server, &link.address))?;
    Ok(0)
}

/// Asks the server for its state.
pub(super) async fn server(link: &Link) -> Result<pb::ServerInfo, Failure> {
    let server = link.ask(pb::GetServerInfoRequest {}).await?.server;
    server.ok_or_else(|| Failure::new("the server's answer says nothing about it"))
}

/// Returns what this version cannot read of runs; absent: nothing.
fn unreadable(info: &pb::ServerInfo) -> Option<String> {
    let (files, records) = (info.unreadable_files, info.unreadable_records);
    let files = format!("{files} files of runs, in <data-dir>/unreadable");
    let records = format!("{records} records of open runs");
    let what = match (info.unreadable_files, info.unreadable_records) {
        (0, 0) => return None,
        (_, 0) => files,
        (0, _) => records,
        _ => format!("{files}, and {records}"),
    };
    Some(format!("{what}; the log says why"))
}

/// Formats the description of a server, one fact per line.
fn described(info: &pb::ServerInfo, address: &str) -> String {
    let mut view = View::default();
    view.line("server", format!("kennel {} on {address}", info.version));
    view.some("since", info.start_time);
    view.line("node", format!("{} ({})", info.node_name, info.node_id));
    view.line("generation", info.generation);
    if !info.fenced_by.is_empty() {
        let by = &info.fenced_by;
        view.line(
            "fenced",
            format!("keeper {by} has the lease of this node: no new runs; those that run continue"),
        );
    }
    if let Some(keeper) = &info.keeper {
        let pb::Keeper {
            epoch,
            pid,
            version,
            unresponsive_since,
        } = keeper;
        view.line(
            "keeper",
            format!("pid {pid}, epoch {epoch}, kennel {version}"),
        );
        if let Some(since) = unresponsive_since {
            view.line(
                "keeper",
                format!("does NOT answer since {since}: nothing is started, signalled or ended; running runs continue"),
            );
        }
    }
    view.some(
        "previous server",
        info.former_server.as_ref().map(words::former),
    );
    view.some(
        "last upgrade",
        info.last_upgrade.as_ref().map(words::upgrade),
    );
    if let Some(store) = &info.store {
        let answers = if store.reachable {
            "answers"
        } else {
            "does NOT answer: no new runs; running runs continue"
        };
        view.line("store", format!("{}, {answers}", store.kind));
    }
    if let Some(host) = &info.host {
        let held = if host.cgroup_base.is_empty() {
            format!("shim alone; no control groups: {}", host.cgroup_refused)
        } else {
            format!("shim, and control groups under {}", host.cgroup_base)
        };
        view.line("containment", held);
        view.line("kernel", &host.kernel);
        let (can, cannot): (Vec<_>, Vec<_>) = host.capabilities.iter().partition(|c| c.available);
        let can: Vec<&str> = can.iter().map(|c| c.name.as_str()).collect();
        view.line("can", can.join(", "));
        let mut before = "";
        for missing in cannot {
            let pb::Capability {
                name, why, instead, ..
            } = missing;
            // One cause may take several of them, as without control groups.
            let cause = if why == before {
                "for the same reason"
            } else {
                why
            };
            before = why;
            view.line("cannot", format!("{name}: {cause}; instead: {instead}"));
        }
    }
    let live = words::live_runs(info, "none");
    let room = info.limits.as_ref().map_or(0, |l| l.runs_max);
    view.line("live runs", format!("{live} (at most {room})"));
    if let Some(kept) = &info.retention {
        view.line("keeps output", retention::kept(kept));
        view.line("keeps records", retention::records(kept));
    }
    if info.audit_records_lost > 0 {
        let lost = info.audit_records_lost;
        view.line(
            "audit",
            format!("CANNOT be written; {lost} records are lost"),
        );
    }
    if let Some(unreadable) = unreadable(info) {
        view.line("unreadable", unreadable);
    }
    if let Some(status) = info.drain.as_ref().filter(|s| s.drain.is_some()) {
        view.line("drain", drain::line(status));
    }
    view.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_reason_is_printed_once() {
        let lacks = |name: &str, why: &str| pb::Capability {
            name: name.to_owned(),
            why: why.to_owned(),
            instead: "less".to_owned(),
            ..pb::Capability::default()
        };
        let host = pb::HostCapabilities {
            capabilities: vec![
                lacks("cgroup", "no groups"),
                lacks("cgroup_kill", "no groups"),
                lacks("run_as", "no root"),
            ],
            ..pb::HostCapabilities::default()
        };
        let info = pb::ServerInfo {
            host: Some(host),
            ..pb::ServerInfo::default()
        };
        let shown = described(&info, "unix:/run/kennel.sock");
        let lines = shown.lines().filter_map(|l| l.strip_prefix("cannot"));
        let lines: Vec<&str> = lines.map(str::trim_start).collect();
        assert_eq!(
            lines,
            [
                "cgroup: no groups; instead: less",
                "cgroup_kill: for the same reason; instead: less",
                "run_as: no root; instead: less",
            ]
        );
    }
}
