//! Clients in other languages, from stubs that their own tools generate from `proto/`, against the real binary.

use kennel_edge::pb::{self, RunState};
use kennel_tests::{
    Footprint, Kennel, RunExt, must, programs,
    shell::{run_to_end, text},
};
use std::{process::Command, time::Duration};

/// Generating stubs and importing grpc takes seconds on a busy machine.
const CLIENT_PATIENCE: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_spawns_streams_resumes_and_aborts() {
    let kennel = Kennel::on_sqlite().await;
    let stubs = kennel.scratch().join("stubs");
    std::fs::create_dir(&stubs).expect("a directory can be made");
    let repository = programs::repository();
    let mut generate = Command::new(programs::python());
    generate
        .args(["-m", "grpc_tools.protoc"])
        .arg(format!("-I{}", repository.join("proto").display()))
        .arg(format!("--python_out={}", stubs.display()))
        .arg(format!("--grpc_python_out={}", stubs.display()));
    let files =
        std::fs::read_dir(repository.join("proto/kennel/v1")).expect("the contract is there");
    for file in files {
        let name = file.expect("an entry").file_name();
        if name.to_string_lossy().ends_with(".proto") {
            generate.arg(format!("kennel/v1/{}", name.to_string_lossy()));
        }
    }
    let generated = run_to_end(generate, CLIENT_PATIENCE).await;
    assert!(
        generated.status.success(),
        "{}",
        String::from_utf8_lossy(&generated.stderr)
    );

    let mut client = Command::new(programs::python());
    client
        .arg(repository.join("tests/clients/python/client.py"))
        .arg(kennel.address())
        .env("PYTHONPATH", &stubs);
    let output = run_to_end(client, CLIENT_PATIENCE).await;
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output),
        String::from_utf8_lossy(&output.stderr)
    );

    let run_id = text(&output)
        .lines()
        .last()
        .expect("it prints the run's id")
        .to_owned();
    let mut client = kennel.client().await;
    let run = must("get", client.get(&run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert_eq!(
        must("list", client.list_all(pb::RunFilter::default(), 0).await).len(),
        2
    );
    Footprint::of_id(&run_id).assert_nothing_left();
}
