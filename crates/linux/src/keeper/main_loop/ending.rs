//! How the service ends: asked to, or because the server is gone.

use super::Keeper;
use crate::{cgroup, clock, reap, wire::ToServer};
use kennel_lifecycle::{
    Exit, RunId,
    ladder::StopPlan,
    limits::{SHUTDOWN_DEADLINE, SHUTDOWN_GRACE_MAX},
};

/// Between the end of the server's socket and SIGKILL to a server that does not exit.
const SERVER_EXIT_MS: u64 = 5_000;
/// After the deadline of a shutdown: time for the server's last commits before it is taken for hung.
const LAST_COMMITS_MS: u64 = 5_000;
/// Most batches of messages that a dead server can have left in the socket.
const LAST_WORDS_MAX: usize = 1024;
/// Exit code after the loss of the server.
const CODE_LOST: i32 = 70;
/// Exit code where something was still alive at the deadline.
const CODE_ALIVE: i32 = 1;

/// How far the end of the service has come.
#[derive(Default)]
pub(super) struct Ending {
    /// SIGTERM or SIGINT came: then the server is killed at this time if it hangs.
    pub(super) shutdown: Option<u64>,
    /// The server's socket was closed: then all is over at this time, ended or not.
    pub(super) drained_by: Option<u64>,
    server_killed_at: Option<u64>,
    pub(super) survivors: bool,
}

impl Keeper {
    pub(super) fn shut_down(&mut self) {
        let now = clock::boot_ms();
        let again = self.ending.shutdown.is_some();
        if !again {
            let wait = u64::try_from(SHUTDOWN_DEADLINE.as_millis()).unwrap_or(u64::MAX);
            self.ending.shutdown = Some(now + wait + LAST_COMMITS_MS);
        }
        let word = if again {
            ToServer::ShutdownNow
        } else {
            ToServer::Shutdown
        };
        self.send(&word, Vec::new());
    }

    pub(super) fn kill_server(&mut self, now: u64) {
        if self.ending.server_killed_at.is_none() && self.server.exit.is_none() {
            self.ending.server_killed_at = Some(now);
            self.server.kill();
        }
    }

    /// Its socket is closed, and all it wanted before that is done: gates shut, what runs is ended.
    pub(super) fn server_gone(&mut self) {
        let now = clock::boot_ms();
        if let Some(socket) = self.server.socket.take() {
            let _ = self.epoll.delete(&socket);
        }
        self.orphans.clear();
        let ids: Vec<RunId> = self.runs.keys().copied().collect();
        let mut longest = 0;
        for id in ids {
            if let Some(run) = self.runs.get_mut(&id) {
                let grace = run.plan().kill_after.as_millis();
                longest = longest.max(u64::try_from(grace).unwrap_or(u64::MAX));
                run.server_gone(now);
            }
            self.touch(id, now);
        }
        let patience = u64::try_from(SHUTDOWN_DEADLINE.as_millis()).unwrap_or(u64::MAX);
        self.ending.drained_by = Some(now.saturating_add(longest).saturating_add(patience));
        self.ending.shutdown.get_or_insert(now + SERVER_EXIT_MS);
        self.hasten(now);
    }

    /// A server that has exited in order has left nothing running; if it has, that is ended within the bound of a
    /// shutdown, whatever its own plan says.
    fn hasten(&mut self, now: u64) {
        if self.server.exit != Some(Exit::Code(0)) {
            return;
        }
        let plan = StopPlan::abort(SHUTDOWN_GRACE_MAX);
        let ids: Vec<RunId> = self.runs.keys().copied().collect();
        for id in ids {
            if let Some(run) = self.runs.get_mut(&id) {
                run.stop(&plan, now);
            }
            self.touch(id, now);
        }
        let patience = u64::try_from(SHUTDOWN_DEADLINE.as_millis()).unwrap_or(u64::MAX);
        if let Some(by) = &mut self.ending.drained_by {
            *by = (*by).min(now + patience);
        }
    }

    pub(super) fn finished(&mut self, now: u64) -> Option<i32> {
        let exit = self.server.exit?;
        // It is dead, so what it has sent is all there: read it to its end.
        for _ in 0..LAST_WORDS_MAX {
            if self.server.socket.is_none() {
                break;
            }
            self.hear_server();
        }
        // Somebody else holds its end; nobody but the server is obeyed.
        if self.server.socket.is_some() {
            self.server_gone();
        }
        let left = self.runs.values().any(|run| !run.has_ended());
        let drained_by = self.ending.drained_by.unwrap_or(now);
        if left && now < drained_by {
            return None;
        }
        Some(match exit {
            Exit::Code(0) if left || self.ending.survivors => CODE_ALIVE,
            Exit::Code(0) => 0,
            Exit::Code(CODE_ALIVE) if self.ending.server_killed_at.is_none() => CODE_ALIVE,
            _ => CODE_LOST,
        })
    }

    /// Leaves nothing behind: idle shims, control groups; the socket files go with their owners.
    pub(super) fn close(&mut self) {
        for warm in self.pool.drain() {
            // SAFETY: kill takes integers; the pid is that of an unreaped child of this process.
            unsafe { libc::kill(warm.pid, libc::SIGKILL) };
            let _ = reap::await_end(warm.pid);
        }
        self.leftovers.retain(|group| !cgroup::remove(group));
        self.groups.remove();
    }
}
