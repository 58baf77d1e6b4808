//! The audit log elsewhere: as lines that can be checked, and at a collector; and the credentials in it.

use crate::{
    issuer_tokens::openssl,
    net::{Net, sleeper},
};
use kennel_tests::{
    Kennel, Options, PATIENCE,
    collector::{self, Collector, Manner},
    eventually, eventually_async, must, new_run_id, sh,
};
use serde_json::Value;
use std::{collections::BTreeMap, fs, process::Output};
use tonic::Code;

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_lines_are_verified_elsewhere() {
    let kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    for _ in 0..3 {
        must("spawn", client.spawn(sh("true")).await);
    }
    let data_dir = kennel.data_dir().display().to_string();
    let cli = |words: &[&str]| kennel.cli(words).output().expect("it runs");
    let whole = printed(&cli(&["audit", "--export", &data_dir]));
    let seqs = |text: &str| -> Vec<u64> {
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines
            .map(|line| line["seq"].as_u64().expect("a number"))
            .collect()
    };
    let all = seqs(&whole);
    assert!(
        all.len() > 3 && all.windows(2).all(|two| two[1] == two[0] + 1),
        "{all:?}"
    );
    let after = all[1].to_string();
    let rest = printed(&cli(&["audit", "--export", &data_dir, "--after", &after]));
    assert_eq!(seqs(&rest), all[2..]);

    let file = kennel.scratch().join("exported");
    let verify = |text: &str, more: &[&str]| {
        fs::write(&file, text).expect("own directory");
        let path = file.display().to_string();
        cli(&[&["audit", "--verify", &path], more].concat())
    };
    let head = printed(&verify(&whole, &[]));
    assert_eq!(printed(&verify(&rest, &[])), head);
    let old = head_of(&whole, 1);
    assert_eq!(printed(&verify(&rest, &["--head", &old])), head);
    assert_eq!(
        verify(&rest, &["--head", &old.replace(&old[2..6], "0000")])
            .status
            .code(),
        Some(1)
    );
    assert_eq!(
        verify(&whole.replace("Spawn", "Abort"), &[]).status.code(),
        Some(1)
    );
    let cut: Vec<&str> = whole
        .lines()
        .enumerate()
        .filter(|(at, _)| *at != 2)
        .map(|(_, line)| line)
        .collect();
    assert_eq!(verify(&(cut.join("\n") + "\n"), &[]).status.code(), Some(1));
}

/// Returns the seq and the hash of a line: the next one names it.
fn head_of(text: &str, at: usize) -> String {
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    format!(
        "{}:{}",
        lines[at]["seq"],
        lines[at + 1]["prev"].as_str().expect("text")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn collector_gets_each_audit_record_in_order() {
    let collector = Collector::start(Manner::Refusing).await;
    let mut kennel = Kennel::start(Options {
        env: collector.env(),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    // The collector takes none, and no call waits for that.
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
    // A server that dies has sent some, and the next one goes on.
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
    // Their bodies are the lines themselves.
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

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_in_the_audit_log() {
    let net = Net::start().await;
    let alice = net.by_certificate("alice").await;
    let run = new_run_id();
    must("spawn", alice.processes().spawn(sleeper(&run, &[])).await);
    let viewer = net.by_token("viewer").await;
    let denied = viewer.processes().spawn(sleeper(&new_run_id(), &[])).await;
    assert_eq!(denied.expect_err("a viewer").code(), Code::PermissionDenied);
    let serial = openssl(
        net.dir.path(),
        &["x509", "-in", "ca/alice.pem", "-noout", "-serial"],
        b"",
    );
    let serial = String::from_utf8_lossy(&serial)
        .trim()
        .trim_start_matches("serial=")
        .to_lowercase();
    let access = fs::read_to_string(net.file("access.toml")).expect("it is there");
    let (_, entry) = access.split_once("id = \"viewer\"").expect("its entry");
    let hash = entry.split_once("sha256 = \"").expect("a hash").1;
    let mut client = net.kennel.client().await;
    let logged = must("trail", client.logged_requests("").await);
    let asked = |by: &str| {
        let found = logged.iter().find(|request| request.by == by);
        found.unwrap_or_else(|| panic!("nothing by {by}: {logged:#?}"))
    };
    let shown = asked("spiffe://kennel/alice")
        .credential
        .replace("certificate:00", "certificate:");
    assert_eq!(
        shown,
        format!("certificate:{}", serial.trim_start_matches("00"))
    );
    let denied = asked("token:viewer");
    assert_eq!(denied.code, "PERMISSION_DENIED");
    assert_eq!(denied.credential, format!("token:sha256:{}", &hash[..16]));
    let token = fs::read_to_string(net.file("ca/viewer.token")).expect("it is there");
    assert!(!net.kennel.log().contains(token.trim()));
}
