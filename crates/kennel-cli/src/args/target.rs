//! Selection of runs on the command line: one, several, or by their labels. One meaning for all commands.

use crate::{complete, values};
use clap::{ArgGroup, Args};
use clap_complete::engine::ArgValueCompleter;
use kennel_lifecycle::labels::Selector;
use kennel_proto::pb;

#[derive(Debug, Args)]
pub struct RunRef {
    /// Id of the run, or its beginning or end
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) run: String,
}

#[derive(Debug, Args)]
pub struct RunRefs {
    /// Ids of runs, or their beginning or end
    #[arg(value_name = "RUN", required = true, add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<String>,
}

/// Runs as docker selects them.
#[derive(Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Select runs by label=KEY=VALUE, status=STATE, name=GLOB, owner=OWNER, reason=END_REASON, ready=true, activity=WHAT,
    /// waits=WHAT, older=TIME, newer=TIME, ended=TIME, annotation=KEY[=VALUE]. May be repeated; all must match, of one key
    /// any
    #[arg(short, long = "filter", value_name = "FILTER", value_parser = values::filter)]
    pub(crate) filters: Vec<pb::RunFilter>,
}

/// Runs that are named, or selected.
#[derive(Debug, Args)]
pub struct Targets {
    /// Ids of runs, or their beginning or end; or -l, -f or --all
    #[arg(value_name = "RUN", required_unless_present = "selected",
        conflicts_with = "selected", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

/// Selection of runs that are acted upon.
#[derive(Debug, Default, Args)]
#[command(group(ArgGroup::new("selected").args(["labels", "filters", "all"]).multiple(true)))]
pub(crate) struct SelectionArgs {
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Act on all live runs; with `rm`, on all ended ones
    #[arg(long)]
    pub(crate) all: bool,
    /// Print the selected runs, and do nothing
    #[arg(long, requires = "selected")]
    pub(crate) dry_run: bool,
    /// Act on all of them without a question
    #[arg(short, long, requires = "selected")]
    pub(crate) yes: bool,
    /// Do nothing if more runs than this match [default: 1000]
    #[arg(long, value_name = "NUMBER", requires = "selected")]
    pub(crate) at_most: Option<u32>,
}

impl SelectionArgs {
    /// Whether runs are selected, not named.
    pub(crate) fn is_given(&self) -> bool {
        self.all || !self.labels.labels.is_empty() || !self.filters.filters.is_empty()
    }

    /// Returns the filter of a request.
    pub(crate) fn filter(&self) -> pb::RunFilter {
        self.filters.with(&self.labels)
    }
}

impl FilterArgs {
    /// Returns them and the labels as one filter.
    pub(crate) fn with(&self, labels: &LabelArgs) -> pb::RunFilter {
        let mut all = pb::RunFilter::default();
        let mut selectors = vec![labels.selector()];
        for one in &self.filters {
            selectors.push(one.label_selector.clone());
            pb::add(&mut all, one);
        }
        selectors.retain(|selector| !selector.is_empty());
        all.label_selector = selectors.join(",");
        all
    }
}

/// Runs by their labels.
#[derive(Debug, Default, Args)]
pub(crate) struct LabelArgs {
    /// Select runs by labels: KEY=VALUE, KEY!=VALUE, 'KEY in (A,B)', 'KEY notin (A,B)', KEY or '!KEY', separated by
    /// commas. May be repeated; all must match
    #[arg(
        short = 'l',
        long = "label",
        visible_alias = "selector",
        value_name = "SELECTOR", add = ArgValueCompleter::new(complete::labels))]
    pub(crate) labels: Vec<Selector>,
}

impl LabelArgs {
    /// Returns the selector of a request.
    pub(crate) fn selector(&self) -> String {
        let texts: Vec<String> = self.labels.iter().map(Selector::to_string).collect();
        texts.join(",")
    }
}
