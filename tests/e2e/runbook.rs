//! Every command of the runbook, run as written there.

use kennel_tests::{
    Kennel, PATIENCE,
    kennel::bare_command,
    must, naughty, programs,
    shell::{run_to_end, text},
};
use std::{collections::BTreeMap, fs, path::Path};

/// Returns the commands of each page, from its blocks for the shell.
fn pages() -> BTreeMap<String, Vec<String>> {
    let dir = programs::repository().join("docs/guide/runbook");
    let files = must("the runbook", fs::read_dir(dir));
    let pages = files.map(|file| {
        let file = must("a page", file);
        let page = must("a page", fs::read_to_string(file.path()));
        let blocks = page.split("```sh\n").skip(1);
        let blocks = blocks.filter_map(|rest| rest.split("```").next());
        let commands = blocks.flat_map(str::lines).map(str::to_owned).collect();
        (file.file_name().to_string_lossy().into_owned(), commands)
    });
    pages.collect()
}

// promise: M-12
#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_runbook_works() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let programs = programs::kennel();
    let programs = programs.parent().expect("it is in a directory");
    let mut count = 0;
    for (page, commands) in pages() {
        assert!(
            page == "README.md" || !commands.is_empty(),
            "{page} has no command"
        );
        let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await).run_id;
        client.hear_up(&run).await;
        for command in commands {
            let command = command
                .replace("RUN", &run)
                .replace(&format!("KENNEL_{run}"), "KENNEL_RUN");
            let mut shell = bare_command(Path::new("/bin/sh"));
            shell
                .args(["-c", &command])
                .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
                .env("KENNEL_SERVER", kennel.address());
            let ran = run_to_end(shell, PATIENCE).await;
            let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
            // During parallel tests, `doctor` may not know some processes' owners.
            let unsure = command == "kennel doctor" && ran.status.code() == Some(4);
            assert!(
                ran.status.success() || unsure,
                "{page}: {command}\n{}{errors}",
                text(&ran)
            );
            count += 1;
        }
        // A page may have ended the run.
        must("abort", client.abort(&run).await);
    }
    assert!(count >= 30, "{count}");
}
