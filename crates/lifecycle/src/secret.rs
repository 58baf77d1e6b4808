//! Secrets of a run: each has a name, a source, and a way to the command. A value that a caller has sent is a
//! [`SecretValue`], which no form of a spec shows or stores.

use crate::{Violation, limits, names::named, violation::count_at_most};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};
use std::{collections::BTreeMap, fmt};
use zeroize::Zeroizing;

named! {
    /// How a command gets a secret.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum SecretDelivery {
        /// The variable is the value.
        #[default]
        Variable = "variable",
        /// The variable is the path of a file in memory with the value.
        File = "file",
    }
}

/// A secret, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Name of the variable.
    pub name: String,
    /// Source of the value.
    pub source: SecretSource,
    /// How the command gets it.
    #[serde(default)]
    pub delivery: SecretDelivery,
    /// Whether the command gets it without the line end that it ends with.
    #[serde(default)]
    pub trim_newline: bool,
}

/// Source of a secret's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// The caller has sent it.
    Sent(SecretValue),
    /// A file in a directory that the server has for that, by its path there; read for each attempt.
    ServerFile(String),
    /// A credential of the server's own service, by its name; read for each attempt.
    Credential(String),
}

/// The value of a secret. Its content is in no log and no serialised form, and is overwritten when it is dropped; only
/// [`SecretValue::expose`] and [`in_clear`] hand it out.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    /// Takes the bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the bytes, for the command alone.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Whether it ends a line.
    pub fn ends_line(&self) -> bool {
        self.0.last() == Some(&b'\n')
    }

    /// Returns it without one `\n` or `\r\n` at its end.
    #[must_use]
    pub fn without_line_end(mut self) -> Self {
        if self.0.pop_if(|byte| *byte == b'\n').is_some() {
            self.0.pop_if(|byte| *byte == b'\r');
        }
        self
    }

    /// Returns why the command cannot get this value in this way.
    pub fn fault(&self, delivery: SecretDelivery) -> Option<&'static str> {
        if self.0.len() > limits::SECRET_BYTES_MAX {
            return Some("must be at most 65536 bytes");
        }
        match delivery {
            SecretDelivery::File => None,
            SecretDelivery::Variable if self.0.contains(&0) => {
                Some("must not contain a NUL byte, or be given as a file")
            }
            SecretDelivery::Variable => std::str::from_utf8(&self.0)
                .err()
                .map(|_| "must be UTF-8, or be given as a file"),
        }
    }
}

/// Shows no content, and no length.
impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(..)")
    }
}

/// Writes no content.
impl Serialize for SecretValue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_unit()
    }
}

/// Reads no content.
impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Self::default())
    }
}

/// Values with their content, for serde: for files in memory and the sealed copy alone.
pub mod in_clear {
    use super::{Deserialize, Deserializer, SecretValue, Serializer};

    /// Writes the content.
    pub fn serialize<S: Serializer>(value: &SecretValue, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(value.expose())
    }

    /// Reads the content.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SecretValue, D::Error> {
        Vec::deserialize(from).map(SecretValue::new)
    }
}

impl SecretSource {
    /// Returns its name in the access file and on the command line; absent: the caller has sent the value.
    pub fn of_server(&self) -> Option<String> {
        match self {
            Self::Sent(_) => None,
            Self::ServerFile(path) => Some(format!("file:{path}")),
            Self::Credential(name) => Some(format!("credential:{name}")),
        }
    }
}

/// Adds violations of the secrets of a command with these variables.
pub(crate) fn check(
    secrets: &[Secret],
    env: &BTreeMap<String, String>,
    found: &mut Vec<Violation>,
) {
    let (count, most) = (secrets.len(), limits::SECRETS_MAX);
    if !count_at_most("spec.secrets", count, most, "entries", found) {
        return;
    }
    for (at, secret) in secrets.iter().enumerate() {
        let field = |part: &str| format!("spec.secrets[{at}].{part}");
        let name = &secret.name;
        if let Some(why) = wrong_name(name) {
            found.push(Violation::new(field("name"), why));
        }
        if secrets[..at].iter().any(|other| other.name == *name) {
            let why = "is the name of another secret too";
            found.push(Violation::new(field("name"), why));
        }
        if env.contains_key(name) {
            let why = "is the name of a variable in `env` too";
            found.push(Violation::new(field("name"), why));
        }
        let (part, wrong) = match &secret.source {
            SecretSource::Sent(value) => ("value", value.fault(secret.delivery)),
            SecretSource::ServerFile(path) => ("server_file", wrong_path(path)),
            SecretSource::Credential(name) => ("credential", wrong_credential(name)),
        };
        found.extend(wrong.map(|why| Violation::new(field(part), why)));
    }
}

fn wrong_name(name: &str) -> Option<&'static str> {
    if name.starts_with("KENNEL_") {
        return Some("names that begin with KENNEL_ are set by the server alone");
    }
    let is_wrong = name.is_empty() || name.contains(['=', '\0']);
    if is_wrong || name.len() > limits::SECRET_NAME_BYTES_MAX {
        return Some("must be 1 to 255 bytes, without '=' and NUL");
    }
    None
}

fn wrong_path(path: &str) -> Option<&'static str> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_right = path.split('/').all(is_plain)
        && !path.contains('\0')
        && path.len() <= limits::SECRET_PATH_BYTES_MAX;
    (!is_right).then_some("must be a path of 1 to 1024 bytes without a leading '/', '.' and '..'")
}

fn wrong_credential(name: &str) -> Option<&'static str> {
    let is_wrong = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']);
    (is_wrong || name.len() > limits::SECRET_NAME_BYTES_MAX)
        .then_some("must be a name of 1 to 255 bytes without '/'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::RunSpec;

    fn secret(name: &str, source: SecretSource) -> Secret {
        Secret {
            name: name.to_owned(),
            source,
            delivery: SecretDelivery::Variable,
            trim_newline: false,
        }
    }

    fn sent(bytes: &[u8]) -> SecretSource {
        SecretSource::Sent(SecretValue::new(bytes.to_vec()))
    }

    // promise: RW-91
    #[test]
    fn secret_value_is_never_logged_or_serialized() {
        let secret = secret("A", sent(b"hush"));
        let text = format!(
            "{secret:?} {}",
            serde_json::to_string(&secret).expect("JSON")
        );
        for form in ["hush", "104"] {
            assert!(!text.contains(form), "{text}");
        }
        let read: Secret =
            serde_json::from_str(r#"{"name":"A","source":{"sent":[104,117]}}"#).expect("a secret");
        assert_eq!(read.source, sent(b""));
    }

    // promise: RW-164
    #[test]
    fn one_trailing_newline_of_secret_is_trimmed() {
        for (value, trimmed) in [
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            ("a\r", "a\r"),
            ("\n", ""),
            ("", ""),
        ] {
            let value = SecretValue::new(value.into());
            let found = value.clone().without_line_end();
            assert_eq!(found.expose(), trimmed.as_bytes(), "{:?}", value.expose());
        }
    }

    #[test]
    fn each_invalid_secret_is_a_violation() {
        let file = |path: &str| SecretSource::ServerFile(path.to_owned());
        let credential = |name: &str| SecretSource::Credential(name.to_owned());
        let faults = |secrets: Vec<Secret>| {
            let mut found = Vec::new();
            let mut spec = RunSpec::default();
            spec.command.env = [("TAKEN".to_owned(), String::new())].into();
            spec.secrets = secrets;
            check(&spec.secrets, &spec.command.env, &mut found);
            found.into_iter().map(|found| found.field).collect()
        };
        let none: Vec<String> = Vec::new();
        let good = vec![
            secret("A", file("db/password")),
            secret("B", credential("db")),
            secret("C", sent("ü".as_bytes())),
            Secret {
                delivery: SecretDelivery::File,
                ..secret("D", sent(b"\xff\0"))
            },
        ];
        assert_eq!(faults(good), none);
        for path in [
            "",
            "/etc/shadow",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            ".",
            "a\0",
        ] {
            let found: Vec<String> = faults(vec![secret("A", file(path))]);
            assert_eq!(found, ["spec.secrets[0].server_file"], "{path:?}");
        }
        for name in ["", "..", "a/b", "a\0"] {
            let found: Vec<String> = faults(vec![secret("A", credential(name))]);
            assert_eq!(found, ["spec.secrets[0].credential"], "{name:?}");
        }
        let long = vec![b'x'; limits::SECRET_BYTES_MAX + 1];
        for bytes in [&b"\0"[..], b"\xff", &long] {
            let found: Vec<String> = faults(vec![secret("A", sent(bytes))]);
            assert_eq!(found, ["spec.secrets[0].value"]);
        }
        for name in ["", "A=B", "KENNEL_X", "TAKEN"] {
            let found: Vec<String> = faults(vec![secret(name, file("a"))]);
            assert_eq!(found, ["spec.secrets[0].name"], "{name:?}");
        }
        let twice = vec![secret("A", file("a")), secret("A", file("b"))];
        assert_eq!(faults(twice), ["spec.secrets[1].name"]);
        let many = (0..=limits::SECRETS_MAX).map(|n| secret(&format!("A{n}"), file("a")));
        assert_eq!(faults(many.collect()), ["spec.secrets"]);
    }
}
