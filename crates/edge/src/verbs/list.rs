//! The rpcs of the two services, each served by its verb: one without a verb does not compile.

use super::{Api, Waits, path};
use crate::{
    attach::Attachment,
    auth,
    pb::{self, admin_service_server::AdminService, process_service_server::ProcessService},
};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

/// Serves these rpcs of the generated service by their verbs, each as one boxed future.
macro_rules! rpcs {
    ($($rpc:ident: $request:ident -> $answer:ty,)*) => {
        $(fn $rpc<'s, 'a>(
            &'s self,
            request: Request<pb::$request>,
        ) -> BoxFuture<'a, Result<Response<$answer>, Status>>
        where
            's: 'a,
            Self: 'a,
        {
            path::call(self, request)
        })*
    };
}

impl ProcessService for Api {
    type StreamEventsStream = BoxStream<pb::StreamEventsResponse>;
    type AttachStream = BoxStream<pb::AttachResponse>;

    rpcs! {
        spawn: SpawnRequest -> pb::SpawnResponse,
        abort: AbortRequest -> pb::AbortResponse,
        interrupt: InterruptRequest -> pb::InterruptResponse,
        signal: SignalRequest -> pb::SignalResponse,
        resize_terminal: ResizeTerminalRequest -> pb::ResizeTerminalResponse,
        pause: PauseRequest -> pb::PauseResponse,
        resume: ResumeRequest -> pb::ResumeResponse,
        restart: RestartRequest -> pb::RestartResponse,
        write_input: WriteInputRequest -> pb::WriteInputResponse,
        close_input: CloseInputRequest -> pb::CloseInputResponse,
        resolve_command: ResolveCommandRequest -> pb::ResolveCommandResponse,
        get_tree: GetTreeRequest -> pb::GetTreeResponse,
        get_input_status: GetInputStatusRequest -> pb::GetInputStatusResponse,
        get_run: GetRunRequest -> pb::GetRunResponse,
        list_runs: ListRunsRequest -> pb::ListRunsResponse,
        wait_run: WaitRunRequest -> pb::WaitRunResponse,
        wait_for_output: WaitForOutputRequest -> pb::WaitForOutputResponse,
        annotate_run: AnnotateRunRequest -> pb::AnnotateRunResponse,
        extend_timeouts: ExtendTimeoutsRequest -> pb::ExtendTimeoutsResponse,
        stream_events: StreamEventsRequest -> Self::StreamEventsStream,
        ack_events: AckEventsRequest -> pb::AckEventsResponse,
        get_consumer: GetConsumerRequest -> pb::GetConsumerResponse,
        list_consumers: ListConsumersRequest -> pb::ListConsumersResponse,
        delete_consumer: DeleteConsumerRequest -> pb::DeleteConsumerResponse,
        read_screen: ReadScreenRequest -> pb::ReadScreenResponse,
        read_output: ReadOutputRequest -> pb::ReadOutputResponse,
    }

    /// By hand: its request is a stream. Typed input is recorded where it is accepted.
    fn attach<'s, 'a>(
        &'s self,
        mut request: Request<Streaming<pb::AttachRequest>>,
    ) -> BoxFuture<'a, Result<Response<Self::AttachStream>, Status>>
    where
        's: 'a,
        Self: 'a,
    {
        let at = self.clone();
        Box::pin(async move {
            let caller = auth::caller(request.extensions_mut())?;
            let place = at.place(&caller)?;
            let (supervisor, seats) = (at.supervisor.clone(), Arc::clone(&at.seats));
            let opening = Attachment::open(supervisor, seats, place, caller, request.into_inner());
            // Boxed, for it is larger than all the rest.
            let opening = at.while_serving(Waits::Caller, Box::pin(opening));
            let stream = opening.await?.into_stream();
            Ok(Response::new(Box::pin(stream) as BoxStream<_>))
        })
    }
}

impl AdminService for Api {
    type StreamAuditStream = BoxStream<pb::StreamAuditResponse>;

    rpcs! {
        get_server_info: GetServerInfoRequest -> pb::GetServerInfoResponse,
        list_nodes: ListNodesRequest -> pb::ListNodesResponse,
        forget_node: ForgetNodeRequest -> pb::ForgetNodeResponse,
        drain: DrainRequest -> pb::DrainResponse,
        undrain: UndrainRequest -> pb::UndrainResponse,
        upgrade: UpgradeRequest -> pb::UpgradeResponse,
        audit_leaks: AuditLeaksRequest -> pb::AuditLeaksResponse,
        reap_leaks: ReapLeaksRequest -> pb::ReapLeaksResponse,
        stream_audit: StreamAuditRequest -> Self::StreamAuditStream,
    }
}
