//! Standard input and output of an attempt as two byte streams, for libraries of protocols that speak over pipes.

use crate::{Connection, EventReader, Failure, InputWriter, Start};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use kennel_proto::pb::{self, EventKind, OutputStream, event::Payload, lifecycle::Station};
use std::{
    collections::VecDeque,
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, DuplexStream, duplex};
use tokio_util::io::StreamReader;

/// Bytes of input that were written here and not accepted yet, and of one request.
const INPUT_BYTES: usize = 256 * 1024;

/// Both directions of one attempt of a run, each byte once, over the death of any server.
pub struct Duplex {
    /// Standard output. Its end is that of the attempt. Output that is not kept any more is an error.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// Standard input.
    pub stdin: DuplexInput,
}

/// Standard input of an attempt. A write waits while the command does not read. Where another writer continues, or the
/// attempt has ended, a write fails with `BrokenPipe`. Shutdown closes the input; a dropped one leaves it open.
#[derive(Debug)]
pub struct DuplexInput {
    given: DuplexStream,
    is_shut: Arc<AtomicBool>,
}

impl Duplex {
    /// Opens the present attempt of a run: its output from `start` on, its input behind the accepted bytes.
    /// [`Start::Live`] continues in the place of another client.
    pub async fn open(
        connection: &Connection,
        run_id: &str,
        start: Start,
    ) -> Result<Self, Failure> {
        let writer = InputWriter::begin(connection, run_id, None).await?;
        let mut events = EventReader::new(connection, run_id, start);
        events.request.kinds = [EventKind::Lifecycle, EventKind::Stdout]
            .map(Into::into)
            .to_vec();
        let output = Output {
            events,
            attempt: writer.attempt(),
            parts: VecDeque::new(),
            has_ended: false,
        };
        let parts = stream::try_unfold(output, async |mut output| {
            let part = output.next().await?;
            Ok::<_, io::Error>(part.map(|part| (part, output)))
        });
        let (given, taken) = duplex(INPUT_BYTES);
        let is_shut = Arc::new(AtomicBool::new(false));
        tokio::spawn(pass(taken, writer, Arc::clone(&is_shut)));
        Ok(Self {
            stdout: Box::pin(StreamReader::new(parts)),
            stdin: DuplexInput { given, is_shut },
        })
    }
}

impl fmt::Debug for Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duplex").finish_non_exhaustive()
    }
}

impl AsyncWrite for DuplexInput {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.given).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.given).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_shut.store(true, Ordering::Release);
        Pin::new(&mut self.given).poll_shutdown(cx)
    }
}

/// Passes what is written here to the run, and its end where it was shut down.
async fn pass(mut given: DuplexStream, mut writer: InputWriter, is_shut: Arc<AtomicBool>) {
    let mut piece = BytesMut::with_capacity(INPUT_BYTES);
    loop {
        match given.read_buf(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(_) if writer.write(piece.split().freeze()).await.is_err() => return,
            Ok(_) => {}
        }
    }
    if is_shut.load(Ordering::Acquire) {
        // An input that has ended already needs no end.
        let _ = writer.close().await;
    }
}

/// Standard output of one attempt.
struct Output {
    events: EventReader,
    attempt: u32,
    parts: VecDeque<Bytes>,
    has_ended: bool,
}

impl Output {
    /// Returns the next bytes; absent: the attempt has ended.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Ok(Some(part));
            }
            if self.has_ended {
                return Ok(None);
            }
            match self.events.next().await.map_err(io::Error::other)? {
                Some(message) => message
                    .run_events
                    .into_iter()
                    .try_for_each(|e| self.take(e))?,
                None => self.has_ended = true,
            }
        }
    }

    fn take(&mut self, of_run: pb::RunEvents) -> io::Result<()> {
        self.has_ended |= of_run.attempt > self.attempt;
        if of_run.attempt != self.attempt {
            return Ok(());
        }
        for event in of_run.events {
            match event.payload {
                Some(Payload::Output(output)) if output.stream() == OutputStream::Stdout => {
                    self.parts.push_back(output.data);
                }
                Some(Payload::Gap(_)) => {
                    return Err(io::Error::other("output is not kept any more"));
                }
                Some(Payload::Lifecycle(event)) => {
                    let is_end = matches!(
                        event.station,
                        Some(Station::AttemptEnded(_) | Station::Ended(_))
                    );
                    self.has_ended |= is_end;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
