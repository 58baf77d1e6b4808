//! A long input through deaths of the server, lost connections and lost answers: the command gets each byte once.

use kennel_proto::pb::RunState;
use kennel_tests::{
    Client, Kennel, PATIENCE, RunExt, SpecExt, must, sh, shell::run_to_end, shell::text,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const MIB: u64 = 1 << 20;
/// Bytes of one write: no divisor of anything that Kennel cuts in.
const PIECE: usize = 200_001;
/// Uptime of a server, and the additional cost of its death.
const SERVES: Duration = Duration::from_millis(2_200);
const PACE_MORE: Duration = Duration::from_millis(500);
/// The answer to one of so many writes is not awaited.
const UNHEARD: usize = 5;

// promise: V-2
#[tokio::test(flavor = "multi_thread")]
async fn input_arrives_once_and_completely_across_server_deaths() {
    arrives(12 * MIB, 5, 5).await;
}

// promise: V-2
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make soak` runs it"]
async fn long_input_arrives_completely_across_server_deaths() {
    arrives(256 * MIB, 20, 20).await;
}

async fn arrives(bytes: u64, kills: u64, reconnects: u64) {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let source = kennel.scratch().join("source");
    fill(&source, bytes);
    let wanted = sha256(&source).await;
    let spec = sh("echo up; sha256sum").open_input();
    let run_id = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run_id, "up\n").await;

    let begun = Instant::now();
    // The pace makes the input outlast all server kills.
    let pieces = bytes.div_ceil(PIECE as u64);
    let pace = (SERVES + PACE_MORE) * u32::try_from(kills).expect("few")
        / u32::try_from(pieces).expect("few");
    let accepted = Arc::new(AtomicU64::new(0));
    let writing = tokio::spawn(Writer::write_all(
        kennel.socket(),
        run_id.clone(),
        source,
        Arc::clone(&accepted),
        bytes / (reconnects + 1),
        pace,
    ));
    for number in 1..=kills {
        let at = number * bytes / (kills + 1);
        while accepted.load(Ordering::Relaxed) < at && !writing.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        kennel.kill_server();
        // Servers killed before they serve restart with growing delays, and the keeper eventually ends runs without a
        // server.
        must("it serves", kennel.client().await.get(&run_id).await);
        tokio::time::sleep(SERVES).await;
    }
    let report = must("the writer", writing.await);
    let took = begun.elapsed();

    let mut client = kennel.client().await;
    let run = must("ended", client.ended(&run_id).await);
    assert_eq!((run.state(), run.code()), (RunState::Succeeded, Some(0)));
    let heard = must("stream", client.hear_all(&run_id, 0).await);
    assert_eq!(heard.text(), format!("up\n{wanted}  -\n"));
    let info = client.server_info().await.expect("it answers");
    println!(
        "{} MiB, {kills} deaths of the server (generation {}), {} connections, {} answers not waited for, {} repeats: {took:.1?}",
        bytes / MIB,
        info.generation,
        report.connections,
        report.unheard,
        report.repeats,
    );
}

/// Experiences of a writer.
#[derive(Debug, Default)]
struct WriterReport {
    connections: usize,
    unheard: usize,
    repeats: usize,
}

struct Writer {
    socket: PathBuf,
    run_id: String,
    client: Option<Client>,
    report: WriterReport,
}

impl Writer {
    async fn write_all(
        socket: PathBuf,
        run_id: String,
        source: PathBuf,
        accepted: Arc<AtomicU64>,
        reconnect_every: u64,
        pace: Duration,
    ) -> WriterReport {
        let data = fs::read(source).expect("the source can be read");
        let mut writer = Self {
            socket,
            run_id,
            client: None,
            report: WriterReport::default(),
        };
        let mut offset = 0;
        for (number, piece) in data.chunks(PIECE).enumerate() {
            let id = number.to_string();
            if number % UNHEARD == 0 {
                writer.write_unheard(&id, offset, piece).await;
            }
            writer.write(&id, offset, piece).await;
            let before = offset;
            offset += piece.len() as u64;
            accepted.store(offset, Ordering::Relaxed);
            tokio::time::sleep(pace).await;
            if before / reconnect_every != offset / reconnect_every {
                writer.client = None;
            }
        }
        writer.close(offset).await;
        writer.report
    }

    /// Begins a write and cancels it.
    async fn write_unheard(&mut self, id: &str, offset: u64, piece: &[u8]) {
        let mut client = self.connected().await.clone();
        let (run_id, id, piece) = (self.run_id.clone(), id.to_owned(), piece.to_vec());
        let asked = tokio::spawn(async move {
            let _ = client.write(&run_id, &id, Some(offset), &piece).await;
        });
        tokio::task::yield_now().await;
        asked.abort();
        let _ = asked.await;
        self.report.unheard += 1;
    }

    async fn write(&mut self, id: &str, offset: u64, piece: &[u8]) {
        loop {
            let run_id = self.run_id.clone();
            let client = self.connected().await;
            match client.write(&run_id, id, Some(offset), piece).await {
                Ok(written) => {
                    assert_eq!(written.start_offset, offset);
                    self.report.repeats += usize::from(written.repeated_request);
                    return;
                }
                Err(status) => {
                    let reason = kennel_tests::complaint(&status).reason;
                    assert!(
                        reason.is_empty() || status.code() == tonic::Code::Unavailable,
                        "{status:?}"
                    );
                    self.client = None;
                }
            }
        }
    }

    async fn close(&mut self, offset: u64) {
        loop {
            let run_id = self.run_id.clone();
            let client = self.connected().await;
            match client.close_input(&run_id, Some(offset)).await {
                Ok(_) => return,
                // The input was closed, but the answer lost; the caller checks the output.
                Err(status) if kennel_tests::complaint(&status).reason == "RUN_ENDED" => return,
                Err(_) => self.client = None,
            }
        }
    }

    async fn connected(&mut self) -> &mut Client {
        while self.client.is_none() {
            self.client = Client::connect(&self.socket).await.ok();
            self.report.connections += usize::from(self.client.is_some());
        }
        self.client.as_mut().expect("it is there by now")
    }
}

/// Writes bytes that do not repeat within the size of a pipe.
fn fill(path: &Path, bytes: u64) {
    let mut data = Vec::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    while (data.len() as u64) < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    fs::write(path, data).expect("the source can be written");
}

async fn sha256(path: &Path) -> String {
    let mut sum = Command::new("sha256sum");
    sum.arg(path);
    let output = run_to_end(sum, PATIENCE).await;
    let said = text(&output);
    let sum = said.split_whitespace().next();
    sum.expect("it says the sum").to_owned()
}
