//! Flags of the commands that wait for output and keep annotations.

use super::{RunRef, SelectionArgs, flags::of_enum};
use crate::values;
use clap::Args;
use kennel_proto::pb::{Activity, OutputStream};
use std::time::Duration;

#[derive(Debug, Args)]
pub struct WaitOutputArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Regular expression that matches a part of a line; with --fixed, text; with --json, a JSON value such as
    /// '"result"'
    #[arg(value_name = "PATTERN", required_unless_present = "json")]
    pub(crate) pattern: Option<String>,
    /// Take PATTERN as text
    #[arg(short = 'F', long, conflicts_with = "json")]
    pub(crate) fixed: bool,
    /// Match lines of JSON that have a value at this JSON Pointer, such as /type: PATTERN, or any value
    #[arg(long, value_name = "POINTER")]
    pub(crate) json: Option<String>,
    /// Search this stream only
    #[arg(long, value_name = "STREAM", value_parser = of_enum("kennel.v1.OutputStream", OutputStream::from_str_name))]
    pub(crate) stream: Option<OutputStream>,
    /// Search after the event of this number [default: from the beginning]
    #[arg(
        long,
        value_name = "SEQ",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) after: u64,
    /// Longest line in bytes that is matched as a whole, up to 16 MiB [default: 64 KiB]
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) line_bytes: u32,
    /// Give up after this time with exit code 124; the run continues
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct AnnotateArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// KEY=VALUE sets an annotation, KEY- removes it
    #[arg(value_name = "KEY=VALUE|KEY-")]
    pub(crate) changes: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Change them only if the annotations have this version: 0 if there never were any [default: any]
    #[arg(long = "if-version", value_name = "NUMBER")]
    pub(crate) expected_version: Option<u64>,
    /// Activity of the run, as an output rule or the command itself reports it
    #[arg(long, value_name = "WHAT", value_parser = of_enum("kennel.v1.Activity", Activity::from_str_name))]
    pub(crate) activity: Option<Activity>,
}
