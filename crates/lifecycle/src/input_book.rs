//! How far the standard input of an attempt has come: how many bytes were accepted, under which ids, and what a write means
//! that may be a repeat (INV-22).

use crate::names::named;
use serde::{Deserialize, Serialize};
/// Writes whose ids are remembered, the newest.
pub const WRITES_REMEMBERED_MAX: usize = 16;

named! {
    /// Why nothing more is accepted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum InputClosed {
        /// A client has closed it.
        Client = "client",
        /// No process is left that could read it.
        Command = "command",
        /// The attempt is over.
        AttemptEnded = "attempt_ended",
        /// A stop of the run has closed it.
        Stop = "stop",
    }
}

/// A write as it is asked for, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputWrite {
    /// Under which it is known again.
    pub id: String,
    /// Where its first byte goes; absent: behind all that was accepted.
    pub offset: Option<u64>,
    /// How many bytes it has.
    pub len: u64,
}

/// What a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// All of it was accepted before.
    Repeat {
        /// Where its first byte went.
        start: u64,
    },
    /// It goes on where the input stands.
    Open {
        /// Where its first byte goes, or went.
        start: u64,
    },
}

/// Why a write is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputRefusal {
    /// Its offset is not where the input stands, or its id is that of another write.
    Offset,
    /// Another write was cut off midway, and this one does not say that it knows.
    Unfinished,
    /// Nothing more is accepted.
    Closed(InputClosed),
    /// How much was accepted is not known: at most this.
    Unknown(u64),
}

/// A write that is known again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownWrite {
    /// Its id.
    pub id: String,
    /// Where its first byte went.
    pub start: u64,
    /// How many bytes it has; of one that was given up midway, how many were accepted.
    pub len: u64,
}

impl KnownWrite {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// How far the input of one attempt has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputBook {
    /// Bytes accepted.
    pub accepted: u64,
    /// Bytes that may have been accepted beyond those, where their writer died over it.
    pub in_doubt: u64,
    /// Why nothing more is accepted; absent: it is open.
    pub closed: Option<InputClosed>,
    /// Oldest first. INVARIANT: all but the last end at or before `accepted`.
    pub writes: Vec<KnownWrite>,
}

impl InputBook {
    /// What this write is, and whether it is taken. One that is taken is known from here on, and one before it that was
    /// cut off midway is given up.
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
        if let Some(start) = write.offset
            && start
                .checked_add(write.len)
                .is_some_and(|end| end <= self.accepted)
        {
            return Ok(Placed::Repeat { start });
        }
        self.is_open()?;
        // The same write again, which its place names: it goes on where it was cut off.
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

    /// Another writer than a client comes between: a write that was cut off midway is given up.
    pub fn interject(&mut self) {
        self.give_up();
    }

    /// So many bytes more were accepted.
    pub fn took(&mut self, bytes: u64) {
        self.accepted = self.accepted.saturating_add(bytes);
    }

    /// Nothing more is accepted; the first reason stands.
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

    /// The write that was cut off midway.
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
