//! Values as JSON text, and an enum with data as two columns.

use crate::{PAST_ATTEMPTS_MAX, PastAttempt};
use kennel_lifecycle::{RecordedSpec, RunSpec, StopCertificate};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, Weak},
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

/// Returns a spec as JSON text: only values that differ from the default. So a field that a later version adds changes
/// no text of a spec that does not use it.
#[must_use]
pub fn spec_text(spec: &RecordedSpec) -> String {
    write(spec)
}

/// Returns the text of a spec that is written repeatedly: a run's is, in each frame of the log and each write of its
/// row.
pub(crate) fn shared_spec_text(spec: &Arc<RecordedSpec>) -> String {
    shared_sparse(spec).get().to_owned()
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

/// Returns the cached text. A shared spec does not change, and its address is not reused while it is cached here.
fn shared_sparse(spec: &Arc<RecordedSpec>) -> Arc<RawValue> {
    type Remembered = VecDeque<(Weak<RecordedSpec>, Arc<RawValue>)>;
    static REMEMBERED: Mutex<Remembered> = Mutex::new(VecDeque::new());
    // The cache is consistent at any time.
    let remembered = || REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Arc::as_ptr(spec);
    let found = remembered().iter().rev().find_map(|(known, text)| {
        let is_it = std::ptr::eq(known.as_ptr(), place);
        is_it.then(|| Arc::clone(text))
    });
    found.unwrap_or_else(|| {
        let text = RawValue::from_string(spec_text(spec)).expect(WRITES);
        let text = Arc::from(text);
        if bytes_given(spec) > REMEMBERED_BYTES_MAX {
            return text;
        }
        let mut remembered = remembered();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.pop_front();
        }
        remembered.push_back((Arc::downgrade(spec), Arc::clone(&text)));
        text
    })
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
             \"policy\":{\"kind\":\"service\",\"restart\":{\"mode\":\"always\",\
             \"delay\":{\"secs\":1,\"nanos\":0},\"factor\":2,\"max_delay\":{\"secs\":60,\"nanos\":0},\"max_restarts\":3,\
             \"min_uptime\":{\"secs\":10,\"nanos\":0}}}}"
        );
        assert_eq!(read("spec", &text), Ok(recorded));
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
