//! The file of a command, and why there is none.

use crate::base::{
    calls::CallError,
    look::{LOOK_MAX, LOOKS, Late, look, unanswered},
};
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
