//! `kennel doctor --prove`: runs the escape suite in a service of its own, with the user's own privileges, and reports
//! the containment on this host. Only this process knows of that service, and nothing of it stays.

mod report;
mod sandbox;
mod suite;

use crate::own_service::Service;
use kennel_cli::{Ends, Failure, Format, during, print, print_exact};
use report::Report;
use std::time::{Duration, Instant};
use suite::Way;

/// Longest time of the whole suite; tests without a result by then are reported so. A quarter of a minute is usual, and
/// an emulated machine needs several.
const TIME: Duration = Duration::from_mins(8);
/// Exit code where a verdict was false.
const LIE: u8 = 1;
/// Exit code after SIGINT, as in a shell.
const INTERRUPTED: u8 = 130;

pub(crate) async fn prove(format: &Format) -> Result<u8, Failure> {
    let mut ends = Ends::listen()?;
    let began = Instant::now();
    // Dropping this future drops its services, and a dropped service leaves no process.
    let report = tokio::select! {
        report = during("letting programs try to escape", tokio::time::timeout(TIME, all())) => match report {
            Ok(report) => report?,
            Err(_) => return Err(Failure::new(format!("not done within {TIME:?}"))),
        },
        () = ends.came() => return Err(Failure::new("interrupted").code(INTERRUPTED)),
    };
    if format.is_text() {
        print(&report.text(began.elapsed()))?;
    } else {
        print_exact(&format.document(&report.json()))?;
    }
    Ok(if report.holds() { 0 } else { LIE })
}

/// Runs three services at once: each way to die ends one.
async fn all() -> Result<Report, Failure> {
    let (calm, server, keeper) = tokio::join!(
        ways(&[Way::NormalEnd, Way::Abort, Way::Timeout]),
        ways(&[Way::ServerKilled]),
        ways(&[Way::KeeperKilled]),
    );
    let mut report = calm?;
    report.columns.extend(server?.columns);
    report.columns.extend(keeper?.columns);
    Ok(report)
}

async fn ways(ways: &[Way]) -> Result<Report, Failure> {
    let mut service = Service::start("prove").await?;
    let mut columns = Vec::new();
    for way in ways {
        columns.push((*way, suite::run(&mut service, *way).await?));
    }
    let containment = service.containment;
    // The sandbox is tested once.
    let reach = match ways {
        [Way::NormalEnd, ..] => Some(sandbox::run(&service).await?),
        _ => None,
    };
    service.end().await;
    Ok(Report {
        containment,
        reach,
        columns,
    })
}
