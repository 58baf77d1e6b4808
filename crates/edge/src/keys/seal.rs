//! Seals what is kept of a run for its next attempt, under a key that is made of that of the installation.

use crate::keys::digest::DigestKey;
use kennel_lifecycle::RunId;
use kennel_supervisor::Sealer;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use std::io;

const DOMAIN: &[u8] = b"kennel.v1.SealedAttempt\0";

/// A random nonce, and then the sealed bytes with their tag. The run's id is bound to them.
impl Sealer for DigestKey {
    fn seal(&self, run: RunId, plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        let filled = SystemRandom::new().fill(&mut nonce);
        filled.map_err(|_| io::Error::other("the system gives no random numbers"))?;
        let mut sealed = Vec::with_capacity(NONCE_LEN + plain.len() + AES_256_GCM.tag_len());
        sealed.extend(nonce);
        sealed.extend(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let body = &mut sealed[NONCE_LEN..];
        let tag = key(self).seal_in_place_separate_tag(nonce, of(run), body);
        let tag = tag.map_err(|_| io::Error::other("it is too long to be sealed"))?;
        sealed.extend(tag.as_ref());
        Ok(sealed)
    }

    fn open<'a>(&self, run: RunId, sealed: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let wrong = || {
            let why = "it was not sealed by this installation for this run";
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        let (nonce, body) = sealed.split_first_chunk_mut().ok_or_else(wrong)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = key(self).open_in_place(nonce, of(run), body);
        opened.map(|plain| &*plain).map_err(|_| wrong())
    }
}

fn key(of: &DigestKey) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, &of.mac(&[DOMAIN]));
    LessSafeKey::new(key.expect("the key has the length of this algorithm's"))
}

fn of(run: RunId) -> Aad<[u8; 16]> {
    Aad::from(run.as_u128().to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: B-7
    #[test]
    fn sealed_bytes_open_only_for_their_run() {
        let (key, run) = (DigestKey::new([7; 32]), RunId::from_u128(5));
        let sealed = key.seal(run, b"hush").expect("it is sealed");
        let again = key.seal(run, b"hush").expect("it is sealed");
        assert_ne!(sealed, again, "each has a nonce of its own");
        assert!(!sealed.windows(4).any(|part| part == b"hush"));
        assert_eq!(key.open(run, &mut sealed.clone()).expect("opened"), b"hush");
        let other = RunId::from_u128(6);
        key.open(other, &mut sealed.clone()).expect_err("its run");
        let stranger = DigestKey::new([8; 32]);
        stranger
            .open(run, &mut sealed.clone())
            .expect_err("its key");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            key.open(run, &mut changed).expect_err("changed");
        }
        key.open(run, &mut sealed[..5].to_vec()).expect_err("cut");
    }
}
