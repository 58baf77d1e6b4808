//! The usable keys of an issuer.

use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse},
};
use std::collections::HashMap;

/// Usable public keys, by their ids.
pub(crate) type KeySet = HashMap<String, (Algorithm, DecodingKey)>;

/// Reads the usable keys of a set: with an id, for signatures, and of an accepted algorithm.
pub(super) fn parse_keys(text: &[u8]) -> Result<KeySet, String> {
    let set: JwkSet = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let keys: KeySet = set.keys.iter().filter_map(usable).collect();
    if keys.is_empty() {
        return Err(
            "none has a `kid` and is an RSA, P-256, P-384 or Ed25519 key for signatures".to_owned(),
        );
    }
    Ok(keys)
}

fn usable(key: &Jwk) -> Option<(String, (Algorithm, DecodingKey))> {
    let id = key.common.key_id.clone()?;
    if !matches!(
        key.common.public_key_use,
        None | Some(PublicKeyUse::Signature)
    ) {
        return None;
    }
    let algorithm = match &key.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(on) => match on.curve {
            EllipticCurve::P256 => Algorithm::ES256,
            EllipticCurve::P384 => Algorithm::ES384,
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(on) if on.curve == EllipticCurve::Ed25519 => {
            Algorithm::EdDSA
        }
        _ => return None,
    };
    let named = key.common.key_algorithm.map(|named| named.to_string());
    if named.is_some_and(|named| named != format!("{algorithm:?}")) {
        return None;
    }
    Some((id, (algorithm, DecodingKey::from_jwk(key).ok()?)))
}
