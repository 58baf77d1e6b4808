//! Values as JSON text, and an enum with data as two columns.

use crate::{PAST_ATTEMPTS_MAX, PastAttempt};
use kennel_lifecycle::{RecordedSpec, StopCertificate};
use serde::{Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value};

const WRITES: &str = "a value of the vocabulary is JSON";

/// Returns the JSON text.
pub(crate) fn write<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect(WRITES)
}

/// Returns the JSON text as bytes.
pub(crate) fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect(WRITES)
}

/// Returns a spec as JSON text: only values that differ from the default. So a field that a later version adds changes
/// no text of a spec that does not use it.
pub fn spec_text(spec: &RecordedSpec) -> String {
    write(spec)
}

/// Parses the value of a column; the error names the column.
pub(crate) fn read<T: DeserializeOwned>(column: &str, text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| format!("{column}: {e}"))
}

/// As [`read`], of a column that may be NULL.
pub(crate) fn maybe<T: DeserializeOwned>(
    column: &str,
    text: Option<&str>,
) -> Result<Option<T>, String> {
    text.map(|text| read(column, text)).transpose()
}

/// Splits a value into the name of the variant, and its data as JSON where it has some.
pub(crate) fn split<T: Serialize>(value: &T) -> (String, Option<String>) {
    match serde_json::to_value(value).expect(WRITES) {
        Value::String(name) => (name, None),
        Value::Object(tagged) => {
            let only = tagged.into_iter().next().expect("a variant has a name");
            (only.0, Some(only.1.to_string()))
        }
        other => unreachable!("{other} is no variant"),
    }
}

/// Joins the parts of [`split`]; the error names the two columns.
pub(crate) fn join<T: DeserializeOwned>(
    [name_column, detail_column]: [&str; 2],
    name: &str,
    detail: Option<&str>,
) -> Result<T, String> {
    let tagged = match detail {
        None => name.into(),
        Some(detail) => {
            let data: Value = read(detail_column, detail)?;
            Map::from_iter([(name.to_owned(), data)]).into()
        }
    };
    serde_json::from_value(tagged).map_err(|e| {
        let with = detail.map(|data| format!(" with {detail_column} {data}"));
        format!("{name_column} {name:?}{}: {e}", with.unwrap_or_default())
    })
}

/// Returns the ended attempts that a row stores: the newest, in order. Only the last has its whole certificate, which
/// may be long; of the others their usage stays.
pub(crate) fn newest(past: &[PastAttempt]) -> Vec<PastAttempt> {
    let mut kept = past[past.len().saturating_sub(PAST_ATTEMPTS_MAX)..].to_vec();
    if let Some((_, earlier)) = kept.split_last_mut() {
        for one in earlier {
            let certificate = &mut one.outcome.certificate;
            *certificate = StopCertificate {
                usage: certificate.usage.take(),
                ..StopCertificate::default()
            };
        }
    }
    kept
}

/// [`newest`], for serde.
pub(crate) fn newest_alone<S: Serializer>(past: &[PastAttempt], to: S) -> Result<S::Ok, S::Error> {
    newest(past).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{RestartPolicy, RunKind, RunSpec};

    #[test]
    fn spec_json_omits_default_values() {
        assert_eq!(spec_text(&RecordedSpec::default()), "{}");
        let mut spec = RunSpec::default();
        spec.command.argv = vec!["sh".into()];
        spec.command.env = [("TOKEN".to_owned(), "hush".to_owned())].into();
        spec.command.initial_input = Some(b"hush".to_vec());
        spec.policy.kind = RunKind::Service;
        spec.policy.restart = RestartPolicy::agent();
        let recorded = RecordedSpec::from(spec);
        let text = spec_text(&recorded);
        assert_eq!(
            text,
            "{\"command\":{\"argv\":[\"sh\"],\"env\":{\"TOKEN\":\"\"},\"initial_input\":[]},\
             \"policy\":{\"kind\":\"service\",\"restart\":{\"mode\":\"always\",\
             \"delay\":{\"secs\":1,\"nanos\":0},\"factor\":2,\"max_delay\":{\"secs\":60,\"nanos\":0},\"max_restarts\":3,\
             \"min_uptime\":{\"secs\":10,\"nanos\":0}}}}"
        );
        assert_eq!(read("spec", &text), Ok(recorded));
    }

    #[test]
    fn spec_of_later_version_is_read_without_additions() {
        let text = r#"{"policy":{"kind":"job","of_tomorrow":1}}"#;
        let read: RecordedSpec = read("spec", text).unwrap();
        assert_eq!(read.policy.kind, RunKind::Job);
    }
}
