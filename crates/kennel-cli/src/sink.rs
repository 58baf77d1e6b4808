//! A run's output on standard output and standard error of this process: byte for byte, or safe for a terminal.

use super::{link::write, words};
use crate::{
    failure::{Failure, note},
    terminal_text::Pieces,
};
use kennel_proto::pb;
use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
};

/// Writes output to its stream, and ensures that none is missing.
pub(crate) struct Sink {
    /// Next offset of standard output and standard error; absent: any offset is accepted.
    next: [Option<u64>; 2],
    /// Safe text for standard output and standard error where this process's is a terminal; absent: the bytes
    /// themselves.
    shown: [Option<Pieces>; 2],
}

impl Default for Sink {
    fn default() -> Self {
        Self {
            next: [Some(0); 2],
            shown: [None, None],
        }
    }
}

/// Whether both are a terminal, for a person to read.
pub(crate) fn is_for_person() -> bool {
    io::stdout().is_terminal() && io::stderr().is_terminal()
}

impl Sink {
    /// Makes a sink for output from any offset on.
    pub(crate) fn from_anywhere() -> Self {
        Self {
            next: [None; 2],
            ..Self::default()
        }
    }

    /// Escapes everything on which a terminal would act.
    pub(crate) fn safe(self) -> Self {
        let pieces = |is_terminal: bool| is_terminal.then(Pieces::default);
        Self {
            shown: [
                pieces(io::stdout().is_terminal()),
                pieces(io::stderr().is_terminal()),
            ],
            ..self
        }
    }

    /// Writes the bytes, even after missing ones, and flushes: a person may be reading along.
    pub(crate) fn write_text(&mut self, output: &pb::Output) -> Result<(), Failure> {
        let [stdout, stderr] = &mut self.shown;
        match output.stream() {
            pb::OutputStream::Stdout => show(io::stdout().lock(), stdout, &output.data),
            pb::OutputStream::Stderr => show(io::stderr().lock(), stderr, &output.data),
            // This version cannot show a stream of a later version.
            pb::OutputStream::Unspecified => Ok(()),
        }
    }

    /// Writes the bytes, of which none may be missing.
    pub(crate) fn write(&mut self, output: &pb::Output) -> Result<(), Failure> {
        if let Some((next, name)) = self.next_of(output.stream()) {
            take(next, name, output)?;
        }
        self.write_text(output)
    }

    /// Returns the next offset of a stream, and its name.
    fn next_of(&mut self, stream: pb::OutputStream) -> Option<(&mut Option<u64>, &'static str)> {
        match stream {
            pb::OutputStream::Stdout => Some((&mut self.next[0], "stdout")),
            pb::OutputStream::Stderr => Some((&mut self.next[1], "stderr")),
            pb::OutputStream::Unspecified => None,
        }
    }

    /// Continues after missing bytes, and reports them on standard error.
    pub(crate) fn skip(&mut self, gap: &pb::Gap) {
        for missing in &gap.missing {
            if let Some((next, _)) = self.next_of(missing.stream()) {
                *next = Some(missing.end_offset);
            }
        }
        let only_known = gap.missing.iter().all(|missing| missing.bytes == Some(0));
        if !only_known {
            note(&words::gap(gap));
        }
    }
}

fn show(to: impl AsFd, shown: &mut Option<Pieces>, data: &[u8]) -> Result<(), Failure> {
    match shown {
        Some(pieces) => write(to, pieces.next(data).as_bytes()),
        None => write(to, data),
    }
}

fn take(next: &mut Option<u64>, stream: &str, output: &pb::Output) -> Result<(), Failure> {
    if let Some(next) = next
        && output.offset != *next
    {
        return Err(Failure::new(format!(
            "bytes of {stream} are missing: offset {} came where {next} was expected",
            output.offset
        )));
    }
    *next = Some(end_of(output));
    Ok(())
}

fn end_of(output: &pb::Output) -> u64 {
    output.offset + output.data.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_in_output_is_reported() {
        let output = |offset| pb::Output {
            offset,
            data: b"abc".to_vec().into(),
            ..pb::Output::default()
        };
        let mut next = Some(0);
        assert_eq!(take(&mut next, "stdout", &output(0)), Ok(()));
        assert_eq!(take(&mut next, "stdout", &output(3)), Ok(()));
        let hole = take(&mut next, "stdout", &output(7));
        let mut anywhere = None;
        assert_eq!(take(&mut anywhere, "stdout", &output(5)), Ok(()));
        assert!(take(&mut anywhere, "stdout", &output(5)).is_err());
        assert!(hole.is_err_and(|f| f.to_string().contains("offset 7 came where 6")));
    }
}
