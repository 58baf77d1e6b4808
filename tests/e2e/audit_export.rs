//! The audit log at a collector.

use kennel_tests::{
    Kennel, Options, PATIENCE,
    collector::{self, Collector, Manner},
    eventually, eventually_async, must, sh,
};
use std::{collections::BTreeMap, fs, process::Output};

pub(crate) fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

// promise: RW-142
#[tokio::test(flavor = "multi_thread")]
async fn collector_gets_each_audit_record_in_order() {
    let collector = Collector::start(Manner::Refusing).await;
    let mut kennel = Kennel::start(Options {
        env: collector.env(),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    // The collector refuses all records, and no call waits.
    for _ in 0..20 {
        must("spawn", client.spawn(sh("true")).await);
    }
    eventually("the failure is logged", PATIENCE, || {
        let log = kennel.log();
        log.contains("they stay in their files").then_some(())
    })
    .await;
    assert!(collector.audit().is_empty());
    collector.behave(Manner::Willing);
    let seqs = |records: &[collector::Record]| {
        let seq = |record: &collector::Record| {
            record
                .attribute("kennel.audit.seq")
                .and_then(|seq| seq.parse().ok())
        };
        records.iter().filter_map(seq).collect::<Vec<u64>>()
    };
    let spawns = |records: &[collector::Record]| {
        let spawns = records
            .iter()
            .filter(|record| record.attribute("kennel.audit.rpc") == Some("Spawn"));
        spawns.count()
    };
    eventually("all are there", PATIENCE, || {
        (spawns(&collector.audit()) >= 20).then_some(())
    })
    .await;
    // The next server continues after the records its predecessor sent.
    kennel.replace_server().await;
    let mut client = kennel.client().await;
    for _ in 0..5 {
        must("spawn", client.spawn(sh("true")).await);
    }
    kennel.kill_server();
    eventually_async("the next server has a spawn", PATIENCE, async || {
        let mut client = kennel.client().await;
        client.spawn(sh("true")).await.ok()
    })
    .await;
    let head = printed(
        &kennel
            .cli(&[
                "audit",
                "--verify",
                &kennel.data_dir().display().to_string(),
            ])
            .output()
            .expect("it runs"),
    );
    let head: u64 = head
        .split(':')
        .next()
        .and_then(|seq| seq.parse().ok())
        .expect("a head");
    eventually("the last is there", PATIENCE, || {
        let seqs = seqs(&collector.audit());
        seqs.iter().any(|seq| *seq >= head).then_some(())
    })
    .await;
    let all = collector.audit();
    let by_seq: BTreeMap<u64, &collector::Record> = seqs(&all).into_iter().zip(&all).collect();
    let missing: Vec<u64> = (1..=head).filter(|seq| !by_seq.contains_key(seq)).collect();
    assert!(missing.is_empty(), "{missing:?} of {head}");
    // Record bodies are the log lines.
    let file = kennel.scratch().join("collected");
    let lines: String = by_seq
        .range(..=head)
        .flat_map(|(_, record)| [record.body.as_str(), "\n"])
        .collect();
    fs::write(&file, lines).expect("own directory");
    let verified = kennel
        .cli(&["audit", "--verify", &file.display().to_string()])
        .output();
    assert!(printed(&verified.expect("it runs")).starts_with(&format!("{head}:")));
}
