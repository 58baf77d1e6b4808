//! The rpcs: each parses, calls the supervisor once, and converts the answer.

mod admin;
mod audit_log;
mod facets;
mod keeper;
mod page;
mod restart;
mod scope;
mod spawn;
mod streams;

pub(crate) use admin::Admin;
pub(crate) use audit_log::Audited;

use crate::{
    admission::{self, Admission},
    attach::{Attachment, Seats},
    auth,
    convert::{consumer, event, input, request, run, screen, terminal, tree, usage},
    digest::DigestKey,
    forward::{AskItsNode, Fleet, Links},
    limits, pb,
    shares::Shares,
    status::{self, answer_of},
};
use keeper::with_keeper;
use kennel_supervisor::{AbortWait, CallError, Serving, Supervisor};
use page::page;
use std::{future::Future, sync::Arc};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};
use tracing::Instrument;

/// The service for clients.
pub(crate) struct Processes {
    supervisor: Supervisor,
    key: DigestKey,
    /// Work that continues when its caller goes away.
    tasks: TaskTracker,
    /// Slots for streams of events.
    places: Arc<Semaphore>,
    /// Quota usage of owners.
    shares: Shares,
    /// Memory for lines that are longer than usual, in KiB.
    long_lines: Arc<Semaphore>,
    /// Counts refused spawns.
    admission: Admission,
    /// Writers of terminals.
    seats: Arc<Seats>,
    /// All nodes.
    fleet: Arc<Fleet>,
    going: Serving,
}

impl Processes {
    pub(crate) fn new(
        supervisor: Supervisor,
        key: DigestKey,
        tasks: TaskTracker,
        links: Arc<Links>,
        shares: Shares,
    ) -> Self {
        let going = supervisor.serving();
        let telemetry = supervisor.telemetry();
        let places = Arc::new(Semaphore::new(limits::STREAMS_MAX));
        admission::measure_streams(&telemetry, &places);
        let fleet = Arc::new(Fleet::new(supervisor.clone(), links));
        Self {
            supervisor,
            key,
            tasks,
            places,
            shares,
            long_lines: Arc::new(Semaphore::new(limits::LONG_LINES_KIB_MAX as usize)),
            admission: Admission::new(&telemetry),
            seats: Arc::default(),
            fleet,
            going,
        }
    }

    /// Runs work that must not stop half-way.
    fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, CallError>> + Send + 'static,
    ) -> impl Future<Output = Result<T, Status>> {
        to_its_end(&self.tasks, work)
    }

    /// Waits for an answer that may take long, but not through a shutdown.
    fn unless_draining<T>(
        &self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> impl Future<Output = Result<T, Status>> {
        // Boxed before the future is made, which would have space for it twice, as would each one around it.
        let answer = Box::pin(answer);
        async {
            let too_late = async {
                self.going.until_closing().await;
                tokio::time::sleep(limits::LAST_WORDS_MAX).await;
            };
            let ask_the_next = async {
                self.going.until_leaving().await;
                tokio::time::sleep(limits::LEAVE_CALLS_MAX).await;
            };
            tokio::select! {
                biased;
                answer = answer => answer,
                () = too_late => Err(status::draining()),
                () = ask_the_next => Err(status::leaving()),
            }
        }
    }

    /// Waits likewise for an answer that needs the keeper: nor while that does not answer.
    fn with_keeper<T>(
        &self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> impl Future<Output = Result<T, Status>> {
        with_keeper(&self.supervisor, self.unless_draining(answer))
    }
}

/// The rpcs, except those that have a module of their own.
impl Processes {
    async fn abort(
        &self,
        request: Request<pb::AbortRequest>,
    ) -> Result<Response<pb::AbortResponse>, Status> {
        let by = auth::principal(&request)?;
        let asks_node = request.extensions().get::<AskItsNode>().is_some();
        let scope = auth::scope(&request)?;
        let owner = auth::caller(&request)?.owner.clone();
        let call = request::abort(request.get_ref(), by, owner)?;
        self.in_scope_or_absent(scope, call.run).await?;
        let waits = call.wait != AbortWait::None;
        let supervisor = self.supervisor.clone();
        let ending = self.to_its_end(async move {
            if asks_node {
                return supervisor.abort(call).await;
            }
            supervisor.abort_or_leave(call).await
        });
        let view = if waits {
            with_keeper(&self.supervisor, self.unless_going(ending)).await?
        } else {
            self.with_keeper(ending).await?
        };
        Ok(Response::new(pb::AbortResponse {
            run: Some(run::run(view)),
        }))
    }

    async fn interrupt(
        &self,
        request: Request<pb::InterruptRequest>,
    ) -> Result<Response<pb::InterruptResponse>, Status> {
        let (run, request_id) = request::interrupt(request.get_ref())?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let supervisor = self.supervisor.clone();
        let done = self.to_its_end(async move { supervisor.interrupt(run, request_id).await });
        let (view, way) = self.with_keeper(done).await?;
        Ok(Response::new(pb::InterruptResponse {
            run: Some(run::run(view)),
            method: terminal::method(way).into(),
        }))
    }

    async fn resize_terminal(
        &self,
        request: Request<pb::ResizeTerminalRequest>,
    ) -> Result<Response<pb::ResizeTerminalResponse>, Status> {
        let call = request::resize(request.get_ref())?;
        self.in_scope(auth::scope(&request)?, call.run).await?;
        let supervisor = self.supervisor.clone();
        let done = self.to_its_end(async move { supervisor.resize(call).await });
        let view = self.with_keeper(done).await?;
        Ok(Response::new(pb::ResizeTerminalResponse {
            run: Some(run::run(view)),
        }))
    }

    async fn signal(
        &self,
        request: Request<pb::SignalRequest>,
    ) -> Result<Response<pb::SignalResponse>, Status> {
        let call = request::signal(request.get_ref())?;
        self.in_scope(auth::scope(&request)?, call.run).await?;
        let supervisor = self.supervisor.clone();
        let done = self.to_its_end(async move { supervisor.signal(call).await });
        let signalled = self.with_keeper(done).await?;
        Ok(Response::new(tree::signalled(signalled)))
    }

    async fn get_tree(
        &self,
        request: Request<pb::GetTreeRequest>,
    ) -> Result<Response<pb::GetTreeResponse>, Status> {
        let run = request::run_id(&request.get_ref().run_id)?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let looking = answer_of(self.supervisor.tree(run));
        let (view, listing) = self.with_keeper(looking).await?;
        let used = self.supervisor.usage(&view).await;
        Ok(Response::new(tree::tree(view, listing, used.as_ref())))
    }

    async fn pause(
        &self,
        request: Request<pb::PauseRequest>,
    ) -> Result<Response<pb::PauseResponse>, Status> {
        let run = request::run_id(&request.get_ref().run_id)?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let supervisor = self.supervisor.clone();
        let done = self.to_its_end(async move { supervisor.pause(run).await });
        let view = self.with_keeper(done).await?;
        Ok(Response::new(pb::PauseResponse {
            run: Some(run::run(view)),
        }))
    }

    async fn resume(
        &self,
        request: Request<pb::ResumeRequest>,
    ) -> Result<Response<pb::ResumeResponse>, Status> {
        let run = request::run_id(&request.get_ref().run_id)?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let supervisor = self.supervisor.clone();
        let done = self.to_its_end(async move { supervisor.resume(run).await });
        let view = self.with_keeper(done).await?;
        Ok(Response::new(pb::ResumeResponse {
            run: Some(run::run(view)),
        }))
    }

    async fn write_input(
        &self,
        request: Request<pb::WriteInputRequest>,
    ) -> Result<Response<pb::WriteInputResponse>, Status> {
        let scope = auth::scope(&request)?;
        let call = request::write_input(request.into_inner())?;
        self.in_scope(scope, call.run).await?;
        // Not to its end: the part that a caller has written before it goes away is reported to the next one.
        let writing = answer_of(self.supervisor.write_input(call));
        let written = with_keeper(&self.supervisor, self.unless_going(writing)).await?;
        Ok(Response::new(input::written(written)))
    }

    async fn close_input(
        &self,
        request: Request<pb::CloseInputRequest>,
    ) -> Result<Response<pb::CloseInputResponse>, Status> {
        let call = request::close_input(request.get_ref())?;
        self.in_scope(auth::scope(&request)?, call.run).await?;
        let closing = answer_of(self.supervisor.close_input(call));
        let closed = with_keeper(&self.supervisor, self.unless_going(closing)).await?;
        Ok(Response::new(pb::CloseInputResponse {
            input: Some(input::status(closed)),
        }))
    }

    async fn get_input_status(
        &self,
        request: Request<pb::GetInputStatusRequest>,
    ) -> Result<Response<pb::GetInputStatusResponse>, Status> {
        let run = request::run_id(&request.get_ref().run_id)?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let asking = answer_of(self.supervisor.input_progress(run));
        let progress = self.with_keeper(asking).await?;
        Ok(Response::new(pb::GetInputStatusResponse {
            input: Some(input::status(progress)),
        }))
    }

    async fn get_run(
        &self,
        request: Request<pb::GetRunRequest>,
    ) -> Result<Response<pb::GetRunResponse>, Status> {
        let run = request::run_id(&request.get_ref().run_id)?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let view = answer_of(self.supervisor.get(run)).await?;
        let telemetry = self.supervisor.telemetry();
        let own = telemetry.run_span(run, view.policy().kind, view.traceparent.as_deref());
        let used = self.supervisor.usage(&view).await;
        let mut run = run::run(view);
        usage::add(&mut run, used.as_ref());
        run.run_trace_parent = own.unwrap_or_default();
        Ok(Response::new(pb::GetRunResponse { run: Some(run) }))
    }

    async fn list_runs(
        &self,
        request: Request<pb::ListRunsRequest>,
    ) -> Result<Response<pb::ListRunsResponse>, Status> {
        let scope = auth::scope(&request)?;
        let mut request = request.into_inner();
        self.below_scope(&scope, &mut request.filter).await?;
        let node = self.node_of(request.filter.as_ref()).await?;
        let owner = scope.owner().map(str::to_owned);
        let call = request::list(&request, owner, node)?;
        let listed = self
            .supervisor
            .list(call.filter.clone(), call.start, call.limit);
        let listed = answer_of(listed).await?;
        Ok(Response::new(page(listed, &call.filter)))
    }

    async fn wait_run(
        &self,
        request: Request<pb::WaitRunRequest>,
    ) -> Result<Response<pb::WaitRunResponse>, Status> {
        let (run, condition) = request::wait(request.get_ref())?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let _of_run = self.shares.wait_of_run(auth::caller(&request)?)?;
        let waiting = answer_of(self.supervisor.wait(run, condition));
        let waited = self.unless_going(waiting).await?;
        Ok(Response::new(pb::WaitRunResponse {
            run: Some(run::run(waited.run)),
            reached: waited.reached,
        }))
    }

    async fn stream_events(
        &self,
        request: Request<pb::StreamEventsRequest>,
    ) -> Result<Response<BoxStream<pb::StreamEventsResponse>>, Status> {
        let caller = auth::caller(&request)?.clone();
        let asks_node = request.extensions().get::<AskItsNode>().is_some();
        let request = request.into_inner();
        // A consumer delays the removal of output.
        if !request.consumer.is_empty() {
            auth::may_consume(&caller)?;
        }
        match request.filter {
            Some(_) => self.stream_many(request, &caller, asks_node).await,
            None => self.stream_one(&request, &caller, asks_node).await,
        }
    }

    async fn ack_events(
        &self,
        request: Request<pb::AckEventsRequest>,
    ) -> Result<Response<pb::AckEventsResponse>, Status> {
        let owner = &auth::caller(&request)?.owner;
        let call = consumer::ack(request.get_ref(), owner, &self.key)?;
        self.consumer_in_scope(auth::scope(&request)?, &call.key)
            .await?;
        let supervisor = self.supervisor.clone();
        let acking = async move {
            let (key, point) = (call.key.clone(), call.point);
            supervisor
                .ack(&key, point, |before| call.cursor(before))
                .await
        };
        let acked = self.to_its_end(acking);
        let view = self.unless_draining(acked).await?;
        Ok(Response::new(pb::AckEventsResponse {
            consumer: Some(consumer::consumer(view)),
        }))
    }

    async fn get_consumer(
        &self,
        request: Request<pb::GetConsumerRequest>,
    ) -> Result<Response<pb::GetConsumerResponse>, Status> {
        let scope = auth::scope(&request)?;
        let owner = auth::caller(&request)?.owner.as_str();
        let request = request.get_ref();
        let owner = Some(&*request.owner)
            .filter(|of| !of.is_empty())
            .unwrap_or(owner);
        let key = consumer::key(&request.run_id, &request.consumer, owner)?;
        self.consumer_in_scope(scope, &key).await?;
        let view = answer_of(self.supervisor.consumer(&key)).await?;
        Ok(Response::new(pb::GetConsumerResponse {
            consumer: Some(consumer::consumer(view)),
        }))
    }

    async fn list_consumers(
        &self,
        request: Request<pb::ListConsumersRequest>,
    ) -> Result<Response<pb::ListConsumersResponse>, Status> {
        let owner = auth::scope(&request)?.owner().map(str::to_owned);
        let call = consumer::list(request.get_ref(), owner)?;
        let views = answer_of(self.supervisor.consumers(&call.filter, call.limit)).await?;
        Ok(Response::new(consumer::page(views, call.limit)))
    }

    async fn delete_consumer(
        &self,
        request: Request<pb::DeleteConsumerRequest>,
    ) -> Result<Response<pb::DeleteConsumerResponse>, Status> {
        let scope = auth::scope(&request)?;
        let owner = auth::caller(&request)?.owner.as_str();
        let request = request.get_ref();
        let owner = Some(&*request.owner)
            .filter(|of| !of.is_empty())
            .unwrap_or(owner);
        let key = consumer::key(&request.run_id, &request.consumer, owner)?;
        self.consumer_in_scope(scope, &key).await?;
        let supervisor = self.supervisor.clone();
        let deleted = self.to_its_end(async move { supervisor.delete_consumer(&key).await });
        let view = self.unless_draining(deleted).await?;
        Ok(Response::new(pb::DeleteConsumerResponse {
            consumer: Some(consumer::consumer(view)),
        }))
    }

    async fn read_screen(
        &self,
        request: Request<pb::ReadScreenRequest>,
    ) -> Result<Response<pb::ReadScreenResponse>, Status> {
        let run = request::run_id(&request.get_ref().run_id)?;
        self.in_scope(auth::scope(&request)?, run).await?;
        let reading = answer_of(self.supervisor.screen(run));
        let view = self.unless_going(reading).await?;
        Ok(Response::new(pb::ReadScreenResponse {
            screen: Some(screen::screen(view)),
        }))
    }

    async fn attach(
        &self,
        request: Request<Streaming<pb::AttachRequest>>,
    ) -> Result<Response<BoxStream<pb::AttachResponse>>, Status> {
        let caller = auth::caller(&request)?.clone();
        let place = self.place(&caller)?;
        let (supervisor, seats) = (self.supervisor.clone(), Arc::clone(&self.seats));
        let opening = Attachment::open(supervisor, seats, place, caller, request.into_inner());
        let attachment = self.unless_going(opening).await?;
        Ok(Response::new(Box::pin(attachment.into_stream())))
    }

    async fn read_output(
        &self,
        request: Request<pb::ReadOutputRequest>,
    ) -> Result<Response<pb::ReadOutputResponse>, Status> {
        let call = request::read_output(request.get_ref())?;
        self.in_scope(auth::scope(&request)?, call.run).await?;
        let reading = answer_of(self.supervisor.read_output(call));
        let read = self.unless_draining(reading).await?;
        Ok(Response::new(event::output(read)))
    }
}

/// Waits for an answer that the next server can give as well.
async fn unless_leaving<T>(
    serving: &Serving,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    tokio::select! {
        biased;
        answer = answer => answer,
        () = serving.until_leaving() => Err(status::leaving()),
    }
}

/// Runs work in a task of its own: the transport drops a handler when its caller goes away.
fn to_its_end<T: Send + 'static>(
    tasks: &TaskTracker,
    work: impl Future<Output = Result<T, CallError>> + Send + 'static,
) -> impl Future<Output = Result<T, Status>> {
    // Boxed as in `unless_draining`, for tasks move what they are given several times.
    let work = Box::pin(work);
    async {
        match tasks.spawn(work.in_current_span()).await {
            Ok(done) => done.map_err(|e| status::of(&e)),
            Err(broken) => Err(status::internal(&broken.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
