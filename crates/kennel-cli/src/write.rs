//! `kennel write`, and the writer of `kennel run`: write bytes to a run's standard input, each once.

use crate::{
    args::RunRef,
    failure::Failure,
    link::{Link, refused},
    words,
};
use clap::Args;
use kennel_client::InputWriter;
use kennel_linux::own_streams::StandardInput;
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

#[derive(Debug, Args)]
pub struct WriteArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// File to write; without it, or with `-`, standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Offset of the file's first byte in the run's input; bytes that the run already has are skipped [default: the
    /// current end of the input]
    #[arg(long, value_name = "BYTES")]
    pub(crate) offset: Option<u64>,
    /// Close the input afterwards: the command reads end of file
    #[arg(long)]
    pub(crate) close: bool,
    /// Write to this attempt only [default: the current one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

/// Bytes of one write. Smaller reads are written as they come.
pub(super) const PIECE_BYTES: usize = 256 * 1024;

/// Writes the contents of a file, or of standard input.
pub(crate) async fn write(link: &Link, args: WriteArgs) -> Result<(), Failure> {
    let mut source = Source::open(args.file.as_deref())?;
    let run_id = link.run_id(&args.run.run).await?;
    let begun = InputWriter::begin(&link.connection, &run_id, args.attempt).await;
    let mut writer = begun.map_err(refused)?;
    if let Some(first) = args.offset {
        let known = source.skip(first, writer.offset()).await?;
        writer.go_back(known);
    }
    let mut status = None;
    loop {
        let piece = source.next(PIECE_BYTES).await?;
        if piece.is_empty() {
            break;
        }
        status = Some(writer.write(piece.into()).await.map_err(refused)?);
    }
    if args.close {
        status = Some(writer.close().await.map_err(refused)?);
    }
    let status = match status {
        Some(status) => status,
        None => writer.status().await.map_err(refused)?,
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
            _ => Box::new(StandardInput),
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
