//! Opening of streams of events, with a consumer or without one.

use super::{Processes, unless_leaving};
use crate::{
    access::Caller,
    auth::Scope,
    convert::{
        request::{self, EventsCall, ManyAsk, ManyConsumer},
        token::Cursor,
    },
    limits, pb,
    shares::StreamPlace,
    status::{self, answer_of},
    stream::{self, Named, Nodes, NodesReader, ResponseReader},
};
use kennel_supervisor::{
    CallError, ConsumerBegin, ConsumerKey, ConsumerSeat, Events, Form, LINE_BYTES_MAX, OutputWait,
    Position, RunView, Supervisor,
};
use std::{future::Future, sync::Arc};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Response, Status, codegen::BoxStream};

type Opened = Result<Response<BoxStream<pb::StreamEventsResponse>>, Status>;

impl Processes {
    /// Opens the events of one run. `asks_node`: those of a run of another node come from that node.
    pub(super) async fn stream_one(
        &self,
        request: &pb::StreamEventsRequest,
        caller: &Caller,
        asks_node: bool,
    ) -> Opened {
        let call = request::events(request)?;
        self.in_scope(Scope::of(caller), call.run).await?;
        self.at_its_node(asks_node, call.run).await?;
        let owner = caller.owner.clone();
        let place = self.place(caller)?;
        let room = self.room_for_lines(call.form)?;
        let opening = answer_of(open(&self.supervisor, &call, owner));
        let (view, events, seat) = self.unless_going(opening).await?;
        let reader = stream::Reader::new(view, events, &call, self.going.clone(), place);
        let reader = reader.in_name_of(seat).with_room(room);
        Ok(Response::new(Box::pin(reader.into_stream())))
    }

    /// Opens the events of many runs. `asks_nodes`: those of all nodes, else of this one.
    pub(super) async fn stream_many(
        &self,
        mut request: pb::StreamEventsRequest,
        caller: &Caller,
        asks_nodes: bool,
    ) -> Opened {
        let scope = Scope::of(caller);
        self.below_scope(&scope, &mut request.filter).await?;
        let seen = scope.owner().map(str::to_owned);
        let (own, owner) = (self.supervisor.node(), &caller.owner);
        let mut ask = request::events_of_many(&request, own, owner, seen, &self.key)?;
        let nodes = match self.node_of(request.filter.as_ref()).await? {
            Some(node) if asks_nodes || node == own => Nodes::One(node),
            Some(_) => return Err(status::node_of_call()),
            None if asks_nodes => Nodes::All,
            None => Nodes::One(own),
        };
        let place = Arc::new(self.place(caller)?);
        let consumer = ask.consumer.take();
        let open = |ask: ManyAsk| {
            let reading = stream::Reading {
                supervisor: self.supervisor.clone(),
                fleet: Arc::clone(&self.fleet),
                caller: caller.clone(),
                ask,
                request: request.clone(),
                going: self.going.clone(),
            };
            NodesReader::new(reading, nodes, Arc::clone(&place))
        };
        let reader = match consumer {
            Some(consumer) => {
                let reading = self.read_for(consumer, ask, open);
                self.unless_going(reading).await?
            }
            None => {
                let mut reader = open(ask);
                reader.begin_if_live().await;
                reader
            }
        };
        Ok(Response::new(Box::pin(reader.into_stream())))
    }

    /// Waits for an answer that may take days: not when another server replaces this one.
    pub(super) fn unless_going<T>(
        &self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> impl Future<Output = Result<T, Status>> {
        unless_leaving(&self.going, self.unless_draining(answer))
    }

    /// Takes a slot among the streams of all, and of the caller's owner.
    pub(super) fn place(&self, caller: &Caller) -> Result<StreamPlace, Status> {
        let place = self.places.clone().try_acquire_owned();
        let place =
            place.map_err(|_| status::too_many("open event streams", limits::STREAMS_MAX))?;
        self.shares.stream(caller, place)
    }

    /// Takes memory for the lines of both streams, where they may be longer than usual.
    fn room_for_lines(&self, form: Option<Form>) -> Result<Option<OwnedSemaphorePermit>, Status> {
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

    /// Takes the slots of a wait for output: one among the streams, and memory for long lines.
    pub(super) fn places_of_wait(
        &self,
        caller: &Caller,
        wait: &OutputWait,
    ) -> Result<(StreamPlace, Option<OwnedSemaphorePermit>), Status> {
        let form = Form {
            line_bytes_max: wait.line_bytes_max,
            ..Form::default()
        };
        Ok((self.place(caller)?, self.room_for_lines(Some(form))?))
    }

    /// Becomes the reader of a consumer of many runs, at its position.
    async fn read_for(
        &self,
        consumer: ManyConsumer,
        mut ask: ManyAsk,
        open: impl Fn(ManyAsk) -> NodesReader,
    ) -> Result<NodesReader, Status> {
        let key = consumer.key;
        // A request for something else does not replace a reader.
        match self.supervisor.consumer(&key).await {
            Ok(view) => {
                let at = ask.position(&view.row.cursor);
                ask.at = at.ok_or_else(status::other_filter)?;
            }
            Err(CallError::ConsumerNotFound { .. }) => {}
            Err(error) => return Err(status::of(&error)),
        }
        let mut reader = open(ask.clone());
        reader.begin_if_live().await;
        let begin = ConsumerBegin {
            acked: 0,
            cursor: reader.position().encode().into(),
        };
        let (supervisor, place) = (self.supervisor.clone(), consumer.place);
        let taken = self.to_its_end(async move {
            let taken = supervisor.take_consumer(&key, Some(begin), place).await?;
            taken.ok_or_else(|| CallError::Internal("a consumer was not registered".into()))
        });
        let taken = taken.await?;
        let at = ask.position(taken.begin());
        let at = at.ok_or_else(status::other_filter)?;
        if at != *reader.position() {
            ask.at = at;
            reader = open(ask);
            // Registered before the nodes had said where its events begin.
            reader.begin_if_live().await;
        }
        Ok(reader.in_name_of(Named::new(taken, self.key.clone())))
    }
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
        // Another client has registered it in between.
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
