//! Actions on selected runs: over two nodes, with the death of a server in between, and by the command line.

use kennel_proto::pb::{
    self, RunState, for_each_run_request::Action, for_each_run_response::Part, run_outcome::Outcome,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, SpecExt, argv, complaint, must, sh,
    shell::{run_to_end, text},
};
use std::collections::BTreeMap;
use tonic::{Code, Status, Streaming};

const COMPANIES: [&str; 3] = ["acme", "bolt", "crux"];
/// Runs of each company at each node.
const EACH: usize = 50;
/// Runs that are spawned during an action on others.
const MEANWHILE: usize = 20;

async fn spawn(client: &mut Client, company: &str) -> String {
    let request = pb::SpawnRequest {
        spec: Some(argv(&["sleep", "600"]).label("company", company)),
        ..pb::SpawnRequest::default()
    };
    let spawned = must("spawn", client.process.spawn(request).await);
    spawned.into_inner().run.expect("a run").run_id
}

fn of(company: &str, action: Action) -> pb::ForEachRunRequest {
    pb::ForEachRunRequest {
        filter: Some(pb::RunFilter {
            labels: [("company".to_owned(), company.to_owned())].into(),
            ..pb::RunFilter::default()
        }),
        action: Some(action),
        ..pb::ForEachRunRequest::default()
    }
}

/// Everything that was answered before the stream ended or broke.
#[derive(Default)]
struct Answered {
    matched: pb::MatchedRuns,
    outcomes: BTreeMap<String, pb::RunOutcome>,
    summary: Option<pb::ForEachRunSummary>,
}

impl Answered {
    fn count(&self, outcome: Outcome) -> usize {
        let all = self.outcomes.values();
        all.filter(|one| one.outcome() == outcome).count()
    }
}

async fn for_each(client: &mut Client, request: pb::ForEachRunRequest) -> Result<Answered, Status> {
    let mut stream = client.process.for_each_run(request).await?.into_inner();
    let mut answered = Answered::default();
    while let Ok(Some(message)) = stream.message().await {
        match message.part.expect("a part") {
            Part::Matched(matched) => answered.matched = matched,
            Part::Run(outcome) => {
                let run = outcome.run.as_ref().expect("a run").run_id.clone();
                let before = answered.outcomes.insert(run, *outcome);
                assert!(before.is_none(), "a run is answered twice");
            }
            Part::Summary(summary) => answered.summary = Some(summary),
        }
    }
    Ok(answered)
}

fn abort() -> Action {
    Action::Abort(pb::AbortRequest::default())
}

async fn live(client: &mut Client) -> BTreeMap<String, usize> {
    let request = pb::ListRunsRequest {
        filter: Some(pb::RunFilter {
            states: vec![RunState::Running.into()],
            ..pb::RunFilter::default()
        }),
        page_size: 1000,
        ..pb::ListRunsRequest::default()
    };
    let runs = must("list", client.process.list_runs(request).await)
        .into_inner()
        .runs;
    let mut counts = BTreeMap::new();
    for run in runs {
        let labels = run.spec.expect("a spec").labels;
        *counts.entry(labels["company"].clone()).or_insert(0) += 1;
    }
    counts
}

/// Begins a call; returns the runs of its first answers, and the rest of the stream.
async fn first_answers(
    client: &mut Client,
    request: pb::ForEachRunRequest,
) -> (Vec<String>, Streaming<pb::ForEachRunResponse>) {
    let request = pb::ForEachRunRequest {
        parallel: 2,
        ..request
    };
    let mut stream = must("call", client.process.for_each_run(request).await).into_inner();
    let mut first = Vec::new();
    while first.len() < 4 {
        let message = must("answer", stream.message().await).expect("an answer");
        if let Some(Part::Run(outcome)) = message.part {
            assert_eq!(outcome.outcome(), Outcome::Done, "{outcome:?}");
            first.push(outcome.run.expect("a run").run_id);
        }
    }
    (first, stream)
}

/// By one call for the API, and by the command line.
async fn rest_is_paused_and_ended(two: &mut Kennel, here: &mut Client, there: &mut Client) {
    let pause = || of("bolt", Action::Pause(pb::PauseRequest::default()));
    // Node two's server is killed this time.
    let (first, stream) = first_answers(there, pause()).await;
    two.replace_server().await;
    drop(stream);
    *there = two.client().await;
    for run in &first {
        let run = must("get", there.get(run).await);
        assert_eq!(run.state(), RunState::Paused, "{run:?}");
    }
    let paused = must("pause", for_each(there, pause()).await);
    assert_eq!(paused.count(Outcome::Done), 2 * EACH);
    let counts = paused.summary.expect("a summary").counts;
    assert_eq!(
        counts,
        BTreeMap::from([("done".to_owned(), u32::try_from(2 * EACH).expect("few"))])
    );
    let typed = ["stop", "-f", "status=paused", "--at-most", "200"];
    let ended = run_to_end(two.cli(&typed), PATIENCE).await;
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(text(&ended).lines().count(), 2 * EACH);
    let unasked = run_to_end(two.cli(&["stop", "--all"]), PATIENCE).await;
    assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
    let all = run_to_end(two.cli(&["stop", "--all", "--yes"]), PATIENCE).await;
    assert!(all.status.success(), "{all:?}");
    assert_eq!(live(here).await, BTreeMap::new());
    let none = run_to_end(two.cli(&["stop", "--all", "--yes"]), PATIENCE).await;
    assert!(
        none.status.success() && String::from_utf8_lossy(&none.stderr).contains("no run matches")
    );
}

// promise: K-9, K-9a
#[tokio::test(flavor = "multi_thread")]
async fn selection_of_two_nodes_is_aborted_exactly() {
    let postgres = Postgres::start().await;
    let mut one = Kennel::start(Options::on(&postgres.url())).await;
    let mut two = Kennel::start(Options::on(&postgres.url())).await;
    let (mut here, mut there) = (one.client().await, two.client().await);
    for company in COMPANIES {
        for _ in 0..EACH {
            spawn(&mut here, company).await;
            spawn(&mut there, company).await;
        }
    }
    let dry = pb::ForEachRunRequest {
        dry_run: true,
        ..of("acme", abort())
    };
    let dry = must("dry run", for_each(&mut here, dry).await);
    assert_eq!(dry.count(Outcome::Would), 2 * EACH);
    assert!(!dry.matched.selection.is_empty());
    let few = pb::ForEachRunRequest {
        at_most: 5,
        ..of("acme", abort())
    };
    let refused = for_each(&mut here, few).await.err().expect("too many");
    let why = complaint(&refused);
    assert_eq!(
        (why.code, why.reason.as_str()),
        (Code::FailedPrecondition, "TOO_MANY_MATCHES")
    );
    let unconfirmed = pb::ForEachRunRequest {
        action: Some(abort()),
        ..pb::ForEachRunRequest::default()
    };
    let refused = for_each(&mut here, unconfirmed).await.err().expect("empty");
    assert_eq!(complaint(&refused).reason, "INVALID_FIELD");
    // A run spawned after the dry run is not in the selection.
    let later = spawn(&mut there, "acme").await;
    let chosen = pb::ForEachRunRequest {
        selection: dry.matched.selection.clone(),
        ..of("acme", abort())
    };
    let mut others = two.client().await;
    let meanwhile = tokio::spawn(async move {
        for _ in 0..MEANWHILE {
            spawn(&mut others, "acme").await;
        }
    });
    // The server is killed after it answered some runs.
    let (first, stream) = first_answers(&mut here, chosen.clone()).await;
    one.replace_server().await;
    drop(stream);
    let mut here = one.client().await;
    for run in &first {
        let run = must("get", here.get(run).await);
        assert_eq!(run.state(), RunState::Cancelled, "{run:?}");
    }
    let rest = must("rest", for_each(&mut here, chosen).await);
    assert_eq!(rest.count(Outcome::Done), rest.outcomes.len());
    assert!(rest.outcomes.len() < 2 * EACH);
    assert!(rest.summary.is_some());
    must("others", meanwhile.await);
    for run in dry.outcomes.keys() {
        let run = must("get", here.get(run).await);
        assert_eq!(run.state(), RunState::Cancelled, "{run:?}");
    }
    let left = BTreeMap::from([
        ("acme".to_owned(), 1 + MEANWHILE),
        ("bolt".to_owned(), 2 * EACH),
        ("crux".to_owned(), 2 * EACH),
    ]);
    assert_eq!(live(&mut here).await, left);
    assert_eq!(
        must("get", there.get(&later).await).state(),
        RunState::Running
    );

    // A call with `--node` selects only that node's runs.
    let there_alone = must("get", there.get(&later).await).node_id;
    let typed = [
        "--node",
        &there_alone,
        "abort",
        "-l",
        "company=bolt",
        "--dry-run",
    ];
    let listed = run_to_end(one.cli(&typed), PATIENCE).await;
    assert!(listed.status.success(), "{listed:?}");
    assert_eq!(text(&listed).lines().count(), EACH);
    rest_is_paused_and_ended(&mut two, &mut here, &mut there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_run_is_skipped_by_selection() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let first = spawn(&mut client, "acme").await;
    let may_end = kennel.scratch().join("may-end");
    let waits = format!(
        "trap 'until [ -e {0} ]; do sleep 0.05; done; exit 0' TERM; echo up; while :; do sleep 0.1; done",
        may_end.display()
    );
    let request = pb::SpawnRequest {
        spec: Some(sh(&waits).label("company", "acme").grace(PATIENCE)),
        ..pb::SpawnRequest::default()
    };
    let spawned = must("spawn", client.process.spawn(request).await);
    let last = spawned.into_inner().run.expect("a run").run_id;
    client.hear_text(&last, "up").await;
    // With `parallel: 1`, the newest run must end before the next abort.
    let one_by_one = pb::ForEachRunRequest {
        parallel: 1,
        ..of("acme", abort())
    };
    let called = client.process.for_each_run(one_by_one).await;
    let mut stream = must("call", called).into_inner();
    let matched = must("answer", stream.message().await).expect("an answer");
    assert!(
        matches!(&matched.part, Some(Part::Matched(matched)) if matched.count == 2),
        "{matched:?}"
    );
    must("abort", client.abort(&first).await);
    std::fs::write(&may_end, "").expect("written");
    let mut outcomes = BTreeMap::new();
    while let Some(message) = must("answer", stream.message().await) {
        if let Some(Part::Run(outcome)) = message.part {
            let run = outcome.run.as_ref().expect("a run").run_id.clone();
            outcomes.insert(run, outcome.outcome());
        }
    }
    let expected = [(last, Outcome::Done), (first, Outcome::NoLongerMatches)];
    assert_eq!(outcomes, BTreeMap::from(expected));
}

// promise: K-10
#[tokio::test(flavor = "multi_thread")]
async fn filters_select_by_name_age_reason_and_reports() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut ids = Vec::new();
    for name in ["web-1", "web-2", "db"] {
        let request = pb::SpawnRequest {
            spec: Some(pb::RunSpec {
                name: name.to_owned(),
                ..argv(&["sleep", "600"])
            }),
            ..pb::SpawnRequest::default()
        };
        let spawned = must("spawn", client.process.spawn(request).await);
        ids.push(spawned.into_inner().run.expect("a run").run_id);
    }
    let annotate = pb::AnnotateRunRequest {
        run_id: "web-2".to_owned(),
        set: [("ticket".to_owned(), "a b".to_owned())].into(),
        activity: pb::Activity::AwaitingInput.into(),
        ..pb::AnnotateRunRequest::default()
    };
    must("annotate", client.process.annotate_run(annotate).await);
    must("abort", client.abort("db").await);
    let listed = async |words: &[&str]| {
        let flags = words.iter().flat_map(|word| ["-f", word]);
        let line: Vec<&str> = ["ps", "-q"].into_iter().chain(flags).collect();
        let listed = run_to_end(kennel.cli(&line), PATIENCE).await;
        assert!(listed.status.success(), "{listed:?}");
        let listed = text(&listed);
        let of = |id: &str| ids.iter().position(|run| run == id).expect("ours");
        let mut found: Vec<usize> = listed.lines().map(of).collect();
        found.sort_unstable();
        found
    };
    assert_eq!(listed(&["name=web-*"]).await, [0, 1]);
    assert_eq!(listed(&["name=web-?", "annotation=ticket=a b"]).await, [1]);
    assert_eq!(listed(&["annotation=ticket"]).await, [1]);
    assert_eq!(listed(&["activity=awaiting-input"]).await, [1]);
    assert_eq!(listed(&["waits=input"]).await, [1]);
    assert_eq!(listed(&["reason=aborted"]).await, [2]);
    assert_eq!(listed(&["newer=1h"]).await, [0, 1]);
    assert!(listed(&["older=1h"]).await.is_empty());
    assert!(listed(&["ended=1h"]).await.is_empty());
    assert!(listed(&["owner=uid:7"]).await.is_empty());
    assert_eq!(listed(&["ready=true"]).await, [0, 1]);
}
