//! Loss of power in the middle of spawns: every command that has run is on record.
//!
//! Data that the guest's kernel had not written to the disk is lost. Data in the disk's cache is not: the emulated disk
//! retains it.

use crate::guest::{Guest, Machine};
use std::{fs::File, path::Path, process::Command};

const DISK_BYTES: u64 = 256 << 20;
/// Marks after which the power goes, in each life of the machine.
const LIVES: [usize; 4] = [3, 17, 8, 26];

// promise: Q-12
#[test]
#[ignore = "minutes under emulation: make vm"]
fn every_mark_has_a_row_after_power_loss() {
    let dir = tempfile::Builder::new()
        .prefix("kennel-vm-disk-")
        .tempdir()
        .expect("a temporary directory can be made");
    let disk = dir.path().join("disk");
    make_disk(&disk);
    let machine = Machine {
        scenario: include_str!("guest/power.sh"),
        memory_mib: 1024,
        disk: Some(disk),
        files: Vec::new(),
    };
    let mut marked = 0;
    for marks in LIVES {
        let mut guest = Guest::boot(&machine);
        guest.read_until("ok power.rows");
        assert!(
            found(&guest) >= marked,
            "a durable mark is gone: {}",
            guest.text()
        );
        for _ in 0..marks {
            guest.read_until_any("marked ");
        }
        marked += marks;
    }
    let mut guest = Guest::boot(&machine);
    guest.read_until("ok power.rows");
    let found = found(&guest);
    println!(
        "{found} marks after {} losses of power, {marked} seen",
        LIVES.len()
    );
    assert!(found >= marked, "a durable mark is gone: {}", guest.text());
}

/// Returns how many marks the guest has found.
fn found(guest: &Guest) -> usize {
    let text = guest.text();
    let found = text.lines().find_map(|line| line.strip_prefix("marks "));
    found.expect("it counts them").parse().expect("a number")
}

fn make_disk(at: &Path) {
    let file = File::create(at).expect("a file can be made");
    file.set_len(DISK_BYTES).expect("it can be sparse");
    let mut mkfs = Command::new("/usr/sbin/mkfs.ext4");
    let status = mkfs.arg("-q").arg(at).status().expect("mkfs.ext4 starts");
    assert!(status.success(), "the disk can be formatted");
}
