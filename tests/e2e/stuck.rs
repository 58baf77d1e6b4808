//! What SIGKILL does not end: a process whose tracer does not let go of it stays in the process table.

use crate::with_and_without_cgroup;
use kennel_edge::pb::{self, AbortWait, RunState, tree_verdict::Verdict};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt,
    eventually_async, must, programs, sh,
};
use nix::{sys::ptrace, unistd::Pid};
use std::{sync::mpsc, thread, time::Duration};

with_and_without_cgroup!(
    a_run_that_sigkill_does_not_end_is_not_over,
    a_stuck_run_does_not_hold_up_the_end_of_the_service,
);

async fn a_run_that_sigkill_does_not_end_is_not_over(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let (run, tracer) = stuck(&mut client).await;
    let pid = run.attempt().pid;
    let print = Footprint::of_run(&run);

    let Some(Verdict::Stuck(stuck)) = run.tree_verdict.clone().and_then(|v| v.verdict) else {
        panic!("{run:?}")
    };
    let [process] = &stuck.processes[..] else {
        panic!("{stuck:?}")
    };
    assert_eq!((process.pid, process.state.as_str()), (pid, "Z"));
    assert!(process.why.contains("traces it"), "{process:?}");
    assert_eq!(run.state(), RunState::Stopping);
    assert_eq!((&run.end_reason, &run.end_time), (&None, &None));
    assert!(run.attempt().certificate.is_none());

    tracer.let_go();
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.reason(), "aborted");
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
    assert!(run.tree_is_empty(), "{run:?}");
    print.assert_nothing_left();
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let told = heard.stations();
    let stuck = told.iter().filter(|station| **station == "stuck").count();
    assert_eq!(stuck, 1, "{told:?}");
    assert_eq!(told.last(), Some(&"ended"), "{told:?}");
}

async fn a_stuck_run_does_not_hold_up_the_end_of_the_service(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let (run, tracer) = stuck(&mut client).await;
    let print = Footprint::of_run(&run);

    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(1), "{}", kennel.log());
    // Its shim goes on watching.
    tracer.let_go();
    kennel.wait_until_all_is_gone(PATIENCE).await;
    print.assert_nothing_left();

    kennel.restart().await;
    let run = must("wait", kennel.client().await.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "the row was open: {run:?}");
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{run:?}");
    assert!(run.tree_is_empty(), "{run:?}");
}

/// A run that was aborted and does not end, as long as its tracer lives.
async fn stuck(client: &mut Client) -> (pb::Run, Tracer) {
    let script = format!(
        "trap '' TERM INT; exec {} sleep",
        programs::naughty().display()
    );
    let spec = sh(&script).grace(Duration::from_millis(100));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let tracer = Tracer::of(run.attempt().pid);
    let asked = client.abort_with(&run.run_id, None, AbortWait::None).await;
    must("abort", asked);
    let id = run.run_id.clone();
    let client = client.clone();
    let run = eventually_async("it is told to be stuck", PATIENCE, || {
        let (mut client, id) = (client.clone(), id.clone());
        async move {
            let run = must("get", client.get(&id).await);
            run.tree_verdict.is_some().then_some(run)
        }
    })
    .await;
    (run, tracer)
}

/// A thread that traces a process. The process can end, but not go, until the thread ends.
struct Tracer {
    release: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Tracer {
    fn of(pid: i32) -> Self {
        let (seized, is_seized) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let seize = ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty());
            seized.send(seize).expect("the test waits");
            // Ends when the other end is dropped.
            let _ = held.recv();
        });
        let seize = is_seized.recv().expect("the thread tells");
        seize.expect("root may trace its own child");
        Self { release, thread }
    }

    fn let_go(self) {
        drop(self.release);
        self.thread.join().expect("it ends");
    }
}
