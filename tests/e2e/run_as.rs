//! Runs of another user: their access, and their end like that of all others.

use kennel_proto::pb::{self, RestartMode};
use kennel_tests::{
    Kennel, PATIENCE, RunExt, SpecExt, argv, cases, eventually, must,
    procfs::Proc,
    sh,
    shell::{run_to_end, text},
};
use std::{fs, os::unix::fs::PermissionsExt, time::Duration};
use tonic_types::StatusExt;

/// A user and groups that exist on no host.
pub(crate) const UID: u32 = 54_321;
pub(crate) const GID: u32 = 54_322;
pub(crate) const GROUPS: [u32; 2] = [54_323, 54_324];

pub(crate) fn with_user(mut spec: pb::RunSpec) -> pb::RunSpec {
    spec.privileges = Some(pb::Privileges {
        user: Some(pb::RunUser {
            user_id: UID,
            group_id: Some(GID),
            supplementary_group_ids: GROUPS.to_vec(),
        }),
        ..pb::Privileges::default()
    });
    spec.cwd = Some("/".to_owned());
    spec
}

/// Returns the output of the script, run as the user.
async fn printed(kennel: &Kennel, spec: pb::RunSpec) -> String {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(spec).await);
    let ended = must("wait", client.ended(&run.run_id).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(ended.code(), Some(0), "{}", heard.text());
    heard.text().trim().to_owned()
}

/// A user without an entry in /etc/passwd has none; the caller's own count.
async fn assert_variables_are_of_its_user(kennel: &Kennel) {
    let names = "echo ${HOME-none} ${USER-none} ${LOGNAME-none} ${SHELL-none} ${TMPDIR-none}";
    assert_eq!(
        printed(kennel, with_user(sh(names))).await,
        "none none none none none"
    );
    let mut with_entry = with_user(sh(names)).env("USER", "mine");
    let user = with_entry
        .privileges
        .as_mut()
        .and_then(|all| all.user.as_mut());
    user.expect("it has one").user_id = 65_534;
    let home = "/nonexistent mine nobody /usr/sbin/nologin none";
    assert_eq!(printed(kennel, with_entry).await, home);
    let user = format!("--user={UID}:{GID}");
    let words = [
        "run",
        &user,
        "--cwd=/",
        "--env=SHELL=/bin/x",
        "--",
        "sh",
        "-c",
        names,
    ];
    let mut run = kennel.cli(&words);
    run.envs(["HOME", "USER", "LOGNAME", "TMPDIR"].map(|name| (name, "callers")));
    let run = text(&run_to_end(run, PATIENCE).await);
    assert_eq!(run.trim(), "none none none /bin/x none");
}

// The last test replaces the server.
cases! {
    fn runs_of_another_user(Kennel::on_sqlite().await);
    command_has_its_user_and_no_more,
    no_program_gains_privileges,
    next_attempt_has_the_user_too,
    places_closed_to_the_user_are_typed_refusals,
    whole_tree_of_another_user_is_ended,
}

// promise: AC-13, RW-163
async fn command_has_its_user_and_no_more(kennel: &Kennel) {
    assert_variables_are_of_its_user(kennel).await;
    let ids = printed(kennel, with_user(sh("id -u; id -g; id -G; umask"))).await;
    assert_eq!(
        ids,
        format!("{UID}\n{GID}\n{GID} {} {}\n0022", GROUPS[0], GROUPS[1])
    );
    let privileges = with_user(sh("grep -E 'CapEff|CapPrm|NoNewPrivs' /proc/self/status"));
    let privileges = printed(kennel, privileges).await;
    assert_eq!(
        privileges.matches("0000000000000000").count(),
        2,
        "{privileges}"
    );
    let streams = with_user(sh(
        "echo out > /dev/stdout; echo err > /dev/stderr 2>/dev/null; echo end",
    ));
    assert!(printed(kennel, streams).await.contains("out"));
    let reach = format!(
        "ls {0} 2>/dev/null && echo listed; kill -0 $PPID 2>/dev/null && echo signalled; \
         cat /proc/$PPID/environ >/dev/null 2>&1 && echo read; \
         echo x > /sys/fs/cgroup/cgroup.procs 2>/dev/null && echo moved; \
         test -n \"$KENNEL_RUN_DIR\" && echo dir; echo nothing",
        kennel.data_dir().display()
    );
    assert_eq!(printed(kennel, with_user(sh(&reach))).await, "nothing");
    let terminal = with_user(sh(
        "tty >/dev/null && echo shown > $(tty); stat -c %u $(tty)",
    ))
    .on_terminal(pb::Terminal::default());
    let shown = printed(kennel, terminal).await;
    assert!(
        shown.contains("shown") && shown.contains(&UID.to_string()),
        "{shown}"
    );
}

// promise: AC-13
async fn whole_tree_of_another_user_is_ended(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = with_user(sh(
        "setsid sleep 1000 & sh -c 'trap \"\" TERM; sleep 1001' & echo up; wait",
    ));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    kennel.kill_server();
    let mut client = kennel.client().await;
    must("pause", client.pause(&run.run_id).await);
    must("resume", client.resume(&run.run_id).await);
    let tree = must("tree", client.tree(&run.run_id).await);
    let pids: Vec<i32> = tree.processes.iter().map(|process| process.pid).collect();
    assert!(pids.len() >= 4, "{tree:?}");
    let ended = must(
        "abort",
        client
            .abort_with(&run.run_id, Some(Duration::ZERO), pb::AbortWait::TreeEmpty)
            .await,
    );
    assert!(ended.tree_is_empty(), "{:?}", ended.tree_verdict);
    for pid in pids {
        eventually("it is gone", PATIENCE, || {
            Proc::read(pid)
                .is_none_or(|proc| !proc.is_alive())
                .then_some(())
        })
        .await;
    }
}

// promise: AC-15
async fn no_program_gains_privileges(kennel: &Kennel) {
    let dir = kennel.scratch().join("open");
    fs::create_dir(&dir).expect("own directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("own directory");
    fs::set_permissions(kennel.scratch(), fs::Permissions::from_mode(0o755))
        .expect("own directory");
    let id = dir.join("id");
    fs::copy("/usr/bin/id", &id).expect("id is installed");
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).expect("own file");
    let script = format!("{} -u", id.display());
    let gained = printed(kennel, with_user(sh(&script))).await;
    assert_eq!(
        gained, "0",
        "a set-user-id program of root gains without the flag"
    );
    let mut held = with_user(sh(&script));
    held.privileges.as_mut().expect("set").no_new_privileges = true;
    assert_eq!(printed(kennel, held).await, UID.to_string());
}

// promise: AC-13
async fn next_attempt_has_the_user_too(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = with_user(sh("id -u; kill -9 $$")).restart(pb::RestartPolicy {
        mode: RestartMode::OnFailure.into(),
        max_restarts: Some(1),
        ..pb::RestartPolicy::default()
    });
    let run = must("spawn", client.spawn(spec).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), format!("{UID}\n{UID}\n"));
}

// promise: AC-14
async fn places_closed_to_the_user_are_typed_refusals(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut closed = with_user(argv(&["true"]));
    closed.cwd = Some(kennel.data_dir().display().to_string());
    let refused = client.spawn(closed).await.expect_err("it may not be there");
    let info = refused.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, "SPAWN_FAILED");
    assert!(
        refused.message().contains("working directory"),
        "{refused:?}"
    );
}
