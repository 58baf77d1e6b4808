//! Mutations of encoded messages: <https://protobuf.dev/programming-guides/encoding/>.

use super::requests::Chance;

/// A field as it is encoded.
struct Field {
    number: u64,
    wire_type: u64,
    /// The bytes after its tag and, for a LEN, after its length.
    payload: Vec<u8>,
}

/// Changes one field of the message or of a message in it.
pub(super) fn mutate_field(bytes: &mut Vec<u8>, chance: &mut Chance) {
    let Some(mut fields) = parse(bytes).filter(|fields| !fields.is_empty()) else {
        return mutate_bytes(bytes, chance);
    };
    let at = chance.below(fields.len());
    let field = &mut fields[at];
    let is_message = field.wire_type == 2 && parse(&field.payload).is_some_and(|i| !i.is_empty());
    if is_message && chance.percent(75) {
        mutate_field(&mut field.payload, chance);
        *bytes = encode(&fields);
        return;
    }
    match chance.below(7) {
        0 => {
            fields.remove(at);
        }
        1 => {
            let copy = Field {
                payload: field.payload.clone(),
                ..*field
            };
            fields.push(copy);
        }
        2 => field.number = chance.of(&[0, 1, 2, 15, 16, 100, 19_000, (1 << 29) - 1]),
        3 => field.wire_type = chance.of(&[0, 1, 2, 3, 4, 5, 6, 7]),
        4 => field.payload = extreme(field.wire_type, chance),
        5 => mutate_bytes(&mut field.payload, chance),
        _ => field.payload.truncate(field.payload.len() / 2),
    }
    *bytes = encode(&fields);
}

/// Changes any bytes.
pub(super) fn mutate_bytes(bytes: &mut Vec<u8>, chance: &mut Chance) {
    for _ in 0..=chance.below(4) {
        let at = chance.below(bytes.len() + 1);
        match chance.below(4) {
            0 => bytes.insert(at, chance.next().to_le_bytes()[0]),
            1 => bytes.truncate(at),
            2 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            _ => bytes.extend(chance.next().to_le_bytes()),
        }
    }
}

/// Returns bytes of any kind.
pub(super) fn noise(chance: &mut Chance) -> Vec<u8> {
    let len = chance.below(200);
    (0..len).map(|_| chance.next().to_le_bytes()[0]).collect()
}

fn extreme(wire_type: u64, chance: &mut Chance) -> Vec<u8> {
    match wire_type {
        0 => {
            let numbers = [
                0,
                1,
                1 << 31,
                u64::from(u32::MAX),
                i64::MAX.cast_unsigned(),
                u64::MAX,
            ];
            let mut bytes = Vec::new();
            varint(chance.of(&numbers), &mut bytes);
            bytes
        }
        1 => chance.next().to_le_bytes().to_vec(),
        5 => vec![0xff; 4],
        _ => match chance.below(4) {
            0 => Vec::new(),
            1 => vec![0xff; 11],
            2 => vec![b'a'; 70_000],
            // Nest messages too deep for any decoder.
            _ => (0..200).fold(Vec::new(), |inner, _| {
                let mut outer = vec![0x0a];
                varint(inner.len() as u64, &mut outer);
                outer.extend(inner);
                outer
            }),
        },
    }
}

/// Parses the fields; `None`: these bytes are no message.
fn parse(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes)?;
        let (number, wire_type) = (tag >> 3, tag & 7);
        let len = match wire_type {
            0 => {
                let before = bytes;
                read_varint(&mut bytes)?;
                let len = before.len() - bytes.len();
                bytes = before;
                len
            }
            1 => 8,
            2 => usize::try_from(read_varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (payload, rest) = bytes.split_at_checked(len)?;
        fields.push(Field {
            number,
            wire_type,
            payload: payload.to_vec(),
        });
        bytes = rest;
    }
    Some(fields)
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        varint(field.number << 3 | field.wire_type, &mut bytes);
        if field.wire_type == 2 {
            varint(field.payload.len() as u64, &mut bytes);
        }
        bytes.extend(&field.payload);
    }
    bytes
}

fn varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    into.push(number.to_le_bytes()[0]);
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
