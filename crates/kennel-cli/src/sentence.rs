//! Texts about messages of the contract, made from templates: those of `sentences.txt`, and of the tables of lines.
//!
//! Braces stand for values of fields, by their names in JSON:
//!
//! - `{by}`, `{spec.name}`: the value itself; `{.}`: the element of a list.
//! - `{stage:FORM}`: the value in one of the forms below, or in the words of the template that is named so. Elements
//!   of a list are in the form each, with commas between them, or with what follows the name of the form.
//! - `{by? by {by}|...}`: the first text if the field has a value, or its form a text, else the second one;
//!   `{state=X?...}`: if it is X.
//!
//! A comma at the beginning of a whole text is left out.

use crate::{terminal_text, values, words};
use kennel_client::Time;
use kennel_proto::{fields::ToFields, json::duration, pb};
use serde_json::{Value, json};
use std::{collections::HashMap, sync::LazyLock};

static TEMPLATES: LazyLock<HashMap<&str, &str>> =
    LazyLock::new(|| words::by_name(include_str!("sentences.txt")));

/// Returns the template of this name.
pub(crate) fn template(name: &str) -> &'static str {
    TEMPLATES.get(name).copied().unwrap_or(words::UNKNOWN)
}

/// Values that a template may name: those of the inner object go first.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    own: &'a Value,
    outer: Option<&'a Fields<'a>>,
}

/// Describes a message by its template.
pub(crate) fn of(name: &str, message: &impl ToFields) -> String {
    of_with(name, message, &Value::Null)
}

/// Describes it likewise; the template also names other values.
pub(crate) fn of_with(name: &str, message: &impl ToFields, more: &Value) -> String {
    Fields::of(more).inner(&message.to_fields()).named(name)
}

/// Describes likewise the field of a oneof that is set, if there is a template NAME.FIELD.
pub(crate) fn of_field(name: &str, message: &impl ToFields, more: &Value) -> Option<String> {
    Fields::of(more).inner(&message.to_fields()).of_field(name)
}

pub(crate) fn exit(exit: &pb::Exit) -> String {
    of("exit", exit)
}

pub(crate) fn end_reason(reason: &pb::EndReason) -> String {
    of("endReason", reason)
}

/// Describes what is known of a run's processes.
pub fn verdict(verdict: &pb::TreeVerdict) -> String {
    of("treeVerdict", verdict)
}

/// Returns the activity of a run; a dash where it is not known.
pub(crate) fn activity(activity: pb::Activity) -> &'static str {
    template(&format!("activity.{}", activity.as_str_name()))
}

impl<'a> Fields<'a> {
    pub(crate) fn of(own: &'a Value) -> Self {
        Self { own, outer: None }
    }

    pub(crate) fn inner(&'a self, own: &'a Value) -> Self {
        Self {
            own,
            outer: Some(self),
        }
    }

    /// Fills a template.
    pub(crate) fn fill(&self, template: &str) -> String {
        let mut text = String::new();
        self.push(template, &mut text);
        if text.starts_with(", ") {
            text.drain(..2);
        }
        text
    }

    /// Returns the fields of each element of a list, or the key and the value of each entry of a map.
    pub(crate) fn each(&self, list: &str) -> Vec<Value> {
        match self.get(list) {
            Some(Value::Array(elements)) => elements.clone(),
            Some(Value::Object(entries)) => {
                let entries = entries.iter();
                let entries = entries.map(|(key, value)| json!({"key": key, "value": value}));
                entries.collect()
            }
            _ => Vec::new(),
        }
    }

    /// Fills the template NAME.FIELD of a field that is set, which also names fields of that, or else the template NAME.
    fn named(&self, name: &str) -> String {
        let of_field = self.of_field(name);
        of_field.unwrap_or_else(|| self.fill(template(name)))
    }

    fn of_field(&self, name: &str) -> Option<String> {
        self.own.as_object()?.iter().find_map(|(field, value)| {
            let template = TEMPLATES.get(&*format!("{name}.{field}"))?;
            Some(self.inner(value).fill(template))
        })
    }

    fn get(&self, path: &str) -> Option<&'a Value> {
        if path == "." {
            return Some(self.own);
        }
        let own = path
            .split('.')
            .try_fold(self.own, |value, name| value.get(name));
        own.or_else(|| self.outer?.get(path))
    }

    fn push(&self, template: &str, text: &mut String) {
        let mut rest = template;
        while let Some((before, behind)) = rest.split_once('{') {
            text.push_str(before);
            let (code, after) = split_at(behind, '}');
            rest = after;
            match code.split_once('?') {
                Some((condition, texts)) => {
                    let (then, otherwise) = split_at(texts, '|');
                    let chosen = if self.holds(condition) {
                        then
                    } else {
                        otherwise
                    };
                    self.push(chosen, text);
                }
                None => text.push_str(&self.value(code)),
            }
        }
        text.push_str(rest);
    }

    fn holds(&self, condition: &str) -> bool {
        match condition.split_once('=') {
            Some((field, value)) => self.get(field).is_some_and(|found| found == value),
            None if condition.contains(':') => !self.value(condition).is_empty(),
            None => self.get(condition).is_some_and(has_value),
        }
    }

    /// Returns the text of `FIELD` or `FIELD:FORM`.
    fn value(&self, code: &str) -> String {
        let (path, form) = code.split_once(':').unwrap_or((code, ""));
        let value = self.get(path);
        value.map_or_else(String::new, |value| self.in_form(value, form))
    }

    /// Returns the value in a form: that of an enum in its words (`word`), without a prefix (`bare`), and so in lower
    /// case (`short`); names between commas in lower case (`names`); a number with a noun (`counted`); a time (`span`,
    /// `millis`, `age`, `second`); an error number (`errno`); nothing for one value (`unless`). Elements of a list are
    /// joined by commas, or by spaces (`words`).
    fn in_form(&self, value: &Value, form: &str) -> String {
        let (name, how) = form.split_once(' ').unwrap_or((form, ""));
        let plain = plain_of(value);
        match (name, value) {
            ("", _) => plain,
            ("words", Value::Array(elements)) => {
                let elements = elements.iter().map(plain_of);
                elements.collect::<Vec<_>>().join(" ")
            }
            (_, Value::Array(elements)) => {
                let elements = elements.iter().map(|element| self.in_form(element, name));
                let between = if how.is_empty() { ", " } else { how };
                elements.collect::<Vec<_>>().join(between)
            }
            ("pairs", Value::Object(entries)) => {
                let pairs = entries.iter();
                let pairs = pairs.map(|(key, value)| format!(" {key}={}", plain_of(value)));
                pairs.collect()
            }
            ("settings", Value::Object(entries)) => {
                let shell =
                    |value| values::command_line([Value::as_str(value).unwrap_or_default()]);
                let settings = entries.iter();
                let settings = settings
                    .map(|(key, value)| format!(" {}={}", plain_of(&json!(key)), shell(value)));
                settings.collect()
            }
            ("names", _) => plain.to_lowercase().replace(',', ", "),
            ("spaced", _) => plain.replace('_', " "),
            ("word", _) => words::word(&plain).to_owned(),
            ("bare", _) => plain.replacen(how, "", 1),
            ("short", _) => plain.replacen(how, "", 1).to_lowercase().replace('_', "-"),
            ("counted", _) => {
                let (one, many) = how.split_once('/').unwrap_or((how, how));
                values::counted(plain.parse::<u64>().unwrap_or_default(), one, many)
            }
            ("bytes", _) => values::short_bytes(plain.parse().unwrap_or_default()),
            ("shell", _) => values::command_line([value.as_str().unwrap_or_default()]),
            ("errno", _) => words::errno(plain.parse().unwrap_or_default()),
            ("unless", _) if plain == how => String::new(),
            ("unless" | "list", _) => plain,
            ("span", _) => duration(&plain).map_or(plain, |span| format!("{span:?}")),
            ("millis", _) => {
                let whole = duration(&plain).and_then(words::millis);
                whole.map_or(plain, |span| format!("{span:?}"))
            }
            ("age", _) => duration(&plain).map_or(plain, values::age),
            ("second", _) => second(&plain).unwrap_or(plain),
            (_, Value::String(value)) => self.fill(template(&format!("{name}.{value}"))),
            _ => Fields::of(value).named(name),
        }
    }
}

/// Splits a template at the first such character that no braces enclose.
fn split_at(template: &str, wanted: char) -> (&str, &str) {
    let mut open = 0;
    let at = template.find(|c| {
        let is_it = open == 0 && c == wanted;
        open += i32::from(c == '{') - i32::from(c == '}');
        is_it
    });
    let at = at.unwrap_or(template.len());
    (&template[..at], template.get(at + 1..).unwrap_or_default())
}

fn has_value(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(elements) => !elements.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Object(_) => true,
    }
}

/// Formats a value, safe for a line on a terminal.
fn plain_of(value: &Value) -> String {
    match value {
        Value::Null => "0".to_owned(),
        Value::String(text) => terminal_text::one_line(text),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(plain_of).collect();
            format!("[{}]", elements.join(", "))
        }
        Value::Object(_) => String::new(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
    }
}

/// Formats a time without its fraction, which is enough for a sentence.
fn second(time: &str) -> Option<String> {
    let mut time: Time = time.parse().ok()?;
    time.nanos = 0;
    Some(time.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use kennel_proto::names;
    use std::time::Duration;

    /// All templates, and all tables of lines.
    const TEXTS: [&str; 6] = [
        include_str!("sentences.txt"),
        include_str!("get.txt"),
        include_str!("status.txt"),
        include_str!("doctor.txt"),
        include_str!("limits.txt"),
        include_str!("why/in_force.txt"),
    ];
    /// Files of the contract whose messages templates describe.
    const CONTRACT: [&str; 7] = [
        include_str!("../../../proto/kennel/v1/admin_service.proto"),
        include_str!("../../../proto/kennel/v1/audit.proto"),
        include_str!("../../../proto/kennel/v1/audit_trail.proto"),
        include_str!("../../../proto/kennel/v1/event.proto"),
        include_str!("../../../proto/kennel/v1/process_service.proto"),
        include_str!("../../../proto/kennel/v1/run.proto"),
        include_str!("../../../proto/kennel/v1/terminal.proto"),
    ];
    /// Values that are no fields of the contract.
    const COMPUTED: &str = "asked callersTrace can cannot cpus end endedByShim extendedBy isLive key took trace usual waitsToBeReady wasRestarted";

    /// Returns the name of a field in JSON.
    pub(crate) fn json_name(field: &str) -> String {
        let mut name = String::new();
        let mut begins_word = false;
        for c in field.chars() {
            match c {
                '_' => {}
                _ if begins_word => name.extend(c.to_uppercase()),
                _ => name.push(c),
            }
            begins_word = c == '_';
        }
        name
    }

    #[test]
    fn each_template_names_fields_of_the_contract() {
        let code = CONTRACT.iter().flat_map(|file| file.lines());
        let code = code.map(|line| line.split("//").next().unwrap_or_default());
        let known: Vec<String> = code
            .flat_map(|line| line.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()))
            .map(json_name)
            .collect();
        for line in TEXTS.iter().flat_map(|text| text.lines()) {
            assert_eq!(
                line.matches('{').count(),
                line.matches('}').count(),
                "{line}"
            );
            for code in line.split('{').skip(1) {
                let path = code.split(['?', ':', '=', '}']).next().unwrap_or_default();
                for name in path.split('.').filter(|name| !name.is_empty()) {
                    let is_known = known.iter().any(|known| known == name);
                    assert!(
                        is_known || COMPUTED.split(' ').any(|own| own == name),
                        "{name} in {line}"
                    );
                }
            }
        }
    }

    #[test]
    fn each_field_of_a_oneof_has_its_template() {
        let by_code = ["lifecycle.annotated", "lifecycle.outputMatched"];
        let oneofs = [
            ("endReason", "kennel.v1.Run", "end_reason."),
            ("why", "kennel.v1.Run", "end_reason."),
            ("treeVerdict", "kennel.v1.Run", "tree_verdict."),
            ("lifecycle", "kennel.v1.Lifecycle", ""),
        ];
        for (template, message, before) in oneofs {
            let fields = names::fields(message).iter();
            let fields = fields.filter_map(|(path, _)| path.strip_prefix(before));
            let fields: Vec<&str> = fields.filter(|field| !field.contains('.')).collect();
            assert!(fields.len() > 5, "{template}");
            for field in fields {
                let name = format!("{template}.{}", json_name(field));
                assert!(
                    TEMPLATES.contains_key(&*name) || by_code.contains(&&*name),
                    "{name}"
                );
            }
        }
        for (template, of) in [
            ("stands", "RunState"),
            ("unverifiedArea", "UnverifiedKind"),
            ("reapedProcess", "ReapOutcome"),
            ("streamedNode", "StreamedNodeState"),
            ("signalOutcome", "SignalOutcome"),
            ("activity", "Activity"),
            ("exceeded", "Deadline"),
            ("overtime", "Deadline"),
            ("overLimit", "Limit"),
        ] {
            for value in names::values(&format!("kennel.v1.{of}")) {
                let name = format!("{template}.{}", value.name);
                assert!(TEMPLATES.contains_key(&*name), "{name}");
            }
        }
    }

    #[test]
    fn kept_and_removed_counts_are_on_one_line() {
        let mut limits = pb::Retention {
            runs_per_owner: Some(100),
            at_least: Duration::from_mins(1).try_into().ok(),
            ..pb::Retention::default()
        };
        assert_eq!(
            of("keptOutput", &limits),
            "of the last 100 ended runs of each owner, at least 60s"
        );
        limits.runs_per_owner = None;
        limits.at_most = Duration::from_secs(5).try_into().ok();
        limits.node_bytes = Some(9);
        assert_eq!(
            of("keptOutput", &limits),
            "of all ended runs, at most 5s, at most 9 bytes of all runs"
        );
        let removal = pb::OutputRemoval {
            reason: pb::OutputRemovalReason::Age.into(),
            stdout_bytes: 5,
            ..pb::OutputRemoval::default()
        };
        let reported = "removed: it was too old; 5 bytes of stdout, 0 of stderr";
        assert_eq!(of("outputRemoval", &removal), reported);
    }
}
