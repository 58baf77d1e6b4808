//! A row in which a run's input is written: by a client that repeats each unanswered call.

use super::{
    row::{Row, arm, await_death},
    service::Service,
    table::Victim,
};
use kennel_proto::pb::RunState;
use kennel_tests::{Client, Footprint, RunExt, SpecExt, complaint, fact, must, sh};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::{Code, Status};

/// Between two tries of a call that was not answered.
const AGAIN: Duration = Duration::from_millis(10);

const LINES: [(&str, &str); 3] = [("a", "one\n"), ("b", "two\n"), ("c", "three\n")];

pub(crate) async fn play(row: Row, service: &mut Service) {
    let mut spec = sh("echo up; cat; echo bye").open_input();
    spec.set_recovery(row.recovery);
    let mut client = service.kennel.client().await;
    let run_id = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run_id, "up\n").await;
    must("write", client.write(&run_id, "a", None, b"one\n").await);
    client.hear_text(&run_id, "one\n").await;

    arm(service.points(), &row);
    let socket = service.kennel.socket();
    let writing = tokio::spawn(write_all(socket, run_id.clone()));
    await_death(service.points(), &row).await;
    service.kennel.serve_again().await;
    let written = must("the writer", writing.await);

    let mut client = service.kennel.client().await;
    let continues = row.victim == Victim::Server || row.adopts();
    // If the keeper dies between recording intent and count, the bytes written are unknown.
    let in_doubt = ["keeper.input", "keeper.input_written"].contains(&row.point);
    if continues && (row.victim == Victim::Server || !in_doubt) {
        must("all is written", written);
    } else if continues {
        let refused = written.expect_err("how far it has come is not known");
        assert_eq!(complaint(&refused).reason, "INPUT_OFFSET_UNKNOWN");
        assert_eq!(fact(&refused, "accepted_least"), "4");
        let status = must("status", client.input(&run_id).await);
        assert_eq!(status.accepted_offset, None);
        // Closing input without an offset still ends the run.
        must("close", client.close_input(&run_id, None).await);
    }
    let run = must("ended", client.ended(&run_id).await);
    Footprint::of_run(&run).assert_nothing_left();
    let heard = must("stream", client.hear_all(&run_id, 0).await);
    let said = heard.text();
    let wanted = "up\none\ntwo\nthree\nbye\n";
    if continues && !in_doubt || row.victim == Victim::Server {
        assert_eq!(said, wanted);
        assert_eq!((run.state(), run.code()), (RunState::Succeeded, Some(0)));
        let status = must("status", client.input(&run_id).await);
        assert_eq!(status.accepted_offset, Some(14));
    } else if continues {
        // Input bytes arrive at most once, in order.
        let got = said.strip_suffix("bye\n").expect("it found the end");
        assert!(wanted.starts_with(got) && got.len() >= 7, "{said:?}");
    }
}

#[derive(Clone, Copy)]
enum Ask {
    Write(&'static str, &'static str),
    Close,
}

async fn write_all(socket: PathBuf, run_id: String) -> Result<(), Status> {
    for (id, line) in LINES {
        asked(&socket, &run_id, Ask::Write(id, line)).await?;
    }
    asked(&socket, &run_id, Ask::Close).await
}

fn has_taken_all(status: &Status) -> bool {
    complaint(status).reason == "RUN_ENDED" && fact(status, "accepted_offset") == "14"
}

/// Repeats until the call is answered or refused.
async fn asked(socket: &Path, run_id: &str, ask: Ask) -> Result<(), Status> {
    loop {
        if let Ok(mut client) = Client::connect(socket).await {
            let answered = match ask {
                Ask::Write(id, line) => {
                    let written = client.write(run_id, id, None, line.as_bytes()).await;
                    written.map(|_| ())
                }
                Ask::Close => client.close_input(run_id, Some(14)).await.map(|_| ()),
            };
            match answered {
                Err(status) if complaint(&status).reason.is_empty() => {}
                Err(status) if status.code() == Code::Unavailable => {}
                // The first CloseInput took effect before this repeat.
                Err(status) if matches!(ask, Ask::Close) && has_taken_all(&status) => return Ok(()),
                answered => return answered,
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}
