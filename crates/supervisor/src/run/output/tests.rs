use super::*;
use crate::{base::ports::OwnerQuotas, registry::output_rates::OutputRates};
use std::{
    io::Write,
    num::NonZeroU64,
    sync::atomic::{AtomicBool, Ordering},
};

/// A rate that appears while output is read.
#[derive(Debug, Default)]
struct Appearing(AtomicBool);

impl OwnerQuotas for Appearing {
    fn output_bytes_per_second(&self, _: &str) -> Option<NonZeroU64> {
        let is_there = self.0.load(Ordering::Relaxed);
        NonZeroU64::new(1_000_000_000).filter(|_| is_there)
    }

    fn record_bytes(&self, _: &str) -> Option<NonZeroU64> {
        None
    }
}

// promise: I-100
#[tokio::test(start_paused = true)]
async fn silent_pipe_is_unwatched_when_rate_is_set() {
    let dir = tempfile::tempdir().expect("a directory");
    let bound = OutputBound::default();
    let writer = Writer::create(dir.path(), bound, Boot::UNKNOWN, clock::now());
    let reopened = (writer.expect("a journal"), [0, 0]);
    let quota = Arc::new(Appearing::default());
    let rates = OutputRates::new(Arc::clone(&quota) as _);
    let run = RunId::from_u128(1);
    let list = EntryList::default();
    let output = Output::over(run, dir.path(), reopened, list, Arc::default());
    let mut output = output.at_rate(rates.of(&Arc::from("team")));
    let (read, mut write) = io::pipe().expect("a pipe");
    output.sources.pipes[0] = Some(OutputPipe::new(read.into()).expect("a pipe"));
    output.sources.pipes_open.fetch_add(1, Ordering::Relaxed);
    output.flow();
    while output.sources.paces[0].next().is_none() {
        write.write_all(b"little\n").expect("room");
        output.pump(Ready::Pipe(0));
    }
    quota.0.store(true, Ordering::Relaxed);
    let mut looks = 0;
    let rests = loop {
        let ready = tokio::time::timeout(Duration::from_secs(1), output.ready()).await;
        match ready {
            Ok(ready) if looks < 10 => assert_eq!(output.pump(ready), None),
            ready => break ready.is_err(),
        }
        looks += 1;
    };
    assert!(rests, "it is read {looks} times, and nothing is written");
    write.write_all(b"more\n").expect("room");
    assert!(matches!(output.ready().await, Ready::Pipe(0)));
}
