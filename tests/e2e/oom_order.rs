//! Order of kills when memory is short: commands, before Kennel.

use kennel_tests::{Kennel, RunExt, must, sh};

fn oom_score_adj(pid: i32) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    let text = text.expect("it can be read");
    text.trim().parse().expect("a number")
}

// promise: Q-11, Q-11a
#[tokio::test(flavor = "multi_thread")]
async fn oom_killer_prefers_commands_over_kennel() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exec sleep 300")).await);
    let command = oom_score_adj(run.attempt().pid);
    let shim = oom_score_adj(run.attempt().shim_pid);
    let server = kennel.server().expect("it serves");
    let (keeper, server) = (
        oom_score_adj(kennel.keeper_pid()),
        oom_score_adj(server.pid),
    );
    let info = client.server_info().await.expect("it serves");
    let host = info.host.expect("it says");
    let order = host.capabilities.iter().find(|c| c.name == "oom_order");
    let is_ordered = order.expect("it was tried").available;
    assert_eq!(is_ordered, nix::unistd::Uid::effective().is_root());
    assert_eq!((shim, server), (keeper, keeper));
    if is_ordered {
        assert!(
            command >= 200 && command >= keeper + 200,
            "{command}, {keeper}"
        );
    } else {
        assert_eq!(command, keeper.max(0));
    }
    must("abort", client.abort(&run.run_id).await);
}
