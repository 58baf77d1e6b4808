//! Standard input of `kennel run`: passes this process's input to the command, as to a child in the shell.

use super::{link::refused, write::PIECE_BYTES};
use crate::failure::because;
use kennel_client::{Connection, InputWriter};
use kennel_linux::{own_streams::StandardInput, own_terminal};
use kennel_proto::pb;
use std::{
    fs::File,
    io::{self, IsTerminal, Read},
    os::{fd::AsFd, unix::fs::MetadataExt},
    thread,
    time::Duration,
};
use tokio::sync::mpsc;

/// Time between two checks whether this process is in the terminal's foreground again: its shell does not notify it.
const FOREGROUND_LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time after which a command that still runs is taken for one that reads its input: the end of many others comes
/// first, and those need no word about input that cannot be read.
const READS_AFTER: Duration = Duration::from_millis(200);
/// The server's reasons where the input of an attempt has no reader any more: no error.
const OVER: [&str; 4] = [
    "INPUT_CLOSED",
    "RUN_ENDED",
    "ATTEMPT_MISMATCH",
    "INVALID_STATE",
];

/// Leaves standard input of the command open where this process's has data and nothing else was requested.
pub(crate) fn by_default(spec: &mut pb::RunSpec) {
    let restarts = spec
        .restart
        .as_ref()
        .is_some_and(|policy| policy.mode() != pb::RestartMode::Never);
    // This process's input is read only once: the next attempt would wait for it in vain.
    let is_free = spec.stdio.is_none() && spec.initial_input.is_none() && !restarts;
    if is_free && !is_null() {
        spec.stdio = Some(pb::run_spec::Stdio::Pipes(pb::Pipes {
            input: pb::InputMode::Open.into(),
        }));
    }
}

/// Whether a command waits for input that this process reads.
pub(crate) fn is_open(spec: &pb::RunSpec) -> bool {
    use pb::run_spec::Stdio;
    matches!(&spec.stdio, Some(Stdio::Pipes(pipes)) if pipes.input() == pb::InputMode::Open)
}

/// Whether standard input is `/dev/null`, or cannot be checked.
fn is_null() -> bool {
    let device = |file: File| file.metadata().map(|seen| seen.rdev());
    let ours = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let null = File::open("/dev/null").and_then(device);
    match (ours.and_then(device), null) {
        (Ok(ours), Ok(null)) => ours == null,
        _ => true,
    }
}

/// Returns the keys that end the input of a command on a terminal; `last` was typed before. VEOF of termios(3) passes
/// the present line to the reader; only on an empty line it is the end of file.
pub(super) fn end_of_file(last: Option<u8>) -> &'static [u8] {
    match last {
        None | Some(b'\n' | b'\r') => b"\x04",
        Some(_) => b"\x04\x04",
    }
}

/// Passes all of standard input to a run, and its end. A run that reads no more, or has ended, needs none. Input that
/// cannot be read ends there.
pub(super) async fn forward(connection: Connection, run_id: String, on_terminal: bool) {
    let forwarded = async {
        let writer = InputWriter::begin(&connection, &run_id, None).await;
        let mut writer = writer.map_err(refused)?;
        let mut pieces = pieces(PIECE_BYTES);
        let (mut last, mut failed) = (None, None);
        while let Some(piece) = pieces.recv().await {
            match piece {
                Ok(piece) => {
                    last = piece.last().copied();
                    writer.write(piece.into()).await.map_err(refused)?;
                }
                Err(cause) => failed = Some(cause),
            }
        }
        if failed.is_some() {
            tokio::time::sleep(READS_AFTER).await;
        }
        if on_terminal {
            let end = end_of_file(last).into();
            writer.write(end).await.map_err(refused)?;
        } else {
            writer.close().await.map_err(refused)?;
        }
        failed.map_or(Ok(()), |cause| {
            Err(because("cannot read standard input")(cause))
        })
    };
    if let Err(failure) = forwarded.await
        && !OVER.iter().any(|reason| failure.is(reason))
    {
        failure.report();
    }
}

/// Returns the data of standard input in pieces of at most so many bytes, read by a thread that ends with this process:
/// such a read cannot be cancelled. One piece is read ahead; nothing follows an error.
pub(super) fn pieces(bytes_max: usize) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, pieces) = mpsc::channel(1);
    thread::spawn(move || {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            own_terminal::fail_reads_in_background();
        }
        let mut buffer = vec![0; bytes_max];
        loop {
            let piece = match StandardInput.read(&mut buffer) {
                Ok(0) => return,
                Ok(bytes) => Ok(buffer[..bytes].to_vec()),
                // Another job of the shell is in the foreground.
                Err(_) if stdin.is_terminal() && !own_terminal::is_in_foreground() => {
                    thread::sleep(FOREGROUND_LOOK_EVERY);
                    continue;
                }
                // A hang-up is EOF, not an error.
                Err(_) if own_terminal::has_hung_up() => return,
                Err(cause) => Err(cause),
            };
            let failed = piece.is_err();
            if sender.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    pieces
}
