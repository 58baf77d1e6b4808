//! A reader of the events of many runs that continues by its cursor over any number of servers.

use kennel_client::Repeats;
use kennel_tests::{
    Client,
    crowd::{Crowd, labelled, try_open},
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

/// Time after which a stream that could not be opened is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Time for which a reader that is to end waits for a message.
const QUIET: Duration = Duration::from_secs(2);
/// Longest time until all has come.
const LAST_MAX: Duration = Duration::from_mins(1);

/// A reader at work.
pub(crate) struct Reader {
    ends: Arc<AtomicBool>,
    task: JoinHandle<Crowd>,
}

impl Reader {
    /// Begins to read all runs with this label, at one of these sockets after the other.
    pub(crate) fn start(sockets: Vec<PathBuf>, app: &'static str) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(read(sockets, app, Arc::clone(&ends)));
        Self { ends, task }
    }

    /// Returns all that was read, once nothing more comes.
    ///
    /// # Panics
    /// If the reader has panicked: something came twice, or was left out.
    pub(crate) async fn finish(self) -> Crowd {
        self.ends.store(true, Ordering::Relaxed);
        self.task.await.expect("the reader does not panic")
    }
}

async fn read(sockets: Vec<PathBuf>, app: &'static str, ends: Arc<AtomicBool>) -> Crowd {
    let mut crowd = Crowd::default();
    // Events after the last cursor are delivered again.
    let mut repeats = Repeats::default();
    let mut until = None;
    for socket in sockets.iter().cycle() {
        if ends.load(Ordering::Relaxed) {
            let until = *until.get_or_insert_with(|| Instant::now() + LAST_MAX);
            let is_whole = crowd.runs.values().all(kennel_tests::Heard::has_ended);
            if is_whole || Instant::now() > until {
                return crowd;
            }
        }
        read_at(socket.clone(), app, &mut crowd, &mut repeats, &ends).await;
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    crowd
}

/// Reads at one server until it goes, or until all is read.
async fn read_at(
    socket: PathBuf,
    app: &str,
    crowd: &mut Crowd,
    repeats: &mut Repeats,
    ends: &AtomicBool,
) {
    let Ok(mut client) = Client::connect(&socket).await else {
        return;
    };
    let position = crowd.position();
    let Ok(mut stream) = try_open(&mut client, labelled(app), position).await else {
        return;
    };
    repeats.begin_anew();
    let mut quiet_since = Instant::now();
    loop {
        let Ok(message) = tokio::time::timeout(QUIET, stream.message()).await else {
            return;
        };
        let Ok(Some(mut message)) = message else {
            return;
        };
        repeats.drop_from(&mut message);
        let is_covered = !message.cursor.is_empty();
        if message
            .run_events
            .iter()
            .any(|events| !events.run_id.is_empty())
        {
            quiet_since = Instant::now();
        }
        crowd.take(message);
        if is_covered {
            repeats.cover();
        }
        if ends.load(Ordering::Relaxed) && quiet_since.elapsed() > QUIET {
            return;
        }
    }
}
