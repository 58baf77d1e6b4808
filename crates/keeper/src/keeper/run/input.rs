//! The standard input of a run that clients write to: the pipe's write end, or the terminal's master, and the number of
//! bytes that it has taken.
//!
//! Both are here and not with the server, so that a byte that the pipe has taken is counted whichever server dies. A
//! full pipe blocks only the writer: the rest of one write is buffered, and continues when there is space.

use super::Run;
use crate::{
    input_note,
    input_note::Note,
    values::{Fact, InputResult, InputState},
    wire::{Answer, ToShim, input::WireInputRequest, notes::InputNote},
};
use kennel_lifecycle::{InputClosed, InputLedger, InputRefusal, InputWrite, Placed, StopInput};
use kennel_linux::{clock, crash_point, fdpass};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::pipe2,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
};

/// The input of one attempt.
pub(in crate::keeper) struct RunInput {
    attempt: u32,
    run_dir: PathBuf,
    ledger: InputLedger,
    note: Note,
    /// The pipe's write end, or the terminal's master. Absent: closed.
    pipe: Option<Rc<OwnedFd>>,
    is_terminal: bool,
    /// Whether the shim has a copy, for the next keeper.
    shim_has_copy: bool,
    waiting: Option<PendingInput>,
}

/// The rest of a part of a write.
struct PendingInput {
    seq: u64,
    start: u64,
    left: Vec<u8>,
}

/// Answer to a request.
type Saying = (u64, InputResult);

impl RunInput {
    /// Makes an empty pipe; returns its read end too.
    pub(in crate::keeper) fn new(
        attempt: u32,
        run_dir: &Path,
        shim_has_copy: bool,
    ) -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        // The command's end is another open file description, and does block.
        fdpass::set_nonblocking(&write)?;
        let mut input = Self::empty(attempt, run_dir, Rc::new(write))?;
        input.shim_has_copy = shim_has_copy;
        Ok((input, read))
    }

    /// Makes the input of a terminal, of which this is the master.
    pub(in crate::keeper) fn on_terminal(
        attempt: u32,
        run_dir: &Path,
        master: &Rc<OwnedFd>,
    ) -> io::Result<Self> {
        let mut input = Self::empty(attempt, run_dir, Rc::clone(master))?;
        input.is_terminal = true;
        Ok(input)
    }

    fn empty(attempt: u32, run_dir: &Path, pipe: Rc<OwnedFd>) -> io::Result<Self> {
        let ledger = InputLedger::default();
        let note = Note::begin(run_dir, attempt, &ledger)?;
        Ok(Self {
            attempt,
            run_dir: run_dir.to_owned(),
            ledger,
            note,
            pipe: Some(pipe),
            is_terminal: false,
            shim_has_copy: false,
            waiting: None,
        })
    }

    /// Makes the input of a run whose keeper is gone, with the end of the pipe where it was open. Without a note the
    /// number of accepted bytes is unknown.
    pub(in crate::keeper) fn adopted(run_dir: &Path, pipe: Option<OwnedFd>) -> Option<Self> {
        let noted = input_note::read_ledger(run_dir);
        if noted == Ok(None) && pipe.is_none() {
            return None;
        }
        let nothing_known = || InputLedger {
            in_doubt: u64::MAX,
            ..InputLedger::default()
        };
        let noted = noted.ok().flatten();
        let InputNote {
            attempt,
            mut ledger,
        } = noted.unwrap_or_else(|| InputNote {
            attempt: 1,
            ledger: nothing_known(),
        });
        if pipe.is_none() {
            ledger.close(InputClosed::Client);
        }
        let note = Note::begin(run_dir, attempt, &ledger).unwrap_or_default();
        Some(Self {
            attempt,
            run_dir: run_dir.to_owned(),
            ledger,
            note,
            shim_has_copy: pipe.is_some(),
            pipe: pipe.map(Rc::new),
            is_terminal: false,
            waiting: None,
        })
    }

    /// Whether it belongs to this attempt.
    pub(super) fn is_of(&self, attempt: u32) -> bool {
        self.attempt == attempt
    }

    /// Returns the descriptor that the shim stores for the next keeper.
    pub(in crate::keeper) fn for_shim(&self) -> Option<BorrowedFd<'_>> {
        let copied = self.pipe.as_ref().filter(|_| self.shim_has_copy);
        copied.map(AsFd::as_fd)
    }

    /// Returns the pipe, while bytes wait for space in it.
    pub(in crate::keeper) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        let pipe = self.pipe.as_ref().filter(|_| self.waiting.is_some());
        pipe.map(AsFd::as_fd)
    }

    /// Handles a part of a write, which begins at `at` within it. INV-22: written and counted in one step.
    fn write(&mut self, seq: u64, write: &InputWrite, at: u64, data: &[u8]) -> Vec<Saying> {
        let displaced = self.waiting.take();
        let mut said: Vec<Saying> = displaced
            .map(|waiting| (waiting.seq, InputResult::Displaced))
            .into_iter()
            .collect();
        self.look_for_readers();
        let answer = match self.ledger.place(write) {
            Ok(Placed::Repeat { start }) => Some(InputResult::Taken {
                start,
                repeated: true,
            }),
            Ok(Placed::Open { start }) => {
                let from = start.saturating_add(at);
                match self.ledger.accepted.checked_sub(from) {
                    // No server sends parts out of order.
                    None => Some(InputResult::Refused(InputRefusal::Offset)),
                    Some(before) => {
                        let before = usize::try_from(before).unwrap_or(usize::MAX);
                        let left = data.get(before..).unwrap_or_default().to_vec();
                        self.waiting = Some(PendingInput { seq, start, left });
                        None
                    }
                }
            }
            Err(refusal) => Some(InputResult::Refused(refusal)),
        };
        match answer {
            Some(answer) => said.push((seq, answer)),
            None => said.extend(self.write_waiting()),
        }
        said
    }

    /// Writes as many of the waiting bytes as there is space for.
    fn write_waiting(&mut self) -> Option<Saying> {
        let mut waiting = self.waiting.take()?;
        let (seq, start) = (waiting.seq, waiting.start);
        if self.pipe.is_none() {
            let why = self.ledger.closed.unwrap_or(InputClosed::AttemptEnded);
            return Some((seq, InputResult::Refused(InputRefusal::Closed(why))));
        }
        let broken = self.put(&mut waiting.left);
        let done = waiting.left.is_empty();
        if !done && !broken {
            self.waiting = Some(waiting);
            return None;
        }
        let said = if done {
            InputResult::Taken {
                start,
                repeated: false,
            }
        } else {
            InputResult::Refused(InputRefusal::Closed(InputClosed::Command))
        };
        Some((seq, said))
    }

    /// Writes as many of these bytes as there is space for, and removes them. Returns whether no process can read the
    /// input any more. INV-22: written and counted in one step.
    fn put(&mut self, left: &mut Vec<u8>) -> bool {
        let Some(pipe) = &self.pipe else { return true };
        // If this process dies between the write and the count, the next keeper must know that the count is in doubt.
        self.ledger.in_doubt = left.len() as u64;
        self.note.keep(&self.run_dir, self.attempt, &self.ledger);
        crash_point!("keeper.input");
        let mut broken = false;
        while !left.is_empty() {
            match nix::unistd::write(pipe, left) {
                Ok(written) => {
                    crash_point!("keeper.input_written");
                    left.drain(..written);
                    self.ledger.took(written as u64);
                }
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    // EPIPE, or EIO of a terminal that no process has open; no other error is possible.
                    broken = errno != Errno::EAGAIN;
                    break;
                }
            }
        }
        self.ledger.in_doubt = 0;
        if broken {
            self.shut(InputClosed::Command);
        } else {
            self.note.keep(&self.run_dir, self.attempt, &self.ledger);
        }
        crash_point!("keeper.input_noted");
        broken
    }

    /// Writes bytes of a stop as far as there is space, behind what clients have written and never within it. Returns
    /// their number.
    fn write_for_stop(&mut self, bytes: &[u8]) -> usize {
        self.look_for_readers();
        if self.waiting.is_some() || self.pipe.is_none() {
            return 0;
        }
        self.ledger.interject();
        let mut left = bytes.to_vec();
        self.put(&mut left);
        bytes.len() - left.len()
    }

    /// Closes the input for a client, where it stands at `offset`.
    fn close(&mut self, seq: u64, offset: Option<u64>) -> Vec<Saying> {
        let is_closed = self.ledger.closed == Some(InputClosed::Client);
        let stands = offset.is_none_or(|offset| offset == self.ledger.accepted);
        if !is_closed && !stands {
            return vec![(seq, InputResult::Refused(InputRefusal::Offset))];
        }
        crash_point!("keeper.input_close");
        self.shut(InputClosed::Client);
        let mut said = vec![(seq, InputResult::Stands)];
        said.extend(self.write_waiting());
        said
    }

    /// Shuts the input: nothing more is written. A waiting write gets that answer when it continues.
    fn shut(&mut self, why: InputClosed) {
        self.ledger.close(why);
        self.pipe = None;
        self.note.keep(&self.run_dir, self.attempt, &self.ledger);
    }

    /// Closes the pipe where no process can read it any more.
    fn look_for_readers(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        let mut seen = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
        let looked = poll(&mut seen, PollTimeout::ZERO).is_ok();
        let events = seen[0].revents().unwrap_or(PollFlags::empty());
        // POLLERR (poll(2)): the read end is closed; POLLHUP: no process has the terminal open.
        if looked && events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP) {
            self.shut(InputClosed::Command);
        }
    }

    fn state(&self) -> InputState {
        // A terminal's master does not count unread input.
        let pipe = self.pipe.as_ref().filter(|_| !self.is_terminal);
        let terminal = self.pipe.as_ref().filter(|_| self.is_terminal);
        let unread = pipe.and_then(|pipe| unread(pipe));
        InputState {
            echo_off: terminal.is_some_and(kennel_linux::terminal::is_echo_off),
            ..InputState::of(self.attempt, &self.ledger, unread)
        }
    }
}

/// Returns the number of bytes in the pipe.
fn unread(pipe: &OwnedFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `pipe` is open, and FIONREAD writes one int to `bytes`.
    let asked = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    Errno::result(asked).ok()?;
    u64::try_from(bytes).ok()
}

impl Run {
    /// Handles a request for standard input.
    pub(in crate::keeper) fn ask_input(&mut self, seq: u64, request: WireInputRequest) {
        match request {
            WireInputRequest::Write {
                attempt,
                write,
                at,
                data,
            } => {
                self.with_input(seq, attempt, |input| input.write(seq, &write, at, &data.0));
            }
            // The unwritten part of the write is dropped.
            WireInputRequest::Leave {} => {
                let waiting = self.input.as_mut().map(|input| &mut input.waiting);
                waiting.and_then(|waiting| waiting.take_if(|waiting| waiting.seq == seq));
            }
            WireInputRequest::Close { attempt, offset } => {
                self.with_input(seq, attempt, |input| input.close(seq, offset));
            }
            WireInputRequest::State { attempt } => {
                self.with_input(seq, attempt, |input| {
                    input.look_for_readers();
                    let mut said = vec![(seq, InputResult::Stands)];
                    said.extend(input.write_waiting());
                    said
                });
            }
        }
    }

    /// Continues a waiting write, for which there may be space.
    pub(in crate::keeper) fn room_in_input(&mut self) {
        let said = self.input.as_mut().and_then(RunInput::write_waiting);
        self.send_input_answers(said.into_iter().collect());
    }

    /// Performs an action of a stop: writes these bytes, or closes the input. A paused tree could not react.
    pub(super) fn stop_input(&mut self, bytes: Option<&[u8]>) {
        let at = clock::wall();
        self.end_pause();
        let written = match (&mut self.input, bytes) {
            (Some(input), Some(bytes)) => input.write_for_stop(bytes),
            (Some(input), None) => {
                input.shut(InputClosed::Stop);
                0
            }
            (None, _) => 0,
        };
        self.room_in_input();
        let count = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        let done = StopInput {
            at,
            bytes: bytes.map(|bytes| count(bytes.len())),
            written: count(written),
        };
        self.report_at(at, Fact::StopInput(done));
    }

    /// Ends the input with its attempt.
    pub(super) fn end_input(&mut self) {
        if let Some(input) = &mut self.input {
            input.shut(InputClosed::AttemptEnded);
        }
        self.room_in_input();
    }

    /// Drops the waiting request: its server is gone.
    pub(super) fn forget_input_waiting(&mut self) {
        if let Some(input) = &mut self.input {
            input.waiting = None;
        }
    }

    fn with_input(
        &mut self,
        seq: u64,
        attempt: u32,
        act: impl FnOnce(&mut RunInput) -> Vec<Saying>,
    ) {
        let said = match &mut self.input {
            None => return self.answer(seq, Answer::NoInput {}),
            Some(input) if input.attempt != attempt => {
                return self.answer(seq, Answer::OtherAttempt {});
            }
            Some(input) => act(input),
        };
        self.send_input_answers(said);
    }

    fn send_input_answers(&mut self, said: Vec<Saying>) {
        let Some(input) = &mut self.input else { return };
        if input.pipe.is_none() && std::mem::take(&mut input.shim_has_copy) {
            self.for_shim.push(ToShim::CloseInput {});
        }
        let state = input.state();
        for (seq, said) in said {
            self.answer(seq, Answer::Input { state, said });
        }
    }
}

#[cfg(test)]
mod tests;
