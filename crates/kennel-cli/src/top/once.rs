//! `top --once`: one sample of the live runs and their resource usage, as a table or as documents.

use super::{
    draw::{percent, whole},
    sample::{Sample, SampledRun, Sampler},
};
use crate::{
    command,
    failure::{Failure, note},
    link::{Link, print_exact, refused},
    render, sentence,
    table::{self, Cell, in_colour},
    top::TopArgs,
    values::short_bytes as bytes,
    words,
};
use serde_json::json;
use std::time::{Duration, SystemTime};

/// Time between the two counts whose difference is the processor usage.
const COUNTS_FOR: Duration = Duration::from_millis(500);
/// Widest command shown; a longer one is cut.
const COMMAND_WIDTH_MAX: usize = 60;

pub(super) async fn once(link: &Link, args: &TopArgs) -> Result<(), Failure> {
    let mut sampler = Sampler::new(link.connection.clone());
    sampler.sample().await.map_err(refused)?;
    for look in 0..args.iterations {
        let pause = if look == 0 { COUNTS_FOR } else { args.every };
        tokio::time::sleep(pause).await;
        let Sample {
            mut runs,
            unreadable,
            at,
            ..
        } = sampler.sample().await.map_err(refused)?;
        runs.retain(|seen| seen.run.end_time.is_none());
        print_exact(&shown(link, &runs, at))?;
        if unreadable > 0 {
            note(&format_args!(
                "records that cannot be read here, whose runs are left out: {unreadable}; kennel ps --all names them"
            ));
        }
    }
    Ok(())
}

fn shown(link: &Link, seen: &[SampledRun], at: SystemTime) -> String {
    if link.format.is_text() {
        let heading = [
            "RUN", "STATE", "READY", "ACTIVITY", "PROCS", "CPU%", "MEMORY", "OUTPUT/S", "COMMAND",
        ];
        let rows = seen.iter().map(|seen| row(seen, at)).collect();
        return table::table(&heading, rows, in_colour());
    }
    let documents = seen
        .iter()
        .map(|seen| link.format.document(&document(seen, at)));
    documents.collect()
}

fn row(seen: &SampledRun, at: SystemTime) -> Vec<Cell> {
    let usage = &seen.usage;
    vec![
        Cell::from(&seen.run.run_id),
        render::state_cell(&seen.run, at),
        Cell::or_dash(render::ready(&seen.run)),
        Cell::from(sentence::activity(seen.run.activity())),
        Cell::or_dash(usage.processes),
        Cell::from(percent(usage.cpu_percent)),
        Cell::or_dash(usage.memory_bytes.map(bytes)),
        Cell::or_dash(usage.output_rate.map(whole).map(bytes)),
        Cell::from(table::cut(&command::or_dash(&seen.run), COMMAND_WIDTH_MAX)),
    ]
}

fn document(seen: &SampledRun, at: SystemTime) -> String {
    let usage = &seen.usage;
    json!({
        "runId": seen.run.run_id,
        "state": words::state(seen.run.state()),
        "waitsFor": render::waits_for(&seen.run, at),
        "ready": render::ready(&seen.run).map(|word| word == "yes"),
        "activity": sentence::activity(seen.run.activity()),
        "processes": usage.processes,
        "cpuPercent": usage.cpu_percent,
        "memoryBytes": usage.memory_bytes,
        "outputBytesPerSecond": usage.output_rate,
    })
    .to_string()
}
