//! The path of every call, from its admitted request to its answer.

use super::{Api, Asked, At, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{auth, layers::observe::Begun, limits, status};
use futures_util::{
    TryFutureExt,
    future::{BoxFuture, Either},
};
use kennel_lifecycle::{RunId, Timestamp};
use kennel_supervisor::Serving;
use std::{
    future::pending,
    pin::{Pin, pin},
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::Instrument;

/// Serves a call.
pub(super) fn call<V: Verb>(
    at: &Api,
    request: Request<V>,
) -> BoxFuture<'static, Result<Response<V::Answer>, Status>> {
    Box::pin(recorded(at.clone(), request))
}

/// The name of its rpc.
pub(super) fn rpc<V: Verb>() -> &'static str {
    V::NAME.strip_suffix("Request").unwrap_or(V::NAME)
}

pub(super) async fn recorded<V: Verb>(
    at: Api,
    request: Request<V>,
) -> Result<Response<V::Answer>, Status> {
    let (context, mut body) = Context::of(request, &at)?;
    let named = match body.run() {
        Some(run) => auth::resolve_name(&at.supervisor, &context.caller, run).await,
        None => Ok(()),
    };
    let is_dry = body.is_dry();
    let record = (V::HOW.logs != Logs::Nothing && !is_dry).then(|| {
        let record = Asked::new(&at.supervisor, &context, rpc::<V>());
        let record = record.id(body.request_id().unwrap_or_default());
        let record = match body.run() {
            Some(run) => record.of_run(run),
            None => record,
        };
        body.logged(record)
    });
    let answer = match named {
        Ok(()) => answer(&at, context, body).await,
        Err(status) => Err(status),
    };
    if let Err(status) = &answer
        && !is_dry
    {
        V::refused(&at, status);
    }
    if let Some(mut record) = record {
        if let Ok(answer) = &answer {
            record = V::answered(answer, record);
        }
        record.end(V::HOW.logs, answer.as_ref().err()).await;
    }
    let answer = answer?;
    let begun = V::begun(&answer);
    let mut response = Response::new(*answer);
    if let Some(run) = begun {
        response.extensions_mut().insert(Begun(run));
    }
    Ok(response)
}

async fn answer<V: Verb>(
    at: &Api,
    mut context: Context<'_>,
    mut body: V,
) -> Result<Box<V::Answer>, Status> {
    let run: Option<RunId> = body.run().and_then(|run| run.parse().ok());
    let itself = context.caller.run.as_ref().map(|run| run.id);
    if V::HOW.to_others && itself.is_some() && itself == run {
        let why = "no run may do this to itself";
        return Err(status::permission_denied(why));
    }
    let body = body.prepared(at, &mut context).await;
    let mut found = Vec::new();
    let call = body
        .map_err(|Fault(status)| status)?
        .parse(&context, &mut found);
    let Some(mut call) = call else {
        return Err(status::invalid(&found));
    };
    let checked = V::checked(at, &context, &mut call, &mut found).await;
    checked.map_err(|Fault(status)| status)?;
    status::no_violations(&found)?;
    let scope = V::scope(&call).unwrap_or_else(|| run.map_or(Scope::Nothing, Scope::Run));
    let (own, asks_node) = (context.scope(), context.asks_node);
    if scope.must_look(&own, asks_node) {
        // Boxed, since the check is large and most calls need none; not in the statement that awaits it, which would
        // still reserve space for it.
        let look = Box::pin(at.sees(&own, asks_node, scope));
        look.await?;
    }
    let waits = V::waits(&call);
    drop(context);
    // Boxed: an answer with a run is large, and moved several times.
    let work = V::serve(at.clone(), call).map_ok(Box::new);
    // Pinned before the await: each block that takes the future by value has space for it twice.
    let work = pin!(if V::HOW.to_its_end {
        Either::Left(at.to_its_end(Box::pin(work)))
    } else {
        Either::Right(work)
    });
    at.while_serving(waits, work.map_err(|Fault(status)| status))
        .await
}

/// Waits for the end of the work, or of what it needs. Work in progress continues when the keeper answers again.
async fn waited(
    waits: Waits,
    going: &Serving,
    mut keeper: watch::Receiver<Option<Timestamp>>,
    work: Pin<&mut (dyn Future<Output = ()> + Send)>,
) -> Result<(), Status> {
    let may_take_long = matches!(waits, Waits::Caller | Waits::KeeperAndCaller);
    let needs_keeper = matches!(waits, Waits::Keeper | Waits::KeeperAndCaller);
    if needs_keeper && keeper.borrow_and_update().is_some() {
        return Err(status::keeper_unresponsive());
    }
    let silent = async {
        // A lost keeper is reported elsewhere.
        if !needs_keeper || keeper.wait_for(Option::is_some).await.is_err() {
            pending::<()>().await;
        }
    };
    let closing = async {
        going.until_closing().await;
        tokio::time::sleep(limits::LAST_WORDS_MAX).await;
    };
    let leaving = async {
        going.until_leaving().await;
        if !may_take_long {
            tokio::time::sleep(limits::LEAVE_CALLS_MAX).await;
        }
    };
    tokio::select! {
        biased;
        () = work => Ok(()),
        () = closing => Err(status::draining()),
        () = leaving => Err(status::leaving()),
        () = silent => Err(status::keeper_unresponsive()),
    }
}

impl At {
    /// Waits for an answer, or for the end of what it needs.
    pub(super) async fn while_serving<T: Send>(
        &self,
        waits: Waits,
        work: impl Future<Output = Result<T, Status>> + Send,
    ) -> Result<T, Status> {
        // `waited` is not generic over the answer: one compiled function serves all verbs.
        let mut done = None;
        let work = async { done = Some(work.await) };
        let keeper = self.supervisor.keeper_unresponsive();
        waited(waits, &self.going, keeper, pin!(work)).await?;
        done.unwrap_or_else(|| Err(status::internal("a call has ended without an answer")))
    }

    /// Runs work in a task of its own: the transport drops a handler when its caller goes away.
    pub(super) async fn to_its_end<T: Send + 'static, E: Into<Fault> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, Fault> {
        match self.tasks.spawn(work.in_current_span()).await {
            Ok(done) => done.map_err(Into::into),
            Err(broken) => Err(status::internal(&broken.to_string()).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{Instant, timeout};
    use tonic_types::StatusExt;

    type Keeper = watch::Sender<Option<Timestamp>>;

    /// Returns the reason that a call gets without an answer of its own, and the seconds after this has happened.
    async fn refusal(waits: Waits, happens: impl FnOnce(&Serving, &Keeper)) -> (String, u64) {
        let (going, keeper) = (Serving::default(), Keeper::new(None));
        happens(&going, &keeper);
        let began = Instant::now();
        let patience = Duration::from_hours(1);
        let work = pin!(pending());
        let call = waited(waits, &going, keeper.subscribe(), work);
        let reason = match timeout(patience, call).await {
            Ok(refused) => {
                let refused = refused.expect_err("its work does not end");
                refused.get_details_error_info().expect("a reason").reason
            }
            Err(_) => String::new(),
        };
        (reason, began.elapsed().as_secs())
    }

    // promise: A-7b
    #[tokio::test(start_paused = true)]
    async fn interrupted_call_gets_the_reason_of_interruption() {
        let grace = limits::LEAVE_CALLS_MAX.as_secs();
        for (waits, leaves_after, needs_keeper) in [
            (Waits::Brief, grace, false),
            (Waits::Keeper, grace, true),
            (Waits::Caller, 0, false),
            (Waits::KeeperAndCaller, 0, true),
        ] {
            let closing = refusal(waits, |going, _| going.close()).await;
            assert_eq!(closing, ("NODE_DRAINING".to_owned(), 0), "{waits:?}");
            let leaving = refusal(waits, |going, _| going.leave()).await;
            assert_eq!(
                leaving,
                ("SERVER_REPLACED".to_owned(), leaves_after),
                "{waits:?}"
            );
            let silent = |_: &Serving, keeper: &Keeper| {
                keeper.send_replace(Some(Timestamp(0)));
            };
            let (reason, _) = refusal(waits, silent).await;
            assert_eq!(reason == "KEEPER_UNRESPONSIVE", needs_keeper, "{waits:?}");
        }
    }
}
