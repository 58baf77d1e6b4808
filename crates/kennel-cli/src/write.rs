//! `kennel write`, and the writer of `kennel run`: write bytes to a run's standard input, each once.

use super::{
    link::{Link, refused},
    words,
};
use crate::{args::WriteArgs, failure::Failure};
use kennel_client::Connection;
use kennel_linux::own_streams::Input;
use kennel_proto::pb;
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Bytes of one write. Smaller reads are written as they come.
pub(super) const PIECE_BYTES: usize = 256 * 1024;

/// Writes the contents of a file, or of standard input.
pub(crate) async fn write(link: &Link, args: WriteArgs) -> Result<(), Failure> {
    let mut source = Source::open(args.file.as_deref())?;
    let run_id = link.run_id(&args.run.run).await?;
    let mut writer = Writer::begin(&link.connection, &run_id, args.attempt).await?;
    if let Some(first) = args.offset {
        writer.offset -= source.skip(first, writer.offset).await?;
    }
    let mut status = writer.copy(&mut source).await?;
    if args.close {
        status = Some(writer.close().await?);
    }
    let status = match status {
        Some(status) => status,
        None => writer.status().await?,
    };
    link.print(&status, || words::input(&status))
}

/// Source of the bytes. A thread that may block reads it.
struct Source(Option<Box<dyn Read + Send>>);

impl Source {
    fn open(file: Option<&Path>) -> Result<Self, Failure> {
        let source: Box<dyn Read + Send> = match file {
            Some(path) if path != Path::new("-") => match File::open(path) {
                Ok(file) => Box::new(file),
                Err(cause) => {
                    let failure = Failure::new(format!("cannot open {}: {cause}", path.display()));
                    let hint = "text is passed on standard input: echo TEXT | kennel write RUN";
                    return Err(failure.hint(hint));
                }
            },
            _ => Box::new(Input),
        };
        Ok(Self(Some(source)))
    }

    /// Returns the next bytes; empty: the end.
    async fn next(&mut self, bytes_max: usize) -> Result<Vec<u8>, Failure> {
        let Some(mut source) = self.0.take() else {
            return Ok(Vec::new());
        };
        let reading = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; bytes_max];
            let read = loop {
                match source.read(&mut piece) {
                    Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            read.map(|bytes| {
                piece.truncate(bytes);
                (source, piece)
            })
        });
        let read = reading.await.map_err(io::Error::other).flatten();
        let (source, piece) = read.map_err(|cause| unreadable(&cause))?;
        self.0 = Some(source);
        Ok(piece)
    }

    /// Skips bytes that the run has: the source begins at `first` of its input, of which `accepted` bytes are accepted.
    /// Returns the number of bytes that the run has beyond the end of the source: then nothing is left to write.
    async fn skip(&mut self, first: u64, accepted: u64) -> Result<u64, Failure> {
        let Some(mut known) = accepted.checked_sub(first) else {
            let message = format!("the input stands at {accepted}, before the offset {first}");
            return Err(Failure::new(message).hint("a part is missing: begin at what the run has"));
        };
        while known > 0 {
            let most = usize::try_from(known).map_or(PIECE_BYTES, |known| known.min(PIECE_BYTES));
            let piece = self.next(most).await?;
            if piece.is_empty() {
                break;
            }
            known -= piece.len() as u64;
        }
        Ok(known)
    }
}

fn unreadable(cause: &io::Error) -> Failure {
    Failure::new(format!("cannot read what is to be written: {cause}"))
}

/// Writes to one attempt from one offset on, across the loss of any server.
pub(super) struct Writer<'a> {
    connection: &'a Connection,
    run_id: &'a str,
    attempt: u32,
    offset: u64,
}

impl<'a> Writer<'a> {
    /// Begins at the end of the input.
    pub(super) async fn begin(
        connection: &'a Connection,
        run_id: &'a str,
        attempt: Option<u32>,
    ) -> Result<Self, Failure> {
        let mut writer = Self {
            connection,
            run_id,
            attempt: 0,
            offset: 0,
        };
        let status = writer.status().await?;
        let Some(accepted) = status.accepted_offset else {
            let message = format!("how far the input of run {run_id} has come is not known");
            return Err(Failure::new(message));
        };
        writer.attempt = attempt.unwrap_or(status.attempt);
        writer.offset = accepted;
        Ok(writer)
    }

    async fn status(&self) -> Result<pb::InputStatus, Failure> {
        let request = pb::GetInputStatusRequest {
            run_id: self.run_id.to_owned(),
        };
        let response = self.connection.call(request).await.map_err(refused)?;
        response.input.ok_or_else(empty_answer)
    }

    /// Writes everything; `None`: the source was empty.
    async fn copy(&mut self, source: &mut Source) -> Result<Option<pb::InputStatus>, Failure> {
        let mut status = None;
        loop {
            let piece = source.next(PIECE_BYTES).await?;
            if piece.is_empty() {
                return Ok(status);
            }
            status = Some(self.piece(piece).await?);
        }
    }

    pub(super) async fn piece(&mut self, data: Vec<u8>) -> Result<pb::InputStatus, Failure> {
        let bytes = data.len() as u64;
        let request = pb::WriteInputRequest {
            run_id: self.run_id.to_owned(),
            data: data.into(),
            offset: Some(self.offset),
            // The offset alone would suffice for a whole repeat; this one continues where a server has died midway.
            write_id: super::link::new_request_id(),
            expected_attempt: Some(self.attempt),
            if_awaiting: None,
        };
        let response = self.connection.call(request).await.map_err(refused)?;
        self.offset += bytes;
        response.input.ok_or_else(empty_answer)
    }

    pub(super) async fn close(&self) -> Result<pb::InputStatus, Failure> {
        let request = pb::CloseInputRequest {
            run_id: self.run_id.to_owned(),
            offset: Some(self.offset),
            expected_attempt: Some(self.attempt),
        };
        let response = self.connection.call(request).await.map_err(refused)?;
        response.input.ok_or_else(empty_answer)
    }
}

fn empty_answer() -> Failure {
    Failure::new("the server's answer says nothing about the input")
}
