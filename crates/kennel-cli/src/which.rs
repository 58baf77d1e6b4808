//! `kennel which`: the file that a command is at the node, and where it was searched.

use super::link::Link;
use crate::failure::Failure;
use kennel_proto::pb::{self, SearchResult};

pub(crate) async fn which(link: &Link, request: pb::SpawnRequest) -> Result<(), Failure> {
    let request = pb::ResolveCommandRequest { spec: request.spec };
    let found = link.call(request).await?;
    let path = || {
        found
            .path
            .clone()
            .map_or_else(String::new, |path| path + "\n")
    };
    link.print(&found, path)?;
    if found.path.is_some() {
        return Ok(());
    }
    let places = found.searched.iter().map(|place| {
        let what = match place.result() {
            SearchResult::NotExecutable => "cannot be executed",
            SearchResult::NoAnswer => "no answer",
            SearchResult::Absent | SearchResult::Found | SearchResult::Unspecified => "absent",
        };
        format!("{}: {what}", place.path)
    });
    let places: Vec<String> = places.collect();
    let failure = Failure::new("the node has no such command");
    Err(failure.hint(format!("searched: {}", places.join(", "))))
}
