//! Numbered lines through deaths of the server at random moments: a reader that resumes has each of them once, in order.

use kennel_client as client;
use kennel_client::{EventReader, Start};
use kennel_proto::pb::{self, event::Payload};
use kennel_tests::{Kennel, RunExt, SpecExt, argv, must};
use std::time::{Duration, Instant};

/// Destination of the lines.
#[derive(Clone, Copy, Debug)]
enum Onto {
    /// All on standard output.
    One,
    /// Odd ones on standard output, even ones on standard error.
    Both,
    /// On a terminal, which ends each with CR LF.
    Terminal,
}

// promise: O-3a
#[tokio::test(flavor = "multi_thread")]
async fn lines_of_one_stream_survive_server_deaths() {
    lines(Onto::One, 300_000, 3).await;
}

// promise: O-3a
#[tokio::test(flavor = "multi_thread")]
async fn lines_of_both_streams_survive_server_deaths() {
    lines(Onto::Both, 300_000, 3).await;
}

// promise: O-3a
#[tokio::test(flavor = "multi_thread")]
async fn lines_on_a_terminal_survive_server_deaths() {
    lines(Onto::Terminal, 300_000, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make soak` runs it"]
async fn ten_million_lines_survive_fifty_server_deaths() {
    for onto in [Onto::One, Onto::Both, Onto::Terminal] {
        lines(onto, 10_000_000, 50).await;
    }
}

/// Writes the numbers from 1 on, in so many parts with a pause after each: a server that dies again and again is not
/// restarted at once.
const WRITER: &str = r#"
use IO::Handle;
my ($onto, $lines, $parts, $rest) = @ARGV;
my @to = $onto eq "Both" ? (*STDERR, *STDOUT) : (*STDOUT, *STDOUT);
$_->autoflush(0) for @to;
for my $n (1 .. $lines) {
    print { $to[$n & 1] } "$n\n";
    if ($n % int($lines / $parts) == 0) { $_->flush for @to; select(undef, undef, undef, $rest); }
}
"#;

/// Uptime of a server, before and beside a random part of it.
const SERVES: Duration = Duration::from_millis(2_200);

async fn lines(onto: Onto, lines: u64, kills: u32) {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let parts = 20 * kills;
    let rest = f64::from(kills + 1) * 2.6 / f64::from(parts);
    let name = format!("{onto:?}");
    let (lines_word, parts_word, rest_word) =
        (lines.to_string(), parts.to_string(), rest.to_string());
    let mut spec = argv(&[
        "perl",
        "-e",
        WRITER,
        &name,
        &lines_word,
        &parts_word,
        &rest_word,
    ]);
    if let Onto::Terminal = onto {
        spec = spec.on_terminal(pb::Terminal::default());
    }
    spec.output = Some(pb::OutputPolicy {
        max_bytes: Some(1 << 30),
        ..pb::OutputPolicy::default()
    });
    let run_id = must("spawn", client.spawn(spec).await).run_id;

    let begun = Instant::now();
    let address = kennel.address().parse().expect("an address");
    let reading = tokio::spawn(Assembled::read(address, run_id.clone(), onto));
    for number in 0..kills {
        // Kill times vary, so that none is a multiple of the writer's waits.
        let more = Duration::from_millis(u64::from(number * 7919 % 613));
        tokio::time::sleep(SERVES + more).await;
        if reading.is_finished() {
            break;
        }
        kennel.kill_server();
        must("it serves", kennel.client().await.get(&run_id).await);
    }
    let read = must("the reader", reading.await);
    let took = begun.elapsed();

    let mut client = kennel.client().await;
    let run = must("ended", client.ended(&run_id).await);
    assert_eq!(run.code(), Some(0));
    assert_eq!(read.lines, lines, "as many lines as were written");
    let info = client.server_info().await.expect("it answers");
    println!(
        "{lines} lines, {onto:?}: {} bytes in {} events, {} deaths of the server: {took:.1?}",
        read.bytes,
        read.events,
        info.generation - 1
    );
    assert!(
        info.generation > i64::from(kills / 2),
        "servers did die: {}",
        info.generation
    );
}

/// Output that a reader has assembled, checked as it comes.
#[derive(Debug)]
struct Assembled {
    onto: Onto,
    /// For each stream: the number of the next line, and its bytes so far.
    next: [(u64, Vec<u8>); 2],
    lines: u64,
    bytes: u64,
    events: u64,
    seq: u64,
}

impl Assembled {
    /// Follows a run to its end, across the loss of any server.
    async fn read(address: client::Address, run_id: String, onto: Onto) -> Self {
        let connection = client::connect(&address).await.expect("it serves");
        let mut reader = EventReader::new(&connection, &run_id, Start::Beginning);
        let mut all = Self {
            onto,
            next: [(1, Vec::new()), (2, Vec::new())],
            lines: 0,
            bytes: 0,
            events: 0,
            seq: 0,
        };
        while let Some(message) = reader.next().await.expect("it continues") {
            for batch in message.run_events {
                for event in batch.events {
                    let seq = batch.base_seq + event.seq_delta;
                    match event.payload {
                        Some(Payload::Output(output)) => {
                            assert!(seq > all.seq, "{seq} after {}", all.seq);
                            all.seq = seq;
                            all.take(&output);
                        }
                        Some(Payload::Gap(gap)) => panic!("something is missing: {gap:?}"),
                        _ => {}
                    }
                }
            }
        }
        assert!(
            all.next.iter().all(|(_, rest)| rest.is_empty()),
            "the last line has its end"
        );
        all
    }

    fn take(&mut self, output: &pb::Output) {
        self.events += 1;
        self.bytes += output.data.len() as u64;
        let (stream, step, end): (_, _, &[u8]) = match self.onto {
            Onto::One => (0, 1, b"\n"),
            Onto::Both => (
                usize::from(output.stream() == pb::OutputStream::Stderr),
                2,
                b"\n",
            ),
            Onto::Terminal => (0, 1, b"\r\n"),
        };
        let (next, rest) = &mut self.next[stream];
        rest.extend_from_slice(&output.data);
        let mut at = 0;
        while let Some(len) = rest[at..].iter().position(|byte| *byte == b'\n') {
            let line = &rest[at..=at + len];
            let wanted = [next.to_string().as_bytes(), end].concat();
            assert!(
                line == wanted,
                "{:?} in the place of line {next}",
                String::from_utf8_lossy(line)
            );
            *next += step;
            self.lines += 1;
            at += len + 1;
        }
        rest.drain(..at);
    }
}
