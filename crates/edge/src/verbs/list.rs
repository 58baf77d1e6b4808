//! The rpcs of the two services, each served by its verb: one without a verb does not compile.

use super::{Api, Waits, path};
use crate::{
    attach::TerminalAttachment,
    auth,
    pb::{self, admin_service_server::AdminService, process_service_server::ProcessService},
};
use futures_util::future::BoxFuture;
use kennel_proto::call::Rpc;
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

/// Serves these rpcs of the generated service by their verbs, each as one boxed future.
macro_rules! rpcs {
    ($($rpc:ident: $request:ident,)*) => {
        $(fn $rpc<'s, 'a>(
            &'s self,
            request: Request<pb::$request>,
        ) -> BoxFuture<'a, Result<Response<<pb::$request as Rpc>::Answer>, Status>>
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
    type ForEachRunStream = BoxStream<pb::ForEachRunResponse>;
    type AttachStream = BoxStream<pb::AttachResponse>;

    rpcs! {
        spawn: SpawnRequest,
        abort: AbortRequest,
        interrupt: InterruptRequest,
        signal: SignalRequest,
        resize_terminal: ResizeTerminalRequest,
        pause: PauseRequest,
        resume: ResumeRequest,
        restart: RestartRequest,
        write_input: WriteInputRequest,
        close_input: CloseInputRequest,
        resolve_command: ResolveCommandRequest,
        get_tree: GetTreeRequest,
        get_input_status: GetInputStatusRequest,
        get_run: GetRunRequest,
        for_each_run: ForEachRunRequest,
        list_runs: ListRunsRequest,
        remove_run: RemoveRunRequest,
        wait_run: WaitRunRequest,
        wait_for_output: WaitForOutputRequest,
        annotate_run: AnnotateRunRequest,
        extend_timeouts: ExtendTimeoutsRequest,
        stream_events: StreamEventsRequest,
        ack_events: AckEventsRequest,
        get_consumer: GetConsumerRequest,
        list_consumers: ListConsumersRequest,
        delete_consumer: DeleteConsumerRequest,
        read_screen: ReadScreenRequest,
        read_output: ReadOutputRequest,
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
            let opening =
                TerminalAttachment::open(supervisor, seats, place, caller, request.into_inner());
            // Boxed, since `opening` is larger than everything else here.
            let opening = at.while_serving(Waits::Caller, Box::pin(opening));
            let stream = opening.await?.into_stream();
            Ok(Response::new(Box::pin(stream) as BoxStream<_>))
        })
    }
}

impl AdminService for Api {
    type StreamAuditStream = BoxStream<pb::StreamAuditResponse>;

    rpcs! {
        get_server_info: GetServerInfoRequest,
        list_nodes: ListNodesRequest,
        forget_node: ForgetNodeRequest,
        drain: DrainRequest,
        undrain: UndrainRequest,
        upgrade: UpgradeRequest,
        audit_leaks: AuditLeaksRequest,
        reap_leaks: ReapLeaksRequest,
        sweep_run_directories: SweepRunDirectoriesRequest,
        stream_audit: StreamAuditRequest,
    }
}
