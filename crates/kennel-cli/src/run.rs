//! `kennel run`: starts a command and stays with it, as if it were a child process.

use super::{
    attach::{self, Left, Manner},
    link::{Link, print_exact, refused, run_of},
    run_input,
    run_signals::{Forwarder, end},
    sink::Sink,
};
use crate::{
    detach_keys::DetachKeys,
    exit::{Exit, OWN_FAILURE, exit_of_ended, known, reported_by_reason},
    failure::Failure,
};
use kennel_client::{self as client, EventReader, Start};
use kennel_proto::{
    json,
    pb::{self, event::Payload, lifecycle::Station},
};
use std::io::{self, IsTerminal as _};
use tokio_util::task::AbortOnDropHandle;

const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Signal of a command whose reader went away.
const SIGPIPE: u8 = 13;

/// Runs the command to its end and returns the exit of this process. The thread that reads standard input leaves it
/// open where this process ends first.
pub async fn run(link: &Link, mut request: pb::SpawnRequest) -> Result<Exit, Failure> {
    if let Some(spec) = &mut request.spec {
        attach::size_as_ours(spec);
    }
    let reads_pipe = request.spec.as_ref().is_some_and(run_input::is_open);
    let on_terminal = request
        .spec
        .as_ref()
        .is_some_and(|spec| spec.kind() == pb::RunKind::Terminal);
    // In a pipeline the terminal's output is plain bytes, as with script(1).
    let shows_terminal = on_terminal && link.format.is_text() && io::stdout().is_terminal();
    // With its own terminal the command gets Ctrl-Z as a key.
    let forward = |run_id: &str| Forwarder::start(&link.connection, run_id, !shows_terminal);
    // With a key or a name, only the answer identifies the run.
    let is_known = !request.run_id.is_empty() && request.on_name_conflict == 0;
    let early = is_known.then(|| forward(&request.run_id)).transpose()?;
    let run_id = match Box::pin(link.connection.call(request.clone())).await {
        Ok(answer) => run_of(answer.run)?.run_id,
        Err(refusal) => {
            let ended_by = early.as_ref().and_then(Forwarder::ended_by);
            return match ended_by {
                // This process ended the run before the command started; there is nothing to explain after Ctrl-C.
                Some(signal) if refusal.is("RUN_STOPPED") || refusal.is("RUN_FENCED") => {
                    Ok(Exit::Signal(signal))
                }
                _ => Err(not_started(&refusal)),
            };
        }
    };
    let forwarder = match early {
        Some(forwarder) => forwarder,
        None => forward(&run_id)?,
    };
    if shows_terminal {
        let mut manner = Manner {
            is_command: true,
            ..Manner::default()
        };
        if link.own {
            // A detached run would end with its own service.
            manner.keys = DetachKeys::none();
        }
        let left = attach::stay(link, &run_id, manner).await;
        let result = match left {
            Ok(Left::Detached) => Ok(Exit::Code(0)),
            Ok(Left::Ended) => exit_of_ended(link, &run_id).await,
            Err(failure) => cut_off(link, &run_id, failure).await,
        };
        return result.map(|exit| forwarder.own(exit));
    }
    let input = (reads_pipe || on_terminal).then(|| {
        let (connection, run_id) = (link.connection.clone(), run_id.clone());
        AbortOnDropHandle::new(tokio::spawn(run_input::forward(
            connection,
            run_id,
            on_terminal,
        )))
    });
    let ends = match stream(link, &run_id, ends_with_keeper(&request)).await {
        Ok(ends) => ends,
        Err(failure) => return cut_off(link, &run_id, failure).await,
    };
    drop(input);
    if let Some(failure) = reported_by_reason(&ends.reason, &run_id) {
        return Err(failure);
    }
    let exit = match ends.exit {
        Some(exit) => known(&exit, &run_id),
        None => exit_of_ended(link, &run_id).await,
    };
    exit.map(|exit| forwarder.own(exit))
}

/// Handles output that cannot be written, or that of the run that cannot be read. A command whose output has no reader
/// is ended, as in a pipeline of a shell; one whose output cannot be read continues.
async fn cut_off(link: &Link, run_id: &str, failure: Failure) -> Result<Exit, Failure> {
    if failure.is_of_output() {
        end(&link.connection, run_id, false).await;
    }
    match failure {
        gone if gone.is_quiet() => Ok(Exit::Signal(SIGPIPE)),
        failed if failed.is_of_output() => Err(failed.code(OWN_FAILURE)),
        lost => Err(lost
            .code(OWN_FAILURE)
            .hint(format!("the run may continue: kennel get {run_id}"))),
    }
}

/// End of a run, as far as events show it.
#[derive(Default)]
struct Ends {
    /// Exit of the leader.
    exit: Option<pb::Exit>,
    /// The end reason by the name of its field.
    reason: String,
}

/// Copies the run's output until it has ended.
async fn stream(link: &Link, run_id: &str, ends_with_keeper: bool) -> Result<Ends, Failure> {
    let mut reader = EventReader::new(&link.connection, run_id, Start::Beginning);
    reader.ends_with_service = ends_with_keeper;
    let mut sink = Sink::default();
    let mut ends = Ends::default();
    while let Some(message) = reader.next().await.map_err(refused)? {
        let is_text = link.format.is_text();
        if !is_text {
            print_exact(&link.format.document(&json::to_string(&message)))?;
        }
        for event in message.run_events.into_iter().flat_map(|e| e.events) {
            match event.payload {
                Some(Payload::Output(output)) if is_text => {
                    sink.write(&output)?;
                }
                Some(Payload::Gap(gap)) if is_text => sink.skip(&gap),
                Some(Payload::Lifecycle(pb::Lifecycle {
                    station: Some(Station::LeaderExited(end)),
                })) => ends.exit = end.exit,
                Some(Payload::Lifecycle(pb::Lifecycle {
                    station: Some(Station::Ended(ended)),
                })) => ends.reason = ended.reason,
                _ => {}
            }
        }
    }
    Ok(ends)
}

/// Whether the run is ended when its keeper dies: then there is no server to wait for.
fn ends_with_keeper(request: &pb::SpawnRequest) -> bool {
    let Some(spec) = &request.spec else {
        return false;
    };
    match spec.recovery() {
        pb::RecoveryPolicy::Adopt => false,
        pb::RecoveryPolicy::Terminate => true,
        pb::RecoveryPolicy::Unspecified => spec.kind() != pb::RunKind::Service,
    }
}

/// Returns a shell's codes for a command that cannot be started.
fn not_started(refusal: &client::Failure) -> Failure {
    let fact = |key: &str| refusal.metadata.get(key).map(String::as_str);
    let code = start_code(refusal.reason.as_deref(), fact("stage"), fact("errno"));
    refused(refusal.clone()).code(code)
}

fn start_code(reason: Option<&str>, stage: Option<&str>, errno: Option<&str>) -> u8 {
    let at_exec = stage.is_some_and(|s| s.eq_ignore_ascii_case("exec"));
    match reason {
        Some("COMMAND_NOT_FOUND") => NOT_FOUND,
        // ENOENT: the file vanished after its path was resolved, or its interpreter is missing.
        Some("SPAWN_FAILED") if at_exec && errno == Some("2") => NOT_FOUND,
        Some("SPAWN_FAILED") if at_exec => NOT_EXECUTABLE,
        _ => OWN_FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: C-2
    #[test]
    fn failed_start_has_exit_codes_of_shells() {
        let failed = Some("SPAWN_FAILED");
        assert_eq!(start_code(Some("COMMAND_NOT_FOUND"), None, None), 127);
        assert_eq!(start_code(failed, Some("EXEC"), Some("2")), 127);
        assert_eq!(start_code(failed, Some("EXEC"), Some("13")), 126);
        assert_eq!(start_code(failed, Some("WORK_DIR"), Some("2")), 125);
        assert_eq!(start_code(Some("STORE_UNAVAILABLE"), None, None), 125);
        assert_eq!(start_code(None, None, None), 125);
    }
}
