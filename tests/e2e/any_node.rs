//! Requests that any node answers for all: lists over nodes, page by page, and calls for a node by its name.

use kennel_proto::pb::{self, NodeReachability, RunFilter, RunState};
use kennel_tests::{
    Client, Kennel, PATIENCE, argv, cases, eventually_async, fleet::ThreeNodes, must,
    shell::run_to_end,
};

cases! {
    fn requests_at_any_of_three_nodes(mut ThreeNodes::start().await);
    list_over_nodes_continues_at_any_of_them,
    node_is_drained_and_named_for_spawns_elsewhere,
}

/// Returns the output of a command that succeeds, or its error.
async fn said(node: &Kennel, words: &[&str]) -> Result<String, String> {
    let output = run_to_end(node.cli(words), PATIENCE).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(text(&output.stderr))
}

fn ids(runs: &[pb::Run]) -> Vec<&str> {
    runs.iter().map(|run| run.run_id.as_str()).collect()
}

async fn page(at: &mut Client, filter: &RunFilter, page_token: String) -> pb::ListRunsResponse {
    let request = pb::ListRunsRequest {
        filter: Some(filter.clone()),
        page_size: 2,
        page_token,
    };
    must("page", at.process.list_runs(request).await).into_inner()
}

// promise: I-73, I-73a
async fn list_over_nodes_continues_at_any_of_them(nodes: &mut ThreeNodes) {
    let ThreeNodes {
        one, two, three, ..
    } = nodes;
    let mut spawned = Vec::new();
    for node in [&*one, &*two, &*three, &*one, &*two] {
        let reader = three.client().await;
        let run = node.client().await.spawn(argv(&["sleep", "600"])).await;
        let run = must("spawn", run).run_id;
        // The run has started, but a busy node may record it later than the read waits.
        eventually_async("another node sees that it runs", PATIENCE, async || {
            let read = must("get", reader.clone().get(&run).await);
            (read.state() == RunState::Running).then_some(())
        })
        .await;
        spawned.push(run);
    }
    spawned.reverse();
    let states = vec![RunState::Running.into()];
    let all = RunFilter {
        states,
        ..RunFilter::default()
    };
    eventually_async("all run by their records", PATIENCE, async || {
        let runs = three.client().await.list_all(all.clone(), 50).await.ok()?;
        (ids(&runs) == spawned).then_some(())
    })
    .await;
    // Each page is read at another node; one node dies meanwhile.
    let (mut here, mut there) = (two.client().await, three.client().await);
    let first = page(&mut here, &all, String::new()).await;
    one.kill_service_after(|| {});
    let second = page(&mut there, &all, first.next_page_token).await;
    let third = page(&mut here, &all, second.next_page_token).await;
    let runs = [first.runs, second.runs, third.runs].concat();
    assert_eq!(ids(&runs), spawned);
    assert_eq!(third.next_page_token, "");

    let of_one = RunFilter {
        node: "one".to_owned(),
        ..all.clone()
    };
    eventually_async("its node is unreachable", PATIENCE, async || {
        let runs = three.client().await.list_all(of_one.clone(), 50).await;
        let runs = must("list", runs);
        assert_eq!(ids(&runs), [&*spawned[1], &*spawned[4]]);
        let is_marked = |run: &pb::Run| {
            let node = run.other_node.as_ref().expect("another one's");
            node.reachability() == NodeReachability::Unreachable
        };
        runs.iter().all(is_marked).then_some(())
    })
    .await;
    let table = must("ps", said(three, &["ps"]).await);
    for (id, node, state) in [
        (&spawned[4], "one", "UNREACHABLE (RUNNING)"),
        (&spawned[3], "two", "RUNNING"),
        (&spawned[2], "three", "RUNNING"),
    ] {
        let line = table.lines().find(|line| line.starts_with(id.as_str()));
        let words: Vec<_> = line.expect("listed").split("  ").collect();
        let words: Vec<_> = words
            .iter()
            .map(|word| word.trim())
            .filter(|w| !w.is_empty())
            .collect();
        assert_eq!(words[1..3], [node, state], "{table}");
    }
    let table = must("ps", said(two, &["ps", "--node", "one", "-q"]).await);
    assert_eq!(table, format!("{}\n{}\n", spawned[1], spawned[4]));
    let unknown = said(two, &["ps", "--node", "four"]).await;
    assert!(unknown.expect_err("none").contains("four"));
    one.restart().await;
}

// promise: I-74, I-75
async fn node_is_drained_and_named_for_spawns_elsewhere(nodes: &mut ThreeNodes) {
    nodes.see_each_other().await;
    let ThreeNodes {
        one, two, three, ..
    } = nodes;
    must("drain", said(two, &["drain", "one"]).await);
    let shows = async |what: &str, word: bool| {
        eventually_async(what, PATIENCE, async || {
            let table = said(two, &["nodes"]).await.ok()?;
            let line = table.lines().find(|line| line.contains(" one "))?;
            (line.contains("draining") == word).then_some(())
        })
        .await;
    };
    shows("it is shown as drained", true).await;
    // The node's next server continues the drain and reports it from its start.
    one.kill_server();
    let spawn = ["--node", "one", "spawn", "--", "sleep", "600"];
    let refused = said(two, &spawn).await.expect_err("it is drained");
    assert!(refused.contains("drain"), "{refused}");
    shows("it is still drained", true).await;
    must("undrain", said(two, &["undrain", "one"]).await);
    shows("it takes runs again", false).await;
    let id = must("spawn", said(two, &spawn).await);
    let run = must("get", two.client().await.get(id.trim()).await);
    assert_eq!(run.other_node.expect("there").node_name, "one");

    three.kill_service_after(|| {});
    for words in [
        &["drain", "three"][..],
        &["undrain", "three"],
        &["spawn", "--node", "three", "--", "true"],
    ] {
        let refused = said(two, words).await.expect_err("no server is there");
        assert!(refused.contains("node three"), "{refused}");
    }
    for words in [
        &["drain", "four"][..],
        &["spawn", "--node", "four", "--", "true"],
    ] {
        let refused = said(two, words).await.expect_err("no such node");
        assert!(refused.contains("\"four\""), "{refused}");
    }
    three.launch_again().await;
}
