//! Writes that may be repeats.

use kennel_lifecycle::{
    InputClosed, InputLedger, InputRefusal, InputWrite, Placed, WRITES_REMEMBERED_MAX,
};
use proptest::prelude::*;

#[test]
fn repeated_write_is_known_by_id_and_offset() {
    let mut ledger = InputLedger::default();
    assert_eq!(take(&mut ledger, "a", None, 3), Ok(open(0)));
    assert_eq!(take(&mut ledger, "a", None, 3), Ok(repeat(0)));
    assert_eq!(take(&mut ledger, "a", Some(0), 3), Ok(repeat(0)));
    assert_eq!(take(&mut ledger, "b", Some(0), 3), Ok(repeat(0)));
    assert_eq!(take(&mut ledger, "b", Some(1), 2), Ok(repeat(1)));
    assert_eq!(take(&mut ledger, "b", Some(3), 2), Ok(open(3)));
    assert_eq!(ledger.accepted, 5);
}

// promise: V-1
#[test]
fn gaps_overlaps_and_reused_ids_are_refused() {
    let mut ledger = InputLedger::default();
    take(&mut ledger, "a", None, 4).unwrap();
    let before = ledger.clone();
    for (id, offset, len) in [
        ("b", Some(5), 1),
        ("b", Some(3), 2),
        ("b", Some(0), 5),
        ("a", None, 3),
        ("a", Some(4), 4),
        ("b", Some(u64::MAX), 2),
    ] {
        let refused = take(&mut ledger, id, offset, len);
        assert_eq!(refused, Err(InputRefusal::Offset), "{id} {offset:?} {len}");
    }
    assert_eq!(ledger, before);
}

// promise: V-4
#[test]
fn interrupted_write_is_resumed_or_given_up_explicitly() {
    let mut ledger = InputLedger::default();
    assert_eq!(ledger.place(&write("a", None, 10)), Ok(open(0)));
    ledger.took(4);
    assert_eq!(ledger.place(&write("a", None, 10)), Ok(open(0)));
    let blind = ledger.place(&write("b", None, 1));
    assert_eq!(blind, Err(InputRefusal::Unfinished));
    assert_eq!(take(&mut ledger, "c", Some(4), 6), Ok(open(4)));
    // Write `a` lies below the accepted offset, but another write has those bytes.
    let given_up = ledger.place(&write("a", None, 10));
    assert_eq!(given_up, Err(InputRefusal::Offset));
}

// promise: I-44
#[test]
fn cut_off_write_resumes_when_repeated_by_offset() {
    let mut ledger = InputLedger::default();
    take(&mut ledger, "a", None, 3).unwrap();
    assert_eq!(ledger.place(&write("b", Some(3), 10)), Ok(open(3)));
    ledger.took(4);
    assert_eq!(ledger.place(&write("c", Some(3), 10)), Ok(open(3)));
    assert_eq!(
        ledger.place(&write("d", Some(3), 11)),
        Err(InputRefusal::Offset)
    );
    ledger.took(6);
    assert_eq!(ledger.place(&write("e", Some(3), 10)), Ok(repeat(3)));
}

#[test]
fn closed_input_refuses_writes_but_answers_repeats() {
    let mut ledger = InputLedger::default();
    take(&mut ledger, "a", None, 4).unwrap();
    ledger.close(InputClosed::Command);
    ledger.close(InputClosed::Client);
    let closed = Err(InputRefusal::Closed(InputClosed::Command));
    assert_eq!(take(&mut ledger, "a", None, 4), Ok(repeat(0)));
    assert_eq!(take(&mut ledger, "b", Some(4), 1), closed);
    assert_eq!(take(&mut ledger, "b", Some(9), 1), closed);
}

#[test]
fn unknown_input_count_refuses_further_writes() {
    let mut ledger = InputLedger::default();
    take(&mut ledger, "a", None, 4).unwrap();
    ledger.in_doubt = 2;
    assert_eq!(take(&mut ledger, "a", None, 4), Ok(repeat(0)));
    let unknown = Err(InputRefusal::Unknown(6));
    assert_eq!(take(&mut ledger, "b", Some(4), 2), unknown);
    assert_eq!(take(&mut ledger, "b", None, 2), unknown);
}

proptest! {
    /// A client that repeats every unanswered write, with a pipe that takes any number of bytes.
    // promise: I-44, V-1
    #[test]
    fn every_input_byte_is_accepted_once_in_order(
        steps in prop::collection::vec((1..20u64, 0..25u64, any::<bool>()), 1..60),
    ) {
        let mut ledger = InputLedger::default();
        let (mut sent, mut taken) = (0u64, Vec::new());
        for (number, (len, room, by_offset)) in steps.into_iter().enumerate() {
            let offset = by_offset.then_some(sent);
            // The first try writes a part; the answers to the first two tries are lost.
            for (again, room) in [room, u64::MAX, u64::MAX].into_iter().enumerate() {
                // A client that gives only the offset gets a new id each time.
                let id = if by_offset { format!("{number}.{again}") } else { number.to_string() };
                let write = write(&id, offset, len);
                match ledger.place(&write).unwrap() {
                    Placed::Repeat { start } => prop_assert_eq!(start, sent),
                    Placed::Open { start } => {
                        prop_assert_eq!(start, sent);
                        let from = ledger.accepted;
                        let took = room.min(start + len - from);
                        taken.extend(from..from + took);
                        ledger.took(took);
                    }
                }
            }
            sent += len;
            prop_assert!(ledger.writes.len() <= WRITES_REMEMBERED_MAX);
        }
        prop_assert_eq!(ledger.accepted, sent);
        prop_assert_eq!(taken, (0..sent).collect::<Vec<_>>());
    }
}

fn write(id: &str, offset: Option<u64>, len: u64) -> InputWrite {
    InputWrite {
        id: id.to_owned(),
        offset,
        len,
    }
}

/// A write that is taken whole, where it is accepted.
fn take(
    ledger: &mut InputLedger,
    id: &str,
    offset: Option<u64>,
    len: u64,
) -> Result<Placed, InputRefusal> {
    let placed = ledger.place(&write(id, offset, len))?;
    if let Placed::Open { .. } = placed {
        ledger.took(len);
    }
    Ok(placed)
}

fn open(start: u64) -> Placed {
    Placed::Open { start }
}

fn repeat(start: u64) -> Placed {
    Placed::Repeat { start }
}
