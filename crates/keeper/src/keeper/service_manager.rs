//! Messages about the service to a service manager, such as systemd: `sd_notify(3)`, one datagram a message.

use std::{
    io,
    os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr, unix::net::UnixDatagram},
    sync::Arc,
    time::Duration,
};

/// The service manager that has started the keeper; the default: there is none.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the service manager at `NOTIFY_SOCKET`: a path, or a name of the abstract namespace behind `@`.
    /// Without a message within the time of `WATCHDOG_USEC` it ends the service.
    pub fn connect(name: &str, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Some(Arc::new(socket)),
            watchdog,
        })
    }
}

/// Sends messages to the service manager. A message that it does not take is lost: no run waits for it.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    manager: ServiceManager,
    watchdog: Option<u64>,
    due: u64,
}

impl Notifier {
    pub(super) fn new(manager: &ServiceManager, now: u64) -> Self {
        // Twice as often as required, as `sd_watchdog_enabled(3)` recommends.
        let half = |time: Duration| {
            u64::try_from(time.as_millis() / 2)
                .unwrap_or(u64::MAX)
                .max(1)
        };
        let watchdog = manager.watchdog.map(half);
        Self {
            manager: manager.clone(),
            watchdog,
            due: now,
        }
    }

    /// Reports that the server serves.
    pub(super) fn ready(&self) {
        self.send("READY=1\nSTATUS=serving\n");
    }

    /// Reports that another server replaces this one, because of an upgrade.
    pub(super) fn reloading(&self) {
        self.send("RELOADING=1\nSTATUS=replacing the server\n");
    }

    /// Reports that the server has died, and another one is started.
    pub(super) fn server_lost(&self) {
        self.send("STATUS=the server has died, starting another one; runs continue\n");
    }

    /// Reports that the service is shutting down.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=ending all runs\n");
    }

    /// Returns when [`Notifier::step`] has something to do.
    pub(super) fn wakes_at(&self) -> Option<u64> {
        self.watchdog.map(|_| self.due)
    }

    /// Reports that the keeper's loop is alive.
    pub(super) fn step(&mut self, now: u64) {
        if let Some(every) = self.watchdog.filter(|_| self.due <= now) {
            self.due = now.saturating_add(every);
            self.send("WATCHDOG=1\n");
        }
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.manager.socket {
            let _ = socket.send(message.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: S-21
    #[test]
    fn watchdog_is_notified_twice_per_interval() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        manager.set_nonblocking(true).expect("set");
        let name = path.to_str().expect("UTF-8");
        let heard_by = ServiceManager::connect(name, Some(Duration::from_secs(10)));
        let mut notifier = Notifier::new(&heard_by.expect("it listens"), 1_000);
        let mut heard = 0;
        for now in (1_000..21_000).step_by(100) {
            notifier.step(now);
            let mut bytes = [0; 64];
            while let Ok(size) = manager.recv(&mut bytes) {
                assert_eq!(&bytes[..size], b"WATCHDOG=1\n");
                heard += 1;
            }
        }
        assert_eq!(heard, 4);
        assert_eq!(notifier.wakes_at(), Some(21_000));
    }

    #[test]
    fn without_service_manager_no_wakeup_is_scheduled() {
        let mut notifier = Notifier::new(&ServiceManager::default(), 0);
        notifier.ready();
        notifier.step(1);
        assert_eq!(notifier.wakes_at(), None);
        ServiceManager::connect("/nonexistent/notify", None).expect_err("it is not there");
    }
}
