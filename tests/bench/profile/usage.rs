//! The kernel's counters for each process: page faults, context switches, processor time.

use super::{WARM_UP, per_run};
use crate::counts::one_after_another;
use kennel_tests::Kennel;
use std::{fmt::Write as _, fs};

/// Runs that are counted.
const COUNTED: usize = 300;

/// Counters of one process, or of the children that it has reaped, theirs included.
#[derive(Clone, Copy, Default)]
struct Usage {
    faults: u64,
    switches: Option<u64>,
    ticks: u64,
}

impl Usage {
    /// Returns the counters of the process itself, and of its children.
    fn both(pid: i32) -> Option<[Self; 2]> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<u64> = rest.split(' ').map(|f| f.parse().unwrap_or(0)).collect();
        let at = |field: usize| fields.get(field).copied();
        let own = Self {
            faults: at(7)? + at(9)?,
            switches: Some(switches(pid)),
            ticks: at(11)? + at(12)?,
        };
        let children = Self {
            faults: at(8)? + at(10)?,
            switches: None,
            ticks: at(13)? + at(14)?,
        };
        Some([own, children])
    }

    fn since(self, before: Self) -> Self {
        let switches = self.switches.zip(before.switches);
        Self {
            faults: self.faults - before.faults,
            switches: switches.map(|(now, before)| now.saturating_sub(before)),
            ticks: self.ticks - before.ticks,
        }
    }
}

/// Returns those of all its threads.
fn switches(pid: i32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let of_thread = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        let counts = lines.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    threads.into_iter().flatten().flatten().map(of_thread).sum()
}

/// Returns the counters of this process, server, keeper, and of the processes that the keeper has reaped.
fn look(kennel: &Kennel) -> Option<[Usage; 4]> {
    let own = i32::try_from(std::process::id()).ok()?;
    let [keeper, reaped] = Usage::both(kennel.keeper_pid())?;
    let [server, _] = Usage::both(kennel.server()?.pid)?;
    let [client, _] = Usage::both(own)?;
    Some([client, server, keeper, reaped])
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub(super) async fn measure() -> Result<String, String> {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    one_after_another(&mut client, WARM_UP).await;
    let before = look(&kennel).ok_or("/proc does not show the processes")?;
    one_after_another(&mut client, COUNTED).await;
    let after = look(&kennel).ok_or("/proc does not show the processes")?;
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
    let tick_ms = 1000.0 / ticks.ok().flatten().unwrap_or(100) as f64;
    let mut text = format!(
        "{:<16} {:>12} {:>17} {:>10}\n",
        "process", "page faults", "context switches", "processor"
    );
    let names = ["client", "server", "keeper", "shim, command"];
    for (name, (after, before)) in names.into_iter().zip(after.into_iter().zip(before)) {
        let spent = after.since(before);
        let count = |count: u64| per_run(usize::try_from(count).unwrap_or(usize::MAX), COUNTED);
        let switches = spent
            .switches
            .map_or("-".to_owned(), |n| format!("{:.1}", count(n)));
        let _ = writeln!(
            text,
            "{name:<16} {:>12.1} {switches:>17} {:>7.2} ms",
            count(spent.faults),
            count(spent.ticks) * tick_ms,
        );
    }
    text.push_str("The kernel keeps no switches of processes that were reaped. A command alone has about 45 page faults.\n");
    Ok(text)
}
