//! Very many aborts and recoveries where process ids are reused at once, among bystanders that notice every signal.
//!
//! Runs in a private pid namespace whose numbers end at 400, of which the kernel reuses the last hundred again and
//! again. The test starts itself again inside.

use crate::recycle;
use kennel_proto::pb::AbortWait;
use kennel_tests::{
    Client, Kennel, PATIENCE, RunExt, argv, eventually,
    kennel::{kill_exactly, reap_orphans},
    must,
    procfs::Proc,
    programs, sh,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::VecDeque,
    fs,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Aborts and recoveries of the default test, and of `make soak`.
const FEW: u32 = 200;
const MANY: u32 = 100_000;
/// Aborts of one trial: so many clients, each so many runs.
const CLIENTS: u32 = 6;
const ABORTS_BY_EACH: u32 = 82;
/// Runs that a trial's crash leaves to the next start.
const LEFT_OPEN: u32 = 10;
/// Bystanders at once.
const BYSTANDERS: usize = 12;
/// Bystanders that try for one number.
const TRIES: u32 = 5;
/// The longest life of a bystander among aborts, and of one among recoveries.
const LIFE_MS: u64 = 40;
const LONG_LIFE_MS: u64 = 60_000;

// promise: I-7
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_aborts_signal_no_unrelated_process() {
    inside("hundreds_of_aborts_signal_no_unrelated_process", FEW).await;
}

// promise: I-7
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make soak` runs it"]
async fn hundred_thousand_aborts_signal_no_unrelated_process() {
    inside("hundred_thousand_aborts_signal_no_unrelated_process", MANY).await;
}

/// The result of the tests above for a service that signals by number alone.
// promise: I-7
#[tokio::test]
async fn unrelated_process_detects_signal_to_reused_pid() {
    if !recycle::is_inside() {
        return recycle::start_again_inside(
            "soak::unrelated_process_detects_signal_to_reused_pid",
            PATIENCE,
        )
        .await;
    }
    for signal in [Signal::SIGTERM, Signal::SIGCONT, Signal::SIGKILL] {
        let mut gone = Command::new("true").spawn().expect("true starts");
        let number = i32::try_from(gone.id()).expect("small");
        gone.wait().expect("own child");
        let mut bystander = recycle::with_number(number, || bystander(LONG_LIFE_MS))
            .expect("the number comes round");
        eventually("it blocks signals", PATIENCE, || {
            blocks_signals(number).then_some(())
        })
        .await;
        kill(Pid::from_raw(number), signal).expect("it is there");
        assert!(!bystander.wait().expect("own child").success(), "{signal}");
    }
    println!("{}", recycle::UNTOUCHED);
}

async fn inside(name: &str, count: u32) {
    if !recycle::is_inside() {
        return recycle::start_again_inside(&format!("soak::{name}"), Duration::from_hours(1))
            .await;
    }
    recycle::shorten_numbers();
    let began = Instant::now();
    let mut all = Tally::default();
    while all.aborts + all.recoveries < count {
        trial(&mut all).await;
        assert!(
            all.hits.is_empty(),
            "strangers were signalled: {:?}",
            all.hits
        );
    }
    assert!(
        all.reused > all.recoveries,
        "too few numbers came round: {all:?}"
    );
    println!(
        "{} aborts and {} recoveries in {:.0?}, {} bystanders, {} of them under the number of a run: {}",
        all.aborts,
        all.recoveries,
        began.elapsed(),
        all.bystanders,
        all.reused,
        recycle::UNTOUCHED
    );
}

/// Observations.
#[derive(Debug, Default)]
struct Tally {
    aborts: u32,
    recoveries: u32,
    bystanders: u32,
    /// Number of bystanders under the number of a run's command or shim.
    reused: u32,
    hits: Vec<String>,
}

/// One service: many aborts while bystanders come and go, then a crash, and a recovery among bystanders.
async fn trial(all: &mut Tally) {
    let mut kennel = Kennel::on_sqlite().await;
    let crowd = Crowd::gather();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(abort_many(
            kennel.client().await,
            crowd.wanted.clone(),
            number,
        ));
    }
    let aborts: u32 = clients.join_all().await.into_iter().sum();
    all.aborts += aborts;
    crowd.leave(all);

    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for _ in 0..LEFT_OPEN {
        runs.push(must(
            "spawn",
            client.spawn(argv(&["/bin/sleep", "600"])).await,
        ));
    }
    crash(&mut kennel).await;
    let mut crowd = Vec::new();
    for number in runs
        .iter()
        .flat_map(|run| [run.attempt().pid, run.attempt().shim_pid])
    {
        crowd.extend(recycle::with_number(number, || bystander(LONG_LIFE_MS)));
    }
    all.reused += u32::try_from(crowd.len()).expect("few");
    all.bystanders += u32::try_from(crowd.len()).expect("few");
    kennel.restart().await;
    let mut client = kennel.client().await;
    for run in &runs {
        let run = must("wait", client.ended(&run.run_id).await);
        assert_eq!(run.reason(), "service_lost", "{run:?}");
        all.recoveries += 1;
    }
    for mut bystander in crowd {
        let number = i32::try_from(bystander.id()).expect("small");
        if was_signalled(number) {
            all.hits.push(format!("{number} at a recovery"));
        }
        bystander.kill().expect("own child");
        bystander.wait().expect("own child");
    }
}

/// Kills everything that could end a run or record its end.
async fn crash(kennel: &mut Kennel) {
    let family = kennel.descendants();
    kennel.kill_service_after(|| {
        for proc in &family {
            kill_exactly(proc, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    eventually("all are gone", PATIENCE, || {
        reap_orphans();
        let all_are_gone = family.iter().all(|proc| !proc.is_still_there());
        all_are_gone.then_some(())
    })
    .await;
}

/// Aborts runs while they live, while they end, and after that.
async fn abort_many(mut client: Client, wanted: Wanted, first: u32) -> u32 {
    for number in first..first + ABORTS_BY_EACH {
        let script = match number % 4 {
            0 => "exec sleep 600",
            1 => "sleep 600 & exec sleep 600",
            2 => "exec sleep 0.002",
            _ => ":",
        };
        let run = must("spawn", client.spawn(sh(script)).await);
        let grace = Duration::from_millis(u64::from(number % 2));
        want(&wanted, run.attempt().pid);
        want(&wanted, run.attempt().shim_pid);
        let aborted = client
            .abort_with(&run.run_id, Some(grace), AbortWait::TreeEmpty)
            .await;
        let run = must("abort", aborted);
        assert!(run.tree_is_empty(), "{run:?}");
    }
    ABORTS_BY_EACH
}

/// Numbers for bystanders to take, as soon as they are free.
type Wanted = Arc<Mutex<VecDeque<i32>>>;

fn want(wanted: &Wanted, number: i32) {
    wanted.lock().expect("no holder panics").push_back(number);
}

/// A changing set of bystanders.
struct Crowd {
    wanted: Wanted,
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Tally>,
}

impl Crowd {
    fn gather() -> Self {
        let (wanted, over) = (Wanted::default(), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (wanted, over) = (wanted.clone(), over.clone());
            thread::spawn(move || come_and_go(&wanted, &over))
        };
        Self {
            wanted,
            over,
            thread,
        }
    }

    /// Waits until all have exited, and counts them.
    fn leave(self, all: &mut Tally) {
        self.over.store(true, Ordering::Relaxed);
        let seen = self.thread.join().expect("it counts to its end");
        all.bystanders += seen.bystanders;
        all.reused += seen.reused;
        all.hits.extend(seen.hits);
    }
}

fn come_and_go(wanted: &Wanted, over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    let mut there: Vec<Child> = Vec::new();
    let mut target = (0, 0);
    loop {
        there.retain_mut(|child| match child.try_wait().expect("own child") {
            Some(status) => {
                if !status.success() {
                    tally
                        .hits
                        .push(format!("{} at an abort: {status}", child.id()));
                }
                false
            }
            None => true,
        });
        if over.load(Ordering::Relaxed) {
            if there.is_empty() {
                return tally;
            }
        } else if there.len() < BYSTANDERS {
            if target.1 == 0 {
                target = (
                    wanted
                        .lock()
                        .expect("no holder panics")
                        .pop_front()
                        .unwrap_or(0),
                    TRIES,
                );
            }
            target.1 -= 1;
            recycle::choose_next(target.0);
            let child = bystander(1 + u64::from(tally.bystanders) % LIFE_MS);
            tally.bystanders += 1;
            if i32::try_from(child.id()) == Ok(target.0) {
                tally.reused += 1;
                target.1 = 0;
            }
            there.push(child);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn bystander(millis: u64) -> Child {
    Command::new(programs::naughty())
        .args(["bystander", &millis.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Whether a living bystander has got a signal.
fn was_signalled(number: i32) -> bool {
    let Some(proc) = Proc::read(number) else {
        return true;
    };
    let signalled = masks(number, ["SigPnd:", "ShdPnd:"]).any(|mask| mask != 0);
    proc.is_zombie() || proc.state == 'T' || signalled
}

fn blocks_signals(number: i32) -> bool {
    masks(number, ["SigBlk:", "SigBlk:"]).all(|mask| mask != 0)
}

fn masks(number: i32, names: [&str; 2]) -> impl Iterator<Item = u64> {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let masks: Vec<u64> = status
        .lines()
        .filter_map(|line| names.iter().find_map(|name| line.strip_prefix(name)))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .collect();
    masks.into_iter()
}
