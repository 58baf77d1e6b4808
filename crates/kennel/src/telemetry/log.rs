//! The server's log: standard error, for people by default.

use crate::{args::LogFormat, failure::Failure};
use std::io;
use tracing_subscriber::EnvFilter;

/// What is logged when `KENNEL_LOG` is not set.
const FILTER_DEFAULT: &str = "info";

/// What is logged. `value` is that of `KENNEL_LOG`.
pub(crate) fn filter(value: Option<&str>) -> Result<EnvFilter, Failure> {
    let directives = value.filter(|f| !f.is_empty()).unwrap_or(FILTER_DEFAULT);
    EnvFilter::try_new(directives).map_err(|cause| {
        Failure::new(format!(
            "KENNEL_LOG={directives:?} is not a filter: {cause}"
        ))
        .hint("write a level or a list, such as debug or info,kennel_supervisor=trace")
    })
}

/// Starts logging for this process.
pub(crate) fn start_log(format: LogFormat, value: Option<&str>) -> Result<(), Failure> {
    let filter = filter(value)?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
