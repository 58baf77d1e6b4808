//! The real binary over gRPC, end to end. Every test ends with a census.

mod activation;
mod adopt;
mod adopt_thief;
mod again;
mod alone;
mod annotate;
mod any_node;
mod attach;
mod attach_cli;
mod attempts;
mod audit;
mod audit_export;
mod block;
mod browser;
mod callers;
mod certificate;
mod certs_cli;
mod children;
mod cli;
mod consumers;
mod contain;
mod container;
mod damage;
mod data_directory;
mod dead_mount;
mod doctor;
mod doors;
mod drain;
mod duplex;
mod durable;
mod ends;
mod exec_probe;
mod extend;
mod fleet;
mod forgotten;
mod forward;
mod full_disk;
mod hands;
mod hands_elsewhere;
mod health;
mod history;
mod host;
mod inactivity;
mod inherited;
mod init;
mod input;
mod issuer_tokens;
mod issuer_urls;
mod keeper_stopped;
mod kept_output;
mod keys;
mod last_output;
mod leader_exit;
mod left_stops;
mod life;
mod like_bare;
mod limits;
mod liveness;
mod logs;
mod long_lines;
mod many;
mod mcp;
mod members;
mod metrics;
mod metrics_door;
mod mixed_versions;
mod names;
mod network;
mod network_cli;
mod node_streams;
mod nodes;
mod notify;
mod notify_flood;
mod observability;
mod oom_order;
mod output;
mod own_log;
mod pause;
mod pgbouncer;
mod pidns;
mod prompts;
mod questions;
mod quotas;
mod read_output;
mod readiness;
mod reap_kept;
mod recorded_data;
mod refusals;
mod restart;
mod retention;
mod role_table;
mod rules;
mod rules_in_bad_weather;
mod run_as;
mod run_secrets;
mod run_table;
mod run_tokens;
mod runbook;
mod sandbox;
mod sandbox_table;
mod secrets;
mod selections;
mod server_restart;
mod service_manager;
mod settings;
mod shell_child;
mod shell_job;
mod shim_lost;
mod shutdown;
mod silent_run;
mod stop_signal;
mod stop_steps;
mod stop_times;
mod store_away;
mod store_back;
mod store_refusals;
mod store_weather;
mod stray_signals;
mod stuck;
mod subscribers;
mod success_codes;
mod tail;
mod terminal;
mod time;
mod together;
mod top;
mod traces;
mod trail;
mod trees;
mod tty;
mod tty_faults;
mod tutorials;
mod unrelated;
mod upgrade;
mod usage;
mod views;
mod wait_output;
mod why;
mod zygote;

use kennel_tests::net;

/// Runs one test twice: with the control groups that the host allows, and without any. For tests whose two runs take
/// different paths through the product; the others run once.
macro_rules! with_and_without_cgroup {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn with_cgroup() {
                super::$name(kennel_tests::Options::default()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn without_cgroup() {
                super::$name(kennel_tests::Options::default().without_cgroup()).await;
            }
        })+
    };
}
pub(crate) use with_and_without_cgroup;

/// Plays scenes one after the other on one server, and prints their names: the last one is that of a failure.
macro_rules! play_scenes {
    ($kennel:expr; $($scene:ident,)+) => {$(
        eprintln!("scene {}", stringify!($scene));
        Box::pin($scene($kennel)).await;
    )+};
}
pub(crate) use play_scenes;

/// Plays scenes at the same time on one server.
macro_rules! play_at_once {
    ($kennel:expr; $($scene:ident,)+) => {
        tokio::join!($(Box::pin($scene($kennel))),+)
    };
}
pub(crate) use play_at_once;

/// Plays scenes at the same time, each on a server of its own: for those that wait for a clock.
macro_rules! play_apart {
    ($($scene:ident,)+) => {
        tokio::join!($(Box::pin($scene())),+)
    };
}
pub(crate) use play_apart;

/// Plays scenes at the same time, beside the events that they share. Returns what they return, the events' first.
macro_rules! play_together {
    ($together:expr, $events:expr; $($scene:ident,)+) => {
        tokio::join!(Box::pin($events), $(Box::pin($scene($together))),+)
    };
}
pub(crate) use play_together;
