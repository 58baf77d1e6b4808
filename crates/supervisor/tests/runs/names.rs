//! Names and keys: of many calls one makes the run, and each gets a true answer.

use crate::world::{Nature, Stage, Weather, call, new_run};
use kennel_lifecycle::{NodeId, RunId, RunState};
use kennel_store::{NewRun, RunRow};
use kennel_supervisor::{
    CallError, Condition, OnNameConflict, PART_BYTES, SpawnCall, Spawned, SpecPart,
};
use std::sync::Arc;
use tokio::task::JoinSet;

const CALLS: usize = 50;

fn named(on_name_conflict: OnNameConflict) -> SpawnCall {
    let mut call = call(None);
    call.spec.name = Some("db".to_owned());
    call.on_name_conflict = on_name_conflict;
    call
}

fn keyed(key: &str) -> SpawnCall {
    SpawnCall {
        request_key: Some(key.to_owned()),
        ..call(None)
    }
}

/// Makes all calls at once, over a store that keeps the first waiting.
async fn at_once(stage: &Stage, calls: Vec<SpawnCall>) -> Vec<Result<Spawned, CallError>> {
    stage.world.store.hold_inserts();
    let mut spawning = JoinSet::new();
    for call in calls {
        let supervisor = stage.supervisor.clone();
        spawning.spawn(async move { supervisor.spawn(call).await });
    }
    while stage.kernel().children.is_empty() {
        tokio::task::yield_now().await;
    }
    stage.world.store.let_inserts_go();
    spawning.join_all().await
}

async fn ends(stage: &Stage, run: RunId) {
    stage.exits(run, 0);
    let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    assert!(waited.reached);
}

// promise: K-5
#[tokio::test]
async fn concurrent_spawns_of_a_name_create_one_run() {
    let stage = Stage::set(Nature::default()).await;
    let ways = [OnNameConflict::Fail, OnNameConflict::Return];
    let calls = ways.into_iter().cycle().take(CALLS).map(named);
    let answers = at_once(&stage, calls.collect()).await;
    let is_new = |answer: &Result<Spawned, CallError>| {
        let spawned = answer.as_ref().ok()?;
        (!spawned.existing).then_some(spawned.run.run)
    };
    let new: Vec<RunId> = answers.iter().filter_map(is_new).collect();
    let [run] = new[..] else {
        panic!("{new:?}");
    };
    let (mut returned, mut refused) = (0, 0);
    for answer in answers {
        match answer {
            Ok(spawned) if spawned.existing => {
                let specs = spawned.compared.unwrap();
                assert_eq!((spawned.run.run, specs.different), (run, Some(Vec::new())));
                returned += 1;
            }
            Ok(_) => {}
            Err(CallError::NameTaken { name, holder }) => {
                assert_eq!((name.as_str(), holder.run), ("db", run));
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(returned + refused, CALLS - 1);
    assert!(returned >= CALLS / 2 - 1 && refused >= CALLS / 2 - 1);
    assert_eq!(stage.kernel().executed.len(), 1);
    assert_eq!(
        stage.supervisor.run_named("uid:0", "db").await.unwrap(),
        run
    );
}

// promise: K-5
#[tokio::test]
async fn name_can_be_reused_after_run_ended() {
    let stage = Stage::set(Nature::default()).await;
    let first = stage
        .supervisor
        .spawn(named(OnNameConflict::Fail))
        .await
        .unwrap();
    ends(&stage, first.run.run).await;
    let second = stage
        .supervisor
        .spawn(named(OnNameConflict::Return))
        .await
        .unwrap();
    assert!(!second.existing);
    ends(&stage, second.run.run).await;
    let newest = stage.supervisor.run_named("uid:0", "db").await.unwrap();
    assert_eq!(newest, second.run.run);
    let unknown = stage.supervisor.run_named("uid:1", "db").await;
    assert!(
        matches!(unknown, Err(CallError::NoRunNamed(_))),
        "{unknown:?}"
    );
}

// promise: K-6
#[tokio::test]
async fn refused_spawn_frees_name_and_key() {
    let stage = Stage::set(Nature::default()).await;
    let call = SpawnCall {
        request_key: Some("order/7".to_owned()),
        ..named(OnNameConflict::Fail)
    };
    stage
        .world
        .store
        .set(Weather::InsertUnknown { written: true });
    let refused = stage.supervisor.spawn(call.clone()).await;
    assert!(
        matches!(refused, Err(CallError::StoreUnavailable)),
        "{refused:?}"
    );
    stage.world.store.set(Weather::Fair);
    let spawned = stage.supervisor.spawn(call).await.unwrap();
    assert!(!spawned.existing);
}

// promise: K-6
#[tokio::test]
async fn spawns_with_one_key_return_one_run() {
    let stage = Stage::set(Nature::default()).await;
    let calls = (0..CALLS).map(|_| keyed("order/7")).collect();
    let answers = at_once(&stage, calls).await;
    let runs = answers.into_iter().map(Result::unwrap);
    let (new, same): (Vec<_>, Vec<_>) = runs.partition(|spawned| !spawned.existing);
    assert_eq!((new.len(), same.len()), (1, CALLS - 1));
    let run = new[0].run.run;
    assert!(same.iter().all(|spawned| spawned.run.run == run));
    ends(&stage, run).await;
    let again = stage.supervisor.spawn(keyed("order/7")).await.unwrap();
    assert_eq!((again.run.run, again.existing), (run, true));
    let mut other = keyed("order/7");
    other.digest.parts[0] = [2; PART_BYTES];
    other.spec.labels.insert("a".to_owned(), "b".to_owned());
    let refused = stage.supervisor.spawn(other).await;
    let Err(CallError::SpecMismatch { run: of, between }) = refused else {
        panic!("{refused:?}");
    };
    let specs = between.unwrap();
    assert_eq!(
        (
            of,
            specs.existing.labels.len(),
            specs.requested.labels.len()
        ),
        (run, 0, 1)
    );
    assert_eq!(specs.different, Some(vec![SpecPart::Recorded]));
    let mut secret = keyed("order/7");
    secret.digest.parts[3] = [2; PART_BYTES];
    let refused = stage.supervisor.spawn(secret).await;
    let Err(CallError::SpecMismatch { between, .. }) = refused else {
        panic!("{refused:?}");
    };
    let different = between.unwrap().different;
    assert_eq!(different, Some(vec![SpecPart::SentSecrets]));
    let another = SpawnCall {
        owner: "uid:1".to_owned(),
        ..keyed("order/7")
    };
    assert!(!stage.supervisor.spawn(another).await.unwrap().existing);
}

// promise: K-6
#[tokio::test]
async fn run_with_older_digest_version_is_recognized() {
    let stage = Stage::set(Nature::default()).await;
    let spawned = stage.supervisor.spawn(keyed("order/7")).await.unwrap();
    let run = spawned.run.run;
    ends(&stage, run).await;
    {
        let mut rows = stage.world.store.rows.lock().unwrap();
        let new = &mut rows.get_mut(&run).unwrap().new;
        (new.spec_digest, new.spec_digest_version) = (vec![3; 32], 3);
    }
    let mut same = keyed("order/7");
    same.digest.whole = [3; 32];
    let again = stage.supervisor.spawn(same).await.unwrap();
    assert_eq!((again.run.run, again.existing), (run, true));
    let refused = stage.supervisor.spawn(keyed("order/7")).await;
    let Err(CallError::SpecMismatch { between, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(between.unwrap().different, None);
}

/// The store decides between nodes.
// promise: K-5
#[tokio::test]
async fn name_held_by_another_node_is_a_conflict() {
    let stage = Stage::set(Nature::default()).await;
    let mut spec = named(OnNameConflict::Fail).spec;
    spec.policy.stop.grace = None;
    let new = NewRun {
        node: NodeId::from_u128(99),
        spec: Arc::new(spec.into()),
        ..new_run(RunId::from_u128(7))
    };
    let mut row = RunRow::open(new);
    row.state = kennel_store::StoredState::Running;
    stage
        .world
        .store
        .rows
        .lock()
        .unwrap()
        .insert(row.new.run, row.clone());
    let refused = stage.supervisor.spawn(named(OnNameConflict::Fail)).await;
    assert!(
        matches!(&refused, Err(CallError::NameTaken { holder, .. }) if holder.run == row.new.run),
        "{refused:?}"
    );
    let mut call = named(OnNameConflict::Return);
    call.spec.policy.stop.grace = None;
    call.spec.command.inherited.cwd = Some("/home".into());
    let returned = stage.supervisor.spawn(call).await.unwrap();
    assert_eq!((returned.run.run, returned.existing), (row.new.run, true));
    assert_eq!(returned.compared.unwrap().different, Some(Vec::new()));
    assert_eq!(returned.run.state, RunState::Running);
    assert_eq!(stage.kernel().executed.len(), 0);
}
