//! Notifications to a service manager by `sd_notify(3)`.

use kennel_tests::{Kennel, Options, PATIENCE, cases, eventually, must, procfs::Proc, sh};
use nix::sys::signal::Signal;
use std::{os::unix::net::UnixDatagram, time::Duration};
use tempfile::TempDir;

/// Longest time between two signs of life.
const WATCHDOG: Duration = Duration::from_millis(200);

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
                ("WATCHDOG_USEC".to_owned(), WATCHDOG.as_micros().to_string()),
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
        must("limit", self.socket.set_read_timeout(Some(time)));
        let heard = self.socket.recv(&mut [0; 256]).is_ok();
        must("limit", self.socket.set_read_timeout(Some(PATIENCE)));
        heard
    }

    /// Reads what was sent so far.
    fn discard(&self) {
        must("mode", self.socket.set_nonblocking(true));
        while self.socket.recv(&mut [0; 256]).is_ok() {}
        must("mode", self.socket.set_nonblocking(false));
    }
}

/// A service, and the manager that it notifies.
struct Scene {
    manager: Manager,
    kennel: Kennel,
}

impl Scene {
    async fn begin() -> Self {
        let manager = Manager::new();
        let kennel = Kennel::start(manager.options()).await;
        Self { manager, kennel }
    }
}

cases! {
    fn service_manager_is_notified(mut Scene::begin().await);
    service_manager_hears_each_change,
    watchdog_notices_a_stopped_keeper,
    service_manager_hears_the_end,
}

// promise: S-21
async fn service_manager_hears_each_change(scene: &mut Scene) {
    let Scene { manager, kennel } = scene;
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

    // NOTIFY_SOCKET and WATCHDOG_USEC are not passed to runs.
    let mut client = kennel.client().await;
    let id = client
        .spawn(sh("echo \"<$NOTIFY_SOCKET$WATCHDOG_USEC>\""))
        .await;
    let id = must("spawn", id).run_id;
    must("wait", client.ended(&id).await);
    let heard = must("events", client.hear_all(&id, 0).await);
    assert_eq!(heard.text(), "<>\n");
}

async fn service_manager_hears_the_end(scene: &mut Scene) {
    let Scene { manager, kennel } = scene;
    kennel.signal(Signal::SIGTERM);
    assert!(manager.next_change().starts_with("STOPPING=1\n"));
    kennel.wait_for_exit(PATIENCE).await;
}

// promise: S-21
async fn watchdog_notices_a_stopped_keeper(scene: &mut Scene) {
    let Scene { manager, kennel } = scene;
    assert!(manager.hears_life(PATIENCE));
    kennel.signal(Signal::SIGSTOP);
    eventually("it is stopped", PATIENCE, || {
        (Proc::read(kennel.keeper_pid())?.state == 'T').then_some(())
    })
    .await;
    manager.discard();
    let lived = manager.hears_life(2 * WATCHDOG);
    kennel.signal(Signal::SIGCONT);
    assert!(!lived, "it is stopped");
    assert!(manager.hears_life(PATIENCE));
}
