//! Annotations: they outlive the server, and of several clients one wins. Without the database, and with one that lacks
//! them: `supervisor/tests/runs/facets.rs`.

use kennel_proto::pb::{self, event::Payload, lifecycle::Station};
use kennel_tests::{Client, Heard, Kennel, PATIENCE, client::complaint, must, sh};
use tonic::Code;

async fn sleeper(client: &mut Client) -> String {
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&run.run_id).await;
    run.run_id
}

fn pairs(run: &pb::Run) -> Vec<(&str, &str)> {
    let pairs = run.annotations.iter();
    pairs.map(|(k, v)| (k.as_str(), v.as_str())).collect()
}

/// Returns the versions of the annotations that events report.
fn versions(heard: &Heard) -> Vec<u64> {
    let changed = heard
        .events
        .iter()
        .filter_map(|(_, payload)| match payload {
            Payload::Lifecycle(pb::Lifecycle {
                station: Some(Station::Annotated(changed)),
            }) => Some(changed.version),
            _ => None,
        });
    changed.collect()
}

// promise: RW-1, RW-2, RW-3, RW-6, RW-73
#[tokio::test(flavor = "multi_thread")]
async fn annotations_are_set_removed_listed_and_reported() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = sleeper(&mut client).await;
    let set = [
        ("session", "s-1"),
        ("example.com/url", "http://x/?a=b \u{e4}"),
    ];
    must("annotate", client.annotate(&run, &set, &[], Some(0)).await);
    let changed = client.annotate(&run, &[("session", "s-2")], &["none"], None);
    let changed = must("annotate", changed.await);
    assert_eq!(changed.annotations_version, 2);
    let removed = client.annotate(&run, &[], &["example.com/url"], Some(2));
    let removed = must("annotate", removed.await);
    assert_eq!(pairs(&removed), [("session", "s-2")]);
    let listed = must("list", client.list_all(pb::RunFilter::default(), 10).await);
    assert_eq!(pairs(&listed[0]), [("session", "s-2")]);

    // The next server has the annotations.
    kennel.kill_server();
    let mut client = kennel.client().await;
    must("abort", client.abort(&run).await);
    let ended = must("get", client.get(&run).await);
    assert_eq!(pairs(&ended), [("session", "s-2")], "an end keeps them");
    assert_eq!(ended.annotations_version, 3);
    let late = client.annotate(&run, &[("a", "b")], &[], None).await;
    let late = complaint(&late.expect_err("it has ended"));
    assert_eq!(late.reason, "RUN_ENDED");
    let heard = must("hear", client.hear_all(&run, 0).await);
    assert_eq!(versions(&heard), [1, 2, 3]);
    assert_one_of_two_changes_wins(&kennel).await;
    assert_annotations_have_bounds(&kennel).await;
    assert_command_line_sets_and_removes(&kennel).await;
}

// promise: RW-3a
#[tokio::test(flavor = "multi_thread")]
async fn run_begins_with_annotations_of_its_spec() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = pb::RunSpec {
        annotations: [("session".to_owned(), "x".repeat(10_000))].into(),
        ..sh("exec sleep 300")
    };
    let run = must("spawn", client.spawn(spec.clone()).await);
    assert_eq!(run.annotations, spec.annotations);
    assert_eq!(run.annotations_version, 1);

    // The next server has them too, from the run's entries or its row.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let seen = must("get", client.get(&run.run_id).await);
    assert_eq!(seen.annotations, spec.annotations);
    let changed = client.annotate(&run.run_id, &[], &["session"], Some(1));
    assert_eq!(must("annotate", changed.await).annotations_version, 2);
    must("abort", client.abort(&run.run_id).await);
    let heard = must("hear", client.hear_all(&run.run_id, 0).await);
    assert_eq!(versions(&heard), [1, 2]);
    let too_large = pb::RunSpec {
        annotations: [("a b".to_owned(), "x".repeat(16_385))].into(),
        ..sh("true")
    };
    let refused = client.spawn(too_large).await.expect_err("it is refused");
    let fields = complaint(&refused).fields;
    let key = "spec.annotations[\"a b\"]";
    assert_eq!(fields, [key, key, "spec.annotations"]);
}

async fn assert_one_of_two_changes_wins(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = sleeper(&mut client).await;
    let mut rival = kennel.client().await;
    let own = [("owner", "a")];
    must("annotate", client.annotate(&run, &own, &[], Some(0)).await);
    let refused = rival.annotate(&run, &[("owner", "b")], &[], Some(0)).await;
    let refused = refused.expect_err("the version is another one");
    assert_eq!(refused.code(), Code::Aborted);
    assert_eq!(complaint(&refused).reason, "ANNOTATIONS_CHANGED");
    assert_eq!(kennel_tests::client::fact(&refused, "present_version"), "1");
    // A repeat after a lost answer is the same change.
    let again = must("repeat", client.annotate(&run, &own, &[], Some(0)).await);
    assert_eq!(again.annotations_version, 1);
    must("abort", client.abort(&run).await);
}

async fn assert_annotations_have_bounds(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = sleeper(&mut client).await;
    let long = "x".repeat(16_385);
    let wrong = [("a b", "1"), ("long", long.as_str())];
    let status = client.annotate(&run, &wrong, &["long"], None).await;
    let complaint = complaint(&status.expect_err("three faults"));
    assert_eq!(
        complaint.fields,
        ["set[\"a b\"]", "remove[\"long\"]", "set[\"long\"]"]
    );
    let page = "x".repeat(4000);
    for key in ["a", "b", "c", "d"] {
        must(
            "fill",
            client.annotate(&run, &[(key, &page)], &[], None).await,
        );
    }
    let full = client.annotate(&run, &[("e", &page)], &[], None).await;
    assert_eq!(
        full.expect_err("20,000 bytes").code(),
        Code::ResourceExhausted
    );
    let run_seen = must("get", client.get(&run).await);
    assert_eq!(run_seen.annotations_version, 4);
    must("abort", client.abort(&run).await);
}

async fn assert_command_line_sets_and_removes(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = sleeper(&mut client).await;
    let annotate = async |words: &[&str]| {
        let words = [&["annotate", &run], words].concat();
        let command = kennel.cli(&words);
        let output = kennel_tests::shell::run_to_end(command, PATIENCE).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let set = annotate(&["session=s=1", "url=x", "--if-version", "0"]).await;
    assert_eq!(set, (Some(0), "session=s=1\nurl=x\n".to_owned()));
    assert_eq!(annotate(&["url-"]).await.1, "session=s=1\n");
    assert_eq!(annotate(&["--activity", "awaiting-input"]).await.0, Some(0));
    let seen = must("get", client.get(&run).await);
    assert_eq!(seen.activity(), pb::Activity::AwaitingInput);
    for words in [["ps", "-o", "wide"], ["top", "--once", "-n1"]] {
        let shown = kennel_tests::shell::run_to_end(kennel.cli(&words), PATIENCE).await;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("AWAITING_INPUT"), "{shown}");
    }
    // With a stale `--if-version`, the activity change is refused too.
    let refused = annotate(&["a=b", "--if-version", "1", "--activity", "idle"]).await;
    assert_eq!(refused.0, Some(1));
    let seen = must("get", client.get(&run).await);
    assert_eq!(seen.activity(), pb::Activity::AwaitingInput);
    let (code, _) = annotate(&["a=b", "--if-version", "1"]).await;
    assert_eq!(code, Some(1));
    must("abort", client.abort(&run).await);
}
