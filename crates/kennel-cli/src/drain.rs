//! Draining a node, and undoing that.

use crate::{
    failure::Failure,
    link::{Link, new_request_id},
    progress, sentence, spec, values,
};
use clap::Args;
use kennel_proto::pb;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// End all runs now, each with its own grace period
    #[arg(long, conflicts_with_all = ["deadline", "undo"])]
    pub(crate) abort: bool,
    /// End runs that are left after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "undo")]
    pub(crate) deadline: Option<Duration>,
    /// Wait until no run is left
    #[arg(long, conflicts_with = "undo")]
    pub(crate) wait: bool,
    /// Accept new runs again, as `undrain` does
    #[arg(long)]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) which: WhichNode,
}

#[derive(Debug, Args)]
pub struct WhichNode {
    /// Node of the database, by name or id [default: that of --node, or the server's own]
    #[arg(value_name = "NODE")]
    pub(crate) name: Option<String>,
}

/// Time between two checks of the remaining runs.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(crate) async fn drain(link: &Link, args: DrainArgs) -> Result<(), Failure> {
    if args.undo {
        return undrain(link).await;
    }
    let status = whole(link.call(request(&args)?).await?.status)?;
    print_status(link, &status)?;
    if args.wait {
        progress::during("waiting for runs to end", until_empty(link, status)).await?;
    }
    Ok(())
}

pub(crate) async fn undrain(link: &Link) -> Result<(), Failure> {
    let response = link.call(pb::UndrainRequest {}).await?;
    print_status(link, &whole(response.status)?)
}

/// Waits until no run is left, and prints each change.
async fn until_empty(link: &Link, mut status: pb::DrainStatus) -> Result<(), Failure> {
    while status.remaining > 0 {
        tokio::time::sleep(LOOK_AGAIN).await;
        let server = link.call(pb::GetServerInfoRequest {}).await?.server;
        let now = whole(server.and_then(|server| server.drain))?;
        if now.drain.is_none() {
            return Err(Failure::new("the drain was undone while runs were left"));
        }
        if now.remaining != status.remaining {
            print_status(link, &now)?;
        }
        status = now;
    }
    Ok(())
}

fn request(args: &DrainArgs) -> Result<pb::DrainRequest, Failure> {
    let action = if args.abort {
        pb::DrainAction::Abort
    } else {
        pb::DrainAction::Finish
    };
    Ok(pb::DrainRequest {
        action: action.into(),
        deadline: spec::span(args.deadline, "deadline")?,
        request_id: new_request_id(),
    })
}

fn print_status(link: &Link, status: &pb::DrainStatus) -> Result<(), Failure> {
    link.print(status, || sentence::of("drainStatus", status) + "\n")
}

fn whole(status: Option<pb::DrainStatus>) -> Result<pb::DrainStatus, Failure> {
    status.ok_or_else(|| Failure::new("the server's answer says nothing about a drain"))
}
