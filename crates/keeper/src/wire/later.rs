//! A peer of a later version: each sample of `wire.lock` with one field, element or value that this version does not
//! know, one at a time. None breaks a pair.

use super::{
    FromShim, Head, Message, ToKeeper, ToServer, ToShim, decode, encode, envelope,
    notes::{InitNote, InputNote, OrphanNote, WireWill},
};
use crate::{held::Held, unreadable, wire::Decoded};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const LATER: &str = "of_tomorrow";

/// What a reader makes of a body.
#[derive(Debug, PartialEq)]
enum BodyRead {
    /// The body as it would write it.
    Known(Value),
    Later,
    Broken(String),
}

fn read_as<T: Message>(body: &Value) -> BodyRead {
    let bytes = envelope::seal(body, &[]).expect("it is short");
    match decode::<T>(&bytes, &mut Vec::new()) {
        Ok(Decoded::Known { head, message, .. }) => BodyRead::Known(written(head, &message)),
        Ok(Decoded::Later { name, .. }) => {
            assert_eq!(name, LATER);
            BodyRead::Later
        }
        Ok(Decoded::Lost) => panic!("the body is in the message"),
        Err(error) => BodyRead::Broken(error.to_string()),
    }
}

fn written<T: Message>(head: Head, message: &T) -> Value {
    let (bytes, _) = encode(head, message).expect("it can be encoded");
    let body = envelope::open(&bytes).expect("our own").body;
    serde_json::from_slice(body.expect("it is short")).expect("JSON")
}

fn read(of: &str, body: &Value) -> BodyRead {
    match of {
        "ToKeeper" => read_as::<ToKeeper>(body),
        "ToServer" => read_as::<ToServer>(body),
        "ToShim" => read_as::<ToShim>(body),
        "FromShim" => read_as::<FromShim>(body),
        "InputNote" => read_file::<InputNote>(body),
        "WireWill" => read_file::<WireWill>(body),
        "OrphanNote" => read_file::<OrphanNote>(body),
        "InitNote" => read_file::<InitNote>(body),
        "Held" => read_file::<Held>(body),
        _ => panic!("{of} is not known"),
    }
}

/// Reads a file of a run; one that is not read is set aside as a whole.
fn read_file<T: Serialize + DeserializeOwned>(body: &Value) -> BodyRead {
    match unreadable::decode::<T>(body.to_string().as_bytes()) {
        Ok(file) => BodyRead::Known(serde_json::to_value(&file).expect("JSON")),
        Err(why) if why.contains(LATER) => BodyRead::Later,
        Err(why) => BodyRead::Broken(why),
    }
}

/// Whether each recorded sample is read as the version that wrote it meant it.
pub(super) fn assert_read(samples: &str) {
    let samples = samples.lines().filter_map(|line| line.split_once(' '));
    let samples = samples.filter(|(of, text)| text.starts_with('{') && *of != "ChildImage");
    for (of, text) in samples {
        let body: Value = serde_json::from_str(text).expect("JSON");
        let read = read(of, &body);
        assert!(matches!(read, BodyRead::Known(_)), "{of} {text}: {read:?}");
    }
}

/// Returns the JSON pointers of all values.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                places(field, &format!("{at}/{name}"), all);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                places(element, &format!("{at}/{index}"), all);
            }
        }
        _ => {}
    }
}

fn with(body: &Value, at: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut changed = body.clone();
    change(changed.pointer_mut(at).expect("it is there"));
    changed
}

/// Replaces a value that may be of an enum by one of tomorrow.
fn of_tomorrow(value: &Value) -> Option<Value> {
    match value {
        // Strings of 26 characters are ids.
        Value::String(text) if text.len() != 26 => Some(json!(LATER)),
        Value::Object(fields) if fields.len() == 1 => {
            let content = fields.values().next().cloned();
            Some(Value::Object(Map::from_iter([(
                LATER.to_owned(),
                content?,
            )])))
        }
        _ => None,
    }
}

/// Returns the path of a value without the places of elements, and without the name `kind` of a message.
fn path(at: &str) -> String {
    let names = at.strip_prefix("/kind").unwrap_or(at).split('/').skip(1);
    let names: Vec<&str> = names.filter(|name| name.parse::<u32>().is_err()).collect();
    names.join(".")
}

/// Why a value that is replaced is no enum's.
const OTHER_TYPES: [&str; 3] = ["missing field", "a run id", "expected a character"];

/// Tries out all samples; returns a line for each enum: what is left out where its value is not known.
pub(super) fn levels(samples: &str) -> String {
    let mut lines = BTreeSet::new();
    let samples = samples
        .lines()
        .map(|line| line.split_once(' ').expect("a type"));
    for (of, text) in samples.filter(|(of, _)| *of != "ChildImage") {
        let body: Value = serde_json::from_str(text).expect("JSON");
        let mut all = Vec::new();
        places(&body, "", &mut all);
        for at in all {
            let value = body.pointer(&at).expect("it is there");
            match value {
                // Durations of the standard library always have two fields.
                Value::Object(fields) if fields.contains_key("nanos") => continue,
                Value::Object(fields) => {
                    let more = with(&body, &at, |value| value[LATER] = json!({"a": [1]}));
                    let read = read(of, &more);
                    let is = |known: &Value| read == BodyRead::Known(known.clone());
                    if is(&body) || is(&more) {
                        continue;
                    }
                    // Only an enum value's object, with one name, cannot grow.
                    assert_eq!(fields.len(), 1, "{of} {at}: {read:?}");
                }
                Value::Array(_) => check_list(of, &body, &at),
                _ => {}
            }
            if let Some(level) = level(of, &body, &at, value) {
                let path = path(&at);
                let is_whole = level == "whole" && path.contains('.');
                assert!(!is_whole || !must_be_read(of, &path), "{of} {path}");
                lines.insert(format!("{of} {path} {level}"));
            }
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Whether all of a message is needed that has this value: it is in a plan, or the first message of a keeper or a shim.
/// Results have two kinds for ever.
fn must_be_read(of: &str, path: &str) -> bool {
    // These files need every field but `record.exit`.
    if ["WireWill", "OrphanNote"].contains(&of) {
        return path != "record.exit";
    }
    let first = ["held.", "adoptable.", "hello."];
    let is_first = first.iter().any(|kind| path.starts_with(kind));
    (is_first || path.contains("plan."))
        && !path.ends_with("cgroup_base")
        && !path.ends_with("knobs")
}

/// Appends a name that is not known to a list of names.
fn check_list(of: &str, body: &Value, at: &str) {
    let more = with(body, at, |list| {
        list.as_array_mut().expect("a list").push(json!(LATER));
    });
    if let BodyRead::Broken(why) = read(of, &more) {
        let others = ["invalid type: string", "trailing characters", "a run id"];
        assert!(
            others.iter().any(|other| why.contains(other)),
            "{of} {at}: {why}"
        );
    }
}

/// Returns what is left out if this value is not known; absent: it is no enum's.
fn level(of: &str, body: &Value, at: &str, value: &Value) -> Option<&'static str> {
    let later = of_tomorrow(value)?;
    let changed = with(body, at, |value| *value = later);
    match read(of, &changed) {
        BodyRead::Known(again) if again == changed => None,
        BodyRead::Known(again) => {
            let elements = |text: &Value| {
                let mut all = Vec::new();
                places(text, "", &mut all);
                let of_list = |at: &String| {
                    at.rsplit('/')
                        .next()
                        .is_some_and(|name| name.parse::<u32>().is_ok())
                };
                all.iter().filter(|at| of_list(at)).count()
            };
            let is_shorter = elements(&again) < elements(body);
            Some(if is_shorter { "skip" } else { "absent" })
        }
        BodyRead::Later => Some("whole"),
        BodyRead::Broken(why) => {
            let is_other = OTHER_TYPES.iter().any(|other| why.contains(other));
            assert!(is_other, "{of} {at}: {why}");
            None
        }
    }
}
