//! Keyed digests: of a client's spec, to recognize a repeat, and of page tokens, to recognize Kennel's own.

use hmac::{Hmac, KeyInit, Mac};
use kennel_lifecycle::{RunId, RunSpec, SecretSource};
use kennel_supervisor::spec_text;
use sha2::Sha256;
use std::fmt;

/// Version of the spec digest's algorithm; a change needs another number.
pub(crate) const SPEC_DIGEST_VERSION: i32 = 3;

/// Domain that separates digests of one purpose from those of another under the same key.
const SPEC_DOMAIN: &[u8] = b"kennel.v1.RunSpec\0";
const AGAIN_DOMAIN: &[u8] = b"kennel.v1.RestartRequest\0";

/// A secret of this installation. The same after a restart, or no repeat is recognised.
#[derive(Clone)]
pub struct DigestKey([u8; 32]);

impl DigestKey {
    /// Makes a key of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the digest of a client's whole spec: equal for equivalent specs in any form.
    ///
    /// The digest covers the recorded text, which omits defaults, so that a later version computes the same digest;
    /// then the secrets that are not in it, each after its length.
    pub fn of_spec(&self, spec: &RunSpec) -> Vec<u8> {
        let text = spec_text(&spec.recorded());
        let input = spec.command.initial_input.as_deref();
        let values = spec.command.env.values().map(String::as_bytes);
        // In the order of the text.
        let mut secrets: Vec<_> = spec.secrets.iter().collect();
        secrets.sort_by_key(|secret| &secret.name);
        let sent = secrets.iter().filter_map(|secret| match &secret.source {
            SecretSource::Sent(value) => Some(value.expose()),
            SecretSource::ServerFile(_) | SecretSource::Credential(_) => None,
        });
        let parts = [text.as_bytes()].into_iter().chain(values);
        let parts: Vec<&[u8]> = parts.chain(input).chain(sent).collect();
        let lengths = parts.iter().map(|part| (part.len() as u64).to_be_bytes());
        let lengths: Vec<[u8; 8]> = lengths.collect();
        let each = lengths.iter().zip(parts);
        let each = each.flat_map(|(length, part)| [&length[..], part]);
        let parts: Vec<&[u8]> = [SPEC_DOMAIN].into_iter().chain(each).collect();
        self.mac(&parts).to_vec()
    }

    /// Returns the digest of a run that restarts an ended one: that of its spec, bound to the ended run.
    pub(crate) fn of_again(&self, spec: &[u8], ended: RunId) -> Vec<u8> {
        let ended = ended.as_u128().to_be_bytes();
        self.mac(&[AGAIN_DOMAIN, &ended, spec]).to_vec()
    }

    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{Secret, SecretDelivery, SecretValue};
    use std::fmt::Write;

    #[test]
    fn digest_of_a_spec_is_stable() {
        // Made by another implementation: HMAC-SHA256 over the domain, and text, values and input after their lengths.
        let digest = DigestKey::new([7; 32]).of_spec(&spec());
        let mut hex = String::new();
        for byte in digest {
            write!(hex, "{byte:02x}").expect("a string takes everything");
        }
        assert_eq!(
            hex,
            "da882a8128bc0a32fd34152e4ef5c472b18696b314893b786b291fc9ff7e2c42"
        );
    }

    #[test]
    fn digest_depends_on_every_part_and_on_secrets() {
        let key = DigestKey::new([7; 32]);
        let edits: [fn(&mut RunSpec); 9] = [
            |spec| spec.command.cwd = Some("/".into()),
            |spec| drop(spec.command.env.insert("A".into(), "2".into())),
            |spec| drop(spec.command.env.insert("A".into(), String::new())),
            |spec| spec.command.initial_input = Some(Vec::new()),
            |spec| spec.command.initial_input = Some(b"1".to_vec()),
            |spec| spec.labels.clear(),
            |spec| spec.secrets.push(secret(sent(b"1"))),
            |spec| spec.secrets.push(secret(sent(b"2"))),
            |spec| spec.secrets.push(secret(named("1"))),
        ];
        let mut digests = vec![key.of_spec(&spec())];
        digests.push(DigestKey::new([8; 32]).of_spec(&spec()));
        for edit in edits {
            let mut other = spec();
            edit(&mut other);
            digests.push(key.of_spec(&other));
        }
        let different: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(different.len(), digests.len());
    }

    #[test]
    fn digest_ignores_the_order_of_secrets() {
        let key = DigestKey::new([7; 32]);
        let of = |secrets: [(&str, &[u8]); 2]| {
            let mut spec = spec();
            spec.secrets = secrets
                .map(|(name, value)| Secret {
                    name: name.to_owned(),
                    ..secret(sent(value))
                })
                .into();
            (key.of_spec(&spec), spec.recorded())
        };
        let one = of([("A", b"1"), ("B", b"2")]);
        assert_eq!(one, of([("B", b"2"), ("A", b"1")]));
        assert_ne!(one.0, of([("B", b"1"), ("A", b"2")]).0);
    }

    fn sent(bytes: &[u8]) -> SecretSource {
        SecretSource::Sent(SecretValue::new(bytes.to_vec()))
    }

    fn named(path: &str) -> SecretSource {
        SecretSource::ServerFile(path.to_owned())
    }

    fn secret(source: SecretSource) -> Secret {
        Secret {
            name: "S".to_owned(),
            source,
            delivery: SecretDelivery::Variable,
            trim_newline: false,
        }
    }

    fn spec() -> RunSpec {
        let mut spec = RunSpec::default();
        spec.command.argv = vec!["sleep".into(), "1".into()];
        spec.command.env = [("A".to_owned(), "1".to_owned())].into();
        spec.labels = [("a", "1"), ("b", "2")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        spec
    }
}
