//! The image of a child in a sealed file: numbers and names in the body, strings and secrets as raw bytes behind it. No
//! secret is ever in a body, of which the encoder may leave copies.

use super::{envelope, strict};
use kennel_lifecycle::{SecretDelivery, SecretValue};
use kennel_linux::spawn::{ChildImage, ChildSecret};
use serde::{Deserialize, Serialize};
use std::io;

/// Describes the raw bytes: executable, working directory, arguments and variables as `NAME=value`, each ended by a
/// NUL, then the secrets.
#[derive(Serialize, Deserialize)]
struct ChildBody {
    argv: usize,
    env: usize,
    secrets: Vec<SecretHeader>,
}

#[derive(Serialize, Deserialize)]
struct SecretHeader {
    name: String,
    delivery: SecretDelivery,
    bytes: usize,
}

pub(crate) fn encode(child: &ChildImage) -> io::Result<Vec<u8>> {
    let secrets = child.secrets.iter().map(|secret| SecretHeader {
        name: secret.name.clone(),
        delivery: secret.delivery,
        bytes: secret.value.expose().len(),
    });
    let body = ChildBody {
        argv: child.argv.len(),
        env: child.env.len(),
        secrets: secrets.collect(),
    };
    let texts = [&child.executable, &child.cwd]
        .into_iter()
        .chain(&child.argv);
    let variables = || {
        child
            .env
            .iter()
            .map(|(name, value)| [name, value].map(String::as_bytes))
    };
    let mut all = texts
        .clone()
        .map(Vec::as_slice)
        .chain(variables().flatten());
    if all.any(|text| text.contains(&0)) {
        let why = "a string has a NUL byte";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut raw: Vec<&[u8]> = texts.flat_map(|text| [text.as_slice(), b"\0"]).collect();
    raw.extend(variables().flat_map(|[name, value]| [name, b"=", value, b"\0"]));
    raw.extend(child.secrets.iter().map(|secret| secret.value.expose()));
    envelope::seal(&body, &raw)
}

pub(crate) fn decode(bytes: &[u8]) -> io::Result<ChildImage> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let opened = envelope::open(bytes)?;
    let body: ChildBody = strict::read(opened.body.ok_or_else(wrong)?)?;
    let mut raw = opened.raw;
    let mut string = || {
        let end = raw.iter().position(|byte| *byte == 0).ok_or_else(wrong)?;
        let (text, rest) = raw.split_at(end);
        raw = &rest[1..];
        Ok::<_, io::Error>(text)
    };
    let executable = string()?.to_vec();
    let cwd = string()?.to_vec();
    let argv = (0..body.argv).map(|_| string().map(<[u8]>::to_vec));
    let argv = argv.collect::<io::Result<_>>()?;
    let env = (0..body.env).map(|_| {
        let line = str::from_utf8(string()?).map_err(|_| wrong())?;
        let (name, value) = line.split_once('=').ok_or_else(wrong)?;
        Ok((name.to_owned(), value.to_owned()))
    });
    let env = env.collect::<io::Result<_>>()?;
    let secrets = body.secrets.into_iter().map(|secret| {
        let (value, rest) = raw.split_at_checked(secret.bytes).ok_or_else(wrong)?;
        raw = rest;
        Ok(ChildSecret {
            name: secret.name,
            delivery: secret.delivery,
            value: SecretValue::new(value.to_vec()),
        })
    });
    Ok(ChildImage {
        secrets: secrets.collect::<io::Result<_>>()?,
        executable,
        argv,
        env,
        cwd,
    })
}
