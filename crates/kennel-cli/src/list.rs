//! `ps`: the runs of a node, as a table or in another format.

use crate::{
    args::{FilterArgs, Format, LabelArgs},
    command, complete,
    failure::{Failure, note},
    link::{ANSWER_MAX, Link, print_exact, refused},
    nodes, render, sentence,
    table::in_colour,
    values,
};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use kennel_client as client;
use kennel_client::Connection;
use kennel_linux::own_terminal;
use kennel_proto::{json, pb};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IsTerminal as _},
    time::SystemTime,
};

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, Args)]
pub struct PsArgs {
    /// List ended runs too
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Select runs in this state; may be repeated or separated by commas
    #[arg(
        long = "state",
        alias = "status",
        value_parser = values::states(),
        ignore_case = true,
        value_delimiter = ',',
        value_name = "STATE"
    )]
    pub(crate) states: Vec<values::States>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Print only ids
    #[arg(short, long, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// Print whole ids, labels and commands, where a terminal has no room for them too
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// Print at most this number of runs, the newest ones
    #[arg(
        short = 'n',
        long = "limit",
        visible_alias = "last",
        value_name = "NUMBER",
        value_parser = values::count
    )]
    pub(crate) limit: Option<usize>,
    /// Sort by this column
    #[arg(
        long,
        alias = "sort-by",
        value_enum,
        ignore_case = true,
        value_name = "COLUMN",
        default_value_t
    )]
    pub(crate) sort: SortArg,
    /// Reverse the order
    #[arg(short, long)]
    pub(crate) reverse: bool,
    #[command(flatten)]
    pub(crate) parents: ParentsArgs,
}

/// Parents of runs.
#[derive(Debug, Args)]
pub(crate) struct ParentsArgs {
    /// List the children of this run only
    #[arg(long, value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) parent: Option<String>,
    /// Print each run below its parent, with two spaces more; one whose parent is not in the list stands at the left
    #[arg(long)]
    pub(crate) tree: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    /// Newest first
    #[default]
    #[value(aliases = ["created", "started", "time", ".metadata.creationtimestamp"])]
    Age,
    #[value(alias = "id")]
    Run,
    State,
    Kind,
    Pid,
    Command,
}

/// Most runs that a server returns at once.
const PAGE_SIZE: usize = 1000;

const LIVE: [pb::RunState; 5] = [
    pb::RunState::Starting,
    pb::RunState::Running,
    pb::RunState::Paused,
    pb::RunState::Stopping,
    pb::RunState::Backoff,
];

/// Lists runs. `node`: list only the runs of this one.
pub(crate) async fn ps(link: &Link, args: PsArgs, node: Option<String>) -> Result<(), Failure> {
    let mut filter = filter(&args);
    let is_selected = !filter.label_selector.is_empty();
    filter.node = node.unwrap_or_default();
    filter.parent_run_id = link.run_id_or_none(args.parents.parent.as_deref()).await?;
    let listed = all(&link.connection, filter, args.limit.unwrap_or(usize::MAX)).await;
    let mut runs = listed.map_err(refused)?.noting_others();
    sort(&mut runs, args.sort);
    if args.reverse {
        runs.reverse();
    }
    let indents = if args.parents.tree {
        descend(&mut runs)
    } else {
        vec![0; runs.len()]
    };
    let ids = || {
        let ids = runs.iter().map(|run| format!("{}\n", run.run_id));
        ids.collect()
    };
    let is_table = matches!(link.format, Format::Text | Format::Wide) && !args.quiet;
    let nodes = if is_table && runs.iter().any(|run| run.other_node.is_some()) {
        nodes::all(link).await?.nodes
    } else {
        Vec::new()
    };
    let terminal = io::stdout().is_terminal().then(own_terminal::size);
    let width = terminal.flatten().map(|size| usize::from(size.cols));
    let table = |wide: bool| {
        let look = render::TableLayout {
            wide,
            width: width.filter(|_| !wide && !args.no_trunc),
            in_colour: in_colour(),
        };
        render::table(&runs, (&indents, &nodes), SystemTime::now(), look)
    };
    let text: String = match &link.format {
        Format::Name => ids(),
        Format::Text if args.quiet => ids(),
        Format::Text => table(false),
        Format::Wide => table(true),
        other => {
            let documents = runs.iter().map(|run| other.document(&json::to_string(run)));
            documents.collect()
        }
    };
    print_exact(&text)?;
    if is_table && is_selected && runs.is_empty() {
        let ended = values::only_if(!args.all, "; with --all also ended ones");
        note(&format_args!("no run has these labels{ended}"));
    }
    Ok(())
}

fn filter(args: &PsArgs) -> pb::RunFilter {
    let mut filter = args.filters.with(&args.labels);
    let states = args.states.concat();
    filter.states.extend(states.into_iter().map(i32::from));
    let selects_ended = !filter.end_reasons.is_empty() || filter.ended_min_age.is_some();
    if filter.states.is_empty() && !args.all && !selects_ended {
        filter.states.extend(LIVE.map(i32::from));
    }
    filter
}

/// Runs of a filter, newest first.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) runs: Vec<pb::Run>,
    /// Those among them whose records the server cannot read.
    pub(crate) unreadable: Vec<pb::UnreadableRun>,
    /// Whether there are more.
    pub(crate) is_cut: bool,
}

impl Listed {
    /// Returns the runs, and notes those that are left out.
    pub(super) fn noting_others(self) -> Vec<pb::Run> {
        for run in self.unreadable {
            note(&sentence::of("unreadableRun", &run));
        }
        self.runs
    }
}

/// Returns the runs of a filter, at most so many.
pub(crate) async fn all(
    connection: &Connection,
    filter: pb::RunFilter,
    most: usize,
) -> Result<Listed, client::Failure> {
    let mut listed = Listed::default();
    let mut page_token = String::new();
    while listed.runs.len() < most {
        let room = PAGE_SIZE.min(most - listed.runs.len());
        let request = pb::ListRunsRequest {
            filter: Some(filter.clone()),
            page_size: i32::try_from(room).unwrap_or(i32::MAX),
            page_token,
        };
        let page = connection.call_within(ANSWER_MAX, request).await?;
        listed.runs.extend(page.runs);
        listed.unreadable.extend(page.unreadable_runs);
        page_token = page.next_page_token;
        listed.is_cut = !page_token.is_empty();
        if !listed.is_cut {
            break;
        }
    }
    Ok(listed)
}

/// Sorts each run below its parent, in the present order; returns the depth of each.
fn descend(runs: &mut Vec<pb::Run>) -> Vec<usize> {
    let listed: BTreeSet<String> = runs.iter().map(|run| run.run_id.clone()).collect();
    let mut below: BTreeMap<String, Vec<pb::Run>> = BTreeMap::new();
    let mut open = Vec::new();
    for run in runs.drain(..) {
        match parent_of(&run).filter(|parent| listed.contains(*parent)) {
            Some(parent) => below.entry(parent.to_owned()).or_default().push(run),
            None => open.push((0, run)),
        }
    }
    open.reverse();
    let mut indents = Vec::new();
    loop {
        while let Some((depth, run)) = open.pop() {
            let children = below.remove(&run.run_id).unwrap_or_default();
            open.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
            runs.push(run);
            indents.push(depth);
        }
        // With a reused id, runs may form a cycle: all are listed.
        let Some((_, rest)) = below.pop_first() else {
            return indents;
        };
        open.extend(rest.into_iter().map(|run| (0, run)));
    }
}

/// Returns the id of a run's parent.
pub(crate) fn parent_of(run: &pb::Run) -> Option<&str> {
    let parent = run.spec.as_ref()?.parent.as_ref()?;
    Some(&parent.run_id)
}

fn sort(runs: &mut [pb::Run], by: SortArg) {
    match by {
        SortArg::Age => {}
        SortArg::Run => runs.sort_by(|one, other| one.run_id.cmp(&other.run_id)),
        SortArg::State => runs.sort_by_key(|run| run.state),
        SortArg::Kind => runs.sort_by_key(|run| run.kind),
        SortArg::Pid => runs.sort_by_key(command::live_pid),
        SortArg::Command => runs.sort_by_cached_key(command::or_dash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(run_id: &str, parent: &str) -> pb::Run {
        let parent = (!parent.is_empty()).then(|| pb::Parent {
            run_id: parent.to_owned(),
            ..pb::Parent::default()
        });
        pb::Run {
            run_id: run_id.to_owned(),
            spec: Some(pb::RunSpec {
                parent,
                ..pb::RunSpec::default()
            }),
            ..pb::Run::default()
        }
    }

    #[test]
    fn tree_lists_each_run_once() {
        let mut runs = vec![
            child("d", "c"),
            child("c", "d"),
            child("b", "a"),
            child("a", ""),
            child("e", "elsewhere"),
        ];
        let indents = descend(&mut runs);
        let listed: Vec<(&str, usize)> = runs
            .iter()
            .map(|run| run.run_id.as_str())
            .zip(indents)
            .collect();
        let expected = [("a", 0), ("b", 1), ("e", 0), ("d", 0), ("c", 1)];
        assert_eq!(listed, expected);
    }
}
