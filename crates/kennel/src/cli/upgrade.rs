//! `kennel upgrade`: replaces the server by the installed binary, and measures how long no server answered.

use super::{
    calls::new_request_id,
    link::{Link, refused},
    progress,
};
use crate::failure::Failure;
use kennel_client as client;
use kennel_proto::{json, pb};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longest time of the upgrade: leaving, starting, and falling back.
const PATIENCE: Duration = Duration::from_mins(2);
/// Between two checks whether a server answers.
const ASK_AGAIN: Duration = Duration::from_millis(2);

pub(crate) async fn upgrade(link: &Link) -> Result<(), Failure> {
    let before = info(link).await.map_err(refused)?;
    let request_id = new_request_id();
    let admin = link.connection.admin();
    let begun = client::outlast(|| {
        let (mut admin, request_id) = (admin.clone(), request_id.clone());
        async move { admin.upgrade(pb::UpgradeRequest { request_id }).await }
    });
    begun.await.map_err(refused)?;
    let watched = watch(link, &before);
    let watched = tokio::time::timeout(PATIENCE, watched);
    let watched = progress::during("waiting for the new server", watched).await;
    let Ok((after, unanswered)) = watched else {
        let failure = Failure::new("no server has answered since the former one was to leave");
        return Err(failure.hint("kennel status; the service's log says what it waits for"));
    };
    let done = after
        .last_upgrade
        .clone()
        .filter(|u| u.request_id == request_id);
    print_status(link, &before, &after, done.as_ref(), unanswered)?;
    match done {
        Some(upgrade) if upgrade.state() == pb::UpgradeState::Done => Ok(()),
        Some(upgrade) => Err(fell_back(&upgrade)),
        None => Err(Failure::new("another upgrade has come after this one")),
    }
}

fn fell_back(upgrade: &pb::Upgrade) -> Failure {
    Failure::new(format!(
        "fell back to kennel {}: {}",
        upgrade.from_version, upgrade.why
    ))
    .hint("the service's log has what the new server said")
}

async fn info(link: &Link) -> Result<pb::ServerInfo, client::Failure> {
    let mut admin = link.connection.admin();
    let answer = admin.get_server_info(pb::GetServerInfoRequest {}).await?;
    let server = answer.into_inner().server;
    Ok(server.unwrap_or_default())
}

/// Polls until a server with another start time than this one answers; also returns how long none did. It may have no
/// generation yet: its store is unavailable.
async fn watch(link: &Link, former: &pb::ServerInfo) -> (pb::ServerInfo, Duration) {
    let mut answered = Instant::now();
    loop {
        match info(link).await {
            Ok(server) if server.start_time != former.start_time => {
                return (server, answered.elapsed());
            }
            Ok(_) => answered = Instant::now(),
            // It is leaving, or the next one is starting.
            Err(_) => {}
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn print_status(
    link: &Link,
    before: &pb::ServerInfo,
    after: &pb::ServerInfo,
    upgrade: Option<&pb::Upgrade>,
    unanswered: Duration,
) -> Result<(), Failure> {
    let side =
        |info: &pb::ServerInfo| json!({"version": info.version, "generation": info.generation});
    link.print(
        || {
            let upgrade = upgrade.map(json::to_string);
            let upgrade = upgrade.and_then(|text| serde_json::from_str::<Value>(&text).ok());
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
    )
}
