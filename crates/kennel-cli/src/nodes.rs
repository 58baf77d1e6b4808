//! `nodes` and `node forget`: the nodes of the database.

use crate::{
    args::Format,
    failure::Failure,
    link::{Link, print_exact},
    table::{self, Cell},
    values, words,
};
use clap::Subcommand;
use kennel_proto::pb;

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes of the database, as `kennel nodes` does
    #[command(alias = "list")]
    Ls,
    /// Close the open runs of a node as lost; refused while the node has a lease
    Forget {
        /// Name or id of the node
        #[arg(value_name = "NODE")]
        name: String,
        /// Remove the node too; records of its runs stay
        #[arg(long)]
        remove: bool,
    },
}

pub(crate) async fn nodes(link: &Link) -> Result<(), Failure> {
    let found = all(link).await?;
    // `Name` also counts as text.
    if matches!(link.format, Format::Name) {
        let names = found
            .nodes
            .iter()
            .map(|node| format!("{}\n", node.node_name));
        return print_exact(&names.collect::<String>());
    }
    link.print_all(&found.nodes, || table(&found))
}

/// Returns all nodes of the database.
pub(super) async fn all(link: &Link) -> Result<pb::ListNodesResponse, Failure> {
    link.ask(pb::ListNodesRequest {}).await
}

/// Closes the open runs of a node that does not come back.
pub(crate) async fn forget(link: &Link, node: String, remove: bool) -> Result<(), Failure> {
    let forgotten = link.ask(pb::ForgetNodeRequest { node, remove }).await?;
    let ended = forgotten.ended_runs;
    link.print(&forgotten, || {
        let done = if remove { "removed" } else { "forgotten" };
        format!("{done}; runs closed as lost: {ended}\n")
    })
}

fn table(found: &pb::ListNodesResponse) -> String {
    let row = |node: &pb::Node| {
        let own = values::only_if(node.node_id == found.own_node_id, "*");
        let reachability = words::reachability(node.reachability());
        let state = match node.drain_time {
            Some(_) => format!("{reachability}, draining"),
            None => reachability,
        };
        vec![
            Cell::from(own),
            Cell::from(&node.node_name),
            Cell::from(state),
            Cell::or_dash(node.last_heard_time),
            Cell::from(&node.address),
            Cell::from(&node.node_id),
        ]
    };
    let rows = found.nodes.iter().map(row).collect();
    table::table(
        &["", "NAME", "STATE", "LAST SEEN", "ADDRESS", "ID"],
        rows,
        false,
    )
}
