//! Kennel as a service of a booted systemd, by the units of `deploy/systemd`: of Debian 12 (252, without
//! `DelegateSubgroup=`) and of Debian 13 (257).

use crate::guest::{Checks, Guest, Machine};
use kennel_tests::programs;
use std::{path::PathBuf, process::Command};
use tempfile::TempDir;

/// The unit and what is beside it, by their paths in the guest.
const UNITS: [(&str, &str); 7] = [
    (
        "units/kennel.service",
        include_str!("../../deploy/systemd/kennel.service"),
    ),
    (
        "units/kennel.socket",
        include_str!("../../deploy/systemd/kennel.socket"),
    ),
    (
        "units/user/kennel.service",
        include_str!("../../deploy/systemd/user/kennel.service"),
    ),
    (
        "units/kennel.service.d/user.conf",
        include_str!("../../deploy/systemd/kennel.service.d/user.conf"),
    ),
    (
        "units/kennel.service.d/bounded.conf",
        include_str!("../../deploy/systemd/kennel.service.d/bounded.conf"),
    ),
    (
        "units/kennel.service.d/adopt.conf",
        include_str!("../../deploy/systemd/kennel.service.d/adopt.conf"),
    ),
    (
        "units/kennel.service.d/postgres.conf",
        include_str!("../../deploy/systemd/kennel.service.d/postgres.conf"),
    ),
];

const CHECKS: [&str; 16] = [
    "unit.ready",
    "unit.leaf",
    "unit.memory",
    "unit.pids",
    "unit.cpu",
    "unit.oom",
    "unit.reload",
    "unit.watchdog",
    "socket.start",
    "socket.stay",
    "socket.refused",
    "user.limits",
    "bounded.run",
    "store.credential",
    "adopt.restart",
    "user.unit",
];

#[test]
#[ignore = "minutes under emulation: make vm"]
fn units_work_below_systemd_252() {
    boot("bookworm", 1536, include_str!("guest/booted.sh")).all_passed(&CHECKS);
}

#[test]
#[ignore = "minutes under emulation: make vm"]
fn units_work_below_systemd_257() {
    boot("trixie", 1536, include_str!("guest/booted.sh")).all_passed(&CHECKS);
}

#[test]
#[ignore = "minutes under emulation: make vm"]
fn escape_suite_passes_below_systemd() {
    // Services and programs of a debug build need 1.5 GB.
    boot("trixie", 4096, include_str!("guest/proof.sh")).all_passed(&["proof.holds"]);
}

/// Boots a copy of the image that `.ci/image` has made of this release of Debian, and reads what the script reports
/// there as a unit.
fn boot(release: &str, memory_mib: u32, script: &'static str) -> Checks {
    let dir = tempfile::Builder::new()
        .prefix("kennel-vm-disk-")
        .tempdir()
        .expect("a temporary directory can be made");
    let mut files = UNITS.to_vec();
    files.push(("booted.sh", script));
    let guest = Guest::boot(&Machine {
        scenario: include_str!("guest/systemd.sh"),
        memory_mib,
        disk: Some(disk(release, &dir)),
        files,
    });
    guest.finish()
}

fn disk(release: &str, dir: &TempDir) -> PathBuf {
    let image = programs::tools().join(format!("images/{release}.ext4"));
    let disk = dir.path().join("disk");
    let mut copy = Command::new("cp");
    copy.arg("--sparse=always").arg(&image).arg(&disk);
    let copied = copy.status().expect("cp starts").success();
    assert!(
        copied,
        "no image {}; `.ci/tools vm` makes it",
        image.display()
    );
    disk
}
