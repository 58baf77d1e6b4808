//! Views of output: without escape sequences, or by lines.
//!
//! Pure: bytes in, pieces out, the same for every split of the bytes into reads. The raw bytes are the record; each
//! reader makes its own view, and [`View::resumes_at`] is the offset from which a later view must be fed to continue in
//! the same state.

mod escapes;

use escapes::Escapes;

/// Default longest line in bytes of its stream. A longer one comes in several pieces.
pub const LINE_BYTES_MAX: u32 = 64 * 1024;

/// Form of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Whether escape sequences and control characters are removed, except TAB, LF and CR.
    pub plain: bool,
    /// Whether each piece is a line.
    pub lines: bool,
    /// Longest line in bytes of its stream: so many are in memory for each stream. A longer one comes in several
    /// pieces.
    pub line_bytes_max: u32,
}

impl Default for Form {
    fn default() -> Self {
        Self {
            plain: false,
            lines: false,
            line_bytes_max: LINE_BYTES_MAX,
        }
    }
}

/// A shown piece of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of its first byte in the whole of the stream.
    pub offset: u64,
    /// The bytes; for a line without its end, LF or CR LF.
    pub data: Vec<u8>,
    /// Whether the line continues in the next piece.
    pub is_cut: bool,
}

/// A view of one stream of output.
#[derive(Clone, Debug, Default)]
pub struct View {
    form: Form,
    escapes: Escapes,
    /// Offset up to which it was fed.
    at: u64,
    line: Line,
}

/// The unfinished line.
#[derive(Clone, Debug, Default)]
struct Line {
    data: Vec<u8>,
    /// Offset of its first byte.
    begin: u64,
    /// Offset after its last byte.
    end: u64,
    /// Number of its last bytes that are contiguous in the stream.
    joined: usize,
}

impl View {
    /// Makes a view of a stream from this offset on.
    pub fn new(form: Form, at: u64) -> Self {
        Self {
            form,
            at,
            ..Self::default()
        }
    }

    /// Feeds the bytes that follow. A view of bytes returns one piece at most.
    pub fn feed(&mut self, data: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let Self {
            form,
            escapes,
            at,
            line,
        } = self;
        let mut keep = |offset, bytes: &[u8]| line.keep(*form, offset, bytes, &mut pieces);
        if form.plain {
            escapes.feed(*at, data, &mut keep);
        } else {
            keep(*at, data);
        }
        *at += data.len() as u64;
        if !form.lines {
            pieces.extend(line.give(false));
        }
        pieces
    }

    /// Returns the unfinished part as it is: nothing of it follows. Then continues as if new.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let Self {
            form,
            escapes,
            line,
            ..
        } = self;
        escapes.finish(&mut |offset, bytes: &[u8]| line.keep(*form, offset, bytes, &mut pieces));
        if form.lines && line.data.last() == Some(&b'\r') {
            line.data.pop();
        }
        pieces.extend(line.give(false));
        pieces
    }

    /// Returns the unfinished line: its beginning, and its bytes so far.
    pub fn unfinished(&self) -> (u64, &[u8]) {
        (self.line.begin, &self.line.data)
    }

    /// Returns the offset from which a new view must be fed, its pieces being dropped, to reach the state of this one.
    pub fn resumes_at(&self) -> u64 {
        let line = (!self.line.data.is_empty()).then_some(self.line.begin);
        // A control character within a sequence may have begun the line.
        let begun = [line, self.escapes.began()].into_iter().flatten().min();
        begun.unwrap_or(self.at)
    }
}

impl Line {
    fn keep(&mut self, form: Form, mut offset: u64, mut bytes: &[u8], pieces: &mut Vec<Piece>) {
        if !form.lines {
            self.push(offset, bytes);
            return;
        }
        while !bytes.is_empty() {
            let newline = memchr::memchr(b'\n', bytes);
            let len = newline.unwrap_or(bytes.len());
            self.push_cutting(form.line_bytes_max, offset, &bytes[..len], pieces);
            let mut taken = len;
            if newline.is_some() {
                if self.data.is_empty() {
                    self.begin = offset + len as u64;
                }
                if self.data.last() == Some(&b'\r') {
                    self.data.pop();
                }
                pieces.push(self.take(false));
                taken += 1;
            }
            bytes = &bytes[taken..];
            offset += taken as u64;
        }
    }

    /// Adds bytes of one line; returns it in pieces where it is too long.
    fn push_cutting(
        &mut self,
        line_bytes_max: u32,
        mut offset: u64,
        mut bytes: &[u8],
        pieces: &mut Vec<Piece>,
    ) {
        while !bytes.is_empty() {
            let begin = if self.data.is_empty() {
                offset
            } else {
                self.begin
            };
            let room = (begin + u64::from(line_bytes_max)).saturating_sub(offset);
            if room == 0 {
                pieces.push(self.cut(offset, bytes[0]));
                continue;
            }
            let len = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
            self.push(offset, &bytes[..len]);
            bytes = &bytes[len..];
            offset += len as u64;
        }
    }

    /// Ends a piece before the next byte, but not within a character.
    fn cut(&mut self, offset: u64, next: u8) -> Piece {
        let is_within = |byte: u8| byte & 0xc0 == 0x80;
        let mut back = 0;
        if is_within(next) && self.end == offset {
            let last = self.data.iter().rev().take(self.joined.min(3));
            back = last.take_while(|b| is_within(**b)).count();
            let lead = self.data.len().checked_sub(back + 1);
            let lead = lead.filter(|at| *at > 0 && self.data[*at] >= 0xc0 && back < 3);
            back = lead.map_or(0, |_| back + 1);
        }
        let rest = self.data.split_off(self.data.len() - back);
        let end = self.end;
        let piece = self.take(true);
        self.push(end - back as u64, &rest);
        piece
    }

    fn push(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.data.is_empty() {
            (self.begin, self.joined) = (offset, 0);
        } else if self.end != offset {
            self.joined = 0;
        }
        self.data.extend_from_slice(bytes);
        self.joined += bytes.len();
        self.end = offset + bytes.len() as u64;
    }

    /// Returns the present bytes, if there are any.
    fn give(&mut self, is_cut: bool) -> Option<Piece> {
        (!self.data.is_empty()).then(|| self.take(is_cut))
    }

    fn take(&mut self, is_cut: bool) -> Piece {
        Piece {
            offset: self.begin,
            data: std::mem::take(&mut self.data),
            is_cut,
        }
    }
}

#[cfg(test)]
mod tests;
