//! The conditions that must hold once a server is back.

use super::{
    row::{Files, Scene},
    table::{Act, Victim},
};
use kennel_proto::pb::{self, AbortWait, RunState, event::Payload};
use kennel_tests::{
    Client, Footprint, Heard, PATIENCE, RunExt, complaint, eventually, eventually_async, must,
    within,
};
use std::{collections::BTreeSet, fs, path::Path, time::Duration};

/// Time to which a client extends the limit of the subject.
pub(crate) const EXTENDED: Duration = Duration::from_mins(30);

/// The last call that a client got an OK for before the crash, if any.
#[derive(Debug, Default)]
pub(crate) struct LastAct(pub(crate) Option<Act>);

impl LastAct {
    fn is(&self, acts: &[Act]) -> bool {
        self.0.is_some_and(|acted| acts.contains(&acted))
    }
}

pub(crate) async fn look(mut scene: Scene<'_>, acted: LastAct, survives: bool) {
    let mut client = scene.service.kennel.client().await;
    let again = if scene.row.act == Act::Spawn {
        Box::pin(look_at_spawn(&scene, &acted, &mut client, survives)).await
    } else {
        false
    };
    if survives {
        look_at_the_living(&scene, &acted, &mut client).await;
        for id in [&scene.bystander, &scene.subject] {
            abort(&mut client, id).await;
        }
    } else if again {
        abort(&mut client, &scene.subject).await;
    }
    for id in [&scene.bystander, &scene.subject] {
        let ended = within("every run ends", PATIENCE, client.ended(id)).await;
        if scene.row.act != Act::Spawn || id == &scene.bystander {
            must("wait", ended);
        }
    }
    verify(&mut scene, &acted, &mut client, survives).await;
}

/// Checks a spawn; returns whether the subject runs by the second call.
async fn look_at_spawn(
    scene: &Scene<'_>,
    acted: &LastAct,
    client: &mut Client,
    survives: bool,
) -> bool {
    let before = match client.get(&scene.subject).await {
        Ok(run) => Some(run),
        Err(status) => {
            assert_eq!(complaint(&status).reason, "RUN_NOT_FOUND", "{status:?}");
            assert!(
                !acted.is(&[Act::Spawn]),
                "an OK Spawn is not there any more"
            );
            assert_eq!(times_ran(scene), 0, "it ran and there is no row");
            let dir = scene.service.kennel.run_dir(&scene.subject);
            eventually("what was never recorded has no directory", PATIENCE, || {
                (!dir.exists()).then_some(())
            })
            .await;
            None
        }
    };
    let answer = scene.spawn_again().await;
    let run = client.get(&scene.subject).await;
    if acted.is(&[Act::Spawn]) {
        must("an OK Spawn, asked again", answer.as_ref());
    }
    // Recovery may withdraw the record after `before` was read.
    let begins = |run: &pb::Run| {
        run.end_time.is_none() && (before.is_none() || run.state() == RunState::Running)
    };
    if let Ok(run) = &answer
        && (begins(run) || survives && run.end_time.is_none())
    {
        eventually("what was spawned runs", PATIENCE, || {
            (times_ran(scene) == 1).then_some(())
        })
        .await;
    }
    begins(&must("get", run))
}

/// Checks runs whose keeper has lived on, so that they are unaffected.
async fn look_at_the_living(scene: &Scene<'_>, acted: &LastAct, client: &mut Client) {
    let was_ok = |act| acted.is(&[act]);
    let run = must("get", client.get(&scene.bystander).await);
    assert_eq!(run.state(), RunState::Running, "{run:?}");
    let before = scene.lines_read();
    eventually("the reader hears on", PATIENCE, || {
        (scene.lines_read() > before + 2).then_some(())
    })
    .await;
    if let Act::Pause | Act::Resume = scene.row.act {
        let run = must("get", client.get(&scene.subject).await);
        let state = run.state();
        assert!(
            !was_ok(Act::Pause) || state == RunState::Paused,
            "an OK Pause is not in force: {run:?}"
        );
        assert!(
            !was_ok(Act::Resume) || state == RunState::Running,
            "an OK Resume is not in force: {run:?}"
        );
        must("resume", client.resume(&scene.subject).await);
        let beat = || fs::read_to_string(scene.files.beat()).unwrap_or_default();
        let stood = beat();
        eventually("the subject goes on", PATIENCE, || {
            (beat() != stood).then_some(())
        })
        .await;
    }
    if scene.row.act == Act::Annotate {
        let run = must("get", client.get(&scene.subject).await);
        let is_there = run.annotations.get("a").is_some_and(|value| value == "1");
        assert!(is_there || !was_ok(Act::Annotate), "{run:?}");
        // A repeated Annotate has one effect, whether or not the first was applied.
        let again = client.annotate(&scene.subject, &[("a", "1")], &[], Some(0));
        assert_eq!(must("repeat", again.await).annotations_version, 1);
    }
    if scene.row.act == Act::Extend {
        let run = must("get", client.get(&scene.subject).await);
        let extended = |run: &pb::Run| run.time_limits.iter().any(|of| of.extended.is_some());
        assert!(extended(&run) || !was_ok(Act::Extend), "{run:?}");
        let again = client.extend(&scene.subject, &[], EXTENDED);
        assert!(extended(&must("repeat", again.await)));
    }
    if scene.row.act == Act::Upgrade {
        let server = client.server_info().await.expect("it answers");
        let upgrade = server.last_upgrade.expect("a keeper goes on with it");
        // An upgrade whose server dies right after readiness falls back to the former server.
        let dies_when_ready =
            scene.row.point == "keeper.upgraded" && scene.row.victim == Victim::Server;
        let wanted = if dies_when_ready {
            pb::UpgradeState::FellBack
        } else {
            pb::UpgradeState::Done
        };
        assert_eq!(upgrade.state(), wanted, "{upgrade:?}");
        let former = scene.upgraded.as_ref();
        let is_this_one = former.is_none_or(|former| former.start_time != upgrade.start_time);
        assert!(is_this_one, "{upgrade:?} was before the row");
    }
    if scene.row.act == Act::Drain {
        let server = client.server_info().await.expect("it answers");
        let drain = server.drain.and_then(|status| status.drain);
        // The drain was on disk when the server died.
        assert!(drain.is_some(), "a drain is not in force");
    }
    if let Act::Exit | Act::Owe = scene.row.act {
        let run = must("wait", client.ended(&scene.subject).await);
        assert_eq!((run.code(), run.reason()), (Some(5), "exited"), "{run:?}");
    }
}

async fn abort(client: &mut Client, id: &str) {
    let Ok(run) = client.get(id).await else {
        return;
    };
    if run.end_time.is_none() {
        must("abort", client.abort_with(id, None, AbortWait::None).await);
    }
}

async fn verify(scene: &mut Scene<'_>, acted: &LastAct, client: &mut Client, survives: bool) {
    let rows = must("list", client.list_all(pb::RunFilter::default(), 100).await);
    for run in &rows {
        assert!(run.end_time.is_some(), "an open row: {run:?}");
    }
    verify_directories(scene, &rows).await;
    let own = [&scene.bystander, &scene.subject];
    let rows: Vec<&pb::Run> = rows
        .iter()
        .filter(|run| own.contains(&&run.run_id))
        .collect();
    for run in &rows {
        let heard = must("stream", client.hear_all(&run.run_id, 0).await);
        verify_stations(run, &heard);
        Footprint::of_id(&run.run_id).until_nothing_is_left().await;
    }
    // A surviving server reads all bytes left in the pipes.
    let had_server = !matches!(scene.row.act, Act::Restart | Act::Recover | Act::Upgrade);
    let whole = survives || (scene.row.victim == Victim::Keeper && had_server);
    let heard = must("stream", client.hear_all(&scene.bystander, 0).await);
    verify_lines(&heard, &scene.files, whole);
    if let Some(run) = rows.iter().find(|run| run.run_id == scene.subject) {
        let heard = must("stream", client.hear_all(&scene.subject, 0).await);
        verify_subject(scene, acted, run, &heard, survives, whole);
    } else {
        assert_eq!(scene.row.act, Act::Spawn, "a row is gone");
    }
    verify_readers(scene, client).await;
    let has_started = |run: &&&pb::Run| {
        let attempt = run.current_attempt.as_ref();
        attempt.is_some_and(|attempt| attempt.start_time.is_some())
    };
    for run in rows.iter().filter(has_started) {
        verify_record(scene, client, &run.run_id).await;
    }
    if scene.row.act == Act::Drain {
        let undrained = client.admin.undrain(pb::UndrainRequest {}).await;
        must("undrain", undrained);
    }
}

fn verify_stations(run: &pb::Run, heard: &Heard) {
    let stations = heard.stations();
    let last = stations.iter().filter(|station| **station == "ended");
    assert_eq!(last.count(), 1, "one end: {stations:?} of {run:?}");
    for once in [
        "recorded",
        "started",
        "leader_exited",
        "streams_closed",
        "tree_empty",
    ] {
        let count = stations.iter().filter(|station| **station == once).count();
        assert!(count <= 1, "{once} twice: {stations:?} of {run:?}");
    }
}

fn verify_lines(heard: &Heard, files: &Files, whole: bool) {
    let text = heard.text();
    for (index, line) in text.lines().enumerate() {
        assert_eq!(line, format!("line {}", index + 1), "lines in their order");
    }
    let count = text.lines().count();
    // The command may die while writing its tally, or between line and tally.
    let written: usize = fs::read_to_string(files.tally())
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(count);
    assert!(count <= written + 1, "{count} of {written} lines");
    assert!(!whole || count >= written, "{count} of {written} lines");
}

fn verify_subject(
    scene: &Scene<'_>,
    acted: &LastAct,
    run: &pb::Run,
    heard: &Heard,
    survives: bool,
    whole: bool,
) {
    let ran = times_ran(scene);
    assert!(ran <= 1, "it ran {ran} times: {run:?}");
    let verdict = run
        .tree_verdict
        .as_ref()
        .and_then(|tree| tree.verdict.as_ref());
    let never_ran = run.reason() == "start_failed"
        || matches!(verdict, Some(pb::tree_verdict::Verdict::NeverRan(_)));
    assert!(
        !never_ran || ran == 0,
        "it ran, and its row denies it: {run:?}"
    );
    assert!(
        !never_ran || !acted.is(&[Act::Spawn]),
        "an OK Spawn never ran: {run:?}"
    );
    if acted.is(&[Act::Abort, Act::Kill]) && survives {
        assert_eq!(run.reason(), "aborted", "an OK Abort: {run:?}");
    }
    if never_ran {
        return;
    }
    let text = heard.text();
    let texts: &[&str] = match (run.code(), run.signal().as_deref()) {
        (Some(5), _) => &["up\nbye\n"],
        // The next keeper sends the stop again, possibly while the shell handles the first.
        (Some(7), _) if survives => &[
            "up\nasked\n",
            "up\nbye\nasked\n",
            "asked\n",
            "up\nasked\nasked\n",
        ],
        (Some(7), _) => &["up\nasked\n", "up\nbye\nasked\n", "asked\n"],
        // SIGTERM may arrive before the trap is set.
        (None, Some("SIGTERM")) => &["", "up\n"],
        // No reader of the command's output was left.
        (None, Some("SIGPIPE")) if !whole => &["up\n"],
        (None, Some("SIGKILL")) if scene.row.act == Act::Kill => &["up\n"],
        end => panic!("{end:?}: {run:?}"),
    };
    let fits = |full: &&str| full == &text || (!whole && full.starts_with(&text));
    assert!(texts.iter().any(fits), "{text:?} of {run:?}");
}

/// Checks readers that have read on over the crash: they have received all existing events.
async fn verify_readers(scene: &mut Scene<'_>, client: &mut Client) {
    let taken = scene.take_readers();
    for (run_id, reader) in taken {
        let resumed = within("a reader comes to the end", PATIENCE, reader.finish()).await;
        let fresh = must("stream", client.hear_all(&run_id, 0).await);
        assert_eq!(
            resumed.stdout, fresh.stdout,
            "what was read is what is there"
        );
        assert_eq!(resumed.stations(), fresh.stations());
        assert_eq!(resumed.last_seq(), fresh.last_seq());
    }
    if let Some(followed) = scene.take_followed() {
        let followed = followed.finish().await;
        let fresh = must("stream", client.hear_all(&scene.subject, 0).await);
        assert_eq!(followed.stdout, fresh.stdout);
        assert_eq!(followed.stations().last(), fresh.stations().last());
    }
}

/// Checks a run without its journal, by its record: all its entries, under the same seqs, and the amount of missing
/// output.
async fn verify_record(scene: &Scene<'_>, client: &mut Client, run_id: &str) {
    let whole = must("stream", client.hear_all(run_id, 0).await);
    let kennel = &scene.service.kennel;
    let (dir, aside) = (kennel.run_dir(run_id), kennel.data_dir().join("aside"));
    fs::rename(&dir, &aside).expect("the server has it open at most");
    let by_record = eventually_async("its record is read", PATIENCE, async || {
        let heard = kennel.client().await.hear_all(run_id, 0).await.ok()?;
        heard.stdout.is_empty().then_some(heard)
    })
    .await;
    fs::rename(&aside, &dir).expect("it is put back");
    assert_eq!(entries(&by_record), entries(&whole), "{run_id}");
    let missing = by_record.events.iter().map(|(_, payload)| match payload {
        Payload::Gap(gap) => gap.missing[0].bytes.expect("counted"),
        _ => 0,
    });
    assert_eq!(missing.sum::<u64>(), whole.stdout.len() as u64, "{run_id}");
}

fn entries(heard: &Heard) -> Vec<&(u64, Payload)> {
    let is_output = |payload: &Payload| matches!(payload, Payload::Output(_) | Payload::Gap(_));
    let entries = heard.events.iter().filter(|(_, p)| !is_output(p));
    entries.collect()
}

/// Checks that each directory belongs to a row, and that no run has pending work.
async fn verify_directories(scene: &Scene<'_>, rows: &[pb::Run]) {
    scene.service.settles().await;
    let known: BTreeSet<&str> = rows.iter().map(|run| run.run_id.as_str()).collect();
    for dir in fs::read_dir(scene.service.kennel.data_dir().join("runs")).expect("a directory") {
        let dir = dir.expect("an entry").path();
        let id = dir.file_name().and_then(|name| name.to_str());
        assert!(
            id.is_some_and(|id| known.contains(id)),
            "{} belongs to no row",
            dir.display()
        );
        let tidied = format!("tmp is removed from {}", list(&dir));
        eventually(&tidied, PATIENCE, || {
            (!dir.join("tmp").exists()).then_some(())
        })
        .await;
    }
}

fn list(dir: &Path) -> String {
    let names = fs::read_dir(dir).expect("a directory").flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    format!("{}: {names:?}", dir.display())
}

fn times_ran(scene: &Scene<'_>) -> usize {
    let text = fs::read_to_string(scene.files.ran()).expect("a file");
    text.lines().filter(|id| *id == scene.subject).count()
}
