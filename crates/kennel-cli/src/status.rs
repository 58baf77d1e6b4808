//! The state of a server, as text for people.

use crate::{
    args::RunRefs,
    calls::get,
    complete,
    failure::Failure,
    link::Link,
    sentence::Fields,
    view::{DetailView, NAME_WIDTH},
};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use kennel_proto::{fields::ToFields, pb};
use serde_json::json;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Ids of runs, or their beginning or end, to show in place of the server
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

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

/// Formats the description of a server, one fact per line.
fn described(info: &pb::ServerInfo, address: &str) -> String {
    let host = info.host.clone().unwrap_or_default();
    let (can, mut cannot): (Vec<_>, Vec<_>) =
        host.capabilities.into_iter().partition(|c| c.available);
    let can: Vec<_> = can.into_iter().map(|c| c.name).collect();
    let mut before = String::new();
    for missing in &mut cannot {
        // One cause may remove several capabilities, as without control groups.
        if missing.why == before {
            "for the same reason".clone_into(&mut missing.why);
        } else {
            before.clone_from(&missing.why);
        }
    }
    let more = json!({
        "address": address,
        "can": can.join(", "),
        "cannot": cannot.iter().map(ToFields::to_fields).collect::<Vec<_>>(),
    });
    let mut view = DetailView::new(NAME_WIDTH);
    let lines = include_str!("status.txt");
    view.lines(lines, &Fields::of(&more).inner(&info.to_fields()));
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
