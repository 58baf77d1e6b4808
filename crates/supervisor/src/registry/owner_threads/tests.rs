//! Turns of owners on their threads.

use super::{OwnerThreads, TurnQueue};
use std::sync::{Arc, mpsc};

fn owner(name: &str) -> Arc<str> {
    name.into()
}

// promise: RW-5a
#[test]
fn owners_take_turns_in_thread_queue() {
    let mut queue = TurnQueue::default();
    for name in ["a", "a", "a", "b", "b"] {
        queue.push(&owner(name), Box::new(|_| {}));
    }
    let mut turns = Vec::new();
    while let Some((first, _)) = queue.pop() {
        // Of two threads, the second gets no work of the same owner.
        let second = queue.pop().map(|(owner, _)| owner);
        turns.push([Some(&*first), second.as_deref()].map(|owner| owner.unwrap_or("-").to_owned()));
        if let Some(owner) = second {
            queue.leave(owner);
        }
        queue.leave(first);
    }
    assert_eq!(turns, [["a", "b"], ["b", "a"], ["a", "-"]]);
    assert!(queue.owners.is_empty());
}

// promise: RW-5a
#[tokio::test]
async fn slow_owner_does_not_block_others() {
    let threads = OwnerThreads::default();
    let (end, ended) = mpsc::channel::<()>();
    let slow = owner("slow");
    let first = threads.turn(&slow, move |_| ended.recv().is_ok());
    let second = threads.turn(&slow, |_| ());
    let other = owner("other");
    let others = async {
        for _ in 0..10 {
            threads
                .turn(&other, |_| ())
                .await
                .expect("a thread is free");
        }
        end.send(()).expect("it waits");
    };
    let (first, second, ()) = tokio::join!(first, second, others);
    assert!(first.unwrap());
    second.unwrap();
}

#[tokio::test]
async fn panic_in_a_test_ends_only_that_test() {
    let threads = OwnerThreads::default();
    let owner = owner("a");
    for _ in 0..4 {
        let failed = threads.turn::<()>(&owner, |_| panic!("on purpose"));
        assert!(failed.await.is_err());
        assert_eq!(threads.turn(&owner, |_| 7).await.unwrap(), 7);
    }
}
