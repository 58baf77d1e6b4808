//! Invalid bytes for the tests of decoders: everything near a valid encoding, the same in every run.
//! `KENNEL_MUTATIONS=<n>` adds more random ones: `make soak` does.

use std::env;

/// Mutations with several random edits, unless `KENNEL_MUTATIONS` gives another number.
const RANDOM: u32 = 300;
/// Most edits in one random mutation.
const EDITS_MAX: u64 = 5;
/// Values at which decoders differ: ends of ranges, signs, continuation bits, quotes.
const VALUES: [u8; 8] = [0, 1, b'"', b'{', 0x7f, 0x80, 0xfe, 0xff];
/// Bytes of large values: the largest varint, and an endless one.
const LARGE: [&[u8]; 3] = [
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80; 12],
    &[0xff, 0xff, 0xff, 0x7f],
];

/// Calls `check` with mutations of `valid`: every prefix, every byte removed, every bit flipped, every byte replaced by
/// each extreme value, a large value inserted everywhere, and random edits. The failed test shows the decoder and the
/// bytes.
pub fn each(valid: &[u8], mut check: impl FnMut(&[u8])) {
    let mut wrong = Vec::with_capacity(valid.len() + LARGE[1].len());
    for at in 0..valid.len() {
        check(&valid[..at]);
        splice(&mut wrong, valid, at, 1, &[]);
        check(&wrong);
        for bit in 0..8 {
            splice(&mut wrong, valid, at, 1, &[valid[at] ^ (1 << bit)]);
            check(&wrong);
        }
        for value in VALUES {
            splice(&mut wrong, valid, at, 1, &[value]);
            check(&wrong);
        }
        for large in LARGE {
            for replaced in 0..2 {
                splice(&mut wrong, valid, at, replaced, large);
                check(&wrong);
            }
        }
    }
    check(&[valid, valid].concat());
    random(valid, check);
}

/// Calls `check` with random mutations of `valid` alone: for long encodings.
pub fn random(valid: &[u8], mut check: impl FnMut(&[u8])) {
    let asked = env::var("KENNEL_MUTATIONS").ok();
    let count = asked.and_then(|count| count.parse().ok()).unwrap_or(RANDOM);
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    for _ in 0..count {
        check(&edited(valid, &mut chance));
    }
}

/// Replaces `removed` bytes of `valid` by `new`.
fn splice(into: &mut Vec<u8>, valid: &[u8], at: usize, removed: usize, new: &[u8]) {
    into.clear();
    into.extend_from_slice(&valid[..at]);
    into.extend_from_slice(new);
    into.extend_from_slice(&valid[at + removed..]);
}

fn edited(valid: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for _ in 0..=chance.below(EDITS_MAX) {
        let at = chance.index(bytes.len() + 1);
        match chance.below(4) {
            0 => bytes.insert(at, chance.byte()),
            1 if at < bytes.len() => bytes[at] = chance.byte(),
            2 if at < bytes.len() => {
                bytes.remove(at);
            }
            _ => {
                // Repeat a part of the message elsewhere.
                let from = chance.index(valid.len() + 1);
                let part = valid[from..].iter().take(chance.index(9)).copied();
                bytes.splice(at..at, part.collect::<Vec<u8>>());
            }
        }
    }
    bytes
}

/// Numbers that look random and are the same in every run: the generator `xorshift64*`.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn index(&mut self, len: usize) -> usize {
        let below = self.below(u64::try_from(len).unwrap_or(u64::MAX));
        usize::try_from(below).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn mutations_are_many_and_deterministic() {
        let of = |bytes: &[u8]| {
            let mut all = Vec::new();
            each(bytes, |wrong| all.push(wrong.to_vec()));
            all
        };
        let all = of(b"ab");
        assert_eq!(all, of(b"ab"));
        let different: HashSet<&Vec<u8>> = all.iter().collect();
        assert!(different.len() > 200, "{}", different.len());
        assert!(all.contains(&Vec::new()) && all.contains(&b"abab".to_vec()));
        assert!(!of(b"").is_empty());
    }
}
