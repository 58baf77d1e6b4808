//! `kennel upgrade`: replaces the server by the installed binary, and measures how long no server answered.

use super::{
    link::{Link, print_exact, refused},
    progress,
};
use crate::{failure::Failure, link::new_request_id};
use kennel_client as client;
use kennel_proto::{json::ToJson as _, pb};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longest time of the upgrade: leaving, starting, and falling back.
const PATIENCE: Duration = Duration::from_mins(2);
/// Between two checks whether a server answers.
const ASK_AGAIN: Duration = Duration::from_millis(2);

pub(crate) async fn upgrade(link: &Link) -> Result<(), Failure> {
    let before = info(link).await.map_err(refused)?;
    let request_id = new_request_id();
    begin(link, &request_id).await?;
    let done = tokio::time::timeout(PATIENCE, finish(link, &before, &request_id));
    let done = progress::during("waiting for the new server", done).await;
    let Ok(done) = done else {
        let failure = Failure::new("no server has answered since the former one was to leave");
        return Err(failure.hint("kennel status; the service's log says what it waits for"));
    };
    let (upgrade, after, unanswered) = done?;
    match upgrade.state() {
        pb::UpgradeState::Done => print_status(link, &before, &after, &upgrade, unanswered),
        _ => {
            let (from, why) = (upgrade.from_version, upgrade.why);
            let failure = Failure::new(format!("fell back to kennel {from}: {why}"));
            Err(failure.hint("the service's log has what the new server said"))
        }
    }
}

/// Requests the upgrade; a repeat returns its present state.
async fn begin(link: &Link, request_id: &str) -> Result<pb::Upgrade, Failure> {
    let request_id = request_id.to_owned();
    let begun = link.call(pb::UpgradeRequest { request_id }).await?;
    Ok(begun.upgrade.unwrap_or_default())
}

/// Polls until a new server has the result of the upgrade; also returns that server, and how long none answered. It may
/// have no generation yet: its store is unavailable.
async fn finish(
    link: &Link,
    before: &pb::ServerInfo,
    request_id: &str,
) -> Result<(pb::Upgrade, pb::ServerInfo, Duration), Failure> {
    let (mut former, mut answered) = (before.start_time, Instant::now());
    loop {
        // Without an answer the previous server is leaving, or the next one is starting.
        if let Ok(server) = info(link).await {
            if server.start_time != former {
                let unanswered = answered.elapsed();
                let upgrade = match &server.last_upgrade {
                    Some(last) if last.request_id == request_id => last.clone(),
                    // At a restarted service a repeat would begin another upgrade.
                    _ if epoch(&server) != epoch(before) => {
                        let why = "the service was restarted meanwhile: the result of the upgrade is not known";
                        return Err(Failure::new(why).hint("kennel status"));
                    }
                    // Another client's upgrade came right before this one, and its server is leaving; or it came after.
                    _ => begin(link, request_id).await?,
                };
                if upgrade.state() != pb::UpgradeState::Leaving {
                    return Ok((upgrade, server, unanswered));
                }
                former = server.start_time;
            }
            answered = Instant::now();
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn epoch(server: &pb::ServerInfo) -> Option<&str> {
    server.keeper.as_ref().map(|keeper| keeper.epoch.as_str())
}

async fn info(link: &Link) -> Result<pb::ServerInfo, client::Failure> {
    let mut admin = link.connection.admin();
    let answer = admin.get_server_info(pb::GetServerInfoRequest {}).await?;
    let server = answer.into_inner().server;
    Ok(server.unwrap_or_default())
}

fn print_status(
    link: &Link,
    before: &pb::ServerInfo,
    after: &pb::ServerInfo,
    upgrade: &pb::Upgrade,
    unanswered: Duration,
) -> Result<(), Failure> {
    let side =
        |info: &pb::ServerInfo| json!({"version": info.version, "generation": info.generation});
    print_exact(&link.either(
        || {
            let upgrade = serde_json::from_str::<Value>(&upgrade.to_json()).ok();
            let reported = json!({
                "from": side(before),
                "to": side(after),
                "unansweredSeconds": unanswered.as_secs_f64(),
                "upgrade": upgrade,
            });
            reported.to_string()
        },
        || {
            format!(
                "kennel {} (generation {}) -> kennel {} (generation {}); no server answered for {:.3} s\n",
                before.version,
                before.generation,
                after.version,
                after.generation,
                unanswered.as_secs_f64()
            )
        },
    ))
}
