use super::*;
use std::{fs::File, io::Read};

const PIPE: usize = 64 * 1024;

struct Stage {
    input: RunInput,
    command: Option<File>,
    dir: tempfile::TempDir,
    seq: u64,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (input, read) = RunInput::new(1, dir.path(), false).expect("a pipe");
        Self {
            input,
            command: Some(read.into()),
            dir,
            seq: 0,
        }
    }

    fn write(&mut self, id: &str, offset: Option<u64>, data: &[u8]) -> Vec<Saying> {
        self.seq += 1;
        let write = InputWrite {
            id: id.to_owned(),
            offset,
            len: data.len() as u64,
        };
        self.input.write(self.seq, &write, 0, data)
    }

    fn read(&mut self, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        let command = self.command.as_mut().expect("it reads");
        command.read_exact(&mut read).expect("so much is there");
        read
    }

    fn accepted(&self) -> u64 {
        self.input.state().accepted
    }
}

fn taken(start: u64, repeated: bool) -> InputResult {
    InputResult::Taken { start, repeated }
}

#[test]
fn repeated_input_is_reported_and_not_written() {
    let mut stage = Stage::new();
    assert_eq!(stage.write("a", None, b"one"), [(1, taken(0, false))]);
    assert_eq!(stage.write("a", None, b"one"), [(2, taken(0, true))]);
    assert_eq!(stage.write("b", Some(0), b"one"), [(3, taken(0, true))]);
    assert_eq!(stage.write("c", Some(3), b"two"), [(4, taken(3, false))]);
    assert_eq!(stage.input.state().unread, Some(6));
    assert_eq!(stage.read(6), b"onetwo");
}

#[test]
fn write_to_full_pipe_waits_and_resumes() {
    let mut stage = Stage::new();
    let data: Vec<u8> = (0..=250).cycle().take(PIPE + 1000).collect();
    assert_eq!(stage.write("a", None, &data), []);
    assert!(stage.input.waits_for().is_some());
    assert_eq!(stage.accepted(), PIPE as u64);
    // The write's caller no longer waits; a repeat continues in the middle.
    stage.input.waiting = None;
    assert_eq!(stage.write("a", None, &data), []);
    let mut read = stage.read(PIPE);
    assert_eq!(stage.input.write_waiting(), Some((2, taken(0, false))));
    read.extend(stage.read(1000));
    assert_eq!(read, data);
    assert!(stage.input.waits_for().is_none());
}

#[test]
fn later_write_replaces_a_waiting_one() {
    let mut stage = Stage::new();
    let data = vec![7; PIPE + 1];
    stage.write("a", None, &data);
    let refused = |why| InputResult::Refused(why);
    let blind = stage.write("b", None, b"x");
    let wanted = [
        (1, InputResult::Displaced),
        (2, refused(InputRefusal::Unfinished)),
    ];
    assert_eq!(blind, wanted);
    stage.read(PIPE);
    let knows = stage.write("c", Some(PIPE as u64), b"x");
    assert_eq!(knows, [(3, taken(PIPE as u64, false))]);
    assert_eq!(
        stage.write("a", None, &data),
        [(4, refused(InputRefusal::Offset))]
    );
}

#[test]
fn write_to_closed_pipe_reports_its_count() {
    let mut stage = Stage::new();
    assert_eq!(stage.write("a", None, &vec![7; PIPE + 1]), []);
    stage.command = None;
    let closed = InputResult::Refused(InputRefusal::Closed(InputClosed::Command));
    assert_eq!(stage.input.write_waiting(), Some((1, closed)));
    assert_eq!(stage.accepted(), PIPE as u64);
    assert_eq!(stage.write("b", None, b"x"), [(2, closed)]);
    let stands = stage.input.state();
    assert_eq!(
        (stands.closed, stands.unread),
        (Some(InputClosed::Command), None)
    );
}

#[test]
fn keeper_death_during_write_leaves_count_unknown() {
    let stage = Stage::new();
    let mut input = stage.input;
    let mut readers = Vec::new();
    let mut pipe = || {
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        readers.push(read);
        Some(write)
    };
    let adopted = |pipe| RunInput::adopted(stage.dir.path(), pipe).expect("it is noted");
    input.write(
        1,
        &InputWrite {
            id: "a".to_owned(),
            offset: None,
            len: 3,
        },
        0,
        b"one",
    );
    let mut known = adopted(pipe());
    assert_eq!((known.ledger.accepted, known.ledger.in_doubt), (3, 0));
    assert_eq!(known.ledger.writes, input.ledger.writes);

    // A keeper died after writing and before counting.
    known.ledger.in_doubt = 5;
    known.note.keep(&known.run_dir, 1, &known.ledger);
    let mut unknown = adopted(pipe());
    let write = |id: &str, offset, len| InputWrite {
        id: id.to_owned(),
        offset,
        len,
    };
    let said = unknown.write(1, &write("b", Some(3), 1), 0, b"x");
    assert_eq!(said, [(1, InputResult::Refused(InputRefusal::Unknown(8)))]);
    let said = unknown.write(2, &write("a", None, 3), 0, b"one");
    assert_eq!(said, [(2, taken(0, true))], "that is certain");
    assert!(adopted(None).ledger.closed.is_some());
}
