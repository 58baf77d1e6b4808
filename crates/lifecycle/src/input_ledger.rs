//! The state of an attempt's standard input: number of accepted bytes, their write ids, and the meaning of a write that
//! may be a repeat (INV-22).

use crate::names::named;
use serde::{Deserialize, Serialize};
/// Number of newest writes whose ids are remembered.
pub const WRITES_REMEMBERED_MAX: usize = 16;

named! {
    /// Reason why no more input is accepted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum InputClosed {
        /// A client has closed the input.
        Client = "client",
        /// No process is left that could read the input.
        Command = "command",
        /// The attempt is over.
        AttemptEnded = "attempt_ended",
        /// A stop of the run has closed the input.
        Stop = "stop",
    }
}

/// Beginning of the id of a write that answers a question: bytes that another one has written there are no repeat of it.
pub const ANSWER: char = 'a';

/// A write request, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputWrite {
    /// Id by which a repeat is recognized.
    pub id: String,
    /// Offset of its first byte; absent: after all that was accepted.
    pub offset: Option<u64>,
    /// Its length in bytes.
    pub len: u64,
}

/// Classification of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// All of it was accepted before.
    Repeat {
        /// Offset of its first byte.
        start: u64,
    },
    /// The write continues at the end of the input.
    Open {
        /// Offset of its first byte.
        start: u64,
    },
}

/// Why a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputRefusal {
    /// Its offset is not the end of the input, or its id is that of another write.
    Offset,
    /// Another write was cut off midway, and this one does not show that its client knows.
    Unfinished,
    /// The input is closed.
    Closed(InputClosed),
    /// The number of accepted bytes is not known: at most this.
    Unknown(u64),
}

/// A write whose repeat is recognized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownWrite {
    /// Id of the write.
    pub id: String,
    /// Offset of its first byte.
    pub start: u64,
    /// Its length in bytes; for a write that was given up midway, the accepted part.
    pub len: u64,
}

impl KnownWrite {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// State of the input of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputLedger {
    /// Number of accepted bytes.
    pub accepted: u64,
    /// Number of bytes beyond those that may have been accepted, where their writer died during the write.
    pub in_doubt: u64,
    /// Reason why the input is closed; absent: it is open.
    pub closed: Option<InputClosed>,
    /// Oldest first. INVARIANT: all but the last end at or before `accepted`.
    pub writes: Vec<KnownWrite>,
}

impl InputLedger {
    /// Classifies a write, and decides whether it is accepted. An accepted write is remembered from here on, and one
    /// before it that was cut off midway is given up.
    pub fn place(&mut self, write: &InputWrite) -> Result<Placed, InputRefusal> {
        if let Some(known) = self.writes.iter().find(|known| known.id == write.id) {
            let is_same =
                known.len == write.len && write.offset.is_none_or(|offset| offset == known.start);
            let start = known.start;
            return match () {
                () if !is_same => Err(InputRefusal::Offset),
                () if known.end() <= self.accepted => Ok(Placed::Repeat { start }),
                () => self.is_open().map(|()| Placed::Open { start }),
            };
        }
        // Bytes of another write there do not make an answer a repeat.
        if let Some(start) = write.offset
            && !write.id.starts_with(ANSWER)
            && start
                .checked_add(write.len)
                .is_some_and(|end| end <= self.accepted)
        {
            return Ok(Placed::Repeat { start });
        }
        self.is_open()?;
        // A repeated write with the same offset continues where it was cut off.
        if let (Some(offset), Some(last)) = (write.offset, self.unfinished())
            && (last.start, last.len) == (offset, write.len)
        {
            return Ok(Placed::Open { start: offset });
        }
        match write.offset {
            Some(offset) if offset != self.accepted => return Err(InputRefusal::Offset),
            None if self.unfinished().is_some() => return Err(InputRefusal::Unfinished),
            Some(_) | None => {}
        }
        let start = self.accepted;
        if start.checked_add(write.len).is_none() {
            return Err(InputRefusal::Offset);
        }
        self.give_up();
        if self.writes.len() >= WRITES_REMEMBERED_MAX {
            self.writes.remove(0);
        }
        self.writes.push(KnownWrite {
            id: write.id.clone(),
            start,
            len: write.len,
        });
        Ok(Placed::Open { start })
    }

    /// Records input of another writer than a client: a write that was cut off midway is given up.
    pub fn interject(&mut self) {
        self.give_up();
    }

    /// Records that so many more bytes were accepted.
    pub fn took(&mut self, bytes: u64) {
        self.accepted = self.accepted.saturating_add(bytes);
    }

    /// Closes the input; the first reason stands.
    pub fn close(&mut self, why: InputClosed) {
        self.closed.get_or_insert(why);
    }

    fn is_open(&self) -> Result<(), InputRefusal> {
        match self.closed {
            Some(why) => Err(InputRefusal::Closed(why)),
            None if self.in_doubt > 0 => {
                let most = self.accepted.saturating_add(self.in_doubt);
                Err(InputRefusal::Unknown(most))
            }
            None => Ok(()),
        }
    }

    /// Returns the write that was cut off midway.
    fn unfinished(&mut self) -> Option<&mut KnownWrite> {
        let accepted = self.accepted;
        self.writes.last_mut().filter(|last| last.end() > accepted)
    }

    fn give_up(&mut self) {
        let accepted = self.accepted;
        if let Some(last) = self.unfinished() {
            last.len = accepted.saturating_sub(last.start);
        }
    }
}
