//! Values as JSON text, and an enum with data as two columns.

use crate::{PAST_ATTEMPTS_MAX, PastAttempt};
use kennel_lifecycle::StopCertificate;
use serde::{Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value};

const WRITES: &str = "a value of the vocabulary is JSON";

/// The JSON text.
pub(crate) fn write<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect(WRITES)
}

/// The JSON text as bytes.
pub(crate) fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect(WRITES)
}

/// The value of a column; the error names the column.
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

/// The name of the variant, and its data as JSON where it has some.
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

/// The value of [`split`]; the error names the two columns.
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

/// What is kept of the attempts that have ended: the newest, in order. Only the last has its certificate, which may be
/// long.
pub(crate) fn newest(past: &[PastAttempt]) -> Vec<PastAttempt> {
    let mut kept = past[past.len().saturating_sub(PAST_ATTEMPTS_MAX)..].to_vec();
    if let Some((_, earlier)) = kept.split_last_mut() {
        for one in earlier {
            one.outcome.certificate = StopCertificate::default();
        }
    }
    kept
}

/// [`newest`], for serde.
pub(crate) fn newest_alone<S: Serializer>(past: &[PastAttempt], to: S) -> Result<S::Ok, S::Error> {
    newest(past).serialize(to)
}
