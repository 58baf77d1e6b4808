//! A witness of what really lives: commands report to it over connections that end with them. It has no knowledge of
//! Kennel, and learns a death from the kernel alone.

use crate::procfs::Proc;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

/// A message of a process to the witness: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It is a process of this run, its leader or another one.
    Lives {
        /// The run.
        run: String,
        /// Whether it is the run's command.
        is_leader: bool,
    },
    /// It has written so many bytes to its standard output.
    Wrote(usize),
    /// It got a signal.
    Signalled {
        /// Name of the signal, such as `SIGTERM`.
        signal: String,
        /// Process that sent it, as the kernel has it.
        sender: i32,
    },
    /// It exits with this code, as its last act.
    Exits(i32),
}

impl Report {
    /// Returns it as a line.
    #[must_use]
    pub fn to_line(&self) -> String {
        match self {
            Self::Lives { run, is_leader } => format!("lives {run} {is_leader}\n"),
            Self::Wrote(bytes) => format!("wrote {bytes} -\n"),
            Self::Signalled { signal, sender } => format!("signal {signal} {sender}\n"),
            Self::Exits(code) => format!("exits {code} -\n"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (kind, first, second) = (words.next()?, words.next()?, words.next()?);
        Some(match kind {
            "lives" => Self::Lives {
                run: first.to_owned(),
                is_leader: second == "true",
            },
            "wrote" => Self::Wrote(first.parse().ok()?),
            "signal" => Self::Signalled {
                signal: first.to_owned(),
                sender: second.parse().ok()?,
            },
            "exits" => Self::Exits(first.parse().ok()?),
            _ => return None,
        })
    }
}

/// One process, as the witness has seen it.
#[derive(Clone, Debug)]
pub struct Life {
    /// The process.
    pub proc: Proc,
    /// Whether it is the run's command.
    pub is_leader: bool,
    /// Bytes that it has reported as written.
    pub written: usize,
    /// Signals that it got, with their senders.
    pub signals: Vec<(String, i32)>,
    /// Code with which it said that it exits.
    pub exit: Option<i32>,
    /// When the witness saw that it was dead.
    pub died: Option<Instant>,
}

impl Life {
    /// Returns how often it got this signal.
    #[must_use]
    pub fn count(&self, signal: &str) -> usize {
        let got = self.signals.iter().filter(|(got, _)| got == signal);
        got.count()
    }
}

type Lives = BTreeMap<String, Vec<Life>>;

/// The witness. Processes that still report to it when it is dropped exit.
pub struct Witness {
    dir: TempDir,
    lives: Arc<Mutex<Lives>>,
    listening: JoinHandle<()>,
}

impl Witness {
    /// Begins to listen.
    ///
    /// # Panics
    /// If it has no directory of its own.
    #[must_use]
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-witness-").tempdir();
        let dir = dir.expect("a temporary directory can be made");
        let listener = UnixListener::bind(dir.path().join("s")).expect("own directory");
        let lives = Arc::new(Mutex::new(Lives::new()));
        let listening = tokio::spawn(listen(listener, Arc::clone(&lives)));
        Self {
            dir,
            lives,
            listening,
        }
    }

    /// Returns the socket at which processes report.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Returns the processes of a run, in the order in which they came.
    #[must_use]
    pub fn of_run(&self, run: &str) -> Vec<Life> {
        lock(&self.lives).get(run).cloned().unwrap_or_default()
    }

    /// Returns all runs of which a process has lived.
    #[must_use]
    pub fn runs(&self) -> Vec<String> {
        lock(&self.lives).keys().cloned().collect()
    }

    /// Returns how many processes live, as far as it has seen.
    #[must_use]
    pub fn living(&self) -> usize {
        let lives = lock(&self.lives);
        let living = lives.values().flatten().filter(|life| life.died.is_none());
        living.count()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn lock(lives: &Mutex<Lives>) -> MutexGuard<'_, Lives> {
    lives.lock().expect("no holder panics")
}

async fn listen(listener: UnixListener, lives: Arc<Mutex<Lives>>) {
    // Dropping this task ends all its connections.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(follow(stream, Arc::clone(&lives)));
        while connections.try_join_next().is_some() {}
    }
}

/// Follows one process to its death.
async fn follow(stream: UnixStream, lives: Arc<Mutex<Lives>>) {
    let Some(pid) = stream.peer_cred().ok().and_then(|peer| peer.pid()) else {
        return;
    };
    let (reader, mut writer) = stream.into_split();
    let mut reports = BufReader::new(reader).lines();
    let Ok(Some(first)) = reports.next_line().await else {
        return;
    };
    let (Some(Report::Lives { run, is_leader }), Some(proc)) =
        (Report::parse(&first), Proc::read(pid))
    else {
        return;
    };
    let at = {
        let mut lives = lock(&lives);
        let of_run = lives.entry(run.clone()).or_default();
        of_run.push(Life {
            proc: proc.clone(),
            is_leader,
            written: 0,
            signals: Vec::new(),
            exit: None,
            died: None,
        });
        of_run.len() - 1
    };
    let note = |change: &dyn Fn(&mut Life)| {
        let mut lives = lock(&lives);
        if let Some(life) = lives.get_mut(&run).and_then(|of_run| of_run.get_mut(at)) {
            change(life);
        }
    };
    let _ = writer.write_all(b"!").await;
    while let Ok(Some(line)) = reports.next_line().await {
        match Report::parse(&line) {
            Some(Report::Wrote(bytes)) => note(&|life| life.written = bytes),
            Some(Report::Signalled { signal, sender }) => {
                note(&|life| life.signals.push((signal.clone(), sender)));
            }
            Some(Report::Exits(code)) => note(&|life| life.exit = Some(code)),
            Some(Report::Lives { .. }) | None => {}
        }
    }
    note(&|life| life.died = Some(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PATIENCE, eventually, programs};
    use std::process::{Command, Stdio};

    #[test]
    fn witness_report_round_trips() {
        for report in [
            Report::Lives {
                run: "01J".to_owned(),
                is_leader: true,
            },
            Report::Wrote(4096),
            Report::Signalled {
                signal: "SIGTERM".to_owned(),
                sender: 7,
            },
            Report::Exits(3),
        ] {
            let line = report.to_line();
            assert_eq!(Report::parse(line.trim_end()), Some(report));
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn witness_records_signals_output_and_exit() {
        let witness = Witness::start();
        let socket = witness.socket().display().to_string();
        let mut child = Command::new(programs::naughty())
            .args(["witnessed", &socket, "60000", "3", "5000"])
            .env("KENNEL_RUN_ID", "01JWITNESS")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let leader = || {
            let lives = witness.of_run("01JWITNESS");
            lives.into_iter().find(|life| life.is_leader)
        };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("small"));
        eventually("it writes", PATIENCE, || {
            leader().filter(|life| life.written == 5000)
        })
        .await;
        for _ in 0..2 {
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("own child");
            eventually("it is noticed", PATIENCE, || {
                leader().filter(|life| life.count("SIGINT") > 0)
            })
            .await;
        }
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("own child");
        let dead = eventually("it exits", PATIENCE, || {
            leader().filter(|life| life.died.is_some())
        })
        .await;
        assert_eq!(child.wait().expect("own child").code(), Some(7));
        assert_eq!((dead.exit, dead.count("SIGTERM")), (Some(7), 1));
        let own = i32::try_from(std::process::id()).expect("small");
        assert!(dead.signals.iter().all(|(_, sender)| *sender == own));
        assert!(!dead.proc.is_alive());
    }
}
