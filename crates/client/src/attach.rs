//! A client at the terminal of a run, across lost connections and servers.

use crate::{Connection, Failure, resumes::Resumes};
use bytes::Bytes;
use kennel_proto::pb::{
    self, AttachRequest, AttachResponse, attach_request::Request as Asked,
    attach_response::Response as Reported,
};
use std::collections::VecDeque;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Most writes in flight: a run remembers the ids of twice as many.
pub const WRITES_MAX: usize = 8;

/// Most requests that wait for the connection. Writes are bounded by [`WRITES_MAX`]; the rest is for sizes, of which
/// dragging a window causes some tens a second. A connection that takes none of so many is lost, and the next one
/// begins with the newest size and the writes without an answer.
const REQUESTS_QUEUED_MAX: usize = 64;

/// A client at a terminal. Input without an acknowledgement is sent again to the next server, which knows it.
#[derive(Debug)]
pub struct Attachment {
    connection: Connection,
    open: pb::AttachOpen,
    /// Whether it wants to be the writer.
    takes: bool,
    /// Input without an acknowledgement.
    on_the_way: VecDeque<pb::AttachInput>,
    link: Option<Link>,
    resumes: Resumes,
    /// Whether no more input follows.
    leaves: bool,
}

#[derive(Debug)]
struct Link {
    /// Sender of requests; absent: this side is closed.
    up: Option<mpsc::Sender<AttachRequest>>,
    down: Streaming<AttachResponse>,
}

impl Attachment {
    /// Attaches to the terminal that this names. Connects when [`Self::next`] is called first.
    pub fn new(connection: &Connection, open: pb::AttachOpen) -> Self {
        Self {
            connection: connection.clone(),
            open,
            takes: false,
            on_the_way: VecDeque::new(),
            link: None,
            resumes: Resumes::default(),
            leaves: false,
        }
    }

    /// Returns the next message, the screen first; `None` after the run's last event, or after [`Self::leave`]. After a
    /// lost connection or server it continues at the next one, which sends `opened` again, without a screen.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Reported>, Failure> {
        loop {
            let Some(link) = &mut self.link else {
                // A cancelled call has counted its failed attempt; this call waits for the remaining pause.
                self.resumes.wait().await;
                match self.connect().await {
                    Ok(link) => self.link = Some(link),
                    Err(failure) => self.resumes.count(failure)?,
                }
                continue;
            };
            match link.down.message().await {
                Ok(Some(AttachResponse {
                    response: Some(reported),
                })) => {
                    self.note(&reported);
                    return Ok(Some(reported));
                }
                // Messages of later versions are skipped.
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(status) => {
                    self.link = None;
                    self.resumes.count(status.into())?;
                }
            }
        }
    }

    /// Whether input may be sent: not while too many writes are in flight.
    pub fn can_type(&self) -> bool {
        self.on_the_way.len() < WRITES_MAX && !self.leaves
    }

    /// Sends input, under an id that is used once. Call it only if [`Self::can_type`].
    pub fn type_in(&mut self, data: impl Into<Bytes>, write_id: String) {
        let input = pb::AttachInput {
            data: data.into(),
            write_id,
        };
        self.on_the_way.push_back(input.clone());
        self.ask(Asked::Input(input));
    }

    /// Sets the size of the terminal, now and after each reconnect.
    pub fn resize(&mut self, size: pb::TerminalSize) {
        self.open.size = Some(size);
        self.ask(Asked::Resize(size));
    }

    /// Requests to be the writer, now and after each reconnect.
    pub fn take(&mut self) {
        self.takes = true;
        self.ask(Asked::Take(pb::TakeWriter {}));
    }

    /// Ends the input: pending input is delivered, and then [`Self::next`] returns `None`.
    pub fn leave(&mut self) {
        self.leaves = true;
        if let Some(link) = &mut self.link {
            link.up = None;
        }
    }

    /// Sends a request. Without a connection it is dropped: the next connection begins with everything that still
    /// matters.
    fn ask(&mut self, asked: Asked) {
        let Some(up) = self.link.as_ref().and_then(|link| link.up.as_ref()) else {
            return;
        };
        let request = AttachRequest {
            request: Some(asked),
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = up.try_send(request) {
            self.link = None;
        }
    }

    async fn connect(&self) -> Result<Link, Failure> {
        let (up, requests) = mpsc::channel(REQUESTS_QUEUED_MAX + self.on_the_way.len());
        // The queue has space for the first requests, so none is refused.
        let say = |asked| {
            let _ = up.try_send(AttachRequest {
                request: Some(asked),
            });
        };
        say(Asked::Open(self.open.clone()));
        if self.takes {
            say(Asked::Take(pb::TakeWriter {}));
        }
        for input in &self.on_the_way {
            say(Asked::Input(input.clone()));
        }
        let mut processes = self.connection.processes();
        let requests = ReceiverStream::new(requests);
        let down = processes.attach(requests).await?.into_inner();
        Ok(Link {
            up: (!self.leaves).then_some(up),
            down,
        })
    }

    fn note(&mut self, reported: &Reported) {
        let settled = match reported {
            Reported::Opened(opened) => {
                if let Some(screen) = &opened.screen {
                    self.open.cursor = screen.cursor.clone();
                }
                return;
            }
            Reported::Events(events) => {
                self.open.cursor = events.cursor.clone();
                None
            }
            Reported::Taken(taken) => Some(&taken.write_id),
            Reported::Refused(refused) => Some(&refused.write_id),
            Reported::Writer(writer) => {
                // Another client has become the writer: the loss of a connection does not undo that.
                self.takes &= writer.you;
                None
            }
        };
        self.resumes.begin_anew();
        if let Some(id) = settled {
            self.on_the_way.retain(|input| input.write_id != *id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, RESUMES_MAX};
    use hyper_util::rt::TokioIo;
    use std::{
        io,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };
    use tokio::{io::DuplexStream, time::timeout};
    use tonic::transport::Endpoint;

    /// Returns a connection to a server that is not there, and the number of attempts to reach it.
    fn to_lost_server() -> (Connection, Arc<AtomicU32>) {
        let dials = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&dials);
        let connector = tower::service_fn(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Err::<TokioIo<DuplexStream>, _>(io::Error::other("lost")))
        });
        let endpoint = Endpoint::from_static("http://kennel");
        let connection = Connection {
            channel: endpoint.connect_with_connector_lazy(connector),
            address: Address::Unix("/lost".into()),
            token: None,
            node: None,
        };
        (connection, dials)
    }

    // promise: P-13
    #[tokio::test(start_paused = true)]
    async fn cancelled_reads_do_not_count_as_resume_attempts() {
        let (connection, dials) = to_lost_server();
        let mut attachment = Attachment::new(&connection, pb::AttachOpen::default());
        let cancels = 3 * RESUMES_MAX;
        let most = Duration::from_millis(cancels.into());
        attachment.resumes = Resumes::with_first_delay_over(most);
        // Keys or signals cancel the call many times in one pause between two attempts.
        for _ in 0..cancels {
            let cancelled = timeout(Duration::from_millis(1), attachment.next()).await;
            assert!(cancelled.is_err(), "{cancelled:?}");
        }
        assert_eq!(dials.load(Ordering::Relaxed), 1);
        attachment.next().await.expect_err("no server");
        assert_eq!(dials.load(Ordering::Relaxed), 1 + RESUMES_MAX);
    }
}
