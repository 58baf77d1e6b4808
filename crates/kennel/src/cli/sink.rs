//! A run's output, byte for byte, on our own standard output and standard error.

use super::{link::stdout_failed, words};
use crate::failure::Failure;
use kennel_edge::pb;
use std::io::{self, Write};

/// Writes output where it belongs, and sees to it that none is missing.
pub(crate) struct Sink {
    /// Next offset of standard output and standard error; absent: any will do.
    next: [Option<u64>; 2],
}

impl Default for Sink {
    fn default() -> Self {
        Self { next: [Some(0); 2] }
    }
}

impl Sink {
    /// For output from somewhere on.
    pub(crate) fn from_anywhere() -> Self {
        Self { next: [None; 2] }
    }

    /// Writes the bytes, whatever may lie between these and those before.
    pub(crate) fn write_text(output: &pb::Output) -> Result<(), Failure> {
        match output.stream() {
            pb::OutputStream::Stdout => write(io::stdout().lock(), &output.data),
            pb::OutputStream::Stderr => write(io::stderr().lock(), &output.data),
            pb::OutputStream::Unspecified => Ok(()),
        }
    }

    /// Writes the bytes and flushes: a person may be reading along.
    pub(crate) fn write(&mut self, output: &pb::Output) -> Result<(), Failure> {
        let data = &output.data[..];
        match output.stream() {
            pb::OutputStream::Stdout => {
                take(&mut self.next[0], "stdout", output)?;
                write(io::stdout().lock(), data)
            }
            pb::OutputStream::Stderr => {
                take(&mut self.next[1], "stderr", output)?;
                write(io::stderr().lock(), data)
            }
            // A stream of a later version: it has no place here.
            pb::OutputStream::Unspecified => Ok(()),
        }
    }

    /// Goes on behind what was written elsewhere.
    pub(crate) fn go_on_behind(&mut self, output: &pb::Output) {
        let end = Some(output.offset + output.data.len() as u64);
        match output.stream() {
            pb::OutputStream::Stdout => self.next[0] = end,
            pb::OutputStream::Stderr => self.next[1] = end,
            pb::OutputStream::Unspecified => {}
        }
    }

    /// Goes on behind what is missing, and says so on standard error.
    pub(crate) fn skip(&mut self, gap: &pb::Gap) {
        for missing in &gap.missing {
            let next = match missing.stream() {
                pb::OutputStream::Stdout => &mut self.next[0],
                pb::OutputStream::Stderr => &mut self.next[1],
                pb::OutputStream::Unspecified => continue,
            };
            *next = Some(missing.end_offset);
        }
        let only_known = gap.missing.iter().all(|missing| missing.bytes == Some(0));
        if !only_known {
            eprintln!("kennel: {}", words::gap(gap));
        }
    }
}

fn write(mut to: impl Write, data: &[u8]) -> Result<(), Failure> {
    to.write_all(data)
        .and_then(|()| to.flush())
        .map_err(|cause| stdout_failed(&cause))
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
    *next = Some(output.offset + output.data.len() as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_in_the_output_is_not_passed_over_in_silence() {
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
