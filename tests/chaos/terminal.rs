//! Terminal output through deaths of the server: every byte once, in order.

use kennel_proto::pb::{self, RunState, StreamsEnd};
use kennel_tests::{Kennel, PATIENCE, RunExt, SpecExt, eventually, must, sh};
use nix::sys::signal::Signal;
use std::{fs, path::Path};

/// Deaths of the server, one in each part but the last.
const KILLS: usize = 6;
/// Lines of a part. The command waits for a file before each.
const PART: usize = 100_000;

// promise: P-3
#[tokio::test(flavor = "multi_thread")]
async fn terminal_output_survives_server_deaths() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let lines = PART * (KILLS + 1);
    let go = kennel.scratch().join("go").display().to_string();
    let script = format!(
        "stty -opost; n=0; while [ $n -lt {lines} ]; do while [ ! -e {go}.$n ]; do sleep 0.01; done; \
         seq $((n + 1)) $((n + {PART})); n=$((n + {PART})); done"
    );
    let spec = sh(&script).on_terminal(pb::Terminal::default());
    let run_id = must("spawn", client.spawn(spec).await).run_id;
    let numbers: Vec<String> = (1..=lines).map(|n| n.to_string()).collect();
    let wanted = numbers.join("\n") + "\n";
    let dir = kennel.run_dir(&run_id);
    for number in 0..KILLS {
        let server = kennel.server().expect("it serves");
        fs::write(format!("{go}.{}", number * PART), "").expect("it can be written");
        let half = numbers[..number * PART + PART / 2].iter();
        let mark: usize = half.map(|line| line.len() + 1).sum();
        eventually("so much is on the disk", PATIENCE, || {
            (written(&dir) >= mark as u64).then_some(())
        })
        .await;
        kennel_tests::kennel::kill_exactly(&server, Signal::SIGKILL);
        eventually("another server is started", PATIENCE, || {
            kennel.server().filter(|next| next.pid != server.pid)
        })
        .await;
        client = kennel.client().await;
        let run = must("get", client.get(&run_id).await);
        assert_eq!(run.state(), RunState::Running);
    }
    fs::write(format!("{go}.{}", KILLS * PART), "").expect("it can be written");
    let run = must("ended", client.ended(&run_id).await);
    assert_eq!((run.state(), run.code()), (RunState::Succeeded, Some(0)));
    assert_eq!(run.attempt().streams_end(), StreamsEnd::Eof);
    let heard = must("stream", client.hear_all(&run_id, 0).await);
    let text = heard.text();
    let first = text.bytes().zip(wanted.bytes()).position(|(a, b)| a != b);
    assert_eq!((text.len(), first), (wanted.len(), None));
    let info = client.server_info().await.expect("it answers");
    println!(
        "{} bytes, generation {} of the server",
        wanted.len(),
        info.generation
    );
}

/// Bytes of output in a run's directory.
fn written(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let files = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("stdout")
    });
    files
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum()
}
