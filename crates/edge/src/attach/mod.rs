//! A client at a terminal: the screen goes down, typed input goes up.
//!
//! All of it is one stream of answers that is polled by its client: the input of a client that does not read is not
//! read either, and a client that goes away leaves nothing behind.

mod seats;

pub(crate) use seats::Seats;

use crate::{
    access::Caller,
    auth::{self, Scope},
    convert::{event as convert, request, run, screen, token::Cursor},
    limits,
    load::shares::StreamPlace,
    pb::{self, attach_request::Request as Asked, attach_response::Response as Reported},
    reason::Reason,
    status::{self, answer_of},
};
use futures_util::stream::{self, Stream};
use kennel_lifecycle::{RunId, TerminalSize};
use kennel_supervisor::{
    CallError, Event, Events, InputWritten, LoggedRequest, Position, ScreenView, Serving,
    Supervisor, TrailEntry, TrailRecord,
};
use seats::{Seat, Writes};
use std::{pin::Pin, sync::Arc};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

/// A client at a terminal; it holds a slot among the streams as long as it lives.
pub(crate) struct TerminalAttachment {
    supervisor: Supervisor,
    run: RunId,
    /// Its request, as in the audit log.
    reported: LoggedRequest,
    requests: Streaming<pb::AttachRequest>,
    /// Whether the client has ended its side.
    leaves: bool,
    /// The write in progress, under its id.
    writing: Option<Writing>,
    events: Events,
    seat: Seat,
    going: Serving,
    opened: Option<Box<pb::AttachOpened>>,
    over: bool,
    _place: StreamPlace,
}

type Writing = Pin<Box<dyn Future<Output = (String, Result<InputWritten, CallError>)> + Send>>;

/// Reason of a wake-up.
enum AttachWake {
    Events(Result<Option<Vec<Event>>, CallError>),
    Asked(Result<Option<pb::AttachRequest>, Status>),
    Written(String, Result<InputWritten, CallError>),
    Writer(Writes),
    Draining,
    Leaving,
}

impl TerminalAttachment {
    pub(crate) async fn open(
        supervisor: Supervisor,
        seats: Arc<Seats>,
        place: StreamPlace,
        caller: Caller,
        mut requests: Streaming<pb::AttachRequest>,
    ) -> Result<Self, Status> {
        let going = supervisor.serving();
        let first = requests.message().await?;
        let mut first = first.and_then(|first| first.request);
        if let Some(Asked::Open(open)) = &mut first {
            auth::resolve_name(&supervisor, &caller, &mut open.run_id).await?;
        }
        let open = request::attach(first)?;
        auth::in_scope(&supervisor, &Scope::of(&caller), open.run).await?;
        let reported = auth::logged(&caller, "Attach", Code::Ok);
        let mut seat = seats.join(open.run, caller.principal, open.read_only);
        if let (Some(size), true) = (open.size, seat.now().you) {
            resize_at_attach(&supervisor, open.run, size).await?;
        }
        let (at, shown) = match open.after {
            Some(at) => (at, None),
            None => {
                let view = answer_of(supervisor.screen(open.run)).await?;
                (view.position, Some(view))
            }
        };
        let found = supervisor.events(open.run, Position::After(at));
        let (view, events) = answer_of(found).await?;
        let opened = pb::AttachOpened {
            run: Some(run::run(view)),
            screen: shown.map(|shown: ScreenView| screen::screen(shown)),
            writer: Some(writer(seat.seen())),
        };
        let entry = reported
            .clone()
            .with("read_only", open.read_only.to_string());
        let entry = TrailEntry::Request(entry);
        supervisor
            .audit_log()
            .record(TrailRecord::now(Some(open.run.to_string()), entry));
        Ok(Self {
            supervisor,
            run: open.run,
            reported,
            requests,
            leaves: false,
            writing: None,
            events: events.subscribed(),
            seat,
            going,
            opened: Some(Box::new(opened)),
            over: false,
            _place: place,
        })
    }

    pub(crate) fn into_stream(
        self,
    ) -> impl Stream<Item = Result<pb::AttachResponse, Status>> + Send {
        stream::unfold(self, |mut attachment| async move {
            let reported = attachment.next().await?;
            attachment.over |= reported.is_err();
            let reported = reported.map(|reported| pb::AttachResponse {
                response: Some(reported),
            });
            Some((reported, attachment))
        })
    }

    async fn next(&mut self) -> Option<Result<Reported, Status>> {
        if self.over {
            return None;
        }
        if let Some(opened) = self.opened.take() {
            return Some(Ok(Reported::Opened(opened)));
        }
        loop {
            if self.leaves && self.writing.is_none() {
                return None;
            }
            let reported = match self.wake().await {
                AttachWake::Events(Ok(None)) => return None,
                AttachWake::Events(Ok(Some(events))) => Ok(Reported::Events(self.batch(events))),
                AttachWake::Events(Err(error)) => Err(status::of(&error)),
                AttachWake::Asked(Ok(None)) => {
                    self.leaves = true;
                    continue;
                }
                AttachWake::Asked(Ok(Some(asked))) => match self.obey(asked.request).await {
                    Ok(None) => continue,
                    Ok(Some(refused)) => Ok(Reported::Refused(refused)),
                    Err(status) => Err(status),
                },
                AttachWake::Asked(Err(status)) => Err(status),
                AttachWake::Written(id, written) => taken(id, written),
                AttachWake::Writer(writes) => Ok(Reported::Writer(writer(writes))),
                AttachWake::Draining => Err(status::draining()),
                AttachWake::Leaving => Err(status::leaving()),
            };
            return Some(reported);
        }
    }

    async fn wake(&mut self) -> AttachWake {
        let Self {
            requests,
            leaves,
            writing,
            events,
            seat,
            going,
            ..
        } = self;
        // One write at a time: input is written in order, and a full terminal makes its writer wait.
        let asks = writing.is_none() && !*leaves;
        let written = async {
            match writing {
                Some(write) => write.await,
                None => std::future::pending().await,
            }
        };
        let wake = tokio::select! {
            biased;
            () = going.until_leaving() => AttachWake::Leaving,
            () = going.until_closing() => AttachWake::Draining,
            (id, written) = written => AttachWake::Written(id, written),
            asked = requests.message(), if asks => AttachWake::Asked(asked),
            writes = seat.changed() => AttachWake::Writer(writes),
            events = events.next(limits::BATCH_BYTES_MAX) => AttachWake::Events(events),
        };
        if let AttachWake::Written(..) = wake {
            self.writing = None;
        }
        wake
    }

    fn batch(&self, events: Vec<Event>) -> pb::AttachEvents {
        let cursor = Cursor {
            run: self.run,
            at: self.events.position(),
            form: None,
        };
        pb::AttachEvents {
            run_events: convert::batches(self.run, events, false),
            cursor: cursor.encode(),
        }
    }

    /// Makes the audit record for so many bytes.
    fn typed(&self, bytes: usize) -> TrailRecord {
        let reported = LoggedRequest {
            rpc: "Attach.input".to_owned(),
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            ..self.reported.clone()
        };
        let run = self.run.to_string();
        TrailRecord::now(Some(run), TrailEntry::Request(reported))
    }

    /// Carries a request out, or answers why not. The error ends the stream.
    async fn obey(&mut self, asked: Option<Asked>) -> Result<Option<pb::AttachRefused>, Status> {
        match asked {
            Some(Asked::Input(input)) => {
                let call = request::attach_input(self.run, self.reported.by.clone(), input)?;
                let id = call.write_id.clone().unwrap_or_default();
                if !self.seat.writes_if_free() {
                    return Ok(Some(not_writer(id)));
                }
                let supervisor = self.supervisor.clone();
                let record = self.typed(call.data.len());
                self.writing = Some(Box::pin(async move {
                    let written = supervisor.write_input(call).await;
                    if written.is_ok() {
                        supervisor.audit_log().count(record);
                    }
                    (id, written)
                }));
                Ok(None)
            }
            Some(Asked::Resize(size)) => {
                let call = request::attach_resize(self.run, size)?;
                if !self.seat.now().you {
                    return Ok(Some(not_writer(String::new())));
                }
                match self.supervisor.resize(call).await {
                    Ok(_) => Ok(None),
                    Err(error) => refused(&status::of(&error), String::new()).map(Some),
                }
            }
            Some(Asked::Take(pb::TakeWriter {})) => {
                let took = self.seat.take();
                Ok((!took).then(|| not_writer(String::new())))
            }
            Some(Asked::Open(_)) | None => Err(request::not_after_open()),
        }
    }
}

/// Resizes at the start. A run that is not on its terminal at present is shown as it is.
async fn resize_at_attach(
    supervisor: &Supervisor,
    run: RunId,
    size: TerminalSize,
) -> Result<(), Status> {
    match supervisor.resize(request::resize_to(run, size)).await {
        Ok(_) | Err(CallError::Refused { .. }) => Ok(()),
        Err(error) => Err(status::of(&error)),
    }
}

fn taken(write_id: String, written: Result<InputWritten, CallError>) -> Result<Reported, Status> {
    match written {
        Ok(written) => Ok(Reported::Taken(pb::AttachInputTaken {
            write_id,
            accepted_offset: written.progress.accepted.unwrap_or_default(),
            repeated: written.repeated,
        })),
        Err(error) => refused(&status::of(&error), write_id).map(Reported::Refused),
    }
}

/// Returns the answer to a fault, where the client can still use this terminal; the error where only another server can
/// help.
fn refused(status: &Status, write_id: String) -> Result<pb::AttachRefused, Status> {
    if status.code() == Code::Unavailable {
        return Err(status.clone());
    }
    let details = status.get_error_details();
    let reason = details.error_info().map(|info| info.reason.clone());
    Ok(pb::AttachRefused {
        reason: reason.unwrap_or_default(),
        message: status.message().to_owned(),
        write_id,
    })
}

fn not_writer(write_id: String) -> pb::AttachRefused {
    pb::AttachRefused {
        reason: Reason::NotWriter.as_str().to_owned(),
        message: "another client writes on this terminal, or this one only watches".to_owned(),
        write_id,
    }
}

fn writer(writes: Writes) -> pb::WriterChanged {
    pb::WriterChanged {
        you: writes.you,
        principal: writes.principal.unwrap_or_default(),
    }
}
