//! A run's output, byte for byte, on our own standard output and standard error.

use super::{link::stdout_failed, words};
use crate::failure::Failure;
use kennel_edge::pb;
use std::io::{self, Write};

/// Writes output where it belongs, and sees to it that none is missing.
#[derive(Default)]
pub(crate) struct Sink {
    /// Next offset of standard output and standard error.
    next: [u64; 2],
}

impl Sink {
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

    /// Goes on behind what is missing, and says so on standard error.
    pub(crate) fn skip(&mut self, gap: &pb::Gap) {
        for missing in &gap.missing {
            let next = match missing.stream() {
                pb::OutputStream::Stdout => &mut self.next[0],
                pb::OutputStream::Stderr => &mut self.next[1],
                pb::OutputStream::Unspecified => continue,
            };
            *next = missing.end_offset;
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

fn take(next: &mut u64, stream: &str, output: &pb::Output) -> Result<(), Failure> {
    if output.offset != *next {
        return Err(Failure::new(format!(
            "bytes of {stream} are missing: offset {} came where {next} was expected",
            output.offset
        )));
    }
    *next += output.data.len() as u64;
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
        let mut next = 0;
        assert_eq!(take(&mut next, "stdout", &output(0)), Ok(()));
        assert_eq!(take(&mut next, "stdout", &output(3)), Ok(()));
        let hole = take(&mut next, "stdout", &output(7));
        assert!(hole.is_err_and(|f| f.to_string().contains("offset 7 came where 6")));
    }
}
