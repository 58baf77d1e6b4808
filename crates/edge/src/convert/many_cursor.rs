//! The position in the events of one node's runs, a part of the cursor of a multi-run stream.
//!
//! Numbers are LEB128 except the ids: version, seal of the filter, form, tail, the delivered stretches, and the runs
//! that were not delivered completely. Not a secret, and valid at every node: it gives no access beyond the reader's
//! own, because each run in it is checked against the filter.

use super::token::filter_text;
use crate::keys::digest::DigestKey;
use bytes::Bytes;
use kennel_lifecycle::RunId;
use kennel_supervisor::{
    Age, Amount, ConsumerKey, ConsumerPlace, Form, ListFilter, ManyReached, Reached, Tail,
};
use sha2::{Digest, Sha256};

pub(super) const VERSION_OF_NODES: u8 = 18;

const VERSION: u8 = 19;
/// After a seal, the reader and the number of the message: a cursor that a consumer got.
const VERSION_OF_CONSUMER: u8 = 17;
const CONSUMER_DOMAIN: &[u8] = b"kennel.v1.consumer_cursor\0";
const SEAL_DOMAIN: &[u8] = b"kennel.v1.many_cursor\0";
pub(super) const SEAL_BYTES: usize = 8;

/// Filter that a cursor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal(pub(super) [u8; SEAL_BYTES]);

impl Seal {
    pub(crate) fn of(filter: &ListFilter) -> Self {
        let digest = Sha256::new()
            .chain_update(SEAL_DOMAIN)
            .chain_update(filter_text(filter))
            .finalize();
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(&digest[..SEAL_BYTES]);
        Self(seal)
    }

    pub(crate) fn bytes(self) -> [u8; SEAL_BYTES] {
        self.0
    }
}

/// A decoded cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManyCursor {
    pub(crate) seal: Seal,
    pub(crate) form: Option<Form>,
    pub(crate) reached: ManyReached,
}

/// Whether these bytes look like a cursor of a multi-run stream.
pub(crate) fn is_of_many(cursor: &[u8]) -> bool {
    matches!(
        cursor.first(),
        Some(&(VERSION_OF_NODES | VERSION_OF_CONSUMER))
    )
}

/// Returns the position in a cursor, also in one that a consumer got.
pub(super) fn without_place(cursor: &[u8]) -> Option<&[u8]> {
    match cursor {
        [VERSION_OF_CONSUMER, rest @ ..] => rest.get(SEAL_BYTES + 16..),
        plain => Some(plain),
    }
}

/// Makes the cursor of a message to a consumer's reader.
pub(crate) fn of_consumer(
    cursor: &[u8],
    place: (u64, u64),
    consumer: &ConsumerKey,
    key: &DigestKey,
) -> Bytes {
    let (session, number) = (place.0.to_be_bytes(), place.1.to_be_bytes());
    let mut to = vec![VERSION_OF_CONSUMER];
    to.extend(consumer_seal(session, number, consumer, cursor, key));
    to.extend(session);
    to.extend(number);
    to.extend(cursor);
    to.into()
}

/// Returns the reader and the message of a consumer that carried this cursor. Absent: it is none of this consumer.
pub(crate) fn place(
    cursor: &[u8],
    consumer: &ConsumerKey,
    key: &DigestKey,
) -> Option<ConsumerPlace> {
    let mut from = cursor;
    let from = &mut from;
    if take::<1>(from)? != [VERSION_OF_CONSUMER] {
        return None;
    }
    let seal: [u8; SEAL_BYTES] = take(from)?;
    let (session, number) = (take(from)?, take(from)?);
    (seal == consumer_seal(session, number, consumer, from, key)).then(|| ConsumerPlace {
        session: u64::from_be_bytes(session),
        number: u64::from_be_bytes(number),
        cursor: cursor.to_vec(),
    })
}

fn consumer_seal(
    session: [u8; 8],
    number: [u8; 8],
    consumer: &ConsumerKey,
    cursor: &[u8],
    key: &DigestKey,
) -> [u8; SEAL_BYTES] {
    let parts = [
        CONSUMER_DOMAIN,
        &session,
        &number,
        consumer.owner.as_bytes(),
        b"\0",
        consumer.name.as_bytes(),
        b"\0",
        cursor,
    ];
    let digest = key.mac(&parts);
    let mut seal = [0; SEAL_BYTES];
    seal.copy_from_slice(&digest[..SEAL_BYTES]);
    seal
}

pub(crate) fn encode(seal: Seal, form: Option<Form>, reached: &ManyReached) -> Bytes {
    let mut to = vec![VERSION];
    to.extend(seal.0);
    to.push(form.map_or(0, |form| {
        1 | u8::from(form.plain) << 1 | u8::from(form.lines) << 2
    }));
    match &reached.tail {
        None => to.push(0),
        Some((tail, until)) => {
            let (kind, amount) = match tail.amount {
                Amount::Lines(lines) => (1, lines),
                Amount::Bytes(bytes) => (2, bytes),
            };
            let [stdout, stderr] = tail.streams.map(u8::from);
            to.push(kind | stdout << 2 | stderr << 3);
            put(&mut to, amount);
            put_age(&mut to, *until);
        }
    }
    put(&mut to, reached.given.len() as u64);
    for (first, last) in &reached.given {
        put_age(&mut to, *first);
        put_age(&mut to, *last);
    }
    put(&mut to, reached.open.len() as u64);
    for (run, at) in &reached.open {
        to.extend(run.as_u128().to_be_bytes());
        put_reached(&mut to, at);
    }
    to.into()
}

fn put(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    to.push((number & 0x7f) as u8);
}

fn put_age(to: &mut Vec<u8>, age: Age) {
    to.extend(age.0.to_be_bytes());
}

fn put_reached(to: &mut Vec<u8>, at: &Reached) {
    let has = |part: &Option<[u64; 2]>, bit: u8| u8::from(part.is_some()) << bit;
    to.push(has(&at.lens, 0) | has(&at.fed_from, 1) | has(&at.begins, 2));
    put(to, at.seq);
    for part in [at.lens, at.fed_from, at.begins].into_iter().flatten() {
        put(to, part[0]);
        put(to, part[1]);
    }
}

/// Decodes a cursor. Absent: not a cursor.
pub(crate) fn decode(cursor: &[u8]) -> Option<ManyCursor> {
    let mut from = cursor;
    let from = &mut from;
    if take::<1>(from)? != [VERSION] {
        return None;
    }
    let seal = Seal(take(from)?);
    let form = match take::<1>(from)? {
        [0] => None,
        [bits] if bits & 1 == 1 && bits < 8 => Some(Form {
            plain: bits & 2 != 0,
            lines: bits & 4 != 0,
            // Multi-run streams have no option for longer lines.
            ..Form::default()
        }),
        _ => return None,
    };
    let tail = match take::<1>(from)? {
        [0] => None,
        [bits] if bits < 16 => {
            let amount = number(from)?;
            let amount = match bits & 3 {
                1 => Amount::Lines(amount),
                2 => Amount::Bytes(amount),
                _ => return None,
            };
            let streams = [bits & 4 != 0, bits & 8 != 0];
            Some((Tail { amount, streams }, age(from)?))
        }
        _ => return None,
    };
    let mut reached = ManyReached {
        tail,
        ..ManyReached::default()
    };
    for _ in 0..number(from)? {
        let (first, last) = (age(from)?, age(from)?);
        let follows = reached.given.last().is_none_or(|(_, last)| *last < first);
        if !follows || first > last {
            return None;
        }
        reached.given.push((first, last));
    }
    for _ in 0..number(from)? {
        let run = RunId::from_u128(u128::from_be_bytes(take(from)?));
        let at = self::reached(from)?;
        let follows = reached.open.last_key_value().is_none_or(|(l, _)| *l < run);
        if !follows {
            return None;
        }
        reached.open.insert(run, at);
    }
    from.is_empty().then_some(ManyCursor {
        seal,
        form,
        reached,
    })
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*taken)
}

fn number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for place in 0..10 {
        let [byte] = take(from)?;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has one usable bit, and only the first byte may be zero.
        if (place == 9 && bits > 1) || (place > 0 && byte == 0) {
            return None;
        }
        number |= bits << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn age(from: &mut &[u8]) -> Option<Age> {
    take(from).map(|age| Age(i64::from_be_bytes(age)))
}

fn reached(from: &mut &[u8]) -> Option<Reached> {
    let [bits] = take(from)?;
    let seq = number(from)?;
    let mut part = |bit: u8| match bits >> bit & 1 {
        0 => Some(None),
        _ => Some(Some([number(from)?, number(from)?])),
    };
    let (lens, fed_from, begins) = (part(0)?, part(1)?, part(2)?);
    // `fed_from` cannot exceed the lengths of the position, if those are known.
    let is_fed = match (lens, fed_from) {
        (Some(lens), Some(fed)) => fed[0] <= lens[0] && fed[1] <= lens[1],
        (None, _) | (_, None) => true,
    };
    (bits < 8 && is_fed).then_some(Reached {
        seq,
        lens,
        fed_from,
        begins,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ages() -> impl Strategy<Value = Age> {
        any::<i64>().prop_map(Age)
    }

    fn positions() -> impl Strategy<Value = Reached> {
        let two = || any::<[u64; 2]>();
        let parts = (any::<u64>(), prop::option::of(two()), two(), any::<bool>());
        (parts, prop::option::of(two())).prop_map(|((seq, lens, fed, viewed), begins)| Reached {
            seq,
            lens,
            // Lengths may be unknown at a start or after a seq; the view is valid even then.
            fed_from: viewed.then(|| match lens {
                Some(lens) => [fed[0].min(lens[0]), fed[1].min(lens[1])],
                None => fed,
            }),
            begins,
        })
    }

    fn cursors() -> impl Strategy<Value = ManyCursor> {
        let amount = prop_oneof![
            any::<u64>().prop_map(Amount::Lines),
            any::<u64>().prop_map(Amount::Bytes)
        ];
        let tail =
            (amount, any::<[bool; 2]>()).prop_map(|(amount, streams)| Tail { amount, streams });
        let form = any::<[bool; 2]>().prop_map(|[plain, lines]| Form {
            plain,
            lines,
            ..Form::default()
        });
        let open = prop::collection::btree_map(any::<u128>(), positions(), 0..9);
        (
            any::<[u8; SEAL_BYTES]>(),
            prop::option::of(form),
            prop::option::of((tail, ages())),
            prop::collection::btree_set(ages(), 0..12),
            open,
        )
            .prop_map(|(seal, form, tail, ages, open)| {
                let ages: Vec<_> = ages.into_iter().collect();
                let given = ages.chunks_exact(2).map(|pair| (pair[0], pair[1]));
                let open = open.into_iter().map(|(r, at)| (RunId::from_u128(r), at));
                ManyCursor {
                    seal: Seal(seal),
                    form,
                    reached: ManyReached {
                        given: given.collect(),
                        open: open.collect(),
                        tail,
                    },
                }
            })
    }

    proptest! {
        // promise: O-24
        #[test]
        fn cursor_of_many_runs_survives_a_round_trip(cursor in cursors()) {
            let bytes = encode(cursor.seal, cursor.form, &cursor.reached);
            prop_assert_eq!(decode(&bytes), Some(cursor));
            for len in 0..bytes.len() {
                prop_assert_eq!(decode(&bytes[..len]), None);
            }
            prop_assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        }

        // promise: O-24
        #[test]
        fn mutated_cursor_is_refused_or_canonical(
            cursor in cursors(),
            noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bent = encode(cursor.seal, cursor.form, &cursor.reached).to_vec();
            for (at, byte) in noise {
                let at = at.index(bent.len());
                bent[at] = byte;
            }
            for bytes in [bent, [&[VERSION], &bytes[..]].concat(), bytes] {
                if let Some(cursor) = decode(&bytes) {
                    prop_assert_eq!(&encode(cursor.seal, cursor.form, &cursor.reached)[..], &bytes[..]);
                }
            }
        }
    }

    // promise: O-27
    #[test]
    fn consumer_cursor_is_bound_to_owner_and_name() {
        let key = DigestKey::new([1; 32]);
        let plain = encode(Seal([3; SEAL_BYTES]), None, &ManyReached::default());
        let consumer = |owner: &str, name: &str| ConsumerKey {
            run: None,
            owner: owner.to_owned(),
            name: name.to_owned(),
        };
        let own = consumer("alice", "indexer");
        let given = of_consumer(&plain, (7, 9), &own, &key);
        assert!(is_of_many(&given));
        assert_eq!(without_place(&given), Some(&plain[..]));
        assert_eq!(without_place(&plain), Some(&plain[..]));
        let found = place(&given, &own, &key).expect("its own");
        assert_eq!((found.session, found.number), (7, 9));
        assert_eq!(found.cursor, given);
        assert!(place(&given, &consumer("alice", "other"), &key).is_none());
        assert!(place(&given, &consumer("bob", "indexer"), &key).is_none());
        assert!(place(&plain, &own, &key).is_none());
        assert!(place(&given, &own, &DigestKey::new([2; 32])).is_none());
        for at in 0..given.len() {
            let mut bent = given.to_vec();
            bent[at] ^= 1;
            assert!(place(&bent, &own, &key).is_none(), "byte {at}");
        }
    }

    #[test]
    fn cursor_seal_depends_on_filter_and_owner() {
        let one = ListFilter {
            labels: "a=b".parse().expect("a selector"),
            ..ListFilter::default()
        };
        assert_eq!(Seal::of(&one), Seal::of(&one.clone()));
        assert_ne!(Seal::of(&one), Seal::of(&ListFilter::default()));
        let owned = ListFilter {
            owner: Some("alice".to_owned()),
            ..one.clone()
        };
        assert_ne!(Seal::of(&one), Seal::of(&owned));
    }
}
