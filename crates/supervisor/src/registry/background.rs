//! The tasks of the server that belong to no run: each is owned, and a panic in one ends the server.

use super::serving::Serving;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Owner of the background tasks.
#[derive(Debug)]
pub(crate) struct Background {
    tasks: TaskTracker,
    stop: CancellationToken,
    serving: Serving,
}

impl Background {
    pub(crate) fn new(serving: Serving) -> Self {
        Self {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            serving,
        }
    }

    /// Starts a task, which may end by itself and is otherwise ended by [`Self::end`].
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (stop, serving) = (self.stop.clone(), self.serving.clone());
        self.tasks.spawn(async move {
            let mut work = tokio::spawn(work);
            let ended = tokio::select! {
                ended = &mut work => ended,
                () = stop.cancelled() => {
                    work.abort();
                    work.await
                }
            };
            if let Err(error) = ended
                && error.is_panic()
            {
                tracing::error!(%error, "a task of this server has failed, the server exits");
                serving.fail();
            }
        });
    }

    /// Ends all tasks and waits until they have ended.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_in_a_background_task_ends_server() {
        let serving = Serving::default();
        let background = Background::new(serving.clone());
        background.spawn(async {});
        background.spawn(std::future::pending());
        background.spawn(async { panic!("on purpose") });
        serving.until_failed().await;
        background.end().await;
    }
}
