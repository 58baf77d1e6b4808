//! The file of a command, and why there is none.

use super::child_env;
use crate::{
    base::{
        calls::{CallError, SpawnCall},
        look::{LOOK_MAX, LOOKS, Late, look, unanswered},
    },
    registry::Supervisor,
};
use kennel_keeper::{notify_place::NotifyPlace, rundir};
use kennel_lifecycle::{CommandSpec, RunId, StartFailure, StartStage};
use kennel_linux::resolve::{self, ResolveError};
use std::path::PathBuf;
use tokio::time::Instant;

/// Finds the file to execute. Where the kernel has the path in memory the answer is immediate; else a look is taken
/// beside this task, for a limited time: a file system may not answer.
pub(super) async fn executable(
    run: RunId,
    command: &CommandSpec,
    path: Option<&str>,
) -> Result<PathBuf, CallError> {
    let (argv0, cwd) = (&command.argv[0], command.working_dir());
    if let Some(found) = resolve::executable_in_memory(argv0, cwd, path) {
        return found.map_err(|e| not_found(run, e));
    }
    let (name, cwd, path) = (argv0.clone(), cwd.to_owned(), path.map(str::to_owned));
    let look = look(&LOOKS, Instant::now() + LOOK_MAX, move || {
        resolve::executable(name, &cwd, path.as_deref())
    });
    match look.await {
        Ok(Ok(found)) => found.map_err(|e| not_found(run, e)),
        Ok(Err(error)) => Err(CallError::Internal(error.to_string())),
        Err(Late) => {
            let path = unanswered(argv0.display(), LOOK_MAX);
            Err(not_executable(run, path, None))
        }
    }
}

pub(super) fn path_in(env: &[(String, String)]) -> Option<&str> {
    let mut variables = env.iter();
    let path = variables.find(|(name, _)| name == "PATH");
    path.map(|(_, value)| value.as_str())
}

/// A search for a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSearch {
    /// PATH of the command.
    pub path_variable: Option<String>,
    /// Paths that were looked at, in order: whether each can be executed, or that there is no file, or no answer. The
    /// search ends with the first that can be.
    pub searched: Vec<(PathBuf, SearchedFile)>,
}

/// What is at a path at which a command was searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchedFile {
    /// A file that can be executed.
    Executable,
    /// Nothing.
    Absent,
    /// A file or directory that cannot be executed.
    NotExecutable,
    /// The file system did not answer in time.
    NoAnswer,
}

impl Supervisor {
    /// Searches for the command of a spec as a Spawn would now.
    pub async fn find_command(&self, call: &SpawnCall) -> CommandSearch {
        let run = self.shared.next_id();
        let run_dir = rundir::path(&self.shared.config.data_dir, run);
        let policy = &call.spec.policy;
        let notify = NotifyPlace::of(self.shared.config.node, run, &run_dir, policy);
        let env = child_env(&self.shared, run, (&run_dir, &notify), call);
        search(&call.spec.command, path_in(&env).map(str::to_owned)).await
    }
}

/// Searches for a command as [`executable`] does, and notes each place.
async fn search(command: &CommandSpec, path_variable: Option<String>) -> CommandSearch {
    let path = path_variable.as_deref();
    let candidates = resolve::candidates(&command.argv[0], command.working_dir(), path);
    let until = Instant::now() + LOOK_MAX;
    let mut searched = Vec::new();
    for candidate in candidates {
        let asked = candidate.clone();
        let found = match look(&LOOKS, until, move || resolve::is_executable(&asked)).await {
            Ok(Ok(Some(true))) => SearchedFile::Executable,
            Ok(Ok(None)) => SearchedFile::Absent,
            Ok(_) => SearchedFile::NotExecutable,
            Err(Late) => SearchedFile::NoAnswer,
        };
        searched.push((candidate, found));
        if let SearchedFile::Executable | SearchedFile::NoAnswer = found {
            break;
        }
    }
    CommandSearch {
        path_variable,
        searched,
    }
}

fn not_executable(run: RunId, path: String, errno: Option<i32>) -> CallError {
    CallError::SpawnFailed {
        run,
        failure: StartFailure {
            stage: StartStage::Exec,
            errno,
            path: Some(path),
        },
    }
}

fn not_found(run: RunId, error: ResolveError) -> CallError {
    match error {
        ResolveError::NotFound { command, looked_in } => CallError::CommandNotFound {
            looked_in: places(&command, &looked_in),
            command,
        },
        ResolveError::NotExecutable { path, errno } => {
            not_executable(run, path.display().to_string(), Some(errno))
        }
    }
}

/// Lists the directories that were searched, or the one path that was named; each once.
fn places(command: &str, looked_in: &[PathBuf]) -> Vec<String> {
    let named = command.contains('/');
    let mut places = Vec::new();
    for path in looked_in {
        let place = if named {
            Some(path.as_path())
        } else {
            path.parent()
        };
        let place = place.unwrap_or(path).display().to_string();
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}
