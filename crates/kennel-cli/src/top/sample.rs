//! Samples from the server: the runs, and the resource usage of live ones.

use crate::{list, members, terminal_text};
use kennel_client::{Connection, Failure, last_lines};
use kennel_proto::pb;
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};
use tokio::{task::JoinSet, time::Instant};

/// Most runs shown, newest first.
const RUNS_MAX: usize = 5000;
/// Live runs whose usage is requested for each sample: those requested longest ago.
const MEASURED_MAX: usize = 100;
/// Most requests in flight.
const AT_ONCE_MAX: usize = 8;
/// Lines of output on a page.
const LOG_LINES: u64 = 500;

/// State of a node at one moment.
pub(super) struct Sample {
    pub(super) info: pb::ServerInfo,
    pub(super) runs: Vec<SampledRun>,
    /// Whether there are more.
    pub(super) cut: bool,
    /// Number of runs whose records the server cannot read.
    pub(super) unreadable: usize,
    pub(super) at: SystemTime,
}

/// One run.
#[derive(Clone)]
pub(super) struct SampledRun {
    pub(super) run: pb::Run,
    pub(super) usage: RunUsage,
}

/// Resource usage of a run. Absent: not known, or not yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RunUsage {
    pub(super) processes: Option<u32>,
    /// Usage of its living processes, in hundredths of one processor.
    pub(super) cpu_percent: Option<f64>,
    pub(super) memory_bytes: Option<u64>,
    /// Output of both streams together, in bytes per second.
    pub(super) output_rate: Option<f64>,
}

/// Counters of a run at one moment.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub(super) at: Instant,
    /// Processor time by process id and start time.
    pub(super) cpu: BTreeMap<(i32, u64), Duration>,
    /// Processor time of the attempt with this number, of exited processes too; absent: nothing counts it.
    pub(super) group_cpu: Option<(u32, Duration)>,
    pub(super) processes: u32,
    pub(super) memory_bytes: u64,
    pub(super) output_bytes: u64,
}

/// Samples repeatedly, and stores the earlier counters.
pub(super) struct Sampler {
    connection: Connection,
    counted: HashMap<String, (Counted, RunUsage)>,
}

impl Sampler {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            counted: HashMap::new(),
        }
    }

    pub(super) async fn sample(&mut self) -> Result<Sample, Failure> {
        let mut admin = self.connection.admin();
        let info = admin.get_server_info(pb::GetServerInfoRequest {}).await?;
        let info = info.into_inner().server.unwrap_or_default();
        let runs = list::all(&self.connection, pb::RunFilter::default(), RUNS_MAX);
        let listed = runs.await?;
        self.measure(&listed.runs).await;
        let seen = listed.runs.into_iter().map(|run| {
            let usage = self.counted.get(&run.run_id);
            let usage = usage.map(|(_, usage)| *usage).unwrap_or_default();
            SampledRun { run, usage }
        });
        Ok(Sample {
            info,
            runs: seen.collect(),
            cut: listed.is_cut,
            unreadable: listed.unreadable.len(),
            at: now(),
        })
    }

    /// Counts the usage of live runs anew. That of an unreachable run is not known.
    async fn measure(&mut self, runs: &[pb::Run]) {
        let live = runs.iter().filter(|run| run.end_time.is_none());
        let mut live: Vec<&String> = live.map(|run| &run.run_id).collect();
        self.counted.retain(|run, _| live.contains(&run));
        // Runs never counted come first.
        live.sort_by_key(|run| self.counted.get(*run).map(|(counted, _)| counted.at));
        live.truncate(MEASURED_MAX);
        let mut wanted: Vec<String> = live.into_iter().cloned().collect();
        let mut asking = JoinSet::new();
        loop {
            while asking.len() < AT_ONCE_MAX
                && let Some(run) = wanted.pop()
            {
                let connection = self.connection.clone();
                asking.spawn(async move {
                    let counted = count(&connection, &run).await;
                    (run, counted)
                });
            }
            let Some(asked) = asking.join_next().await else {
                return;
            };
            let Ok((run, counted)) = asked else { continue };
            match counted {
                Ok(counted) => {
                    let before = self.counted.get(&run).map(|(before, _)| before);
                    let usage = usage(before, &counted);
                    self.counted.insert(run, (counted, usage));
                }
                Err(_) => drop(self.counted.remove(&run)),
            }
        }
    }
}

async fn count(connection: &Connection, run: &str) -> Result<Counted, Failure> {
    let mut processes = connection.processes();
    let request = pb::GetTreeRequest {
        run_id: run.to_owned(),
    };
    let tree = processes.get_tree(request).await?.into_inner();
    let at = Instant::now();
    let mut output_bytes = 0;
    for stream in [pb::OutputStream::Stdout, pb::OutputStream::Stderr] {
        let request = pb::ReadOutputRequest {
            run_id: run.to_owned(),
            stream: stream.into(),
            bytes_max: 1,
            ..pb::ReadOutputRequest::default()
        };
        let read = processes.read_output(request).await?.into_inner();
        output_bytes += read.end_offset;
    }
    let listed = u32::try_from(tree.processes.len()).unwrap_or(u32::MAX);
    let cpu = tree.processes.iter().filter_map(|process| {
        let time = Duration::try_from(process.cpu_time?).ok()?;
        Some(((process.pid, process.start_ticks), time))
    });
    let attempt = tree.run.and_then(|run| run.current_attempt);
    let group_cpu =
        attempt.and_then(|attempt| Some((attempt.number, cpu_time(attempt.usage.as_deref()?)?)));
    Ok(Counted {
        at,
        cpu: cpu.collect(),
        group_cpu,
        processes: listed.saturating_add(tree.unlisted_processes),
        memory_bytes: tree.processes.iter().map(|p| p.rss_bytes).sum(),
        output_bytes,
    })
}

/// Returns the processor time that the kernel has counted for the control group of an attempt.
fn cpu_time(usage: &pb::Usage) -> Option<Duration> {
    let user = Duration::try_from(usage.cpu_user_time?).ok()?;
    Some(user + Duration::try_from(usage.cpu_system_time?).ok()?)
}

/// Returns the usage between two counts. Where the kernel counts for the control group, that includes exited processes.
/// Elsewhere a process that started since counts with all that it has used; an exited one with nothing, since its usage
/// is unknown.
pub(super) fn usage(before: Option<&Counted>, now: &Counted) -> RunUsage {
    let since = before.map(|before| (before, now.at.saturating_duration_since(before.at)));
    let since = since.filter(|(_, span)| !span.is_zero());
    let rates = since.map(|(before, span)| {
        let each = now.cpu.iter().map(|(process, time)| {
            let then = before.cpu.get(process).copied().unwrap_or_default();
            time.saturating_sub(then).as_secs_f64()
        });
        let used = match (before.group_cpu, now.group_cpu) {
            (Some((of, before)), Some((attempt, now))) if of == attempt => {
                now.saturating_sub(before).as_secs_f64()
            }
            _ => each.sum(),
        };
        let written = now.output_bytes.saturating_sub(before.output_bytes);
        #[expect(clippy::cast_precision_loss, reason = "it is shown with three digits")]
        let written = written as f64;
        let span = span.as_secs_f64();
        (100.0 * used / span, written / span)
    });
    RunUsage {
        processes: Some(now.processes),
        cpu_percent: rates.map(|(cpu, _)| cpu),
        memory_bytes: Some(now.memory_bytes),
        output_rate: rates.map(|(_, output)| output),
    }
}

/// Formats the processes of a run, line by line.
pub(super) async fn tree(connection: &Connection, run: &str) -> Result<Vec<String>, Failure> {
    let request = pb::GetTreeRequest {
        run_id: run.to_owned(),
    };
    let tree = connection.processes().get_tree(request).await?.into_inner();
    let lines = members::render(&tree);
    let lines: Vec<String> = lines.lines().map(terminal_text::one_line).collect();
    if lines.is_empty() {
        return Ok(vec!["no process is there".to_owned()]);
    }
    Ok(lines)
}

/// Returns the last lines that a run has written.
pub(super) async fn logs(connection: &Connection, run: &str) -> Result<Vec<String>, Failure> {
    let lines = last_lines(connection, run, LOG_LINES).await?.into_iter();
    let mut lines: Vec<String> = lines
        .map(|line| terminal_text::one_line(&line.text))
        .collect();
    if lines.is_empty() {
        lines.push("it has written no line".to_owned());
    }
    Ok(lines)
}

pub(super) fn now() -> SystemTime {
    SystemTime::now()
}
