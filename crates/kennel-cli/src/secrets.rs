//! Secrets that `run`, `spawn` and `restart` ask for: those of the server by name, those from here with their value.

use crate::{
    args::{SecretArg, SecretArgs, SecretFrom},
    failure::{Failure, because},
};
use kennel_client::Surroundings;
use kennel_lifecycle::{SecretValue, limits::SECRET_BYTES_MAX};
use kennel_proto::pb::{self, secret::Source};
use std::{collections::HashMap, fs::File, io::Read, path::Path};

/// Returns the caller's variables that are not passed on, since the command has them as secrets.
pub(super) fn variables(args: &SecretArgs) -> Vec<&str> {
    let all = args.secret.iter().chain(&args.secret_file);
    let named = all.flat_map(|SecretArg { name, source }| match source {
        SecretFrom::Variable(own) => vec![name.as_str(), own],
        _ => vec![name.as_str()],
    });
    named.collect()
}

/// Adds them to the spec.
pub(super) fn add(
    args: SecretArgs,
    here: &Surroundings,
    spec: &mut pb::RunSpec,
) -> Result<(), Failure> {
    let variables = args.secret.into_iter().map(|arg| (arg, 0));
    let file = pb::SecretDelivery::File.into();
    let files = args.secret_file.into_iter().map(|arg| (arg, file));
    for (SecretArg { name, source }, delivery) in variables.chain(files) {
        let source = match source {
            SecretFrom::ServerFile(path) => Source::ServerFile(path),
            SecretFrom::Credential(name) => Source::Credential(name),
            from => Source::Value(value(&from, here)?.into()),
        };
        spec.secrets.push(pb::Secret {
            name,
            source: Some(source),
            delivery,
            trim_newline: args.trim_secrets,
        });
    }
    Ok(())
}

/// Returns the values for an ended run's secrets, which are not stored.
pub(super) fn values(
    args: Vec<SecretArg>,
    here: &Surroundings,
) -> Result<HashMap<String, Vec<u8>>, Failure> {
    let values = args.into_iter().map(|SecretArg { name, source }| {
        let value = value(&source, here)?;
        Ok((name, value))
    });
    values.collect()
}

fn value(source: &SecretFrom, here: &Surroundings) -> Result<Vec<u8>, Failure> {
    match source {
        SecretFrom::Variable(name) => match here.env.get(name) {
            Some(value) => Ok(value.clone().into_bytes()),
            None => Err(Failure::new(format!(
                "there is no variable {name} here to send as a secret"
            ))
            .hint("set it, or name a source: NAME=@FILE, NAME=file:PATH or NAME=credential:NAME")),
        },
        SecretFrom::File(path) => read(path),
        SecretFrom::ServerFile(_) | SecretFrom::Credential(_) => Err(Failure::new(
            "the server reads its own secrets again: name here those alone that were sent",
        )),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let opened = File::open(path).map(|file| file.take(SECRET_BYTES_MAX as u64 + 1));
    let read = opened.and_then(|mut file| file.read_to_end(&mut bytes));
    let name = path.display();
    read.map_err(because(format_args!("cannot read a secret from {name}")))?;
    if bytes.len() > SECRET_BYTES_MAX {
        drop(SecretValue::new(bytes));
        let why = format!("{name} is longer than a secret may be, {SECRET_BYTES_MAX} bytes");
        return Err(Failure::new(why));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sentence;

    fn args(secret: &[&str], secret_file: &[&str]) -> SecretArgs {
        let parsed = |texts: &[&str]| {
            let parsed = texts.iter().map(|text| text.parse().expect("well formed"));
            parsed.collect()
        };
        SecretArgs {
            secret: parsed(secret),
            secret_file: parsed(secret_file),
            trim_secrets: false,
        }
    }

    #[test]
    fn secret_sources_are_printed_without_values() {
        let here = Surroundings::of(&[("A", "1"), ("B", "2"), ("C", "3")]);
        let mut spec = pb::RunSpec::default();
        let all = args(&["A", "X=env:B", "Y=file:db/key"], &["Z=credential:db"]);
        assert_eq!(variables(&all), ["A", "A", "X", "B", "Y", "Z"]);
        add(all, &here, &mut spec).expect("all are there");
        let lines: Vec<_> = spec
            .secrets
            .iter()
            .map(|secret| sentence::of("secret", secret))
            .collect();
        let wanted = [
            "A from sent",
            "X from sent",
            "Y from file:db/key",
            "Z from credential:db, as a file",
        ];
        assert_eq!(lines, wanted);
        let sent = spec.secrets[1].source.clone();
        assert_eq!(sent, Some(Source::Value(b"2".to_vec().into())));
        for typed in ["A=hush", "A=", "=file:a", ""] {
            let wrong = typed.parse::<SecretArg>().expect_err(typed);
            assert!(!wrong.contains("hush"), "{wrong}");
        }
        let absent = args(&["D"], &[]);
        add(absent, &here, &mut spec).expect_err("no such variable");
    }
}
