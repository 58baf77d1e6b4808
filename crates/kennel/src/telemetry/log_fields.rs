//! Fields of a line of the log, and what it belongs to.

use serde_json::Value;
use std::fmt;
use tracing::{
    Event,
    field::{Field, Visit},
};
use tracing_subscriber::registry::{LookupSpan, Scope};

/// Run and trace that a line belongs to.
#[derive(Clone, Debug, Default)]
pub(super) struct LineMarks {
    pub(super) run: Option<String>,
    /// Its name.
    pub(super) name: Option<String>,
    pub(super) trace: Option<String>,
    pub(super) span: Option<String>,
}

impl LineMarks {
    /// Returns those of the innermost span that has them.
    pub(super) fn of<'a, S: LookupSpan<'a>>(scope: Option<Scope<'a, S>>) -> Self {
        let mut spans = scope.into_iter().flatten();
        let marks = spans.find_map(|span| span.extensions().get::<Self>().cloned());
        marks.unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.run.is_none() && self.trace.is_none() && self.span.is_none()
    }

    pub(super) fn pairs(self) -> impl Iterator<Item = (&'static str, String)> {
        [
            ("run_id", self.run),
            ("run_name", self.name),
            ("trace_id", self.trace),
            ("span_id", self.span),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

impl Visit for LineMarks {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mark = match field.name() {
            "run_id" => &mut self.run,
            "run_name" => &mut self.name,
            "trace_id" => &mut self.trace,
            "span_id" => &mut self.span,
            _ => return,
        };
        *mark = Some(format!("{value:?}"));
    }
}

/// Fields of a line.
#[derive(Debug, Default)]
pub(super) struct LineFields {
    pub(super) message: String,
    pub(super) others: Vec<(&'static str, Value)>,
}

impl LineFields {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.push((field.name(), value.into()));
    }
}

impl Visit for LineFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.add(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
