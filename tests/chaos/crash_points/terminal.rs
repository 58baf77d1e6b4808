//! A row in which a command writes to its terminal, whose size is changed: by a client that repeats each unanswered
//! call.

use super::{
    row::{Row, arm, await_death},
    service::Service,
};
use kennel_proto::pb::{self, RunState};
use kennel_tests::{Client, RunExt, SpecExt, must, sh};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::Code;

/// Between two tries of a call that was not answered.
const AGAIN: Duration = Duration::from_millis(10);

pub(crate) async fn play(row: Row, service: &mut Service) {
    let dir = service.fresh_dir();
    let go = dir.join("go");
    let script = format!(
        "stty -opost; echo up; n=0; while [ ! -e {} ]; do n=$((n + 1)); echo $n; sleep 0.01; done; echo bye",
        go.display()
    );
    let spec = sh(&script).on_terminal(pb::Terminal::default());
    let mut client = service.kennel.client().await;
    let run_id = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run_id, "\n3\n").await;

    arm(service.points(), &row);
    let resizing = tokio::spawn(resize(service.kennel.socket(), run_id.clone()));
    await_death(service.points(), &row).await;
    service.kennel.serve_again().await;
    must("the client", resizing.await);
    fs::write(&go, "").expect("it can be written");

    let mut client = service.kennel.client().await;
    let run = must("ended", client.ended(&run_id).await);
    assert_eq!((run.state(), run.code()), (RunState::Succeeded, Some(0)));
    let heard = must("stream", client.hear_all(&run_id, 0).await);
    let text = heard.text();
    let lines: Vec<&str> = text.lines().collect();
    let numbers = (1..=lines.len() - 2).map(|n| n.to_string());
    let wanted: Vec<String> = ["up".to_owned()].into_iter().chain(numbers).collect();
    assert_eq!(
        (&lines[..lines.len() - 1], lines.last()),
        (
            &wanted.iter().map(String::as_str).collect::<Vec<_>>()[..],
            Some(&"bye")
        )
    );
    assert_eq!(heard.terminal_sizes(), [(40, 120), (24, 80)]);
}

/// Repeats until a server has confirmed the size.
async fn resize(socket: PathBuf, run_id: String) {
    loop {
        if let Ok(()) = resize_once(&socket, &run_id).await {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn resize_once(socket: &Path, run_id: &str) -> Result<(), ()> {
    let mut client = Client::connect(socket).await.map_err(|_| ())?;
    match client.resize(run_id, 24, 80).await {
        Ok(_) => Ok(()),
        Err(status) => {
            let lost = [
                Code::Unavailable,
                Code::Cancelled,
                Code::Unknown,
                Code::Internal,
            ];
            assert!(lost.contains(&status.code()), "{status:?}");
            Err(())
        }
    }
}
