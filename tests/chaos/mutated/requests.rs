//! Requests of every rpc: with its own fields, with values at their extremes, and with wire mutations of these.

use super::wire;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, MethodDescriptor, Value,
};

/// Messages in messages.
const DEPTH_MAX: u32 = 5;

/// Numbers from a seed (splitmix64).
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).expect("small");
        usize::try_from(self.next() % end).expect("small")
    }

    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

/// Objects that requests may refer to.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    pub(super) runs: Vec<String>,
}

/// Returns a request of this rpc, or something similar.
pub(super) fn of(method: &MethodDescriptor, chance: &mut Chance, pool: &Pool) -> Vec<u8> {
    let message = message(&method.input(), chance, pool, 0);
    let mut bytes = prost::Message::encode_to_vec(&message);
    match chance.below(10) {
        0..=2 => {}
        3..=7 => wire::mutate_field(&mut bytes, chance),
        8 => wire::mutate_bytes(&mut bytes, chance),
        _ => bytes = wire::noise(chance),
    }
    if method.name() == "Upgrade" {
        // A valid Upgrade would replace the server, so an invalid field is prepended.
        bytes.insert(0, 0x0f);
    }
    bytes
}

fn message(of: &MessageDescriptor, chance: &mut Chance, pool: &Pool, depth: u32) -> DynamicMessage {
    let mut message = DynamicMessage::new(of.clone());
    if depth > DEPTH_MAX {
        return message;
    }
    for field in of.fields() {
        let is_key = matches!(field.name(), "run_id" | "spec" | "argv" | "args");
        if !chance.percent(if is_key { 90 } else { 30 }) {
            continue;
        }
        let value = if field.is_map() {
            let Kind::Message(entry) = field.kind() else {
                continue;
            };
            let value = entry.map_entry_value_field();
            let entries = (0..chance.below(3)).map(|n| {
                let key = MapKey::String(["A", "", "KENNEL_X"][n].to_owned());
                (key, value_of(&value, chance, pool, depth))
            });
            Value::Map(entries.collect())
        } else if field.is_list() {
            let len = 1 + chance.below(2);
            let values = (0..len).map(|_| value_of(&field, chance, pool, depth));
            Value::List(values.collect())
        } else {
            value_of(&field, chance, pool, depth)
        };
        message.set_field(&field, value);
    }
    message
}

fn value_of(field: &FieldDescriptor, chance: &mut Chance, pool: &Pool, depth: u32) -> Value {
    const I32: [i32; 8] = [0, 1, 2, 80, -1, i32::MIN, i32::MAX, 999_999_999];
    const I64: [i64; 9] = [
        0,
        1,
        5,
        -1,
        i64::MIN,
        i64::MAX,
        315_576_000_000,
        315_576_000_001,
        253_402_300_800,
    ];
    const U64: [u64; 7] = [0, 1, 2, 65_536, 1 << 40, u64::MAX - 1, u64::MAX];
    match field.kind() {
        Kind::Double | Kind::Float => Value::F64(chance.of(&[0.0, f64::NAN, f64::MAX])),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(chance.of(&I32)),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(chance.of(&I64)),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(chance.of(&[0, 1, 2, 80, 1000, u32::MAX])),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(chance.of(&U64)),
        Kind::Bool => Value::Bool(chance.percent(50)),
        Kind::String => Value::String(text(field.name(), chance, pool)),
        Kind::Bytes => {
            let len = chance.of(&[0, 1, 16, 100, 3000]);
            let bytes: Vec<u8> = (0..len).map(|_| chance.next().to_le_bytes()[0]).collect();
            Value::Bytes(bytes.into())
        }
        Kind::Message(of) => Value::Message(message(&of, chance, pool, depth + 1)),
        Kind::Enum(_) => Value::EnumNumber(chance.of(&[0, 1, 2, 3, 4, 99, -1, i32::MAX])),
    }
}

fn text(field: &str, chance: &mut Chance, pool: &Pool) -> String {
    let of_run = ["run_id", "run_ids"].contains(&field) && !pool.runs.is_empty();
    if of_run && chance.percent(80) {
        return pool.runs[chance.below(pool.runs.len())].clone();
    }
    // Mutated requests execute no other program.
    if field == "args" {
        return "true".to_owned();
    }
    if chance.percent(5) {
        return "x".repeat(200_000);
    }
    let known = [
        "",
        "a",
        "SIGTERM",
        "SIGWINCH",
        "/tmp",
        "a\0b",
        "é\u{202e}",
        "=",
        "TERM",
        "7ZZZZZZZZZ",
    ];
    chance.of(&known).to_owned()
}
