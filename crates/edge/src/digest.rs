//! Keyed digests: of a client's spec, to recognise a repeat, and of page tokens, to recognise our own.

use crate::pb::RunSpec;
use hmac::{Hmac, KeyInit, Mac};
use kennel_lifecycle::RunId;
use prost::Message;
use sha2::Sha256;
use std::fmt;

/// The way the digest of a spec is made; a change of it needs another number.
pub const SPEC_DIGEST_VERSION: i32 = 1;

/// What separates digests of one purpose from those of another under the same key.
const SPEC_DOMAIN: &[u8] = b"kennel.v1.RunSpec\0";
const AGAIN_DOMAIN: &[u8] = b"kennel.v1.RestartRequest\0";

/// A secret of this installation. The same after a restart, or no repeat is recognised.
#[derive(Clone)]
pub struct DigestKey([u8; 32]);

impl DigestKey {
    /// A key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest of a client's own fields: the same for equal specs, whatever order their maps came in.
    ///
    /// The encoding is deterministic: fields by number, maps by key, and no field that this version does not know.
    #[must_use]
    pub fn of_spec(&self, spec: &RunSpec) -> Vec<u8> {
        self.mac(&[SPEC_DOMAIN, &spec.encode_to_vec()]).to_vec()
    }

    /// The digest of a run that is made of an ended one: that of its spec, bound to the one it is made of.
    #[must_use]
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
    use crate::pb::{self, run_spec::Command};
    use std::fmt::Write;

    #[test]
    fn the_digest_of_a_spec_stays_what_it_was() {
        // Made by another implementation: HMAC-SHA256 over the domain and the encoded fields, in order.
        let digest = DigestKey::new([7; 32]).of_spec(&spec());
        let mut hex = String::new();
        for byte in digest {
            write!(hex, "{byte:02x}").expect("a string takes everything");
        }
        assert_eq!(
            hex,
            "175ac9a9743282c124f58804f48a9c797c52d009f7961e922dec94907917f152"
        );
    }

    #[test]
    fn the_order_of_a_map_does_not_matter_and_everything_else_does() {
        let key = DigestKey::new([7; 32]);
        // Field 7 (labels) twice, as a client in another language may have written it: b before a.
        let mut turned = RunSpec {
            labels: std::collections::BTreeMap::new(),
            ..spec()
        }
        .encode_to_vec();
        for entry in [b"\x0a\x01b\x12\x012", b"\x0a\x01a\x12\x011"] {
            turned.extend([0x3a, 6]);
            turned.extend(entry);
        }
        let turned = RunSpec::decode(&turned[..]).expect("a spec");
        assert_eq!(key.of_spec(&turned), key.of_spec(&spec()));

        let other = RunSpec {
            cwd: Some("/".to_owned()),
            ..spec()
        };
        assert_ne!(key.of_spec(&other), key.of_spec(&spec()));
        assert_ne!(
            DigestKey::new([8; 32]).of_spec(&spec()),
            key.of_spec(&spec())
        );
    }

    fn spec() -> RunSpec {
        RunSpec {
            command: Some(Command::Argv(pb::Argv {
                args: vec!["sleep".to_owned(), "1".to_owned()],
                ..pb::Argv::default()
            })),
            labels: [("a", "1"), ("b", "2")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            ..RunSpec::default()
        }
    }
}
