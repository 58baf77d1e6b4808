//! Events of one run or of many, with a consumer or without one.

use super::{Api, At, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    access::Caller,
    auth,
    convert::{
        request::{self, EventsCall, ManyAsk, ManyConsumer},
        token::Cursor,
    },
    limits,
    load::shares::StreamPlace,
    pb, status,
    stream::{self, Named, Nodes, NodesReader, ResponseReader},
};
use kennel_lifecycle::Violation;
use kennel_supervisor::{
    CallError, ConsumerBegin, ConsumerKey, ConsumerSeat, Events, Form, LINE_BYTES_MAX, Position,
    RunView, Supervisor,
};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, codegen::BoxStream};

type Stream = BoxStream<pb::StreamEventsResponse>;

/// A stream, and who reads it.
pub(crate) struct Call {
    of: Of,
    caller: Caller,
}

enum Of {
    One(Box<EventsCall>),
    Many {
        ask: Box<ManyAsk>,
        nodes: Nodes,
        /// For the other nodes.
        request: Box<pb::StreamEventsRequest>,
    },
}

impl Verb for pb::StreamEventsRequest {
    const HOW: How = How::read(Waits::Caller);
    type Call = Call;

    async fn prepared(mut self, at: &Api, context: &mut Context<'_>) -> Result<Self, Fault> {
        // A consumer delays the removal of output.
        if !self.consumer.is_empty() {
            auth::may_consume(&context.caller)?;
        }
        if self.filter.is_some() {
            at.prepare_filter(context, &mut self.filter).await?;
        }
        Ok(self)
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Call> {
        let caller = context.caller.clone();
        let of = if self.filter.is_some() {
            let (seen, key) = (context.seen_owner(), context.key);
            let ask = request::events_of_many(
                &self,
                context.own_node,
                (&caller.owner, context.now),
                seen,
                key,
                found,
            );
            let all = context.asks_node.then_some(Nodes::All);
            Of::Many {
                ask: Box::new(ask),
                nodes: match context.node {
                    Some(node) => Nodes::One(node),
                    None => all.unwrap_or(Nodes::One(context.own_node)),
                },
                request: Box::new(self),
            }
        } else {
            Of::One(Box::new(request::events(&self, found)?))
        };
        Some(Call { of, caller })
    }

    /// Refuses another node's events where that node can not be asked.
    async fn checked(
        _: &Api,
        context: &Context<'_>,
        _: &mut Call,
        found: &mut Vec<Violation>,
    ) -> Result<(), Fault> {
        let is_other = context.node.is_some_and(|node| node != context.own_node);
        if is_other && !context.asks_node && found.is_empty() {
            return Err(status::node_of_call().into());
        }
        Ok(())
    }

    fn scope(call: &Call) -> Option<Scope> {
        Some(match &call.of {
            Of::One(one) => Scope::RunAtItsNode(one.run),
            // The stream contains only runs that the caller may see.
            Of::Many { .. } => Scope::Nothing,
        })
    }

    async fn serve(at: Api, Call { of, caller }: Call) -> Result<Stream, Fault> {
        match of {
            Of::One(call) => stream_one(&at, &call, &caller).await,
            Of::Many {
                ask,
                nodes,
                request,
            } => stream_many(&at, *ask, nodes, *request, &caller).await,
        }
    }
}

/// Opens the events of one run.
async fn stream_one(at: &At, call: &EventsCall, caller: &Caller) -> Result<Stream, Fault> {
    let place = at.place(caller)?;
    let room = at.room_for_lines(call.form)?;
    let (view, events, seat) = open(&at.supervisor, call, caller.owner.clone()).await?;
    let reader = stream::StreamReader::new(view, events, call, at.going.clone(), place);
    let reader = reader.in_name_of(seat).with_room(room);
    Ok(Box::pin(reader.into_stream()))
}

/// Opens the events of many runs.
async fn stream_many(
    at: &At,
    mut ask: ManyAsk,
    nodes: Nodes,
    request: pb::StreamEventsRequest,
    caller: &Caller,
) -> Result<Stream, Fault> {
    let place = Arc::new(at.place(caller)?);
    let consumer = ask.consumer.take();
    let open = |ask: ManyAsk| {
        let reading = stream::Reading {
            supervisor: at.supervisor.clone(),
            fleet: Arc::clone(&at.fleet),
            caller: caller.clone(),
            ask,
            request: request.clone(),
            going: at.going.clone(),
        };
        NodesReader::new(reading, nodes, Arc::clone(&place))
    };
    let reader = match consumer {
        Some(consumer) => read_for(at, consumer, ask, open).await?,
        None => {
            let mut reader = open(ask);
            reader.begin_if_live().await;
            reader
        }
    };
    Ok(Box::pin(reader.into_stream()))
}

impl At {
    /// Takes a slot among the streams of all, and of the caller's owner.
    pub(super) fn place(&self, caller: &Caller) -> Result<StreamPlace, Status> {
        let place = self.places.clone().try_acquire_owned();
        let place =
            place.map_err(|_| status::too_many("open event streams", limits::STREAMS_MAX))?;
        self.shares.stream(caller, place)
    }

    /// Takes memory for the lines of both streams, where they may be longer than usual.
    pub(super) fn room_for_lines(
        &self,
        form: Option<Form>,
    ) -> Result<Option<OwnedSemaphorePermit>, Status> {
        let most = form.map_or(0, |form| form.line_bytes_max);
        if most <= LINE_BYTES_MAX {
            return Ok(None);
        }
        let kib = 2 * most.div_ceil(1024);
        let room = self.long_lines.clone().try_acquire_many_owned(kib);
        let all = limits::LONG_LINES_KIB_MAX as usize;
        let refused = |_| status::too_many("KiB for long lines of all readers", all);
        room.map(Some).map_err(refused)
    }
}

/// Becomes the reader of a consumer of many runs, at its position.
async fn read_for(
    at: &At,
    consumer: ManyConsumer,
    mut ask: ManyAsk,
    open: impl Fn(ManyAsk) -> NodesReader,
) -> Result<NodesReader, Fault> {
    let key = consumer.key;
    // A request with another filter does not replace a reader.
    match at.supervisor.consumer(&key).await {
        Ok(view) => {
            let begins = ask.position(&view.row.cursor);
            ask.at = begins.ok_or_else(status::other_filter)?;
        }
        Err(CallError::ConsumerNotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut reader = open(ask.clone());
    reader.begin_if_live().await;
    let begin = ConsumerBegin {
        acked: 0,
        cursor: reader.position().encode().into(),
    };
    let (supervisor, place) = (at.supervisor.clone(), consumer.place);
    let taken = at.to_its_end(async move {
        let taken = supervisor.take_consumer(&key, Some(begin), place).await?;
        taken.ok_or_else(|| CallError::Internal("a consumer was not registered".into()))
    });
    let taken = taken.await?;
    let begins = ask.position(taken.begin());
    let begins = begins.ok_or_else(status::other_filter)?;
    if begins != *reader.position() {
        ask.at = begins;
        reader = open(ask);
        // The consumer was registered before the nodes reported where events begin.
        reader.begin_if_live().await;
    }
    Ok(reader.in_name_of(Named::new(taken, at.key.clone())))
}

/// Returns the run, its events from the requested position, and the session of the consumer.
async fn open(
    supervisor: &Supervisor,
    call: &EventsCall,
    owner: String,
) -> Result<(RunView, Events, Option<ConsumerSeat>), CallError> {
    let Some(consumer) = &call.consumer else {
        let (view, events) = open_from(supervisor, call, call.from).await?;
        return Ok((view, events, None));
    };
    let key = ConsumerKey {
        run: Some(call.run),
        owner,
        name: consumer.name.clone(),
    };
    let after = |seat: &ConsumerSeat| match Cursor::decode(seat.begin()) {
        _ if consumer.has_position => Ok(call.from),
        Some(cursor) => Ok(cursor.position(call.form)),
        None => Err(CallError::Internal(
            "the position of a consumer cannot be read".into(),
        )),
    };
    if let Some(seat) = supervisor.take_consumer(&key, None, None).await? {
        let (view, events) = open_from(supervisor, call, after(&seat)?).await?;
        return Ok((view, events, Some(seat)));
    }
    let (view, events) = open_from(supervisor, call, call.from).await?;
    let (run, at, form) = (call.run, events.position(), call.form);
    let begin = ConsumerBegin {
        acked: at.seq,
        cursor: Cursor { run, at, form }.encode().into(),
    };
    let registered = begin.cursor.clone();
    let seat = supervisor.take_consumer(&key, Some(begin), None).await?;
    match seat {
        // Another client has registered the consumer in between.
        Some(seat) if seat.begin() != registered => {
            let (view, events) = open_from(supervisor, call, after(&seat)?).await?;
            Ok((view, events, Some(seat)))
        }
        seat => Ok((view, events, seat)),
    }
}

async fn open_from(
    supervisor: &Supervisor,
    call: &EventsCall,
    from: Position,
) -> Result<(RunView, Events), CallError> {
    let (view, events) = supervisor.events(call.run, from).await?;
    let at = match from {
        Position::After(at) => Some(at),
        Position::Beginning | Position::LiveOnly | Position::Tail(_) => None,
    };
    let events = events.of_kinds(call.kinds);
    let events = if call.until_head {
        events.until_head()
    } else {
        events
    };
    let events = match call.form {
        Some(form) => events.viewed(form, at).await?,
        None => events,
    };
    Ok((view, events.subscribed()))
}
