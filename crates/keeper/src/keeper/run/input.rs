//! The standard input of a run that clients write to: the pipe's write end, or the terminal's master, and the count of what
//! it has taken.
//!
//! Both are here and not with the server, so that a byte that the pipe has taken is counted whichever server dies. A full
//! pipe makes nobody wait but who writes: what is left of one write is kept, and goes on when there is room.

use super::Run;
use crate::{
    input_note,
    input_note::Note,
    values::{Fact, InputSaid, InputState},
    wire::{Answer, ToShim, input::WireInputWish},
};
use kennel_lifecycle::{InputBook, InputClosed, InputRefusal, InputWrite, Placed, StopInput};
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
    book: InputBook,
    note: Note,
    /// The pipe's write end, or the terminal's master. Absent: closed.
    pipe: Option<Rc<OwnedFd>>,
    is_terminal: bool,
    /// Whether the shim has a copy, for the next keeper.
    shim_has_copy: bool,
    waiting: Option<Waiting>,
}

/// What is left of a part of a write.
struct Waiting {
    seq: u64,
    start: u64,
    left: Vec<u8>,
}

/// What is to be said to a question.
type Saying = (u64, InputSaid);

impl RunInput {
    /// A pipe that nothing was written to, and its read end.
    pub(in crate::keeper) fn new(
        attempt: u32,
        run_dir: &Path,
        shim_has_copy: bool,
    ) -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        // The end of the command is another description, and does block.
        fdpass::set_nonblocking(&write)?;
        let mut input = Self::empty(attempt, run_dir, Rc::new(write))?;
        input.shim_has_copy = shim_has_copy;
        Ok((input, read))
    }

    /// What is typed on a terminal, of which this is the master.
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
        let book = InputBook::default();
        let note = Note::begin(run_dir, attempt, &book)?;
        Ok(Self {
            attempt,
            run_dir: run_dir.to_owned(),
            book,
            note,
            pipe: Some(pipe),
            is_terminal: false,
            shim_has_copy: false,
            waiting: None,
        })
    }

    /// That of a run whose keeper is gone, with the end of the pipe where it was open. Without a note nothing is known of
    /// what was accepted.
    pub(in crate::keeper) fn adopted(run_dir: &Path, pipe: Option<OwnedFd>) -> Option<Self> {
        let noted = input_note::read_book(run_dir);
        if noted.is_none() && pipe.is_none() {
            return None;
        }
        let nothing_known = || InputBook {
            in_doubt: u64::MAX,
            ..InputBook::default()
        };
        let (attempt, mut book) = noted.unwrap_or_else(|| (1, nothing_known()));
        if pipe.is_none() {
            book.close(InputClosed::Client);
        }
        let note = Note::begin(run_dir, attempt, &book).unwrap_or_default();
        Some(Self {
            attempt,
            run_dir: run_dir.to_owned(),
            book,
            note,
            shim_has_copy: pipe.is_some(),
            pipe: pipe.map(Rc::new),
            is_terminal: false,
            waiting: None,
        })
    }

    /// Whether it is that of this attempt.
    pub(super) fn is_of(&self, attempt: u32) -> bool {
        self.attempt == attempt
    }

    /// What the shim keeps for the next keeper.
    pub(in crate::keeper) fn for_shim(&self) -> Option<BorrowedFd<'_>> {
        let copied = self.pipe.as_ref().filter(|_| self.shim_has_copy);
        copied.map(AsFd::as_fd)
    }

    /// The pipe, while something waits for room in it.
    pub(in crate::keeper) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        let pipe = self.pipe.as_ref().filter(|_| self.waiting.is_some());
        pipe.map(AsFd::as_fd)
    }

    /// A part of a write, from `at` of it on.
    /// INV-22: written and counted in one step.
    fn write(&mut self, seq: u64, write: &InputWrite, at: u64, data: &[u8]) -> Vec<Saying> {
        let displaced = self.waiting.take();
        let mut said: Vec<Saying> = displaced
            .map(|waiting| (waiting.seq, InputSaid::Displaced))
            .into_iter()
            .collect();
        self.look_for_readers();
        let answer = match self.book.place(write) {
            Ok(Placed::Repeat { start }) => Some(InputSaid::Taken {
                start,
                repeated: true,
            }),
            Ok(Placed::Open { start }) => {
                let from = start.saturating_add(at);
                match self.book.accepted.checked_sub(from) {
                    // A part ahead of its turn: no server sends one.
                    None => Some(InputSaid::Refused(InputRefusal::Offset)),
                    Some(before) => {
                        let before = usize::try_from(before).unwrap_or(usize::MAX);
                        let left = data.get(before..).unwrap_or_default().to_vec();
                        self.waiting = Some(Waiting { seq, start, left });
                        None
                    }
                }
            }
            Err(refusal) => Some(InputSaid::Refused(refusal)),
        };
        match answer {
            Some(answer) => said.push((seq, answer)),
            None => said.extend(self.go_on()),
        }
        said
    }

    /// Writes as much of what waits as there is room for.
    fn go_on(&mut self) -> Option<Saying> {
        let mut waiting = self.waiting.take()?;
        let (seq, start) = (waiting.seq, waiting.start);
        if self.pipe.is_none() {
            let why = self.book.closed.unwrap_or(InputClosed::AttemptEnded);
            return Some((seq, InputSaid::Refused(InputRefusal::Closed(why))));
        }
        let broken = self.put(&mut waiting.left);
        let done = waiting.left.is_empty();
        if !done && !broken {
            self.waiting = Some(waiting);
            return None;
        }
        let said = if done {
            InputSaid::Taken {
                start,
                repeated: false,
            }
        } else {
            InputSaid::Refused(InputRefusal::Closed(InputClosed::Command))
        };
        Some((seq, said))
    }

    /// Writes as much of this as there is room for, and takes it out. Gives whether no process can read it any more.
    /// INV-22: written and counted in one step.
    fn put(&mut self, left: &mut Vec<u8>) -> bool {
        let Some(pipe) = &self.pipe else { return true };
        // Should this process die between the pipe's taking and its counting, the next one shall know that it does not
        // know.
        self.book.in_doubt = left.len() as u64;
        self.note.keep(&self.run_dir, self.attempt, &self.book);
        crash_point!("keeper.input");
        let mut broken = false;
        while !left.is_empty() {
            match nix::unistd::write(pipe, left) {
                Ok(written) => {
                    crash_point!("keeper.input_written");
                    left.drain(..written);
                    self.book.took(written as u64);
                }
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    // EPIPE, or EIO of a terminal that nobody has open; nothing else is left.
                    broken = errno != Errno::EAGAIN;
                    break;
                }
            }
        }
        self.book.in_doubt = 0;
        if broken {
            self.shut(InputClosed::Command);
        } else {
            self.note.keep(&self.run_dir, self.attempt, &self.book);
        }
        crash_point!("keeper.input_noted");
        broken
    }

    /// Writes for a stop what there is room for, behind what clients have written and not amid it. Gives how much.
    fn write_for_stop(&mut self, bytes: &[u8]) -> usize {
        self.look_for_readers();
        if self.waiting.is_some() || self.pipe.is_none() {
            return 0;
        }
        self.book.interject();
        let mut left = bytes.to_vec();
        self.put(&mut left);
        bytes.len() - left.len()
    }

    /// Closes it for a client, where it stands at `offset`.
    fn close(&mut self, seq: u64, offset: Option<u64>) -> Vec<Saying> {
        let is_closed = self.book.closed == Some(InputClosed::Client);
        let stands = offset.is_none_or(|offset| offset == self.book.accepted);
        if !is_closed && !stands {
            return vec![(seq, InputSaid::Refused(InputRefusal::Offset))];
        }
        crash_point!("keeper.input_close");
        self.shut(InputClosed::Client);
        let mut said = vec![(seq, InputSaid::Stands)];
        said.extend(self.go_on());
        said
    }

    /// Nothing more is written. What waits is told so when it goes on.
    fn shut(&mut self, why: InputClosed) {
        self.book.close(why);
        self.pipe = None;
        self.note.keep(&self.run_dir, self.attempt, &self.book);
    }

    /// Closes the pipe where nobody can read it any more.
    fn look_for_readers(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        let mut seen = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
        let looked = poll(&mut seen, PollTimeout::ZERO).is_ok();
        let events = seen[0].revents().unwrap_or(PollFlags::empty());
        // POLLERR (poll(2)): the read end is closed; POLLHUP: nobody has the terminal open.
        if looked && events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP) {
            self.shut(InputClosed::Command);
        }
    }

    fn state(&self) -> InputState {
        // The master of a terminal has no count of it.
        let pipe = self.pipe.as_ref().filter(|_| !self.is_terminal);
        InputState::of(self.attempt, &self.book, pipe.and_then(|pipe| unread(pipe)))
    }
}

/// Bytes in the pipe.
fn unread(pipe: &OwnedFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `pipe` is open, and FIONREAD writes one int to the place that it is given.
    let asked = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    Errno::result(asked).ok()?;
    u64::try_from(bytes).ok()
}

impl Run {
    /// A wish for standard input.
    pub(in crate::keeper) fn ask_input(&mut self, seq: u64, wish: WireInputWish) {
        match wish {
            WireInputWish::Write {
                attempt,
                write,
                at,
                data,
            } => {
                self.with_input(seq, attempt, |input| input.write(seq, &write, at, &data.0));
            }
            // What is left of it is not written.
            WireInputWish::Leave => {
                let waiting = self.input.as_mut().map(|input| &mut input.waiting);
                waiting.and_then(|waiting| waiting.take_if(|waiting| waiting.seq == seq));
            }
            WireInputWish::Close { attempt, offset } => {
                self.with_input(seq, attempt, |input| input.close(seq, offset));
            }
            WireInputWish::State { attempt } => {
                self.with_input(seq, attempt, |input| {
                    input.look_for_readers();
                    let mut said = vec![(seq, InputSaid::Stands)];
                    said.extend(input.go_on());
                    said
                });
            }
        }
    }

    /// There may be room for what waits.
    pub(in crate::keeper) fn room_in_input(&mut self) {
        let said = self.input.as_mut().and_then(RunInput::go_on);
        self.say_of_input(said.into_iter().collect());
    }

    /// An action of a stop: writes these bytes, or closes it. A tree that is paused could do nothing of it.
    pub(super) fn stop_input(&mut self, bytes: Option<&[u8]>) {
        let at = clock::wall();
        self.let_go();
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
        self.tell_at(at, Fact::StopInput(done));
    }

    /// The attempt is over.
    pub(super) fn end_input(&mut self) {
        if let Some(input) = &mut self.input {
            input.shut(InputClosed::AttemptEnded);
        }
        self.room_in_input();
    }

    /// Whoever waited is gone.
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
            None => return self.answer(seq, Answer::NoInput),
            Some(input) if input.attempt != attempt => {
                return self.answer(seq, Answer::OtherAttempt);
            }
            Some(input) => act(input),
        };
        self.say_of_input(said);
    }

    fn say_of_input(&mut self, said: Vec<Saying>) {
        let Some(input) = &mut self.input else { return };
        if input.pipe.is_none() && std::mem::take(&mut input.shim_has_copy) {
            self.for_shim.push(ToShim::CloseInput);
        }
        let state = input.state();
        for (seq, said) in said {
            self.answer(seq, Answer::Input { state, said });
        }
    }
}

#[cfg(test)]
mod tests;
