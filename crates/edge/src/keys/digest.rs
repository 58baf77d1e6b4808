//! Keyed digests: of a client's spec, to recognize a repeat, and of page tokens, to recognize Kennel's own.

use hmac::{Hmac, KeyInit, Mac};
use kennel_lifecycle::{RunId, RunSpec, SecretSource};
use kennel_supervisor::{PART_BYTES, SpecDigest, SpecPart, spec_text};
use sha2::Sha256;
use std::fmt;

/// Domain that separates digests of one purpose from those of another under the same key.
const SPEC_DOMAIN: &[u8] = b"kennel.v1.RunSpec\0";
const PART_DOMAIN: &[u8] = b"kennel.v1.RunSpec part\0";
const AGAIN_DOMAIN: &[u8] = b"kennel.v1.RestartRequest\0";

/// A secret of this installation. The same after a restart, or no repeat is recognised.
#[derive(Clone)]
pub struct DigestKey(Hmac<Sha256>);

impl DigestKey {
    /// Makes a key of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Hmac::new_from_slice(&bytes).expect("HMAC takes keys of every length"))
    }

    /// Returns the digests of a client's spec: equal for equivalent specs in any form.
    ///
    /// They cover the recorded text, which omits defaults, so that a later version computes the same digest, and the
    /// values that are not in it, each after its length.
    pub fn of_spec(&self, spec: &RunSpec) -> SpecDigest {
        let text = spec_text(&spec.compared());
        // Sorted by name, as in the text.
        let mut secrets: Vec<_> = spec.secrets.iter().collect();
        secrets.sort_by_key(|secret| &secret.name);
        let sent = secrets.iter().filter_map(|secret| match &secret.source {
            SecretSource::Sent(value) => Some(value.expose()),
            SecretSource::ServerFile(_) | SecretSource::Credential(_) => None,
        });
        let parts: [Vec<&[u8]>; 4] = SpecPart::ALL.map(|part| match part {
            SpecPart::Recorded => vec![text.as_bytes()],
            SpecPart::EnvValues => spec.command.env.values().map(String::as_bytes).collect(),
            SpecPart::Input => spec.command.initial_input.as_deref().into_iter().collect(),
            SpecPart::SentSecrets => sent.clone().collect(),
        });
        let number = |part: usize| [u8::try_from(part).expect("there are four")];
        SpecDigest {
            whole: self.of_values(SPEC_DOMAIN, &parts.concat()),
            parts: std::array::from_fn(|at| {
                first_half(self.of_values(&[PART_DOMAIN, &number(at)].concat(), &parts[at]))
            }),
        }
    }

    /// Returns the digests of a run that restarts an ended one: those of its spec, bound to the ended run.
    pub(crate) fn of_again(&self, spec: &SpecDigest, ended: RunId) -> SpecDigest {
        let ended = ended.as_u128().to_be_bytes();
        let bound = |digest: &[u8]| self.mac(&[AGAIN_DOMAIN, &ended, digest]);
        let [recorded, env, input, secrets] = spec.parts;
        SpecDigest {
            whole: bound(&spec.whole),
            parts: [first_half(bound(&recorded)), env, input, secrets],
        }
    }

    /// Returns the digest of these values.
    fn of_values(&self, domain: &[u8], values: &[&[u8]]) -> [u8; 32] {
        let lengths = values
            .iter()
            .map(|value| (value.len() as u64).to_be_bytes());
        let lengths: Vec<[u8; 8]> = lengths.collect();
        let each = lengths.iter().zip(values);
        let each = each.flat_map(|(length, value)| [&length[..], value]);
        let all: Vec<&[u8]> = [domain].into_iter().chain(each).collect();
        self.mac(&all)
    }

    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

fn first_half(digest: [u8; 32]) -> [u8; PART_BYTES] {
    let (half, _) = digest.split_first_chunk().expect("it is longer");
    *half
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
    use std::collections::HashSet;

    #[test]
    fn digest_of_a_spec_is_stable() {
        // Digests of another implementation: HMAC-SHA256 over the domain, and text, values and input after their
        // lengths.
        let digest = DigestKey::new([7; 32]).of_spec(&spec());
        assert_eq!(
            hex::encode(digest.whole),
            "da882a8128bc0a32fd34152e4ef5c472b18696b314893b786b291fc9ff7e2c42"
        );
        assert_eq!(
            digest.parts.map(hex::encode),
            [
                "25b067b75129239e3b84e49ebb3cecc1",
                "857e2f64db82d217c54c319a9d905616",
                "bdef5e44d800430b8ca5b76e5a6307ef",
                "8a862ba010a629a887bce94c03c0d6a8",
            ]
        );
    }

    // promise: RW-94
    #[test]
    fn digest_covers_every_field_and_secrets() {
        type Edit = fn(&mut RunSpec);
        const RECORDED: usize = 0;
        const ENV: usize = 1;
        const INPUT: usize = 2;
        const SECRETS: usize = 3;
        let key = DigestKey::new([7; 32]);
        let edits: [(Edit, &[usize]); 9] = [
            (|spec| spec.command.cwd = Some("/".into()), &[RECORDED]),
            (
                |spec| drop(spec.command.env.insert("A".into(), "2".into())),
                &[ENV],
            ),
            (
                |spec| drop(spec.command.env.insert("A".into(), String::new())),
                &[ENV],
            ),
            (
                |spec| spec.command.initial_input = Some(Vec::new()),
                &[RECORDED, INPUT],
            ),
            (
                |spec| spec.command.initial_input = Some(b"1".to_vec()),
                &[RECORDED, INPUT],
            ),
            (|spec| spec.labels.clear(), &[RECORDED]),
            (
                |spec| spec.secrets.push(secret(sent(b"1"))),
                &[RECORDED, SECRETS],
            ),
            (
                |spec| spec.secrets.push(secret(sent(b"2"))),
                &[RECORDED, SECRETS],
            ),
            (|spec| spec.secrets.push(secret(named("1"))), &[RECORDED]),
        ];
        let plain = key.of_spec(&spec());
        let mut digests = vec![plain.clone()];
        digests.push(DigestKey::new([8; 32]).of_spec(&spec()));
        for (edit, parts) in edits {
            let mut other = spec();
            edit(&mut other);
            let digest = key.of_spec(&other);
            let differs = |part: &usize| digest.parts[*part] != plain.parts[*part];
            let different: Vec<usize> = (0..4).filter(differs).collect();
            assert_eq!(different, parts);
            digests.push(digest);
        }
        let wholes: HashSet<_> = digests.iter().map(|digest| digest.whole).collect();
        let parts: HashSet<_> = digests.iter().map(|digest| digest.parts).collect();
        assert_eq!([wholes.len(), parts.len()], [digests.len(); 2]);
    }

    // promise: K-15
    #[test]
    fn digest_ignores_inherited_environment_and_directory() {
        let key = DigestKey::new([7; 32]);
        let mut other = spec();
        other.command.inherited.env = [("B".to_owned(), "1".to_owned())].into();
        other.command.inherited.cwd = Some("/home".into());
        assert_eq!(key.of_spec(&other), key.of_spec(&spec()));
    }

    // promise: RW-94
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
