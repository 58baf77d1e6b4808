//! Notifications to a service manager by `sd_notify(3)`.

use kennel_tests::{Kennel, Options, PATIENCE, must, sh};
use nix::sys::signal::Signal;
use std::{
    os::unix::net::UnixDatagram,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A service manager that listens, and its received messages.
struct Manager {
    dir: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let dir = must("a directory", tempfile::tempdir());
        let socket = must("bind", UnixDatagram::bind(dir.path().join("notify")));
        must("limit", socket.set_read_timeout(Some(PATIENCE)));
        Self { dir, socket }
    }

    fn options(&self) -> Options {
        let path = self.dir.path().join("notify").display().to_string();
        Options {
            env: vec![
                ("NOTIFY_SOCKET".to_owned(), path),
                ("WATCHDOG_USEC".to_owned(), "1000000".to_owned()),
            ],
            ..Options::default()
        }
    }

    fn next(&self) -> String {
        let mut bytes = [0; 256];
        let size = must("a message", self.socket.recv(&mut bytes));
        String::from_utf8_lossy(&bytes[..size]).into_owned()
    }

    /// Returns the next message that is no sign of life.
    fn next_change(&self) -> String {
        loop {
            let message = self.next();
            if message != "WATCHDOG=1\n" {
                return message;
            }
        }
    }

    /// Whether the keeper sends a sign of life within this time.
    fn hears_life(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        must("limit", self.socket.set_nonblocking(true));
        let mut bytes = [0; 256];
        let mut heard = false;
        while Instant::now() < until {
            heard |= self.socket.recv(&mut bytes).is_ok();
            std::thread::sleep(Duration::from_millis(10));
        }
        must("limit", self.socket.set_nonblocking(false));
        heard
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_manager_hears_each_change() {
    let manager = Manager::new();
    let mut kennel = Kennel::start(manager.options()).await;
    assert_eq!(manager.next_change(), "READY=1\nSTATUS=serving\n");
    kennel.kill_server();
    assert!(
        manager
            .next_change()
            .starts_with("STATUS=the server has died")
    );
    assert_eq!(manager.next_change(), "READY=1\nSTATUS=serving\n");
    kennel.signal(Signal::SIGHUP);
    assert!(manager.next_change().starts_with("RELOADING=1\n"));
    assert_eq!(manager.next_change(), "READY=1\nSTATUS=serving\n");

    // Neither variable is passed to a run.
    let mut client = kennel.client().await;
    let id = client
        .spawn(sh("echo \"<$NOTIFY_SOCKET$WATCHDOG_USEC>\""))
        .await;
    let id = must("spawn", id).run_id;
    must("wait", client.ended(&id).await);
    let heard = must("events", client.hear_all(&id, 0).await);
    assert_eq!(heard.text(), "<>\n");
    drop(client);
    kennel.signal(Signal::SIGTERM);
    assert!(manager.next_change().starts_with("STOPPING=1\n"));
    kennel.wait_for_exit(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_notices_a_stopped_keeper() {
    let manager = Manager::new();
    let kennel = Kennel::start(manager.options()).await;
    assert!(manager.hears_life(Duration::from_secs(1)));
    kennel.signal(Signal::SIGSTOP);
    manager.hears_life(Duration::from_millis(100));
    let lived = manager.hears_life(Duration::from_secs(2));
    kennel.signal(Signal::SIGCONT);
    assert!(!lived, "it is stopped");
    assert!(manager.hears_life(Duration::from_secs(2)));
}
