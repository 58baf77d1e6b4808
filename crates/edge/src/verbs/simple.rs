//! Verbs whose request has the id of a run and nothing else to parse, or no fields.

use super::{Api, Context, Fault, How, Verb, Waits};
use crate::{
    convert::{audit, drain, info, input, request, run, screen, tree, usage},
    pb,
};
use kennel_lifecycle::{RunId, Violation};

macro_rules! of_run {
    ($request:ident, $how:expr, $at:ident, $run:ident, $answer:expr) => {
        impl Verb for pb::$request {
            const HOW: How = $how;
            type Call = RunId;

            fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<RunId> {
                request::parse_run_id(&self.run_id, found)
            }

            async fn serve($at: Api, $run: RunId) -> Result<Self::Answer, Fault> {
                Ok($answer)
            }
        }
    };
}

macro_rules! of_server {
    ($request:ident, $how:expr, $at:ident, $answer:expr) => {
        impl Verb for pb::$request {
            const HOW: How = $how;
            type Call = ();

            fn parse(self, _: &Context<'_>, _: &mut Vec<Violation>) -> Option<()> {
                Some(())
            }

            async fn serve($at: Api, (): ()) -> Result<Self::Answer, Fault> {
                Ok($answer)
            }
        }
    };
}

of_run!(GetRunRequest, How::read(Waits::Brief), at, run, {
    let view = at.supervisor.get(run).await?;
    let telemetry = at.supervisor.telemetry();
    let own = telemetry.run_span(run, view.policy().kind, view.traceparent.as_deref());
    let used = at.supervisor.usage(&view).await;
    let mut run = run::run(view);
    usage::add(&mut run, used.as_ref());
    run.run_trace_parent = own.unwrap_or_default();
    pb::GetRunResponse { run: Some(run) }
});

of_run!(GetTreeRequest, How::read(Waits::Keeper), at, run, {
    let (view, listing) = at.supervisor.tree(run).await?;
    let used = at.supervisor.usage(&view).await;
    tree::tree(view, listing, used.as_ref())
});

of_run!(GetInputStatusRequest, How::read(Waits::Keeper), at, run, {
    let progress = at.supervisor.input_progress(run).await?;
    pb::GetInputStatusResponse {
        input: Some(input::status(progress)),
    }
});

of_run!(ReadScreenRequest, How::read(Waits::Caller), at, run, {
    let view = at.supervisor.screen(run).await?;
    pb::ReadScreenResponse {
        screen: Some(screen::screen(view)),
    }
});

of_run!(
    PauseRequest,
    How::order(Waits::Keeper).to_others(),
    at,
    run,
    {
        let view = at.supervisor.pause(run).await?;
        pb::PauseResponse {
            run: Some(run::run(view)),
        }
    }
);

of_run!(
    ResumeRequest,
    How::order(Waits::Keeper).to_others(),
    at,
    run,
    {
        let view = at.supervisor.resume(run).await?;
        pb::ResumeResponse {
            run: Some(run::run(view)),
        }
    }
);

of_run!(
    RemoveRunRequest,
    How::order(Waits::Brief).to_others(),
    at,
    run,
    {
        at.supervisor.remove_run(run).await?;
        pb::RemoveRunResponse {
            run_id: run.to_string(),
        }
    }
);

of_server!(SweepRunDirectoriesRequest, How::order(Waits::Brief), at, {
    let swept = at.supervisor.sweep().await?;
    pb::SweepRunDirectoriesResponse {
        removed: swept.removed,
        removed_bytes: swept.removed_bytes,
        unknown: swept.unknown,
        unknown_bytes: swept.unknown_bytes,
    }
});

of_server!(GetServerInfoRequest, How::read(Waits::Brief), at, {
    pb::GetServerInfoResponse {
        server: Some(info::server(at.supervisor.info().await)),
    }
});

of_server!(ListNodesRequest, How::read(Waits::Brief), at, {
    let nodes = at.supervisor.nodes().await?;
    pb::ListNodesResponse {
        nodes: nodes.into_iter().map(run::node).collect(),
        own_node_id: at.supervisor.node().to_string(),
    }
});

of_server!(UndrainRequest, How::order(Waits::Brief), at, {
    let status = at.supervisor.undrain().await?;
    pb::UndrainResponse {
        status: Some(drain::status(status)),
    }
});

of_server!(AuditLeaksRequest, How::read(Waits::Keeper), at, {
    let audited = at.supervisor.audit().await?;
    pb::AuditLeaksResponse {
        audit: Some(audit::audit(audited)),
    }
});
