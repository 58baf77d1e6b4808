//! Cost of a thousand idle runs: all memory of keeper, server and shims, and their processor time.

use crate::table::{Goal, Table};
use kennel_tests::{
    Client, Kennel, argv, must,
    procfs::{self, Proc},
};
use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Idle runs.
const RUNS: usize = 1000;
/// Time of observation.
const WATCH: Duration = Duration::from_secs(10);
/// Ticks of a processor second in /proc (`USER_HZ`, which Linux fixes).
const TICKS: f64 = 100.0;
/// Kernel memory in /proc/meminfo.
const KERNEL_FIGURES: [&str; 3] = ["Slab", "KernelStack", "PageTables"];

pub(crate) async fn measure(table: &mut Table) {
    let commands_alone = kernel_bytes_of_bare_commands();
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let before_kernel = kernel_bytes();
    let before_user = user_bytes(&family(&kennel));
    if let Err(why) = spawn_all(&mut client).await {
        table.not_measured("memory per idle run", &why);
        return;
    }
    let family = family(&kennel);
    let shims = family.len() - 2;
    let user = user_bytes(&family) - before_user;
    let in_kernel = kernel_bytes() - before_kernel - commands_alone;
    let per_run = |bytes: i64| kilobytes(bytes) / f64::from(u32::try_from(RUNS).expect("small"));
    table.goal(
        &format!("memory per idle run at {RUNS} runs ({shims} shims)"),
        &format!("{:.0} kB", per_run(user + in_kernel)),
        &format!(
            "{:.0} PSS + {:.0} kernel",
            per_run(user),
            per_run(in_kernel)
        ),
        Goal::at_most("140 kB", 140.0).met_by(per_run(user + in_kernel)),
    );
    let members = [
        (
            "keeper",
            vec![Proc::read(kennel.keeper_pid()).expect("it runs")],
        ),
        ("server", kennel.server().into_iter().collect()),
        ("shims", kennel.shims()),
    ];
    for (member, processes) in members {
        table.fact(
            &format!("  of it {member}, PSS"),
            &format!("{:.0} kB", per_run(user_bytes(&processes))),
        );
    }
    let ticks = |family: &[Proc]| -> u64 {
        family
            .iter()
            .filter_map(|proc| procfs::cpu_ticks(proc.pid))
            .sum()
    };
    let before = ticks(&family);
    tokio::time::sleep(WATCH).await;
    let spent = ticks(&family).saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "ticks are few")]
    let percent = spent as f64 / TICKS / WATCH.as_secs_f64() * 100.0;
    table.fact(
        &format!("processor time at {RUNS} idle runs, all processes of ours"),
        &format!("{percent:.2} % of one"),
    );
}

async fn spawn_all(client: &mut Client) -> Result<(), String> {
    for number in 0..RUNS {
        let spawned = client.spawn(argv(&["/bin/sleep", "600"])).await;
        if let Err(status) = spawned {
            return Err(format!("run {number} was refused: {}", status.message()));
        }
    }
    must("info", client.server_info().await.ok_or("no answer"));
    Ok(())
}

/// Returns keeper, server and shims: all processes of the keeper that are no commands.
fn family(kennel: &Kennel) -> Vec<Proc> {
    let mut family = kennel.shims();
    family.extend(kennel.server());
    family.extend(Proc::read(kennel.keeper_pid()));
    family
}

fn user_bytes(family: &[Proc]) -> i64 {
    let sum: u64 = family
        .iter()
        .filter_map(|proc| procfs::memory_bytes(proc.pid, "Pss"))
        .sum();
    i64::try_from(sum).expect("less than an exabyte")
}

fn kernel_bytes() -> i64 {
    let sum: u64 = KERNEL_FIGURES
        .iter()
        .filter_map(|figure| procfs::meminfo_bytes(figure))
        .sum();
    i64::try_from(sum).expect("less than an exabyte")
}

/// Returns the kernel memory of as many commands without Kennel, so that it is not counted as Kennel's.
fn kernel_bytes_of_bare_commands() -> i64 {
    let before = kernel_bytes();
    let mut children: Vec<Child> = (0..RUNS)
        .map(|_| {
            Command::new("/bin/sleep")
                .arg("600")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("sleep starts")
        })
        .collect();
    let bytes = kernel_bytes() - before;
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    bytes
}

#[expect(clippy::cast_precision_loss, reason = "a display figure")]
fn kilobytes(bytes: i64) -> f64 {
    bytes as f64 / 1024.0
}
