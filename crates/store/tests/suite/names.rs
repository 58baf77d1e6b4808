//! Names, which one open run of an owner has, and keys, which one run of an owner has.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, new_run, opening},
};
use kennel_lifecycle::{RecordedSpec, RunSpec};
use kennel_store::{Changed, Claim, NewRun, RunRow};
use std::sync::Arc;

/// An open row with this name and key, of an owner.
fn claiming(id: u128, owner: &str, name: &str, key: &str) -> NewRun {
    let new = new_run(id);
    let spec = RunSpec {
        name: Some(name.to_owned()).filter(|name| !name.is_empty()),
        ..RunSpec::clone(&new.spec)
    };
    NewRun {
        owner: owner.to_owned(),
        spec: Arc::new(RecordedSpec::from(spec)),
        request_key: Some(key.to_owned()).filter(|key| !key.is_empty()),
        ..new
    }
}

/// Inserts a row; returns the run that was in its way.
async fn inserted(bed: &Bed, new: &NewRun) -> Option<u128> {
    match bed.store.insert(new).await.unwrap() {
        Changed::Done(_) => None,
        Changed::Taken(row) => Some(row.new.run.as_u128()),
    }
}

async fn claimed(bed: &Bed, owner: &str, claim: Claim) -> Option<u128> {
    let row = bed.store.claimed(owner, &claim).await.unwrap();
    row.map(|row| row.new.run.as_u128())
}

// promise: K-5
pub(crate) async fn name_belongs_to_one_open_run_of_owner(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let name = || Claim::Name("db".to_owned());
    let first = claiming(1, "uid:1", "db", "");
    assert_eq!(inserted(&bed, &first).await, None);
    assert_eq!(
        inserted(&bed, &claiming(2, "uid:1", "db", "")).await,
        Some(1)
    );
    assert_eq!(inserted(&bed, &claiming(3, "uid:2", "db", "")).await, None);
    assert_eq!(inserted(&bed, &claiming(4, "uid:1", "DB", "")).await, None);
    assert_eq!(claimed(&bed, "uid:1", name()).await, Some(1));
    bed.store.close(&first, &closure()).await.unwrap();
    // The ended run keeps its name until another has it.
    assert_eq!(claimed(&bed, "uid:1", name()).await, Some(1));
    assert_eq!(inserted(&bed, &claiming(2, "uid:1", "db", "")).await, None);
    assert_eq!(claimed(&bed, "uid:1", name()).await, Some(2));
    let read = bed.store.get(first.run).await.unwrap().unwrap();
    assert_eq!(read.new.spec.name.as_deref(), Some("db"));
    assert_eq!(claimed(&bed, "uid:3", name()).await, None);
}

// promise: K-6
pub(crate) async fn key_belongs_to_one_run_of_owner(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let key = || Claim::Key("order/7 §".to_owned());
    let first = claiming(1, "uid:1", "", "order/7 §");
    assert_eq!(inserted(&bed, &first).await, None);
    assert_eq!(
        inserted(&bed, &claiming(2, "uid:2", "", "order/7 §")).await,
        None
    );
    bed.store.close(&first, &closure()).await.unwrap();
    assert_eq!(
        inserted(&bed, &claiming(3, "uid:1", "", "order/7 §")).await,
        Some(1)
    );
    let read = bed.store.claimed("uid:1", &key()).await.unwrap().unwrap();
    assert_eq!(read.new.request_key, first.request_key);
    // A withdrawn run claims neither name nor key.
    let gone = claiming(4, "uid:1", "cache", "order/8");
    assert_eq!(inserted(&bed, &gone).await, None);
    let withdrawn = bed.store.withdraw(gone.run, gone.node, gone.generation);
    withdrawn.await.unwrap();
    assert_eq!(
        inserted(&bed, &claiming(5, "uid:1", "cache", "order/8")).await,
        None
    );
}

/// A name or a key keeps nothing out of the record.
// promise: K-8
pub(crate) async fn lost_row_returns_although_its_name_is_taken(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let lost = claiming(1, "uid:1", "db", "order/7");
    assert_eq!(
        inserted(&bed, &claiming(2, "uid:1", "db", "order/7")).await,
        None
    );
    bed.store.mend(&RunRow::open(lost.clone())).await.unwrap();
    assert_eq!(
        claimed(&bed, "uid:1", Claim::Name("db".to_owned())).await,
        Some(2)
    );
    assert_eq!(
        claimed(&bed, "uid:1", Claim::Key("order/7".to_owned())).await,
        Some(2)
    );
    let row = bed.store.get(lost.run).await.unwrap().unwrap();
    assert_eq!(row.new.spec.name.as_deref(), Some("db"));
    bed.store.close(&lost, &closure()).await.unwrap();
    // A run closed without a row is written too.
    let unwritten = claiming(3, "uid:1", "db", "order/7");
    bed.store.close(&unwritten, &closure()).await.unwrap();
    assert!(bed.store.get(unwritten.run).await.unwrap().is_some());
    assert_eq!(
        claimed(&bed, "uid:1", Claim::Key("order/7".to_owned())).await,
        Some(2)
    );
}
