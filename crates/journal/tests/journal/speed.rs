//! Figures, not promises: run with `--release -- --ignored --nocapture`.

use crate::common::{create, items_to_end, output, read_after};
use kennel_journal::{Kind, Position, Reader};
use std::time::{Duration, Instant};
use tempfile::tempdir;

const TOTAL: usize = 100 << 20;

#[tokio::test]
#[ignore = "prints figures"]
async fn speed_of_replay_and_live_read_is_printed() {
    for entry_bytes in [64 * 1024, 4096, 80] {
        let dir = tempdir().unwrap();
        let mut writer = create(dir.path());
        let bytes = vec![b'x'; entry_bytes];
        let began = Instant::now();
        for _ in 0..TOTAL / entry_bytes {
            output(&mut writer, Kind::Stdout, &bytes, 0).unwrap();
        }
        let wrote = began.elapsed();
        drop(writer);
        let began = Instant::now();
        let mut reader = Reader::open_ended(dir.path(), Position::default()).unwrap();
        let opened = began.elapsed();
        let began = Instant::now();
        let entries = items_to_end(&mut reader, 1 << 20).await.len();
        let replayed = began.elapsed();
        println!(
            "100 MiB in {entries} entries of {entry_bytes} bytes: write {wrote:?}, open {opened:?}, replay {replayed:?}"
        );
    }
    live().await;
}

async fn live() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    let mut reader = read_after(&writer.hub(), 0).unwrap();
    let mut all = Vec::new();
    for _ in 0..20_000 {
        let began = Instant::now();
        output(&mut writer, Kind::Stdout, b"a line of text\n", 0).unwrap();
        reader.next(1 << 20).await.unwrap().unwrap();
        all.push(began.elapsed());
    }
    all.sort();
    let total: Duration = all.iter().sum();
    println!(
        "write and read of one live line: mean {:?}, p50 {:?}, p99 {:?}",
        total / 20_000,
        all[10_000],
        all[19_800]
    );
}
