//! Values as JSON text, and an enum with data as two columns.

use crate::{PAST_ATTEMPTS_MAX, PastAttempt};
use kennel_lifecycle::{RecordedSpec, RunSpec, StopCertificate};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

const WRITES: &str = "a value of the vocabulary is JSON";

/// Returns the JSON text.
pub(crate) fn write<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect(WRITES)
}

/// Returns the JSON text as bytes.
pub(crate) fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect(WRITES)
}

/// Returns a spec as JSON text: only values that differ from the default, in the order of names. So a field that a
/// later version adds changes no text of a spec that does not use it.
#[must_use]
pub fn spec_text(spec: &RecordedSpec) -> String {
    sparse(spec).to_string()
}

/// Returns the text of a spec that is written repeatedly: a run's is, in each frame of the log and each write of its
/// row.
pub(crate) fn shared_spec_text(spec: &Arc<RecordedSpec>) -> String {
    shared_sparse(spec).to_string()
}

/// Number of specs whose JSON is cached: those of about so many runs that begin and end at a time.
const REMEMBERED_MAX: usize = 64;
/// Longer ones are not cached.
const REMEMBERED_BYTES_MAX: usize = 4096;

/// Returns the size of the parts whose length a client chooses.
fn bytes_given(spec: &RunSpec) -> usize {
    let argv = spec.command.argv.iter().map(|arg| arg.len());
    let names = spec.command.env.keys().map(String::len);
    argv.chain(names).sum()
}

/// Returns the cached form. A shared spec does not change, and its address is not reused while it is cached here.
fn shared_sparse(spec: &Arc<RecordedSpec>) -> Arc<Value> {
    type Remembered = VecDeque<(Weak<RecordedSpec>, Arc<Value>)>;
    static REMEMBERED: Mutex<Remembered> = Mutex::new(VecDeque::new());
    // The cache is consistent at any time.
    let remembered = || REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Arc::as_ptr(spec);
    let found = remembered().iter().rev().find_map(|(known, value)| {
        let is_it = std::ptr::eq(known.as_ptr(), place);
        is_it.then(|| Arc::clone(value))
    });
    found.unwrap_or_else(|| {
        let value = Arc::new(sparse(spec));
        if bytes_given(spec) > REMEMBERED_BYTES_MAX {
            return value;
        }
        let mut remembered = remembered();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.pop_front();
        }
        remembered.push_back((Arc::downgrade(spec), Arc::clone(&value)));
        value
    })
}

fn sparse(spec: &RunSpec) -> Value {
    static DEFAULT: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(RunSpec::default()).expect(WRITES));
    let mut value = serde_json::to_value(spec).expect(WRITES);
    leave_out(&mut value, &DEFAULT);
    value
}

/// Removes the values that an object shares with the default, at every depth at which both are objects. A duration is
/// one value.
fn leave_out(value: &mut Value, default: &Value) {
    let (Value::Object(value), Value::Object(default)) = (value, default) else {
        return;
    };
    if default.contains_key("nanos") {
        return;
    }
    value.retain(|name, field| {
        let Some(default) = default.get(name) else {
            return true;
        };
        if field == default {
            return false;
        }
        leave_out(field, default);
        true
    });
}

/// For serde: a spec as [`spec_text`] writes it.
pub(crate) mod spec {
    use super::{
        Arc, Deserialize, Deserializer, RecordedSpec, Serialize, Serializer, shared_sparse,
    };

    pub(crate) fn serialize<S: Serializer>(
        spec: &Arc<RecordedSpec>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        shared_sparse(spec).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<RecordedSpec>, D::Error> {
        RecordedSpec::deserialize(from).map(Arc::new)
    }
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
    use kennel_lifecycle::{RestartPolicy, RunKind};

    #[test]
    fn text_of_a_spec_has_what_differs_alone() {
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
             \"policy\":{\"kind\":\"service\",\"restart\":{\"max_restarts\":3,\"mode\":\"always\"}}}"
        );
        assert_eq!(read("spec", &text), Ok(recorded));
    }

    /// Returns each value of the default with everything around it removed.
    fn alone(value: &Value) -> Vec<Value> {
        let Value::Object(fields) = value else {
            return vec![value.clone()];
        };
        if fields.contains_key("nanos") {
            return vec![value.clone()];
        }
        let of = |(name, field): (&String, &Value)| {
            let within = alone(field).into_iter();
            let named = within.map(|one| Map::from_iter([(name.clone(), one)]).into());
            named.collect::<Vec<Value>>()
        };
        fields.iter().flat_map(of).collect()
    }

    #[test]
    fn every_field_of_a_spec_may_stand_alone() {
        let all = alone(&serde_json::to_value(RunSpec::default()).unwrap());
        assert!(all.len() > 30, "{}", all.len());
        for one in all {
            let read: Result<RecordedSpec, String> = read("spec", &one.to_string());
            assert_eq!(read, Ok(RecordedSpec::default()), "{one}");
        }
    }

    #[test]
    fn remembered_text_is_that_of_its_own_spec() {
        let long = "x".repeat(REMEMBERED_BYTES_MAX);
        for nth in 0..3 * REMEMBERED_MAX {
            let mut spec = RunSpec::default();
            spec.command.argv = vec![format!("{nth}").into()];
            if nth % 5 == 0 {
                spec.command.argv.push(long.clone().into());
            }
            let spec: Arc<RecordedSpec> = Arc::new(spec.into());
            let text = spec_text(&spec);
            assert_eq!(shared_spec_text(&spec), text);
            assert_eq!(shared_spec_text(&Arc::clone(&spec)), text);
        }
    }

    #[test]
    fn spec_of_later_version_is_read_without_additions() {
        let text = r#"{"policy":{"kind":"job","of_tomorrow":1}}"#;
        let read: RecordedSpec = read("spec", text).unwrap();
        assert_eq!(read.policy.kind, RunKind::Job);
    }
}
