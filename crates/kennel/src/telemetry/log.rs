//! The server's log: standard error, for people by default, and the collector, where there is one.
//!
//! Lines about a run, or in a call, have its `run_id`, `run_name`, `trace_id` and `span_id`, from the fields of the
//! [`tracing`] spans around them.

use super::{line_queue::LineQueue, records::Records};
use crate::telemetry::log_fields::{LineFields, LineMarks};
use clap::ValueEnum;
use kennel_cli::{Failure, failure::failed};
use serde_json::Value;
use std::{
    fmt,
    io::{self, Write as _},
    panic,
    sync::{Arc, OnceLock},
};
use tracing::{Event, Subscriber, span};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// Default filter when `KENNEL_LOG` is not set.
const FILTER_DEFAULT: &str = "info";

/// Targets whose lines no collector gets: they are about sending to one, and would never end.
const UNHEARD: [&str; 7] = [
    "kennel::telemetry",
    "opentelemetry",
    "tonic",
    "hyper",
    "h2",
    "tower",
    "rustls",
];

/// Returns the filter. `value` is that of `KENNEL_LOG`.
pub(crate) fn filter(value: Option<&str>) -> Result<EnvFilter, Failure> {
    let directives = value.filter(|f| !f.is_empty()).unwrap_or(FILTER_DEFAULT);
    EnvFilter::try_new(directives).map_err(|cause| {
        Failure::new(format!(
            "{directives:?} is not a filter of the log: {cause}"
        ))
        .hint("write a level or a list, such as debug or info,kennel_supervisor=trace")
    })
}

/// The log of this process. When this is dropped, it waits for the last lines, for a bounded time.
pub(crate) struct ProcessLog {
    pub(crate) format: LogFormat,
    pub(super) lines: Arc<LineQueue>,
    pub(super) collected: Collected,
}

impl ProcessLog {
    /// Prints a line that has neither time nor level.
    pub(crate) fn print(&self, line: &str) {
        // Writing to the queue cannot fail.
        let _ = (&*self.lines).write_all(format!("{line}\n").as_bytes());
    }
}

impl Drop for ProcessLog {
    fn drop(&mut self) {
        self.lines.finish();
    }
}

/// Starts logging for this process, panics included.
pub(crate) fn start_log(format: LogFormat, value: Option<&str>) -> Result<ProcessLog, Failure> {
    let filter = filter(value)?;
    let queue = LineQueue::start(io::stderr());
    let queue = queue.map_err(|cause| failed("cannot start the log", &cause))?;
    let collected = Collected::default();
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines(format))
        .with_writer(Arc::clone(&queue))
        // Internal errors would bypass the queue.
        .log_internal_errors(false)
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(filter)
        .with(Marking)
        .with(lines)
        .with(collected.clone())
        .init();
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str();
        tracing::error!(
            location,
            panic = message,
            "a thread of the server has panicked"
        );
    }));
    Ok(ProcessLog {
        format,
        lines: queue,
        collected,
    })
}

/// Stores the marks of each span beside it.
struct Marking;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Marking {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, ctx: Context<'_, S>) {
        let mut marks = LineMarks::default();
        attributes.record(&mut marks);
        // Spans of libraries have no marks: their lines get those of the enclosing span.
        if let Some(span) = ctx.span(id).filter(|_| !marks.is_empty()) {
            span.extensions_mut().insert(marks);
        }
    }
}

/// Form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Formats a line.
struct Lines(LogFormat);

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let about = event.metadata();
        let marks = LineMarks::of(ctx.event_scope()).pairs();
        // Fields of the line itself are not repeated.
        let marks = marks.filter(|(name, _)| about.fields().field(name).is_none());
        match self.0 {
            LogFormat::Text => {
                SystemTime.format_time(&mut writer)?;
                write!(writer, " {:>5} ", about.level())?;
                ctx.format_fields(writer.by_ref(), event)?;
                for (name, value) in marks {
                    write!(writer, " {name}={value}")?;
                }
                writeln!(writer)
            }
            LogFormat::Json => {
                let mut time = String::new();
                SystemTime.format_time(&mut Writer::new(&mut time))?;
                let said = LineFields::of(event);
                let mut line = vec![
                    ("timestamp", Value::from(time)),
                    ("level", about.level().as_str().into()),
                    ("message", said.message.into()),
                ];
                line.extend(said.others);
                line.extend(marks.map(|(name, value)| (name, value.into())));
                line.push(("target", about.target().into()));
                let pairs = line.iter().map(|(name, value)| {
                    let name = Value::from(*name);
                    format!("{name}:{value}")
                });
                writeln!(writer, "{{{}}}", pairs.collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// The collector's part of the log: nothing, until there is a collector.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected(Arc<OnceLock<Arc<Records>>>);

impl Collected {
    /// Sends later lines to these records.
    pub(super) fn by(&self, records: &Arc<Records>) {
        // The cell is set once, at the start.
        let _ = self.0.set(Arc::clone(records));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collected {
    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let Some(records) = self.0.get() else {
            return;
        };
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        if UNHEARD.iter().all(|unheard| !target.starts_with(unheard)) {
            let marks = LineMarks::of(ctx.event_scope(event));
            records.line(level, target, LineFields::of(event), &marks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use tracing::error_span;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut written = self.0.lock();
            written.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the line that results from this, without its time.
    fn line(format: LogFormat, log: impl FnOnce()) -> String {
        let paper = Paper::default();
        let onto = paper.clone();
        let lines = tracing_subscriber::fmt::layer()
            .event_format(Lines(format))
            .with_writer(move || onto.clone())
            .with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(Marking).with(lines);
        tracing::subscriber::with_default(subscriber, log);
        let written = paper.0.lock();
        let line = String::from_utf8(written.clone()).expect("UTF-8");
        match format {
            LogFormat::Text => line.split_once(' ').expect("a time").1.to_owned(),
            LogFormat::Json => line,
        }
    }

    fn within_a_library() {
        let run = error_span!("run", run_id = %"R", trace_id = %"T");
        run.in_scope(|| {
            let library = error_span!("library", its = 1);
            library.in_scope(|| tracing::warn!(count = 2, "wo\"rds"));
        });
    }

    #[test]
    fn log_line_has_ids_of_innermost_span() {
        let text = line(LogFormat::Text, within_a_library);
        assert_eq!(text, " WARN wo\"rds count=2 run_id=R trace_id=T\n");
        let json = line(LogFormat::Json, within_a_library);
        let mut json: Value = serde_json::from_str(&json).expect("JSON");
        assert!(json["timestamp"].take().is_string());
        let wanted = serde_json::json!({
            "timestamp": null, "level": "WARN", "message": "wo\"rds", "count": 2, "run_id": "R",
            "trace_id": "T", "target": "kennel::telemetry::log::tests",
        });
        assert_eq!(json, wanted);
    }

    #[test]
    fn ids_in_event_override_ids_of_span() {
        let other = || {
            let run = error_span!("run", run_id = %"R", trace_id = %"T");
            run.in_scope(|| tracing::warn!(run_id = %"S", "words"));
        };
        let text = line(LogFormat::Text, other);
        assert_eq!(text, " WARN words run_id=S trace_id=T\n");
    }
}
