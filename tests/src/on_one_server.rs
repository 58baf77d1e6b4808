//! Several cases on one server: a server of its own costs a small case more than the case itself.

/// Makes one test of cases that are run one after the other on one fixture. A failure is of the case that was printed
/// last.
///
/// Each case is an `async fn` that takes a reference to the fixture; with `mut` before the fixture, a mutable one.
#[macro_export]
macro_rules! cases {
    (fn $test:ident(mut $fixture:expr); $($case:ident,)+) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            let mut fixture = $fixture;
            $(
                eprintln!("case {}", stringify!($case));
                Box::pin($case(&mut fixture)).await;
            )+
        }
    };
    (fn $test:ident($fixture:expr); $($case:ident,)+) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            let fixture = $fixture;
            $(
                eprintln!("case {}", stringify!($case));
                Box::pin($case(&fixture)).await;
            )+
        }
    };
}
