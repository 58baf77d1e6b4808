//! Tokens signed by an issuer: those of `OpenID` Connect, and the projected service account tokens of Kubernetes.

use super::{
    fetch,
    remote_keys::{RemoteKeys, Source},
};
use crate::access::{
    TokenHash,
    key_set::{KeySet, parse_keys},
};
use jsonwebtoken::{
    Algorithm, DecodingKeyKind, Validation,
    crypto::{CryptoProvider, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind},
    signature::{self, Verifier},
};
use parking_lot::Mutex;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Permitted difference between an issuer's clock and this host's.
const SKEW: Duration = Duration::from_secs(10);
/// Most tokens that are remembered as verified.
const VERIFIED_MAX: usize = 4096;

/// An issuer, as in the access file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerEntry {
    /// The claim `iss` of its tokens.
    pub(super) name: String,
    /// Required value of their claim `aud`.
    pub(super) audience: String,
    /// The file of its public keys, a JSON Web Key Set; absent: they come from a URL.
    pub(super) keys: Option<PathBuf>,
    /// URL of such a set; absent: the issuer's discovery document names it, or there is a file.
    keys_url: Option<String>,
    /// File of the authorities for the certificate of the URL; absent: those of the web.
    pub(super) keys_ca: Option<PathBuf>,
    /// File of a token to send to the URL; absent: none.
    pub(super) keys_token: Option<PathBuf>,
}

/// The public keys of an issuer.
#[derive(Debug)]
enum Keys {
    Read(Arc<KeySet>),
    Fetched(Arc<RemoteKeys>),
}

impl Keys {
    /// Returns the keys in force. The error says why there are none.
    fn get(&self, now: SystemTime) -> Result<Arc<KeySet>, &'static str> {
        match self {
            Self::Read(keys) => Ok(Arc::clone(keys)),
            Self::Fetched(keys) => keys.keys(now),
        }
    }
}

/// An issuer whose tokens are accepted.
#[derive(Debug)]
pub(super) struct Issuer {
    audience: String,
    keys: Keys,
}

/// A token signed by an issuer, as far as it is checked again while its connection is open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signed {
    issuer: String,
    key: String,
    subject: String,
    expires: u64,
}

/// Why a token is not accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenFault {
    pub(crate) why: String,
    /// Whether the keys of its issuer are missing here: the token may be good.
    pub(crate) lacks_keys: bool,
    /// Whether another than its issuer has signed it, which no honest client's token is.
    pub(crate) is_forged: bool,
    /// Id of its issuer's key that has signed it; absent: that is not proved.
    key: Option<String>,
}

impl TokenFault {
    /// Returns what the audit log says of the token; empty: nothing of it is proved.
    pub(crate) fn credential(&self) -> String {
        self.key.as_deref().map(signed_by).unwrap_or_default()
    }
}

impl<T: Into<String>> From<T> for TokenFault {
    fn from(why: T) -> Self {
        Self {
            why: why.into(),
            ..Self::default()
        }
    }
}

/// Returns what the audit log says of a token that this key has signed.
pub(super) fn signed_by(key: &str) -> String {
    format!("token:key:{key}")
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    exp: u64,
}

impl IssuerEntry {
    /// Returns all files that it is read from when the access file is read.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.keys.iter_mut()
    }

    /// Returns the files that are read for each fetch.
    pub(super) fn later_paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.keys_ca.iter_mut().chain(&mut self.keys_token)
    }

    fn keys(&self, before: &Issuers) -> Result<Keys, String> {
        if let Some(path) = &self.keys {
            if self.keys_url.is_some() || self.keys_ca.is_some() || self.keys_token.is_some() {
                let name = &self.name;
                return Err(format!(
                    "issuer {name:?} has keys in a file and at a URL: name one of them"
                ));
            }
            return Ok(Keys::Read(Arc::new(read_keys(path)?)));
        }
        fetch::https(self.keys_url.as_ref().unwrap_or(&self.name))?;
        let source = Source {
            issuer: self.name.clone(),
            url: self.keys_url.clone(),
            ca: self.keys_ca.clone(),
            token: self.keys_token.clone(),
        };
        let same = before.remote().find(|keys| keys.source == source);
        let keys = same.map(Arc::clone);
        Ok(Keys::Fetched(
            keys.unwrap_or_else(|| Arc::new(RemoteKeys::new(source))),
        ))
    }
}

/// The issuers of the access file.
#[derive(Debug, Default)]
pub(crate) struct Issuers {
    by_name: HashMap<String, Issuer>,
    /// Tokens by their hash, with the keys by which they were verified: a signature costs more than all else of a call.
    verified: Mutex<HashMap<TokenHash, (Arc<KeySet>, Signed)>>,
}

impl Issuers {
    /// Reads keys in files; those of URLs that `before` has as well stay. Blocks.
    pub(super) fn read(entries: &[IssuerEntry], before: &Self) -> Result<Self, String> {
        // A repeated install fails harmlessly.
        let _ = PROVIDER.install_default();
        let mut issuers = HashMap::new();
        for entry in entries {
            let IssuerEntry { name, audience, .. } = entry;
            if name.is_empty() || audience.is_empty() {
                return Err(format!("an issuer or its audience is empty: {name:?}"));
            }
            let issuer = Issuer {
                audience: audience.clone(),
                keys: entry.keys(before)?,
            };
            if issuers.insert(name.clone(), issuer).is_some() {
                return Err(format!("issuer {name:?} stands there twice"));
            }
        }
        Ok(Self {
            by_name: issuers,
            verified: Mutex::default(),
        })
    }

    /// Checks a token with this hash: signature, issuer, audience, and the time in which it is valid.
    pub(super) fn check(
        &self,
        token: &str,
        hash: TokenHash,
        now: SystemTime,
    ) -> Result<Signed, TokenFault> {
        let verified = || self.verified.lock();
        if let Some((keys, signed)) = verified().get(&hash)
            && let Some(issuer) = self.by_name.get(&signed.issuer)
            && issuer
                .keys
                .get(now)
                .is_ok_and(|now| Arc::ptr_eq(&now, keys))
            && self.holds(signed, now)
        {
            return Ok(signed.clone());
        }
        let (keys, signed) = self.verify(token, now)?;
        let mut verified = verified();
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(hash, (keys, signed.clone()));
        Ok(signed)
    }

    fn verify(&self, token: &str, now: SystemTime) -> Result<(Arc<KeySet>, Signed), TokenFault> {
        let text = |error: Error| TokenFault::from(describe(error.kind()));
        let unproved: Claims =
            jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(text)?;
        let issuer = self.by_name.get(&unproved.iss);
        let issuer = issuer.ok_or("the access file does not name the token's issuer")?;
        let header = jsonwebtoken::decode_header(token).map_err(text)?;
        // No extension is known here, so RFC 7515, 4.1.11, requires a refusal.
        if header.crit.is_some() {
            return Err("the token has an extension that must be understood".into());
        }
        let key = header.kid.ok_or("the token names no key")?;
        let keys = issuer.keys.get(now).map_err(|why| TokenFault {
            lacks_keys: true,
            ..why.into()
        })?;
        let Some((algorithm, decoding)) = keys.get(&key) else {
            if let Keys::Fetched(remote) = &issuer.keys {
                remote.want();
            }
            return Err("the token's key is not its issuer's".into());
        };
        let mut validation = Validation::new(*algorithm);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.set_issuer(&[&unproved.iss]);
        validation.set_audience(&[&issuer.audience]);
        validation.validate_nbf = true;
        validation.leeway = SKEW.as_secs();
        let claims = jsonwebtoken::decode::<Claims>(token, decoding, &validation);
        let claims = claims.map_err(|error| TokenFault {
            is_forged: matches!(error.kind(), ErrorKind::InvalidSignature),
            // The signature is checked before these claims.
            key: matches!(
                error.kind(),
                ErrorKind::ExpiredSignature
                    | ErrorKind::ImmatureSignature
                    | ErrorKind::InvalidAudience
            )
            .then(|| key.clone()),
            ..text(error)
        });
        let claims = claims?.claims;
        let signed = Signed {
            issuer: claims.iss,
            key,
            subject: claims.sub,
            expires: claims.exp,
        };
        Ok((keys, signed))
    }

    /// Whether a checked token is still valid: it has not expired, and its key is still its issuer's.
    pub(super) fn holds(&self, signed: &Signed, now: SystemTime) -> bool {
        let end = Duration::from_secs(signed.expires).saturating_add(SKEW);
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let keys = self
            .by_name
            .get(&signed.issuer)
            .map(|issuer| issuer.keys.get(now));
        since.is_ok_and(|now| now <= end)
            && keys.is_some_and(|keys| keys.is_ok_and(|keys| keys.contains_key(&signed.key)))
    }

    /// Returns the keys that come from URLs.
    pub(crate) fn remote(&self) -> impl Iterator<Item = &Arc<RemoteKeys>> {
        self.by_name
            .values()
            .filter_map(|issuer| match &issuer.keys {
                Keys::Fetched(keys) => Some(keys),
                Keys::Read(_) => None,
            })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

impl Signed {
    /// Returns the id of the key that has signed it.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the principal of the token.
    pub(super) fn principal(&self) -> String {
        format!("oidc:{}#{}", self.issuer, self.subject)
    }
}

fn describe(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidAudience => "the token is for another audience",
        ErrorKind::InvalidSignature => "the token's signature is not its issuer's",
        ErrorKind::InvalidAlgorithm => "the token's algorithm is not its key's",
        ErrorKind::MissingRequiredClaim(claim) => return format!("the token has no claim {claim}"),
        _ => "the token is not known, and not signed",
    }
    .to_owned()
}

fn read_keys(path: &Path) -> Result<KeySet, String> {
    let wrong = |what: String| format!("keys in {}: {what}", path.display());
    let text = fs::read(path).map_err(|e| wrong(e.to_string()))?;
    parse_keys(&text).map_err(wrong)
}

/// Verifies signatures with ring, and makes none.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: |algorithm, key| {
        Ok(Box::new(Key {
            algorithm: *algorithm,
            kind: key.kind().clone(),
        }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct Key {
    algorithm: Algorithm,
    kind: DecodingKeyKind,
}

impl JwtVerifier for Key {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Key {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let by = |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(message, signature)
        };
        let verified = match (self.algorithm, &self.kind) {
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(
                    &RSA_PKCS1_2048_8192_SHA256,
                    message,
                    signature,
                )
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(key)) => {
                by(&ECDSA_P256_SHA256_FIXED, key)
            }
            (Algorithm::ES384, DecodingKeyKind::SecretOrDer(key)) => {
                by(&ECDSA_P384_SHA384_FIXED, key)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(key)) => by(&ED25519, key),
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access;
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
    };
    use serde_json::{Value, json};

    const ISSUER: &str = "https://issuer.example";
    const SUBJECT: &str = "system:serviceaccount:agents:planner";

    /// An issuer with a key of each kind that ring can make.
    struct Signer {
        p256: EcdsaKeyPair,
        ed25519: Ed25519KeyPair,
        random: SystemRandom,
    }

    impl Signer {
        fn new() -> Self {
            let random = SystemRandom::new();
            let alg = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let document = EcdsaKeyPair::generate_pkcs8(alg, &random).expect("a key");
            let p256 =
                EcdsaKeyPair::from_pkcs8(alg, document.as_ref(), &random).expect("key is not");
            let document = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
            let ed25519 = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("key is not");
            Self {
                p256,
                ed25519,
                random,
            }
        }

        fn keys(&self) -> Value {
            let point = self.p256.public_key().as_ref();
            let (x, y) = (&point[1..33], &point[33..65]);
            json!({ "keys": [
                { "kty": "EC", "crv": "P-256", "kid": "p", "use": "sig", "alg": "ES256",
                  "x": BASE64.encode(x), "y": BASE64.encode(y) },
                { "kty": "OKP", "crv": "Ed25519", "kid": "e",
                  "x": BASE64.encode(self.ed25519.public_key().as_ref()) },
                { "kty": "oct", "kid": "o", "k": BASE64.encode("secret") },
            ] })
        }

        fn token(&self, header: &Value, claims: &Value) -> String {
            let part = |value: &Value| BASE64.encode(value.to_string());
            let message = format!("{}.{}", part(header), part(claims));
            let signature = match header["kid"].as_str() {
                Some("e") => self.ed25519.sign(message.as_bytes()).as_ref().to_vec(),
                _ => {
                    let signed = self.p256.sign(&self.random, message.as_bytes());
                    signed.expect("it signs").as_ref().to_vec()
                }
            };
            format!("{message}.{}", BASE64.encode(signature))
        }

        fn issuers(&self) -> Issuers {
            let dir = tempfile::tempdir().expect("a directory");
            let keys = dir.path().join("keys.json");
            fs::write(&keys, self.keys().to_string()).expect("own directory");
            let entry = IssuerEntry {
                name: ISSUER.to_owned(),
                audience: "kennel".to_owned(),
                keys: Some(keys),
                keys_url: None,
                keys_ca: None,
                keys_token: None,
            };
            Issuers::read(&[entry], &Issuers::default()).expect("it is good")
        }
    }

    fn now() -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.expect("after 1970").as_secs()
    }

    fn claims() -> Value {
        json!({ "iss": ISSUER, "sub": SUBJECT, "aud": ["other", "kennel"],
                "exp": now() + 600, "nbf": now() - 5, "iat": now() })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    #[test]
    fn tokens_of_a_named_issuer_are_principals() {
        let signer = Signer::new();
        let issuers = signer.issuers();
        for header in [
            json!({"alg": "ES256", "kid": "p"}),
            json!({"alg": "EdDSA", "kid": "e"}),
        ] {
            let good = check(&issuers, &signer.token(&header, &claims()));
            let good = good.expect("it is good");
            assert_eq!(good.principal(), format!("oidc:{ISSUER}#{SUBJECT}"));
            let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(now() + seconds);
            assert!(issuers.holds(&good, at(0)));
            assert!(!issuers.holds(&good, at(620)), "it has expired");
            assert!(
                !Issuers::default().holds(&good, at(0)),
                "its issuer is gone"
            );
        }
    }

    fn check(issuers: &Issuers, token: &str) -> Result<Signed, TokenFault> {
        issuers.check(token, access::hash(token), SystemTime::now())
    }

    // promise: AC-11a
    #[test]
    fn signature_is_verified_once_for_each_key_set() {
        let signer = Signer::new();
        let mut issuers = signer.issuers();
        let token = signer.token(&json!({"alg": "ES256", "kid": "p"}), &claims());
        check(&issuers, &token).expect("it is good");
        let verified = issuers.verified.get_mut();
        let known = verified.values().next().expect("one").clone();
        // A known token is not decoded again.
        verified.insert(access::hash("x"), known);
        check(&issuers, "x").expect("it is known");
        // Other keys under the same ids.
        issuers.by_name = Signer::new().issuers().by_name;
        for token in [&*token, "x"] {
            check(&issuers, token).expect_err("it is verified again");
        }
    }

    // promise: RW-141, AC-11
    #[test]
    fn token_with_one_wrong_claim_is_refused() {
        let signer = Signer::new();
        let issuers = signer.issuers();
        let header = json!({"alg": "ES256", "kid": "p"});
        let good = signer.token(&header, &claims());
        let parts: Vec<&str> = good.split('.').collect();
        let other = BASE64.encode(with("sub", json!("another")).to_string());
        let by_claim = [
            ("aud", json!("other"), "another audience"),
            ("aud", Value::Null, "no claim aud"),
            ("exp", json!(now() - 60), "expired"),
            ("nbf", json!(now() + 60), "not valid yet"),
            ("iss", json!("https://evil"), "token's issuer"),
        ]
        .map(|(name, value, why)| (signer.token(&header, &with(name, value)), why));
        let by_header = [
            (json!({"alg": "ES256", "kid": "x"}), "key is not"),
            (json!({"alg": "ES256"}), "no key"),
            (
                json!({"alg": "ES256", "kid": "p", "crit": ["exp"], "exp": 1}),
                "must be understood",
            ),
            (json!({"alg": "EdDSA", "kid": "p"}), "algorithm"),
            (json!({"alg": "HS256", "kid": "p"}), "algorithm"),
            (json!({"alg": "HS256", "kid": "o"}), "key is not"),
            (json!({"alg": "none", "kid": "p"}), "not signed"),
        ]
        .map(|(header, why)| (signer.token(&header, &claims()), why));
        let others = [
            (format!("{}.{other}.{}", parts[0], parts[2]), "signature"),
            (format!("{}.{}.", parts[0], parts[1]), "signature"),
            (Signer::new().token(&header, &claims()), "signature"),
            ("a.b.c".to_owned(), "not signed"),
            (String::new(), "not signed"),
        ];
        for (token, why) in by_claim.into_iter().chain(by_header).chain(others) {
            let refused = check(&issuers, &token).expect_err("it is refused");
            let TokenFault { why: said, key, .. } = refused;
            assert!(said.contains(why), "{said:?} lacks {why:?}: {token}");
            assert_eq!(refused.is_forged, why == "signature", "{why}: {token}");
            let is_signed = ["another audience", "expired", "not valid yet"].contains(&why);
            assert_eq!(key.is_some(), is_signed, "{why}: {token}");
        }
    }

    #[test]
    fn key_sets_without_a_usable_key_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = dir.path().join("keys.json");
        for text in [
            "",
            "{}",
            r#"{"keys":[]}"#,
            r#"{"keys":[{"kty":"oct","kid":"a","k":"YQ"}]}"#,
        ] {
            fs::write(&keys, text).expect("own directory");
            assert!(read_keys(&keys).expect_err("no key").contains("keys.json"));
        }
    }
}
