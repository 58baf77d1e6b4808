//! The rpcs about facets of a run: lines of output that clients wait for, annotations, and extensions of its time.

use super::{Processes, to_its_end};
use crate::{
    auth,
    convert::{pattern, request, run},
    forward::AskItsNode,
    pb,
    status::answer_of,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

impl Processes {
    pub(super) async fn wait_for_output(
        &self,
        request: Request<pb::WaitForOutputRequest>,
    ) -> Result<Response<pb::WaitForOutputResponse>, Status> {
        let scope = auth::scope(&request)?;
        let caller = auth::caller(&request)?.clone();
        // Runs with a token share the turns of their owner.
        let owner: Arc<str> = caller.owner.as_str().into();
        let asks_node = request.extensions().get::<AskItsNode>().is_some();
        let wait = request::wait_output(request.into_inner(), &self.supervisor, &owner).await?;
        self.in_scope(scope, wait.run).await?;
        self.at_its_node(asks_node, wait.run).await?;
        let _place = self.places_of_wait(&caller, &wait)?;
        let waiting = answer_of(self.supervisor.wait_output(wait, owner));
        let waited = self.unless_going(waiting).await?;
        Ok(Response::new(pattern::waited(waited)))
    }

    pub(super) async fn annotate_run(
        &self,
        request: Request<pb::AnnotateRunRequest>,
    ) -> Result<Response<pb::AnnotateRunResponse>, Status> {
        let by = auth::principal(&request)?;
        let scope = auth::scope(&request)?;
        let call = request::annotate(request.into_inner(), by)?;
        self.in_scope(scope, call.run).await?;
        let supervisor = self.supervisor.clone();
        let done = to_its_end(&self.tasks, async move { supervisor.annotate(call).await });
        let view = self.unless_draining(done).await?;
        Ok(Response::new(pb::AnnotateRunResponse {
            run: Some(run::run(view)),
        }))
    }

    pub(super) async fn extend_timeouts(
        &self,
        request: Request<pb::ExtendTimeoutsRequest>,
    ) -> Result<Response<pb::ExtendTimeoutsResponse>, Status> {
        let by = auth::principal(&request)?;
        let scope = auth::scope(&request)?;
        let call = request::extend(request.get_ref(), by)?;
        self.in_scope(scope, call.run).await?;
        let supervisor = self.supervisor.clone();
        let done = self.to_its_end(async move { supervisor.extend(call).await });
        let view = self.with_keeper(done).await?;
        Ok(Response::new(pb::ExtendTimeoutsResponse {
            run: Some(run::run(view)),
        }))
    }
}
