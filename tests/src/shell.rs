//! Programs that a test runs to their end, with a deadline.

use crate::{
    PATIENCE,
    kennel::{bare_command, pid_of, spawn_waited_for, was_waited_for},
    programs,
    wait::eventually,
};
use std::{
    io::Read,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

/// Runs a program to its end and returns its output.
///
/// # Panics
/// If it cannot be started or does not end in time; then it is killed.
pub async fn run_to_end(mut command: Command, limit: Duration) -> Output {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = spawn_waited_for(&mut command)
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    finish(child, &format!("{command:?}"), limit).await
}

/// Runs the command line in a directory, which has its configuration too, to its end.
///
/// # Panics
/// As [`run_to_end`].
pub async fn kennel_in(dir: &Path, words: &[&str]) -> Output {
    let mut command = bare_command(&programs::kennel());
    command.current_dir(dir).args(words);
    command
        .env("XDG_CONFIG_HOME", dir.join("config"))
        .env_remove("KENNEL_SERVER");
    run_to_end(command, PATIENCE).await
}

/// Waits for the end of a program whose outputs are pipes.
///
/// # Panics
/// If it does not end in time; then it is killed.
pub async fn finish(child: Child, what: &str, limit: Duration) -> Output {
    let mut guard = EndOnDrop(child);
    let stdout = drain(guard.0.stdout.take());
    let stderr = drain(guard.0.stderr.take());
    let status = eventually(what, limit, || {
        guard.0.try_wait().expect("own child can be waited for")
    })
    .await;
    Output {
        status,
        stdout: stdout.join().expect("reader ends"),
        stderr: stderr.join().expect("reader ends"),
    }
}

/// A child that does not outlive its test.
struct EndOnDrop(Child);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
        was_waited_for(pid_of(&self.0));
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A failed read still returns all bytes before it.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Returns standard output as text, without the last newline.
#[must_use]
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}
