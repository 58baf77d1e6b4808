//! Selection of runs on the command line: one, several, or by their labels. One meaning for all commands.

use crate::complete;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use kennel_lifecycle::labels::Selector;

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

/// Runs by their labels.
#[derive(Debug, Args)]
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
