//! Signals to the foreground of a command's own terminal.

use crate::play_scenes;
use kennel_proto::pb::{RunState, SignalOutcome, SignalTarget};
use kennel_tests::{Kennel, PATIENCE, argv, complaint, eventually, must, naughty, procfs::Proc};
use std::path::Path;
use tonic::Code;

/// Makes a terminal, which becomes that of this session, and two process groups of two beside its own; the second is
/// put into the foreground on request. Each of the five writes down its pid and each USR1 and USR2 that it
/// gets, in a file of its own below `$ARGV[0]`. Perl is a part of every Debian system.
const FIVE: &str = r#"
use Fcntl; use POSIX ();
my $dir = shift;
sub note { open(my $f, ">>", "$dir/$_[0]") or die $!; syswrite($f, "$_[1]\n"); }
sub stay {
    my $me = shift;
    for my $signal ("USR1", "USR2") { $SIG{$signal} = sub { note("$me.got", $signal) } }
    note($me, $$);
    sleep 1 while -e $dir;
    exit;
}
$SIG{TTOU} = "IGNORE";
sysopen(my $master, "/dev/ptmx", O_RDWR | O_NOCTTY) or die "ptmx: $!";
my $off = pack("i", 0);
ioctl($master, 0x40045431, $off) or die "unlock: $!";
my $number = pack("i", 0);
ioctl($master, 0x80045430, $number) or die "number: $!";
sysopen(my $tty, "/dev/pts/" . unpack("i", $number), O_RDWR) or die "tty: $!";
for my $name ("back", "front") {
    my $first = fork;
    if (!$first) { setpgrp(0, 0); fork or stay("${name}2"); stay("${name}1") }
    setpgrp($first, $first);
    if ($name eq "front") { POSIX::tcsetpgrp(fileno($tty), $first) or die "foreground: $!" }
}
stay("leader");
"#;

async fn pid(dir: &Path, name: &str) -> i32 {
    eventually(name, PATIENCE, || {
        std::fs::read_to_string(dir.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    })
    .await
}

fn got(dir: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(format!("{name}.got"))).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_signals_reach_the_foreground() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        signal_reaches_foreground_of_leaders_terminal,
        terminal_signal_without_terminal_is_refused,
    }
}

// promise: T-30
async fn signal_reaches_foreground_of_leaders_terminal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let dir = kennel.scratch().join("five");
    std::fs::create_dir(&dir).expect("a directory");
    let spec = argv(&["perl", "-e", FIVE, &dir.display().to_string()]);
    let run = must("spawn", client.spawn(spec).await);
    let mut front = [pid(&dir, "front1").await, pid(&dir, "front2").await];
    front.sort_unstable();
    for name in ["leader", "back1", "back2"] {
        pid(&dir, name).await;
    }
    let target = SignalTarget::TerminalForeground;
    let answer = must(
        "signal",
        client.signal(&run.run_id, "SIGUSR1", target, "a").await,
    );
    let reached: Vec<i32> = answer.targets.iter().map(|t| t.pid).collect();
    assert_eq!(reached, front);
    assert!(
        answer
            .targets
            .iter()
            .all(|t| t.outcome() == SignalOutcome::Delivered)
    );
    for (pid, answered) in front.iter().zip(&answer.targets) {
        let proc = Proc::read(*pid).expect("it lives");
        assert_eq!(proc.start_ticks, answered.start_ticks);
    }
    // Signals arrive in order: the second one follows any first one.
    let tree = SignalTarget::Tree;
    must(
        "tree",
        client.signal(&run.run_id, "SIGUSR2", tree, "b").await,
    );
    let expected = [
        ("leader", &["USR2"][..]),
        ("back1", &["USR2"]),
        ("back2", &["USR2"]),
        ("front1", &["USR1", "USR2"]),
        ("front2", &["USR1", "USR2"]),
    ];
    for (name, expected) in expected {
        let all = eventually(name, PATIENCE, || {
            let got = got(&dir, name);
            got.iter().any(|signal| signal == "USR2").then_some(got)
        });
        assert_eq!(all.await, expected, "{name}");
    }
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!(run.state(), RunState::Cancelled);
}

// promise: T-30
async fn terminal_signal_without_terminal_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["sleep"])).await);
    let refused = client
        .signal(&run.run_id, "SIGHUP", SignalTarget::TerminalForeground, "a")
        .await;
    let complaint = complaint(&refused.expect_err("it has no terminal"));
    assert_eq!(
        (complaint.code, complaint.reason.as_str()),
        (Code::FailedPrecondition, "NO_TERMINAL")
    );
    let heard = must("get", client.get(&run.run_id).await);
    assert_eq!(heard.state(), RunState::Running);
    // A refused request leaves its id free.
    let sent = client
        .signal(&run.run_id, "SIGHUP", SignalTarget::Leader, "a")
        .await;
    assert_eq!(must("signal", sent).targets.len(), 1);
    must("wait", client.ended(&run.run_id).await);
}
